// Opens a module with RTLD_LOCAL, runs it, and closes it again: local_host MODULE PROVIDER COUNT ROUNDS
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

int main(int argc, char **argv) {
    if (argc != 5) return 2;
    for (int round = 0; round < atoi(argv[4]); ++round) {
        void *module = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
        int (*run)(const char *, int) = NULL;
        if (module) *(void **)&run = dlsym(module, "run_module");
        if (!run) {
            fprintf(stderr, "%s\n", dlerror());
            return 1;
        }
        const int taken = run(argv[2], atoi(argv[3]));
        printf("round %d taken %d\n", round, taken);
        dlclose(module);
        printf("unloaded %d\n", dlopen("libfabric.so.1", RTLD_NOW | RTLD_NOLOAD) == NULL);
        if (taken != atoi(argv[3])) return 1;
        // Fills the holes that the unloaded libraries left, so that they come back at other addresses.
        for (int i = 0; i < 64; ++i)
            mmap(NULL, 256 << 10, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    }
    return 0;
}
