// Memory that a device can be given by a file, and that this process and a GPU can map.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace efaprof::dispatch {

struct SharedPages {
    uint8_t *at;
    size_t bytes;
    int file;   // a memfd that cannot shrink, -1: closed
    int dmabuf; // the same pages as a dma-buf, -1: this kernel makes none (udmabuf)
};

// Zeroed. Fails the rank when there is no memory.
SharedPages map_pages(size_t bytes, const char *name);
// The memory stays; whom a file was given has mapped it.
void close_files(SharedPages &pages);
void unmap_pages(SharedPages &pages);

} // namespace efaprof::dispatch
