// The trace record format. This file is the one definition; efaprof/trace/layout.py mirrors it and
// tests/unit/trace/test_layout.py compares the two, field by field.
//
// A ring (in shared memory) and a raw file (*.efr) have the same shape: one header page of 4096
// bytes, then an array of 32-byte slots. A record is 1..n consecutive slots. All fields are
// little-endian. Slot i of a ring lives at 4096 + 32*(i mod capacity); slot i of a raw file lives at
// 4096 + 32*i. A record never crosses the wrap of its ring: a PAD record fills the rest.
//
//   bytes   0        8      12     14     16                               32
//           | t_end  | dur  | kind | x    | body of the first slot          |   further slots: 32 bytes each
//
// t_end is in ticks of the clock named in the header, taken when the thing ended; dur is in the same
// ticks and saturates at 2^32-1. x is a 16-bit field whose meaning belongs to the kind.
#pragma once

#include <stddef.h>
#include <stdint.h>

#define EFAPROF_MAGIC 0x31524645u /* "EFR1" as it stands in the file */
#define EFAPROF_FORMAT_VERSION 1u /* fixed: later ones add to it, or are read beside it */
#define EFAPROF_SLOT_BYTES 32u
#define EFAPROF_HEADER_BYTES 4096u
#define EFAPROF_NAME_MAX 128u /* longer names are cut, and counted in the header */

#ifdef __cplusplus
#define EFAPROF_ASSERT_SIZE(type, size) static_assert(sizeof(type) == (size), #type " size")
#define EFAPROF_ASSERT_AT(type, field, at) static_assert(offsetof(type, field) == (at), #type "." #field)
#else
#define EFAPROF_ASSERT_SIZE(type, size) _Static_assert(sizeof(type) == (size), #type " size")
#define EFAPROF_ASSERT_AT(type, field, at) _Static_assert(offsetof(type, field) == (at), #type "." #field)
#endif

