// Raw trace files (*.efr): slot i at 4096 + 32·i, bounded by giving up the oldest records.
#pragma once

#include <efaprof/format.h>

namespace efaprof {

struct RawFile {
    char name[256]; // inside the raw directory
    uint64_t first; // slots [first, end) are in the file
    uint64_t end;
    uint64_t boundary;    // last place known to be between two records
    uint64_t first_ticks; // t_end of the record at `first`; UINT64_MAX when there is none
    uint64_t kept;        // slots in the file's companion
    uint64_t said[8];     // changing fields of the header as last written
    bool is_spent;        // nothing more to give up in this round
    bool has_thread;      // tid and comm are those of the THREAD record last given up
    uint32_t tid;
    char comm[16];
};

// The raw files of a run together.
//
// With a bound, the newest survive: the oldest records are given up, their blocks punched out of the file, and
// `first` in the header says where the file begins, always at a record boundary. What later records refer to (names,
// objects, bindings, addresses, notes) goes to a companion, NAME.kept.efr, an ordinary raw file of the same process;
// companions may use an eighth of the bound. The header's tid and comm are then of the thread that wrote slot `first`.
// Where holes cannot be punched, a file is copied without its older half.
class RawStore {
public:
    bool open(const char *directory, uint64_t max_bytes); // errno when false
    void close();

    // Begins a file, or goes on with one whose slots before `tail` were copied by an earlier drain. NULL:
    // write_errno().
    RawFile *begin(const char *name, const efaprof_header &ring, uint64_t tail);
    // Appends at file.end at most piece() slots; returns how many. Fewer than n: write_errno() says why.
    uint64_t append(RawFile &file, const void *slots, uint64_t n);
    // Brings the file's header up to date with the ring's, whose published head is given.
    bool write_header(RawFile &file, const efaprof_header &ring, uint64_t head);

    int write_errno() const { return errno_; } // of the last failure since forget_errno
    void forget_errno() { errno_ = 0; }
    uint64_t discarded() const { return discarded_; }
    uint64_t piece() const { return piece_; }

private:
    struct Front { // what is about to be given up: slots [file.first, to)
        uint64_t to;
        uint64_t cutoff_ticks;
        uint64_t kept; // slots collected in keep_
    };
    int open_file(const char *name, int flags);
    bool write(int fd, const void *data, uint64_t bytes, uint64_t offset, uint64_t *done = nullptr);
    bool add(RawFile *file);
    bool write_first_header(int fd, RawFile &file, const efaprof_header &ring);
    void go_on(int fd, RawFile &file, const efaprof_header &said, uint64_t tail);

    // rawbound.cpp: staying under the bound
    bool can_punch_holes();
    bool make_room(uint64_t bytes);
    RawFile *oldest(uint64_t *cutoff_ticks);
    bool give_up_oldest(RawFile &file, uint64_t cutoff_ticks);
    bool walk(int fd, RawFile &file, Front &front);
    void keep(int fd, RawFile &file, const Front &front);
    bool write_first(int fd, const RawFile &file);
    bool punch(int fd, RawFile &file);
    bool copy_without_front(int fd, RawFile &file);

    int directory_ = -1;
    uint64_t max_ = 0;        // bytes in all files; 0 = no bound
    uint64_t limit_ = 0;      // giving up begins here, under max_
    uint64_t piece_ = 0;      // slots
    uint64_t bytes_ = 0;      // on disk, never less than the truth
    uint64_t kept_bytes_ = 0; // of them in companions
    uint64_t discarded_ = 0;
    bool punches_ = true;
    int errno_ = 0;
    unsigned char *buffer_ = nullptr; // piece_ slots
    unsigned char *keep_ = nullptr;   // piece_ slots
    RawFile **files_ = nullptr;
    uint64_t count_ = 0;
    uint64_t room_ = 0;
};

// Bytes on disk of slots [first, end) of a raw file, in whole blocks of 4096.
inline uint64_t bytes_of(uint64_t first, uint64_t end) {
    constexpr uint64_t block = 4096;
    const uint64_t from = first * EFAPROF_SLOT_BYTES / block;
    const uint64_t to = (end * EFAPROF_SLOT_BYTES + block - 1) / block;
    return to > from ? (to - from) * block : 0;
}

inline uint64_t offset_of(uint64_t slot) {
    return EFAPROF_HEADER_BYTES + slot * EFAPROF_SLOT_BYTES;
}

// t_end of the record at a slot of a raw file; UINT64_MAX when it cannot be read.
uint64_t ticks_at(int fd, uint64_t slot);

// "x.efr" → "x.kept.efr". false when it does not fit.
bool companion_name(char *into, size_t size, const char *name);

} // namespace efaprof
