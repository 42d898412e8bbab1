"""Holds exported launch scripts against Megatron-LM's own argument parser and validation, on a CPU.

usage: check_exports.py MEGATRON|- [--plant] SCRIPT...

MEGATRON is a checkout of Megatron-LM at the commit that the scripts name. Each script runs with a
`torchrun` of ours, which tells what it was called with and starts nothing; the flags then go through
parse_args, validate_args and the transformer configuration, in the environment that the script sets.
Only the GPU is pretended: its compute capability follows from the script's cluster. What came out is
held against the model's config.json.

--plant spoils scripts, each in one place, and passes when every one of them is refused.

"-" takes the installed megatron-core (PyPI's), which has no parser: flags that are fields of its
transformer configuration make one, which validates itself, and the stages go through its layout.
"""

import inspect
import io
import json
import logging
import os
import re
import subprocess
import sys
import tempfile
import warnings
from contextlib import redirect_stderr, redirect_stdout

TELL = """#!/usr/bin/env python3
import json, os, sys
print(json.dumps({"argv": sys.argv[1:], "env": dict(os.environ)}))
"""

TRANSFORMER_ENGINE = "2.14.0"  # whose presence is pretended, too
CAPABILITY = {"a100": (8, 0), "h": (9, 0), "b": (10, 0), "gb": (10, 0)}


# Fields of Megatron's, beside what config.json files call them.
FACTS = {"num_layers": ("num_hidden_layers",),
         "hidden_size": ("hidden_size",),
         "num_attention_heads": ("num_attention_heads",),
         "num_query_groups": ("num_key_value_heads", "num_attention_groups"),
         "kv_channels": ("head_dim", "attention_head_dim"),
         "q_lora_rank": ("q_lora_rank",),
         "kv_lora_rank": ("kv_lora_rank",),
         "num_experts": ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts"),
         "moe_router_topk": ("num_experts_per_tok", "num_experts_per_token", "experts_per_token", "moe_topk"),
         "vocab_size": ("vocab_size",)}
NAMES_IN_CORE = {"num_experts": "num_moe_experts"}
MODELS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "profiles", "models")


def check_facts(made, path, least=5):
    """The model that Megatron would build is the one that the script names."""
    name = re.search(r"^# moefold: .*--model (\S+)", open(path).read(), re.M).group(1)
    with open(os.path.join(MODELS, name + ".json")) as file:
        config = json.load(file)
    config = config.get("text_config", config)
    held = 0
    for field, words in FACTS.items():
        there = getattr(made, field, getattr(made, NAMES_IN_CORE.get(field, field), None))
        said = [config[word] for word in words if isinstance(config.get(word), int)]
        latent = getattr(made, "multi_latent_attention", False)
        if field == "num_query_groups" and not getattr(made, "group_query_attention", True):
            there = made.num_attention_heads  # what core_transformer_config_from_args makes of it
        if there is None or not said or (latent and field in ("num_query_groups", "kv_channels")):
            continue
        if there not in said:
            raise AssertionError(f"{field}: {there}, {name} has {said[0]}")
        held += 1
    if held < least:
        raise AssertionError(f"{held} facts of {name} were held")


