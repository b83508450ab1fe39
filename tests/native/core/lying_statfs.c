// Preloaded: every file system claims to be empty and large, as if its space went between the question and the making.
#include <sys/vfs.h>

int statfs(const char *path, struct statfs *fs) {
    (void)path;
    *fs = (struct statfs){
        .f_bsize = 4096, .f_frsize = 4096, .f_blocks = 1 << 28, .f_bfree = 1 << 28, .f_bavail = 1 << 28};
    return 0;
}
