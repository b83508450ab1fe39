// A library with NVTX of its own: a client beside the program that loads it.
#include "client.h"

int part_run(void);

int part_run(void) {
    const int told = begin_nvtx();
    push_a("in the part");
    pop();
    const void *domain = create_a("part");
    struct attributes a = saying(ASCII, "of the part's domain");
    domain_push_ex(domain, &a);
    domain_pop(domain);
    return told;
}
