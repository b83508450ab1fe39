// The half of RawStore that keeps the files under their bound.
#include <cerrno>
#include <cstdio> // renameat
#include <cstring>
#include <fcntl.h>
#include <unistd.h>

#include "clock.h"
#include "rawstore.h"
#include "sysfile.h"

namespace efaprof {

bool RawStore::can_punch_holes() {
    const char *name = ".efaprof-probe";
    const int fd = open_file(name, O_RDWR | O_CREAT);
    if (fd < 0) return false;
    const unsigned char blocks[8192] = {1};
    const bool ok =
        write(fd, blocks, sizeof blocks, 0) && fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096) == 0;
    ::close(fd);
    unlinkat(directory_, name, 0);
    return ok;
}

bool RawStore::make_room(uint64_t bytes) {
    if (max_ == 0) return true;
    for (uint64_t i = 0; i < count_; ++i)
        files_[i]->is_spent = false;
    while (bytes_ + bytes > limit_) {
        uint64_t cutoff_ticks;
        RawFile *file = oldest(&cutoff_ticks);
        if (file == nullptr) break;
        if (!give_up_oldest(*file, cutoff_ticks)) file->is_spent = true;
    }
    if (bytes_ + bytes <= max_) return true;
    if (errno_ == 0) errno_ = EFBIG;
    return false;
}

// The file whose first record is oldest. It gives up records that are no newer than the next file's first, and a
// little more, so that files of one age take turns in large steps while a file with few records keeps its newer ones.
RawFile *RawStore::oldest(uint64_t *cutoff_ticks) {
    RawFile *file = nullptr;
    uint64_t next = UINT64_MAX;
    for (uint64_t i = 0; i < count_; ++i) {
        RawFile *other = files_[i];
        if (other->is_spent || other->first == other->end) continue;
        if (file == nullptr || other->first_ticks < file->first_ticks) {
            if (file != nullptr) next = file->first_ticks;
            file = other;
        } else if (other->first_ticks < next) {
            next = other->first_ticks;
        }
    }
    if (file == nullptr) return nullptr;
    const uint64_t time = now();
    const bool has_time = file->first_ticks != 0 && file->first_ticks < time; // a pad has none
    const uint64_t more = has_time ? (time - file->first_ticks) / 64 : 0;
    *cutoff_ticks = next > UINT64_MAX - more ? UINT64_MAX : next + more;
    return file;
}

static bool is_referred_to(uint16_t kind) {
    const uint8_t shape = EFAPROF_SHAPE_OF(kind);
    return shape == EFAPROF_SHAPE_NAME || shape == EFAPROF_SHAPE_OBJECT || shape == EFAPROF_SHAPE_BIND ||
           shape == EFAPROF_SHAPE_AV || shape == EFAPROF_SHAPE_NOTE;
}

// Moves front.to over whole records in the next piece of the file and collects those to keep. false: no further.
bool RawStore::walk(int fd, RawFile &file, Front &front) {
    const uint64_t wanted = file.end - front.to < piece_ ? file.end - front.to : piece_;
    const ssize_t got = pread(fd, buffer_, wanted * EFAPROF_SLOT_BYTES, static_cast<off_t>(offset_of(front.to)));
    const uint64_t n = got > 0 ? static_cast<uint64_t>(got) / EFAPROF_SLOT_BYTES : 0;
    uint64_t at = 0;
    front.kept = 0;
    while (at < n) {
        const unsigned char *record = buffer_ + at * EFAPROF_SLOT_BYTES;
        efaprof_head head;
        memcpy(&head, record, sizeof head);
        const uint32_t slots = efaprof_slots(head.kind, head.x);
        if (slots == 0) { // not a record: on to where one is known to begin
            if (file.boundary <= front.to + at) break;
            front.to = file.boundary;
            return front.to < file.end;
        }
        if (slots > n - at || (head.kind != EFAPROF_PAD && head.t_end > front.cutoff_ticks)) break;
        if (is_referred_to(head.kind)) {
            memcpy(keep_ + front.kept * EFAPROF_SLOT_BYTES, record, slots * EFAPROF_SLOT_BYTES);
            front.kept += slots;
        } else if (EFAPROF_SHAPE_OF(head.kind) == EFAPROF_SHAPE_THREAD) {
            efaprof_thread thread;
            memcpy(&thread, record, sizeof thread);
            file.has_thread = true;
            file.tid = thread.tid;
            memcpy(file.comm, thread.comm, sizeof file.comm);
        }
        at += slots;
    }
    front.to += at;
    return at > 0 && front.to < file.end;
}

