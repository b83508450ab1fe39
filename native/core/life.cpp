#include "life.h"

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <dirent.h>
#include <sys/stat.h>
#include <sys/utsname.h>

#include "process.h"
#include "sysfile.h"

namespace efaprof {

Viewpoint viewpoint_here() {
    Viewpoint here{};
    boot_id_read(here.boot_id);
    struct stat ns;
    if (stat("/proc/self/ns/pid", &ns) == 0) here.pid_ns = ns.st_ino;
    return here;
}

static bool ended(const StatFields &stat) {
    // A zombie leader whose other threads still run shows state Z too, but then it counts more than one thread.
    return (stat.state == 'Z' || stat.state == 'X') && stat.threads <= 1;
}

static Life life_here(uint64_t pid, uint64_t start) {
    if (kill(static_cast<pid_t>(pid), 0) != 0 && errno == ESRCH) return Life::dead;
    char path[64], text[1024];
    Text(path, sizeof path).add("/proc/").add_number(pid).add("/stat");
    const size_t size = read_whole(path, text, sizeof text);
    if (size == 0) return kill(static_cast<pid_t>(pid), 0) != 0 && errno == ESRCH ? Life::dead : Life::alive;
    const StatFields stat = parse_stat(text, size);
    const bool is_other = start != 0 && stat.start != 0 && stat.start != start;
    return is_other || ended(stat) ? Life::dead : Life::alive;
}

// "NSpid:\t1234\t7": the pid in our namespace, then in each namespace below; the last is what the process itself sees.
static bool sees_itself_as(const char *status, uint32_t pid) {
    const char *line = strstr(status, "\nNSpid:");
    if (line == nullptr) return false;
    uint64_t last = 0;
    int levels = 0;
    for (const char *at = line + 7; *at == '\t' || *at == ' ';) {
        char *end;
        last = strtoull(at, &end, 10);
        if (end == at) break;
        at = end;
        ++levels;
    }
    return levels > 1 && last == pid;
}

static Life life_in_other_namespace(uint32_t pid, uint64_t start) {
    DIR *proc = opendir("/proc");
    if (proc == nullptr) return Life::unknown;
    Life life = Life::dead;
    while (const dirent *entry = readdir(proc)) {
        if (entry->d_name[0] < '1' || entry->d_name[0] > '9') continue;
        char path[300], text[4096];
        Text(path, sizeof path).add("/proc/").add(entry->d_name).add("/status");
        if (read_whole(path, text, sizeof text) == 0 || !sees_itself_as(text, pid)) continue;
        Text(path, sizeof path).add("/proc/").add(entry->d_name).add("/stat");
        const StatFields stat = parse_stat(text, read_whole(path, text, sizeof text));
        if (stat.start == start && !ended(stat)) life = Life::alive;
    }
    closedir(proc);
    return life;
}

// Our pid namespace's processes and those of namespaces below it are all that /proc shows.
static bool is_root_view(const Viewpoint &here) {
    constexpr uint64_t first_pid_namespace = 0xEFFFFFFC; // PROC_PID_INIT_INO
    return here.pid_ns == first_pid_namespace;
}

Life life_of(const Viewpoint &here, const efaprof_header &ring) {
    if (memcmp(here.boot_id, ring.boot_id, sizeof here.boot_id) != 0) return Life::unknown;
    if (ring.pid_ns == here.pid_ns) return life_here(ring.pid, ring.process_start);
    if (ring.pid_ns == 0 || here.pid_ns == 0) return Life::unknown;
    const Life life = life_in_other_namespace(ring.pid, ring.process_start);
    return life == Life::dead && !is_root_view(here) ? Life::unknown : life;
}

Life life_by_name(const Viewpoint &here, const char *ring_name) {
    // The host's name may hold dots: fields are counted from the end.
    const char *field[5];
    const char *at = ring_name + strlen(ring_name);
    for (int i = 0; i < 5; ++i) {
        do {
            if (at == ring_name) return Life::unknown;
            --at;
        } while (*at != '.');
        field[i] = at + 1; // "ring", random, tid, pid, pidns
    }
    utsname names;
    const auto host_size = static_cast<size_t>(at - ring_name);
    if (uname(&names) != 0 || strlen(names.nodename) != host_size || memcmp(names.nodename, ring_name, host_size) != 0)
        return Life::unknown;
    if (strtoull(field[4], nullptr, 10) != here.pid_ns) return Life::unknown;
    return life_here(strtoull(field[3], nullptr, 10), 0);
}

} // namespace efaprof
