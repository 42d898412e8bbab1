#!/bin/sh
# Packs what a GPU machine without compilers and our libraries needs to train, to measure and to run the GPU
# tests and benchmarks: programs, profiles, the libraries that are neither the C library's nor CUDA's.
#   gpu-bundle.sh BUILD OUT.tar.xz   BUILD: a build without MPI. On the other machine:
#   tar xJf OUT.tar.xz && moefold-gpu/run moefold train ...     (or run test_kernels, run bench_train ...)
# NCCL_HOME=DIR        takes that libnccl.so.2 along (the one that BUILD was linked with)
# MOEFOLD_REFERENCES   a folder of reference models, for the tests that compare with them
set -eu
build=$1 out=$2
top=$(mktemp -d)
trap 'rm -rf "$top"' EXIT
to=$top/moefold-gpu
mkdir -p "$to/bin" "$to/lib"
for p in "$build/moefold" "$build/moefold-measure" "$build/libmoefold_cuda.so" \
    "$build"/gpu/tests/* "$build"/gpu/bench/*; do
    case $p in *.d | *.o) ;; *) [ -x "$p" ] && strip -o "$to/bin/${p##*/}" "$p" ;; esac
done
ours='lib(c|m|dl|rt|pthread|gcc_s|stdc\+\+|cuda|cudart|cublas|cublasLt|cudnn.*|nccl|nvrtc)\.so'
for p in "$to"/bin/*; do ldd "$p"; done | awk '$2 == "=>" && $3 ~ /^\// {print $3}' | sort -u |
    grep -vE "/$ours" | while read -r lib; do cp -L "$lib" "$to/lib/"; done
if [ -n "${NCCL_HOME:-}" ]; then
    for lib in "$NCCL_HOME/libnccl.so.2" "$NCCL_HOME/lib/libnccl.so.2"; do
        [ -f "$lib" ] && cp -L "$lib" "$to/lib/"
    done
fi
# What tests/gpu/faults.sh loads in front of cuBLASLt.
cc -std=c11 -O1 -fPIC -shared -s tests/preload/fault_cuda.c -o "$to/lib/fault_cuda.so" -ldl -lpthread
find profiles -name '*.json' -o -name '*.csv' | tar -cf - -T - | tar -C "$to" -xf -
[ -z "${MOEFOLD_REFERENCES:-}" ] || cp -rL "$MOEFOLD_REFERENCES" "$to/references"
cat >"$to/run" <<'R'
#!/bin/sh
# run PROGRAM ARGS: one of bin/, with the libraries and profiles beside it. CUDA's libraries are those of
# the toolkit, or of the wheels that PyTorch stands on, whose folders come first.
here=$(cd "$(dirname "$0")" && pwd)
wheels=$(python3 -c 'import glob, os, sys
print(":".join(d for p in sys.path for d in sorted(glob.glob(os.path.join(p, "nvidia", "*", "lib")))))' 2>/dev/null)
libs=$here/lib
[ -z "$wheels" ] || libs=$libs:$wheels
export LD_LIBRARY_PATH="$libs${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
export MOEFOLD_DATA="${MOEFOLD_DATA:-$here/profiles}"
[ ! -d "$here/references" ] || export MOEFOLD_REFERENCES="${MOEFOLD_REFERENCES:-$here/references}"
program=$1
shift
exec "$here/bin/$program" "$@"
R
chmod +x "$to/run"
tar -C "$top" -cf - moefold-gpu | xz -T0 -6 >"$out.part"
mv "$out.part" "$out"
echo "$out: $(du -h "$out" | cut -f1), $(find "$to/bin" -type f | wc -l) programs, $(find "$to/lib" -type f | wc -l) libraries"
