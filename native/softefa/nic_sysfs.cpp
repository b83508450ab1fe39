// A tree shaped like sysfs, with the files of an EFA device that tools read. Counters are rewritten in place.
#include "nic.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

namespace softefa {
namespace {

constexpr const char *kNames[] = {
#define X(name) #name,
    SOFTEFA_COUNTERS(X)
#undef X
};
constexpr size_t kCount = sizeof kNames / sizeof kNames[0];
static_assert(kCount * sizeof(uint64_t) == sizeof(Counters), "one file a counter");

struct Path {
    char text[PATH_MAX];
};

__attribute__((format(printf, 2, 3))) Path path(const Nic &nic, const char *format, ...) {
    Path p;
    const int n = snprintf(p.text, sizeof p.text, "%s/sysfs", nic.dir);
    va_list args;
    va_start(args, format);
    vsnprintf(p.text + n, sizeof p.text - static_cast<size_t>(n), format, args);
    va_end(args);
    return p;
}

bool make_dirs(Path p) {
    for (char *slash = strchr(p.text + 1, '/');; slash = strchr(slash + 1, '/')) {
        if (slash != nullptr) *slash = '\0';
        if (mkdir(p.text, 0755) != 0 && errno != EEXIST) return false;
        if (slash == nullptr) return true;
        *slash = '/';
    }
}

int put(const Path &p, const char *text) {
    const int fd = open(p.text, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0) return -1;
    const ssize_t length = static_cast<ssize_t>(strlen(text));
    if (write(fd, text, static_cast<size_t>(length)) == length) return fd;
    close(fd);
    return -1;
}

bool put_once(const Path &p, const char *text) {
    const int fd = put(p, text);
    if (fd >= 0) close(fd);
    return fd >= 0;
}

// Each device gets a PCI address of its own; tools want a link that ends in one.
Path pci_dir(const Nic &nic, const Device &device) {
    return path(nic, "/devices/pci0000:00/0000:%02x:%02x.0", 0x40 + device.index / 32, device.index % 32);
}

bool add_identity(Nic &nic, Device &device) {
    char text[128];
    const unsigned n = device.index;
    const uint8_t *g = device.gid;
    const double bits = nic.model.rate_bits_s > 0 ? nic.model.rate_bits_s : nic.model.line_bits_s;
    snprintf(text, sizeof text, "%g Gb/sec (emulated)\n", bits / 1e9);
    bool ok = put_once(path(nic, "/class/infiniband/softefa%u/ports/1/rate", n), text);
    snprintf(text, sizeof text, "%02x%02x:%02x%02x:%02x%02x:%02x%02x\n", g[8], g[9], g[10], g[11], g[12], g[13], g[14],
             g[15]);
    ok = ok && put_once(path(nic, "/class/infiniband/softefa%u/node_guid", n), text);
    snprintf(text, sizeof text, "fe80:0000:0000:0000:%02x%02x:%02x%02x:%02x%02x:%02x%02x\n", g[8], g[9], g[10], g[11],
             g[12], g[13], g[14], g[15]);
    return ok && put_once(path(nic, "/class/infiniband/softefa%u/ports/1/gids/0", n), text) &&
           put_once(path(nic, "/class/infiniband/softefa%u/ports/1/state", n), "4: ACTIVE\n") &&
           put_once(path(nic, "/class/infiniband/softefa%u/ports/1/link_layer", n), "Unspecified\n") &&
           put_once(path(nic, "/class/infiniband/softefa%u/fw_ver", n), "softefa\n") &&
           put_once(path(nic, "/class/infiniband/softefa%u/node_type", n), "7: <unknown>\n");
}

bool link_to(const Path &target, const Path &at) {
    return symlink(target.text, at.text) == 0 || errno == EEXIST;
}

} // namespace

bool sysfs_open(Nic &nic, uint32_t devices) {
    const bool ok = make_dirs(path(nic, "/class/infiniband")) && make_dirs(path(nic, "/class/infiniband_verbs")) &&
                    make_dirs(path(nic, "/bus/pci/drivers/efa")) &&
                    put_once(path(nic, "/class/infiniband_verbs/abi_version"), "6\n");
    Device idle = {};
    gid_make(nic, idle);
    for (; ok && idle.index < devices; ++idle.index) {
        if (!sysfs_add(nic, idle)) return false;
        sysfs_remove(nic, idle);
    }
    return ok;
}

bool sysfs_add(Nic &nic, Device &device) {
    const unsigned n = device.index;
    if (!make_dirs(path(nic, "/class/infiniband/softefa%u/ports/1/hw_counters", n)) ||
        !make_dirs(path(nic, "/class/infiniband/softefa%u/ports/1/gids", n)) ||
        !make_dirs(path(nic, "/class/infiniband_verbs/uverbs%u", n)) || !make_dirs(pci_dir(nic, device)))
        return false;
    Path driver = pci_dir(nic, device);
    strncat(driver.text, "/driver", sizeof driver.text - strlen(driver.text) - 1);
    if (!link_to(path(nic, "/bus/pci/drivers/efa"), driver) ||
        !link_to(pci_dir(nic, device), path(nic, "/class/infiniband/softefa%u/device", n)) ||
        !add_identity(nic, device))
        return false;
    for (size_t i = 0; i < kCount; ++i) {
        device.counter_fds[i] =
            put(path(nic, "/class/infiniband/softefa%u/ports/1/hw_counters/%s", n, kNames[i]), "0\n");
        if (device.counter_fds[i] < 0) return false;
    }
    return true;
}

void sysfs_refresh(Nic &, Device &device) {
    uint64_t now[kCount], shown[kCount];
    memcpy(now, &device.counters, sizeof now);
    memcpy(shown, &device.shown, sizeof shown);
    for (size_t i = 0; i < kCount; ++i) {
        if (now[i] == shown[i] || device.counter_fds[i] < 0) continue;
        char text[32];
        const int length = snprintf(text, sizeof text, "%llu\n", static_cast<unsigned long long>(now[i]));
        // One write at offset 0: a reader sees the old or the new number, never a mix; it never gets shorter.
        if (pwrite(device.counter_fds[i], text, static_cast<size_t>(length), 0) == length) shown[i] = now[i];
    }
    memcpy(&device.shown, shown, sizeof shown);
}

// The tree of a dead device stays as it was, like the last reading; its successor at this index starts from zero.
void sysfs_remove(Nic &, Device &device) {
    for (int &fd : device.counter_fds) {
        if (fd >= 0) close(fd);
        fd = -1;
    }
}

} // namespace softefa
