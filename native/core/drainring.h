// One ring as the drain sees it. Nothing in shared memory is trusted: what is used was copied and checked.
#pragma once

#include "life.h"
#include "rawstore.h"

namespace efaprof {

enum class RingStatus {
    unready, // its producer has not finished the header, or never will
    bad,     // not a ring: counted, left alone
    ready,
    gone, // copied whole and removed
};

struct DrainRing {
    char name[256];
    int directory; // the drain's own descriptor of the ring's directory
    uint64_t hash; // of name and directory
    RingStatus status;
    Life life;
    uint64_t seen_ns;       // CLOCK_MONOTONIC when first seen
    uint64_t life_ns;       // when life was last looked at
    efaprof_header *header; // mapped while ready
    const unsigned char *slots;
    uint64_t bytes;    // of the mapping
    uint64_t capacity; // slots
    uint64_t tail;     // slots copied
    uint64_t head;     // last published head that made sense
    uint64_t lost;     // records its producer could not write
    RawFile *raw;

    // Maps and checks the file. Status becomes ready, bad, or stays unready.
    void open();
    // Reads head and counts. false: the ring turned out bad.
    bool look();
    // Copies what was published at the last look. false: something could not be written.
    bool copy(RawStore &store, uint64_t *slots_copied);
    bool is_copied() const { return tail == head; }
    bool is_closed() const; // its process will not write it again
    void remove();          // the file; the raw file has everything
    void unmap();

private:
    bool is_sound(const efaprof_header &h, uint64_t file_bytes) const;
    void turn_bad();
};

} // namespace efaprof
