/* comm_memory.c - what NCCL takes of a GPU's memory for the groups of a layout.
 *
 * Measured on two H100s of one host with NCCL 2.32 (bench/gpu/bench_nccl_memory.c, whose series
 * are met within 2 MB a communicator): NCCL takes memory in pieces of 2 MiB, for each
 * channel of a communicator three, for each connection of a channel to a neighbour six (buffers of
 * the receiver five, of the sender one), and some once for all communicators. Groups of four ranks
 * were measured in runs of four H200s (docs/RUNS4.md). Beyond an NVLink domain nothing was:
 * channels there are NCCL's own choice on hosts of eight network cards, with the same bytes each.
 */
#include "core/memory/memory.h"
#include "core/schedule/cta_shares.h"
#include "core/schedule/schedule.h"

static const double mib = 1048576.0;
/* Taken one time only: with the first communicator, the first kernel (memory of its threads), and
 * the first message from rank to rank (an all-to-all is made of them). */
static const double first_B = 218.0 * 1048576.0, first_kernel_B = 182.0 * 1048576.0,
                    first_message_B = 62.0 * 1048576.0;

enum {
    CHANNEL_MIB = 6,        /* of a communicator */
    CONNECTION_MIB = 12,    /* of a channel, to one neighbour */
    COMMUNICATOR_MIB = 5,   /* beside its channels */
    SUM_CHANNELS = 24,      /* of collectives, inside a domain */
    MESSAGE_CHANNELS = 32,  /* of messages, to each rank of the domain */
    OUTSIDE_CHANNELS = 16,  /* of collectives, where a group leaves the domain */
    OUTSIDE_MESSAGES = 2,   /* channels to each rank of such a group */
    OUTSIDE_MESSAGE_MIB = 4 /* of a rank in another domain, through buffers of both */
};

/* The number of channels of a rank's communicators is limited so that the kernels of all of them
 * can be resident at the same time. */
static int64_t channels_at_most(const mf_cluster *c, const mf_layout *l) {
    const int64_t each = mf_cta_shares_of(l, c->gpu.sms).each;
    return each < MESSAGE_CHANNELS ? each : MESSAGE_CHANNELS;
}

/* Rings and trees of collectives. A channel sends to one neighbour and receives from another, or
 * from the same one where there are two ranks: that takes as much (bench/gpu/runs-h200-x4.csv). */
static double collectives_B(bool inside, int64_t most) {
    const int64_t channels = inside ? SUM_CHANNELS : OUTSIDE_CHANNELS;
    return mib * (CHANNEL_MIB * (double)most + COMMUNICATOR_MIB +
                  CONNECTION_MIB * (double)(channels < most ? channels : most));
}

/* Does a group stay inside an NVLink domain? */
static bool is_inside(const mf_cluster *c, mf_group_shape s) {
    return (s.size - 1) * s.stride < c->domain_gpus_used;
}

/* Buffers for messages to `peers` ranks of a group, counted from those of the same domain on. */
static double messages_B(const mf_cluster *c, mf_group_shape s, int64_t peers, int64_t most) {
    const int64_t in_domain = (c->domain_gpus_used + s.stride - 1) / s.stride - 1;
    if (is_inside(c, s)) {
        return mib * (double)(peers * CONNECTION_MIB * most);
    }
    const int64_t near = in_domain < peers ? in_domain : peers;
    return mib * (double)(near * OUTSIDE_MESSAGES * CONNECTION_MIB +
                          (peers - near) * OUTSIDE_MESSAGE_MIB);
}

/* Ranks that one of a group sends messages to; 0: it has collectives alone. A fused dispatcher
 * inside a domain writes into the memory of other GPUs instead. */
static int64_t peers_of(const mf_cluster *c, const mf_layout *l, mf_group_kind g) {
    const mf_group_shape s = mf_layout_group(l, g);
    if (g == MF_GROUP_EP) {
        return l->dispatcher == MF_DISPATCH_ALLTOALL ||
                       (l->dispatcher == MF_DISPATCH_FUSED && !is_inside(c, s))
                   ? s.size - 1
                   : 0;
    }
    if (g == MF_GROUP_CP && s.size > 1) {
        return l->cp_type == MF_CP_RING ? 1 : l->cp_type == MF_CP_ALLGATHER ? 0 : s.size - 1;
    }
    return 0;
}

