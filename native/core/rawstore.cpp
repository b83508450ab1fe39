#include "rawstore.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "sysfile.h"

namespace efaprof {

constexpr uint64_t kHeaderUsed = offsetof(efaprof_header, reserved5); // the rest of the page stays zero
constexpr uint64_t kLargestPiece = (1u << 20) / EFAPROF_SLOT_BYTES;
constexpr uint64_t kSmallestPiece = 4096 / EFAPROF_SLOT_BYTES; // more than the largest record

bool RawStore::open(const char *directory, uint64_t max_bytes) {
    directory_ = ::open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (directory_ < 0) return false;
    max_ = max_bytes;
    piece_ = kLargestPiece;
    if (max_ == 0) return true;
    punches_ = can_punch_holes();
    // Where holes cannot be punched a file is copied beside itself: that must fit under the bound as well.
    limit_ = punches_ ? max_ - max_ / 16 : max_ / 2;
    piece_ = max_ / 16 / EFAPROF_SLOT_BYTES;
    if (piece_ > kLargestPiece) piece_ = kLargestPiece;
    if (piece_ < kSmallestPiece) piece_ = kSmallestPiece;
    buffer_ = static_cast<unsigned char *>(malloc(piece_ * EFAPROF_SLOT_BYTES));
    keep_ = static_cast<unsigned char *>(malloc(piece_ * EFAPROF_SLOT_BYTES));
    if (buffer_ != nullptr && keep_ != nullptr) return true;
    close();
    errno = ENOMEM;
    return false;
}

void RawStore::close() {
    if (directory_ >= 0) ::close(directory_);
    for (uint64_t i = 0; i < count_; ++i)
        free(files_[i]);
    free(files_);
    free(buffer_);
    free(keep_);
    *this = RawStore();
}

int RawStore::open_file(const char *name, int flags) {
    const int fd = openat(directory_, name, flags | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0644);
    struct stat st;
    if (fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode)) return fd;
    errno_ = fd < 0 ? errno : EINVAL;
    if (fd >= 0) ::close(fd);
    return -1;
}

bool RawStore::write(int fd, const void *data, uint64_t bytes, uint64_t offset, uint64_t *done) {
    struct rlimit limit; // beyond it the kernel would send SIGXFSZ
    uint64_t written = 0;
    int error = getrlimit(RLIMIT_FSIZE, &limit) == 0 && offset + bytes > limit.rlim_cur ? EFBIG : 0;
    while (error == 0 && written < bytes) {
        const ssize_t n = pwrite(fd, static_cast<const unsigned char *>(data) + written, bytes - written,
                                 static_cast<off_t>(offset + written));
        if (n > 0)
            written += static_cast<uint64_t>(n);
        else if (n == 0 || errno != EINTR)
            error = n == 0 ? ENOSPC : errno;
    }
    if (done != nullptr) *done = written;
    if (error != 0) errno_ = error;
    return error == 0;
}

bool RawStore::add(RawFile *file) {
    if (count_ == room_) {
        const uint64_t room = room_ == 0 ? 64 : room_ * 2;
        auto **files = static_cast<RawFile **>(realloc(files_, room * sizeof(RawFile *)));
        if (files == nullptr) {
            errno_ = ENOMEM;
            return false;
        }
        files_ = files;
        room_ = room;
    }
    files_[count_++] = file;
    return true;
}

static bool is_same_ring(const efaprof_header &a, const efaprof_header &b) {
    return a.magic == b.magic && a.version == b.version && a.slot_bytes == b.slot_bytes && a.pid == b.pid &&
           a.process_start == b.process_start && a.start_ticks == b.start_ticks;
}

uint64_t ticks_at(int fd, uint64_t slot) {
    efaprof_head head;
    const bool is_read = pread(fd, &head, sizeof head, static_cast<off_t>(offset_of(slot))) == sizeof head;
    return is_read ? head.t_end : UINT64_MAX;
}

bool companion_name(char *into, size_t size, const char *name) {
    char stem[256];
    const size_t length = strlen(name) - 4; // without ".efr"
    memcpy(stem, name, length);
    stem[length] = 0;
    return Text(into, size).add(stem).add(".kept.efr").ok();
}

