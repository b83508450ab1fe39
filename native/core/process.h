// What a recording process knows about itself. It lives on a page that the kernel wipes in a forked child
// (MADV_WIPEONFORK; raw clone skips atfork handlers), so a child finds generation 0 and starts afresh.
#pragma once

#include <efaprof/format.h>

namespace efaprof {

constexpr size_t kPathMax = 1024;
constexpr uint64_t kDefaultBuffer = 4u << 20;       // bytes of slots in a ring
constexpr uint64_t kSmallestBuffer = 256u << 10;    // halving a ring for want of space stops here
constexpr uint32_t kMostSlots = 1 + EFAPROF_CQ_MAX; // of the largest record

constexpr uint64_t kNoRank = UINT64_MAX;

struct Settings {             // from the environment
    uint64_t buffer;          // bytes of slots wanted per ring, a power of two
    uint64_t total;           // bytes of all rings of the run together; 0 = a quarter of the free space
    uint64_t warm_up;         // steps before recording begins
    uint64_t steps;           // steps after which it ends; 0 = it does not
    uint64_t rank;            // of the process in its job, as its launcher says; kNoRank = it does not
    char ring_dir[kPathMax];  // empty = do not record
    char spill_dir[kPathMax]; // empty = none
};

struct Process {
    uint32_t generation;      // never the same twice in a line of descent; 0 = not known yet
    uint32_t recording;       // EFAPROF_RING_DIR is set
    uint32_t *paused;         // words of the run's control file, or without one of this library
    efaprof_header *overflow; // a ring without slots: where threads that got no ring count what they lose
    Settings settings;
    uint64_t boot_id[2];
    uint64_t pid_ns;
    uint64_t start; // field 22 of /proc/self/stat
    uint32_t pid;
    char host[64];
};
static_assert(sizeof(Process) <= 4096, "one page");

extern Process *g_process; // never NULL

// What all our libraries in a process share, however they were loaded: the dynamic linker makes symbols of this type
// unique.
struct Here {
    uint32_t stopped;    // 1 while the program wants nothing of this process recorded
    uint32_t steps_from; // enum efaprof_source whose steps count: of the first that had one
    uint64_t stopped_at; // ticks
};
extern "C" __attribute__((visibility("default"))) Here efaprof_here;

// The process's page, made (or made again after a fork) when need be. NULL only when there is no memory.
Process *process_find();

// The next process_find() reads the environment. Records of the old generation are not published any more.
void process_renew();

// The process as known so far: generation 0 = not at all.
inline Process *process_now() {
    return __atomic_load_n(&g_process, __ATOMIC_ACQUIRE);
}

// The kernel's boot id, as the two halves of its 32 hexadecimal digits; zeros when it cannot be read.
void boot_id_read(uint64_t into[2]);

// The run's control file. Its first word is an enum efaprof_pause_state, its second the steps that one process has
// begun, the most of any; the next two are the ticks when recording was paused. It lies where every process of the run
// can see it: in spill_dir (the run directory), else in ring_dir. NULL when there is none.
constexpr const char *kControlName = "control";
uint32_t *control_map(const char *ring_dir, const char *spill_dir, bool create);

} // namespace efaprof
