"""Holds what `import` reads of Megatron-Bridge's recipes against what they set.

usage: check_recipes.py BRIDGE MOEFOLD [NAME...]

BRIDGE is a checkout of Megatron-Bridge at the commit that exports name. Its recipes (src/megatron/bridge/recipes and
perf_recipes) are called here, where everything else that they import (torch, Megatron-Core, the rest of Bridge) is an
object that remembers what is set on it. What the configuration holds then is held against the layout that `import`
makes of the same function, on the cluster that its name says. NAMEs choose functions; without, all are taken.
Recipes of models that do not ship, or that `import` refuses, are counted by reason.
"""

import glob
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import re
import subprocess
import sys
import types
from collections import Counter

FOLLOWED = ("megatron.bridge.recipes", "megatron.bridge.perf_recipes")
CLUSTERS = ("gb300", "gb200", "b300", "b200", "h100", "vr200")
PRECISIONS = (("nvfp4", "nvfp4"), ("mxfp8", "mxfp8"), ("blockwise", "fp8-block"), ("subchannel", "fp8-block"),
              ("fp8", "fp8-tensor"), ("", "bf16"))
MODULES = {"layernorm": "norm", "moe_act": "act", "shared_experts": "shared_expert"}


class Anything:
    """An object that remembers what is set on it; what nobody set is another one, false and empty."""

    def __init__(self, name="", *args, **named):
        self.__dict__.update(named, _name=name, _args=args, _set=set(named))

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        made = Anything(f"{self._name}.{name}")
        self.__dict__[name] = made
        return made

    def __setattr__(self, name, value):
        self._set.add(name)
        self.__dict__[name] = value

    def __call__(self, *args, **named):
        return Anything(f"{self._name}()", *args, **named)

    def __getitem__(self, key):
        return Anything(f"{self._name}[]")

    def __eq__(self, other):
        return isinstance(other, Anything) and other._name == self._name

    def __hash__(self):
        return hash(self._name)

    def __iter__(self):
        return iter(())

    def __ror__(self, other):
        return other

    __bool__ = __lt__ = __gt__ = __le__ = __ge__ = lambda self, *other: False
    __contains__ = lambda self, key: False
    __len__ = lambda self: 0
    __setitem__ = lambda self, key, value: None
    __or__ = __add__ = __radd__ = __mul__ = __rmul__ = __sub__ = __floordiv__ = __mod__ = lambda self, other: self


class AnyClass(type):
    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything(f"{cls.__name__}.{name}")

    def __or__(cls, other):
        return cls

    __ror__ = __or__