def run_script(path):
    """What the script calls torchrun with, and the environment it leaves."""
    with tempfile.TemporaryDirectory() as folder:
        fake = os.path.join(folder, "torchrun")
        with open(fake, "w") as out:
            out.write(TELL)
        os.chmod(fake, 0o755)
        for program in ("pretrain_gpt.py", "pretrain_hybrid.py",  # which the script looks for
                        "src/megatron/bridge/training/pretrain.py", "scripts/training/run_recipe.py"):
            os.makedirs(os.path.dirname(os.path.join(folder, program)), exist_ok=True)
            open(os.path.join(folder, program), "w").close()
        env = dict(os.environ, HEAD="here", PATH=folder + os.pathsep + os.environ["PATH"])
        return json.loads(subprocess.run(["bash", os.path.abspath(path)], env=env, cwd=folder, check=True,
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


def script_words(path):
    """The script's launcher words, its flags, its environment, and the number of processes."""
    script = run_script(path)
    argv = script["argv"]
    at = next(i for i, word in enumerate(argv) if word.startswith("pretrain_"))
    launcher, flags = argv[:at], argv[at + 1:]
    nodes = int(launcher[launcher.index("--nnodes") + 1])
    each = int(launcher[launcher.index("--nproc-per-node") + 1])
    return script, flags, nodes, each


def check(path):
    script, flags, nodes, each = script_words(path)
    for name, value in script["env"].items():
        os.environ[name] = value
    os.environ.update(WORLD_SIZE=str(nodes * each), RANK="0", LOCAL_RANK="0")
    pretend_gpu(capability_of(path))
    from megatron.training import arguments

    sys.argv = ["pretrain.py"] + flags
    with redirect_stdout(io.StringIO()):
        args = arguments.parse_args()
        arguments.validate_args(args)
        if getattr(args, "vocab_size", None) is None:
            raise AssertionError("no vocabulary size")
        arguments.core_transformer_config_from_args(args)
    check_facts(args, path)


# Flags of other names than the fields that they set; None: they set no field of the configuration.
RENAMED = {"num_experts": "num_moe_experts", "norm_epsilon": "layernorm_epsilon", "fp8_format": "fp8",
           "fp4_format": "fp4", "cuda_graph_modules": "cuda_graph_scope"}
SWITCHED_OFF = {"disable_bias_linear": "add_bias_linear", "no_rope_fusion": "apply_rope_fusion"}


def value_of(words, field):
    """What argparse would make of a flag's words."""
    if not words:
        return True
    lists = ("moe_layer_freq", "linear_attention_freq")
    plain = field.name in ("pipeline_model_parallel_layout",) + lists
    plain = plain or (field.name == "cp_comm_type" and len(words) == 1)  # of all layers
    if "list" in str(field.type).lower() and not plain:
        return words
    text = words[0]
    if field.name in lists:
        return eval(text, {"__builtins__": {}})  # as Megatron's parser does
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


def check_core(path):
    import dataclasses

    import torch
    from megatron.core.transformer import transformer_config
    from megatron.core.transformer.pipeline_parallel_layer_layout import PipelineParallelLayerLayout

    _, flags, _, _ = script_words(path)
    words = {}
    for word in flags:
        if word.startswith("--"):
            words[name := word[2:].replace("-", "_")] = []
        else:
            words[name].append(word)
    mla = "multi_latent_attention" in words
    kind = transformer_config.MLATransformerConfig if mla else transformer_config.TransformerConfig
    fields = {f.name: f for f in dataclasses.fields(kind)}
    config = {"params_dtype": torch.bfloat16, "pipeline_dtype": torch.bfloat16,
              "use_cpu_initialization": True}
    for name, said in words.items():
        field = fields.get(RENAMED.get(name, name))
        if name in SWITCHED_OFF:
            config[SWITCHED_OFF[name]] = False
        elif field is not None:
            config[field.name] = value_of(said, field)
    if "hybrid_layer_pattern" in words:  # "|" between stages, "/" before MTP depths
        config["num_layers"] = len(words["hybrid_layer_pattern"][0].split("/")[0].replace("|", ""))
    if config.get("cuda_graph_impl") == "full_iteration" and \
            not re.search(r"""cuda_graph_impl in \[[^]]*"full_iteration\"""", inspect.getsource(transformer_config)):
        config.update(cuda_graph_impl="local", cuda_graph_scope="full_iteration")  # as older releases spell it
    if "swiglu" in words:
        config.update(gated_linear_unit=True, activation_func=torch.nn.functional.silu)
    stages = config.pop("pipeline_model_parallel_layout", None)
    chunks = (stages.count("|") + 1) // config["pipeline_model_parallel_size"] if stages is not None else 1
    if chunks > 1:
        config["virtual_pipeline_model_parallel_size"] = chunks
    pretend_gpu(capability_of(path))
    made = kind(**config)
    if stages is not None:
        layout = PipelineParallelLayerLayout.from_str(stages, made.pipeline_model_parallel_size)
        layout.validate_layer_layout(made.num_layers, made.mtp_num_layers)
    if len(config) < 20:
        raise AssertionError(f"{len(config)} fields were set")
    check_facts(made, path, least=4)  # it knows no vocabulary: four of a dense model


def load_core():
    """Kernels that are not there are not called either."""
    from megatron.core import utils
    from megatron.core.models.common.embeddings import rope_utils
    from megatron.core.transformer.moe import moe_utils
    from packaging.version import Version

    utils._te_version = Version(TRANSFORMER_ENGINE)

    for module in (rope_utils, moe_utils):
        for name in [n for n, value in vars(module).items() if n.startswith("fused_") and value is None]:
            setattr(module, name, lambda *_: None)
    for name in ("fused_permute", "fused_permute_with_probs", "fused_unpermute",
                 "fused_sort_chunks_by_index", "fused_sort_chunks_by_index_with_probs"):
        if not hasattr(moe_utils, name):  # releases define them with Transformer Engine alone
            setattr(moe_utils, name, lambda *_: None)


def load_megatron(folder):
    """Imports once what all checks need. Kernels that are not there are not called either."""
    import typing

    sys.path.insert(0, folder)
    if not hasattr(typing, "override"):  # Python before 3.12
        typing.override = lambda method: method
    import megatron.training.arguments

    load_core()


def refusal_of(path, check_one):
    """Why Megatron refuses a script; "" when it does not."""
    out, into = os.pipe()
    child = os.fork()  # settings of one script are not to reach the next
    if child == 0:
        os.close(out)
        try:
            with redirect_stderr(io.StringIO()):
                check_one(path)
        except BaseException as error:  # an assertion, a refused flag (SystemExit), anything
            os.write(into, f"{type(error).__name__}: {error}".replace("\n", " ")[:300].encode())
            os._exit(1)
        os._exit(0)
    os.close(into)
    with os.fdopen(out) as said:
        why = said.read()
    _, status = os.waitpid(child, 0)
    return why or (f"status {status}" if status != 0 else "")


def more(number):
    return lambda found: found.group(1) + str(number(int(found.group(2))))


# What is spoilt: a name, what it looks like in a script, what stands there instead, and whether only
# the parser can know. A setting of connections is wrong where there are ranks of TP or CP on Hopper.
PLANTS = (
    ("a misspelt flag", r"(--hidden)-size", r"\1-siz", True),
    ("CUDA_DEVICE_MAX_CONNECTIONS=77", r"(CUDA_DEVICE_MAX_CONNECTIONS)=1$", r"\1=77", True),
    ("CUDA_DEVICE_MAX_CONNECTIONS=1 beside FSDP", r"(CUDA_DEVICE_MAX_CONNECTIONS)=32$(?=(?s:.*)--use-megatron-fsdp)",
     r"\1=1", True),
    ("twice the heads", r"(--num-attention-heads )(\d+)", more(lambda n: 2 * n), False),
    ("an expert too many", r"(--num-experts )(\d+)", more(lambda n: n + 1), False),
    ("a layer too many on a stage", r"(--pipeline-model-parallel-layout '\D*)(\d+)", more(lambda n: n + 1), False),
)


def check_plants(paths, check_one, parser):
    """Every fault, in the first script that has a place for it, is refused; returns how many are not."""
    failed = 0
    for name, pattern, instead, parser_only in PLANTS:
        if parser_only and not parser:
            continue
        for path in paths:
            with open(path) as file:
                text = file.read()
            spoilt = re.sub(pattern, instead, text, count=1, flags=re.M)
            if spoilt == text:
                continue
            with tempfile.NamedTemporaryFile("w", suffix=".sh") as file:
                file.write(spoilt)
                file.flush()
                why = refusal_of(file.name, check_one)
            failed += why == ""
            print(f"{'ok   ' if why else 'FAIL '} {name}: {why or 'not refused'} ({os.path.basename(path)})")
            break
        else:
            failed += 1
            print(f"FAIL  {name}: no script has a place for it")
    return failed


# What a release refuses and the commit that scripts name takes, whose parser has to see it.
OLDER_REFUSES = ("Pipeline model parallel size must be larger than 1 when enabling overlap_moe_expert_parallel_comm with MTP",)


def main():
    logging.disable(logging.INFO)  # every layout as a table
    warnings.simplefilter("ignore")
    words = sys.argv[1:]
    plant = "--plant" in words
    source, *paths = [word for word in words if word != "--plant"]
    parser = source != "-"
    if parser:
        load_megatron(source)
    else:
        load_core()
    check_one = check if parser else check_core
    if plant:
        return 1 if check_plants(paths, check_one, parser) else 0
    failed = older = 0
    for path in paths:
        why = refusal_of(path, check_one)
        if why and not parser and any(known in why for known in OLDER_REFUSES):
            print(f"SKIPPED: {path}: this release refuses what the commit takes (MEGATRON_LM=DIR has it): {why}")
            older += 1
        elif why:
            print(f"FAIL {path}: {why}")
            failed += 1
    print(f"{len(paths) - failed - older} of {len(paths)} scripts {'start' if parser else 'make a configuration'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
