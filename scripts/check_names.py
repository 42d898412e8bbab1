#!/usr/bin/env python3
"""Every file and every name of ours that docs and comments mention exists.

Looked at: tracked *.md files, and the comments of C, CUDA, Python and shell sources and of the
Makefile. A file is named by its path, by the end of its path, or beside the file that names it; a
name is an mf_ or MF_ identifier, or a prefix of some (mf_gemm_*). Links of *.md files lead to files
and headings, `make TARGET` to a target, and a source whose first comment says a file's name says its
own; so does a header's include guard. Prints one line a finding; exit code 1 if there are any.
"""
import os
import re
import subprocess
import sys

SOURCE = re.compile(r"\.(c|h|cu|cuh)$")
COMMENT = re.compile(
    r"""/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'""", re.S)
WORD = re.compile(r"[A-Za-z_]\w*")
FILE = re.compile(r"(?<![\w./*<-])((?:[\w.-]+/)*\w[\w-]*\.(c|h|cu|cuh|py|sh|md))(?![\w/>-])")
FOLDER = re.compile(r"`((?:[\w.-]+/)+)`")
NAME = re.compile(r"\b(mf_\w+|MF_[A-Z0-9_]+)\b")
LINK = re.compile(r"\]\(([^)\s:#]*)(?:#([^)\s]*))?\)")
MAKE = re.compile(r"`make (?:[A-Z_]+=[^\s`]+ )*([a-z][a-z-]*)")
PLACEHOLDER = re.compile(r"(?<![A-Za-z])(NAME|OP|CASE|KIND|X)(?![A-Za-z])|_op(_|$)")
# What others' programs, and a reader's own folder, hold.
FOREIGN = {"example.c"}


def read(path):
    with open(path, encoding="utf-8", errors="replace") as f:
        return f.read()


def headings(path):
    """The anchors that GitHub gives a Markdown file's headings."""
    titles = re.findall(r"(?m)^#+ (.*)$", read(path))
    return {re.sub(r"[^\w -]", "", t.lower()).replace(" ", "-") for t in titles}


def main():
    tracked = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard"],
                             check=True, capture_output=True, text=True).stdout.split("\n")
    tracked = [p for p in tracked if os.path.isfile(p) and not p.startswith("tests/data/")]
    ends, rooms, names, texts, guards = set(), set(), set(), [], []
    targets = set()
    for path in tracked:
        parts = path.split("/")
        ends.update("/".join(parts[i:]) for i in range(len(parts)))
        rooms.update(parts[:-1])
        if path.endswith(".mk") or path == "Makefile":
            targets.update(" ".join(re.findall(r"(?m)^([a-z][a-z -]*):", read(path))).split())
        if path.endswith(".md"):
            texts.append((path, 1, read(path)))
        elif SOURCE.search(path):
            source = read(path)
            said = [m for m in COMMENT.finditer(source) if m.group()[0] == "/"]
            texts += [(path, source.count("\n", 0, m.start()) + 1, m.group()) for m in said]
            code = COMMENT.sub(lambda m: " " if m.group()[0] == "/" else m.group(), source)
            names.update(WORD.findall(code))
            names.update(re.findall(r"<([\w./]+\.h)>", code))
            guard = re.search(r"\A\s*#ifndef (\w+)", code)
            guards += [(path, guard.group(1))] if path.endswith(".h") and guard else []
        elif path.endswith((".sh", ".py", ".mk")) or path == "Makefile":
            lines = read(path).split("\n")
            texts += [(path, i + 1, l[l.index("#"):]) for i, l in enumerate(lines)
                      if re.match(r"\s*#(?!!)", l)]
            names.update(w for l in lines for w in WORD.findall(l.split(" #")[0]))
    prefixes = {n[:i + 1] for n in names for i, c in enumerate(n) if c == "_"}
    found = 0
    for path, line, text in texts:
        def say(at, what):
            nonlocal found
            found += 1
            print("%s:%d: %s" % (path, line + text.count("\n", 0, at), what))
        folder = os.path.dirname(path)
        for m in FILE.finditer(text):
            name, kind = m.group(1), m.group(2)
            ours = SOURCE.search(name) or name.split("/")[0] in rooms
            beside = os.path.normpath(os.path.join(folder, name))
            if kind in ("py", "md") or name in FOREIGN or PLACEHOLDER.search(name):
                continue # those of others have such names, too; links are looked at below
            if ours and name not in ends and beside not in tracked and name not in names:
                say(m.start(), "there is no file %s" % name)
        for m in FOLDER.finditer(text):
            name = m.group(1).rstrip("/")
            if os.path.isdir(name.split("/")[0]) and not os.path.isdir(name) and \
                    not PLACEHOLDER.search(name):
                say(m.start(), "there is no folder %s" % name)
        for m in NAME.finditer(text):
            name = m.group(1)
            if name not in names and not (name.endswith("_") and name in prefixes) and \
                    not PLACEHOLDER.search(name):
                say(m.start(), "nothing is named %s" % name)
        for m in LINK.finditer(text) if path.endswith(".md") else ():
            to = os.path.normpath(os.path.join(folder, m.group(1))) if m.group(1) else path
            if not os.path.exists(to):
                say(m.start(), "there is no %s" % to)
            elif m.group(2) and m.group(2) not in headings(to):
                say(m.start(), "%s has no heading #%s" % (to, m.group(2)))
        for m in MAKE.finditer(text):
            if m.group(1) not in targets:
                say(m.start(), "the Makefile has no target %s" % m.group(1))
        own = re.match(r"/\* ([\w.-]+\.(?:c|h|cu|cuh)) - ", text)
        if own and line == 1 and own.group(1) != os.path.basename(path):
            say(0, "says that it is %s" % own.group(1))
    for path, guard in guards:
        if not guard.endswith(re.sub(r"\W", "_", os.path.basename(path)).upper()):
            found += 1
            print("%s: its include guard is %s" % (path, guard))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