#ifdef __cplusplus
extern "C" {
#endif

enum efaprof_clock { EFAPROF_CLOCK_TSC = 1, EFAPROF_CLOCK_MONOTONIC = 2 };

// Life of a ring. Only its producer stores here; the drain only reads.
enum efaprof_ring_state {
    EFAPROF_RING_OPEN = 1,   // a thread writes it
    EFAPROF_RING_FREE = 2,   // its thread ended; another thread of the process may claim it
    EFAPROF_RING_CLOSED = 3, // its process lives on but never writes it again (efaprof_restart)
};

// ---- header page ------------------------------------------------------------------------------
struct efaprof_header {
    uint32_t magic;
    uint32_t version;
    uint32_t slot_bytes;
    uint32_t clock;         // enum efaprof_clock
    uint64_t capacity;      // slots in the ring, a power of two; 0 = no slots, the file only counts what was lost
    uint64_t boot_id[2];    // same value on the same boot of the same host
    uint64_t pid_ns;        // inode of the pid namespace
    uint32_t pid;           // as seen inside that namespace
    uint32_t tid;           // of the thread that created the ring
    uint64_t start_ticks;   // clock when the ring was created
    uint64_t process_start; // start time of the process (field 22 of /proc/self/stat), tells reused pids apart
    char host[64];
    char comm[16];        // thread name at creation
    uint8_t producer[16]; // "fi", "parent", "workload" …: which library wrote it
    uint8_t reserved0[88];
    // --- producer's line (offset 256)
    uint64_t head;  // slots published since creation, always at a record boundary
    uint32_t state; // enum efaprof_ring_state
    uint32_t reserved1;
    uint8_t reserved2[48];
    // --- producer's counts (offset 320)
    uint64_t dropped;   // records not written because the ring was full
    uint64_t nested;    // records not written because the thread was inside the writer (signal handler)
    uint64_t names_cut; // names longer than EFAPROF_NAME_MAX
    uint64_t failed;    // records lost for any other reason
    uint8_t reserved3[32];
    // --- consumer's line (offset 384)
    uint64_t tail;  // slots copied out by the drain
    uint64_t first; // raw files only: slots before this one were given up to stay under --max-size
    uint8_t reserved4[48];
    uint8_t reserved5[3648];
};
EFAPROF_ASSERT_SIZE(struct efaprof_header, 4096);
EFAPROF_ASSERT_AT(struct efaprof_header, capacity, 16);
EFAPROF_ASSERT_AT(struct efaprof_header, boot_id, 24);
EFAPROF_ASSERT_AT(struct efaprof_header, pid_ns, 40);
EFAPROF_ASSERT_AT(struct efaprof_header, pid, 48);
EFAPROF_ASSERT_AT(struct efaprof_header, start_ticks, 56);
EFAPROF_ASSERT_AT(struct efaprof_header, process_start, 64);
EFAPROF_ASSERT_AT(struct efaprof_header, host, 72);
EFAPROF_ASSERT_AT(struct efaprof_header, comm, 136);
EFAPROF_ASSERT_AT(struct efaprof_header, producer, 152);
EFAPROF_ASSERT_AT(struct efaprof_header, head, 256);
EFAPROF_ASSERT_AT(struct efaprof_header, dropped, 320);
EFAPROF_ASSERT_AT(struct efaprof_header, tail, 384);
EFAPROF_ASSERT_AT(struct efaprof_header, first, 392);

// ---- kinds ------------------------------------------------------------------------------------
// The high byte is the record's shape, the low byte what happened; so the number of slots follows
// from (kind, x) alone.
enum efaprof_shape {
    EFAPROF_SHAPE_PAD = 0x00,
    EFAPROF_SHAPE_STAGE = 0x01,
    EFAPROF_SHAPE_OP = 0x02,
    EFAPROF_SHAPE_CQ = 0x03,
    EFAPROF_SHAPE_TICK = 0x04,
    EFAPROF_SHAPE_MARK = 0x05,
    EFAPROF_SHAPE_WAIT = 0x06,
    EFAPROF_SHAPE_RX = 0x07,
    EFAPROF_SHAPE_CNTR = 0x08,
    EFAPROF_SHAPE_SPAN = 0x09,
    EFAPROF_SHAPE_RANGE = 0x0a,
    EFAPROF_SHAPE_DEVICE = 0x0b,
    EFAPROF_SHAPE_POST = 0x0c,
    EFAPROF_SHAPE_NAME = 0x40,
    EFAPROF_SHAPE_THREAD = 0x41,
    EFAPROF_SHAPE_OBJECT = 0x42,
    EFAPROF_SHAPE_BIND = 0x43,
    EFAPROF_SHAPE_AV = 0x44,
    EFAPROF_SHAPE_COUNTER = 0x45,
    EFAPROF_SHAPE_CLOCK = 0x46,
    EFAPROF_SHAPE_NOTE = 0x47,
};
#define EFAPROF_KIND(shape, what) ((uint16_t)(((shape) << 8) | (what)))
#define EFAPROF_SHAPE_OF(kind) ((uint8_t)((kind) >> 8))

struct efaprof_head {
    uint64_t t_end;
    uint32_t dur;
    uint16_t kind;
    uint16_t x;
};
EFAPROF_ASSERT_SIZE(struct efaprof_head, 16);

// PAD: x = slots that it fills (1..n), no body. kind 0x0001, so that an all-zero slot is no record.
#define EFAPROF_PAD EFAPROF_KIND(EFAPROF_SHAPE_PAD, 1)

// STAGE, 1 slot: one stage of one operation of our own dispatch paths. The stages of an operation abut: each
// begins (t_end − dur) where the one before it ended.
//
//   enter ──KERNEL── published ──RING── seen [──FENCE── fence passed] ──PROXY── call entered ──LIBFABRIC── returned
//   returned ──NIC── completion seen ──TOLD── consumer told
//
// FENCE stands only in operations that carry EFAPROF_X_FENCE (dur 0 when nothing had to complete first); PROXY
// then begins where FENCE ended, so the two never overlap. A completion can be seen before the call that posted
// it has returned (another thread polls, or the provider delivers inside the call): NIC then has dur 0 and its
// t_end lies before LIBFABRIC's.
enum efaprof_stage_what {
    EFAPROF_STAGE_KERNEL = 1,    // enter → command published
    EFAPROF_STAGE_RING = 2,      // published → seen by the proxy; depth: commands waiting behind it
    EFAPROF_STAGE_PROXY = 3,     // seen, or fence passed → library call entered
    EFAPROF_STAGE_LIBFABRIC = 4, // first attempt → return that rang the doorbell; status: -FI_EAGAIN attempts
    EFAPROF_STAGE_NIC = 5,       // doorbell → completion seen by the poster; depth: operations in flight before it
    EFAPROF_STAGE_TOLD = 6,      // completion seen → consumer told
    EFAPROF_STAGE_COMPUTE = 7,   // own arithmetic and copies; x: enum efaprof_compute, op: the lane's next command
    EFAPROF_STAGE_FENCE = 8,     // seen → every earlier operation to that peer has completed
};
// x of every stage but COMPUTE:   15 ─ kind ─ 12 │ 11 ─ flags ─ 8 │ 7 ─ channel ─ 0
enum efaprof_cmd_kind {
    EFAPROF_CMD_PUT = 1,     // a token, or a partial sum
    EFAPROF_CMD_NOTIFY = 2,  // counts that say what will arrive
    EFAPROF_CMD_SIGNAL = 3,  // the tail of a channel
    EFAPROF_CMD_BARRIER = 4, // its channel is one past the last data channel
};
#define EFAPROF_X_IMM 0x0100u    /* carries an immediate */
#define EFAPROF_X_FENCE 0x0200u  /* issued only after every earlier operation to that peer has completed */
#define EFAPROF_X_POSTED 0x0400u /* its entry was written by the kernel itself: POST records */
#define EFAPROF_X(kind, flags, channel) ((uint16_t)(((kind) << 12) | (flags) | (channel)))
#define EFAPROF_X_KIND(x) ((uint8_t)((x) >> 12))
#define EFAPROF_X_CHANNEL(x) ((uint8_t)((x)&0xffu))
// Wire sequence of an operation: its rank (from 0) among the sequenced operations of the same (ring, peer,
// channel), in order of seq. Sequenced are those with EFAPROF_X_IMM, and signals and barriers always. The
// receiver's RX and WAIT records carry the same number beside (src, channel), so (src, dst, channel, wire
// sequence) joins the two ends. An immediate is src:8 (high) | channel:8 | low 16 bits of the wire sequence.
enum efaprof_compute {
    EFAPROF_COMPUTE_STANDIN = 1, // fills the layer's tokens, waits for the asked time: attention and the rest
    EFAPROF_COMPUTE_COPY = 2,    // own rank's tokens copied, not sent
    EFAPROF_COMPUTE_EXPERT = 3,  // experts' arithmetic over the tokens that arrived
    EFAPROF_COMPUTE_REDUCE = 4,  // weighted sum of the partial sums that came back
    EFAPROF_COMPUTE_VERIFY = 5,  // comparison with the reference: the workload's own, no model does it
};
struct efaprof_stage {
    struct efaprof_head h;
    uint64_t op; // ring:16 (high) | seq:48; the ring is unique in a job
    uint32_t bytes;
    uint16_t peer;
    uint8_t status; // 0, or what the stage says above; NIC: errno of an error completion
    uint8_t depth;  // 0 = queue empty, else 1 + floor(log2(depth))
};
EFAPROF_ASSERT_SIZE(struct efaprof_stage, 32);
#define EFAPROF_SEQ_MASK 0xFFFFFFFFFFFFull /* of `op` */
// A rank has one command ring or several, each with a proxy and sequences of its own: ring i of rank r has the number
// EFAPROF_RINGS_APART·i + r. A channel keeps to one of them, and ring i of a rank talks to ring i of the others.
#define EFAPROF_RINGS_APART 256u

// POST, 2 slots: an operation whose work queue entry a kernel wrote by itself, in place of its stages from KERNEL to
// LIBFABRIC; NIC begins where it ended. The first slot is laid out as a STAGE's. Its parts abut and sum to dur:
//
//   enter ─order─ fence passed ─slot─ place reserved ─space─ room in the send queue ─build─ entry written
//         ─turn─ its turn to ring ─fence─ visible to the device ─doorbell─ rung
struct efaprof_post {
    struct efaprof_head h; // `what`: 1; x: as of a stage; t_end: the doorbell was rung
    uint64_t op;
    uint32_t bytes;
    uint16_t peer;
    uint8_t status; // 0
    uint8_t depth;  // operations in flight before it: 0 = none, else 1 + floor(log2(operations))
    uint32_t order; // ticks of the clock, as all parts: until every earlier operation to that peer had completed
    uint32_t slot;
    uint32_t space;
    uint32_t build;
    uint32_t turn;
    uint32_t fence;
    uint32_t doorbell;
    uint32_t batch; // entries that the doorbell announced
};
EFAPROF_ASSERT_SIZE(struct efaprof_post, 64);
EFAPROF_ASSERT_AT(struct efaprof_post, order, 32);

// OP, 2 slots: one libfabric data call that returned. Several -FI_EAGAIN attempts of one call are one
// record whose dur reaches back to the first attempt.
// `what` = api class (bits 5..7) | function (bits 0..4); the functions stand in fi_ops_* order.
enum efaprof_op_class {
    EFAPROF_OP_MSG = 0,
    EFAPROF_OP_RMA = 1,
    EFAPROF_OP_TAGGED = 2,
    EFAPROF_OP_ATOMIC = 3,
    EFAPROF_OP_EP = 4, // cancel
};
#define EFAPROF_OP_WHAT(cls, fn) ((uint8_t)(((cls) << 5) | (fn)))
enum efaprof_msg_fn { // also TAGGED
    EFAPROF_FN_RECV,
    EFAPROF_FN_RECVV,
    EFAPROF_FN_RECVMSG,
    EFAPROF_FN_SEND,
    EFAPROF_FN_SENDV,
    EFAPROF_FN_SENDMSG,
    EFAPROF_FN_INJECT,
    EFAPROF_FN_SENDDATA,
    EFAPROF_FN_INJECTDATA,
};
enum efaprof_rma_fn {
    EFAPROF_FN_READ,
    EFAPROF_FN_READV,
    EFAPROF_FN_READMSG,
    EFAPROF_FN_WRITE,
    EFAPROF_FN_WRITEV,
    EFAPROF_FN_WRITEMSG,
    EFAPROF_FN_RMA_INJECT,
    EFAPROF_FN_WRITEDATA,
    EFAPROF_FN_RMA_INJECTDATA,
};
enum efaprof_atomic_fn {
    EFAPROF_FN_AWRITE,
    EFAPROF_FN_AWRITEV,
    EFAPROF_FN_AWRITEMSG,
    EFAPROF_FN_AINJECT,
    EFAPROF_FN_AREADWRITE,
    EFAPROF_FN_AREADWRITEV,
    EFAPROF_FN_AREADWRITEMSG,
    EFAPROF_FN_ACOMPWRITE,
    EFAPROF_FN_ACOMPWRITEV,
    EFAPROF_FN_ACOMPWRITEMSG,
};
struct efaprof_op {
    struct efaprof_head h; // x: the return value as int16 (0 or -errno)
    uint64_t ep;           // fid pointer
    uint64_t ctx;          // operation context, 0 for inject
    uint64_t fi_addr;      // destination (source for receives)
    uint64_t raddr;        // remote address (RMA, atomic) or tag (tagged)
    uint32_t len;          // bytes over all iovs, saturating
    uint32_t imm;          // low 32 bits of the remote CQ data
    uint32_t flags;        // low 32 bits of the flags that took effect (msg calls: those given)
    uint16_t eagain;       // attempts that returned -FI_EAGAIN, saturating
    uint8_t depth;         // 0: not known
    uint8_t nest;          // hooked calls of other objects open above this one on this thread
};
EFAPROF_ASSERT_SIZE(struct efaprof_op, 64);
EFAPROF_ASSERT_AT(struct efaprof_op, len, 48);
EFAPROF_ASSERT_AT(struct efaprof_op, eagain, 60);
EFAPROF_ASSERT_AT(struct efaprof_op, nest, 63);

// CQ, 1 + max(x,0) slots: one completion-queue read that returned entries or an error. Reads of more
// than EFAPROF_CQ_MAX entries become several records. `what` says which function.
#define EFAPROF_CQ_MAX 64
enum efaprof_cq_what {
    EFAPROF_CQ_READ = 1,
    EFAPROF_CQ_READFROM = 2,
    EFAPROF_CQ_READERR = 3, // x = 1, the entry's err is set
    EFAPROF_CQ_SREAD = 4,
    EFAPROF_CQ_SREADFROM = 5,
    EFAPROF_CQ_IDLE = 6, // x = 0: empty polls that no read reported: thread or CQ ended, or there are a million of them
};
struct efaprof_cq {
    struct efaprof_head h; // x: entries n, as int16
    uint64_t cq;
    uint32_t empties; // reads of this CQ by this thread since its last record that returned -FI_EAGAIN, saturating
    uint32_t flags;   // low byte: format of the entries (enum fi_cq_format), bits 8..15: nest
};
EFAPROF_ASSERT_SIZE(struct efaprof_cq, 32);
struct efaprof_cqe {
    uint64_t ctx;
    uint64_t src;   // fi_addr from readfrom, UINT64_MAX when not asked for
    uint32_t data;  // low 32 bits of the remote CQ data
    uint32_t flags; // low 32 bits; 0 when the format has none
    uint32_t len;
    uint16_t kind; // 0 completion, 1 error
    int16_t err;   // positive errno of an error entry
};
EFAPROF_ASSERT_SIZE(struct efaprof_cqe, 32);

// CNTR, 1 slot: a counter read or wait whose value differs from the last one this thread recorded. `what` says which.
enum efaprof_cntr_what {
    EFAPROF_CNTR_READ = 1,
    EFAPROF_CNTR_WAIT = 2, // value: the threshold that was waited for; the counter may be beyond it
};
struct efaprof_cntr {
    struct efaprof_head h; // x: 1 = error value
    uint64_t cntr;
    uint64_t value;
};
EFAPROF_ASSERT_SIZE(struct efaprof_cntr, 32);

// TICK, 1 slot: one turn of a proxy loop that did something.
struct efaprof_tick {
    struct efaprof_head h; // x: ring
    uint32_t n_cmd, n_test, n_done, backlog;
};
EFAPROF_ASSERT_SIZE(struct efaprof_tick, 32);

// MARK, 1 slot: from first_seq on, commands of this ring belong to (step, layer, phase). A phase ends at the
// next mark of its ring, a step at the next STEP mark; one STEP mark stands after the last step. A rank with several
// rings marks all of them at one time.
struct efaprof_mark {
    struct efaprof_head h; // x: kind of step (0 decode, 1 prefill, 2 mixed, 3 warm-up: not to be counted)
    uint32_t step;
    uint16_t layer;
    uint16_t phase; // enum efaprof_phase
    uint16_t ring;
    uint8_t first_seq[6];
};
EFAPROF_ASSERT_SIZE(struct efaprof_mark, 32);
enum efaprof_phase {
    EFAPROF_PHASE_NONE = 0,
    EFAPROF_PHASE_DISPATCH = 1,
    EFAPROF_PHASE_COMBINE = 2,
    EFAPROF_PHASE_COMPUTE = 3,
    EFAPROF_PHASE_STEP = 4
};

// WAIT, 2 slots: a poll or flush that ended (t_end); dur reaches back to when polling began. What released it is
// the operation that was ready last: for a poll or barrier (src, channel, wire sequence), for a flush the
// command (own rank, its channel, its seq in this ring) whose completion was told last.
struct efaprof_wait {
    struct efaprof_head h; // `what`: 1 poll, 2 flush, 3 barrier; x: phase
    uint32_t step;
    uint16_t layer;
    uint16_t src; // rank whose operation released it (own rank for a flush)
    uint16_t channel;
    uint16_t ring;
    uint32_t polls;
    uint64_t seq;   // sequence of the releasing operation
    uint64_t t_sig; // when the signal was handed over, in this clock; 0 not known
    uint64_t reserved[2];
};
EFAPROF_ASSERT_SIZE(struct efaprof_wait, 64);

// RX, 1 slot: an arrival whose turn came: all earlier wire sequences of its (src, channel) are here too.
// t_end = handed over (a signal: written to the consumer), t_end − dur = seen on the receive CQ.
struct efaprof_rx {
    struct efaprof_head h; // x: bit 0 held back for order, bit 1 a signal: its consumer was told
    uint16_t src;
    uint16_t channel;
    uint8_t seq[6];
    uint16_t reserved;
    uint32_t imm; // 0 when it came without one: a signal's body was found in memory
};
EFAPROF_ASSERT_SIZE(struct efaprof_rx, 32);

// SPAN, 1 slot: a named stretch of host time. RANGE, 2 slots, says more of one: its begin however long it was, and
// whose it is. Both are written when the stretch has ended; that a step began stands in a record of its own.
enum efaprof_span_what {
    EFAPROF_SPAN_RANGE = 1,
    EFAPROF_SPAN_INSTANT = 2,
    EFAPROF_SPAN_STEP = 3,
    EFAPROF_SPAN_GRAPH = 4,      // the call that launched a CUDA graph; payload: the graph, the same at each launch
    EFAPROF_SPAN_STEP_BEGAN = 5, // dur 0
    EFAPROF_SPAN_LAUNCH = 6,     // the call that launched one kernel, copy or set
    // A call that returned when the GPU had done what it waits for, by the type of its payload. U64: everything that
    // was launched before it into the stream `payload` (EFAPROF_EVERY_STREAM: into any) of the context `category`.
    // U32: what the EVENT with this correlation stands for. None: what the call itself launched.
    EFAPROF_SPAN_WAIT = 7,
    // The call that recorded a CUDA event, which stands for everything that was launched before it into the stream
    // `payload` of the context `category`.
    EFAPROF_SPAN_EVENT = 8,
};
#define EFAPROF_EVERY_STREAM 0xffffffffull
struct efaprof_span {
    struct efaprof_head h; // `what`: enum efaprof_span_what; x: nesting depth
    uint64_t name;
    uint64_t payload;
};
EFAPROF_ASSERT_SIZE(struct efaprof_span, 32);

enum efaprof_source {
    EFAPROF_SOURCE_NONE = 0,
    EFAPROF_SOURCE_ANNOTATION = 1, // efaprof.span, efaprof.step
    EFAPROF_SOURCE_NVTX = 2,
    EFAPROF_SOURCE_CUDA = 3,
};
enum efaprof_step_kind {
    EFAPROF_STEP_UNSAID = 0,
    EFAPROF_STEP_DECODE = 1,
    EFAPROF_STEP_PREFILL = 2,
    EFAPROF_STEP_MIXED = 3,
    EFAPROF_STEP_WARM_UP = 4, // not to be counted
    EFAPROF_STEP_OTHER = 5,   // said, but none of these
};
enum efaprof_payload { // type of `payload`, of NVTX
    EFAPROF_PAYLOAD_NONE = 0,
    EFAPROF_PAYLOAD_U64 = 1,
    EFAPROF_PAYLOAD_I64 = 2,
    EFAPROF_PAYLOAD_F64 = 3,
    EFAPROF_PAYLOAD_U32 = 4,
    EFAPROF_PAYLOAD_I32 = 5,
    EFAPROF_PAYLOAD_F32 = 6,
    EFAPROF_PAYLOAD_STEP = 7, // tokens:32 (low) | sequences:32, each UINT32_MAX when not said
};
struct efaprof_range {
    struct efaprof_head h; // `what`: enum efaprof_span_what; x: nesting depth
    uint64_t name;
    uint64_t payload;
    uint64_t t_begin;
    uint64_t domain;      // NAME id of the NVTX domain, 0 none
    uint32_t category;    // NVTX category; of a step its efaprof_step_kind; of an annotation 1 + layer, 0 none; of a
                          // CUDA wait or event its context
    uint8_t source;       // enum efaprof_source
    uint8_t payload_type; // enum efaprof_payload
    uint16_t flags;       // bit 0: it may have ended on another thread, or begun in another order than it ended
    uint64_t correlation; // of a CUDA call: the DEVICE records of what it launched carry the same; 0 none
};
EFAPROF_ASSERT_SIZE(struct efaprof_range, 64);
EFAPROF_ASSERT_AT(struct efaprof_range, category, 48);

// DEVICE, 2 slots: a stretch of a GPU's time, as its driver's tracing library says, in this clock.
enum efaprof_device_what {
    EFAPROF_DEVICE_KERNEL = 1,
    EFAPROF_DEVICE_GRAPH = 2, // a whole graph, where its nodes are not told one by one
    EFAPROF_DEVICE_COPY = 3,
    EFAPROF_DEVICE_SET = 4, // memory filled
};
struct efaprof_device {
    struct efaprof_head h; // `what`: enum efaprof_device_what; x: number of the device in its process
    uint64_t name;         // NAME id; 0 none
    uint64_t t_begin;
    uint32_t correlation; // of the call that launched it
    uint32_t stream;
    uint64_t graph;   // that it is, or is a node of; 0 none
    uint64_t bytes;   // of a copy or a set
    uint32_t context; // that the stream belongs to
    uint32_t reserved;
};
EFAPROF_ASSERT_SIZE(struct efaprof_device, 64);

// NAME, 1 + ceil(x/32) slots: text of at most EFAPROF_NAME_MAX bytes whose FNV-1a 64-bit hash is `id`.
struct efaprof_name {
    struct efaprof_head h; // x: bytes of text
    uint64_t id;
    uint64_t reserved;
    // then the text, zero-padded
};
EFAPROF_ASSERT_SIZE(struct efaprof_name, 32);

// THREAD, 2 slots: from here on this ring is written by that thread.
struct efaprof_thread {
    struct efaprof_head h;
    uint32_t pid, tid;
    uint64_t process_start;
    char comm[16];
    uint64_t reserved[2];
};
EFAPROF_ASSERT_SIZE(struct efaprof_thread, 64);

// OBJECT, 3 slots: a libfabric object opened (what & 0x80 = 0) or closed (what | 0x80). Pointers are reused:
// a pointer means this object from t_end of its open to t_end of its close.
enum efaprof_object_what {
    EFAPROF_OBJ_FABRIC = 1,
    EFAPROF_OBJ_DOMAIN,
    EFAPROF_OBJ_EP,
    EFAPROF_OBJ_CQ,
    EFAPROF_OBJ_CNTR,
    EFAPROF_OBJ_AV,
    EFAPROF_OBJ_MR,
    EFAPROF_OBJ_SRX,
    EFAPROF_OBJ_STX,
    EFAPROF_OBJ_PEP,
    EFAPROF_OBJ_EQ,
    EFAPROF_OBJ_CLOSED = 0x80,
};
struct efaprof_object {
    struct efaprof_head h; // x: nest
    uint64_t fid;
    uint64_t parent; // fabric of a domain, domain of an endpoint …
    uint64_t name;   // NAME id of the provider's name (fabric, domain, ep), else 0
    uint64_t detail; // NAME id of the fabric's or domain's own name (netdev, NIC), else 0
    uint64_t caps;   // info caps; for CQ: format; for MR: length
    uint64_t mode;   // info mode; for CQ: size; for MR: access
    uint64_t msg_order;
    uint32_t ep_type; // enum fi_ep_type; for MR: iface
    uint32_t inject;  // inject size; for MR: registration flags (bit 0 = dmabuf)
    uint64_t max_msg;
    uint64_t extra; // ep: default tx op_flags; MR: key
};
EFAPROF_ASSERT_SIZE(struct efaprof_object, 96);

// BIND, 2 slots: an endpoint was bound to a CQ, counter, AV or EQ.
struct efaprof_bind {
    struct efaprof_head h; // `what`: enum efaprof_object_what of the bound object
    uint64_t fid, bound, flags;
    uint64_t reserved[3];
};
EFAPROF_ASSERT_SIZE(struct efaprof_bind, 64);

// AV, 2 slots: an address became an fi_addr.
struct efaprof_av {
    struct efaprof_head h; // `what`: 1 insert, 2 remove; x: bytes of addr kept
    uint64_t av;
    uint64_t fi_addr;
    uint8_t addr[32];
};
EFAPROF_ASSERT_SIZE(struct efaprof_av, 64);

// COUNTER, 1 slot: a sampled value.
struct efaprof_counter {
    struct efaprof_head h; // `what`: 1 monotone count, 2 gauge
    uint64_t name;
    int64_t value;
};
EFAPROF_ASSERT_SIZE(struct efaprof_counter, 32);

// CLOCK, 1 slot: t_end in ticks equals these readings, within dur ticks.
struct efaprof_clock_sample {
    struct efaprof_head h; // x: 0
    int64_t monotonic_ns;
    int64_t realtime_ns;
};
EFAPROF_ASSERT_SIZE(struct efaprof_clock_sample, 32);

// NOTE, 1 slot: something that the probe must say; name is its text.
struct efaprof_note {
    struct efaprof_head h; // `what`: 1 info, 2 degraded probe
    uint64_t name;
    uint64_t value;
};
EFAPROF_ASSERT_SIZE(struct efaprof_note, 32);

// Slots of the record that starts with this head; 0 = not a record.
// clang-format off
static inline uint32_t efaprof_slots(uint16_t kind, uint16_t x) {
    switch (EFAPROF_SHAPE_OF(kind)) {
    case EFAPROF_SHAPE_PAD: return kind == EFAPROF_PAD ? x : 0u;
    case EFAPROF_SHAPE_CQ: return x <= EFAPROF_CQ_MAX ? 1u + x : 0u;
    case EFAPROF_SHAPE_NAME: return x <= EFAPROF_NAME_MAX ? 1u + (x + 31u) / 32u : 0u;
    case EFAPROF_SHAPE_OBJECT: return 3u;
    case EFAPROF_SHAPE_OP:
    case EFAPROF_SHAPE_POST:
    case EFAPROF_SHAPE_WAIT:
    case EFAPROF_SHAPE_RANGE:
    case EFAPROF_SHAPE_DEVICE:
    case EFAPROF_SHAPE_THREAD:
    case EFAPROF_SHAPE_BIND:
    case EFAPROF_SHAPE_AV: return 2u;
    case EFAPROF_SHAPE_STAGE:
    case EFAPROF_SHAPE_TICK:
    case EFAPROF_SHAPE_MARK:
    case EFAPROF_SHAPE_RX:
    case EFAPROF_SHAPE_CNTR:
    case EFAPROF_SHAPE_SPAN:
    case EFAPROF_SHAPE_COUNTER:
    case EFAPROF_SHAPE_CLOCK:
    case EFAPROF_SHAPE_NOTE: return 1u;
    default: return 0u;
    }
}
// clang-format on

#ifdef __cplusplus
}
#endif
