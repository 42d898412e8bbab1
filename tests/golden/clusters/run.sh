# What ships, one cluster with the source of every figure, a file of one's own, and mistakes.
. "${0%/*}/../driver.sh"
mf clusters
mf clusters h100
mf clusters gb200 --json
sed 's/"gpus_per_node"/"gpus_per_nod"/' profiles/clusters/h100.json >"$work/typo.json"
mf clusters "$work/typo.json"
sed 's/"sms": {"value": 132/"sms": {"value": "many"/' profiles/clusters/h100.json >"$work/type.json"
mf clusters "$work/type.json"
head -c 300 profiles/clusters/h100.json >"$work/short.json"
mf clusters "$work/short.json"
mf clusters h1000
mf clusters /nowhere
mf clusters --cluster h100
golden_end
