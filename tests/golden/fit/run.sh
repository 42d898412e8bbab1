# What fits and what does not, for people; nowhere to fit: exit 3, what is missing, which size would do.
. "${0%/*}/../driver.sh"
mf_masked fit --model mixtral-8x7b --cluster h100 --gpus 16 --global-batch 64 --seq 4096 --top 3 --cp 1 --zero 1 --recompute none --offload none
mf_masked fit --model mixtral-8x22b --cluster h100 --gpus 2 --global-batch 64 --seq 4096 --top 1
mf_masked fit --model mixtral-8x22b --cluster h100 --gpus 2 --global-batch 64 --seq 4096 --top 1 --tp 2 --ep 2 --json
mf fit --model mixtral-8x7b --cluster h100 --global-batch 64 --seq 4096
mf fit --model mixtral-8x7b --cluster h100 --gpus 16 --global-batch 64 --seq 4096 --top 0
mf fit --model mixtral-8x7b --cluster h100 --gpus 16 --global-batch 64 --seq 4096 --precisions bf16,fp9
mf fit --model mixtral-8x7b --cluster a100 --gpus 16 --global-batch 64 --seq 4096 --precisions bf16,mxfp8
mf fit --model mixtral-8x7b --cluster h100 --gpus 16 --global-batch 64 --seq 4096 --precisions bf16 --precision bf16
golden_end
