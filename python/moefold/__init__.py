"""Which way of folding a Mixture-of-Experts training job onto a GPU cluster is fastest, and what it costs.

    import moefold

    best = moefold.plan(model="mixtral-8x7b", cluster="h100", gpus=64, global_batch=256, seq=4096)
    best["best"]["step_time_s"]

Every function takes the options of the command of its name (`man moefold`, docs/CLI.md) as keyword arguments, with _ for
each dash: global_batch=256 is --global-batch 256. Flags are True. Comma lists may be lists. What comes back is the JSON that
`moefold COMMAND --json` prints, as a dict (of models and clusters a list). Options that nobody knows are refused, with the
one that was probably meant. All functions may be called from several threads.
"""

from __future__ import annotations

import json as _json
import typing as _typing
import warnings as _warnings

from . import _library

if _typing.TYPE_CHECKING:
    import os as _os

    import pandas as _pandas

__all__ = [
    "models", "clusters", "fit", "plan", "simulate", "explain", "price", "capacity", "export", "import_job", "tune",
    "version", "Result", "Rows", "Error", "UsageError", "Infeasible", "Interrupted", "Note",
]


class Error(Exception):
    """A command that failed. `status` is the exit code of the program, `result` what it said all the same, or None."""

    def __init__(self, message: str, status: int = _library.FAILED, result: Result | Rows | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.result = result

    def __reduce__(self) -> tuple:
        """So that it comes back whole from another process."""
        return type(self), (*self.args, self.status, self.result)


class UsageError(Error, ValueError):
    """An option that nobody knows, malformed input, degrees that do not divide."""


class Infeasible(Error):
    """Nothing fits. `result` says what is missing, where the command says so (fit, plan, capacity)."""


class Interrupted(Error, KeyboardInterrupt):
    """Ctrl-C. `result` is what was best until then, or None."""


class Note(UserWarning):
    """What a command has to say beside its result, such as parts of a model that it leaves out."""


def _flat(row: dict, prefix: str = "") -> dict[str, _typing.Any]:
    out = {}
    for key, value in row.items():
        if isinstance(value, dict):
            out.update(_flat(value, prefix + key + "."))
        else:
            out[prefix + key] = value
    return out


def _frame(rows: list) -> _pandas.DataFrame:
    try:
        import pandas
    except ImportError as e:
        raise ImportError("frame() needs pandas (pip install pandas); rows() does without") from e
    return pandas.DataFrame(rows)


class Rows(list):
    """The answer of models() and clusters(): a list of dicts. `text` is the JSON as it was printed."""

    text: str = ""

    def rows(self) -> list[dict[str, _typing.Any]]:
        """The same with flat dicts: {"parameters_by_part.experts": ...}."""
        return [_flat(row) for row in self]

    def frame(self) -> _pandas.DataFrame:
        """The rows as a pandas data frame."""
        return _frame(self.rows())


class Result(dict):
    """The answer of a command: a dict. `text` is the JSON as it was printed."""

    text: str = ""

    def rows(self, table: str | None = None) -> list[dict[str, _typing.Any]]:
        """A table of the answer as a list of flat dicts, {"layout.tp": 2, ...}: capacity's cells, plan's best plan and
        those after it, fit's entries; or the member that is named, such as fit's "fastest"."""
        if table is None and isinstance(self.get("best"), dict):
            found = [self["best"]] + list(self.get("runners_up", []))
        else:
            lists = [k for k, v in self.items() if isinstance(v, list) and v and isinstance(v[0], dict)]
            if table is None and not lists:
                return [_flat(self)]
            if table is not None and table not in self:
                raise KeyError("no table %r in this answer; it has %s" % (table, ", ".join(lists) or "none"))
            found = self[table if table is not None else lists[0]]
            if isinstance(found, dict):
                found = next((v for v in found.values() if isinstance(v, list)), [found])
        return [_flat(row) for row in found]

    def frame(self, table: str | None = None) -> _pandas.DataFrame:
        """The same rows as a pandas data frame."""
        return _frame(self.rows(table))


def _call(command: str, options: dict, words: _typing.Sequence = ()) -> _typing.Any:
    request = {key.rstrip("_").replace("_", "-"): value for key, value in options.items()}
    if words:
        request["words"] = [str(word) for word in words]
    if isinstance(request.get("plan"), dict):
        request["plan"] = _plan_of(request["plan"])
    status, text, said = _library.call(command, request)
    result = None
    if text:
        answer = _json.loads(text)
        result = Rows(answer) if isinstance(answer, list) else Result(answer)
        result.text = text
    lines = said.splitlines()
    if status == _library.DONE:
        for line in lines:
            _warnings.warn(line, Note, stacklevel=3)
        return result
    kind = {_library.USAGE: UsageError, _library.INFEASIBLE: Infeasible, _library.INTERRUPTED: Interrupted}
    raise kind.get(status, Error)("\n".join(lines) or "moefold %s failed" % command, status, result)


def _plan_of(answer: dict) -> dict:
    """The plan in an answer of plan() or import_job(), or a plan as it is."""
    inside = answer.get("best", answer)
    return inside.get("plan", inside) if isinstance(inside, dict) else answer


def models(name: str | _os.PathLike | None = None, **options: _typing.Any) -> Rows | Result:
    """The models that ship, a list; or one: a shipped name, or the path of a config.json. set={"num_hidden_layers": 8}
    overrides keys of it; a value may be None, a list or a dict."""
    return _call("models", options, [] if name is None else [name])


def clusters(name: str | _os.PathLike | None = None, **options: _typing.Any) -> Rows | Result:
    """The clusters that ship, a list; or one, a shipped name or a path, with the source of each of its figures."""
    return _call("clusters", options, [] if name is None else [name])


def fit(**options: _typing.Any) -> Result:
    """Every layout that fits into memory, what the others lack, and the fastest of those that fit.

    fit(model=..., cluster=..., gpus=..., global_batch=..., seq=...).frame("fastest"): those, ranked by time; effort=0
    leaves them out. Raises Infeasible where none fits; its result names what would make one fit ("to_fit")."""
    return _call("fit", options)


def plan(**options: _typing.Any) -> Result:
    """The fastest plan, those after it, and the proof of how far from the fastest it can be.

    plan(model=..., cluster=..., gpus=..., global_batch=..., seq=...); a layout option that is given (tp=2) pins its
    dimension. out="plan.json" writes the plan file, too. Ctrl-C raises Interrupted, whose result is the best so far."""
    return _call("plan", options)


def simulate(**options: _typing.Any) -> Result:
    """One step of one layout, op by op: its time, where it goes, the memory of every stage.

    simulate(model=..., cluster=..., gpus=..., global_batch=..., seq=..., tp=..., ...), or simulate(plan=...) with the path
    of a plan file, the answer of plan(), or what a plan file holds."""
    return _call("simulate", options)


def explain(**options: _typing.Any) -> Result:
    """Why a layout fits or does not, where its time goes, what more memory or bandwidth would buy. Takes what simulate
    takes."""
    return _call("explain", options)


def price(op: str, cluster: str | _os.PathLike, software: str | None = None, store: str | _os.PathLike | None = None, **shape: _typing.Any) -> Result:
    """One op alone: its time with a band, the limit that no op can beat, and what the price rests on.

    price("gemm", "h100", m=4096, n=4096, k=4096, dtype="bf16")"""
    words = [op] + ["%s=%s" % (key, int(v) if isinstance(v, bool) else v) for key, v in shape.items()]
    return _call("price", {"cluster": cluster, "software": software, "store": store}, words)


def capacity(**options: _typing.Any) -> Result:
    """Models x clusters x sizes: time, money and energy for a number of tokens; on_front marks what no other offer beats in
    both time and money.

    capacity(models="deepseek-v3", clusters=["h100", "gb200"], sizes=[1024, 2048], global_batch=8192, seq=4096,
    tokens="15T", deadline="60d", price={"h100": 2.5}). capacity(...).frame() is the table."""
    return _call("capacity", options)


def export(plan: dict | str | _os.PathLike, **options: _typing.Any) -> Result:
    """A plan as a job of Megatron-LM (format="megatron") or Megatron-Bridge (format="bridge"): its settings, the
    environment, and what is not the same there. plan: as simulate takes it."""
    return _call("export", dict(options, plan=plan))


def import_job(*words: str | _os.PathLike, **options: _typing.Any) -> Result:
    """A job of Megatron's as a plan: paths of scripts, logs or recipes, and NAME=VALUE of variables in them.

    import_job("launch.sh", cluster="h100")"""
    return _call("import", options, words)


def tune(*words: str | _os.PathLike, **options: _typing.Any) -> Result:
    """What fits, what is fastest and what holds back, against a job as import_job reads it, or plan=..."""
    return _call("tune", options, words)


def version() -> str:
    """The version of the library and the commit that it was built from."""
    return _library.version()


def __getattr__(name: str) -> _typing.Any:
    """The version as packages name it; what is not here is refused with what was probably meant."""
    if name == "__version__":
        return version().split()[0]
    if name.startswith("_"):
        raise AttributeError("module 'moefold' has no attribute %r" % name)
    if name in ("import_", "import"):
        raise AttributeError("moefold import is moefold.import_job(): Python has taken the word")
    if name in ("train", "compare", "profile"):
        raise AttributeError("%s is a command of the program alone: moefold %s" % (name, name))
    try:
        _call(name.replace("_", "-"), {})
    except Error as e:
        said = str(e).partition(";")[0]
    raise AttributeError("moefold.%s: %s" % (name, said))
