# One op: what can be priced, prices, and mistakes.
. "${0%/*}/../driver.sh"
mf price
mf_plain_lines '"op"' price --json
mf_masked price gemm m=2048 n=4096 k=8192 dtype=bf16 --cluster h200
mf_masked price all_reduce bytes=64MiB ranks=16 nodes=2 --cluster h100 --software megatron-26.06
mf_plain_lines "^all_to_all" price all_to_all bytes=64MiB ranks=20 --cluster h100 # on the hosts that they take
mf price all_to_all bytes=64MiB ranks=64 nodes=4 --cluster h100
mf_masked price dispatch tokens=4096 hidden=7168 topk=8 experts=256 ranks=8 impl=fused --cluster h100 --json
mf_masked price scan rule=gdn s=4096 hk=16 dk=128 hv=64 dv=128 --cluster h100
mf_masked price index pass=bwd s=8192 h=64 d=128 topk=2048 teacher=73728 --cluster h200
mf_masked price conv s=4096 channels=12288 --cluster h100
mf price scan rule=gdn s=4096 hk=16 dk=128 hv=40 dv=128 --cluster h100
mf price scan rule=rwkv s=4096 hk=16 dk=128 --cluster h100
mf price index s=8192 keys=4096 h=64 d=128 topk=2048 --cluster h100
mf price gem m=1 --cluster h100
mf price gemm m=4096 n=7168 --cluster h100
mf price gemm m=4096 n=7168 k=eight dtype=bf16 --cluster h100
mf price gemm m=4096 n=7168 k=2048 dtype=bf17 --cluster h100
mf price gemm m=4096 n=7168 kk=2048 dtype=bf16 --cluster h100
mf price all_reduce bytes=64Mib ranks=8 --cluster h100
mf price gemm m=4096 n=7168 k=2048 dtype=bf16
mf price gemm m=4096 n=7168 k=2048 dtype=bf16 --cluster h100 --software megatron
mf price gemm m=4096 n=7168 k=2048 dtype=bf16 --cluster h100 --software moefald
mf price gemm m=4096 n=7168 k=2048 dtype=bf16 --cluster h100 --store "$work/none.db"
mf price gemm m=4096 n=7168 k=2048 dtype=mxfp8 --cluster h100
mf price grouped_gemm experts=8 m=2048 n=4096 k=2048 dtype=nvfp4 --cluster mi355x
head -c 5000 /dev/zero >"$work/zero.db"
mf price gemm m=4096 n=7168 k=2048 dtype=bf16 --cluster h100 --store "$work/zero.db"
echo 'no database' >"$work/text.db"
mf price gemm m=4096 n=7168 k=2048 dtype=bf16 --cluster h100 --store "$work/text.db"
golden_end
