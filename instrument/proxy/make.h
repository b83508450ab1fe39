// Zeroed memory, or the end of the rank.
#pragma once

#include <stdlib.h>

#include "stop.h"

namespace efaprof::dispatch {

template <typename Item> Item *make(size_t count) {
    auto *items = static_cast<Item *>(calloc(count, sizeof(Item)));
    if (items == nullptr) fail(Cause::Failed, "out of memory");
    return items;
}

} // namespace efaprof::dispatch
