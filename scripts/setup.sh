#!/bin/sh
# Makes sure that the build's Debian packages are there: installs them when root, else prints the
# one command to run. Quiet when nothing is missing. "--lint" adds the linters. Open MPI is wanted
# for ranks but not needed: without it (NO_MPI=1 asks for none) everything builds and trains on one.
# The CUDA toolkit is NVIDIA's to install: where it is there in part, it prints what of it is missing (CUDA_LACKS).
set -eu
if [ -n "${CUDA_LACKS:-}" ]; then
    echo "setup: nvcc is here, but no $CUDA_LACKS: built without the GPU side. cuDNN and NCCL are" >&2
    echo "    the packages libcudnn9-dev-cuda-13 and libnccl-dev of NVIDIA's repository (CUDA=0: say no more)" >&2
fi
need="gcc:gcc make:make pkg-config:pkg-config"
missing=""
for pair in $need; do
    command -v "${pair%%:*}" >/dev/null 2>&1 || missing="$missing ${pair##*:}"
done
has_header() {
    printf '#include <%s>\n' "$1" | ${CC:-cc} -x c -E - >/dev/null 2>&1
}
compiler=${CC:-cc} # maybe with a cache in front ("ccache cc")
if command -v "${compiler##* }" >/dev/null 2>&1; then
    has_header stdlib.h || missing="$missing libc6-dev"
    has_header glpk.h || missing="$missing libglpk-dev"
    has_header cjson/cJSON.h || missing="$missing libcjson-dev"
    has_header sqlite3.h || missing="$missing libsqlite3-dev"
    printf '#include <stdarg.h>\n#include <stddef.h>\n#include <stdint.h>\n#include <setjmp.h>\n#include <cmocka.h>\n' |
        ${CC:-cc} -x c -E - >/dev/null 2>&1 || missing="$missing libcmocka-dev"
else
    missing=" gcc libc6-dev pkg-config libglpk-dev libcjson-dev libsqlite3-dev libcmocka-dev"
fi
if [ "${1:-}" = "--lint" ]; then
    for pair in python3:python3 clang-format:clang-format clang-tidy:clang-tidy cppcheck:cppcheck clang:clang; do
        command -v "${pair%%:*}" >/dev/null 2>&1 || missing="$missing ${pair##*:}"
    done
fi
mpi=""
if [ -z "${NO_MPI:-}" ]; then
    pkg-config --exists ompi-c 2>/dev/null || pkg-config --exists mpich 2>/dev/null ||
        mpi=" libopenmpi-dev"
    command -v mpirun >/dev/null 2>&1 || mpi="$mpi openmpi-bin"
fi
[ -n "$missing$mpi" ] || exit 0
if [ -z "$missing" ] && [ "$(id -u)" != 0 ]; then
    echo "setup: without MPI training runs on one rank; for more:" >&2
    echo "    sudo apt-get update && sudo apt-get install -y --no-install-recommends$mpi" >&2
    exit 0
fi
needed=$missing
missing=$missing$mpi
command="apt-get install -y --no-install-recommends$missing"
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "setup: $command" >&2
    log=$(mktemp)
    trap 'rm -f "$log"' EXIT
    if ! { apt-get update && DEBIAN_FRONTEND=noninteractive $command; } >"$log" 2>&1; then
        if [ -z "$needed" ]; then
            echo "setup: could not install MPI: training runs on one rank" >&2
            exit 0
        fi
        tail -n 15 "$log" >&2
        echo "setup: could not install the packages above; install them and try again" >&2
        exit 1
    fi
else
    echo "setup: packages are missing. Run this, then try again:" >&2
    echo "    sudo apt-get update && sudo $command" >&2
    exit 1
fi
