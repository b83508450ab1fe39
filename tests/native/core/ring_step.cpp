// ring_step ACCOUNTS RAW_DIR: a signal between any two instructions. The trap flag raises SIGTRAP after each one, and
// the handler writes a record (tag 2) into whatever the main line (tag 1) was doing: making the ring, an ordinary
// record, one that wraps (the ring has 128 slots), one that finds the ring full, a name, a clock sample.
#include "probe.h"

#include <efaprof/drain.h>

#include <csignal>

#if defined(__x86_64__)
namespace {

volatile bool g_is_stepping;
probe::Account *g_accounts;

void on_trap(int) {
    if (g_is_stepping) probe::write_record(2, g_accounts[2]);
}

void set_trap(bool on) {
    g_is_stepping = on;
    // 128 bytes below the stack pointer are the function's own.
    if (on)
        asm volatile("lea -128(%%rsp), %%rsp; pushfq; orq $0x100, (%%rsp); popfq; lea 128(%%rsp), %%rsp" ::
                         : "memory", "cc");
    else
        asm volatile("lea -128(%%rsp), %%rsp; pushfq; andq $~0x100, (%%rsp); popfq; lea 128(%%rsp), %%rsp" ::
                         : "memory", "cc");
}

template <typename Step> void step(Step what) {
    set_trap(true);
    what();
    set_trap(false);
}

} // namespace

int main(int argc, char **argv) {
    if (argc != 3) probe::fail("usage");
    g_accounts = probe::map_accounts(argv[1]);
    const char *rings = getenv("EFAPROF_RING_DIR");
    efaprof_drain *drain = efaprof_drain_open(rings, nullptr, argv[2], 0);
    if (drain == nullptr) probe::fail("drain");
    efaprof_drain_stats stats;
    struct sigaction action {};
    action.sa_handler = on_trap;
    sigaction(SIGTRAP, &action, nullptr);
    const auto record = [] { probe::write_record(1, g_accounts[1]); };
    for (int i = 0; i < 60; ++i) {
        step(record);
        if (i < 40 && efaprof_drain_poll(drain, 1, &stats) != 0) probe::fail("poll"); // then it fills
    }
    step([] { efaprof::name("found full", 10); });
    if (efaprof_drain_poll(drain, 1, &stats) != 0) probe::fail("poll");
    step([] { efaprof::name("at first sight", 14); });
    step([] { efaprof_sample_clock(); });
    if (efaprof_drain_poll(drain, 1, &stats) != 0) probe::fail("poll");
    return 0;
}
#else
int main() {
    return 77;
} // no trap flag
#endif
