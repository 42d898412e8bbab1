# Why a layout fits or does not and where its time goes, for people.
. "${0%/*}/../driver.sh"
heads='^(mixtral|layout|rests|step time|rate|MFU|memory|where|what|its)'
mf_lines "$heads" explain --model mixtral-8x7b --cluster h100 --gpus 16 --global-batch 64 --seq 4096 --tp 2 --pp 2 --ep 4 --top 3
mf_lines "$heads" explain --model mixtral-8x7b --cluster h100 --gpus 8 --global-batch 64 --seq 4096 --ep 8 --top 1
mf explain --model mixtral-8x7b --cluster h100 --gpus 16 --global-batch 64 --seq 4096 --ep 5
mf explain
# Remedies are priced from the store that the step is: one in which products take four times as long.
awk -F, -v OFS=, '$1 == "gpu" { print }
    $2 ~ /gemm/ && ++n <= 300 { for (i = 4; i <= 6; i++) $i *= 4; print }' profiles/measured/profile_h100.csv >"$work/slow.csv"
$golden_limit "$golden_binary" profile --store "$work/slow.db" --import "$work/slow.csv" >/dev/null
$golden_limit "$golden_binary" explain --model mixtral-8x7b --cluster h100 --gpus 16 --global-batch 64 --seq 4096 --tp 2 --pp 2 --ep 4 \
    --store "$work/slow.db" | awk '/^step time/ { now = $3 }
        /GEMMs 10 % faster/ { print(($5 > 0.85 * now && $5 < now) ? "remedies are priced from the store" : "REMEDIES REST ON OTHER PRICES") }' \
    >>"$golden_transcript"
golden_end
