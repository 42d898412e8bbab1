# Mistakes on the command line: one clear line, exit 2.
. "${0%/*}/../driver.sh"
mf hepl
mf help nothing-like-it
mf help one two
mf --nonsense
mf help --markdwon
mf help --markdown=yes
mf help --tp 4
mf help -x
mf "$(printf 'two\nlines\033[31m')"
# Megatron's names, typed out of habit
mf plan --tensor-model-parallel-size 4
mf plan --expert_model_parallel_size=8
mf plan --moe-router-dtype fp32
# names of DeepSpeed, torchtitan and Hugging Face, and what people call things
for option in tp-size tensor_parallel_degree parallelism.tensor_parallel_degree ep-size expert-parallel-size virtual-pipeline-size \
    expert-tp mbs train_micro_batch_size_per_gpu per_device_train_batch_size gbs train-batch-size seq-len training.seq_len sequence_length \
    max_seq_length num-gpus GPUS hardware model_name_or_path zero-stage use-fsdp activation_checkpoint.mode gradient-checkpointing \
    offload-activations pipeline-parallel-schedule mixed-precision output sched \
    models dtype gradient-accumulation-steps num-microbatches dp-size data_parallel_replicate_degree world-size nnodes; do
    mf plan --$option 4
done
mf export --to bridge
mf export plan.json
mf plan deepseek-v3
mf plan --set num_hidden_layers 4
for command in sim optimize memory sizing launch version expl exp; do
    mf $command
done
# words of options
for word in 'precision bfloat16' 'precision fp8' 'schedule zero-bubble' 'dispatcher deepep' 'cp-type ulysses' 'recompute attention' \
    'cluster H100-SXM5-80GB' 'cluster hopper' 'cluster a100-80gb' 'seq 4,096'; do
    mf simulate --model olmoe-1b-7b --gpus 8 --global-batch 64 --$word
done
# names of models that are nearly right
for name in qwen3-235b Qwen/Qwen3-235B-A22B deepseek-ai/DeepSeek-V3-Base mixtral8x7b meta-llama/Llama-3.1-405B deepseek Qwen3 nowhere/x.json; do
    mf models $name
done
golden_end
