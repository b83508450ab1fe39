#include "note.h"

#include <string.h>

#include "writer.h"

namespace efaprof {

enum What : uint8_t { INFO = 1, DEGRADED = 2 };

static void write_note(What what, const char *first, const char *second, uint64_t value) {
    char text[EFAPROF_NAME_MAX];
    size_t bytes = 0;
    for (; *first && bytes < sizeof text; ++first)
        text[bytes++] = *first;
    for (; *second && bytes < sizeof text; ++second)
        text[bytes++] = *second;
    const efaprof_note note = {{0, 0, EFAPROF_KIND(EFAPROF_SHAPE_NOTE, what), 0}, name(text, bytes), value};
    void *room = reserve(1);
    if (!room) return;
    memcpy(room, &note, sizeof note);
    static_cast<efaprof_note *>(room)->h.t_end = now();
    publish(room, 1);
}

void note_info(const char *what, const char *which, uint64_t value) {
    write_note(INFO, what, which, value);
}

void note_degraded(const char *what, const char *which, uint64_t value) {
    write_note(DEGRADED, what, which, value);
}

} // namespace efaprof
