#include "pin.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../proxy/record.h"
#include "../proxy/stop.h"
#include "library.h"

namespace efaprof::dispatch {

bool parse_cores(const char *list, cpu_set_t &cores) {
    CPU_ZERO(&cores);
    for (const char *at = list; *at != 0 && *at != '\n';) {
        char *end = nullptr;
        unsigned long first = strtoul(at, &end, 10), last = first;
        if (end == at) return false;
        if (*end == '-') last = strtoul(at = end + 1, &end, 10);
        if (end == at || last < first || last >= CPU_SETSIZE) return false;
        for (unsigned long core = first; core <= last; core++)
            CPU_SET(core, &cores);
        at = *end == ',' ? end + 1 : end;
        if (at == end && *end != 0 && *end != '\n') return false;
    }
    return CPU_COUNT(&cores) > 0;
}

void pin_to_gpu(uint32_t rank) {
    gpu::DeviceFacts facts;
    check_gpu(gpu_library().facts(rank % static_cast<uint32_t>(gpu_library().count()), &facts));
    char path[80], list[1024] = {};
    snprintf(path, sizeof path, "/sys/devices/system/node/node%d/cpulist", facts.numa_node);
    FILE *file = facts.numa_node < 0 ? nullptr : fopen(path, "re");
    if (file != nullptr) {
        if (fgets(list, sizeof list, file) == nullptr) list[0] = 0;
        fclose(file);
    }
    cpu_set_t cores;
    if (!parse_cores(list, cores))
        fail(Cause::Refused, "--pin: this machine does not say which cores are near the GPU");
    if (sched_setaffinity(0, sizeof cores, &cores) != 0) fail(Cause::Failed, "--pin: %s", strerror(errno));
    record_note("gpu.numa_node", static_cast<uint64_t>(facts.numa_node));
}

} // namespace efaprof::dispatch
