# Measuring into a store, with a script in place of the program that holds the CUDA side: what is
# missing and nothing else, stopped and taken up again, and refusals.
. "${0%/*}/../driver.sh"
MOEFOLD_MEASURE=$golden_case/worker.sh
export MOEFOLD_MEASURE
what='--model qwen3-30b-a3b --tp 1 --cp 1 --ep 8 --micro-batch 1'

MF_TEST_NONE=1 mf profile --store "$work/a.db"
MF_TEST_BUSY=2 mf profile --store "$work/a.db" $what
MF_TEST_HOT=1 mf profile --store "$work/a.db" $what
MOEFOLD_MEASURE=$work/none mf profile --store "$work/a.db"
MOEFOLD_MEASURE=/bin/true mf profile --store "$work/a.db"
test ! -e "$work/a.db" || exit 1

MF_TEST_STOP=5 mf profile --store "$work/a.db" $what
MF_TEST_INTERRUPT=7 mf_masked profile --store "$work/a.db" $what
mf_masked profile --store "$work/a.db" $what --progress
mf profile --store "$work/a.db" $what
MF_TEST_BUSY=1 mf profile --store "$work/a.db" $what --shared --json
$golden_binary profile --store "$work/a.db" --export "$work/a.csv" >/dev/null
grep -c 'cuda=99.0' "$work/a.csv" >>"$golden_transcript"
grep -m 1 'cuda=99.0' "$work/a.csv" | sed 's/,20[0-9-]*,/,DATE,/' >>"$golden_transcript"

grep 'h200,gemm.*cuda=99.0' "$work/a.csv" | head -2 | sed 's/,20[0-9-]*,/,DATE,/' >>"$golden_transcript"
MF_TEST_DRIVER=2 mf profile --store "$work/a.db" $what
$golden_binary profile --store "$work/a.db" --export "$work/a.csv" >/dev/null
grep -c ',again cublas-99' "$work/a.csv" >>"$golden_transcript"

MF_TEST_GPUS=2 mf_masked profile --store "$work/a.db" $what
mf profile --store "$work/a.db" $what --gpu mine --json
MF_TEST_HEAT=3 mf profile --store "$work/b.db" $what
mf profile --store "$work/b.db" $what
MF_TEST_BUSY=-1 mf profile --store "$work/a.db" $what
mf profile --store "$work/a.db" --check --shared
mf profile --store "$work/a.db" --check --tp 2
mf profile --store "$work/a.db" --check --gpu h200
mf profile --store "$work/a.db" --tp 2
mf profile --store "$work/a.db" --nodes 2
mf profile --store "$work/a.db" --import "$work/a.csv" --gpu h200
mf profile --store "$work/a.db" --import "$work/a.csv" --nodes 2
mf profile --store "$work/a.db" --model qwen3-30b-a3b --ep 7
golden_end
