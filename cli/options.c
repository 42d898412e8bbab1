/* options.c - the table of options. Adding one is an id in options.h and a row here. */
#include "cli/option_rows.h"
#include "cli/option_set.h"

#include "job/load/unsaid.h"
#include "planner/space/space.h"

#include <string.h>

/* --- the table -------------------------------------------------------------------------------- */

#define X(name, text) " " text
#define SCHEDULE_WORD(name, text, ...) " " text
#define SCHEDULE_WORDS MF_SCHEDULE_MAP(SCHEDULE_WORD)
#define DISPATCHER_WORDS MF_DISPATCHER_MAP(X)
#define CP_WORDS MF_CP_TYPE_MAP(X)
#define PRECISION_WORDS MF_PRECISION_MAP(X)
#define GRAPH_WORDS MF_GRAPH_MAP(X)
static const char schedule_words[] = SCHEDULE_WORDS;
static const char dispatcher_words[] = DISPATCHER_WORDS;
static const char cp_words[] = CP_WORDS;
static const char precision_words[] = PRECISION_WORDS;
static const char graph_words[] = GRAPH_WORDS;
#undef X
#define X(name, text, bit) " " text
static const char recompute_words[] = " none selective full" MF_RECOMPUTE_MAP(X);
static const char offload_words[] = " none" MF_OFFLOAD_MAP(X);
static const char overlap_words[] = " none" MF_OVERLAP_MAP(X);
static const char trait_words[] = " none" MF_TRAIT_MAP(X);
#undef X

