#!/bin/sh
# deb.sh BUILD VERSION ROOT OUT [MPI_PROGRAM]: makes OUT/moefold_VERSION_ARCH.deb of what `make install` put under ROOT. BUILD is where
# that was built. MPI_PROGRAM goes in as moefold-mpi, whose libraries are recommended, not needed.
set -eu
maintainer="moefold <moefold@localhost>"
version=$2 root=$3 out=$4 mpi=${5:-}
for tool in dpkg-deb dpkg-shlibdeps strip; do
    command -v $tool >/dev/null || { echo "deb: no $tool (Debian: dpkg-dev, binutils)" >&2; exit 1; }
done
arch=$(dpkg --print-architecture)
doc=$root/usr/share/doc/moefold
mkdir -p "$root/DEBIAN" "$doc" "$out"
[ -z "$mpi" ] || install "$mpi" "$root/usr/bin/moefold-mpi"
strip --strip-unneeded "$root"/usr/bin/* "$root"/usr/lib/*/libmoefold.so.*
gzip -9nf "$root"/usr/share/man/man1/*.1
{
    cat NOTICE
    for licence in Apache-2.0 GPL-3; do
        printf '\nOn Debian systems the text of %s stands in /usr/share/common-licenses/%s.\n' $licence $licence
    done
} >"$doc/copyright"
gzip -9nc CHANGELOG.md >"$doc/CHANGELOG.md.gz"
changed=$(date -R -u -d "@${SOURCE_DATE_EPOCH:-$(stat -c %Y CHANGELOG.md)}")
printf 'moefold (%s) unstable; urgency=low\n\n  * CHANGELOG.md.gz has what changed.\n\n -- %s  %s\n' \
    "$version" "$maintainer" "$changed" | gzip -9n >"$doc/changelog.gz"
if [ -n "$mpi" ]; then # manual page and completion of the same program
    ln -s moefold.1.gz "$root/usr/share/man/man1/moefold-mpi.1.gz"
    ln -s moefold "$root/usr/share/bash-completion/completions/moefold-mpi"
fi
cp docs/CLI.md docs/TOUR.md docs/LIBRARY.md "$doc/"
# What the libraries are called on this system, as dpkg knows them.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/debian"
printf 'Source: moefold\n\nPackage: moefold\nArchitecture: any\n' >"$work/debian/control"
depends_on() { # FILE...
    (cd "$work" && dpkg-shlibdeps -O --ignore-missing-info "$@" 2>/dev/null) | sed -n 's/^shlibs:Depends=//p'
}
root=$(cd "$root" && pwd)
depends=$(depends_on "$root/usr/bin/moefold" "$root"/usr/lib/*/libmoefold.so.*)
recommends=""
if [ -n "$mpi" ]; then
    recommends=$(depends_on "$root/usr/bin/moefold-mpi" | tr ',' '\n' | sed 's/^ *//' | grep -i mpi | paste -sd, -)
    recommends="Recommends: ${recommends:+$recommends, }openmpi-bin"
fi
{
    echo "Package: moefold"
    echo "Version: $version"
    echo "Architecture: $arch"
    echo "Maintainer: $maintainer"
    echo "Section: science"
    echo "Priority: optional"
    echo "Installed-Size: $(du -sk "$root" | cut -f1)"
    echo "Depends: $depends"
    [ -z "$recommends" ] || echo "$recommends"
    echo "Description: plan, predict and run the training of Mixture-of-Experts models"
    echo " Finds the fastest way to fold a Mixture-of-Experts training job onto a"
    echo " GPU cluster, predicts what a step costs in time, memory and money, and"
    echo " trains on CPU ranks. With the library libmoefold.so, its header, manual"
    echo " page and shell completions."
    [ -z "$mpi" ] || echo " moefold-mpi is the same program for ranks on several hosts, over MPI."
} >"$root/DEBIAN/control"
echo "activate-noawait ldconfig" >"$root/DEBIAN/triggers"
echo "libmoefold 0 moefold" >"$root/DEBIAN/shlibs"
dpkg-deb --root-owner-group --build "$root" "$out/moefold_${version}_$arch.deb"
