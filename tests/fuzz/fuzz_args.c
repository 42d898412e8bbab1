/* Fuzz target: lines of bytes as a command line (one argument a line). Whatever is accepted must
 * lie in the range that the table promises, and a layout that resolves must keep its products. */
#define MF_FUZZ_WORDS                                                                              \
    "--", "-h", "=", "\n", "--tp\n", "--ep=", "--reserve=5%", "--schedule\n", "zb-v", "1e9", "-1", \
        "99999999999999999999", "0x10", "%", "nan", ",", "dp,pp", "none", "\xff", "--set\n", "a=b"
#include "tests/fuzz/driver.h"

#include "cli/options.h"

static void require(int truth) {
    if (!truth) {
        abort();
    }
}

static void check_values(const mf_args *a) {
    for (int i = 0; i < MF_OPT_COUNT; i++) {
        const mf_option *o = mf_option_get((mf_option_id)i);
        const mf_value *v = &a->value[i];
        if (!v->given) {
            continue;
        }
        if (o->kind == MF_VALUE_INT) {
            require((double)v->i >= o->low && (double)v->i <= o->high);
        }
        if (o->kind == MF_VALUE_REAL || o->kind == MF_VALUE_SHARE || o->kind == MF_VALUE_COUNT ||
            o->kind == MF_VALUE_TIME) {
            require(v->f >= o->low && v->f <= o->high);
        }
        if (o->kind == MF_VALUE_TEXT) {
            require(v->text[0] != '\0');
        }
    }
}

static void check_layout(const mf_args *a) {
    static const mf_model model = {.name = "fuzz",
                                   .layers = 8,
                                   .heads = 8,
                                   .kv_heads = 4,
                                   .ffn = 64,
                                   .experts = 16,
                                   .top_k = 2,
                                   .moe_ffn = 32,
                                   .hidden = 64,
                                   .head_dim = 8,
                                   .vocab = 128};
    mf_layout l;
    mf_err e;
    mf_layout_init(&l);
    mf_err_clear(&e);
    require(mf_args_apply(a, &l, &e) == MF_OK); /* values were tried while parsing */
    if (mf_layout_resolve(&l, &model, &e) != MF_OK) {
        require(e.status == MF_LAYOUT && e.text[0] != '\0');
        return;
    }
    require(l.tp * l.cp * l.dp * l.pp == l.gpus && l.etp * l.ep * l.edp * l.pp == l.gpus);
    require(l.micro_batches * l.mbs * l.dp == l.gbs);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static mf_args args;
    mf_option_id all[MF_OPT_COUNT + 1];
    const char *argv[256];
    int argc = 0;
    mf_err e;
    char *text = malloc(size + 1);
    if (text == NULL) {
        return 0;
    }
    memcpy(text, data, size);
    text[size] = '\0';
    for (char *line = text; argc < 256 && line <= text + size;) {
        size_t length = strcspn(line, "\n");
        argv[argc++] = line;
        line[length] = '\0';
        line += length + 1;
    }
    for (int i = 0; i <= MF_OPT_COUNT; i++) {
        all[i] = (mf_option_id)i;
    }
    mf_err_clear(&e);
    if (mf_args_parse(argc, argv, all, 4, &args, &e) == MF_OK) {
        check_values(&args);
        check_layout(&args);
        (void)mf_args_pinned(&args);
    } else {
        require(e.status == MF_USAGE && e.text[0] != '\0');
    }
    free(text);
    return 0;
}
