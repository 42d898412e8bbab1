/* data_checksums.c - makes the checksums of a run's streams with all ranks, or reads them. */
#include "executor/data/data_checksums.h"

#include "executor/comm/comm_status.h"
#include "executor/files/files.h"

#include <stdio.h>

#define PATH_B 4096

/* Each rank computes its own blocks and leaves the others 0, so that the sum holds all of them. */
static mf_status take_together(mf_block_checksums *s, const mf_data *d, mf_comm *c, mf_err *e) {
    mf_block_checksums_take(s, mf_data_bytes(d), mf_comm_rank(c),
                            mf_comm_group_size(c, MF_GROUP_WORLD));
    return mf_comm_all_reduce(c, MF_GROUP_WORLD, MF_COMM_I32, MF_COMM_SUM, s->crc, s->blocks, e);
}

static mf_status make(const mf_data *d, mf_comm *c, const char *path, mf_block_checksums **out,
                      mf_err *e) {
    *out = mf_block_checksums_create(mf_data_size_B(d));
    mf_status s = *out != NULL ? MF_OK : mf_err_set(e, MF_NOMEM, "%s: out of memory", path);
    s = mf_comm_agree(c, s, e);
    s = s == MF_OK && *out != NULL ? take_together(*out, d, c, e) : s;
    if (s == MF_OK && mf_comm_rank(c) == 0) {
        s = mf_block_checksums_write(path, *out, e);
    }
    return s;
}

mf_status mf_data_mix_checksum(mf_data_mix *m, mf_comm *c, const char *folder, bool resumes,
                               mf_err *e) {
    mf_status s = mf_comm_agree(c, mf_comm_rank(c) == 0 ? mf_folder_make(folder, e) : MF_OK, e);
    for (int i = 0; i < mf_data_mix_streams(m) && s == MF_OK; i++) {
        char path[PATH_B], name[40];
        mf_block_checksums *sums = NULL;
        snprintf(name, sizeof name, "stream-%d.crc32c", i);
        if (!mf_path_join(path, sizeof path, folder, name, NULL)) {
            return mf_err_set(e, MF_IO, "%s: path too long", folder);
        }
        s = mf_comm_agree(c, resumes ? mf_block_checksums_read(path, &sums, e) : MF_OK, e);
        double there = sums != NULL ? 1.0 : 0.0; /* the same on all ranks: they read one folder */
        s = s == MF_OK
                ? mf_comm_all_reduce(c, MF_GROUP_WORLD, MF_COMM_F64, MF_COMM_MAX, &there, 1, e)
                : s;
        if (s == MF_OK && there < 0.5) {
            s = make(mf_data_mix_stream(m, i), c, path, &sums, e);
        }
        if (s == MF_OK && (s = mf_data_mix_keep(m, i, sums, e)) == MF_OK) {
            sums = NULL; /* the stream's */
        }
        s = mf_comm_agree(c, s, e);
        mf_block_checksums_destroy(sums);
    }
    return s;
}
