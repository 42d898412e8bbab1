/* options_train.c - the rows of the option table that are about training. */
#include "cli/options.h"

#define ROW(id, text, value, word, default_text, words_of_help)                                    \
    [MF_OPT_##id - MF_OPT_TRAIN_FIRST] = {.name = text,                                            \
                                          .group = MF_OPTS_TRAIN,                                  \
                                          value,                                                   \
                                          .argument = word,                                        \
                                          .fallback = default_text,                                \
                                          .help = words_of_help}
#define INT(least, most) .kind = MF_VALUE_INT, .low = (least), .high = (most)
#define REAL(least, most) .kind = MF_VALUE_REAL, .low = (least), .high = (most)
#define SHARE(least, most) .kind = MF_VALUE_SHARE, .low = (least), .high = (most)
#define TEXT .kind = MF_VALUE_TEXT
#define WORDS(list) .kind = MF_VALUE_TEXT, .words = (list)
#define FLAG .kind = MF_VALUE_FLAG

static const mf_option table[MF_OPT_TRAIN_LAST - MF_OPT_TRAIN_FIRST + 1] = {
    ROW(DATA, "data", TEXT, "PATH", NULL,
        "What to train on: a Megatron-LM .bin/.idx pair by its prefix, or any other file as text, "
        "a token a byte. Several by weight: 0.7:PATH,0.3:PATH"),
    ROW(INIT, "init", TEXT, "DIR", "from --seed",
        "Weights to begin with: a Hugging Face folder with config.json (which is then the --model) "
        "and safetensors"),
    ROW(SHUFFLE, "shuffle", WORDS(" on off"), "WORD", "on",
        "Order of the samples. off: sample j of a stream is tokens j*S to j*S+S"),
    ROW(STEPS, "steps", INT(0, 1e12), "N", NULL,
        "Steps to train; with --resume those before the checkpoint count. 0 writes the weights and "
        "ends"),
    ROW(SEED, "seed", INT(0, 9e15), "N", "1", "Seed of the weights and of the order of samples"),
    ROW(LR, "lr", REAL(0, 1e3), "X", "3e-4", "Learning rate after the warm-up"),
    ROW(LR_MIN, "lr-min", REAL(0, 1e3), "X", "a tenth of --lr", "Learning rate of the last step"),
    ROW(LR_SCHEDULE, "lr-schedule", WORDS(" constant linear cosine wsd"), "WORD", "cosine",
        "From --lr to --lr-min. wsd holds --lr and falls over the last tenth of the steps"),
    ROW(WARMUP, "warmup", INT(0, 1e12), "N", "0", "Steps in which the learning rate rises from 0"),
    ROW(ADAM_BETA1, "adam-beta1", REAL(0, 0.999999), "X", "0.9",
        "AdamW's decay of the first moment"),
    ROW(ADAM_BETA2, "adam-beta2", REAL(0, 0.999999), "X", "0.95",
        "AdamW's decay of the second moment"),
    ROW(ADAM_EPS, "adam-eps", REAL(1e-30, 1), "X", "1e-8", "AdamW's epsilon"),
    ROW(WEIGHT_DECAY, "weight-decay", REAL(0, 10), "X", "0.1", "AdamW's decoupled weight decay"),
    ROW(DECAY, "decay", WORDS(" all matrices"), "WORD", "all",
        "What decays. matrices leaves out norms and biases"),
    ROW(CLIP, "clip", REAL(0, 1e9), "X", "1", "Global norm that gradients are clipped to; 0: none"),
    ROW(AUX_LOSS, "aux-loss", WORDS(" none micro-batch sequence global"), "WORD",
        "micro-batch when it has a coefficient", "Scope of the load-balancing loss"),
    ROW(AUX_COEF, "aux-coef", REAL(0, 1e3), "X", "the model's", "Its coefficient"),
    ROW(BIAS_RATE, "bias-rate", REAL(0, 1), "X", "0.001",
        "Step of the routers' correction bias, in models that have one"),
    ROW(Z_COEF, "z-coef", REAL(0, 1e3), "X", "0",
        "Coefficient of the routers' z-loss: mean over tokens of the squared log-sum-exp of "
        "logits"),
    ROW(FORCE_BALANCE, "force-balance", FLAG, NULL, NULL,
        "For benchmarks: choices go round the experts, whatever the scores"),
    ROW(DTYPE, "dtype", WORDS(" fp32 bf16"), "WORD", "the plan's; bf16 on GPUs, fp32 on CPU ranks",
        "Arithmetic of the ops; master weights and moments stay as the layout says"),
    ROW(BACKEND, "backend", WORDS(" cpu cuda"), "WORD", "cuda where there is a GPU, else cpu",
        "What runs the ops"),
    ROW(DETERMINISTIC, "deterministic", FLAG, NULL, NULL,
        "On GPUs two runs agree to the bit, as on CPU ranks they always do: algorithms by rule "
        "instead of by measurement, kernels that add in one order"),
    ROW(MAX_SKIPS, "max-skips", INT(0, 1e12), "N", "10",
        "Steps in a row whose update may be left out because the loss or the gradient norm is not "
        "finite, or the loss a spike; one more ends the run"),
    ROW(SPIKE, "spike", REAL(0, 1e9), "X", "10",
        "A loss above X times the median of the last 32 steps, and above that of guessing, is a "
        "spike: the update is left out. 0: none is"),
    ROW(RERUN, "rerun", FLAG, NULL, NULL,
        "A bad step that comes out otherwise when it is run again ends the run with exit code 5 "
        "(with --on-failure restart it begins again); too many that stay bad, with 6 instead of "
        "1. On GPUs steps then begin one by one, and are --deterministic"),
    ROW(HANG_AFTER, "hang-after", REAL(0, 1e6), "SECONDS", "25",
        "A GPU on which nothing has moved for so long, or a rank that does not come on (stopped, "
        "or at one thing for ever), is named and ends the run; 0: never"),
    ROW(ON_FAILURE, "on-failure", WORDS(" stop restart"), "WORD", "stop",
        "When a rank is lost (killed, hanging, its GPU failing): end the run, or begin again from "
        "the newest checkpoint of --out, where that fails again and again by a new plan for fewer "
        "ranks"),
    ROW(MAX_RESTARTS, "max-restarts", INT(1, 1e9), "N", "3",
        "Restarts in a row that come to no new checkpoint, before fewer ranks are tried, or the "
        "run "
        "ends"),
    ROW(SAVE_EVERY, "save-every", INT(0, 1e12), "N", "0: at the end",
        "Steps between checkpoints. The last step is always saved"),
    ROW(SAVE_MINUTES, "save-minutes", REAL(0, 1e9), "M", "0: by steps alone",
        "Minutes between checkpoints: one is written behind the first step that ends so long after "
        "the last one. The end of a run says which time loses least"),
    ROW(SAVE_WAIT, "save-wait", FLAG, NULL, NULL,
        "Training waits while a checkpoint is written. Without it a save copies the state to "
        "memory "
        "of the host, as large again, and is written beside the steps"),
    ROW(KEEP, "keep", INT(0, 1e6), "K", "3", "Newest checkpoints that stay; 0: all"),
    ROW(RESUME, "resume", FLAG, NULL, NULL,
        "Go on from the newest checkpoint of --out, under any layout; begin when there is none"),
    ROW(RUN, "run", TEXT, "DIR", NULL, "Folder of a training run (its --out)"),
    ROW(TOLERANCE, "tolerance", SHARE(0, 100), "SHARE", "10%",
        "Largest error of a predicted time that passes"),
};

const mf_option *mf_option_get_train(mf_option_id id) {
    return &table[id - MF_OPT_TRAIN_FIRST];
}
