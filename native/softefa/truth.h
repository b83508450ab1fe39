// The truth log: what the emulated device did with each operation. A header page, then fixed records, in the order
// of completion. Times are CLOCK_MONOTONIC nanoseconds. efaprof/session/softefa_truth.py mirrors it.
#pragma once

#include <stdint.h>

#include "wire.h"

#define SOFTEFA_TRUTH_MAGIC 0x3154455346414645ull /* "EFAFSET1" as it stands in the file */
#define SOFTEFA_TRUTH_VERSION 1u

struct softefa_truth_header {
    uint64_t magic;
    uint32_t version;
    uint32_t record_bytes;
    int64_t started_monotonic_ns;
    int64_t started_realtime_ns;
    uint64_t dropped;  // records not written: the bound was reached or the disk refused; final at the end
    uint64_t records;  // final at the end; 0 while the device runs or after it was killed
    char config[1024]; // the wire model as key=value,…; zero-terminated
    uint8_t reserved[3024];
};
SOFTEFA_ASSERT_SIZE(struct softefa_truth_header, 4096);

#define SOFTEFA_TRUTH_IMM 1u
#define SOFTEFA_TRUTH_UNSOLICITED 2u
#define SOFTEFA_TRUTH_INLINE 4u
#define SOFTEFA_TRUTH_CORRUPTED 8u
#define SOFTEFA_TRUTH_DETOUR 16u // at least one part took a slower path

struct softefa_truth_record {
    uint64_t seq;         // order of doorbells on the source device, from 0
    int64_t doorbell_ns;  // the device saw the doorbell
    int64_t start_ns;     // model: first bit on the wire
    int64_t due_ns;       // model: when the payload should have been visible
    int64_t delivered_ns; // the whole payload was visible at the receiver (reads: at the initiator); 0: never
    int64_t rx_cqe_ns;    // the receiver's completion was written; 0: none
    int64_t cqe_ns;       // the sender's completion was written
    uint32_t bytes;
    uint32_t packets;                // first transmissions
    uint16_t src_device, dst_device; // dst 0xffff: the address handle led nowhere
    uint16_t src_qpn, dst_qpn;
    uint8_t op; // enum softefa_op
    uint8_t status;
    uint8_t flags;
    uint8_t reserved0;
    uint32_t imm;
    uint16_t req_id;
    uint16_t rnr; // times the receiver was not ready
    uint32_t retransmits;
    uint64_t reserved1;
};
SOFTEFA_ASSERT_SIZE(struct softefa_truth_record, 96);
