#!/bin/sh
# test-wheel.sh WHEEL PROGRAM: installs the wheel in a fresh virtual environment, without network, and runs the tests of the Python
# package there, away from the source tree's library and data. The ten lines of docs/LIBRARY.md take the pandas of this machine's
# python3, where it has one; PANDAS=1 fetches it from PyPI first.
set -eu
wheel=$1 program=$2
command -v python3 >/dev/null || { echo "test-wheel: SKIPPED: no python3"; exit 0; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv" >"$work/log" 2>&1 || {
    echo "test-wheel: SKIPPED: no virtual environment can be made (Debian: python3-venv):"
    tail -n 3 "$work/log"
    exit 0
}
"$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-index "$wheel"
if [ -n "${PANDAS:-}" ]; then
    echo "test-wheel: fetching pandas from PyPI"
    "$work/venv/bin/pip" install --quiet --disable-pip-version-check pandas
elif found=$(python3 -c 'import os, pandas; print(os.path.dirname(os.path.dirname(pandas.__file__)))' 2>/dev/null); then
    echo "test-wheel: with the pandas of $found"
    echo "$found" >"$("$work/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')/pandas.pth"
fi
# Tests and their documentation are copied: nothing of the tree is at hand but the program to compare with.
mkdir -p "$work/tests/python" "$work/docs"
cp tests/python/test_package.py "$work/tests/python/"
cp docs/LIBRARY.md "$work/docs/"
program=$(cd "$(dirname "$program")" && pwd)/$(basename "$program")
# The program was built for the data of a package that is not installed: it reads the tree's.
printf '#!/bin/sh\nMOEFOLD_DATA=%s exec %s "$@"\n' "$(pwd)/profiles" "$program" >"$work/moefold"
chmod +x "$work/moefold"
cd "$work"
env -i HOME="$work" PATH=/usr/bin:/bin MOEFOLD_WHEEL=1 MOEFOLD_PROGRAM="$work/moefold" "$work/venv/bin/python" tests/python/test_package.py
echo "test-wheel: $(basename "$wheel") works in a fresh environment"
