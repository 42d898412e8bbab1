/* Fuzz target: any bytes as a checkpoint's manifest, as they are and with the checksum that they
 * should have, and as the name of a piece. */
#include "tests/fuzz/driver.h"

#include "core/base/crc32c.h"
#include "executor/checkpoint/checkpoint_manifest.h"
#include "executor/checkpoint/checkpoint_pieces.h"

static void parse(const char *text, size_t length) {
    mf_checkpoint_manifest m;
    mf_err e;
    mf_err_clear(&e);
    mf_status status = mf_checkpoint_manifest_parse("fuzz", text, length, &m, &e);
    if (status == MF_OK
            ? m.files < 1 || m.file == NULL || m.progress.step < 0 || m.progress.samples < 0 ||
                  m.progress.streams > MF_CHECKPOINT_MAX_STREAMS
            : (status != MF_DAMAGED && status != MF_INPUT && status != MF_NOMEM) ||
                  strncmp(e.text, "fuzz:", 5) != 0 || m.file != NULL) {
        abort();
    }
    mf_checkpoint_manifest_clear(&m);
}

static void parse_name(const uint8_t *data, size_t size) {
    char text[512], again[MF_CHECKPOINT_NAME_MAX];
    size_t n = size < sizeof text - 1 ? size : sizeof text - 1;
    mf_checkpoint_piece p, q;
    uint32_t crc, same;
    memcpy(text, data, n);
    text[n] = '\0';
    if (!mf_checkpoint_parse_name(text, &p, &crc)) {
        return;
    }
    mf_checkpoint_name(&p, crc, again); /* what was read is written so that it reads the same */
    if (!mf_checkpoint_parse_name(again, &q, &same) || same != crc || q.kind != p.kind ||
        q.row != p.row || q.col != p.col || strcmp(q.tensor, p.tensor) != 0) {
        abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    parse((const char *)data, size);
    parse_name(data, size);
    /* Past the checksum: the end of a manifest with the right one, behind any body. */
    static char text[MF_FUZZ_MAX_BYTES + 64];
    size_t n = size < MF_FUZZ_MAX_BYTES ? size : MF_FUZZ_MAX_BYTES;
    memcpy(text, data, n);
    n += (size_t)snprintf(text + n, 64, ",\n  \"crc32c\": \"%08x\"\n}\n", mf_crc32c(0, text, n));
    parse(text, n);
    return 0;
}
