#include "shared_pages.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#if __has_include(<linux/udmabuf.h>)
#include <linux/udmabuf.h>
#endif

#include "../protocol/hd.h"
#include "../proxy/stop.h"

namespace efaprof::dispatch {

namespace {

int dmabuf_of([[maybe_unused]] int file, [[maybe_unused]] size_t bytes) {
#ifdef UDMABUF_CREATE
    int maker = open("/dev/udmabuf", O_RDWR | O_CLOEXEC);
    if (maker < 0) return -1;
    udmabuf_create wanted = {};
    wanted.memfd = static_cast<uint32_t>(file);
    wanted.flags = UDMABUF_FLAGS_CLOEXEC;
    wanted.size = bytes;
    int made = ioctl(maker, UDMABUF_CREATE, &wanted);
    close(maker);
    return made;
#else
    return -1;
#endif
}

} // namespace

SharedPages map_pages(size_t bytes, const char *name) {
    SharedPages pages = {nullptr, protocol::round_up(bytes, static_cast<uint64_t>(sysconf(_SC_PAGESIZE))), -1, -1};
    pages.file = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    void *at = MAP_FAILED;
    if (pages.file >= 0 && ftruncate(pages.file, static_cast<off_t>(pages.bytes)) == 0 &&
        fcntl(pages.file, F_ADD_SEALS, F_SEAL_SHRINK) == 0)
        at = mmap(nullptr, pages.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, pages.file, 0);
    if (at == MAP_FAILED) fail(Cause::Failed, "%zu bytes of %s: %s", bytes, name, strerror(errno));
    pages.at = static_cast<uint8_t *>(at);
    pages.dmabuf = dmabuf_of(pages.file, pages.bytes);
    return pages;
}

void close_files(SharedPages &pages) {
    int *const files[] = {&pages.file, &pages.dmabuf};
    for (int *file : files) {
        if (*file >= 0) close(*file);
        *file = -1;
    }
}

void unmap_pages(SharedPages &pages) {
    if (pages.at == nullptr) return;
    close_files(pages);
    munmap(pages.at, pages.bytes);
    pages = {};
}

} // namespace efaprof::dispatch
