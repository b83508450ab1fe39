// The connection of this process to the NIC process, and the small tools that every object uses.
#include "ibv_client.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "fdpass.h"

namespace softefa {
namespace {

pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER;
Connection the_connection = {-1, 0, 0, 0, {}, 0, -1, nullptr, 0, {}};
bool fork_handled;
volatile uint64_t probe = 0x736f667465666121ull; // the NIC reads it to see whether it may

// A forked child has no device of its own: it makes a connection when it first asks for devices.
void after_fork_in_child() {
    pthread_mutex_t fresh = PTHREAD_MUTEX_INITIALIZER;
    memcpy(&guard, &fresh, sizeof guard);
    if (the_connection.socket >= 0) close(the_connection.socket);
    the_connection.socket = -1;
}

void complain(const char *dir, const char *what) {
    fprintf(stderr, "softefa: the emulated device in %s cannot be used: %s\n", dir, what);
}

int connect_to(const char *dir) {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    const int n = snprintf(address.sun_path, sizeof address.sun_path, "%s/%s", dir, SOFTEFA_SOCKET);
    if (n < 0 || n >= static_cast<int>(sizeof address.sun_path)) {
        errno = ENAMETOOLONG;
        return -1;
    }
    const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0) return -1;
    if (connect(fd, reinterpret_cast<sockaddr *>(&address), sizeof address) == 0) {
        ucred who = {};
        socklen_t length = sizeof who;
        // Where only ancestors may read a process, this lets the NIC in even if it is none.
        if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &length) == 0 && who.pid > 0)
            prctl(PR_SET_PTRACER, static_cast<unsigned long>(who.pid), 0, 0, 0);
        return fd;
    }
    const int error = errno;
    close(fd);
    errno = error;
    return -1;
}

int exchange(int socket, const softefa_request &request, softefa_reply &reply, int send_fd, int fds[], int fd_count) {
    softefa_request copy = request;
    if (!send_with_fds(socket, &copy, sizeof copy, &send_fd, send_fd >= 0)) return EIO;
    int count = 0;
    ssize_t got;
    do
        got = receive_with_fds(socket, &reply, sizeof reply, fds, fd_count, count);
    while (got < 0 && errno == EINTR);
    if (got != sizeof reply) return EIO;
    if (reply.error != 0) return reply.error;
    return count == fd_count ? 0 : EPROTO;
}

void name_device(Connection &c, const char *dir, const char *name) {
    struct ibv_device &d = c.public_device;
    d = {};
    d.node_type = IBV_NODE_UNSPECIFIED;
    d.transport_type = IBV_TRANSPORT_UNSPECIFIED;
    snprintf(d.name, sizeof d.name, "%s", name);
    snprintf(d.dev_name, sizeof d.dev_name, "uverbs%u", c.device);
    snprintf(d.dev_path, sizeof d.dev_path, "%s/sysfs/class/infiniband_verbs/%s", dir, d.dev_name);
    snprintf(d.ibdev_path, sizeof d.ibdev_path, "%s/sysfs/class/infiniband/%s", dir, d.name);
}

// This process's rank, as launchers tell it.
uint32_t rank_of_process() {
    constexpr const char *kNames[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID", "RANK"};
    for (const char *name : kNames) {
        const char *text = getenv(name);
        char *end = nullptr;
        const unsigned long rank = text != nullptr ? strtoul(text, &end, 10) : 0;
        if (text != nullptr && end != text && *end == '\0' && rank < SOFTEFA_NO_RANK)
            return static_cast<uint32_t>(rank);
    }
    return SOFTEFA_NO_RANK;
}

bool greet(Connection &c, const char *dir) {
    const int fd = connect_to(dir);
    if (fd < 0) {
        complain(dir, strerror(errno));
        return false;
    }
    softefa_request request = {};
    softefa_reply reply = {};
    request.call = SOFTEFA_HELLO;
    request.u.hello = {SOFTEFA_PROTO, rank_of_process(), reinterpret_cast<uint64_t>(&probe), probe};
    int fds[2];
    const int error = exchange(fd, request, reply, -1, fds, 2);
    if (error != 0) {
        complain(dir, error == EPERM ? "its process may not read the memory of this one" : strerror(error));
        close(fd);
        return false;
    }
    c.socket = fd;
    c.device = reply.u.hello.device;
    c.mtu = reply.u.hello.mtu;
    c.line_bits_s = reply.u.hello.line_bits_s;
    memcpy(c.gid, reply.u.hello.gid, sizeof c.gid);
    c.flags = reply.u.hello.flags;
    c.wake = fds[0];
    void *page = mmap(nullptr, SOFTEFA_PAGE, PROT_READ, MAP_SHARED, fds[1], 0);
    close(fds[1]);
    if (page == MAP_FAILED) {
        close(fd);
        close(c.wake);
        c.socket = -1;
        complain(dir, strerror(errno));
        return false;
    }
    c.status = static_cast<const softefa_status_page *>(page);
    c.lost = 0;
    name_device(c, dir, reply.u.hello.name);
    return true;
}

} // namespace

