/* checkpoint_export.c - a checkpoint's weights as a Hugging Face folder. */
#include "executor/checkpoint/checkpoint.h"

#include "core/base/json_write.h"
#include "executor/checkpoint/checkpoint_pieces.h"
#include "executor/files/files.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct listed {
    mf_model_tensor t;
    int64_t slices; /* slices of a tensor over all experts, the first of which is t; otherwise 0 */
    int shard;
} listed;

typedef struct export_run {
    mf_checkpoint *c;
    const char *folder;
    listed *list;
    size_t count, allocated;
    int shards;
    int64_t shard_B, in_shard_B, total_B, experts;
    bool failed;
} export_run;

static int64_t elements_of(const listed *x) {
    return x->t.rows * x->t.cols * (x->slices > 0 ? x->slices : 1);
}

static int list_tensor(const mf_model_tensor *t, void *user) {
    export_run *r = user;
    mf_checkpoint_slice s;
    listed own = {.t = *t};
    if (mf_checkpoint_slice_of(t, &s)) {
        if (s.expert > 0) {
            return 0; /* goes with the first */
        }
        own.slices = r->experts;
    }
    int64_t size_B = 4 * elements_of(&own);
    if (r->count == r->allocated) {
        size_t allocated = r->allocated > 0 ? 2 * r->allocated : 256;
        listed *more = realloc(r->list, allocated * sizeof *more);
        if (more == NULL) {
            r->failed = true;
            return 1;
        }
        r->list = more;
        r->allocated = allocated;
    }
    if (r->in_shard_B > 0 && r->in_shard_B + size_B > r->shard_B) {
        r->shards++;
        r->in_shard_B = 0;
    }
    r->in_shard_B += size_B;
    r->total_B += size_B;
    own.shard = r->shards;
    r->list[r->count++] = own;
    return 0;
}

static void shard_name(const export_run *r, int shard, char out[64]) {
    if (r->shards == 0) {
        snprintf(out, 64, "model.safetensors");
    } else {
        snprintf(out, 64, "model-%05d-of-%05d.safetensors", shard + 1, r->shards + 1);
    }
}

/* The hub's name of a listed tensor: a slice has the name of its whole tensor. */
static void hub_name(const listed *x, char out[sizeof x->t.name]) {
    snprintf(out, sizeof x->t.name, "%s", x->t.name);
    if (x->slices > 0) {
        out[strcspn(out, "[")] = '\0';
    }
}

/* Reads a listed tensor into `at` and describes it for the file. */
static mf_status gather(const export_run *r, const listed *x, float *at, mf_st_source *out,
                        mf_err *e) {
    const mf_model_tensor *t = &x->t;
    *out = (mf_st_source){.dtype = MF_ST_F32, .data = at};
    if (x->slices > 0) {
        out->shape[out->dims++] = x->slices;
    }
    out->shape[out->dims++] = t->rows;
    if (t->cols > 1) {
        out->shape[out->dims++] = t->cols;
    }
    mf_status status = x->slices > 0 ? MF_OK : mf_checkpoint_tensor(r->c, MF_EXEC_WEIGHT, t, at, e);
    for (int64_t i = 0; i < x->slices && status == MF_OK; i++) {
        mf_model_tensor slice = *t;
        hub_name(x, slice.name);
        size_t end = strlen(slice.name);
        snprintf(slice.name + end, sizeof slice.name - end, "[%lld]", (long long)i);
        status = mf_checkpoint_tensor(r->c, MF_EXEC_WEIGHT, &slice, at, e);
        at += t->rows * t->cols;
    }
    return status;
}

