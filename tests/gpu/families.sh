#!/bin/sh
# Every family of models on a GPU, small: a few layers of it with heads as wide as the real ones, trained on one GPU and
# on a CPU rank from the same weights on the same samples, BF16 ops on both. Losses have to agree in every step.
#   families.sh [PROGRAM...]    the program, such as "/tmp/moefold-gpu/run moefold" [build/moefold]
# A line for each family: what it lost, how far apart; or in whose words it is refused, which has to be what `models` says
# of it. Exit 1 when one fails.
# BACKEND=cpu  tries the script out where there is no GPU, and says so
# ONLY=TEXT    the families whose names hold TEXT
# STEPS=N      [6: four of them op by op, as runs with --out begin, two from a graph]
set -u
[ $# -gt 0 ] || set -- build/moefold
program="$*"
here=$(cd "$(dirname "$0")/../.." && pwd)
data=${DATA:-$here/docs/CLI.md}
steps=${STEPS:-6}
bound=0.002
gpu="--backend cuda --cuda-graph step"
if [ "${BACKEND:-cuda}" = cpu ]; then
    gpu="--backend cpu --cluster cpu --dtype bf16"
    echo "BACKEND=cpu: the script alone is tried, NOTHING HERE IS ABOUT A GPU"
elif ! nvidia-smi -L 2>/dev/null | grep -q .; then
    echo "MF_SKIPPED 6 no GPU: families were not trained on GPUs"
    exit 0
fi
work=$(mktemp -d "${TMPDIR:-/tmp}/moefold-families.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM HUP
passed=0
failed=0
refused=0

# sets KEY=VALUE...: as options
sets() { for set; do printf ' --set %s' "$set"; done; }
# go BACKEND OPTIONS: trains; its words in $work/BACKEND.log, its losses in $work/BACKEND/metrics.jsonl
go() {
    to=$1
    shift
    rm -rf "${work:?}/$to"
    $program train "$@" --global-batch 4 --micro-batch 2 --seq 128 --steps "$steps" --seed 3 --lr 3e-4 \
        --lr-schedule constant --data "$data" --out "$work/$to" >"$work/$to.log" 2>&1
}
losses() { sed -n 's/.*"lm_loss": *\([^,]*\),.*/\1/p' "$work/$1/metrics.jsonl" 2>/dev/null; }
# why BACKEND: the line that refuses, without what comes before the reason
why() { sed -n 's/^moefold train: //p' "$work/$1.log" | head -n 1; }
pass() { passed=$((passed + 1)) && echo "ok      $1"; }
fail() {
    failed=$((failed + 1))
    echo "FAIL    $1"
    tail -n 3 "$work/${2:-gpu}.log" 2>/dev/null | sed 's/^/        /'
}
# can FAMILY MODEL: what `models` says that it can be, "plan, CPU, GPU"
can() { $program models 2>/dev/null | awk -v f="$1" -v m="$2" '$1 == m && $2 == f { sub(/.* plan/, "plan"); print }'; }

# family NAME MODEL KEY=VALUE...: a small one of the family, held against a CPU rank
family() {
    name=$1
    model=$2
    shift 2
    case $name in *"${ONLY:-}"*) ;; *) return ;; esac
    said=$(can "${name%%,*}" "$model")
    [ -n "$said" ] || { fail "$name: \`models\` has no $model of it" none && return; }
    what="--model $model $(sets vocab_size=512 "$@")"
    go cpu $what --backend cpu --cluster cpu --dtype bf16
    code=$?
    case "$code $said" in
    "0 "*CPU*) ;;
    "3 plan" | "3 plan, export")
        refused=$((refused + 1))
        echo "refused $name, by CPU ranks and GPUs: $(why cpu)"
        return
        ;;
    *) fail "$name: on a CPU rank exit code $code, \`models\` says \"$said\"" cpu && return ;;
    esac
    go gpu $what $gpu
    code=$?
    case "$code $said" in
    "0 "*GPU*) ;;
    "3 "*GPU*) fail "$name: refused, \`models\` says \"$said\"" && return ;;
    3*)
        refused=$((refused + 1))
        echo "refused $name, by GPUs: $(why gpu)"
        return
        ;;
    "0 "*) [ "${BACKEND:-cuda}" = cpu ] || { fail "$name: trains, \`models\` says \"$said\"" && return; } ;;
    *) fail "$name: exit code $code" && return ;;
    esac
    losses cpu >"$work/a"
    losses gpu >"$work/b"
    text=$(paste "$work/a" "$work/b" | awk -v n="$steps" -v bound=$bound '
        { off = $2 / $1 - 1; off = off < 0 ? -off : off; if (!(off <= worst)) worst = off; both += NF == 2 && $1 > 0 && $2 > 0 }
        NR == 1 { a = $1; b = $2 }
        END {
            printf "%d steps, loss %.5f on a CPU rank, %.5f here at first, %.5f and %.5f at last, at most %.1e apart (bound %.0e)", both, a, b, $1, $2, worst, bound
            exit !(both == n && worst <= bound && $1 < a)
        }')
    if [ $? = 0 ]; then pass "$name: $text"; else fail "$name: $text"; fi
}

began=$(date +%s)
small="hidden_size=256 num_hidden_layers=2"
few="num_attention_heads=4 num_key_value_heads=2"
latent="num_attention_heads=4 num_key_value_heads=4 kv_lora_rank=128"
routed="num_experts_per_tok=2 moe_intermediate_size=128"

