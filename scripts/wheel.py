"""wheel.py LIBRARY VERSION OUT: writes OUT/moefold-VERSION-py3-none-manylinux_*.whl.

LIBRARY is libmoefold.so.N with an rpath of $ORIGIN (DT_RPATH, which its own libraries follow, too). In the wheel lie beside it:
the Python package, the data that ships, every shared library that it needs and glibc does not bring, and their copyright files.
The tag names the newest glibc symbol that any of them asks for. Standard library and binutils alone; no network.
"""

import base64
import hashlib
import os
import platform
import re
import subprocess
import sys
import zipfile

OF_GLIBC = re.compile(r"^(linux-vdso|ld-linux.*|libc|libm|libpthread|libdl|librt)\.so")


def run(*words):
    return subprocess.run(words, check=True, stdout=subprocess.PIPE).stdout.decode()


def needed(library):
    """{name: path} of what the loader finds for it, glibc left out."""
    out = {}
    for line in run("ldd", library).splitlines():
        words = line.split()
        name = os.path.basename(words[0])
        if OF_GLIBC.match(name):
            continue
        if "=>" not in words or not words[2].startswith("/"):
            sys.exit("wheel: %s is not found" % name)
        out[name] = os.path.realpath(words[2])
    return out


def glibc_of(libraries):
    newest = (2, 17)
    for path in libraries:
        for major, minor in re.findall(r"GLIBC_(\d+)\.(\d+)", run("readelf", "-V", "--wide", path)):
            newest = max(newest, (int(major), int(minor)))
    return newest


def package_of(path):
    """The Debian package of a library and its version; None elsewhere."""
    for name in (path, path.replace("/usr/lib/", "/lib/", 1)):
        found = subprocess.run(["dpkg", "-S", name], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
        if found.returncode == 0:
            package = found.stdout.decode().split(": ")[0]
            return package, run("dpkg-query", "-W", "-f", "${Version}", package)
    return None


def read(path):
    with open(path, "rb") as f:
        return f.read()


def licences(bundled):
    """Copyright files, and a list of what was bundled from which package."""
    files = {"moefold/licenses/LICENSE": read("LICENSE"), "moefold/licenses/NOTICE": read("NOTICE")}
    lines = ["Shared libraries in this wheel, unchanged, and the Debian source they were built from (https://snapshot.debian.org):"]
    for name, path in sorted(bundled.items()):
        package = package_of(path)
        if package is None:
            sys.exit("wheel: %s is of no Debian package: its licence is not known" % path)
        lines.append("%s: %s %s" % (name, *package))
        short = package[0].split(":")[0]
        files["moefold/licenses/%s.copyright" % short] = read("/usr/share/doc/%s/copyright" % short)
    for common in ("GPL-2", "GPL-3", "LGPL-2.1", "LGPL-3"):
        path = "/usr/share/common-licenses/" + common
        if os.path.exists(path):
            files["moefold/licenses/" + common] = read(path)
    files["moefold/licenses/BUNDLED"] = ("\n".join(lines) + "\n").encode()
    return files


def data():
    files = {}
    for folder, _, names in os.walk("profiles"):
        for name in names:
            if name.endswith((".json", ".csv")):
                path = os.path.join(folder, name)
                files["moefold/data/" + os.path.relpath(path, "profiles")] = read(path)
    return files


def metadata(version):
    with open("docs/LIBRARY.md", encoding="utf-8") as f:
        text = f.read()
    head = [
        "Metadata-Version: 2.1",
        "Name: moefold",
        "Version: " + version,
        "Summary: Plans and predicts the training of Mixture-of-Experts models",
        "License: GPL-3.0-or-later as a whole (with GLPK); moefold itself Apache-2.0",
        "Requires-Python: >=3.8",
        "Provides-Extra: frame",
        "Requires-Dist: pandas; extra == 'frame'",
        "Description-Content-Type: text/markdown",
    ]
    return ("\n".join(head) + "\n\n" + text).encode()


def main(library, version, out):
    bundled = needed(library)
    machine = platform.machine()
    tag = "py3-none-manylinux_%d_%d_%s" % (*glibc_of([library, *bundled.values()]), machine)
    info = "moefold-%s.dist-info" % version
    files = {"moefold/" + name: read("python/moefold/" + name) for name in sorted(os.listdir("python/moefold")) if name.endswith((".py", ".typed"))}
    files["moefold/" + os.path.basename(library)] = read(library)
    files.update({"moefold/" + name: read(path) for name, path in bundled.items()})
    files.update(data())
    files.update(licences(bundled))
    files[info + "/METADATA"] = metadata(version)
    files[info + "/WHEEL"] = ("Wheel-Version: 1.0\nGenerator: moefold scripts/wheel.py\nRoot-Is-Purelib: false\nTag: %s\n" % tag).encode()
    record = ""
    for name in sorted(files):
        digest = base64.urlsafe_b64encode(hashlib.sha256(files[name]).digest()).rstrip(b"=").decode()
        record += "%s,sha256=%s,%d\n" % (name, digest, len(files[name]))
    files[info + "/RECORD"] = (record + info + "/RECORD,,\n").encode()
    os.makedirs(out, exist_ok=True)
    path = os.path.join(out, "moefold-%s-%s.whl" % (version, tag))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name in sorted(files, key=lambda n: (n.startswith(info), n)):
            entry = zipfile.ZipInfo(name)  # of 1980: the same input gives the same wheel
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o100755 if ".so" in name else 0o100644) << 16
            wheel.writestr(entry, files[name])
    print(path)


if __name__ == "__main__":
    main(*sys.argv[1:])
