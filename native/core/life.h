// Does the process that wrote a ring still run?
#pragma once

#include <efaprof/format.h>

namespace efaprof {

enum class Life {
    alive,
    dead,
    unknown, // of another host, or not to be seen from here: its ring is read but never removed
};

struct Viewpoint { // of the process that asks
    uint64_t boot_id[2];
    uint64_t pid_ns;
};
Viewpoint viewpoint_here();

// By pid, start time (pids are reused) and pid namespace. A few system calls; for another pid namespace it
// reads the status of every process.
Life life_of(const Viewpoint &here, const efaprof_header &ring);

// Of a process that only a ring's file name tells of ("host.pidns.pid.tid.random.ring").
Life life_by_name(const Viewpoint &here, const char *ring_name);

} // namespace efaprof