static const mf_option table[MF_OPT_COUNT] = {
    ROW(MODEL, "model", JOB, "NAME|FILE", NULL,
        "Model to train: a shipped name (see `moefold models`), or a path to a Hugging Face "
        "config.json or to the folder that holds one",
        TEXT),
    ROW(SET, "set", JOB, "KEY=VALUE", NULL,
        "Override one key of the model's config.json, such as num_hidden_layers=8, or a value "
        "inside one of its objects, such as rope_parameters.rope_theta=1e6. May be given many "
        "times",
        LIST),
    ROW(STRICT, "strict", JOB, NULL, NULL,
        "Refuse a model whose config.json holds something that moefold does not read, such as a "
        "vision tower. Without it a line on standard error names what is left out",
        FLAG),
    ROW(CLUSTER, "cluster", JOB, "NAME|FILE", NULL,
        "Cluster to run on: a shipped name (see `moefold clusters`) or a cluster file", TEXT),
    ROW(GPUS, "gpus", JOB, "N", NULL,
        "GPUs in the job. DP and EDP follow from this number and the degrees", SIZE(1, GIB28),
        SETS(gpus)),
    ROW(GLOBAL_BATCH, "global-batch", JOB, "N", NULL,
        "Samples per step, over all ranks; 4M is a batch of 4 x 1,048,576 tokens, in samples of "
        "--seq tokens",
        SIZE(1, GIB28), SETS(gbs)),
    ROW(SEQ, "seq", JOB, "N", NULL, "Tokens per sample, such as 4096 or 4k", SIZE(1, GIB28),
        SETS(seq)),
    ROW(SOFTWARE, "software", JOB, "NAME|FILE",
        "moefold; the newest megatron with --runs-on megatron or bridge; import, tune: what the "
        "job says, else the newest megatron",
        "Software profile: how efficient the program is that trains. One of ideal, moefold, "
        "megatron-eager, pytorch-fsdp, or megatron-YY.MM, which takes the newest known release up "
        "to that month; or a file",
        TEXT),
    ROW(STORE, "store", JOB, "FILE", "the shipped measurements; profile has none",
        "Profile store: the measured times that prices are computed from", TEXT),
    ROW(NO_CORRECTIONS, "no-corrections", JOB, NULL, NULL,
        "Leave out what compare --log --correct has kept for this software and cluster", FLAG),
    ROW(PLAN, "plan", JOB, "FILE", NULL,
        "Take model, cluster and layout from this plan file. --model, --cluster, --software and "
        "--store may be given beside it: they say where to find the same model, or what else to "
        "try the plan on. With simulate and explain, layout options change the plan's layout",
        TEXT),

    ROW(TP, "tp", DEGREES, "N", "1; profile: the usual ones",
        "Tensor parallelism of attention and dense layers, with sequence parallelism",
        INT(1, GIB28), SETS(tp), PINS(TP)),
    ROW(CP, "cp", DEGREES, "N", "1; profile: the usual ones",
        "Context parallelism: ranks that share the tokens of a sample", INT(1, GIB28), SETS(cp),
        PINS(CP)),
    ROW(PP, "pp", DEGREES, "N", "1", "Pipeline stages", INT(1, GIB28), SETS(pp), PINS(PP)),
    ROW(VPP, "vpp", DEGREES, "N", "1", "Virtual stages, or chunks, per pipeline stage",
        INT(1, GIB28), SETS(vpp), PINS(VPP)),
    ROW(EP, "ep", DEGREES, "N", "1; profile: the usual ones",
        "Expert parallelism: ranks that share the experts of a layer", INT(1, GIB28), SETS(ep),
        PINS(EP)),
    ROW(ETP, "etp", DEGREES, "N", "1; profile: the usual ones",
        "Tensor parallelism inside an expert, independent of --tp", INT(1, GIB28), SETS(etp),
        PINS(ETP)),
    ROW(MICRO_BATCH, "micro-batch", DEGREES, "N", "1; profile: the usual ones",
        "Samples per data-parallel rank and pass", INT(1, GIB28), SETS(mbs), PINS(MICRO_BATCH)),

    ROW(ZERO, "zero", CHOICES, "0..3", "1",
        "ZeRO level of dense parameters: 1 shards optimizer states, 2 also gradients, 3 also "
        "weights",
        INT(0, 3), SETS(zero), PINS(ZERO)),
    ROW(EXPERT_ZERO, "expert-zero", CHOICES, "0..3", "1",
        "The same for the parameters of routed experts", INT(0, 3), SETS(expert_zero),
        PINS(EXPERT_ZERO)),
    ROW(SCHEDULE, "schedule", CHOICES, "WORD", "interleaved when VPP > 1, else 1f1b",
        "Pipeline schedule", WORDS(schedule_words), SETS(schedule), PINS(SCHEDULE)),
    ROW(DISPATCHER, "dispatcher", CHOICES, "WORD", "fused", "How tokens travel to their experts",
        WORDS(dispatcher_words), SETS(dispatcher), PINS(DISPATCHER)),
    ROW(CP_TYPE, "cp-type", CHOICES, "WORD", "ring",
        "How attention sees the other context ranks' keys and values", WORDS(cp_words),
        SETS(cp_type), PINS(CP_TYPE)),
    ROW(OVERLAP, "overlap", CHOICES, "LIST", "dp,pp",
        "Communication that runs beside compute. cp splits the all-gather and all-to-all of "
        "--cp-type by KV heads, into up to 4 pieces (a ring runs beside compute in any case)",
        WORDS(overlap_words), SETS(overlap)),
    ROW(RECOMPUTE, "recompute", CHOICES, "LIST", "none",
        "Modules whose activations are dropped in the forward pass and computed again in the "
        "backward pass. selective means core_attn, full means layer",
        WORDS(recompute_words), SETS(recompute), PINS(RECOMPUTE)),
    ROW(OFFLOAD, "offload", CHOICES, "LIST", "none",
        "Saved activations that are kept in host memory until the backward pass",
        WORDS(offload_words), SETS(offload), PINS(OFFLOAD)),
    ROW(OFFLOAD_SHARE, "offload-share", CHOICES, "SHARE", "100%",
        "Share of the layers that offload what --offload names", SHARE(0, 1), SETS(offload_share)),
    ROW(OFFLOAD_OPTIMIZER, "offload-optimizer", CHOICES, "SHARE", "0",
        "Share of the optimizer states that is kept in host memory, such as 0.5 or 50%",
        SHARE(0, 1), SETS(offload_optimizer)),
    ROW(MOMENTS, "moments", CHOICES, "WORD", "fp32", "Type of AdamW's two moments",
        WORDS(" fp32 bf16"), SETS(moments)),
    ROW(GRAD_DTYPE, "grad-dtype", CHOICES, "WORD", "fp32",
        "Type in which gradients accumulate and are reduced", WORDS(" fp32 bf16"),
        SETS(grad_dtype)),
    ROW(PRECISION, "precision", CHOICES, "WORD", "bf16", "Precision recipe of the matrix products",
        WORDS(precision_words), SETS(precision), PINS(PRECISION)),
    ROW(FP8_ATTENTION, "fp8-attention", CHOICES, NULL, NULL, "Core attention in FP8 as well", FLAG,
        SETS(fp8_attention)),
    ROW(FP8_PRIMARY_WEIGHTS, "fp8-primary-weights", CHOICES, NULL, NULL,
        "Keep no BF16 copy of the weights: ranks gather the quantised ones", FLAG,
        SETS(fp8_primary_weights)),
    ROW(CUDA_GRAPH, "cuda-graph", CHOICES, "WORD", "none",
        "Launch kernels from CUDA graphs. partial captures what does not change inside a layer, "
        "step captures the whole step",
        WORDS(graph_words), SETS(graph)),
    ROW(TOKEN_HEADROOM, "token-headroom", CHOICES, "FACTOR",
        "1.25; CPU ranks: --ep, the worst case",
        "Routed rows that a rank has memory for, over the number under balanced routing",
        REAL(1, 1e6), SETS(token_headroom)),
    ROW(RESERVE, "reserve", CHOICES, "SHARE", "5%",
        "Share of the GPU's memory that no layout may use, such as 0.05 or 5%", SHARE(0, 0.99),
        SETS(reserve)),
    ROW(CAPACITY_FACTOR, "capacity-factor", CHOICES, "X", "0: dropless",
        "Limit every expert to ceil(X * top_k * S / experts) tokens of a sample of S tokens; those "
        "of highest probability stay",
        REAL(0, 1e3), SETS(capacity_factor)),
    ROW(PAD_TO_CAPACITY, "pad-to-capacity", CHOICES, NULL, NULL,
        "Let every expert work on as many rows as its capacity allows. Rows without a token are "
        "zero, and the host need not wait for the counts",
        FLAG, SETS(pad_to_capacity)),
    ROW(DETERMINISTIC, "deterministic", CHOICES, NULL, NULL,
        "Make two runs on GPUs agree to the bit, as runs on CPU ranks always do: algorithms are "
        "chosen by rule instead of by measurement, and kernels add in a fixed order. Gradients of "
        "attention take more memory for it. It may be given beside --plan",
        FLAG, SETS(deterministic)),
    ROW(TRAITS, "traits", CHOICES, "LIST", "those of --software",
        "What else the program does that trains, such as fused_experts (activation in the grouped "
        "GEMM), dispatch_permutes (HybridEP) or delayed_scales; added to what its software profile "
        "says",
        WORDS(trait_words), SETS(traits)),
    ROW(PIPELINE_LAYOUT, "pipeline-layout", CHOICES, "TEXT", "an even split",
        "What each virtual stage holds, in Megatron's letters: E embedding, t layer, m MTP depth, "
        "L head, | end of a stage. *N repeats a letter or a (group), as in 'Et*16|(t*16|)*2t*13mL'",
        TEXT),
    ROW(RECOMPUTE_LAYERS, "recompute-layers", CHOICES, "N", "all",
        "Recompute what --recompute names only in the first N layers of each virtual stage",
        INT(1, GIB28)),
    ROW(UNSURE, "unsure", CHOICES, "LIST",
        "of other programs than moefold, all of this list that are not given",
        "Options whose value is a guess: the band becomes as wide as if they were not given",
        WORDS(mf_unsaid_words)),

    ROW(ROUTING, "routing", PLAY, "balanced|zipf:S|FILE", "balanced",
        "How evenly the router spreads tokens over experts: balanced, by a Zipf law with exponent "
        "S, or by the counts in a file (JSON or CSV, a row of experts for each MoE layer)",
        TEXT),
    ROW(EVERY_RANK, "every-rank", PLAY, NULL, NULL,
        "Simulate all ranks instead of one per pipeline stage", FLAG),
    ROW(TRACE, "trace", PLAY, "FILE", NULL,
        "Write a Chrome trace of the step, for ui.perfetto.dev or chrome://tracing", TEXT),

    ROW(TOP, "top", SEARCH, "N", "plan 4, fit 8, explain 12, compare 20",
        "How many results to show, the best one included. With it, plan also looks for the fastest "
        "plans of other degrees",
        INT(1, 100000)),
    ROW(PRECISIONS, "precisions", SEARCH, "LIST", "--precision alone",
        "Precision recipes to choose from", WORDS(precision_words)),
    ROW(RUNS_ON, "runs-on", SEARCH, "WORD", "megatron where --software is, else any",
        "Program that is to run the plan: only what it can express is searched, at its newest "
        "prices unless --software says otherwise, and plan says what that costs",
        WORDS(" megatron bridge moefold any")),
    ROW(EVEN_STAGES, "even-stages", SEARCH, NULL, NULL, "Split the layers evenly over the stages",
        FLAG, PINS(STAGES)),
    ROW(SEARCH_OFFLOAD, "search-offload", SEARCH, NULL, NULL,
        "Let layers offload activations to host memory wherever that is faster, and say what it "
        "gains. Without it they do so only where nothing fits otherwise, because it was not "
        "measured how fast all GPUs of a host copy at once; plan then says what they would gain "
        "in the layout that it chose, if that is half a percent or more",
        FLAG),
    ROW(GAP, "gap", SEARCH, "SHARE", "plan 3%, capacity 5%",
        "Stop when the best plan is proven to be within this share of the fastest one",
        SHARE(0, 1)),
    ROW(EFFORT, "effort", SEARCH, "N", "20, fit 2, capacity 10 to 20",
        "Search for at most about N seconds of one core (capacity: for each cell; fit: 0 skips the "
        "search). Work is counted, not timed, so that every machine finds the same plan",
        INT(0, 1000000)),
    ROW(MIN_HEADROOM, "min-headroom", SEARCH, "SHARE", "0",
        "Share of the GPU's memory that every plan leaves free, beyond the reserve",
        SHARE(0, 0.99)),
    ROW(THREADS, "threads", SEARCH, "N", "one per core, at most 8",
        "Threads to search with. The result does not depend on it", INT(1, 256)),

    ROW(MODELS, "models", CAPACITY, "LIST", NULL,
        "Models to size, as a comma list of names or paths", TEXT),
    ROW(CLUSTERS, "clusters", CAPACITY, "LIST", NULL,
        "Clusters to size, as a comma list of names or paths", TEXT),
    ROW(SIZES, "sizes", CAPACITY, "LIST", "64,128,256,512,1024,2048,4096",
        "Numbers of GPUs, as a comma list. 64..512 means 64, 128, 256 and 512; 2k is 2,048", TEXT),
    ROW(TOKENS, "tokens", CAPACITY, "COUNT", NULL, "Tokens to train on, such as 300B or 15T",
        COUNT(1, 1e18)),
    ROW(DEADLINE, "deadline", CAPACITY, "TIME|DATE", NULL,
        "Time that the run may take, such as 30d, or the date by which it has to end, such as "
        "2027-01-31. For each model and cluster the smallest size that keeps it is named",
        UNTIL(1, 1e10)),
    ROW(BUDGET, "budget", CAPACITY, "USD", NULL,
        "Money that the run may cost, such as 10M. The fastest size within it is named",
        COUNT(1e-6, 1e18)),
    ROW(PRICE, "price", CAPACITY, "CLUSTER=USD", "the cluster file's",
        "Price of a GPU-hour of one of the clusters, such as h100=2.5, or h100=2.5@2026-11-01 with "
        "its date; above 0, unless --power-price says that energy alone costs; a cluster from a "
        "file goes by its path or by its name. May be given many times",
        LIST),
    ROW(POWER_PRICE, "power-price", CAPACITY, "USD/kWh", "0: the price of a GPU-hour includes it",
        "Price of energy, added to the price of the GPU-hours", REAL(0, 1e6)),
    ROW(SKEW, "skew", CAPACITY, "zipf:S|FILE", "none",
        "Also simulate every plan under this uneven routing, and say whether it still keeps "
        "--deadline and --budget. zipf:S: the 95th percentile of 20 draws of the hot experts; "
        "FILE: its counts",
        TEXT),
    ROW(CHECKPOINT_TIME, "checkpoint-time", CAPACITY, "TIME", "30s",
        "Time that training stops for each checkpoint", TIME(0, 86400)),
    ROW(RESTART_TIME, "restart-time", CAPACITY, "TIME", "15m",
        "Time from a failure until the job runs again", TIME(0, 864000)),
    ROW(REBUILD, "rebuild", STORE, NULL, NULL,
        "Build the store anew from the shipped measurements. The old one is kept as FILE.old",
        FLAG),
    ROW(CHECK, "check", STORE, NULL, NULL, "Check every page and every row", FLAG),
    ROW(IMPORT, "import", STORE, "FILE", NULL,
        "Add measurements to the store: from a CSV file as --export writes it, or from the output "
        "of nccl-tests, as text or JSON",
        TEXT),
    ROW(EXPORT, "export", STORE, "FILE", NULL, "Write all measurements as CSV", TEXT),
    ROW(RECORD, "record", STORE, "FILE", NULL,
        "Add the measured times to this profile store, from which every command prices with "
        "--store FILE. A store that does not exist yet begins with the shipped measurements. "
        "--refit FILE is the same",
        TEXT, .alias = "refit"),
    ROW(GPU, "gpu", STORE, "NAME", NULL,
        "GPU that an nccl-tests file was measured on, such as h200; when measuring, the name under "
        "which to store this machine's GPU",
        TEXT),
    ROW(NODES, "nodes", STORE, "N", "as many as the file names", "Hosts that nccl-tests ran on",
        INT(1, 1e6)),
    ROW(SHARED, "shared", STORE, NULL, NULL, "Measure even if another process uses the GPU", FLAG),
    ROW(ENERGY, "energy", STORE, NULL, NULL,
        "Measure for a share of the points also their energy under the power cap", FLAG),

    ROW(OUT, "out", OUTPUT, "FILE|DIR", NULL,
        "File to write: the plan; for compare the correction, for export the script; for train the "
        "folder of the run (metrics, checkpoints, weights). -o does the same where there is no "
        "--report",
        TEXT),
    ROW(REPORT, "report", OUTPUT, "DIR", NULL,
        "Write a folder, as -o DIR does, with report.html (one page that needs no network), "
        "report.json (every figure of it), inputs.json and, where there are any, plan.json, "
        "candidates.csv, compared.csv and trace.json",
        TEXT),
    ROW(FORMAT, "format", OUTPUT, "WORD", "megatron", "Program to write the job for",
        WORDS(" megatron bridge")),
    ROW(LAUNCHER, "launcher", OUTPUT, "WORD", "torchrun", "Program that starts the processes",
        WORDS(" torchrun srun")),
    ROW(FORCE, "force", OUTPUT, NULL, NULL,
        "Write what is refused else: a job that does not fit, a correction that looks like that of "
        "another job",
        FLAG),
    ROW(CORRECT, "correct", OUTPUT, NULL, NULL,
        "With --log: keep the correction for this software and cluster, in the folder "
        "MOEFOLD_CORRECTIONS, else ~/.local/share/moefold/corrections; plan, simulate, fit, "
        "explain, tune and capacity then price by it and say so",
        FLAG),
    ROW(RECIPE, "recipe", JOB, "NAME", "the last one",
        "Function to read in a Python file, with those that it calls; in a script that starts "
        "several jobs, the number of the job",
        TEXT),
    ROW(LOG, "log", STORE, "FILE", NULL,
        "Log of a job, with the step times, throughput and memory that it printed", TEXT),
    ROW(VERBOSE, "verbose", OUTPUT, NULL, NULL,
        "Show all rows on a terminal, not only 40 lines. -v does the same. Files and pipes always "
        "get all of them",
        FLAG),
    ROW(JSON, "json", OUTPUT, NULL, NULL,
        "Print JSON: numbers are numbers, and every key names its unit", FLAG),
    ROW(PROGRESS, "progress", OUTPUT, NULL, NULL,
        "Report progress on standard error even if it is no terminal", FLAG),
    ROW(MARKDOWN, "markdown", OUTPUT, NULL, NULL,
        "Print the help of all commands as one Markdown page, which is docs/CLI.md", FLAG),
    ROW(MAN, "man", OUTPUT, NULL, NULL, "Print the help of all commands as a man page, moefold(1)",
        FLAG),
    ROW(COMPLETION, "completion", OUTPUT, "WORD", NULL,
        "Print a script for this shell that completes commands, options and their words",
        WORDS(" bash zsh")),
    ROW(HELP, "help", OUTPUT, NULL, NULL,
        "Print this help. -h does the same, anywhere on the command line", FLAG),
};

