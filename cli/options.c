/* options.c - the table of options. Adding one is an id in options.h and a row here. */
#include "cli/option_set.h"

#include "planner/space/space.h"

#include <string.h>

#define GIB28 ((double)(1 << 28))

/* --- the table -------------------------------------------------------------------------------- */

#define X(name, text) " " text
#define SCHEDULE_WORDS MF_SCHEDULE_MAP(X)
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

#define DEGREE(id, text, field, words_of_help)                                                     \
    [MF_OPT_##id] = {.name = text,                                                                 \
                     .group = MF_OPTS_DEGREES,                                                     \
                     .kind = MF_VALUE_INT,                                                         \
                     .low = 1,                                                                     \
                     .high = GIB28,                                                                \
                     .argument = "N",                                                              \
                     .fallback = "1",                                                              \
                     .help = words_of_help,                                                        \
                     .apply = mf_option_set_##field,                                               \
                     .pin = MF_PIN(id)}

#define CHOICE(id, text, field, list, pinned, default_text, words_of_help)                         \
    [MF_OPT_##id] = {.name = text,                                                                 \
                     .group = MF_OPTS_CHOICES,                                                     \
                     .kind = MF_VALUE_TEXT,                                                        \
                     .argument = "WORD",                                                           \
                     .words = list,                                                                \
                     .fallback = default_text,                                                     \
                     .help = words_of_help,                                                        \
                     .apply = mf_option_set_##field,                                               \
                     .pin = pinned}

