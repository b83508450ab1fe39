#include "annotate.h"

#include <cstring>

#include "writer.h"

namespace efaprof {

// ---- steps --------------------------------------------------------------------------------------

static uint32_t g_steps;      // begun in this process
static uint32_t g_generation; // of the process that g_steps is of: a forked child begins anew

static uint64_t count_step(const Process &process) {
    const uint32_t known = __atomic_exchange_n(&g_generation, process.generation, __ATOMIC_RELAXED);
    if (known != process.generation) __atomic_store_n(&g_steps, 0u, __ATOMIC_RELAXED);
    const uint32_t own = __atomic_add_fetch(&g_steps, 1, __ATOMIC_RELAXED);
    uint32_t *most = process.paused + 1;
    uint32_t seen = __atomic_load_n(most, __ATOMIC_RELAXED);
    while (seen < own && !__atomic_compare_exchange_n(most, &seen, own, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
    return own;
}

static void turn(const Process &process, uint32_t from, uint32_t to) {
    __atomic_compare_exchange_n(process.paused, &from, to, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
}

static bool counts(uint32_t source) {
    uint32_t first = EFAPROF_SOURCE_NONE;
    return __atomic_compare_exchange_n(&efaprof_here.steps_from, &first, source, false, __ATOMIC_RELAXED,
                                       __ATOMIC_RELAXED) ||
           first == source;
}

void step_began(uint64_t name, efaprof_source source) {
    const Process *process = process_find();
    if (process == nullptr || process->recording == 0 || !counts(source)) return;
    const uint64_t own = count_step(*process);
    const Settings &settings = process->settings;
    if (own > settings.warm_up) turn(*process, EFAPROF_PAUSE_WARM_UP, EFAPROF_PAUSE_NONE);
    if (recording()) {
        if (void *room = reserve(1)) {
            const efaprof_span record = {
                {now(), 0, EFAPROF_KIND(EFAPROF_SHAPE_SPAN, EFAPROF_SPAN_STEP_BEGAN), 0}, name, own};
            memcpy(room, &record, sizeof record);
            publish(room, 1);
        }
    }
    const bool is_last = settings.steps != 0 && own > settings.warm_up + settings.steps;
    if (!is_last || __atomic_load_n(process->paused, __ATOMIC_RELAXED) != EFAPROF_PAUSE_NONE) return;
    __atomic_store_n(paused_at(*process), now(), __ATOMIC_RELAXED);
    turn(*process, EFAPROF_PAUSE_NONE, EFAPROF_PAUSE_OVER);
}

// ---- rank -----------------------------------------------------------------------------------------

void note_rank() {
    static uint32_t noted; // generation of the process that said it
    const Process *process = process_now();
    if (EFAPROF_LIKELY(__atomic_load_n(&noted, __ATOMIC_RELAXED) == process->generation)) return;
    if (__atomic_exchange_n(&noted, process->generation, __ATOMIC_RELAXED) == process->generation) return;
    if (process->settings.rank == kNoRank) return;
    efaprof_note record{};
    record.name = name("job.rank", 8);
    record.value = process->settings.rank;
    record.h = {now(), 0, EFAPROF_KIND(EFAPROF_SHAPE_NOTE, 1), 0};
    if (void *room = reserve(1)) {
        memcpy(room, &record, sizeof record);
        publish(room, 1);
    }
}

// ---- stretches ----------------------------------------------------------------------------------

void write_range(efaprof_range range, uint8_t what) {
    constexpr uint32_t slots = sizeof range / EFAPROF_SLOT_BYTES;
    if (!recording()) return;
    note_rank();
    const uint64_t dur = range.h.t_end - range.t_begin;
    range.h.dur = dur > UINT32_MAX ? UINT32_MAX : static_cast<uint32_t>(dur);
    range.h.kind = EFAPROF_KIND(EFAPROF_SHAPE_RANGE, what);
    void *room = reserve(slots);
    if (room == nullptr) return;
    memcpy(room, &range, sizeof range);
    publish(room, slots);
}

struct Depth {
    uint16_t ranges, steps;
};
static __thread Depth t_depth __attribute__((tls_model("initial-exec")));

// An end without its begin, in a program that closes things of another thread, leaves the depth alone.
static uint16_t less(uint16_t depth) {
    return depth != 0 ? static_cast<uint16_t>(depth - 1) : depth;
}

} // namespace efaprof

using namespace efaprof;

extern "C" {

uint64_t efaprof_begin(uint32_t what, const char *text, uint64_t bytes) {
    if (what == EFAPROF_SPAN_STEP && t_depth.steps++ == 0) step_began(name(text, bytes), EFAPROF_SOURCE_ANNOTATION);
    ++t_depth.ranges;
    return now();
}

void efaprof_end(uint64_t t_begin, uint32_t what, const char *text, uint64_t bytes, uint32_t category,
                 uint64_t payload) {
    efaprof_range range{};
    range.h.t_end = now();
    t_depth.ranges = less(t_depth.ranges);
    if (what == EFAPROF_SPAN_STEP) t_depth.steps = less(t_depth.steps);
    if (!recording()) return;
    range.h.x = t_depth.ranges;
    range.name = name(text, bytes);
    range.payload = payload;
    range.t_begin = t_begin;
    range.category = category;
    range.source = EFAPROF_SOURCE_ANNOTATION;
    range.payload_type = what == EFAPROF_SPAN_STEP ? EFAPROF_PAYLOAD_STEP : EFAPROF_PAYLOAD_NONE;
    write_range(range, static_cast<uint8_t>(what));
}

} // extern "C"
