# Weights, data, checkpoints, measured times, stores and clusters that lost a bit, were truncated or
# made up: found before use, in one line with file and place; exit 2, or 1 for what moefold itself
# wrote and finds damaged.
. "${0%/*}/../driver.sh"
job="--global-batch 2 --seq 16 --gpus 1"
mixtral=tests/data/hf/mixtral

bad() { # the message and the exit code alone; checksums are the machine's
    golden_run "$@" | sed "s|$work|TMP|g" | grep -E '^[$] |^exit |^$|^! ' |
        sed -E '/^! /s/CRC-32C (of its [0-9]+ bytes )?(is )?[0-9a-f]{8}/CRC-32C \1\2X/g; /^! /s/(not|be|says) [0-9a-f]{8}/\1 X/g; /^! /s/,[0-9a-f]{8}"/,X"/; s/\|[0-9a-f]{8}"/|X"/; s/[0-9]+ of [0-9]+ rows/N of N rows/; s/step [0-9]+: the (loss|gradient norm) is/step N: the sum is/; s/ is -?[0-9.]+e\+[0-9]+ at row [0-9]+, column [0-9]+/ is HUGE at its place/' |
        uniq >>"$golden_transcript"
}
poke() { # FILE OFFSET BYTES: as printf writes them
    # shellcheck disable=SC2059
    printf "$3" | dd of="$1" bs=1 seek="$2" conv=notrunc 2>/dev/null
}
le() { # BYTES VALUE...: little-endian integers
    le_width=$1
    shift
    for le_value in "$@"; do
        le_byte=0
        while [ $le_byte -lt "$le_width" ]; do
            # shellcheck disable=SC2059
            printf "\\$(printf %03o $((le_value >> (8 * le_byte) & 255)))"
            le_byte=$((le_byte + 1))
        done
    done
}

# --- weights ---
weights() { # a fresh copy of the weights
    rm -rf "$work/w"
    cp -r $mixtral "$work/w"
    chmod -R u+w "$work/w"
    file=$work/w/model.safetensors
}
start="train --init $work/w --data README.md $job --steps 1"
weights && truncate -s 5000 "$file" && bad $start
weights && truncate -s 724000 "$file" && bad $start
weights && truncate -s 5 "$file" && bad $start
weights && poke "$file" 20000 '\377\377\377\377' && bad $start
weights && poke "$file" 0 '\377\377\377\377\377\377\377\177' && bad $start
weights && poke "$file" 20 '\001' && bad $start
weights && poke "$file" 0 '\150\070\000' && bad $start
weights && sed -i 's/"F32","shape":\[256,32\]/"F64","shape":[256,32]/' "$file" && bad $start
weights && bad $start --set hidden_size=64
weights && rm "$file" && bad $start
echo '{"weight_map": {"a": "../../etc/passwd"}}' >"$file.index.json" && bad $start
echo '{"weight_map": {"a": "x.safetensors"}}' >"$file.index.json" && bad $start
echo '{"weight_map": 3}' >"$file.index.json" && bad $start

