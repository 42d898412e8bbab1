# `make install` and `make uninstall` of this build: what they put where, that no other symbol than the header's leaves the
# library, that a C program finds it through pkg-config, and that nothing stays behind.
. "${0%/*}/../driver.sh"
build=${MF_BUILD:-build}
root=$work/root
# Nothing is built anew here: the goal `build` is taken as done, whatever flags it was built with.
by_make() { MAKEFLAGS='' make -s -o build "$1" CUDA=0 BUILD="$build" DESTDIR="$root" PREFIX=/opt/m >"$work/log" 2>&1 || cat "$work/log"; }
mkdir -p "$root/opt/m/share/man/man1"
: >"$root/opt/m/share/man/man1/other.1"
{
    by_make install
    (cd "$root" && find . ! -type d ! -path './opt/m/share/moefold/*' ! -name moefold-measure ! -name libmoefold_cuda.so | sort)
    echo "data: $(ls "$root/opt/m/share/moefold" | tr '\n' ' ')"
    echo "exported:"
    nm -D --defined-only "$root/opt/m/lib/libmoefold.so" | sed -n 's/@.*//; s/^[0-9a-f]* T //p'
    grep -o 'moefold_[a-z_]*(' include/moefold.h | sort -u | tr -d '(' >"$work/header"
    nm -D --defined-only "$root/opt/m/lib/libmoefold.so" | sed -n 's/@.*//; s/^[0-9a-f]* T //p' | sort | diff - "$work/header"
} >>"$golden_transcript" 2>&1
if command -v pkg-config >/dev/null && [ -z "${MF_SANITIZED:-}" ]; then
    sed -n '/^```c$/,/^```$/p' docs/LIBRARY.md | grep -v '^```' >"$work/example.c"
    for static in '' --static; do
        flags=$(PKG_CONFIG_LIBDIR=$root/opt/m/lib/pkgconfig PKG_CONFIG_SYSROOT_DIR=$root pkg-config $static --cflags --libs moefold)
        # shellcheck disable=SC2086
        ${CC:-cc} -Wall -Werror "$work/example.c" $flags -Wl,-rpath,"$root/opt/m/lib" -o "$work/example" ||
            echo "the C example does not build ($static)" >>"$golden_transcript"
    done
    (cd "$work" && env -u MOEFOLD_DATA ./example >plan.txt && grep -q '"step_time_s"' plan.txt && [ -s plan.json ]) ||
        echo "the C example does not plan" >>"$golden_transcript"
fi
{
    by_make uninstall
    echo "left:"
    (cd "$root" && find . ! -type d)
} >>"$golden_transcript" 2>&1
golden_end