/* The communicators of the pipeline's messages, of two ranks each. */
static double pipeline_B(const mf_cluster *c, const mf_layout *l) {
    const mf_group_shape pp = mf_layout_group(l, MF_GROUP_PP);
    const double pairs = 2.0 * 2.0 * mf_schedule_sending(l);
    const bool inside = pp.stride < c->domain_gpus_used;
    const double connection =
        inside ? CONNECTION_MIB * MF_MESSAGE_CTAS : (double)OUTSIDE_MESSAGE_MIB;
    return pairs * mib * (CHANNEL_MIB * MF_MESSAGE_CTAS + COMMUNICATOR_MIB + connection);
}

double mf_memory_comm_B(const mf_cluster *c, const mf_layout *l) {
    if (mf_cluster_is_cpu(c) || l->gpus == 1) {
        return 0.0;
    }
    const int64_t most = channels_at_most(c, l);
    double bytes = first_B + first_kernel_B;
    bool messages = l->pp > 1;
    for (int g = 0; g < MF_GROUP_COUNT; g++) {
        const mf_group_kind kind = (mf_group_kind)g;
        const mf_group_shape s = mf_layout_group(l, kind);
        const int64_t peers = peers_of(c, l, kind);
        const bool own = s.size > 1 && mf_layout_group_shared(l, kind) == kind;
        bytes += own ? collectives_B(is_inside(c, s), most) : 0.0;
        bytes += peers > 0 ? messages_B(c, s, peers, most) : 0.0;
        messages = messages || peers > 0;
    }
    bytes += l->pp > 1 ? pipeline_B(c, l) : 0.0;
    return bytes + (messages ? first_message_B : 0.0);
}

/* A rank sends what it reduces of a table to the ranks of each other stage that reduce the same
 * rows. Stages divide their gradients into shards of different sizes, so these are two as a rule:
 * reckoned, not measured (what was measured is the sum of whole gradients, docs/RUNS2_MODELS.md).
 */
enum { SHARDS_OF_A_COPY = 2 };

double mf_memory_table_comm_B(const mf_cluster *c, const mf_layout *l, int64_t copies) {
    if (mf_cluster_is_cpu(c) || copies <= 1) {
        return 0.0;
    }
    const int64_t most = channels_at_most(c, l), ranks = l->dp * l->cp;
    const int64_t stage = l->gpus / l->pp; /* ranks of one */
    if (l->zero == 0 || ranks == 1) {      /* whole gradients: copies alone, of every rank */
        return collectives_B((l->pp - 1) * stage < c->domain_gpus_used, most);
    }
    const bool inside = l->gpus <= c->domain_gpus_used;
    const int64_t peers = (copies - 1) * (ranks < SHARDS_OF_A_COPY ? ranks : SHARDS_OF_A_COPY);
    return collectives_B(inside, most) +
           mib * (double)peers * (double)(inside ? CONNECTION_MIB * most : OUTSIDE_MESSAGE_MIB);
}

double mf_memory_sums_comm_B(const mf_cluster *c, const mf_layout *l, const mf_step_end *end) {
    double bytes = 0.0;
    if (mf_cluster_is_cpu(c) || l->gpus == 1) {
        return 0.0;
    }
    if (end->replicas.of[MF_SUM_KV] > 0 && end->kv_copies > 1) {
        const mf_group_shape kv = {end->kv_copies, 1};
        bytes += collectives_B(is_inside(c, kv), channels_at_most(c, l));
    }
    for (int t = 0; t < MF_TABLES; t++) {
        const bool here = end->table_elements[t] > 0.0;
        bytes += here ? mf_memory_table_comm_B(c, l, end->table_copies[t]) : 0.0;
    }
    return bytes;
}
