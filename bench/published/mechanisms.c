/* mechanisms.c - what the programs behind the rows do that a layout does not say, in words: the
 * traits of core/program/lower_traits.c and the readings of recipe.c and rows.c, each with where it
 * was read. */
#include "bench/published/report.h"

static const struct {
    const char *what, *rows, *source;
} mechanisms[] = {
    {"Gradients accumulated and reduced in BF16", "NeMo, Megatron-Bridge, Megatron FSDP",
     "their performance recipes: grad_reduce_in_fp32 = false"},
    {"Gathers and reductions of ZeRO-3 beside compute hold it up for a quarter of their time "
     "inside "
     "an NVLink domain; over a network as fitted (0.32 to 0.67)",
     "FSDP", "runs of two H200 with ZeRO-3 (docs/RUNS2.md); no row is fitted to it"},
    {"FP8 weights are the primary ones: gathered as they are, no BF16 copy",
     "Bridge current scaling and MXFP8; torchtitan per-tensor",
     "fp8_param_gather of Bridge's precision recipes; torchtitan's float8.md"},
    {"TP communication overlaps with its product, but not in NVFP4", "NeMo, Megatron-Bridge, dense",
     "performance recipes: tp_comm_overlap"},
    {"Pieces that TP overlap divides a product into fill each other's tails",
     "Megatron, torchtitan",
     "comm_gemm_overlap.cpp of Transformer Engine (num_max_streams); PyTorch's async TP"},
    {"Scales of earlier steps: no pass that finds them; forward sums scattered in FP8", "NeMo FP8",
     "Transformer Engine's delayed scaling, fp8_buf of NeMo's overlaps"},
    {"FP8 tensors of one scale are written in one order on Blackwell, whose products read either: "
     "1 "
     "byte an element less",
     "Megatron, FP8 per tensor",
     "quantizer.cpp of Transformer Engine: nvte_is_non_tn_fp8_gemm_supported"},
    {"Queries copied out of the projection's output, gradients of queries, keys and values written "
     "behind each other: 4 bytes an element each",
     "Megatron, heads in groups", "Megatron-LM attention.py: SplitAlongDim, query.reshape"},
    {"The gradient of a residual is added in a pass of its own: 4 bytes more than a kernel that "
     "adds as it goes",
     "Megatron", "autograd; Transformer Engine's norm returns its own gradient alone"},
    {"Attention by FlashAttention-2: half of cuDNN's rate", "torchtitan",
     "its ops save _scaled_dot_product_flash_attention; both measured through PyTorch on an H200"},
    {"Every second product made again under selective checkpoints", "torchtitan",
     "_save_list and mm_count of parallelize_llama.py at 9dec370"},
    {"Each op of a formula a pass of its own; cross-entropy through FP32 copies",
     "torchtitan without torch.compile; the loss until it was compiled, too",
     "its configurations of December 2024"},
    {"Rowwise scales: BF16 gathered over TP and quantised by every rank, a pass more for the "
     "scales "
     "of columns, and one over each backward product's output, which takes a single scale",
     "torchtitan rowwise", "float8.md; torchao float8_ops.py, pytorch/ao#1325 and #2184"},
    {"Clocks by the square root of power; 2.4 TB/s of HBM2e", "torchtitan's H100 at 500 W",
     "hardware section of its benchmarks"},
    {"Memory-bound kernels reach a smaller share of Blackwell's bandwidth than of Hopper's, where "
     "they were measured: one factor for all of Blackwell, prior 0.94",
     "B200, GB200, B300, GB300",
     "share of bandwidth over all such ops in public rows: 0.49 after 0.52 on H100"},
    {"Convolutions, scans and gated norms of layers with a state reach 0.38 of what is derived of "
     "them: one factor, fitted with prior 1",
     "Nemotron-H, Nemotron 3, Qwen3-Next",
     "Megatron-LM's mamba_mixer.py and gated_delta_net.py run the Triton kernels of mamba_ssm and "
     "flash-linear-attention"},
    {"MTP runs where a row's TFLOP/s over tokens/s count it: one depth of DeepSeek-V4, two of "
     "Nemotron 3 Super, Ultra and 3.5 Lightning",
     "Megatron-Bridge", "the rows themselves; a card of 3.5 Lightning says two"},
    {"Full recomputation, DeepEP, no graph where a row says nothing", "skl-045 to -050",
     "qwen3_30b_a3b_pretrain_config, which their source runs"},
    {"One BF16 weight gradient of each shape that nobody reads, one of the head for a moment "
     "(memory)",
     "Megatron", "get_dummy_wgrad of Transformer Engine; tensor_parallel/layers.py"},
    {"FP32 parameters stay on the device when the optimizer leaves it (memory)", "Megatron",
     "HybridDeviceOptimizer; 8 bytes an element in Bridge's own figures"},
    {"RoPE and activation op by op", "card-036, skl-045 to -050",
     "recipes of Megatron-Bridge's library (qwen3.py, qwen3_moe.py) set no fusion; "
     "Megatron-Core's defaults"},
    {"Cross-entropy: three FP32 tensors of the logits stand at a time, four over TP; BF16 logits "
     "stay reserved (memory)",
     "torchtitan until its loss was compiled", "torch's loss.py; memory is stated as reserved"},
    {"The gradient of sinks: 1.4 ns a row and head beside attention's backward pass", "GPT-OSS",
     "op times of GPT-OSS on one and two H200, cuDNN's kernel; taken for Blackwell as it is"},
    {"Copies around the experts' activation: biases, clamps, padding", "Megatron MoE",
     "Megatron-LM experts.py; none with the fused grouped MLP"},
    {"Rows reordered inside dispatch and combine", "HybridEP", "DeepEP's hybrid branch"},
    {"Token drop: balanced work, and a host that need not wait for counts", "25.09 rows", "notes"},
    {"Attention of heads wider than 128 by whole products, scores passing through memory; RoPE op "
     "by "
     "op, token drop",
     "NeMo's DeepSeek-V3 on GB200, 2025",
     "fused_attn.cpp of Transformer Engine before 2.5 (sm_arch_ >= 100); pretrain_deepseek_v3.py, "
     "gpt/model/deepseek.py"},
    {"Token drop, TP communication overlapped, no graphs but of FP8 on H100", "NeMo's Llama 4",
     "recipes/llama4_e128.py with performance_mode at 7a8f1cc, which the source's setup.sh checks "
     "out (MegatronTokenDropCallback, tp_comm_overlap); its launch.sh and README"},
};

void pub_mechanisms(FILE *f) {
    fprintf(f, "\n## What the programs do that a layout does not say\n\n"
               "Priced as ops or bytes, never row by row: parts of a software profile, or options "
               "of `simulate` (`--traits`; `core/program/lower_traits.c`).\n\n| what | rows | read "
               "in |\n|---|---|---|\n");
    for (size_t i = 0; i < sizeof mechanisms / sizeof mechanisms[0]; i++) {
        fprintf(f, "| %s | %s | %s |\n", mechanisms[i].what, mechanisms[i].rows,
                mechanisms[i].source);
    }
}
