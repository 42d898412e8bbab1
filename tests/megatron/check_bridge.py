"""Runs the program of scripts that build their model for Megatron-Bridge, up to where training would begin, on a CPU.

usage: check_bridge.py BRIDGE MEGATRON [--plant] SCRIPT...

BRIDGE is a checkout of Megatron-Bridge at the commit that the scripts name, MEGATRON one of Megatron-LM at the commit
that Bridge has under 3rdparty/Megatron-LM. Scripts that start a recipe are passed over: recipes ask a hub for their
models. The others run with a `torchrun` of ours, which tells what it was called with; their program then runs here with
those words. Configuration, providers, precision and overlap are Bridge's own, and its finalize and validate are called;
only pretrain() ends there, the GPU is pretended, and families of models, which import much else, are made up. What came
out is held against the words of the script and the model's config.json.

--plant spoils scripts, each in one place, and passes when every one of them is refused.
"""

import importlib.abc
import importlib.machinery
import os
import re
import sys
import types
import typing

import check_exports
from check_recipes import AnyModule

# Of Bridge, what the programs use; the rest of its models is made up.
REAL = ("megatron.bridge.training", "megatron.bridge.data.base", "megatron.bridge.utils", "megatron.bridge.models.gpt_provider",
        "megatron.bridge.models.mla_provider", "megatron.bridge.models.model_provider", "megatron.bridge.models.hybrid",
        "megatron.bridge.models.transformer_config", "megatron.bridge.models.logit_dtype")
MISSING = ("transformers", "nvidia_resiliency_ext", "datasets", "peft", "accelerate", "modelopt", "wandb")  # are not needed here


class MadeUp(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path, target=None):
        part = name.startswith("megatron.bridge.") and not any(
            name == x or name.startswith(x + ".") or x.startswith(name + ".") for x in REAL)
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if part or name.split(".")[0] in MISSING else None

    def create_module(self, spec):
        module = AnyModule(spec.name)
        module.__path__ = []
        return module

    def exec_module(self, module):
        module.__version__ = "99.0"


def load_bridge(bridge, megatron):
    if not hasattr(typing, "override"):  # Python before 3.12
        typing.override = lambda method: method
    sys.meta_path.insert(0, MadeUp())
    parts = {"megatron": [os.path.join(bridge, "src", "megatron"), os.path.join(megatron, "megatron")],
             "megatron.bridge": [os.path.join(bridge, "src", "megatron", "bridge")],
             "megatron.bridge.models": [os.path.join(bridge, "src", "megatron", "bridge", "models")]}
    for name, path in parts.items():
        module = types.ModuleType(name) if name == "megatron" else AnyModule(name)
        module.__path__ = path
        sys.modules[name] = module
    import megatron.bridge.training.pretrain  # noqa: F401

    check_exports.load_core()


def program_of(path):
    """The program of a script and the words that it is started with; None: it starts a recipe."""
    script = check_exports.run_script(path)
    argv = script["argv"]
    if "-c" not in argv:
        return None
    at = argv.index("-c")
    world = int(argv[argv.index("--nnodes") + 1]) * int(argv[argv.index("--nproc-per-node") + 1])
    return argv[at + 1], argv[at + 2:], world, script["env"]


def said_of(text):
    """A word's value, where it is a number, a switch or a plain word."""
    if text in ("true", "false", "null"):
        return {"true": True, "false": False, "null": None}[text]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return [said_of(x) for x in text[1:-1].split(",")] if text.startswith("[") else text


def check_words(config, words):
    """What the script says is what the configuration holds once Bridge is through with it."""
    held = 0
    for word in words:
        key, text = word.split("=", 1)
        said, there = said_of(text.strip("'")), config
        if key in ("mixed_precision",) or key.startswith(("comm_overlap.", "tokenizer.")) or said is None:
            continue
        for part in key.split("."):
            there = getattr(there, part)
        if isinstance(said, (bool, int, float, list)):
            if isinstance(there, (tuple, list)):
                there = [getattr(x, "name", x) for x in there]  # words of an enumeration
            if there != said:
                raise AssertionError(f"{key}: {there}, the script says {text}")
            held += 1
    for name in ("tp_comm_overlap", "overlap_moe_expert_parallel_comm", "delay_wgrad_compute"):
        asked = f"comm_overlap.{name}=true" in words
        if bool(getattr(config.model, name)) != asked:
            raise AssertionError(f"{name}: {getattr(config.model, name)}")
    if held < 40:
        raise AssertionError(f"{held} words were held")


def check(path):
    program, words, world, env = program_of(path)
    os.environ.update(env)
    os.environ.update(WORLD_SIZE=str(world), RANK="0", LOCAL_RANK="0")
    check_exports.pretend_gpu(check_exports.capability_of(path))
    from megatron.bridge.training import config as parts
    from megatron.bridge.training import pretrain

    made = []
    pretrain.pretrain = lambda config, step: (parts.runtime_config_update(config), made.append(config))
    sys.argv = ["-c"] + words
    exec(compile(program, path, "exec"), {"__name__": "__main__"})
    check_words(made[0], words)
    check_exports.check_facts(made[0].model, path)


def more(number):
    return lambda found: found.group(1) + str(number(int(found.group(2))))


PLANTS = (
    ("a misspelt key", r"(model\.hidden)_size", r"\1_siz", False),
    ("twice the heads", r"(model\.num_attention_heads=)(\d+)", more(lambda n: 2 * n), False),
    ("an expert too many", r"(model\.num_moe_experts=)(\d+)", more(lambda n: n + 1), False),
    ("a layer too many on a stage", r"(model\.pipeline_model_parallel_layout=[^\d\n]*)(\d+)", more(lambda n: n + 1), False),
    ("an unknown activation", r"(model\.activation_func)=\w+", r"\1=sillu", False),
    ("a precision that there is not", r"(mixed_precision)=\w+", r"\1=bf17_mixed", False),
)


def main():
    import logging
    import warnings

    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    words = [word for word in sys.argv[1:] if word != "--plant"]
    bridge, megatron, *paths = words
    load_bridge(bridge, megatron)
    paths = [path for path in paths if program_of(path) is not None]
    if "--plant" in sys.argv:
        check_exports.PLANTS = PLANTS
        return 1 if check_exports.check_plants(paths, check, True) else 0
    failed = 0
    for path in paths:
        why = check_exports.refusal_of(path, check)
        if why:
            print(f"FAIL {path}: {why}")
            failed += 1
    print(f"{len(paths) - failed} of {len(paths)} scripts that build their model make Megatron-Bridge's configuration")
    return 1 if failed or not paths else 0


if __name__ == "__main__":
    sys.exit(main())