static const mf_option table[MF_OPT_COUNT] = {
    [MF_OPT_MODEL] = {.name = "model",
                      .group = MF_OPTS_JOB,
                      .kind = MF_VALUE_TEXT,
                      .argument = "NAME|FILE",
                      .help =
                          "Model to train: a shipped name (see `moefold models`), or a path to a "
                          "Hugging Face config.json or to the folder that holds one"},
    [MF_OPT_SET] = {.name = "set",
                    .group = MF_OPTS_JOB,
                    .kind = MF_VALUE_LIST,
                    .argument = "KEY=VALUE",
                    .help = "Override one key of the model's config.json, such as "
                            "num_hidden_layers=8, or a value inside one of its objects, such as "
                            "rope_parameters.rope_theta=1e6. May be given many times"},
    [MF_OPT_STRICT] = {.name = "strict",
                       .group = MF_OPTS_JOB,
                       .kind = MF_VALUE_FLAG,
                       .help = "Refuse a model whose config.json says more than is read, such as a "
                               "vision tower; without, a line on standard error names it"},
    [MF_OPT_CLUSTER] = {.name = "cluster",
                        .group = MF_OPTS_JOB,
                        .kind = MF_VALUE_TEXT,
                        .argument = "NAME|FILE",
                        .help = "Cluster to run on: a shipped name (see `moefold clusters`) or a "
                                "cluster file"},
    [MF_OPT_GPUS] = {.name = "gpus",
                     .group = MF_OPTS_JOB,
                     .kind = MF_VALUE_SIZE,
                     .low = 1,
                     .high = GIB28,
                     .argument = "N",
                     .help = "GPUs in the job. DP and EDP follow from it and from the degrees",
                     .apply = mf_option_set_gpus},
    [MF_OPT_GLOBAL_BATCH] = {.name = "global-batch",
                             .group = MF_OPTS_JOB,
                             .kind = MF_VALUE_SIZE,
                             .low = 1,
                             .high = GIB28,
                             .argument = "N",
                             .help =
                                 "Samples per step, over all ranks; 4M is a batch of 4 x 1,048,576 "
                                 "tokens, which --seq cuts into samples",
                             .apply = mf_option_set_gbs},
    [MF_OPT_SEQ] = {.name = "seq",
                    .group = MF_OPTS_JOB,
                    .kind = MF_VALUE_SIZE,
                    .low = 1,
                    .high = GIB28,
                    .argument = "N",
                    .help = "Tokens per sample, such as 4096 or 4k",
                    .apply = mf_option_set_seq},
    [MF_OPT_SOFTWARE] = {.name = "software",
                         .group = MF_OPTS_JOB,
                         .kind = MF_VALUE_TEXT,
                         .argument = "NAME|FILE",
                         .fallback = "moefold",
                         .help = "Software profile, the efficiencies of the program that trains: "
                                 "ideal, moefold, megatron-eager, pytorch-fsdp, or megatron-YY.MM, "
                                 "which takes the newest known release that is not newer"},
    [MF_OPT_STORE] = {.name = "store",
                      .group = MF_OPTS_JOB,
                      .kind = MF_VALUE_TEXT,
                      .argument = "FILE",
                      .fallback = "the shipped measurements",
                      .help = "Profile store with the measured times that prices rest on"},
    [MF_OPT_PLAN] = {.name = "plan",
                     .group = MF_OPTS_JOB,
                     .kind = MF_VALUE_TEXT,
                     .argument = "FILE",
                     .help = "Take model, cluster and layout from this plan file. --model, "
                             "--cluster, --software and --store may still be given; they say where "
                             "to find the same model, or what else to try the plan on"},

    DEGREE(TP, "tp", tp,
           "Tensor parallelism of attention and dense layers, with sequence "
           "parallelism"),
    DEGREE(CP, "cp", cp, "Context parallelism: ranks that share the tokens of a sample"),
    DEGREE(PP, "pp", pp, "Pipeline stages"),
    DEGREE(VPP, "vpp", vpp, "Virtual stages, or chunks, per pipeline stage"),
    DEGREE(EP, "ep", ep, "Expert parallelism: ranks that share the experts of a layer"),
    DEGREE(ETP, "etp", etp, "Tensor parallelism inside an expert. It does not follow --tp"),
    DEGREE(MICRO_BATCH, "micro-batch", mbs, "Samples per data-parallel rank and pass"),

    [MF_OPT_ZERO] = {.name = "zero",
                     .group = MF_OPTS_CHOICES,
                     .kind = MF_VALUE_INT,
                     .low = 0,
                     .high = 3,
                     .argument = "0..3",
                     .fallback = "1",
                     .help = "ZeRO level of dense parameters: 1 shards optimizer states, 2 also "
                             "gradients, 3 also weights",
                     .apply = mf_option_set_zero,
                     .pin = MF_PIN(ZERO)},
    [MF_OPT_EXPERT_ZERO] = {.name = "expert-zero",
                            .group = MF_OPTS_CHOICES,
                            .kind = MF_VALUE_INT,
                            .low = 0,
                            .high = 3,
                            .argument = "0..3",
                            .fallback = "1",
                            .help = "The same for the parameters of routed experts",
                            .apply = mf_option_set_expert_zero,
                            .pin = MF_PIN(EXPERT_ZERO)},
    CHOICE(SCHEDULE, "schedule", schedule, schedule_words, MF_PIN(SCHEDULE),
           "interleaved when VPP > 1, else 1f1b", "Pipeline schedule"),
    CHOICE(DISPATCHER, "dispatcher", dispatcher, dispatcher_words, MF_PIN(DISPATCHER), "fused",
           "How tokens travel to their experts"),
    CHOICE(CP_TYPE, "cp-type", cp_type, cp_words, MF_PIN(CP_TYPE), "ring",
           "How attention sees the other context ranks' keys and values"),
    [MF_OPT_OVERLAP] = {.name = "overlap",
                        .group = MF_OPTS_CHOICES,
                        .kind = MF_VALUE_TEXT,
                        .argument = "LIST",
                        .words = overlap_words,
                        .fallback = "dp,pp",
                        .help = "Communication that runs beside compute; cp: all-gather and "
                                "all-to-all go by KV heads, in up to 4 pieces (a ring of --cp-type "
                                "runs beside compute in any case)",
                        .apply = mf_option_set_overlap},
    [MF_OPT_RECOMPUTE] = {.name = "recompute",
                          .group = MF_OPTS_CHOICES,
                          .kind = MF_VALUE_TEXT,
                          .argument = "LIST",
                          .words = recompute_words,
                          .fallback = "none",
                          .help = "Modules whose activations are dropped and computed again in the "
                                  "backward pass. selective means core_attn, full "
                                  "means layer",
                          .apply = mf_option_set_recompute,
                          .pin = MF_PIN(RECOMPUTE)},
    [MF_OPT_OFFLOAD] = {.name = "offload",
                        .group = MF_OPTS_CHOICES,
                        .kind = MF_VALUE_TEXT,
                        .argument = "LIST",
                        .words = offload_words,
                        .fallback = "none",
                        .help = "Saved activations that wait in host memory",
                        .apply = mf_option_set_offload,
                        .pin = MF_PIN(OFFLOAD)},
    [MF_OPT_OFFLOAD_SHARE] = {.name = "offload-share",
                              .group = MF_OPTS_CHOICES,
                              .kind = MF_VALUE_SHARE,
                              .low = 0,
                              .high = 1,
                              .argument = "SHARE",
                              .fallback = "100%",
                              .help = "Share of the layers that offload what --offload names",
                              .apply = mf_option_set_offload_share},
    [MF_OPT_OFFLOAD_OPTIMIZER] = {.name = "offload-optimizer",
                                  .group = MF_OPTS_CHOICES,
                                  .kind = MF_VALUE_SHARE,
                                  .low = 0,
                                  .high = 1,
                                  .argument = "SHARE",
                                  .fallback = "0",
                                  .help =
                                      "Share of the optimizer states that lives in host memory, "
                                      "such as 0.5 or 50%",
                                  .apply = mf_option_set_offload_optimizer},
    CHOICE(MOMENTS, "moments", moments, " fp32 bf16", 0, "fp32", "Type of AdamW's two moments"),
    CHOICE(GRAD_DTYPE, "grad-dtype", grad_dtype, " fp32 bf16", 0, "fp32",
           "Type in which gradients accumulate and are reduced"),
    CHOICE(PRECISION, "precision", precision, precision_words, MF_PIN(PRECISION), "bf16",
           "Precision recipe of the matrix products"),
    [MF_OPT_FP8_ATTENTION] = {.name = "fp8-attention",
                              .group = MF_OPTS_CHOICES,
                              .kind = MF_VALUE_FLAG,
                              .help = "Core attention in FP8 as well",
                              .apply = mf_option_set_fp8_attention},
    [MF_OPT_FP8_PRIMARY_WEIGHTS] = {.name = "fp8-primary-weights",
                                    .group = MF_OPTS_CHOICES,
                                    .kind = MF_VALUE_FLAG,
                                    .help = "Keep no BF16 copy of the weights: the quantised ones "
                                            "are what is gathered",
                                    .apply = mf_option_set_fp8_primary_weights},
    CHOICE(CUDA_GRAPH, "cuda-graph", graph, graph_words, 0, "none",
           "Launch kernels from CUDA graphs: partial captures what is static inside a layer, step "
           "everything"),
    [MF_OPT_TOKEN_HEADROOM] = {.name = "token-headroom",
                               .group = MF_OPTS_CHOICES,
                               .kind = MF_VALUE_REAL,
                               .low = 1,
                               .high = 1e6,
                               .argument = "FACTOR",
                               .fallback = "1.25; CPU ranks: --ep, the worst case",
                               .help = "Routed rows that a rank has room for, over the balanced "
                                       "number",
                               .apply = mf_option_set_token_headroom},
    [MF_OPT_RESERVE] = {.name = "reserve",
                        .group = MF_OPTS_CHOICES,
                        .kind = MF_VALUE_SHARE,
                        .low = 0,
                        .high = 0.99,
                        .argument = "SHARE",
                        .fallback = "5%",
                        .help = "Share of the GPU's memory that is withheld, such as 0.05 or 5%",
                        .apply = mf_option_set_reserve},
    [MF_OPT_CAPACITY_FACTOR] = {.name = "capacity-factor",
                                .group = MF_OPTS_CHOICES,
                                .kind = MF_VALUE_REAL,
                                .low = 0,
                                .high = 1e3,
                                .argument = "X",
                                .fallback = "0: dropless",
                                .help = "An expert takes at most ceil(X * top_k * S / experts) "
                                        "choices of a sample, those of highest probability",
                                .apply = mf_option_set_capacity_factor},
    [MF_OPT_PAD_TO_CAPACITY] = {.name = "pad-to-capacity",
                                .group = MF_OPTS_CHOICES,
                                .kind = MF_VALUE_FLAG,
                                .help = "Experts work on as many rows as their capacity allows, "
                                        "whatever the routing: the rest of them are zero, and the "
                                        "host need not wait for their number",
                                .apply = mf_option_set_pad_to_capacity},
    [MF_OPT_TRAITS] = {.name = "traits",
                       .group = MF_OPTS_CHOICES,
                       .kind = MF_VALUE_TEXT,
                       .argument = "LIST",
                       .words = trait_words,
                       .fallback = "those of --software",
                       .help = "What the program that trains does besides, such as fused_experts "
                               "(activation in the grouped GEMM), dispatch_permutes (HybridEP), "
                               "delayed_scales; added to what its software profile says",
                       .apply = mf_option_set_traits},
    [MF_OPT_PIPELINE_LAYOUT] =
        {.name = "pipeline-layout",
         .group = MF_OPTS_CHOICES,
         .kind = MF_VALUE_TEXT,
         .argument = "TEXT",
         .fallback = "an even split",
         .help = "What each virtual stage holds, in Megatron's letters: E "
                 "embedding, t layer, m MTP depth, L head, | the end of a stage, "
                 "*N repeats a letter or a (group), as in 'Et*16|(t*16|)*2t*13mL'"},
    [MF_OPT_RECOMPUTE_LAYERS] = {.name = "recompute-layers",
                                 .group = MF_OPTS_CHOICES,
                                 .kind = MF_VALUE_INT,
                                 .low = 1,
                                 .high = GIB28,
                                 .argument = "N",
                                 .fallback = "all",
                                 .help = "Recompute what --recompute names in the first N layers "
                                         "of each virtual stage alone"},
    [MF_OPT_UNSURE] = {.name = "unsure",
                       .group = MF_OPTS_CHOICES,
                       .kind = MF_VALUE_TEXT,
                       .argument = "LIST",
                       .words = " cuda-graph dispatcher recompute overlap micro-batch vpp cp-type",
                       .fallback = "options that are not given, of another program than moefold",
                       .help = "Options whose value is a guess: the band widens as if they were "
                               "not given"},

    [MF_OPT_ROUTING] = {.name = "routing",
                        .group = MF_OPTS_PLAY,
                        .kind = MF_VALUE_TEXT,
                        .argument = "balanced|zipf:S|FILE",
                        .fallback = "balanced",
                        .help =
                            "How evenly the router spreads tokens over experts: all the same, a "
                            "Zipf law with exponent S, or counts from a file (one row of "
                            "experts per MoE layer, JSON or CSV)"},
    [MF_OPT_EVERY_RANK] = {.name = "every-rank",
                           .group = MF_OPTS_PLAY,
                           .kind = MF_VALUE_FLAG,
                           .help = "Play all ranks instead of one per pipeline stage"},
    [MF_OPT_TRACE] = {.name = "trace",
                      .group = MF_OPTS_PLAY,
                      .kind = MF_VALUE_TEXT,
                      .argument = "FILE",
                      .help = "Write a Chrome trace of the step, for ui.perfetto.dev or "
                              "chrome://tracing"},

    [MF_OPT_TOP] = {.name = "top",
                    .group = MF_OPTS_SEARCH,
                    .kind = MF_VALUE_INT,
                    .low = 1,
                    .high = 100000,
                    .argument = "N",
                    .fallback = "plan 4, fit 20, explain 12",
                    .help = "How many results to show, the best included; plan: when given, the "
                            "fastest plans of different degrees are looked for, too"},
    [MF_OPT_PRECISIONS] = {.name = "precisions",
                           .group = MF_OPTS_SEARCH,
                           .kind = MF_VALUE_TEXT,
                           .argument = "LIST",
                           .words = precision_words,
                           .fallback = "--precision alone",
                           .help = "Precision recipes to choose from"},
    [MF_OPT_RUNS_ON] = {.name = "runs-on",
                        .group = MF_OPTS_SEARCH,
                        .kind = MF_VALUE_TEXT,
                        .argument = "WORD",
                        .words = " megatron bridge moefold any",
                        .fallback = "megatron where --software is, else any",
                        .help =
                            "Who is to run the plan: it holds to what that program can express, "
                            "and the output says what that costs"},
    [MF_OPT_EVEN_STAGES] = {.name = "even-stages",
                            .group = MF_OPTS_SEARCH,
                            .kind = MF_VALUE_FLAG,
                            .help = "Keep to even splits of the layers over the stages",
                            .pin = MF_PIN(STAGES)},
    [MF_OPT_SEARCH_OFFLOAD] = {.name = "search-offload",
                               .group = MF_OPTS_SEARCH,
                               .kind = MF_VALUE_FLAG,
                               .help =
                                   "Let layers offload activations to host memory where that is "
                                   "faster, and say what it gains; without, they do where "
                                   "nothing fits otherwise. How fast all GPUs of a host copy at "
                                   "once was not measured"},
    [MF_OPT_GAP] = {.name = "gap",
                    .group = MF_OPTS_SEARCH,
                    .kind = MF_VALUE_SHARE,
                    .low = 0,
                    .high = 1,
                    .argument = "SHARE",
                    .fallback = "plan 3%, capacity 5%",
                    .help = "Stop when the best plan is proven to be within this share of the "
                            "fastest one"},
    [MF_OPT_EFFORT] = {.name = "effort",
                       .group = MF_OPTS_SEARCH,
                       .kind = MF_VALUE_INT,
                       .low = 1,
                       .high = 1000000,
                       .argument = "N",
                       .fallback = "20",
                       .help = "Search no longer than about N seconds of one core; counted, not "
                               "timed, so that the plan is the same on every machine"},
    [MF_OPT_MIN_HEADROOM] = {.name = "min-headroom",
                             .group = MF_OPTS_SEARCH,
                             .kind = MF_VALUE_SHARE,
                             .low = 0,
                             .high = 0.99,
                             .argument = "SHARE",
                             .fallback = "0",
                             .help =
                                 "Share of the GPU's memory that every plan leaves free, beyond "
                                 "the reserve"},
    [MF_OPT_THREADS] = {.name = "threads",
                        .group = MF_OPTS_SEARCH,
                        .kind = MF_VALUE_INT,
                        .low = 1,
                        .high = 256,
                        .argument = "N",
                        .fallback = "one per core, at most 8",
                        .help = "Threads to search with. The result does not depend on it"},

    [MF_OPT_MODELS] = {.name = "models",
                       .group = MF_OPTS_CAPACITY,
                       .kind = MF_VALUE_TEXT,
                       .argument = "LIST",
                       .help = "Models to size, as a comma list of names or paths"},
    [MF_OPT_CLUSTERS] = {.name = "clusters",
                         .group = MF_OPTS_CAPACITY,
                         .kind = MF_VALUE_TEXT,
                         .argument = "LIST",
                         .help = "Clusters to size, as a comma list of names or paths"},
    [MF_OPT_SIZES] = {.name = "sizes",
                      .group = MF_OPTS_CAPACITY,
                      .kind = MF_VALUE_TEXT,
                      .argument = "LIST",
                      .fallback = "64,128,256,512,1024,2048,4096",
                      .help = "Numbers of GPUs, as a comma list; 64..512 doubles from 64 on, 2k is "
                              "2,048"},
    [MF_OPT_TOKENS] = {.name = "tokens",
                       .group = MF_OPTS_CAPACITY,
                       .kind = MF_VALUE_COUNT,
                       .low = 1,
                       .high = 1e18,
                       .argument = "COUNT",
                       .help = "Tokens to train on, such as 300B or 15T"},
    [MF_OPT_DEADLINE] =
        {.name = "deadline",
         .group = MF_OPTS_CAPACITY,
         .kind = MF_VALUE_UNTIL,
         .low = 1,
         .high = 1e10,
         .argument = "TIME|DATE",
         .help = "Time that the run may take, such as 30d, or the date by which it ends, such as "
                 "2027-01-31: names the smallest size "
                 "that keeps it, for each model and cluster"},
    [MF_OPT_BUDGET] = {.name = "budget",
                       .group = MF_OPTS_CAPACITY,
                       .kind = MF_VALUE_COUNT,
                       .low = 1e-6,
                       .high = 1e18,
                       .argument = "USD",
                       .help = "Money that the run may cost, such as 10M: names what is fastest "
                               "for it"},
    [MF_OPT_PRICE] = {.name = "price",
                      .group = MF_OPTS_CAPACITY,
                      .kind = MF_VALUE_LIST,
                      .argument = "CLUSTER=USD",
                      .fallback = "the cluster file's",
                      .help =
                          "Price of a GPU-hour of one of the clusters, such as h100=2.5. May be "
                          "given many times"},
    [MF_OPT_POWER_PRICE] = {.name = "power-price",
                            .group = MF_OPTS_CAPACITY,
                            .kind = MF_VALUE_REAL,
                            .low = 0,
                            .high = 1e6,
                            .argument = "USD/kWh",
                            .fallback = "0: the price of a GPU-hour holds it",
                            .help = "Price of energy, which is added to that of the GPU-hours"},
    [MF_OPT_SKEW] = {.name = "skew",
                     .group = MF_OPTS_CAPACITY,
                     .kind = MF_VALUE_TEXT,
                     .argument = "zipf:S|FILE",
                     .fallback = "none",
                     .help = "Also play every plan under this routing, and say whether it keeps "
                             "--deadline and --budget then: at the 95th percentile of 20 draws of "
                             "the hot experts, or with the counts of the file"},
    [MF_OPT_CHECKPOINT_TIME] = {.name = "checkpoint-time",
                                .group = MF_OPTS_CAPACITY,
                                .kind = MF_VALUE_TIME,
                                .low = 0,
                                .high = 86400,
                                .argument = "TIME",
                                .fallback = "30s",
                                .help = "Time that the job stands still for a checkpoint"},
    [MF_OPT_RESTART_TIME] = {.name = "restart-time",
                             .group = MF_OPTS_CAPACITY,
                             .kind = MF_VALUE_TIME,
                             .low = 0,
                             .high = 864000,
                             .argument = "TIME",
                             .fallback = "15m",
                             .help = "Time from a failure until the job runs again"},
    [MF_OPT_REBUILD] = {.name = "rebuild",
                        .group = MF_OPTS_STORE,
                        .kind = MF_VALUE_FLAG,
                        .help =
                            "Build the store anew from the shipped measurements. What was there "
                            "is kept as FILE.old"},
    [MF_OPT_CHECK] = {.name = "check",
                      .group = MF_OPTS_STORE,
                      .kind = MF_VALUE_FLAG,
                      .help = "Check every page and every row"},
    [MF_OPT_IMPORT] = {.name = "import",
                       .group = MF_OPTS_STORE,
                       .kind = MF_VALUE_TEXT,
                       .argument = "FILE",
                       .help = "Take in measurements: a CSV file as --export writes it, or what "
                               "nccl-tests printed, as text or JSON"},
    [MF_OPT_EXPORT] = {.name = "export",
                       .group = MF_OPTS_STORE,
                       .kind = MF_VALUE_TEXT,
                       .argument = "FILE",
                       .help = "Write all measurements as CSV"},
    [MF_OPT_RECORD] = {.name = "record",
                       .group = MF_OPTS_STORE,
                       .kind = MF_VALUE_TEXT,
                       .argument = "FILE",
                       .help = "Take the measured times into this profile store, made with the "
                               "shipped measurements when it is not there"},
    [MF_OPT_GPU] =
        {.name = "gpu",
         .group = MF_OPTS_STORE,
         .kind = MF_VALUE_TEXT,
         .argument = "NAME",
         .help = "GPU that an nccl-tests file was measured on, such as h200; when measuring, the "
                 "name to store this machine's GPU by"},
    [MF_OPT_NODES] = {.name = "nodes",
                      .group = MF_OPTS_STORE,
                      .kind = MF_VALUE_INT,
                      .low = 1,
                      .high = 1e6,
                      .argument = "N",
                      .fallback = "as many as the file names",
                      .help = "Hosts that it ran on"},
    [MF_OPT_SHARED] = {.name = "shared",
                       .group = MF_OPTS_STORE,
                       .kind = MF_VALUE_FLAG,
                       .help = "Measure although another process uses the GPU"},
    [MF_OPT_ENERGY] = {.name = "energy",
                       .group = MF_OPTS_STORE,
                       .kind = MF_VALUE_FLAG,
                       .help = "Measure energies under the power cap of a share of the points"},

    [MF_OPT_OUT] = {.name = "out",
                    .group = MF_OPTS_OUTPUT,
                    .kind = MF_VALUE_TEXT,
                    .argument = "FILE|DIR",
                    .help = "Write the plan file here; of `train`, the folder of the run: metrics, "
                            "checkpoints, weights"},
    [MF_OPT_REPORT] = {.name = "report",
                       .group = MF_OPTS_OUTPUT,
                       .kind = MF_VALUE_TEXT,
                       .argument = "DIR",
                       .help = "Write a folder, which -o DIR does as well: report.html (one page "
                               "without network access), report.json with every figure of it, "
                               "inputs.json, and what there is of plan.json, candidates.csv and "
                               "trace.json"},
    [MF_OPT_FORMAT] = {.name = "format",
                       .group = MF_OPTS_OUTPUT,
                       .kind = MF_VALUE_TEXT,
                       .argument = "WORD",
                       .words = " megatron bridge",
                       .fallback = "megatron",
                       .help = "Whose words to use"},
    [MF_OPT_LAUNCHER] = {.name = "launcher",
                         .group = MF_OPTS_OUTPUT,
                         .kind = MF_VALUE_TEXT,
                         .argument = "WORD",
                         .words = " torchrun srun",
                         .fallback = "torchrun",
                         .help = "What starts the processes"},
    [MF_OPT_FORCE] = {.name = "force",
                      .group = MF_OPTS_OUTPUT,
                      .kind = MF_VALUE_FLAG,
                      .help = "Write a job although it does not fit into memory"},
    [MF_OPT_RECIPE] = {.name = "recipe",
                       .group = MF_OPTS_JOB,
                       .kind = MF_VALUE_TEXT,
                       .argument = "NAME",
                       .help = "Function of a Python file to read, with those that it calls; of a "
                               "script that starts several jobs, the job's number",
                       .fallback = "the last one"},
    [MF_OPT_LOG] = {.name = "log",
                    .group = MF_OPTS_STORE,
                    .kind = MF_VALUE_TEXT,
                    .argument = "FILE",
                    .help = "Log of a job: step times, throughput and memory that it printed"},
    [MF_OPT_VERBOSE] = {.name = "verbose",
                        .group = MF_OPTS_OUTPUT,
                        .kind = MF_VALUE_FLAG,
                        .help = "Show every row on a terminal, not 40 lines at most. -v does the "
                                "same; files and pipes get all of it in any case"},
    [MF_OPT_JSON] = {.name = "json",
                     .group = MF_OPTS_OUTPUT,
                     .kind = MF_VALUE_FLAG,
                     .help = "Print JSON: numbers are numbers, and every key names its unit"},
    [MF_OPT_PROGRESS] = {.name = "progress",
                         .group = MF_OPTS_OUTPUT,
                         .kind = MF_VALUE_FLAG,
                         .help = "Report progress on standard error even when it is no terminal"},
    [MF_OPT_MARKDOWN] = {.name = "markdown",
                         .group = MF_OPTS_OUTPUT,
                         .kind = MF_VALUE_FLAG,
                         .help = "Print the help of all commands as one Markdown page, which is "
                                 "docs/CLI.md"},
    [MF_OPT_MAN] = {.name = "man",
                    .group = MF_OPTS_OUTPUT,
                    .kind = MF_VALUE_FLAG,
                    .help = "Print the help of all commands as a man page, moefold(1)"},
    [MF_OPT_COMPLETION] = {.name = "completion",
                           .group = MF_OPTS_OUTPUT,
                           .kind = MF_VALUE_FLAG,
                           .help = "Print a script that completes commands, options and their "
                                   "words in bash"},
    [MF_OPT_HELP] = {.name = "help",
                     .group = MF_OPTS_OUTPUT,
                     .kind = MF_VALUE_FLAG,
                     .help = "Print this help. -h does the same, anywhere on the command line"},
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
        const char *known = mf_option_get(id)->name;
        if (strlen(known) == length && memcmp(known, name, length) == 0) {
            return id;
        }
    }
    return MF_OPT_COUNT;
}
