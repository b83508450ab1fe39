// Ops tables patched in place. A table is known by its address and gets a numbered slot; the functions that we
// put into it are templates on that number, so each finds the pointers that it replaced without a look-up:
//
//     provider's table          slot 3                       originals[3]
//     ┌ size                    Trampoline<write, 3> ──┐     ┌ size
//     │ read                    runs the probe, then   └────►│ write  (the provider's own)
//     └ write  ───────────────► calls originals[3].write     └ …
//
// Nothing that a program or provider can compare changes: neither fids nor table addresses.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <utility>

namespace efaprof::ofi {

constexpr unsigned kSlots = 16;    // tables of one kind that can be patched at a time
constexpr unsigned kFidSlots = 64; // struct fi_ops: every class of object of every provider has one

struct Hook {
    size_t offset;        // of the member in the table
    void *const *by_slot; // what we put there, for each slot
};

// One type of ops table. Slots are given and tables written under the registry's lock.
struct TableKind {
    const char *name;
    const Hook *hooks;
    unsigned hook_count;
    unsigned slots;
    void *originals; // array of `slots` tables: what was there before us
    size_t table_bytes;
    void **tables;      // address of each slot's table, null = free slot
    bool complained;    // a table could not be patched, and a NOTE says so
    size_t known_bytes; // of tables that do not begin with their size; 0: they do
};

// Makes every hooked member of `table` that is there and non-null ours; doing so again is free and repairs members that
// somebody has put back. Members beyond the table's own `size` are never read. Null is accepted.
void patch_table(TableKind &kind, const void *table);
bool is_patched(const TableKind &kind, const void *table); // its first hooked member is ours

template <class Ops, unsigned Slots> struct Store {
    static inline Ops originals[Slots];
    static inline void *tables[Slots];
};

template <class Ops, unsigned Slots, unsigned Slot, class Probe, auto Member> struct Trampoline;

template <class Ops, unsigned Slots, unsigned Slot, class Probe, class Result, class... Args,
          Result (*Ops::*Member)(Args...)>
struct Trampoline<Ops, Slots, Slot, Probe, Member> {
    static Result call(Args... args) {
        return Probe::run(__atomic_load_n(&(Store<Ops, Slots>::originals[Slot].*Member), __ATOMIC_RELAXED), args...);
    }
};

template <class Ops, unsigned Slots, class Probe, auto Member, class Numbers> struct Column;

template <class Ops, unsigned Slots, class Probe, auto Member, size_t... Slot>
struct Column<Ops, Slots, Probe, Member, std::index_sequence<Slot...>> {
    static inline void *const by_slot[] = {
        reinterpret_cast<void *>(&Trampoline<Ops, Slots, static_cast<unsigned>(Slot), Probe, Member>::call)...};
};

// Fields of a Hook: the member's offset and our functions for it.
#define EFAPROF_HOOK_OF(ops, slots, member, ...)                                                                       \
    Hook {                                                                                                             \
        offsetof(ops, member), Column<ops, slots, __VA_ARGS__, &ops::member, std::make_index_sequence<slots>>::by_slot \
    }
#define EFAPROF_HOOK(ops, member, ...) EFAPROF_HOOK_OF(ops, kSlots, member, __VA_ARGS__)

#define EFAPROF_TABLE_KIND_OF(ops, slots, hooks)                                                                       \
    {                                                                                                                  \
#ops, hooks, sizeof(hooks) / sizeof(hooks[0]), slots, Store < ops, slots> ::originals, sizeof(ops),            \
            Store < ops, slots> ::tables, false, 0                                                                     \
    }
#define EFAPROF_TABLE_KIND(ops, hooks) EFAPROF_TABLE_KIND_OF(ops, kSlots, hooks)

} // namespace efaprof::ofi
