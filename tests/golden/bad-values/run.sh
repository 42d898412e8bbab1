# Values of every command that are wrong in type, range, unit or spelling, that contradict each other
# or the job, and jobs that fit nowhere: one clear line, exit 2 for a mistake, 3 for a job that
# cannot be, and never a crash. Layouts of `simulate` are in bad-layouts, files in bad-files and
# hostile-files.
. "${0%/*}/../driver.sh"
moe="--model olmoe-1b-7b"
on="--cluster h100 --gpus 8 --global-batch 8 --seq 4096"
# the message and the exit code alone
bad() {
    mf_plain_lines '^! ' "$@"
}

# plan and fit: numbers
bad plan $moe --cluster h100 --gpus 8.5 --global-batch 8 --seq 4096
bad plan $moe --cluster h100 --gpus 99999999999999999999 --global-batch 8 --seq 4096
bad plan $moe --cluster h100 --gpus 8 --global-batch 0 --seq 4096
bad plan $moe --cluster h100 --gpus 8 --global-batch 8 --seq 4x
bad plan $moe --cluster h100 --gpus 8 --global-batch 8 --seq 1000000000
bad plan $moe $on --gap 3s
bad plan $moe $on --gap 300%
bad plan $moe $on --effort 0
bad plan $moe $on --threads 100000
bad plan $moe $on --top -1
bad plan $moe $on --precisions bf16,int8
bad plan $moe $on --precision bf16 --precisions bf16,fp8-block
bad plan $moe $on --precisions bf16,nvfp4
bad plan $moe $on --even-stage
bad plan $moe $on --json=yes
bad plan $moe $on --out
bad plan --model '' $on
bad fit $moe $on --top all
# ... degrees that leave nothing to search name the rule that they break
bad plan $moe $on --tp 3
bad fit $moe $on --tp 16
bad fit $moe $on --ep 128
bad plan $moe $on --tp 4 --pp 4
bad fit $moe $on --schedule zb-v --vpp 3
bad fit $moe $on --micro-batch 16
bad fit $moe --cluster h100 --gpus 16 --global-batch 1 --seq 4096 --tp 1 --cp 1 --pp 1
bad fit --model llama3-8b $on --ep 2
bad fit $moe --cluster h100 --gpus 8 --global-batch 8 --seq 4095 --tp 2
# ... and nothing fits: what is missing, and the smallest size that would do
bad plan --model llama3-405b $on
bad fit --model mixtral-8x22b --cluster h100 --gpus 8 --global-batch 64 --seq 4096
bad plan --model llama3-8b --cluster h100 --gpus 10007 --global-batch 8 --seq 4096
bad plan $moe --cluster h100 --gpus 1009 --global-batch 64 --seq 4096
bad fit --model llama3-405b --cluster h100 --gpus 8 --global-batch 64 --seq 4096 --tp 1 --cp 1 --pp 1 --zero 0
bad capacity --models mixtral --clusters h100 --sizes 8 --global-batch 8 --seq 4096
bad capacity --models llama3-8b --clusters h1000 --sizes 8 --global-batch 8 --seq 4096
bad capacity --models llama3-405b --clusters h100 --sizes 8 --global-batch 8 --seq 4096

# explain
bad explain
bad explain $moe
bad explain $moe $on --ep 3
bad explain $moe $on --top none

# price
bad price gem m=1 n=1 k=1 --cluster h100
bad price gemm
bad price gemm m=2048 n=4096 k=8192 --cluster h100
bad price gemm m=2048 n=4096 k=8192 dtype=int4 --cluster h100
bad price gemm m=2048 n=4096 k=8192 dtype=nvfp4 --cluster h100
bad price gemm m=0 n=4096 k=8192 dtype=bf16 --cluster h100
bad price gemm m=1e300 n=4096 k=8192 dtype=bf16 --cluster h100
bad price gemm m=2048 m=2 n=4096 k=8192 dtype=bf16 --cluster h100
bad price gemm m=2048 n=4096 k=8192 dtype=bf16 z=1 --cluster h100
bad price all_reduce bytes=1M ranks=8 --cluster h100

