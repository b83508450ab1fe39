#include "queues.h"

namespace efaprof::dispatch {

const char *status_name(uint8_t status) {
    switch (status) {
    case SOFTEFA_OK: return "success";
    case SOFTEFA_FLUSHED: return "flushed: the queue pair is in its error state";
    case SOFTEFA_QP_INTERNAL: return "queue pair error: an entry that the device could not read";
    case SOFTEFA_UNSUPPORTED_OP: return "unsupported operation";
    case SOFTEFA_INVALID_AH: return "invalid address handle";
    case SOFTEFA_INVALID_LKEY: return "invalid local key or address";
    case SOFTEFA_BAD_LENGTH: return "bad length";
    case SOFTEFA_REMOTE_BAD_ADDRESS: return "bad remote key or address";
    case SOFTEFA_REMOTE_ABORT: return "aborted by the peer";
    case SOFTEFA_REMOTE_BAD_QPN: return "no such queue pair at the peer";
    case SOFTEFA_REMOTE_RNR: return "receiver not ready";
    case SOFTEFA_REMOTE_BAD_LENGTH: return "longer than the peer's receive";
    case SOFTEFA_UNRESPONSIVE: return "the peer does not answer any more";
    case SOFTEFA_UNKNOWN_PEER: return "the peer does not know this rank";
    case SOFTEFA_UNREACHABLE: return "the peer never answered";
    default: return "a status that EFA does not define";
    }
}

} // namespace efaprof::dispatch
