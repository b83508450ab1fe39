// What a run says on stdout when it is over.
#pragma once

#include "job.h"

namespace efaprof::dispatch {

// One line of text, or one of JSON.
void print_summary(const Job &job);

} // namespace efaprof::dispatch
