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
# names of models that are nearly right
for name in qwen3-235b Qwen/Qwen3-235B-A22B deepseek-ai/DeepSeek-V3-Base mixtral8x7b nowhere/x.json; do
    mf models $name
done
golden_end
