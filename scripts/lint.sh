#!/bin/sh
# clang-format (check only), cppcheck and clang-tidy over the tracked C sources; what docs and comments
# name exists (check_names.py). Exit 1 on a finding.
# One file a clang-tidy: several in one process give false va_list findings (clang 14).
set -u
build=$1
sh scripts/setup.sh --lint || exit 1
status=0
mkdir -p "$build"
files=$(git ls-files '*.c' '*.h' '*.cu' '*.cuh')
# Host code of the CUDA side needs the toolkit's headers: nvcc's build checks it.
c_files=$(git ls-files '*.c' | grep -vE '^tests/|_cuda\.c$|^bench/gpu/')
python3 scripts/check_names.py || status=1
# What tests load in front of a program is built where it is used: that of GPU runs on no machine of CI.
cc -std=c11 -Wall -fsyntax-only tests/preload/fault_cuda.c || status=1
echo "$files" | xargs clang-format --dry-run --Werror || status=1
# Every configuration that compilers of ours see: __GNUC__ they all define, and __CUDACC__ never for C.
echo "$c_files" | xargs cppcheck --quiet -j "$(nproc)" --std=c11 --enable=warning --inline-suppr \
    --suppress=missingIncludeSystem --error-exitcode=1 -I. -D__GNUC__ -U__CUDACC__ --force || status=1
if ! echo "$c_files" | xargs -P "$(nproc)" -I{} sh scripts/tidy.sh {} >"$build/tidy.log" 2>&1; then
    grep -v 'warnings generated' "$build/tidy.log"
    status=1
fi
[ $status = 0 ] && echo "lint: clean"
exit $status
