// Connections: one process, one device. A process that ends, in whatever way, takes its device along.
#include "nic.h"

#include "fdpass.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

namespace softefa {
namespace {

constexpr uint64_t kListener = ~0ull;

bool watch(Nic &nic, int fd, uint64_t tag) {
    epoll_event event = {};
    event.events = EPOLLIN;
    event.data.u64 = tag;
    return epoll_ctl(nic.epoll, EPOLL_CTL_ADD, fd, &event) == 0;
}

Device *device_new(Nic &nic) {
    if (nic.live_count == kMaxDevices) return nullptr;
    if (nic.device_count == nic.device_space) {
        const uint32_t space = nic.device_space == 0 ? 16 : nic.device_space * 2;
        Device **bigger = static_cast<Device **>(realloc(nic.devices, space * sizeof(Device *)));
        if (bigger == nullptr) return nullptr;
        nic.devices = bigger;
        nic.device_space = space;
    }
    Device *device = static_cast<Device *>(calloc(1, sizeof(Device)));
    if (device == nullptr) return nullptr;
    device->instance = nic.device_count;
    device->pidfd = -1;
    for (int &fd : device->counter_fds)
        fd = -1;
    gid_make(nic, *device);
    nic.devices[nic.device_count++] = device;
    return device;
}

void greet(Nic &nic, Device &device, const softefa_request &request, softefa_reply &reply, int fds[], int &fd_count) {
    const auto &in = request.u.hello;
    if (device.greeted || in.proto != SOFTEFA_PROTO) {
        reply.error = EPROTO;
        return;
    }
    if (!memory_probe(device.pid, in.probe_addr, in.probe_value)) {
        reply.error = EPERM; // we may not read that process's memory: no device without DMA
        return;
    }
    // Devices are numbered like ranks, so that a seed means the same in each run, whoever comes first.
    uint32_t index = in.rank < kMaxDevices && nic.live[in.rank] == nullptr ? in.rank : 0;
    while (nic.live[index] != nullptr)
        ++index;
    device.index = index;
    if (!sysfs_add(nic, device)) {
        reply.error = EIO;
        return;
    }
    nic.live[index] = &device;
    if (++nic.live_count > nic.peak_devices) nic.peak_devices = nic.live_count;
    device.greeted = device.alive = true;
    auto &out = reply.u.hello;
    out.device = index;
    out.mtu = nic.model.mtu;
    out.line_bits_s = static_cast<uint64_t>(nic.model.rate_bits_s > 0 ? nic.model.rate_bits_s : nic.model.line_bits_s);
    memcpy(out.gid, device.gid, sizeof out.gid);
    snprintf(out.name, sizeof out.name, "softefa%u", index);
    out.flags = nic.model.counters != 0 ? SOFTEFA_HAS_COUNTERS : 0;
    fds[fd_count++] = nic.wake;
    fds[fd_count++] = nic.status_fd;
}

void accept_one(Nic &nic) {
    const int fd = accept4(nic.listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) return;
    ucred who = {};
    socklen_t length = sizeof who;
    Device *device = nullptr;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &length) == 0 && who.pid > 0) device = device_new(nic);
    if (device == nullptr) {
        close(fd);
        return;
    }
    device->pid = who.pid;
    device->socket = fd;
    device->pidfd = static_cast<int>(syscall(SYS_pidfd_open, who.pid, 0));
    watch(nic, fd, control_tag_of(*device, false));
    // A forked child may hold the socket open after its parent's death; the pidfd tells. Without one, the socket does.
    if (device->pidfd >= 0) watch(nic, device->pidfd, control_tag_of(*device, true));
}

// True: one request was answered. False: the connection is at its end.
bool serve(Nic &nic, Device &device) {
    softefa_request request = {};
    int received = -1, receiveds = 0;
    const ssize_t got = receive_with_fds(device.socket, &request, sizeof request, &received, 1, receiveds);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return true;
    if (got <= 0) return false;

    softefa_reply reply = {};
    int fds[SOFTEFA_FDS_MAX], fd_count = 0;
    const bool is_hello = request.call == SOFTEFA_HELLO;
    if (got != sizeof request || (!is_hello && !device.greeted))
        reply.error = EPROTO;
    else if (is_hello)
        greet(nic, device, request, reply, fds, fd_count);
    else
        reply = objects_call(nic, device, request, received, fds, fd_count);
    if (received >= 0) close(received);
    const bool sent = send_with_fds(device.socket, &reply, sizeof reply, fds, fd_count);
    if (!is_hello && fd_count > 0) close(fds[0]); // the client has its own now
    return sent;
}

} // namespace

uint64_t control_tag_of(const Device &device, bool is_pidfd) {
    return static_cast<uint64_t>(device.instance) << 1 | (is_pidfd ? 1 : 0);
}

void gid_make(const Nic &nic, Device &device) {
    // fe80::<fabric>:<instance>: never used twice, so that nobody talks to the successor of a dead peer.
    device.gid[0] = 0xfe;
    device.gid[1] = 0x80;
    memcpy(device.gid + 8, &nic.fabric_id, 4);
    memcpy(device.gid + 12, &device.instance, 4);
}

bool control_open(Nic &nic) {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    const int n = snprintf(address.sun_path, sizeof address.sun_path, "%s/%s", nic.dir, SOFTEFA_SOCKET);
    if (n < 0 || n >= static_cast<int>(sizeof address.sun_path)) {
        errno = ENAMETOOLONG;
        return false;
    }
    nic.listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    return nic.listener >= 0 && bind(nic.listener, reinterpret_cast<sockaddr *>(&address), sizeof address) == 0 &&
           listen(nic.listener, 64) == 0 && watch(nic, nic.listener, kListener);
}

void control_event(Nic &nic, uint64_t tag) {
    if (tag == kListener) return accept_one(nic);
    if (tag >> 1 >= nic.device_count) return;
    Device &device = *nic.devices[tag >> 1];
    if (device.socket < 0) return; // an earlier event of the same turn ended it
    if ((tag & 1) || !serve(nic, device)) device_lost(nic, device);
}

void device_lost(Nic &nic, Device &device) {
    const bool was_alive = device.alive;
    device.alive = false;
    close(device.socket); // epoll forgets closed descriptors that nobody else holds
    device.socket = -1;
    if (device.pidfd >= 0) close(device.pidfd);
    device.pidfd = -1;
    if (!was_alive) return;
    objects_drop(nic, device);
    wire_lost(nic, device);
    sysfs_refresh(nic, device);
    sysfs_remove(nic, device);
    nic.live[device.index] = nullptr;
    --nic.live_count;
}

} // namespace softefa
