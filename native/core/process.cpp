#include "process.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "sysfile.h"

namespace efaprof {

static Process g_unknown; // generation 0
static uint32_t g_generations;
alignas(8) static uint32_t g_paused[4]; // where there is no control file

Process *g_process = &g_unknown;

// In assembly, as compilers differ in whether they make a unique symbol of anything.
__asm__(".pushsection .bss\n"
        ".balign 8\n"
        ".globl efaprof_here\n"
        ".type efaprof_here, %gnu_unique_object\n"
        ".size efaprof_here, 16\n"
        "efaprof_here: .zero 16\n"
        ".popsection\n");

void boot_id_read(uint64_t into[2]) {
    char text[64];
    into[0] = into[1] = 0;
    read_whole("/proc/sys/kernel/random/boot_id", text, sizeof text);
    int digits = 0;
    for (const char *at = text; *at != 0 && *at != '\n' && digits < 32; ++at) {
        const char c = *at;
        if (c == '-') continue;
        const int value = c >= 'a' ? c - 'a' + 10 : c >= 'A' ? c - 'A' + 10 : c - '0';
        into[digits / 16] = into[digits / 16] << 4 | static_cast<uint64_t>(value & 15);
        ++digits;
    }
}

uint32_t *control_map(const char *ring_dir, const char *spill_dir, bool create) {
    char path[kPathMax + 16];
    Text text(path, sizeof path);
    text.add(spill_dir != nullptr && spill_dir[0] != 0 ? spill_dir : ring_dir).add("/").add(kControlName);
    if (!text.ok()) return nullptr;
    const int fd = open(path, O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | (create ? O_CREAT : 0), 0600);
    if (fd < 0) return nullptr;
    void *map = MAP_FAILED;
    struct stat st;
    const bool room = !create || posix_fallocate(fd, 0, 4096) == 0;
    if (room && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size >= 4096)
        map = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    return map == MAP_FAILED ? nullptr : static_cast<uint32_t *>(map);
}

// ---- settings -------------------------------------------------------------------------------------
// Read when the library is loaded, if recording is wanted then: a program may change its environment in one thread
// while another makes its first record, or clear it. Else read when first needed.

static Settings g_settings; // ring_dir is empty when it was not read at load

static uint64_t number_of_env(const char *name, uint64_t otherwise) {
    const char *text = secure_getenv(name);
    if (text == nullptr || *text == 0) return otherwise;
    uint64_t value = 0;
    for (; *text >= '0' && *text <= '9' && value < (1ull << 50); ++text)
        value = value * 10 + static_cast<uint64_t>(*text - '0');
    return *text == 0 ? value : otherwise;
}

static uint64_t ring_bytes_wanted() {
    const uint64_t wanted = number_of_env("EFAPROF_BUFFER", kDefaultBuffer);
    uint64_t bytes = 4096; // 128 slots: the largest record still fits beside its pad
    while (bytes * 2 <= wanted && bytes < (1ull << 32))
        bytes *= 2;
    return bytes;
}

static void path_of_env(const char *name, char *into) {
    const char *text = secure_getenv(name);
    Text path(into, kPathMax);
    if (!path.add(text != nullptr ? text : "").ok()) into[0] = 0;
}

static uint64_t rank_of_env() {
    static const char *const launchers[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK",    "PMI_RANK",
                                            "MV2_COMM_WORLD_RANK",  "SLURM_PROCID", "RANK"};
    for (const char *name : launchers) {
        const uint64_t rank = number_of_env(name, kNoRank);
        if (rank != kNoRank) return rank;
    }
    return kNoRank;
}

static void read_environment(Settings &settings) {
    path_of_env("EFAPROF_RING_DIR", settings.ring_dir);
    if (settings.ring_dir[0] == 0) return;
    path_of_env("EFAPROF_SPILL_DIR", settings.spill_dir);
    settings.buffer = ring_bytes_wanted();
    settings.total = number_of_env("EFAPROF_BUFFER_TOTAL", 0);
    settings.warm_up = number_of_env("EFAPROF_WARMUP_STEPS", 0);
    settings.steps = number_of_env("EFAPROF_STEPS", 0);
    settings.rank = rank_of_env();
}

__attribute__((constructor)) static void read_environment_at_load() {
    read_environment(g_settings);
}

// ---- the page -------------------------------------------------------------------------------------

static void fill_identity(Process &p) {
    boot_id_read(p.boot_id);
    struct stat ns;
    if (stat("/proc/self/ns/pid", &ns) == 0) p.pid_ns = ns.st_ino;
    char text[1024];
    p.start = parse_stat(text, read_whole("/proc/self/stat", text, sizeof text)).start;
    utsname names;
    if (uname(&names) != 0) return;
    Text(p.host, sizeof p.host).add(names.nodename);
    for (char *at = p.host; *at != 0; ++at)
        if (*at == '/') *at = '_';
}

static void fill(Process &p) {
    if (__atomic_load_n(&g_settings.ring_dir[0], __ATOMIC_RELAXED) != 0)
        p.settings = g_settings;
    else
        read_environment(p.settings);
    p.paused = g_paused;
    p.pid = static_cast<uint32_t>(getpid());
    p.recording = p.settings.ring_dir[0] != 0;
    if (p.recording == 0) return;
    if (uint32_t *control = control_map(p.settings.ring_dir, p.settings.spill_dir, false)) p.paused = control;
    fill_identity(p);
}

static void wipe_after_fork() {
    g_process = &g_unknown;
}

static Process *make_page() {
    void *page = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) return nullptr;
    if (madvise(page, 4096, MADV_WIPEONFORK) != 0) { // kernels before 4.14
        static uint32_t registered;
        if (__atomic_exchange_n(&registered, 1u, __ATOMIC_RELAXED) == 0)
            pthread_atfork(nullptr, nullptr, wipe_after_fork);
    }
    auto *process = static_cast<Process *>(page);
    fill(*process);
    do
        process->generation = __atomic_add_fetch(&g_generations, 1, __ATOMIC_RELAXED);
    while (process->generation == 0);
    return process;
}

Process *process_find() {
    Process *seen = process_now();
    if (seen->generation != 0) return seen;
    const int saved = errno;
    Process *made = make_page();
    if (made != nullptr &&
        !__atomic_compare_exchange_n(&g_process, &seen, made, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
        munmap(made, 4096); // another thread was first
        made = seen;
    }
    errno = saved;
    return made;
}

void process_renew() {
    __atomic_store_n(&g_settings.ring_dir[0], char(0), __ATOMIC_RELAXED); // from now on the environment says
    __atomic_store_n(&g_process, &g_unknown, __ATOMIC_RELEASE);
}

} // namespace efaprof
