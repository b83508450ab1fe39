// A program that "uses CUDA": does what the driver does at cuInit, launches graphs and kernels of the fake libcupti.
//   fake_cuda_program STEPS [profile-at STEP | abort-at STEP | stop-at STEP | wait-from STEP]
// profile-at: a profiler of the program's own asks for CUPTI then, as torch.profiler does; prints what it got.
// wait-from: from then on each step copies its result to the host and waits for it, each in one of the ways there are.
#include "fake_cupti.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void cu_init(void) {
    const char *path = getenv("CUDA_INJECTION64_PATH");
    void *library = path ? dlopen(path, RTLD_NOW) : NULL;
    int (*begin)(void) = library ? (int (*)(void))dlsym(library, "InitializeInjection") : NULL;
    printf("injection %s\n", !path ? "none" : begin ? begin() == 1 ? "ok" : "failed" : "not loaded");
}

static unsigned own_records;
static void own_call(void *data, CUpti_CallbackDomain domain, CUpti_CallbackId id, const void *call) {
    (void)data, (void)domain, (void)id, (void)call;
}
static void own_request(uint8_t **buffer, size_t *size, size_t *most) {
    *size = 1 << 16;
    *buffer = malloc(*size);
    *most = 0;
}
static void own_complete(CUcontext context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid) {
    (void)context, (void)stream, (void)size;
    CUpti_Activity *activity = NULL;
    while (cuptiActivityGetNextRecord(buffer, valid, &activity) == CUPTI_SUCCESS)
        own_records++;
    free(buffer);
}

static void profile(void) {
    CUpti_SubscriberHandle handle;
    const CUptiResult result = cuptiSubscribe(&handle, own_call, NULL);
    printf("own profiler: subscribe %d\n", (int)result);
    cuptiActivityRegisterCallbacks(own_request, own_complete);
    cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
}

// As efaprof.stop() does: our core library, by the path in the environment.
static void stop_recording(void) {
    void *core = dlopen(getenv("EFAPROF_CORE"), RTLD_LAZY);
    void (*stop)(int) = NULL;
    if (core) *(void **)&stop = dlsym(core, "efaprof_stop");
    if (stop) stop(1);
}

#define EVENT 0x7f0000001230u

// One step after the other: a copy that waits by itself, and a wait that fails; a wait for everything; for the stream;
// for an event, and for one that is no more.
static void take_result(int step) {
    fake_copy_to_host(step % 4 == 0);
    switch (step % 4) {
    case 0: fake_synchronize_stream(CUDA_ERROR_INVALID_HANDLE); break;
    case 1: fake_synchronize_context(); break;
    case 2: fake_synchronize_stream(CUDA_SUCCESS); break;
    default:
        fake_record_event(EVENT);
        fake_launch_kernel("_Z13fake_samplingIfEvPT_i");
        fake_synchronize_event(EVENT);
        fake_destroy_event(EVENT);
        fake_synchronize_event(EVENT);
    }
}

int main(int argc, char **argv) {
    const int steps = argc > 1 ? atoi(argv[1]) : 1, at = argc > 3 ? atoi(argv[3]) : -1;
    const char *what = argc > 3 ? argv[2] : "";
    cu_init();
    for (int step = 0; step < steps; step++) {
        if (step == at && strcmp(what, "profile-at") == 0) profile();
        if (step == at && strcmp(what, "stop-at") == 0) stop_recording();
        if (step == at && strcmp(what, "abort-at") == 0) {
            fflush(stdout);
            abort();
        }
        fake_launch_kernel("_Z13fake_samplingIfEvPT_i");
        fake_launch_graph(42);
        if (at >= 0 && step >= at && strcmp(what, "wait-from") == 0) take_result(step);
        usleep(200);
    }
    if (strcmp(what, "profile-at") == 0) {
        cuptiActivityFlushAll(1);
        printf("own profiler: %u records\n", own_records);
    }
    return 0;
}