/* Writes tensors [first, end) of the list to one file. */
static mf_status write_shard(const export_run *r, size_t first, size_t end, mf_err *e) {
    char path[4096], name[64];
    size_t elements = 0, n = end - first;
    for (size_t i = first; i < end; i++) {
        elements += (size_t)elements_of(&r->list[i]);
    }
    mf_st_source *source = calloc(n, sizeof *source);
    char(*names)[sizeof r->list->t.name] = calloc(n, sizeof *names);
    float *values = malloc(elements * sizeof *values + 1), *at = values;
    mf_status status = MF_OK;
    if (source == NULL || values == NULL || names == NULL) {
        free(source);
        free(names);
        free(values);
        return mf_err_set(e, MF_NOMEM, "export: out of memory");
    }
    for (size_t i = 0; i < n && status == MF_OK; i++) {
        const listed *x = &r->list[first + i];
        status = gather(r, x, at, &source[i], e);
        hub_name(x, names[i]);
        source[i].name = names[i];
        at += elements_of(x);
    }
    shard_name(r, r->list[first].shard, name);
    if (status == MF_OK) {
        status = mf_path_join(path, sizeof path, r->folder, name, NULL)
                     ? mf_safetensors_write_checksums(path, source, n, e)
                     : mf_err_set(e, MF_IO, "%s: path too long", r->folder);
    }
    free(source);
    free(names);
    free(values);
    return status;
}

static mf_status write_index(const export_run *r, mf_err *e) {
    mf_json_writer w;
    char *text = NULL, path[4096], name[64];
    size_t length = 0;
    if (!mf_path_join(path, sizeof path, r->folder, "model.safetensors.index.json", NULL)) {
        return mf_err_set(e, MF_IO, "%s: path too long", r->folder);
    }
    mf_json_writer_init(&w);
    mf_json_write_object(&w, NULL, false);
    mf_json_write_object(&w, "metadata", false);
    mf_json_write_i64(&w, "total_size", r->total_B);
    mf_json_write_end(&w);
    mf_json_write_object(&w, "weight_map", false);
    for (size_t i = 0; i < r->count; i++) {
        char tensor[sizeof r->list->t.name];
        hub_name(&r->list[i], tensor);
        shard_name(r, r->list[i].shard, name);
        mf_json_write_string(&w, tensor, name);
    }
    mf_json_write_end(&w);
    mf_json_write_end(&w);
    mf_status status = mf_json_writer_finish(&w, &text, &length, e);
    status = status == MF_OK ? mf_file_write(path, text, length, e) : status;
    free(text);
    return status;
}

/* Puts the new folder into place, then removes the old one as a whole. */
static mf_status take_place(const char *temporary, const char *folder, mf_err *e) {
    char old[4096];
    int n = snprintf(old, sizeof old, "%s.old", folder);
    if (n < 0 || (size_t)n >= sizeof old) {
        return mf_err_set(e, MF_IO, "%s: path too long", folder);
    }
    mf_folder_remove(old);
    if ((rename(folder, old) != 0 && errno != ENOENT) || rename(temporary, folder) != 0) {
        return mf_err_set(e, MF_IO, "%s: %s", folder, strerror(errno));
    }
    mf_folder_remove(old);
    return MF_OK;
}

mf_status mf_checkpoint_export(mf_checkpoint *c, const mf_model *m, const char *folder,
                               int64_t shard_B, mf_err *e) {
    char temporary[4096];
    export_run r = {.c = c, .folder = temporary, .shard_B = shard_B, .experts = m->experts};
    int n = snprintf(temporary, sizeof temporary, "%s.tmp", folder);
    if (n < 0 || (size_t)n >= sizeof temporary) {
        return mf_err_set(e, MF_IO, "%s: path too long", folder);
    }
    mf_model_tensors(m, list_tensor, &r);
    mf_status status = r.failed ? mf_err_set(e, MF_NOMEM, "export: out of memory") : MF_OK;
    if (status == MF_OK) {
        mf_folder_remove(temporary);
        status = mf_folder_make(temporary, e);
    }
    for (size_t first = 0, end; first < r.count && status == MF_OK; first = end) {
        for (end = first; end < r.count && r.list[end].shard == r.list[first].shard;) {
            end++;
        }
        status = write_shard(&r, first, end, e);
    }
    status = status == MF_OK && r.shards > 0 ? write_index(&r, e) : status;
    status = status == MF_OK ? mf_folder_sync(temporary, e) : status;
    status = status == MF_OK ? take_place(temporary, folder, e) : status;
    free(r.list);
    return status;
}
