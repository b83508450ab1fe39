// The command line of efaprof-dispatch.
#pragma once

#include <stdint.h>

#include "../gda/source.h"
#include "../protocol/heap.h"
#include "../protocol/rings.h"
#include "../protocol/routing.h"

namespace efaprof::dispatch {

enum class SignalMode : uint8_t {
    Imm,        // every put and signal carries an immediate; the receiver restores order
    Fence,      // every channel tail waits until all earlier operations to its peer have completed
    FenceBatch, // one such wait per peer, then its channel tails
};

// Added to one operation's time in each layer, in nanoseconds; see proxy/delay.h.
struct Inject {
    uint64_t kernel_ns, ring_ns, proxy_ns, libfabric_ns, nic_ns, rx_ns;
};

enum class Device : uint8_t { Cpu, Cuda };

enum class Path : uint8_t { Proxy, Gdaki };

// Of path gdaki: the lane posts by itself.
struct Posting {
    QueueSource queues = QueueSource::Auto;
    bool counts = false;     // ends of operations are counted by the device; no completion queue is read
    uint32_t batch = 16;     // entries that one doorbell announces
    uint32_t send_queue = 0; // entries; 0: as many as operations in flight
    uint32_t fuzz = 0;       // tests only: of each thousand entries, so many get a random bit flipped
};

struct Options {
    protocol::Shape shape = {2, 8, 1024, 4, 16, 4};
    uint32_t layers = 8;
    uint32_t steps = 300;
    uint32_t warmup = 20;
    uint64_t compute_ns = 200000;
    SignalMode signal = SignalMode::Imm;
    uint64_t seed = 1;
    const char *provider = "tcp";
    uint32_t proxies = 1;    // of a rank, each with a ring
    uint32_t threads = 0;    // of a rank with one proxy; 0: by the number of cores
    uint32_t ring = 1024;    // commands
    uint32_t window = 256;   // operations in flight
    uint32_t timeout_s = 60; // longest wait of a lane
    uint32_t drain = 32;     // commands posted before completions get their turn
    bool has_more = false;   // several posts share a doorbell
    Device device = Device::Cpu;
    bool has_stamps = true;   // of a GPU's kernels
    bool takes_turns = false; // every other step without them
    bool is_pinned = false;   // threads stay on the GPU's NUMA node
    Path path = Path::Proxy;
    Posting posting;
    Inject inject = {};
    uint64_t late_ns[protocol::MAX_RANKS] = {}; // added to a rank's compute_ns
    int64_t corrupt_step = -1;                  // tests only: damage one token of rank 0 in that step
    bool has_no_imm = false;                    // tests only: use the provider as if it carried no immediate
    bool is_json = false;
};

// What stands on the command line, checked as far as it can be without libfabric. Ends the process with a line
// on stderr and exit code 2 when it is wrong, with 0 after --help.
Options parse_options(int count, char **words);

// False when it names none.
bool parse_source(const char *text, QueueSource &source);
const char *signal_name(SignalMode mode);

} // namespace efaprof::dispatch
