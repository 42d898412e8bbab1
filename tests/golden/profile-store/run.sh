# The profile store: built, checked, written out, taken in; damaged in a row, truncated, filled with
# noise: reported in one line with the way to rebuild it, and never priced from.
. "${0%/*}/../driver.sh"
op='gemm m=2048 n=4096 k=8192 dtype=bf16 --cluster h200'
mf_masked profile --store "$work/a.db" --rebuild
mf_masked profile --store "$work/a.db" --check --json
mf_masked profile --store "$work/a.db" --export "$work/a.csv"
mf_masked profile --store "$work/b.db" --import "$work/a.csv"
$golden_binary profile --store "$work/b.db" --export "$work/b.csv" >/dev/null
cmp "$work/a.csv" "$work/b.csv" || exit 1
mf_masked price $op --store "$work/b.db"

sed 's/m=2048 n=4096 k=8192 layout=nt acc=0/m=2048 n=4096 k=8192 layout=nt acc=1/g' "$work/a.db" >"$work/row.db" # one digit of one key
mf_masked price $op --store "$work/row.db"
mf_masked simulate --model mixtral-8x7b --cluster h200 --gpus 64 --global-batch 256 --seq 4096 --ep 8 --store "$work/row.db"
mf_masked profile --store "$work/row.db" --check
: >"$work/empty.db" # what an interrupted copy leaves; reading must not make a store of it
mf price $op --store "$work/empty.db"
mf profile --store "$work/empty.db" --check
test ! -s "$work/empty.db" || exit 1
cp "$work/a.db" "$work/page.db"
yes | dd of="$work/page.db" bs=1 seek=40960 count=500 conv=notrunc status=none
mf_masked price $op --store "$work/page.db"
head -c 30000 "$work/a.db" >"$work/cut.db"
mf_masked profile --store "$work/cut.db" --check
mf_masked profile --store "$work/cut.db" --rebuild
mf_masked profile --store "$work/cut.db" --check

MOEFOLD_MEASURE=$work/none mf profile --store "$work/a.db"
mf profile --check
mf profile --store "$work/a.db" --check --rebuild
mf profile --store "$work/none.db" --check
mf profile --store "$work/a.db" --import "$work/none.csv"
mf profile --store "$work/a.db" --import "$work/none.txt"
: >"$work/nccl.txt"
mf profile --store "$work/a.db" --import "$work/nccl.txt"
echo 'gpu,op,dims,time_s' >"$work/bad.csv"
echo 'h200,gemm,dtype=bf16 m=1 n=1,1e-6' >>"$work/bad.csv"
mf profile --store "$work/a.db" --import "$work/bad.csv"
mf profile --store "$work/new.db" --import "$work/bad.csv"
test ! -e "$work/new.db" || exit 1 # a file that is refused makes no store
golden_end
