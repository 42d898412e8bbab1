"""Holds exported launch scripts against Megatron-LM's own argument parser and validation, on a CPU.

usage: check_exports.py MEGATRON SCRIPT...

MEGATRON is a checkout of Megatron-LM at the commit that the scripts name. Each script runs with a
`torchrun` of ours, which tells what it was called with and starts nothing; the flags then go through
parse_args, validate_args and the transformer configuration, in the environment that the script sets.
Only the GPU is pretended: its compute capability follows from the script's cluster.
"""

import io
import json
import os
import re
import subprocess
import sys
import tempfile
from contextlib import redirect_stdout

TELL = """#!/usr/bin/env python3
import json, os, sys
print(json.dumps({"argv": sys.argv[1:], "env": dict(os.environ)}))
"""

TRANSFORMER_ENGINE = "2.14.0"  # whose presence is pretended, too
CAPABILITY = {"a100": (8, 0), "h": (9, 0), "b": (10, 0), "gb": (10, 0)}


def run_script(path):
    """What the script calls torchrun with, and the environment it leaves."""
    with tempfile.TemporaryDirectory() as folder:
        fake = os.path.join(folder, "torchrun")
        with open(fake, "w") as out:
            out.write(TELL)
        os.chmod(fake, 0o755)
        env = dict(os.environ, PATH=folder + os.pathsep + os.environ["PATH"])
        return json.loads(subprocess.run(["bash", path], env=env, check=True,
                                         capture_output=True, text=True).stdout)


def capability_of(path):
    cluster = re.search(r"--cluster (\S+)", open(path).read()).group(1)
    prefix = "a100" if cluster.startswith("a100") else re.match("[a-z]+", cluster).group(0)
    return CAPABILITY.get(prefix, (9, 0))


def pretend_gpu(capability):
    import torch

    torch.cuda.get_device_capability = lambda *_: capability
    torch.cuda.get_device_properties = lambda *_: type("Gpu", (), {
        "major": capability[0], "minor": capability[1], "multi_processor_count": 132})()


def check(path):
    told = run_script(path)
    argv = told["argv"]
    at = argv.index("pretrain_gpt.py")
    launcher, flags = argv[:at], argv[at + 1:]
    nodes = int(launcher[launcher.index("--nnodes") + 1])
    each = int(launcher[launcher.index("--nproc-per-node") + 1])
    for name, value in told["env"].items():
        os.environ[name] = value
    os.environ.update(WORLD_SIZE=str(nodes * each), RANK="0", LOCAL_RANK="0")
    pretend_gpu(capability_of(path))
    from megatron.training import arguments

    sys.argv = ["pretrain_gpt.py"] + flags
    with redirect_stdout(io.StringIO()):
        args = arguments.parse_args()
        arguments.validate_args(args)
        if getattr(args, "vocab_size", None) is None:
            raise AssertionError("no vocabulary size")
        arguments.core_transformer_config_from_args(args)


def load_megatron(folder):
    """Imports once what all checks need. Kernels that are not there are not called either."""
    import typing
    import warnings

    warnings.simplefilter("ignore")
    sys.path.insert(0, folder)
    if not hasattr(typing, "override"):  # Python before 3.12
        typing.override = lambda method: method
    from megatron.core import utils
    from packaging.version import Version

    utils._te_version = Version(TRANSFORMER_ENGINE)
    from megatron.core.models.common.embeddings import rope_utils
    from megatron.core.transformer.moe import moe_utils
    import megatron.training.arguments

    for module in (rope_utils, moe_utils):
        for name in [n for n, value in vars(module).items() if n.startswith("fused_") and value is None]:
            setattr(module, name, lambda *_: None)


def main():
    load_megatron(sys.argv[1])
    failed = 0
    for path in sys.argv[2:]:
        child = os.fork()  # settings of one script are not to reach the next
        if child == 0:
            try:
                check(path)
            except BaseException as error:  # an assertion, a refused flag (SystemExit), anything
                print(f"FAIL {path}: {type(error).__name__}: {error}")
                sys.stdout.flush()
                os._exit(1)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        failed += status != 0
    print(f"{len(sys.argv) - 2 - failed} of {len(sys.argv) - 2} scripts start")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