class AnyModule(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        made = Anything(name)
        if name[0].isupper():
            made = AnyClass(name, (Anything,), {"__init__": lambda o, *a, **n: Anything.__init__(o, name, *a, **n)})
        setattr(self, name, made)
        return made


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Recipes come from the checkout; torch, Megatron and the like are made up."""

    def __init__(self, root):
        self.root, self.cluster = root, "h100"

    def find_spec(self, name, path, target=None):
        if any(name == x or name.startswith(x + ".") for x in FOLLOWED):
            place = os.path.join(self.root, *name.split(".")[2:])
            if os.path.isdir(place):
                return importlib.util.spec_from_file_location(name, f"{place}/__init__.py",
                                                              submodule_search_locations=[place])
            return importlib.util.spec_from_file_location(name, f"{place}.py") if os.path.exists(f"{place}.py") else None
        if name.split(".")[0] in ("megatron", "torch", "transformers", "transformer_engine", "numpy", "datasets",
                                  "huggingface_hub", "hydra", "omegaconf", "nemo_run", "PIL"):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        module = AnyModule(spec.name)
        module.__path__ = []
        return module

    def exec_module(self, module):
        if module.__name__.endswith(".flex_dispatcher_backend"):
            module.apply_flex_dispatcher_backend = self.turn_over

    def turn_over(self, model, backend=None):
        """As Bridge does where it sees the GPU: DeepEP runs on Hopper, B200 and B300."""
        if backend == "hybridep" or (backend == "deepep" and self.cluster in ("h100", "b200", "b300")):
            model.moe_token_dispatcher_type = "flex"


def value(part, name, absent=None):
    there = part.__dict__.get(name, absent) if isinstance(part, Anything) else absent
    return absent if isinstance(there, Anything) or there is None else there


def precision_of(said):
    if isinstance(said, Anything):
        text = said._name if said._name != "MixedPrecisionConfig" else ""
        text += " ".join([str(x) for x in said._args] + [str(value(said, "fp8_recipe", ""))])
    else:
        text = str(said)
    return next(ours for theirs, ours in PRECISIONS if theirs in text)


def wanted(cfg):
    """Facts of the layout that the configuration says."""
    model, ddp, train = cfg.model, cfg.ddp, cfg.train
    stages = value(model, "pipeline_model_parallel_layout")
    pp = value(model, "pipeline_model_parallel_size", 1)
    tp = value(model, "tensor_model_parallel_size", 1)
    out = {"tp": tp, "pp": pp, "cp": value(model, "context_parallel_size", 1),
           "ep": value(model, "expert_model_parallel_size", 1),
           "vpp": len(stages) // pp if isinstance(stages, list)
           else None if isinstance(stages, str) else value(model, "virtual_pipeline_model_parallel_size", 1),
           "micro_batch": value(train, "micro_batch_size"), "global_batch": value(train, "global_batch_size"),
           "seq": value(model, "seq_length"), "precision": precision_of(cfg.mixed_precision),
           "zero": int(bool(value(ddp, "use_distributed_optimizer", False))),
           "grad_dtype": "bf16" if value(ddp, "grad_reduce_in_fp32", True) is False else "fp32"}
    if out["ep"] > 1:
        dispatcher = value(model, "moe_token_dispatcher_type")
        out["dispatcher"] = {"flex": "fused"}.get(dispatcher, dispatcher)
        out["merged"] = bool(value(cfg.comm_overlap, "overlap_moe_expert_parallel_comm", False))
        out["etp"] = value(model, "expert_tensor_parallel_size", tp)
    if value(ddp, "use_megatron_fsdp", False):
        out["zero"] = ("no_shard", "optim", "optim_grads", "optim_grads_params").index(
            value(ddp, "data_parallel_sharding_strategy", "optim_grads_params"))
    if value(model, "recompute_granularity") == "full":
        out["recompute"] = "layer"
    elif value(model, "recompute_granularity") is None:
        out["recompute"] = "none"
    elif isinstance(value(model, "recompute_modules"), list):
        names = sorted(MODULES.get(x, x) for x in model.recompute_modules)
        out["recompute"] = ",".join(names) or "none"
    return {key: told for key, told in out.items() if told is not None}


def read(moefold, path, name, cluster):
    on = {"vr200": "gb300"}.get(cluster, cluster)
    done = subprocess.run([moefold, "import", path, "--recipe", name, "--cluster", on, "--json"], capture_output=True,
                          text=True)
    if done.returncode != 0:
        return None, re.sub(r"\d[\d,]*", "N", done.stderr.strip().split("\n")[-1].split(": ", 1)[1])[:90]
    told = json.loads(done.stdout)
    layout = told["plan"]["layout"]
    layout.setdefault("grad_dtype", "fp32")
    layout["merged"] = layout["schedule"] == "merged"
    said = layout["recompute"].split(",") + told["not_read"].get("--recompute-modules", "").split()
    layout["recompute"] = ",".join(sorted(said))  # modules that moefold does not know are listed
    return layout, ""


def main():
    bridge, moefold, names = sys.argv[1], sys.argv[2], sys.argv[3:]
    root = os.path.join(bridge, "src", "megatron", "bridge")
    finder = Finder(root)
    sys.meta_path.insert(0, finder)
    refused, facts, failed, held = Counter(), 0, 0, 0
    for path in sorted(glob.glob(f"{root}/*recipes/**/*.py", recursive=True)):
        with open(path) as file:
            found = re.findall(r"^def ([a-z]\w*_config)\(", file.read(), re.M)
        for name in [n for n in found if not names or n in names]:
            finder.cluster = next((c for c in CLUSTERS if c in name or f"/{c}/" in path), "h100")
            layout, why = read(moefold, path, name, finder.cluster)
            if layout is None:
                refused[why] += 1
                continue
            try:
                module = importlib.import_module("megatron.bridge" + path[len(root):-3].replace("/", "."))
                want = wanted(getattr(module, name)())
            except Exception as error:  # of a recipe that needs what is made up here
                refused[f"cannot be called here: {type(error).__name__}"] += 1
                continue
            other = {key: (told, layout.get(key)) for key, told in want.items() if layout.get(key) != told}
            held += 1
            facts += len(want)
            failed += bool(other)
            if other:
                print("FAIL ", name, other, flush=True)
    for why, count in refused.most_common():
        print(f"{count:4d} {why}")
    print(f"{held} recipes, {facts} facts, {failed} recipes read otherwise")
    return 1 if failed or held == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
