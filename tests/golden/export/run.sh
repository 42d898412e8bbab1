# A plan in the words of Megatron-LM and Megatron-Bridge; what they cannot express is said.
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
mf export
mf export --plan "$work/none.json"
golden_end
