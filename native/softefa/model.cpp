#include "model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

namespace softefa {
namespace {

struct RealKnob {
    const char *key;
    double Model::*field;
    double most;
};
constexpr double kAny = 1e18;
constexpr RealKnob kReal[] = {
    {"rate", &Model::rate_bits_s, kAny},   {"ops", &Model::ops_s, kAny},        {"pps", &Model::pps, kAny},
    {"latency", &Model::latency_ns, kAny}, {"jitter", &Model::jitter_ns, kAny}, {"reorder", &Model::reorder, 1},
    {"spread", &Model::spread_ns, kAny},   {"loss", &Model::loss, 1},           {"rto", &Model::rto_ns, kAny},
    {"corrupt", &Model::corrupt, 1},       {"rnr", &Model::rnr_ns, kAny},       {"timeout", &Model::timeout_ns, kAny},
    {"line", &Model::line_bits_s, kAny},
};
struct WholeKnob {
    const char *key;
    uint32_t Model::*field;
    uint64_t least, most;
};
constexpr WholeKnob kWhole[] = {
    {"window", &Model::window, 0, 1u << 20}, {"corrupt_after", &Model::corrupt_after, 0, ~0u},
    {"retries", &Model::retries, 0, 64},     {"mtu", &Model::mtu, 256, 65535},
    {"counters", &Model::counters, 0, 1},
};

uint64_t mix(uint64_t x) { // splitmix64's finaliser
    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9ull;
    x ^= x >> 27;
    x *= 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

// Losses of the part until everything is through: each round, every packet still missing is lost with p.
uint32_t losses_of(const Model &model, const Place &place, uint32_t packets, uint32_t &rounds) {
    uint32_t missing = packets, again = 0;
    for (rounds = 0; missing > 0 && rounds <= model.retries; ++rounds) {
        uint32_t lost = 0;
        for (uint32_t i = 0; i < missing; ++i)
            lost += draw_unit(model, place, Draw::Loss, rounds * 1024 + i) < model.loss;
        if (lost == 0) return again;
        again += lost;
        missing = lost;
    }
    return again;
}

} // namespace

bool model_set(Model &model, const char *key, const char *value) {
    char *end = nullptr;
    if (strcmp(key, "seed") == 0) {
        model.seed = strtoull(value, &end, 10);
        return end != value && *end == '\0';
    }
    for (const RealKnob &knob : kReal) {
        if (strcmp(key, knob.key) != 0) continue;
        const double x = strtod(value, &end);
        if (end == value || *end != '\0' || !(x >= 0) || x > knob.most) return false;
        model.*knob.field = x;
        return true;
    }
    for (const WholeKnob &knob : kWhole) {
        if (strcmp(key, knob.key) != 0) continue;
        const uint64_t x = strtoull(value, &end, 10);
        if (end == value || *end != '\0' || x < knob.least || x > knob.most) return false;
        model.*knob.field = static_cast<uint32_t>(x);
        return true;
    }
    return false;
}

int model_text(const Model &model, char *out, int size) {
    int at = 0;
    for (const RealKnob &knob : kReal)
        at += snprintf(out + (at < size ? at : size), static_cast<size_t>(at < size ? size - at : 0), "%s=%.17g,",
                       knob.key, model.*knob.field);
    for (const WholeKnob &knob : kWhole)
        at += snprintf(out + (at < size ? at : size), static_cast<size_t>(at < size ? size - at : 0), "%s=%u,",
                       knob.key, model.*knob.field);
    at += snprintf(out + (at < size ? at : size), static_cast<size_t>(at < size ? size - at : 0), "seed=%llu",
                   static_cast<unsigned long long>(model.seed));
    return at;
}

uint64_t draw_bits(const Model &model, const Place &place, Draw what, uint32_t round) {
    uint64_t x = mix(model.seed + 0x9e3779b97f4a7c15ull);
    x = mix(x ^ (static_cast<uint64_t>(place.device) << 32 | place.queue));
    x = mix(x ^ place.operation);
    x = mix(x ^ (static_cast<uint64_t>(place.part) << 32 | static_cast<uint32_t>(what)));
    return mix(x ^ round);
}

double draw_unit(const Model &model, const Place &place, Draw what, uint32_t round) {
    return static_cast<double>(draw_bits(model, place, what, round) >> 11) * 0x1p-53;
}

uint32_t packets_of(const Model &model, uint64_t bytes) {
    return bytes == 0 ? 1 : static_cast<uint32_t>((bytes + model.mtu - 1) / model.mtu);
}

double wire_ns(const Model &model, uint64_t bytes, uint32_t packets) {
    const double by_rate = model.rate_bits_s > 0 ? static_cast<double>(bytes) * 8e9 / model.rate_bits_s : 0;
    const double by_pps = model.pps > 0 ? packets * 1e9 / model.pps : 0;
    return by_rate > by_pps ? by_rate : by_pps;
}

Flight flight_of(const Model &model, const Place &place, uint32_t packets) {
    Flight flight = {model.latency_ns, 0, false, false};
    if (model.jitter_ns > 0) {
        const double x = -log1p(-draw_unit(model, place, Draw::Jitter));
        flight.delay_ns += model.jitter_ns * (x < 10 ? x : 10);
    }
    if (model.reorder > 0 && draw_unit(model, place, Draw::Detour) < model.reorder) {
        flight.detour = true;
        flight.delay_ns += model.spread_ns * draw_unit(model, place, Draw::DetourSize);
    }
    if (model.loss > 0) {
        uint32_t rounds = 0;
        flight.retransmits = losses_of(model, place, packets, rounds);
        flight.lost = rounds > model.retries;
        flight.delay_ns += rounds * model.rto_ns;
    }
    return flight;
}

} // namespace softefa
