# Why a layout fits or does not and where its time goes, for people.
. "${0%/*}/../driver.sh"
heads='^(mixtral|layout|rests|step time|rate|MFU|memory|where|what|its)'
mf_lines "$heads" explain --model mixtral-8x7b --cluster h100 --gpus 16 --global-batch 64 --seq 4096 --tp 2 --pp 2 --ep 4 --top 3
mf_lines "$heads" explain --model mixtral-8x7b --cluster h100 --gpus 8 --global-batch 64 --seq 4096 --ep 8 --top 1
mf explain --model mixtral-8x7b --cluster h100 --gpus 16 --global-batch 64 --seq 4096 --ep 5
mf explain
golden_end
