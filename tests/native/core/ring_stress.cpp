// ring_stress DIR: writers that come and go, interrupted by timers, while another thread drains and one forks; for the
// sanitizers. Exits 0 when every record that was published arrived whole.
#include "probe.h"

#include <efaprof/drain.h>

#include <csignal>
#include <dirent.h>
#include <pthread.h>
#include <string>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>

namespace {

constexpr int kWriters = 3, kGenerations = 12, kRecords = 3000, kNameEvery = 100;
constexpr uint64_t kNames = kWriters * kGenerations * kRecords / kNameEvery; // may find the ring full, too
probe::Account g_accounts[kWriters];
probe::Account g_signals;
efaprof_drain *g_drain;
efaprof_drain_stats g_stats;
int g_stop;

void on_signal(int) { // any thread's; only counted
    if (void *room = efaprof::reserve(1)) {
        const efaprof_head head{0, 0xffff, EFAPROF_KIND(EFAPROF_SHAPE_SPAN, 2), 0};
        memcpy(room, &head, sizeof head);
        efaprof::publish(room, 1);
        __atomic_fetch_add(&g_signals.published, 1, __ATOMIC_RELAXED);
    } else {
        __atomic_fetch_add(&g_signals.refused, 1, __ATOMIC_RELAXED);
    }
}

void *write_some(void *tag) {
    const auto t = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(tag));
    for (int i = 0; i < kRecords; ++i) {
        while (!probe::write_record(t, g_accounts[t]))
            usleep(50); // full: until the drain has been there
        if (i % kNameEvery == 0) efaprof::name("writer", 6);
    }
    return nullptr;
}

void *writer(void *tag) {
    for (int i = 0; i < kGenerations; ++i) {
        pthread_t id;
        if (pthread_create(&id, nullptr, write_some, tag) != 0) probe::fail("create");
        pthread_join(id, nullptr);
    }
    return nullptr;
}

void *drain(void *) {
    while (__atomic_load_n(&g_stop, __ATOMIC_ACQUIRE) == 0) {
        if (efaprof_drain_poll(g_drain, 1, &g_stats) != 0) probe::fail("poll");
        usleep(200);
    }
    return nullptr;
}

uint64_t count_records(const std::string &path, const std::string &name) {
    FILE *file = fopen((path + "/" + name).c_str(), "rb");
    static unsigned char page[EFAPROF_HEADER_BYTES];
    if (file == nullptr || fread(page, sizeof page, 1, file) != 1) probe::fail("raw file");
    efaprof_header header;
    memcpy(&header, page, sizeof header);
    auto *slots = static_cast<unsigned char *>(malloc(header.tail * EFAPROF_SLOT_BYTES + 1));
    auto *starts = static_cast<uint32_t *>(malloc(header.tail * sizeof(uint32_t) + 1));
    if (fread(slots, EFAPROF_SLOT_BYTES, header.tail, file) != header.tail) probe::fail("raw file is short");
    fclose(file);
    efaprof_index_result index;
    efaprof_index(slots, header.tail, starts, header.tail, &index);
    if (index.next != header.tail || header.head != header.tail) probe::fail("records do not end where the file does");
    uint64_t checked = 0;
    for (uint64_t i = 0; i < index.records; ++i) {
        efaprof_head head;
        const unsigned char *record = slots + starts[i] * EFAPROF_SLOT_BYTES;
        memcpy(&head, record, sizeof head);
        const uint8_t kind_shape = EFAPROF_SHAPE_OF(head.kind);
        if (head.dur >= kWriters || kind_shape == EFAPROF_SHAPE_NAME || kind_shape == EFAPROF_SHAPE_THREAD) continue;
        uint64_t sequence, value;
        memcpy(&sequence, record + 16, sizeof sequence);
        const probe::Shape shape = probe::shape_of(head.dur, sequence);
        if (shape.kind != head.kind || shape.x != head.x) probe::fail("torn head");
        for (uint32_t word = 3; word < shape.slots * 4; ++word) {
            memcpy(&value, record + word * 8, sizeof value);
            if (value != probe::word_of(head.dur, sequence, word)) probe::fail("torn body");
        }
        ++checked;
    }
    free(slots);
    free(starts);
    return checked;
}

void fork_some() {
    for (int i = 0; i < 3; ++i) {
        const pid_t child = fork();
        if (child == 0) {
            efaprof::name("child", 5);
            _exit(0);
        }
        waitpid(child, nullptr, 0);
    }
}

} // namespace

int main(int argc, char **argv) {
    if (argc != 2) probe::fail("usage");
    const std::string base = argv[1], rings = base + "/rings", raw = base + "/raw";
    if (mkdir(rings.c_str(), 0700) != 0 || mkdir(raw.c_str(), 0700) != 0) probe::fail("mkdir");
    setenv("EFAPROF_RING_DIR", rings.c_str(), 1);
    setenv("EFAPROF_BUFFER", "65536", 1);
    g_drain = efaprof_drain_open(rings.c_str(), nullptr, raw.c_str(), 0);
    if (g_drain == nullptr) probe::fail("open");
    struct sigaction action {};
    action.sa_handler = on_signal;
    action.sa_flags = SA_RESTART;
    sigaction(SIGALRM, &action, nullptr);
    const itimerval every{{0, 500}, {0, 500}};
    setitimer(ITIMER_REAL, &every, nullptr);
    pthread_t drainer, writers[kWriters];
    pthread_create(&drainer, nullptr, drain, nullptr);
    for (uintptr_t i = 0; i < kWriters; ++i)
        pthread_create(&writers[i], nullptr, writer, reinterpret_cast<void *>(i));
    fork_some();
    for (const pthread_t id : writers)
        pthread_join(id, nullptr);
    const itimerval never{};
    setitimer(ITIMER_REAL, &never, nullptr);
    __atomic_store_n(&g_stop, 1, __ATOMIC_RELEASE);
    pthread_join(drainer, nullptr);
    efaprof_restart();
    if (efaprof_drain_close(g_drain, &g_stats) != 0) probe::fail("close");
    uint64_t found = 0, published = 0, refused = 0;
    DIR *listing = opendir(raw.c_str());
    while (const dirent *entry = readdir(listing))
        if (entry->d_name[0] != '.') found += count_records(raw, entry->d_name);
    closedir(listing);
    for (const probe::Account &account : g_accounts) {
        published += account.published;
        refused += account.refused;
    }
    printf("published %lu refused %lu found %lu rings %lu dropped %lu signals %lu+%lu\n", published, refused, found,
           g_stats.rings, g_stats.dropped, g_signals.published, g_signals.refused);
    if (found != published) probe::fail("records lost");
    const uint64_t refused_in_all = refused + g_signals.refused;
    if (g_stats.dropped < refused_in_all || g_stats.dropped > refused_in_all + kNames) probe::fail("drops not counted");
    return 0;
}
