/* comm_mpi.c - communicators over MPI: its processes, groups and memory shared on a host. */
#include "executor/comm/comm_ops.h"

#ifdef MF_HAVE_MPI

#include "executor/comm/comm_mpi.h"
#include "executor/comm/comm_status.h"
#include "executor/comm/comm_wait.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

mf_status mf_mpi_failed(int result, const char *call, mf_err *e) {
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    MPI_Error_string(result, text, &length);
    return mf_err_set(e, MF_LIBRARY, "MPI: %.80s: %s", call, text);
}

/* --- processes ----------------------------------------------------------------------------------
 */

static bool launched(void) {
    static const char *const marks[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK",
                                        "SLURM_STEP_ID"};
    for (size_t i = 0; i < sizeof marks / sizeof marks[0]; i++) {
        if (getenv(marks[i]) != NULL) {
            return true;
        }
    }
    return false;
}

static bool running(void) {
    int started = 0, ended = 0;
    MPI_Initialized(&started);
    MPI_Finalized(&ended);
    return started && !ended;
}

/* Does this host run more ranks than it has cores? */
static mf_status count_neighbours(bool *crowded, mf_err *e) {
    MPI_Comm host;
    int here = 1;
    MF_MPI_TRY(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host),
               e);
    MF_MPI_TRY(MPI_Comm_size(host, &here), e);
    MF_MPI_TRY(MPI_Comm_free(&host), e);
    *crowded = here > sysconf(_SC_NPROCESSORS_ONLN);
    return MF_OK;
}

static mf_status start(mf_err *e) {
    bool first = !running(), crowded = false;
    if (first) {
        MF_MPI_TRY(MPI_Init(NULL, NULL), e);
    }
    MF_MPI_TRY(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), e);
    mf_status status = first ? count_neighbours(&crowded, e) : MF_OK;
    if (status == MF_OK && first) {
        mf_comm_wait_asleep(crowded);
    }
    return status;
}

static mf_status place(int64_t *rank, int64_t *size, mf_err *e) {
    int r = 0, n = 1;
    MF_MPI_TRY(MPI_Comm_rank(MPI_COMM_WORLD, &r), e);
    MF_MPI_TRY(MPI_Comm_size(MPI_COMM_WORLD, &n), e);
    *rank = r;
    *size = n;
    return MF_OK;
}

static void stop(void) {
    if (running()) {
        MPI_Finalize();
    }
}

static void end_all(int code) {
    if (running()) {
        MPI_Abort(MPI_COMM_WORLD, code);
    }
}

/* --- communicators ------------------------------------------------------------------------------
 */

void mf_mpi_destroy(mf_comm *c) {
    mf_mpi_state *s = c->state;
    if (s == NULL) {
        return;
    }
    if (running()) {
        for (int g = 0; g < MF_COMM_GROUPS; g++) {
            if (s->group[g] != MPI_COMM_NULL) {
                MPI_Comm_free(&s->group[g]);
            }
        }
        if (s->pipeline != MPI_COMM_NULL) {
            MPI_Comm_free(&s->pipeline);
        }
    }
    for (int i = 0; i < MF_COMM_SLOTS; i++) {
        free(s->send[i].request);
    }
    free(s->exchange);
    free(s->own);
    free(s);
}

static mf_status split(mf_comm *c, int g, int color, mf_err *e) {
    mf_mpi_state *s = c->state;
    int size = 1, member = 0;
    MF_MPI_TRY(MPI_Comm_split(MPI_COMM_WORLD, color, (int)c->rank, &s->group[g]), e);
    if (s->group[g] != MPI_COMM_NULL) {
        MF_MPI_TRY(MPI_Comm_set_errhandler(s->group[g], MPI_ERRORS_RETURN), e);
        MF_MPI_TRY(MPI_Comm_size(s->group[g], &size), e);
        MF_MPI_TRY(MPI_Comm_rank(s->group[g], &member), e);
    }
    c->size[g] = size;
    c->member[g] = member;
    return MF_OK;
}

mf_status mf_mpi_add(mf_comm *c, int g, int64_t color, mf_err *e) {
    return split(c, g, color < 0 ? MPI_UNDEFINED : (int)color, e);
}

