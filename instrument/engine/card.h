// What a rank tells the others about itself: EFAPROF_MOE_CONTACT_BYTES without pointers.
#pragma once

#include "../proxy/fabric.h"
#include "../workload/options.h"
#include "peers.h"

namespace efaprof::dispatch {

void write_card(const Options &options, uint32_t rank, const Contact &contact, void *bytes);
// Cards of all ranks, in their order. Fails the rank when one is not of this job.
void read_cards(const Options &options, uint32_t own_rank, const void *bytes, Contact *contacts, Identity *identities);

} // namespace efaprof::dispatch