Connection *connection() {
    const char *dir = getenv(SOFTEFA_ENV_DIR);
    if (dir == nullptr || *dir == '\0') return nullptr;
    pthread_mutex_lock(&guard);
    if (!fork_handled) fork_handled = pthread_atfork(nullptr, nullptr, after_fork_in_child) == 0;
    const bool ok = the_connection.socket >= 0 || greet(the_connection, dir);
    pthread_mutex_unlock(&guard);
    return ok ? &the_connection : nullptr;
}

int call(const softefa_request &request, softefa_reply &reply, int send_fd, int fds[], int fd_count) {
    pthread_mutex_lock(&guard);
    const int error =
        the_connection.socket < 0 ? EIO : exchange(the_connection.socket, request, reply, send_fd, fds, fd_count);
    pthread_mutex_unlock(&guard);
    return error;
}

void wake_nic() {
    __atomic_thread_fence(__ATOMIC_SEQ_CST); // the doorbell first, then the look whether the NIC sleeps
    if (__atomic_load_n(&the_connection.status->asleep, __ATOMIC_RELAXED) == 0) return;
    const uint64_t one = 1;
    if (write(the_connection.wake, &one, sizeof one) < 0 && errno != EAGAIN) perror("softefa: wake-up");
}

bool nic_is_gone() {
    if (__atomic_load_n(&the_connection.lost, __ATOMIC_RELAXED)) return true;
    char byte;
    const bool closed =
        the_connection.socket < 0 || recv(the_connection.socket, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
    if (!closed && __atomic_load_n(&the_connection.status->closed, __ATOMIC_ACQUIRE) == 0) return false;
    if (__atomic_exchange_n(&the_connection.lost, 1u, __ATOMIC_ACQ_REL) == 0)
        fprintf(stderr, "softefa: the process of the emulated device has ended; completions will not come any more\n");
    return true;
}

void Lock::take() {
    for (uint32_t spins = 1; __atomic_exchange_n(&held_, 1u, __ATOMIC_ACQUIRE) != 0; ++spins)
        if (spins % 100 == 0) sched_yield();
}

bool pool_make(Pool &pool, uint32_t entries) {
    pool.wr_ids = static_cast<uint64_t *>(calloc(entries, sizeof *pool.wr_ids));
    pool.free_ids = static_cast<uint16_t *>(calloc(entries, sizeof *pool.free_ids));
    pool.in_flight = static_cast<uint8_t *>(calloc(entries, 1));
    if (pool.wr_ids == nullptr || pool.free_ids == nullptr || pool.in_flight == nullptr) return false;
    for (uint32_t i = 0; i < entries; ++i)
        pool.free_ids[i] = static_cast<uint16_t>(entries - 1 - i);
    pool.free_count = entries;
    return true;
}

void pool_free(Pool &pool) {
    free(pool.wr_ids);
    free(pool.free_ids);
    free(pool.in_flight);
}

bool pool_take(Pool &pool, uint64_t wr_id, uint16_t &id) {
    pool.lock.take();
    const bool ok = pool.free_count > 0;
    if (ok) {
        id = pool.free_ids[--pool.free_count];
        pool.wr_ids[id] = wr_id;
        pool.in_flight[id] = 1;
    }
    pool.lock.give();
    return ok;
}

uint64_t pool_give(Pool &pool, uint16_t id, uint32_t entries) {
    if (id >= entries) return 0;
    pool.lock.take();
    const uint64_t wr_id = pool.wr_ids[id];
    if (pool.in_flight[id]) { // else the entry was answered before: the number is free already
        pool.in_flight[id] = 0;
        pool.free_ids[pool.free_count++] = id;
    }
    pool.lock.give();
    return wr_id;
}

bool pool_any(Pool &pool, uint32_t entries, uint16_t &id) {
    pool.lock.take();
    uint32_t i = 0;
    while (i < entries && !pool.in_flight[i])
        ++i;
    pool.lock.give();
    id = static_cast<uint16_t>(i);
    return i < entries;
}

uint8_t *ring_map(int fd, uint64_t bytes) {
    void *map = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    const int error = errno;
    close(fd);
    errno = error;
    if (map == MAP_FAILED) return nullptr;
    return static_cast<uint8_t *>(map);
}

} // namespace softefa
