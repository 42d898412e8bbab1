# What ships, one model for people and as JSON, a config.json by path, --set, and mistakes.
. "${0%/*}/../driver.sh"
mf models
mf models deepseek-v3
mf models olmoe-1b-7b --json
mf models nemotron-3-nano
mf models minimax-m2.5 --strict
mf simulate --model glm-5 --cluster h200 --gpus 64 --global-batch 64 --seq 4096
mkdir "$work/tiny"
cp profiles/models/mixtral-8x7b.json "$work/tiny/config.json"
mf models "$work/tiny/config.json" --set num_hidden_layers=2
mf models depseek-v3
mf models nowhere/config.json
mf models deepseek-v3 mixtral-8x7b
mf models olmoe-1b-7b --set num_experts=eight
mf models olmoe-1b-7b --set num_experts
mf models --set num_experts=8
mf models --jsn
golden_end