// Appends the collected records to the companion while its share of the bound lasts.
void RawStore::keep(int fd, RawFile &file, const Front &front) {
    if (front.kept == 0) return;
    const uint64_t more =
        bytes_of(0, file.kept + front.kept) - bytes_of(0, file.kept) + (file.kept == 0 ? EFAPROF_HEADER_BYTES : 0);
    char name[256];
    if (kept_bytes_ + more > max_ / 8 || !companion_name(name, sizeof name, file.name)) return;
    efaprof_header h;
    if (pread(fd, &h, sizeof h, 0) != sizeof h) return;
    h.head = h.tail = file.kept + front.kept;
    h.first = h.dropped = h.nested = h.names_cut = h.failed = 0;
    const int to = open_file(name, O_WRONLY | O_CREAT);
    if (to < 0) return;
    if (write(to, keep_, front.kept * EFAPROF_SLOT_BYTES, offset_of(file.kept)) && write(to, &h, sizeof h, 0)) {
        file.kept += front.kept;
        kept_bytes_ += more;
        bytes_ += more;
        discarded_ -= front.kept;
    }
    ::close(to);
}

bool RawStore::give_up_oldest(RawFile &file, uint64_t cutoff_ticks) {
    const int fd = open_file(file.name, O_RDWR);
    if (fd < 0) return false;
    Front front{file.first, cutoff_ticks, 0};
    const uint64_t first = file.first;
    const uint64_t enough = punches_ ? first + 1 : first + (file.end - first) / 2;
    bool goes_on = true;
    while (goes_on && front.to < enough) {
        goes_on = walk(fd, file, front);
        keep(fd, file, front); // again should the rest fail; a record kept twice says the same twice
    }
    bool ok = front.to > first;
    if (ok) {
        const uint64_t before = bytes_of(first, file.end);
        file.first = front.to;
        ok = write_first(fd, file) && (punches_ ? punch(fd, file) : copy_without_front(fd, file));
        discarded_ += front.to - first;
        if (file.boundary < file.first) file.boundary = file.first;
        if (ok) bytes_ -= before - bytes_of(file.first, file.end);
        file.first_ticks = file.first == file.end ? UINT64_MAX : ticks_at(fd, file.first);
    }
    ::close(fd);
    return ok;
}

// Before the slots go: a reader must not be sent into the hole.
bool RawStore::write_first(int fd, const RawFile &file) {
    if (file.has_thread) {
        const bool ok = write(fd, &file.tid, sizeof file.tid, offsetof(efaprof_header, tid)) &&
                        write(fd, file.comm, sizeof file.comm, offsetof(efaprof_header, comm));
        if (!ok) return false;
    }
    return write(fd, &file.first, sizeof file.first, offsetof(efaprof_header, first));
}

bool RawStore::punch(int fd, RawFile &file) {
    const auto bytes = static_cast<off_t>(file.first * EFAPROF_SLOT_BYTES);
    if (fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, EFAPROF_HEADER_BYTES, bytes) == 0) return true;
    errno_ = errno;
    return false;
}

// Copies header and slots [first, end) to a file of the same shape, whose front was never written, and renames it.
bool RawStore::copy_without_front(int fd, RawFile &file) {
    char name[256 + 8];
    if (!Text(name, sizeof name).add(file.name).add(".tmp").ok()) return false;
    const int to = open_file(name, O_WRONLY | O_CREAT | O_TRUNC);
    if (to < 0) return false;
    const uint64_t end = offset_of(file.end);
    uint64_t at = 0;
    bool ok = true;
    while (ok && at < end) {
        uint64_t bytes = piece_ * EFAPROF_SLOT_BYTES;
        if (at == 0) bytes = EFAPROF_HEADER_BYTES;
        if (bytes > end - at) bytes = end - at;
        const ssize_t got = pread(fd, buffer_, bytes, static_cast<off_t>(at));
        ok = got > 0 && write(to, buffer_, static_cast<uint64_t>(got), at);
        at += ok ? static_cast<uint64_t>(got) : 0;
        if (at == EFAPROF_HEADER_BYTES) at = offset_of(file.first);
    }
    ::close(to);
    if (ok && renameat(directory_, name, directory_, file.name) == 0) return true;
    if (errno_ == 0) errno_ = errno;
    unlinkat(directory_, name, 0);
    return false;
}

} // namespace efaprof
