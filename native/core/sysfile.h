// Small texts without stdio or malloc: reading /proc and /sys, building paths. Async-signal-safe.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace efaprof {

// Reads at most size - 1 bytes of a file and ends them with NUL. Bytes read; 0 also when it cannot be read.
size_t read_whole(const char *path, char *into, size_t size);

// Fields 3, 20 and 22 of /proc/PID/stat; all 0 when the text is malformed.
struct StatFields {
    char state;
    uint64_t threads;
    uint64_t start;
};
StatFields parse_stat(const char *text, size_t size);

// A bounded text being built. What does not fit makes ok() false; the buffer is always NUL-terminated.
class Text {
public:
    Text(char *buffer, size_t size) : at_(buffer), end_(buffer + size - 1) { *at_ = 0; }
    Text &add(const char *text);
    Text &add_number(uint64_t value, unsigned base = 10);
    bool ok() const { return ok_; }

private:
    void put(char c);
    char *at_;
    char *end_;
    bool ok_ = true;
};

} // namespace efaprof
