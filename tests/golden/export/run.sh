# A plan as a job of Megatron-LM and Megatron-Bridge; what they cannot express is said, with what it
# takes (numbers that follow the cost model are masked).
. "${0%/*}/../driver.sh"
$golden_binary simulate --model deepseek-v3 --cluster gb200 --gpus 256 --global-batch 2048 --seq 4096 \
    --pp 4 --vpp 4 --ep 64 --recompute mla_up_proj,norm --precision mxfp8 --cuda-graph partial \
    --moments bf16 --offload-optimizer 0.5 --offload expert_fc1 --offload-share 0.5 \
    --out "$work/v3.json" >/dev/null
$golden_binary simulate --model llama3-70b --cluster h100 --gpus 64 --global-batch 128 --seq 8192 \
    --tp 4 --cp 2 --pp 4 --schedule zb-h1 --zero 3 --recompute full --overlap tp,dp \
    --out "$work/llama.json" >/dev/null
mf export --plan "$work/v3.json"
mf export --plan "$work/v3.json" --format bridge
$golden_binary simulate --model llama3-8b --cluster h100 --gpus 8 --global-batch 16 --seq 8192 \
    --grad-dtype bf16 --recompute norm,act --out "$work/grads.json" >/dev/null
mf export --plan "$work/grads.json"
mf export --plan "$work/grads.json" --format bridge
mf export --plan "$work/llama.json"
mf export --plan "$work/llama.json" --format bridge --json
mf export --plan "$work/llama.json" --format brige
$golden_binary simulate --model llama3-70b --cluster h100 --gpus 64 --global-batch 128 --seq 8192 \
    --tp 1 --pp 2 --zero 0 --out "$work/large.json" >/dev/null
mf export --plan "$work/large.json"
mf_plain_lines 'not the same|^torchrun|^srun|pretrain' export --plan "$work/large.json" --force --launcher srun
# Layers that are not plain attention: gated delta nets, a hybrid's letters, sparse attention, and what has no words.
for golden_model in qwen3-next-80b-a3b nemotron-3-super glm-5.2 minimax-text-01; do
    $golden_binary simulate --model $golden_model --cluster h200 --gpus 256 --global-batch 512 --seq 4096 \
        --pp 4 --ep 16 --recompute full --out "$work/$golden_model.json" >/dev/null 2>&1
    mf_plain_lines 'not the same|variant|freq|linear|dsa|spec|hybrid|mamba|gate$|1p|squared|layout|pretrain|! ' \
        export --plan "$work/$golden_model.json" --force
    mf_plain_lines 'not the same|layout|pattern|recipe=|RECIPE=|! ' \
        export --plan "$work/$golden_model.json" --format bridge --force
done
$golden_binary simulate --model olmoe-1b-7b --cluster h100 --gpus 8 --global-batch 64 --seq 4096 --ep 8 \
    --out "$work/olmoe.json" >/dev/null
mf export --plan "$work/olmoe.json"
mf_plain_lines 'RECIPE:' export --plan "$work/olmoe.json" --format bridge
# No recipe builds it: the script does, with a program of its own. Equal layers of another number are a
# setting beside a recipe.
$golden_binary simulate --model mixtral-8x22b --cluster h100 --gpus 64 --global-batch 128 --seq 4096 \
    --tp 2 --pp 4 --ep 8 --recompute full --out "$work/mixtral.json" >/dev/null
mf export --plan "$work/mixtral.json" --format bridge
mf_plain_lines 'starts' export --plan "$work/mixtral.json" --format bridge --out "$work/mixtral.sh"
mf_plain_lines 'model.num_moe|activation_func' export --plan "$work/mixtral.json" --format bridge --json
mf_plain_lines 'not read|^!' import "$work/mixtral.sh"
for golden_set in num_hidden_layers=32 hidden_size=4096; do
    $golden_binary simulate --model qwen3-30b-a3b --set $golden_set --cluster h100 --gpus 64 --global-batch 128 --seq 4096 \
        --ep 8 --recompute full --out "$work/set.json" >/dev/null
    mf_plain_lines 'RECIPE=|num_layers|Provider' export --plan "$work/set.json" --format bridge
