# Layouts that break a rule: exit 2 and the rule, with the numbers. Values out of range, words that
# nobody knows, options that are missing.
. "${0%/*}/../driver.sh"
job='--cluster h100 --gpus 128 --global-batch 256 --seq 4096'
moe="--model mixtral-8x22b $job"
mf simulate $moe --tp 3
mf simulate $moe --tp 64
mf simulate $moe --tp 8 --pp 32
mf simulate $moe --ep 3
mf simulate $moe --ep 16
mf simulate $moe --etp 5 --pp 2
mf simulate $moe --cp 3
mf simulate $moe --micro-batch 4
mf simulate $moe --pp 128
mf simulate $moe --pp 8 --vpp 2 --schedule 1f1b
mf simulate $moe --vpp 2
mf simulate $moe --pp 2 --schedule zb-v
mf simulate --model mixtral-8x22b --cluster h100 --gpus 128 --global-batch 160 --seq 4096 --tp 2 --pp 8 --vpp 2
mf simulate --model mixtral-8x22b --cluster h100 --gpus 8 --global-batch 8 --seq 4095 --tp 2
mf simulate --model mixtral-8x22b --cluster h100 --gpus 8 --global-batch 8 --seq 4098 --cp 4
mf simulate --model llama3-8b $job --ep 8
# options that say nothing about the job
mf simulate --model llama3-8b $job --capacity-factor 1
mf plan --model llama3-8b $job --pad-to-capacity
mf fit --model llama3-8b $job --recompute norm,moe
mf explain --model llama3-8b $job --routing zipf:1
mf simulate --model llama3-8b $job --recompute mla_up_proj
mf simulate --model llama3-8b $job --offload input,expert_fc1
mf simulate $moe --recompute shared_expert
mf simulate $moe --recompute mlp
mf simulate $moe --offload ffn
mf simulate $moe --fp8-primary-weights
mf plan $moe --pad-to-capacity
mf fit $moe --pad-to-capacity
mf plan $moe --precision fp32 --grad-dtype bf16
mf simulate $moe --offload-share 50%
mf plan $moe --offload expert_fc1 --offload-share 50%
mf simulate --model olmoe-1b-7b --cluster cpu --gpus 4 --global-batch 4 --seq 128 --precision fp32 --cuda-graph step
mf capacity --models llama3-8b --clusters h100 --sizes 8 --global-batch 8 --seq 4096 --capacity-factor 1
mf simulate $moe --tp 268435456 --cp 268435456 --pp 268435456
mf simulate --model mixtral-8x22b --cluster h100 --gpus 8 --global-batch 268435456 --seq 4096 --pp 8
mf simulate --model llama3-8b --cluster h100 --gpus 64 --global-batch 268435456 --seq 4096
mf simulate $moe --precision nvfp4
mf simulate $moe --precision mxfp8
mf simulate --model mixtral-8x22b --cluster mi355x --gpus 128 --global-batch 256 --seq 4096 --precision nvfp4
mf simulate $moe --ep eight
mf simulate $moe --ep 0
mf simulate $moe --zero 4
mf simulate $moe --schedule 1f1
mf simulate $moe --dispatcher fusd
mf simulate $moe --recompute selective,expert
mf simulate $moe --offload inptu
mf simulate $moe --overlap dp,pp,xp
mf simulate $moe --overlap none,dp
mf simulate $moe --recompute norm,none
mf simulate $moe --precision fp8
mf simulate $moe --cuda-graph full
mf simulate $moe --moments fp16
mf simulate $moe --grad-dtype fp16
mf simulate $moe --grad-dtype bf16 --precision fp32
mf simulate $moe --fp8-attention --precision fp32
mf simulate $moe --reserve 5GB
mf simulate $moe --reserve 120%
mf simulate $moe --token-headroom 0.9
mf simulate $moe --token-headroom 1e300
mf simulate $moe --offload-optimizer 2
mf simulate $moe --routing zipf
mf simulate $moe --routing zipf:steep
mf simulate $moe --routing 1.5
mf simulate $moe --routing "$work/none.csv"
mf simulate $moe --global-batch 512
mf simulate --model mixtral-8x22b --cluster h100 --gpus 128 --seq 4096
mf simulate --model mixtral-8x22b --gpus 128 --seq 4096
mf simulate --cluster h100
mf simulate --model mixtral-8x22 $job
mf simulate --model mixtral-8x22b --cluster h10 --gpus 128 --global-batch 256 --seq 4096
mf simulate $moe --set num_hidden_layer=8
mf simulate $moe --set num_hidden_layers=-8
mf simulate $moe words
mf plan --model llama3-8b --cluster h100 --gpus 64 --global-batch 33554432 --seq 4096
mf fit --model llama3-8b --cluster h100 --gpus 64 --global-batch 268435456 --seq 4096 --micro-batch 2
golden_end
