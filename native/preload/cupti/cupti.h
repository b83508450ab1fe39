// What a CUDA program launches and what its GPUs did, told by CUPTI: the program's own copy of it where there is one.
//
//   api      finds libcupti and its functions          calls    calls that launch or wait, as RANGE records of the
//   waits    what a call waited for                             calling thread
//   entry    begins, gives way, ends                   device   kernels, graphs and copies, as DEVICE records
//
// CUPTI serves one tool at a time. A profiler that the program itself starts goes first: its calls into CUPTI come
// through here (this library is preloaded too), ours ends at the first of them, and a NOTE says who took it.
#pragma once

#include <cupti.h>

#include <stdint.h>

namespace efaprof::cuda {

// The functions that are used; libcupti is never linked.
struct Api {
    decltype(&cuptiSubscribe) subscribe;
    decltype(&cuptiUnsubscribe) unsubscribe;
    decltype(&cuptiEnableCallback) enable_callback;
    decltype(&cuptiActivityEnable) enable;
    decltype(&cuptiActivityDisable) disable;
    decltype(&cuptiActivityRegisterCallbacks) register_buffers;
    decltype(&cuptiActivityRegisterTimestampCallback) register_clock;
    decltype(&cuptiActivityFlushAll) flush;
    decltype(&cuptiActivityFlushPeriod) flush_period;
    decltype(&cuptiActivityGetNextRecord) next_record;
    decltype(&cuptiActivityGetNumDroppedRecords) dropped;
    // These may be absent: what they name is left out.
    decltype(&cuptiGetGraphExecId) graph_id;
    decltype(&cuptiGetContextId) context_id;
    decltype(&cuptiGetStreamIdEx) stream_id;
    decltype(&cuptiGetResultString) result_text;
    decltype(&cuptiGetVersion) version;
};

// The libcupti that the program has loaded, else one that can be loaded; NULL when there is none or it lacks
// something, and `missing` says what.
const Api *find_api(const char **missing);
// A function of the libcupti that is loaded now; NULL when none is.
void *loaded_function(const char *name);
// File name of the library that holds `address`; never NULL.
const char *library_of(const void *address);
// The profiler among the loaded libraries that is known to hold CUPTI; NULL when none is known.
const char *known_profiler();

void on_call(void *, CUpti_CallbackDomain domain, CUpti_CallbackId id, const void *data);
// Every call of the driver that launches something, and those that wait for it.
void enable_calls(const Api &api, CUpti_SubscriberHandle subscriber, bool is_on);

void set_api(const Api *api);
void give_buffer(uint8_t **buffer, size_t *size, size_t *most_records);
void take_buffer(CUcontext context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid);
uint64_t ticks();

// A graph is about to be launched: when enough of them have been told kernel by kernel, this one and all later ones
// become one DEVICE record each. (CUPTI itself cannot be told so: enabling GRAPH_TRACE once a graph was launched
// without it crashes, and disabling kernels does not reach graphs that were made before. Seen with CUPTI 13.0.)
void launching_graph(uint32_t correlation);
void tell_whole_from(uint32_t correlation);

} // namespace efaprof::cuda
