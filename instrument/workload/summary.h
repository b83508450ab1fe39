// What a run says on stdout when it is over.
#pragma once

#include "job.h"

namespace efaprof::dispatch {

// That every token of every step was compared with the reference; says so on stderr when not.
bool is_all_verified(const Job &job);

// One line of text, or one of JSON.
void print_summary(const Job &job);

} // namespace efaprof::dispatch