static uint64_t slots_in_companion(int directory, const char *name) {
    char path[256];
    if (!companion_name(path, sizeof path, name)) return 0;
    const int fd = openat(directory, path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    efaprof_header h;
    const bool is_read = fd >= 0 && pread(fd, &h, sizeof h, 0) == sizeof h;
    if (fd >= 0) ::close(fd);
    return is_read && h.magic == EFAPROF_MAGIC ? h.head : 0;
}

// A drain stores the header before the ring's tail, so said.tail >= tail; else the file is not what the ring was
// drained to, what lies between is missing, and the file begins anew at tail.
void RawStore::go_on(int fd, RawFile &file, const efaprof_header &said, uint64_t tail) {
    if (said.tail < tail || said.first > tail) return;
    file.first = said.first;
    file.has_thread = said.first != 0;
    file.tid = said.tid;
    memcpy(file.comm, said.comm, sizeof file.comm);
    if (file.first < file.end) file.first_ticks = ticks_at(fd, file.first);
    file.kept = slots_in_companion(directory_, file.name);
    if (file.kept != 0) kept_bytes_ += EFAPROF_HEADER_BYTES + bytes_of(0, file.kept);
}

// The whole page at once, so that later changes of the header need no new block.
bool RawStore::write_first_header(int fd, RawFile &file, const efaprof_header &ring) {
    efaprof_header h;
    memcpy(&h, &ring, kHeaderUsed);
    memset(h.reserved5, 0, sizeof h.reserved5);
    h.head = h.tail = h.first = file.first;
    return write(fd, &h, sizeof h, 0);
}

RawFile *RawStore::begin(const char *name, const efaprof_header &ring, uint64_t tail) {
    if (!make_room(EFAPROF_HEADER_BYTES)) return nullptr;
    auto *file = static_cast<RawFile *>(calloc(1, sizeof(RawFile)));
    if (file == nullptr || !Text(file->name, sizeof file->name).add(name).ok()) {
        errno_ = file == nullptr ? ENOMEM : ENAMETOOLONG;
        free(file);
        return nullptr;
    }
    file->first = file->end = tail;
    file->first_ticks = UINT64_MAX;
    const int fd = open_file(name, O_RDWR | O_CREAT);
    efaprof_header said;
    bool ok = fd >= 0;
    if (ok && pread(fd, &said, sizeof said, 0) == sizeof said && is_same_ring(said, ring))
        go_on(fd, *file, said, tail);
    else
        ok = ok && write_first_header(fd, *file, ring);
    if (fd >= 0) ::close(fd);
    if (!ok || !add(file)) {
        free(file);
        return nullptr;
    }
    file->boundary = file->first;
    bytes_ += EFAPROF_HEADER_BYTES + bytes_of(file->first, file->end);
    if (file->kept != 0) bytes_ += EFAPROF_HEADER_BYTES + bytes_of(0, file->kept);
    return file;
}

uint64_t RawStore::append(RawFile &file, const void *slots, uint64_t n) {
    if (!make_room(bytes_of(file.first, file.end + n) - bytes_of(file.first, file.end))) return 0;
    const int fd = open_file(file.name, O_WRONLY);
    if (fd < 0) return 0;
    uint64_t done = 0;
    write(fd, slots, n * EFAPROF_SLOT_BYTES, offset_of(file.end), &done);
    ::close(fd);
    const uint64_t written = done / EFAPROF_SLOT_BYTES;
    if (file.first == file.end && written > 0) file.first_ticks = static_cast<const efaprof_head *>(slots)->t_end;
    bytes_ -= bytes_of(file.first, file.end);
    file.end += written;
    bytes_ += bytes_of(file.first, file.end);
    return written;
}

bool RawStore::write_header(RawFile &file, const efaprof_header &ring, uint64_t head) {
    efaprof_header h;
    memcpy(&h, &ring, kHeaderUsed);
    h.head = head;
    h.tail = file.end;
    h.first = file.first;
    if (file.has_thread) {
        h.tid = file.tid;
        memcpy(h.comm, file.comm, sizeof h.comm);
    }
    if (file.end == head) file.boundary = head;
    const uint64_t says[8] = {h.head, h.tail, h.first, h.state, h.dropped, h.nested, h.names_cut, h.failed};
    if (memcmp(says, file.said, sizeof says) == 0) return true;
    const int fd = open_file(file.name, O_WRONLY);
    if (fd < 0) return false;
    const bool ok = write(fd, &h, kHeaderUsed, 0);
    ::close(fd);
    if (ok) memcpy(file.said, says, sizeof says);
    return ok;
}

} // namespace efaprof