const mf_option *mf_option_get(mf_option_id id) {
    bool train = id >= MF_OPT_TRAIN_FIRST && id <= MF_OPT_TRAIN_LAST;
    return train ? mf_option_get_train(id) : &table[id];
}

const char *mf_option_group_text(mf_option_group g) {
    static const char *const text[MF_OPTS_GROUPS] = {
        [MF_OPTS_JOB] = "Job",
        [MF_OPTS_DEGREES] = "Layout: degrees",
        [MF_OPTS_CHOICES] = "Layout: choices",
        [MF_OPTS_PLAY] = "Simulation",
        [MF_OPTS_SEARCH] = "Search",
        [MF_OPTS_CAPACITY] = "Capacity",
        [MF_OPTS_STORE] = "Profile store",
        [MF_OPTS_TRAIN] = "Training",
        [MF_OPTS_OUTPUT] = "Output",
    };
    return text[g];
}

mf_option_id mf_option_find(const char *name, size_t length, const mf_option_id *allowed) {
    for (size_t i = 0; allowed != NULL ? allowed[i] != MF_OPT_COUNT : i < MF_OPT_COUNT; i++) {
        mf_option_id id = allowed != NULL ? allowed[i] : (mf_option_id)i;
        const char *known[2] = {mf_option_get(id)->name, mf_option_get(id)->alias};
        for (int k = 0; k < 2; k++) {
            if (known[k] != NULL && strlen(known[k]) == length &&
                memcmp(known[k], name, length) == 0) {
                return id;
            }
        }
    }
    return MF_OPT_COUNT;
}
