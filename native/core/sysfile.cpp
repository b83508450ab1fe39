#include "sysfile.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <unistd.h>

namespace efaprof {

size_t read_whole(const char *path, char *into, size_t size) {
    into[0] = 0;
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    size_t got = 0;
    while (got < size - 1) {
        const ssize_t n = read(fd, into + got, size - 1 - got);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) break;
        got += static_cast<size_t>(n);
    }
    close(fd);
    into[got] = 0;
    return got;
}

static uint64_t number_at(const char *&at) {
    uint64_t value = 0;
    for (; *at >= '0' && *at <= '9'; ++at)
        value = value * 10 + static_cast<uint64_t>(*at - '0');
    return value;
}

StatFields parse_stat(const char *text, size_t size) {
    // "pid (comm) state ppid …": comm may hold spaces and parentheses, so fields are counted from the last ')'.
    StatFields fields{0, 0, 0};
    const char *at = static_cast<const char *>(memrchr(text, ')', size));
    if (at == nullptr || at[1] != ' ') return fields;
    at += 2;
    fields.state = *at;
    for (int field = 3; *at != 0 && field <= 22; ++field) {
        const uint64_t value = number_at(at);
        if (field == 20) fields.threads = value;
        if (field == 22) fields.start = value;
        while (*at != 0 && *at != ' ')
            ++at;
        if (*at == ' ') ++at;
    }
    return fields;
}

void Text::put(char c) {
    if (at_ == end_) {
        ok_ = false;
        return;
    }
    *at_++ = c;
    *at_ = 0;
}

Text &Text::add(const char *text) {
    while (*text != 0)
        put(*text++);
    return *this;
}

Text &Text::add_number(uint64_t value, unsigned base) {
    char digits[20];
    int n = 0;
    do {
        digits[n++] = "0123456789abcdef"[value % base];
        value /= base;
    } while (value != 0);
    while (n > 0)
        put(digits[--n]);
    return *this;
}

} // namespace efaprof