static mf_status connect_groups(mf_comm *c, mf_err *e) {
    mf_mpi_state *s = c->state;
    MF_MPI_TRY(MPI_Comm_dup(MPI_COMM_WORLD, &s->pipeline), e);
    for (int g = 0; g < MF_GROUP_COUNT; g++) {
        int64_t size = c->size[g], member = c->member[g];
        if (size == 1) {
            continue;
        }
        int64_t first = mf_layout_group_first(&c->layout, (mf_group_kind)g, c->rank);
        mf_status status = split(c, g, (int)first, e);
        if (status == MF_OK && (c->size[g] != size || c->member[g] != member)) {
            return mf_err_set(e, MF_LIBRARY, "MPI: group %s has %lld members, not %lld",
                              mf_group_text((mf_group_kind)g), (long long)c->size[g],
                              (long long)size);
        }
        status = status == MF_OK ? mf_comm_try_group(c, g, "MPI", e) : status;
        if (status != MF_OK) {
            return status;
        }
    }
    return MF_OK;
}

/* --- memory of a host ---------------------------------------------------------------------------
 */

static void release(mf_comm_shared *shared) {
    MPI_Win *window = shared->own;
    MPI_Win_free(window);
    free(window);
}

static mf_status map_window(mf_comm *c, size_t head_B, size_t each_B, mf_comm_shared *out,
                            mf_err *e) {
    MPI_Comm host;
    MPI_Aint size_B = 0;
    int unit;
    void *own = NULL;
    MF_MPI_TRY(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, (int)c->rank,
                                   MPI_INFO_NULL, &host),
               e);
    MF_MPI_TRY(MPI_Comm_rank(host, &out->me), e);
    MF_MPI_TRY(MPI_Comm_size(host, &out->ranks), e);
    size_t bytes = out->me == 0 ? head_B + (size_t)out->ranks * each_B : 0;
    MF_MPI_TRY(
        MPI_Win_allocate_shared((MPI_Aint)bytes, 1, MPI_INFO_NULL, host, (void *)&own, out->own),
        e);
    MF_MPI_TRY(MPI_Win_shared_query(*(MPI_Win *)out->own, 0, &size_B, &unit, (void *)&out->data),
               e);
    if (out->me == 0) {
        memset(out->data, 0, bytes);
    }
    MF_MPI_TRY(MPI_Barrier(host), e);
    MF_MPI_TRY(MPI_Comm_free(&host), e);
    return MF_OK;
}

mf_status mf_mpi_map_shared(mf_comm *c, size_t head_B, size_t each_B, mf_comm_shared *out,
                            mf_err *e) {
    *out = (mf_comm_shared){.own = malloc(sizeof(MPI_Win)), .release = release};
    mf_status status = mf_comm_agree(
        c, out->own != NULL ? MF_OK : mf_err_set(e, MF_NOMEM, "ranks: out of memory"), e);
    if (status != MF_OK || out->own == NULL) {
        free(out->own);
        return status;
    }
    status = map_window(c, head_B, each_B, out, e);
    if (status != MF_OK) {
        free(out->own);
    }
    return status;
}

static mf_status open_mpi(mf_comm *c, mf_err *e) {
    mf_mpi_state *s = calloc(1, sizeof *s);
    c->ops = &mf_mpi_ops;
    c->state = s;
    if (s == NULL) {
        return mf_err_set(e, MF_NOMEM, "communicators: out of memory");
    }
    s->piece = INT_MAX;
    s->pipeline = MPI_COMM_NULL;
    for (int g = 0; g < MF_COMM_GROUPS; g++) {
        s->group[g] = MPI_COMM_NULL;
    }
    s->exchange = malloc(2 * (size_t)c->layout.gpus * sizeof(MPI_Request));
    bool allocated = s->exchange != NULL;
    for (int i = 0; i < MF_COMM_SLOTS; i++) { /* for one piece: a step allocates nothing */
        s->send[i].request = malloc(sizeof(MPI_Request));
        s->send[i].allocated = 1;
        allocated = allocated && s->send[i].request != NULL;
    }
    if (!allocated) {
        return mf_err_set(e, MF_NOMEM, "communicators: out of memory");
    }
    return connect_groups(c, e);
}

const mf_comm_transport mf_comm_mpi = {
    .launched = launched,
    .running = running,
    .start = start,
    .place = place,
    .stop = stop,
    .abort = end_all,
    .open = open_mpi,
};

#endif