done
mf plan --model llama4-maverick --cluster h200 --gpus 64 --global-batch 256 --seq 4096 --runs-on megatron
# With the least effort, too, something is proven of every family, and the plan can be exported; so can one of which nothing is.
mf_lines '^proof' plan --model mixtral-8x7b --cluster gb200 --gpus 16 --global-batch 64 --seq 4096 --runs-on megatron \
    --effort 1 --out "$work/least.json"
mf_plain_lines 'not the same|^torchrun' export --plan "$work/least.json"
sed -e 's/"gap": .*/"gap": null/' -e 's/"lower_bound_s": .*/"lower_bound_s": 0,/' "$work/least.json" >"$work/unproven.json"
mf_plain_lines 'not the same|^torchrun' export --plan "$work/unproven.json"
# A megatron-* profile says who runs the plan.
mf plan --model kimi-linear-48b-a3b --cluster h200 --gpus 64 --global-batch 256 --seq 4096 --software megatron-26.02
mf plan --model olmoe-1b-7b --cluster h100 --gpus 8 --global-batch 64 --seq 4096 --software megatron-26.02 --schedule zb-v
# To a file: what stands in it is what is printed without; what is said is what is not the same.
mf export --plan "$work/llama.json" --out "$work/launch.sh"
$golden_binary export --plan "$work/llama.json" | cmp - "$work/launch.sh" >>"$golden_transcript" 2>&1
mf export --plan "$work/v3.json" -o "$work/bridge.sh" --format bridge
# What the launcher gets, with data and a rate from the environment, and what import reads of it.
mkdir "$work/bin"
printf '#!/bin/sh\nprintf "%%s\\n" "$@" | grep -E "^(--dataset|--data-path|--tokenizer|/|mock|mega|30|dataset|tokenizer|checkpoint|optimizer|scheduler|train\\.t|--lr|--train)"\n' >"$work/bin/torchrun"
chmod +x "$work/bin/torchrun"
"$golden_binary" export --plan "$work/v3.json" >"$work/megatron.sh"
mkdir -p "$work/checkout/scripts/training"
touch "$work/checkout/pretrain_gpt.py" "$work/checkout/scripts/training/run_recipe.py"
for golden_script in bridge megatron; do
    echo "$golden_script.sh on mock data" >>"$golden_transcript"
    HEAD=here PATH=$work/bin:$PATH bash "$work/$golden_script.sh" >>"$golden_transcript" 2>&1
    (cd "$work/checkout" && HEAD=here PATH=$work/bin:$PATH bash "../$golden_script.sh") >>"$golden_transcript" 2>&1
    echo "$golden_script.sh on data" >>"$golden_transcript"
    (cd "$work/checkout" && HEAD=here PATH=$work/bin:$PATH DATA_PATH='30 /a=b/c 70 /d' TOKENIZER_MODEL=/tokens \
        CHECKPOINTS=/saved LR=1e-4 STEPS=50 bash "../$golden_script.sh") >>"$golden_transcript" 2>&1
    (DATA_PATH=/d bash "$work/$golden_script.sh" 2>&1 | sed 's/^.*: line [0-9]*: //') >>"$golden_transcript"
    mf_plain_lines 'not read|^!' import "$work/$golden_script.sh"
done
mf export --plan "$work/llama.json" --out "$work/none/launch.sh"
mf export --plan "$work/v3.json" --launcher slurm
mf export
mf export --plan "$work/none.json"
sed -i -e 's/^\(predicted *\)[0-9.]* m*s/\1N s/' -e 's/[-+][0-9.]* GB, [-+][0-9.]* ms/N GB, N ms/g' -e 's/[0-9.]* of [0-9.]* GB/N of N GB/' \
    -e 's/"\(step_time_s\|step_time_change_s\|peak_memory_B\|peak_memory_change_B\|plan_step_time_s\|plan_peak_memory_B\)": [-0-9.e+]*/"\1": N/g' "$golden_transcript"
golden_end
