/* checkpoint_manifest.h - private to checkpoints: the file that makes a folder a checkpoint. */
#ifndef MF_EXECUTOR_CHECKPOINT_MANIFEST_H
#define MF_EXECUTOR_CHECKPOINT_MANIFEST_H

#include "executor/checkpoint/checkpoint.h"

typedef struct mf_checkpoint_file {
    int64_t size_B;
    int64_t tensors;
    uint32_t header_crc; /* CRC-32C of the length and header of the safetensors file */
} mf_checkpoint_file;

typedef struct mf_checkpoint_manifest {
    mf_train_progress progress;
    char model[20]; /* fingerprint */
    int64_t files;  /* rank-00000.safetensors, ... */
    mf_checkpoint_file *file;
} mf_checkpoint_manifest;

void mf_checkpoint_manifest_clear(mf_checkpoint_manifest *m);
void mf_checkpoint_file_name(int64_t rank, char out[40]);

/* Writes FOLDER/manifest.json. Its last member is the CRC-32C of everything before it. */
mf_status mf_checkpoint_manifest_write(const char *folder, const mf_checkpoint_manifest *m,
                                       mf_err *e);
/* The caller clears *out. Errors: MF_DAMAGED with file and offset or line:col. */
mf_status mf_checkpoint_manifest_read(const char *folder, mf_checkpoint_manifest *out, mf_err *e);
/* The same from memory, for fuzzing; error texts call the file `name`. */
mf_status mf_checkpoint_manifest_parse(const char *name, const char *text, size_t length,
                                       mf_checkpoint_manifest *out, mf_err *e);

/* A folder named step-XXXXXXXX holds the checkpoint of that step. Errors: MF_DAMAGED. */
mf_status mf_checkpoint_check_name(const char *path, int64_t step, mf_err *e);

/* Reads size and header checksum of a safetensors file on disk. */
mf_status mf_checkpoint_file_look(const char *path, mf_checkpoint_file *out, mf_err *e);

#endif
