"""Plans, exports, imports: what comes back is the same job, or every difference is named.

usage: round_trip.py MOEFOLD FOLDER [--models A,B] [--random N] [--effort N]

For every shipped model on h100 (Megatron's software profile) and gb200 (moefold's) and for each target: what `plan --runs-on` finds is said
without a difference and read back with the same time and memory; a model that the target has no words
for is refused by `plan` and by `export`. Then N jobs drawn by a seed, planned without a limit: the
differences that `export` tells add up to what the plan loses, and one that then does not fit leaves
with --force alone. The scripts stay in FOLDER.
"""

import argparse
import json
import os
import random
import subprocess
import sys

CLUSTERS = {"h100": ["--software", "megatron-26.06"], "gb200": ["--software", "moefold"]}  # with Megatron's prices, and ours
TARGETS = ("megatron", "bridge")
SEED = 20


class Failed(Exception):
    pass


class Tool:
    def __init__(self, binary, folder, effort):
        self.binary, self.folder, self.effort = binary, folder, str(effort)

    def run(self, *words, codes=(0,)):
        done = subprocess.run([self.binary, *map(str, words)], capture_output=True, text=True)
        if done.returncode not in codes:
            raise Failed(f"{' '.join(map(str, words))}: exit {done.returncode}: {done.stderr.strip()[:300]}")
        return done

    def path(self, name):
        return os.path.join(self.folder, name)

    def plan(self, job, name, *more):
        return self.run("plan", *job, "--effort", self.effort, "--out", self.path(name), *more, codes=(0, 3))

    def exported(self, plan, name, target, *more, codes=(0,)):
        """What `export --json` says, and what `import` reads from the script."""
        words = ["export", "--plan", self.path(plan), "--format", target, *more]
        said = self.run(*words, "--json", codes=codes)
        if said.returncode != 0:
            return None, None, said.stderr
        with open(self.path(name), "w") as out:
            out.write(self.run(*words).stdout)
        return json.loads(said.stdout), json.loads(self.run("import", self.path(name), "--json").stdout), ""


def gpus_for(parameters):
    """GPUs of 80 GB on which such a model has memory to choose: weights, gradients, optimizer twice."""
    gpus = 8
    while gpus * 80e9 < 2 * 18 * parameters:
        gpus *= 2
    return gpus


def check_same(said, read):
    if read["not_read"]:
        raise Failed(f"not read: {read['not_read']}")
    there = read["plan"]["prediction"]
    for key in ("step_time_s", "peak_memory_B"):
        if said[key] != there[key]:
            raise Failed(f"{key}: said {said[key]}, read {there[key]}")


def check_differences(said):
    """Each difference has its time and memory; together they are what the plan loses."""
    for key, change in (("step_time_s", "step_time_change_s"), ("peak_memory_B", "peak_memory_change_B")):
        named = sum(x[change] for x in said["not_the_same"])
        lost = said[key] - said["plan_" + key]
        if abs(named - lost) > 1e-9 * abs(said[key]):
            raise Failed(f"{key}: differences say {named}, the plan loses {lost}")


def check_limited(tool, model, cluster, target):
    name = f"{model['name']}-{cluster}-{target}"
    gpus = gpus_for(model["parameters"])
    job = ["--model", model["name"], "--cluster", cluster, "--gpus", gpus, "--global-batch", 4 * gpus,
           "--seq", 4096, *CLUSTERS[cluster]]
    made = tool.plan(job, name + ".json", "--runs-on", target)
    if made.returncode == 3:
        if " for parts of " not in made.stderr:
            raise Failed(made.stderr.strip()[:300])
        return "refused: " + made.stderr.strip().split(": ", 2)[2]
    said, read, _ = tool.exported(name + ".json", name + ".sh", target)
    check_same(said, read)
    if said["not_the_same"]:
        raise Failed(str(said["not_the_same"]))
    if said["step_time_s"] != said["plan_step_time_s"] or said["peak_memory_B"] != said["plan_peak_memory_B"]:
        raise Failed("time or memory of the plan changed without a word")
    return f"{said['step_time_s']:.4g} s, {said['peak_memory_B'] / 1e9:.2f} GB"


def draw_job(rng, models):
    model = rng.choice(models)
    cluster = rng.choice(("h100", "h200", "b200", "gb200"))
    gpus = gpus_for(model["parameters"]) * rng.choice((1, 2))
    job = ["--model", model["name"], "--cluster", cluster, "--gpus", gpus,
           "--global-batch", gpus * rng.choice((1, 2, 8)), "--seq", rng.choice((2048, 4096, 8192))]
    job += rng.choice(([], ["--zero", 3], ["--schedule", "zb-h1"], ["--offload-optimizer", "50%"],
                       ["--recompute", "norm,act"], ["--search-offload"], ["--cuda-graph", "partial"]))
    job += rng.choice(([], ["--software", "megatron-26.06", "--runs-on", "any"]))
    return job


def check_drawn(tool, job, name, target):
    if tool.plan(job, name + ".json").returncode == 3:
        return "nothing fits"
    said, read, why = tool.exported(name + ".json", name + ".sh", target, codes=(0, 3))
    forced = said is None
    if forced:
        if " for parts of " in why:
            return "refused: " + why.strip()[:120]
        if "does not fit" not in why:
            raise Failed(why.strip()[:300])
        said, read, _ = tool.exported(name + ".json", name + ".sh", target, "--force")
        if said["fits"]:
            raise Failed("refused although it fits")
    elif not said["fits"]:
        raise Failed("written although it does not fit")
    check_same(said, read)
    check_differences(said)
    named = "; ".join(x["what"] for x in said["not_the_same"])
    return ("with --force alone; " if forced else "") + (named or "the same")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("moefold")
    parser.add_argument("folder")
    parser.add_argument("--models", default="")
    parser.add_argument("--random", type=int, default=20)
    parser.add_argument("--effort", type=int, default=3)
    a = parser.parse_args()
    tool = Tool(a.moefold, a.folder, a.effort)
    listed = json.loads(tool.run("models", "--json").stdout)
    listed = listed["models"] if isinstance(listed, dict) else listed
    models = [m for m in listed if m["can_plan"]]
    chosen = [m for m in models if not a.models or m["name"] in a.models.split(",")]
    rng = random.Random(SEED)
    print(f"seed {SEED}")
    tasks = [(f"{m['name']} {c} {t}", lambda m=m, c=c, t=t: check_limited(tool, m, c, t))
             for m in chosen for c in CLUSTERS for t in TARGETS]
    for i in range(a.random):
        job, target = draw_job(rng, chosen), rng.choice(TARGETS)
        words = " ".join(map(str, job))
        tasks.append((f"{words} to {target}", lambda j=job, n=f"drawn-{i}", t=target: check_drawn(tool, j, n, t)))
    failed = 0
    for words, task in tasks:
        try:
            print("ok   ", words, " ", task(), flush=True)
        except Failed as error:
            failed += 1
            print("FAIL ", words, " ", error, flush=True)
    print(f"{len(tasks) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