# capacity
bad capacity
bad capacity --models olmoe-1b-7b,none --clusters h100 --sizes 8 --global-batch 8 --seq 4096
bad capacity --models olmoe-1b-7b --clusters h10 --sizes 8 --global-batch 8 --seq 4096
bad capacity --models olmoe-1b-7b --clusters h100 --sizes 8,x --global-batch 8 --seq 4096
bad capacity --models olmoe-1b-7b --clusters h100 --sizes , --global-batch 8 --seq 4096
bad capacity --models olmoe-1b-7b --clusters h100 --sizes 64:256 --global-batch 8 --seq 4096
bad capacity --models olmoe-1b-7b --clusters h100 --sizes 1K..512 --global-batch 8 --seq 4K
bad capacity --models olmoe-1b-7b --clusters "h100, h1000" --sizes 8 --global-batch 8 --seq 4096
bad capacity --models olmoe-1b-7b --clusters h100 --sizes 8,,16 --global-batch 8 --seq 4096
bad capacity --models olmoe-1b-7b --clusters h100, --sizes 8 --global-batch 8 --seq 4096
bad capacity --models olmoe-1b-7b --clusters h100 --sizes 8 --global-batch 8 --seq 4096 --tokens 1TB
bad capacity --models olmoe-1b-7b --clusters h100 --sizes 8 --global-batch 8 --seq 4096 --tokens 1T --deadline 7
bad capacity --models olmoe-1b-7b --clusters h100 --sizes 8 --global-batch 8 --seq 4096 --deadline 7d

# export, models, clusters
bad export
bad export --plan profiles/models/olmoe-1b-7b.json
bad export --plan profiles/models/olmoe-1b-7b.json --format nemo
bad models none
bad models /dev/null
bad models olmoe-1b-7b --set
bad models olmoe-1b-7b --set x
bad models olmoe-1b-7b --set hidden_size=huge
bad models olmoe-1b-7b --set num_experts_per_tok=1000
bad models olmoe-1b-7b --set num_attention_heads=7
bad models olmoe-1b-7b extra
bad models --set hidden_size=1
bad clusters none
bad clusters profiles
bad clusters h100 h200
bad clusters profiles/models/olmoe-1b-7b.json

# profile and compare
bad profile
bad profile --store "$work"  --check
bad profile --store "$work/a.db" --import /dev/null
bad compare --run "$work/none"
bad compare --run "$work/none" --tolerance x
bad simulate $moe $on --software megatron-99
bad simulate $moe $on --software profiles/models/olmoe-1b-7b.json

# train
job="train --init tests/data/hf/mixtral --data README.md --global-batch 2 --seq 16"
bad $job --steps -1
bad $job --steps 1 --lr x
bad $job --steps 1 --clip -1
bad $job --steps 1 --shuffle maybe
bad $job --steps 1 --save-every -1
bad $job --steps 1 --betas 2
bad $job --steps 1 --gpus 3
bad $job --steps 1 --gpus 2 --ep 3
bad $job --steps 1 --precision fp8-block
bad $job --steps 1 --plan README.md
bad train --init /nowhere --data README.md --global-batch 2 --seq 16 --steps 1
# families that are planned and not run, and what is left out of them
bad train --model qwen3-next-80b-a3b --data README.md --global-batch 2 --seq 16 --steps 1
bad train --model glm-5.2 --data README.md --global-batch 2 --seq 16 --steps 1
bad train --model deepseek-v4-flash --data README.md --global-batch 2 --seq 16 --steps 1
bad fit --model minimax-m2.5 --cluster h200 --gpus 64 --global-batch 64 --seq 4096 --json --strict
golden_end
