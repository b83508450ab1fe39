// efaprof-dispatch: the instrumented proxy path on a CPU.
#include <string.h>

#include "launch.h"
#include "ring_bench.h"
#include "summary.h"

int main(int count, char **words) {
    using namespace efaprof::dispatch;
    if (count > 1 && strcmp(words[1], "ring") == 0) return bench_ring(count - 1, words + 1);
    Job *job = make_job(parse_options(count, words));
    int code = launch(*job);
    if (code != 0) return code;
    if (!is_all_verified(*job)) return EXIT_FAILED;
    print_summary(*job);
    return 0;
}