# --- data: headers of safetensors that were made up ---
data="train --init $mixtral $job --steps 1 --data"
tokens() { # HEADER: 100 tokens under it
    file=$work/tokens.safetensors
    { le 8 ${#1} && printf '%s' "$1" && head -c 400 /dev/zero; } >"$file"
}
tokens '{"x":{"dtype":"I32","shape":[100],"data_offsets":[0,400]}}' && bad $data "$file"
tokens '{"tokens":{"dtype":"F32","shape":[100],"data_offsets":[0,400]}}' && bad $data "$file"
tokens '{"tokens":{"dtype":"I32","shape":[-100],"data_offsets":[0,400]}}' && bad $data "$file"
tokens '{"tokens":{"dtype":"I32","shape":[100],"data_offsets":[0,4000]}}' && bad $data "$file"
tokens '{"tokens":{"dtype":"I32","shape":[100],"data_offsets":[400,0]}}' && bad $data "$file"
tokens '{"tokens":{"dtype":"I32","shape":[50],"data_offsets":[0,400]}}' && bad $data "$file"
tokens '{"tokens":{"dtype":"I32","shape":[1099511627776,1099511627776],"data_offsets":[0,400]}}' && bad $data "$file"
tokens '{"tokens":{"dtype":"I32","shape":[50],"data_offsets":[100,300]}}' && bad $data "$file"
tokens '{"tokens":{"dtype":"I32","shape":[100],"data_offsets":[0,400]},"b":{"dtype":"I32","shape":[100],"data_offsets":[0,400]}}' && bad $data "$file"
tokens '{"tokens":{"dtype":"I32","shape":[100],"data_offsets":[0,400]},"tokens":{}}' && bad $data "$file"
tokens '{"tokens":{"dtype":"Q4","shape":[100],"data_offsets":[0,400]}}' && bad $data "$file"
tokens '{"tokens":{"dtype":"I32","shape":[1,1,1,1,1,1,1,1,100],"data_offsets":[0,400]}}' && bad $data "$file"
tokens '{"__metadata__":{"crc32c|tokens":"12"},"tokens":{"dtype":"I32","shape":[100],"data_offsets":[0,400]}}' && bad $data "$file"
tokens '[]' && bad $data "$file"

# --- data: pairs of Megatron-LM ---
pair() { # DTYPE SEQUENCES DOCUMENTS LENGTHS POINTERS FIRSTS: an index over 800 bytes of tokens
    head -c 800 /dev/zero >"$work/pair.bin"
    {
        printf 'MMIDIDX\000\000'
        le 8 1 && le 1 "$1" && le 8 "$2" "$3"
        # shellcheck disable=SC2086
        le 4 $4 && le 8 $5 && le 8 $6
    } >"$work/pair.idx"
}
pair 8 2 3 '100 300' '0 200' '0 1 2' && mf_plain_lines '^!' $data "$work/pair" # sound
poke "$work/pair.idx" 0 'X' && bad $data "$work/pair"
pair 8 2 3 '100 300' '0 200' '0 1 2' && poke "$work/pair.idx" 9 '\002' && bad $data "$work/pair"
pair 77 2 3 '100 300' '0 200' '0 1 2' && bad $data "$work/pair"
pair 8 2 3 '100 -300' '0 200' '0 1 2' && bad $data "$work/pair"
pair 8 2 3 '100 300' '0 1099511627776' '0 1 2' && bad $data "$work/pair"
pair 8 1152921504606846976 3 '100 300' '0 200' '0 1 2' && bad $data "$work/pair"
pair 8 2 3 '100 300' '0 200' '0 5 2' && bad $data "$work/pair"
pair 8 2 3 '100 200' '0 200' '0 1 2' && bad $data "$work/pair"
pair 8 2 3 '100 300' '0 200' '0 1 2' && truncate -s 700 "$work/pair.bin" && bad $data "$work/pair"
pair 8 2 3 '100 300' '0 200' '0 1 2' && truncate -s 40 "$work/pair.idx" && bad $data "$work/pair"
pair 8 2 3 '100 300' '0 200' '0 1 2' && rm "$work/pair.idx" && bad $data "$work/pair.bin"
pair 8 2 3 '100 300' '0 200' '0 1 2' && printf '\377\377\377\377' | dd of="$work/pair.bin" bs=4 seek=6 conv=notrunc 2>/dev/null
bad $data "$work/pair" --shuffle off
: >"$work/text" && bad $data "$work/text"
echo hi >"$work/text" && bad $data "$work/text"
bad $data "0:README.md"
bad $data "1:README.md,nan:README.md"
bad $data .

# --- checkpoints: a run of two steps ---
run="train --init $mixtral --data README.md $job --shuffle off"
$golden_limit "$golden_binary" $run --steps 2 --out "$work/whole" >"$work/.out" 2>&1
fresh() {
    rm -rf "$work/run"
    cp -r "$work/whole" "$work/run"
    at=$work/run/checkpoints/step-00000002
}
go="$run --steps 3 --resume --out $work/run"
fresh && truncate -s 1000 "$at/rank-00000.safetensors" && bad $go
fresh && truncate -s -5 "$at/rank-00000.safetensors" && bad $go
fresh && poke "$at/rank-00000.safetensors" 0 '\377\377\377\377' && bad $go
fresh && poke "$at/rank-00000.safetensors" 100 'Z' && bad $go
fresh && poke "$at/rank-00000.safetensors" 300000 'ZZ' && bad $go
fresh && poke "$at/manifest.json" 40 'Z' && bad $go
fresh && : >"$at/manifest.json" && bad $go
fresh && truncate -s 200 "$at/manifest.json" && bad $go
fresh && rm "$at/manifest.json" && bad $go
fresh && rm "$at/rank-00000.safetensors" && bad $go
fresh && bad $go --set num_experts_per_tok=1
# a bit of the weights that the run left for others
fresh && poke "$work/run/hf/model.safetensors" 100000 'Z'
bad train --init "$work/run/hf" --data README.md $job --steps 1
# a step that leaves the finite numbers ends the run
bad train --init $mixtral --data README.md $job --steps 9 --lr 1000 --clip 0 --shuffle off

# --- measured times ---
fresh && rm "$work/run/op_times.json" && bad compare --run "$work/run"
fresh && truncate -s 300 "$work/run/op_times.json" && bad compare --run "$work/run"
fresh && sed -i 's/"ops"/"opz"/' "$work/run/op_times.json" && bad compare --run "$work/run"
fresh && sed -i 's/"step_time_s": [0-9.e-]*/"step_time_s": "fast"/' "$work/run/op_times.json" && bad compare --run "$work/run"
fresh && sed -i 's/"step_time_s": [0-9.e-]*/"step_time_s": -1/' "$work/run/op_times.json" && bad compare --run "$work/run"
fresh && sed -i 's/"block": 0/"block": 99/' "$work/run/op_times.json" && bad compare --run "$work/run"
fresh && printf '\377\376\000' >"$work/run/op_times.json" && bad compare --run "$work/run"
fresh && truncate -s 100 "$work/run/plan.json" && bad compare --run "$work/run"
fresh && rm "$work/run/config.json" && bad compare --run "$work/run"
fresh && bad compare --run "$work/run" --export /nowhere/x.csv

# --- stores, for every command that prices ---
moe="--cluster h200 --gpus 8 --global-batch 8 --seq 4096"
bad plan --model olmoe-1b-7b $moe --store README.md
bad fit --model olmoe-1b-7b $moe --store README.md
bad explain --model olmoe-1b-7b $moe --store README.md
bad capacity --models olmoe-1b-7b --clusters h200 --sizes 8 --global-batch 8 --seq 4096 --store README.md
bad compare --run "$work/run" --store "$work/none.db"
$golden_limit "$golden_binary" profile --store "$work/a.db" --rebuild >"$work/.out" 2>&1
sed 's/m=2048 n=4096 k=8192 layout=nt acc=0/m=2048 n=4096 k=8192 layout=nt acc=1/g' "$work/a.db" >"$work/bit.db" # one digit
bad plan --model olmoe-1b-7b $moe --store "$work/bit.db"
bad profile --store "$work/bit.db" --check

# --- clusters and what is imported ---
echo '{"extends": "h100", "gpu": {"memory_B": "80GB"}}' >"$work/c.json" && bad clusters "$work/c.json"
echo '{"extends": "h1000"}' >"$work/c.json" && bad clusters "$work/c.json"
echo '{"extends": "'"$work/c.json"'"}' >"$work/c.json" && bad clusters "$work/c.json"
echo '{"extends": "h100", "gpus_per_nod": 4}' >"$work/c.json" && bad clusters "$work/c.json"
head -c 300 profiles/clusters/h100.json >"$work/c.json" && bad clusters "$work/c.json"
head -c 100000 /dev/zero | tr '\000' '[' >"$work/c.json" && bad clusters "$work/c.json"
printf 'gpu,op,dims,time_s\nh200,gemm,"dtype=bf16 m=1 n=1 k=1,1e-6\n' >"$work/i.csv"
bad profile --store "$work/a.db" --import "$work/i.csv"
printf 'gpu,op,dims,time_s\nh200,gemm,dtype=bf16 m=1 n=1 k=1,-1\n' >"$work/i.csv"
bad profile --store "$work/a.db" --import "$work/i.csv"
printf '\000\001\002' >"$work/i.csv"
bad profile --store "$work/a.db" --import "$work/i.csv"
cp "$work/i.csv" "$work/i.txt"
bad profile --store "$work/a.db" --import "$work/i.txt" --gpu h200
golden_end
