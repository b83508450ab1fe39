// One message over a SOCK_SEQPACKET connection, with up to SOFTEFA_FDS_MAX descriptors.
#pragma once

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "proto.h"

namespace softefa {

inline bool send_with_fds(int socket, void *data, size_t bytes, const int fds[], int count) {
    iovec iov = {data, bytes};
    msghdr message = {};
    message.msg_iov = &iov;
    message.msg_iovlen = 1;
    char control[CMSG_SPACE(SOFTEFA_FDS_MAX * sizeof(int))] = {};
    if (count > 0) {
        const size_t size = static_cast<size_t>(count) * sizeof(int);
        message.msg_control = control;
        message.msg_controllen = CMSG_SPACE(size);
        cmsghdr *c = CMSG_FIRSTHDR(&message);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(size);
        memcpy(CMSG_DATA(c), fds, size);
    }
    return sendmsg(socket, &message, MSG_NOSIGNAL) == static_cast<ssize_t>(bytes);
}

// What recvmsg returns. `count` descriptors have come, of which at most `most` are given on; the rest is closed.
inline ssize_t receive_with_fds(int socket, void *data, size_t bytes, int fds[], int most, int &count) {
    iovec iov = {data, bytes};
    msghdr message = {};
    char control[CMSG_SPACE(SOFTEFA_FDS_MAX * sizeof(int))];
    message.msg_iov = &iov;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    count = 0;
    const ssize_t got = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
    if (got < 0) return got;
    for (cmsghdr *c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
        const size_t arrived = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < arrived; ++i) {
            int fd;
            memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
            if (count < most)
                fds[count++] = fd;
            else
                close(fd);
        }
    }
    return got;
}

} // namespace softefa
