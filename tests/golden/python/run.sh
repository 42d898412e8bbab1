# The Python package over the library of this build, where there is a Python. No transcript: tests/python says what it asks.
if ! command -v python3 >/dev/null; then
    echo "MF_SKIPPED 1 no python3: the Python package was not tested"
    exit 0
fi
if [ -n "${MF_SANITIZED:-}" ]; then
    echo "MF_SKIPPED 1 a Python without sanitizers cannot load a library with them"
    exit 0
fi
build=${MF_BUILD:-build}
MOEFOLD_LIBRARY=$(cd "$build" && pwd)/libmoefold.so MOEFOLD_PROGRAM=$(cd "$build" && pwd)/moefold \
    PYTHONPATH=python PYTHONDONTWRITEBYTECODE=1 exec python3 tests/python/test_package.py
