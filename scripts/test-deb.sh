#!/bin/sh
# test-deb.sh DEB: unpacks the package into a scratch root and uses what lies in it: lists, plans, trains two ranks, reads the manual page, sources
# the completion, and builds the C example of docs/LIBRARY.md against library, header and pkg-config file.
set -eu
deb=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
here=$(pwd)
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
fail() { echo "test-deb: $*"; exit 1; }
dpkg -x "$deb" "$root"
cd "$root"
program=$root/usr/bin/moefold
lib=$(echo "$root"/usr/lib/*/libmoefold.so.0)
case $(dpkg-deb -f "$deb" Depends) in *mpi*) fail "the package needs MPI" ;; *libglpk*) ;; *) fail "its dependencies are incomplete" ;; esac
! ldd "$program" "$lib" | grep -i 'mpi\|cuda' || fail "program or library are linked with MPI or CUDA"
run() { env -i PATH=/usr/bin:/bin HOME="$root" LC_ALL=C.UTF-8 "$@"; }
run "$program" --version
[ "$(run "$program" models --json | grep -c '"name"')" -ge 40 ] || fail "models do not ship"
run "$program" plan --model mixtral-8x7b --cluster h100 --gpus 16 --global-batch 64 --seq 4096 --pp 2 --ep 8 --out plan.json >plan.txt
grep -q '^step time' plan.txt || fail "no plan"
# Data of the package, not of the tree that it was built in.
! grep -q "$here" "$program" "$lib" || fail "the build folder stands in what is shipped"
run "$program" train --model mixtral-8x7b --set num_hidden_layers=2 --set hidden_size=64 --set intermediate_size=64 --set vocab_size=256 \
    --gpus 2 --ep 2 --global-batch 4 --seq 32 --data usr/share/doc/moefold/copyright --steps 2 >train.txt 2>&1 ||
    { tail -n 5 train.txt; fail "two ranks of this host do not train without MPI"; }
if command -v man >/dev/null; then
    run man -l usr/share/man/man1/moefold.1.gz | grep -q 'MOEFOLD(1)' || fail "the manual page cannot be read"
fi
[ ! -e usr/bin/moefold-mpi ] || [ -e usr/share/man/man1/moefold-mpi.1.gz ] || fail "moefold-mpi has no manual page"
grep -q 'GPL-3' usr/share/doc/moefold/copyright || fail "its copyright file does not name GPL-3"
! dpkg-deb -f "$deb" Description | grep '.\{80,\}' || fail "lines of the description are too long"
bash -n usr/share/bash-completion/completions/moefold
head -n 1 usr/share/zsh/vendor-completions/_moefold | grep -qx '#compdef moefold moefold-mpi' || fail "no completion for zsh"
sed -n '/^```c$/,/^```$/p' "$here/docs/LIBRARY.md" | grep -v '^```' >example.c
flags=$(PKG_CONFIG_LIBDIR=$(dirname "$lib")/pkgconfig PKG_CONFIG_SYSROOT_DIR=$root pkg-config --cflags --libs moefold)
# shellcheck disable=SC2086
${CC:-cc} example.c $flags -Wl,-rpath-link,"$(dirname "$lib")" -o example
run env LD_LIBRARY_PATH="$(dirname "$lib")" ./example >example.json
grep -q '"step_time_s"' example.json || fail "the C example does not plan"
[ ! -e "$root/usr/bin/moefold-mpi" ] || ! command -v mpirun >/dev/null || run "$root/usr/bin/moefold-mpi" models >/dev/null || fail "moefold-mpi does not start"
echo "test-deb: $(basename "$deb") works in a scratch root"
