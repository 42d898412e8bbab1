/* options_train.c - the rows of the option table that are about training. */
#include "cli/option_rows.h"

#undef PLACE
#define PLACE(id) (MF_OPT_##id - MF_OPT_TRAIN_FIRST)

static const mf_option table[MF_OPT_TRAIN_LAST - MF_OPT_TRAIN_FIRST + 1] = {
    ROW(DATA, "data", TRAIN, "PATH", NULL,
        "What to train on: a Megatron-LM .bin/.idx pair, named by its prefix, or any other file, "
        "read as text with a token for each byte. Several by weight: 0.7:PATH,0.3:PATH",
        TEXT),
    ROW(INIT, "init", TRAIN, "DIR", "from --seed",
        "Weights to begin with: a Hugging Face folder with safetensors and config.json (which then "
        "is the --model)",
        TEXT),
    ROW(SHUFFLE, "shuffle", TRAIN, "WORD", "on",
        "Whether samples come in a random order. off: sample j of a stream is tokens j*S to j*S+S",
        WORDS(" on off")),
    ROW(STEPS, "steps", TRAIN, "N", NULL,
        "Steps to train, counted from the start of the run even with --resume. 0 writes the "
        "weights and ends",
        INT(0, 1e12)),
    ROW(SEED, "seed", TRAIN, "N", "1", "Seed of the weights and of the order of samples",
        INT(0, 9e15)),
    ROW(LR, "lr", TRAIN, "X", "3e-4", "Learning rate after the warm-up", REAL(0, 1e3)),
    ROW(LR_MIN, "lr-min", TRAIN, "X", "a tenth of --lr", "Learning rate of the last step",
        REAL(0, 1e3)),
    ROW(LR_SCHEDULE, "lr-schedule", TRAIN, "WORD", "cosine",
        "How the rate goes on after --warmup: linear and cosine fall from --lr to --lr-min, wsd "
        "keeps --lr and falls over the last tenth of the steps, constant keeps --lr to the end and "
        "takes no --lr-min",
        WORDS(" constant linear cosine wsd")),
    ROW(WARMUP, "warmup", TRAIN, "N", "0", "Steps in which the learning rate rises from 0",
        INT(0, 1e12)),
    ROW(ADAM_BETA1, "adam-beta1", TRAIN, "X", "0.9", "AdamW's decay of the first moment",
        REAL(0, 0.999999)),
    ROW(ADAM_BETA2, "adam-beta2", TRAIN, "X", "0.95", "AdamW's decay of the second moment",
        REAL(0, 0.999999)),
    ROW(ADAM_EPS, "adam-eps", TRAIN, "X", "1e-8", "AdamW's epsilon", REAL(1e-30, 1)),
    ROW(WEIGHT_DECAY, "weight-decay", TRAIN, "X", "0.1", "AdamW's decoupled weight decay",
        REAL(0, 10)),
    ROW(DECAY, "decay", TRAIN, "WORD", "all",
        "Which weights decay. matrices leaves out norms and biases", WORDS(" all matrices")),
    ROW(CLIP, "clip", TRAIN, "X", "1", "Global norm to which gradients are clipped; 0: not at all",
        REAL(0, 1e9)),
    ROW(AUX_LOSS, "aux-loss", TRAIN, "WORD", "micro-batch if there is a coefficient",
        "Scope of the load-balancing loss", WORDS(" none micro-batch sequence global")),
    ROW(AUX_COEF, "aux-coef", TRAIN, "X", "the model's", "Coefficient of the load-balancing loss",
        REAL(0, 1e3)),
    ROW(BIAS_RATE, "bias-rate", TRAIN, "X", "0.001",
        "Step by which the routers' correction bias changes, in models that have one", REAL(0, 1)),
    ROW(Z_COEF, "z-coef", TRAIN, "X", "0",
        "Coefficient of the routers' z-loss: mean over tokens of the squared log-sum-exp of logits",
        REAL(0, 1e3)),
    ROW(FORCE_BALANCE, "force-balance", TRAIN, NULL, NULL,
        "For benchmarks: every expert gets as many tokens, whatever the scores", FLAG),
    ROW(FORCE_ROUTING, "force-routing", TRAIN, "balanced|zipf:S|FILE", NULL,
        "For benchmarks: route tokens as `simulate --routing` has it, whatever the scores", TEXT),
    ROW(DTYPE, "dtype", TRAIN, "WORD", "the plan's; bf16 on GPUs, fp32 on CPU ranks",
        "Arithmetic of the ops; master weights and moments stay as the layout says",
        WORDS(" fp32 bf16")),
    ROW(BACKEND, "backend", TRAIN, "WORD", "cuda where there is a GPU, else cpu",
        "What runs the ops", WORDS(" cpu cuda")),
    ROW(MAX_SKIPS, "max-skips", TRAIN, "N", "10",
        "How many steps in a row may leave out their update (loss or gradient norm not finite, or "
        "the loss a spike); one more ends the run",
        INT(0, 1e12)),
    ROW(SPIKE, "spike", TRAIN, "X", "10",
        "Leave out the update of a step whose loss is above X times the median of the last 32 "
        "steps and above the loss of guessing. 0: never",
        REAL(0, 1e9)),
    ROW(RERUN, "rerun", TRAIN, NULL, NULL,
        "Run a step whose loss or gradient norm is bad once more. If it comes out differently, the "
        "run ends with exit code 5 (with --on-failure restart it begins again); if too many stay "
        "bad, with 6 instead of 1. On GPUs steps then begin one by one, and are --deterministic",
        FLAG),
    ROW(HANG_AFTER, "hang-after", TRAIN, "SECONDS", "25",
        "Time after which a GPU on which nothing moves, or a rank that makes no progress (stopped, "
        "or stuck in one operation), is named and ends the run; 0: never",
        REAL(0, 1e6)),
    ROW(ON_FAILURE, "on-failure", TRAIN, "WORD", "stop",
        "What to do when a rank is lost (killed, hanging, its GPU failing). stop ends the run; "
        "restart begins again from the newest checkpoint of --out and, where that keeps failing, "
        "goes on by a new plan for fewer ranks",
        WORDS(" stop restart")),
    ROW(MAX_RESTARTS, "max-restarts", TRAIN, "N", "3",
        "Restarts in a row without a new checkpoint, before fewer ranks are tried or the run ends",
        INT(1, 1e9)),
    ROW(SAVE_EVERY, "save-every", TRAIN, "N", "0: at the end",
        "Steps between checkpoints. The last step is always saved", INT(0, 1e12)),
    ROW(SAVE_MINUTES, "save-minutes", TRAIN, "M", "0: by steps alone",
        "Minutes between checkpoints: the first step that ends so long after the last checkpoint "
        "is saved. At its end the run says which interval loses least time",
        REAL(0, 1e9)),
    ROW(SAVE_WAIT, "save-wait", TRAIN, NULL, NULL,
        "Make training wait while a checkpoint is written. Without it the state is copied to host "
        "memory (as much again) and written while training goes on",
        FLAG),
    ROW(KEEP, "keep", TRAIN, "K", "3", "How many of the newest checkpoints to keep; 0: all",
        INT(0, 1e6)),
    ROW(RESUME, "resume", TRAIN, NULL, NULL,
        "Go on from the newest checkpoint of --out, under any layout; begin anew when there is "
        "none",
        FLAG),
    ROW(RUN, "run", TRAIN, "DIR", NULL, "Folder of a training run (its --out)", TEXT),
    ROW(TOLERANCE, "tolerance", TRAIN, "SHARE", "10%",
        "Largest error of a predicted time that counts as right", SHARE(0, 100)),
};

const mf_option *mf_option_get_train(mf_option_id id) {
    return &table[id - MF_OPT_TRAIN_FIRST];
}