# dense
family llama llama3-8b $small $few head_dim=128 intermediate_size=512
family "llama, heads of 64" llama3-8b $small $few head_dim=64 intermediate_size=512
family "llama, heads of 256" llama3-8b $small $few head_dim=256 intermediate_size=512
family "llama, heads of 256, one of keys" llama3-8b $small num_attention_heads=4 num_key_value_heads=1 head_dim=256 \
    intermediate_size=512
family qwen2 qwen2.5-7b $small $few head_dim=128 intermediate_size=512
family qwen3 qwen3-8b $small $few intermediate_size=512
family mimo mimo-7b $small $few intermediate_size=512
# experts behind attention with heads in groups
family mixtral mixtral-8x7b $small $few head_dim=128 intermediate_size=256
family qwen2_moe qwen1.5-moe-a2.7b $small $few head_dim=128 num_experts=8 $routed shared_expert_intermediate_size=256
family qwen3_moe qwen3-30b-a3b $small $few num_experts=8 $routed
family olmoe olmoe-1b-7b $small num_attention_heads=4 num_key_value_heads=4 head_dim=128 num_experts=8 \
    num_experts_per_tok=2 intermediate_size=128
family gpt_oss gpt-oss-20b $small $few num_local_experts=8 num_experts_per_tok=4 intermediate_size=256 \
    'layer_types=["sliding_attention","full_attention"]'
family glm4_moe glm-4.5 $small $few n_routed_experts=8 $routed first_k_dense_replace=1 intermediate_size=512
family minimax_m2 minimax-m2.5 $small $few num_local_experts=8 num_experts_per_tok=2 intermediate_size=128
family bailing_moe ling-mini-2.0 $small $few num_experts=16 $routed moe_shared_expert_intermediate_size=128 \
    intermediate_size=512
family ernie4_5_moe ernie-4.5-21b-a3b $small $few head_dim=128 moe_num_experts=8 moe_k=2 moe_intermediate_size=128 \
    intermediate_size=512
family mimo_v2_flash mimo-v2-flash hidden_size=256 num_hidden_layers=4 num_attention_heads=4 num_key_value_heads=1 \
    swa_num_attention_heads=4 swa_num_key_value_heads=2 sliding_window=32 sliding_window_size=32 \
    hybrid_layer_pattern=[0,1,1,0] moe_layer_freq=[0,1,1,1] n_routed_experts=8 $routed intermediate_size=512
family hunyuan_v1_moe hunyuan-a13b $small $few num_experts=8 moe_topk=2 intermediate_size=128 \
    moe_intermediate_size=128 num_shared_expert=1
family hy_v3 hy3-preview $small $few num_experts=8 $routed intermediate_size=512
family dots1 dots.llm1 $small num_attention_heads=4 num_key_value_heads=4 head_dim=128 n_routed_experts=8 $routed \
    intermediate_size=512
family granitemoe granite-3.1-1b-a400m $small $few num_local_experts=8 num_experts_per_tok=2 intermediate_size=128
family phimoe phi-3.5-moe $small $few head_dim=128 num_local_experts=8 intermediate_size=128
family llama4_text llama4-maverick $small $few num_local_experts=8 intermediate_size=128 intermediate_size_mlp=512 \
    attention_chunk_size=64
family step3_text step-3 hidden_size=256 num_hidden_layers=2 num_attention_heads=4 share_q_dim=128 moe_num_experts=8 \
    moe_top_k=2 moe_intermediate_size=128 share_expert_dim=128 intermediate_size=512 moe_layers_enum=[1]
family step3p5 step-3.5-flash hidden_size=256 num_hidden_layers=4 num_attention_heads=4 num_attention_groups=2 \
    attention_other_setting.num_attention_heads=6 attention_other_setting.num_attention_groups=2 sliding_window=32 \
    moe_num_experts=8 moe_top_k=2 moe_intermediate_size=128 share_expert_dim=128 intermediate_size=512 \
    num_nextn_predict_layers=0
# latent attention
family deepseek_v2 deepseek-v2-lite $small $latent n_routed_experts=8 $routed intermediate_size=512
family deepseek_v3 deepseek-v3 $small $latent q_lora_rank=64 n_routed_experts=16 $routed first_k_dense_replace=1 \
    intermediate_size=512
family kimi_k2 kimi-k2 $small $latent q_lora_rank=64 n_routed_experts=8 $routed intermediate_size=512
# other mixers, indexers: planned only
family deepseek_v32 deepseek-v3.2 num_hidden_layers=4
family glm_moe_dsa glm-5 num_hidden_layers=4
family deepseek_v4 deepseek-v4-flash
family gemma4 gemma-4-26b-a4b
family minimax_m3 minimax-m3
family minimax_text_01 minimax-text-01
family bailing_hybrid ling-2.6-flash
family granitemoehybrid granite-4.0-h-small
family kimi_linear kimi-linear-48b-a3b
family kimi_k3 kimi-k3
family nemotron_h nemotron-3-nano
family qwen3_next qwen3-next-80b-a3b
family qwen3_5 qwen3.5-27b
family qwen3_5_moe qwen3.5-397b-a17b

# None that ships is left out.
for one in $($program models | awk 'NR > 1 { print $2 }' | sort -u); do
    grep -Eq "^family \"?$one[ ,\"]" "$0" || fail "$one: ships, and is not tried here" none
done
printf '%d passed, %d refused, %d failed, %d s\n' $passed $refused $failed $(($(date +%s) - began))
[ $failed = 0 ]
