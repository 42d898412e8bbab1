"""What the Python package promises, over the library that it finds. MOEFOLD_PROGRAM is the program whose answers are held
against it, else `moefold`; with MOEFOLD_WHEEL=1 package, library, its libraries and data must come from one installed
folder."""

import inspect
import os
import pathlib
import pickle
import re
import signal
import subprocess
import sys
import threading
import unittest
import warnings

import moefold

HERE = pathlib.Path(__file__).resolve().parent
PROGRAM = os.environ.get("MOEFOLD_PROGRAM", "moefold")
JOB = dict(model="mixtral-8x7b", cluster="h100", gpus=16, global_batch=64, seq=4096)
LINE = "--model mixtral-8x7b --cluster h100 --gpus 16 --global-batch 64 --seq 4096"
# A search of a tenth of a second, for what is asked of any plan.
SHORT = dict(pp=2, ep=8, schedule="1f1b", recompute="none", offload="none", gap=0.1)
SHORT_LINE = "--pp 2 --ep 8 --schedule 1f1b --recompute none --offload none --gap 0.1"


def printed(line):
    """What the program prints, without how long a search took."""
    out = subprocess.run([PROGRAM] + line.split(), stdout=subprocess.PIPE, check=False).stdout.decode()
    return untimed(out)


def untimed(text):
    return re.sub(r'"(wall_s|pricing_s)": [^,\n]*', "", text)


class Package(unittest.TestCase):
    def test_answers_are_the_bytes_of_the_program(self):
        cases = [
            (moefold.models(), "models --json"),
            (moefold.clusters("h100"), "clusters h100 --json"),
            (moefold.price("gemm", "h100", m=4096, n=4096, k=4096, dtype="bf16"), "price gemm m=4096 n=4096 k=4096 dtype=bf16 --cluster h100 --json"),
            (moefold.simulate(tp=2, ep=8, recompute=["core_attn"], **JOB), "simulate %s --tp 2 --ep 8 --recompute core_attn --json" % LINE),
            (moefold.plan(**SHORT, **JOB), "plan %s %s --json" % (LINE, SHORT_LINE)),
        ]
        for answer, line in cases:
            with self.subTest(line):
                self.assertEqual(untimed(answer.text), printed(line))

    def test_values_of_every_kind_are_told(self):
        changed = moefold.models("qwen3-30b-a3b", set={"mlp_only_layers": [1, 2], "rope_scaling": None})
        self.assertEqual(changed.text, printed("models qwen3-30b-a3b --set mlp_only_layers=[1,2] --set rope_scaling=null --json"))
        price = moefold.price("gemm", "h100", m=4096, n=4096, k=4096, dtype="bf16", acc=True)
        self.assertEqual(price.text, printed("price gemm m=4096 n=4096 k=4096 dtype=bf16 acc=1 --cluster h100 --json"))

    def test_a_plan_goes_from_hand_to_hand(self):
        plan = moefold.plan(**SHORT, **JOB)
        step = moefold.simulate(plan=plan)
        self.assertEqual(step["step_time_s"], plan["best"]["step_time_s"])
        exported = moefold.export(plan, format="bridge")
        self.assertEqual(exported["plan_step_time_s"], step["step_time_s"])
        rows = plan.rows()
        self.assertEqual(len(rows), 1 + len(plan["runners_up"]))
        self.assertGreater(len(rows), 1)
        self.assertEqual(rows[0]["layout.pp"], 2)

    def test_an_unknown_option_is_refused_with_the_near_one(self):
        with self.assertRaisesRegex(moefold.UsageError, r"unknown option --modle \(did you mean --model\?\)") as caught:
            moefold.plan(modle="mixtral-8x7b")
        self.assertEqual(caught.exception.status, 2)
        self.assertIsInstance(caught.exception, ValueError)
        with self.assertRaisesRegex(moefold.UsageError, "--tp: expected a number, got a string"):
            moefold.plan(tp="2", **JOB)

    def test_what_does_not_fit_says_what_is_missing(self):
        with self.assertRaisesRegex(moefold.Infeasible, "nothing fits") as caught:
            moefold.fit(pp=1, ep=8, tp=1, **dict(JOB, model="mixtral-8x22b", gpus=8))
        self.assertEqual(caught.exception.status, 3)
        self.assertEqual(caught.exception.result["feasible"], 0)
        self.assertIn("smallest_gpus", caught.exception.result)

    def test_errors_come_back_whole_from_other_processes(self):
        with self.assertRaises(moefold.Infeasible) as caught:
            moefold.fit(pp=1, ep=8, tp=1, **dict(JOB, model="mixtral-8x22b", gpus=8))
        back = pickle.loads(pickle.dumps(caught.exception))
        self.assertIs(type(back), moefold.Infeasible)
        self.assertEqual((str(back), back.status, back.result), (str(caught.exception), 3, caught.exception.result))

    def test_values_that_cannot_be_told_are_refused_with_their_option(self):
        with self.assertRaisesRegex(TypeError, "moefold plan: --model: expected what JSON can hold, got <object"):
            moefold.plan(model=object())
        with self.assertRaisesRegex(ValueError, "moefold plan: --gap: expected what JSON can hold, got nan"):
            moefold.plan(gap=float("nan"))
        with self.assertRaisesRegex(moefold.UsageError, r"expected a string without \\u0000, got \"a\?\?b\""):
            moefold.plan(model="a\0b")

    def test_a_table_that_is_not_there_is_answered_with_those_that_are(self):
        with self.assertRaisesRegex(KeyError, "no table 'cell' in this answer; it has stages"):
            moefold.simulate(tp=2, ep=8, recompute=["core_attn"], **JOB).rows("cell")

    def test_a_library_that_is_not_there_is_named(self):
        env = dict(os.environ, MOEFOLD_LIBRARY="/nowhere/libmoefold.so")
        ran = subprocess.run([sys.executable, "-c", "import moefold; moefold.version()"], env=env, stderr=subprocess.PIPE, check=False)
        self.assertIn("ImportError: /nowhere/libmoefold.so: cannot open", ran.stderr.decode())
        self.assertIn("MOEFOLD_LIBRARY names another", ran.stderr.decode())

    def test_fit_is_ranked_by_time(self):
        found = moefold.fit(pp=1, cp=1, etp=1, recompute="none", top=2, effort=1, **JOB)
        self.assertTrue(all(row["fits"] for row in found.rows()[:2]))
        times = [row["step_time_s"] for row in found.rows("fastest")]
        self.assertEqual(times, sorted(times))
        self.assertGreater(len(times), 1)
        self.assertIsNone(moefold.fit(pp=1, cp=1, etp=1, effort=0, **JOB)["fastest"])

    def test_notes_are_warnings(self):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            moefold.models("ernie-4.5-21b-a3b")
        self.assertTrue(any("left out" in str(w.message) for w in said), [str(w.message) for w in said])

    def test_threads_get_the_same_bytes(self):
        texts = []
        job = dict(JOB, model="olmoe-1b-7b", gpus=8)  # a second each, so that they run beside each other
        work = lambda: texts.append(untimed(moefold.plan(pp=2, ep=4, gap=0.1, **job).text))
        threads = [threading.Thread(target=work) for _ in range(3)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(len(texts), 3)
        self.assertEqual(len(set(texts)), 1)

    def test_ctrl_c_ends_a_search(self):
        timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        with self.assertRaises(KeyboardInterrupt) as caught:
            moefold.plan(model="deepseek-v3", cluster="h100", gpus=2048, global_batch=8192, seq=4096, gap=0, effort=1000)
        self.assertEqual(caught.exception.status, 130)

    def test_every_function_says_what_it_does(self):
        for name in moefold.__all__:
            self.assertTrue(getattr(moefold, name).__doc__, name)
            if inspect.isfunction(getattr(moefold, name)):
                self.assertIn("return", getattr(moefold, name).__annotations__, name)
        self.assertTrue((pathlib.Path(moefold.__file__).parent / "py.typed").exists())

    def test_names_that_are_not_there_are_answered(self):
        self.assertEqual(moefold.__version__, moefold.version().split()[0])
        for name, says in (
            ("sim", "did you mean simulate?"),
            ("import_", "import_job()"),
            ("train", "a command of the program"),
            ("bananas", 'unknown command "bananas"'),
        ):
            with self.assertRaises(AttributeError) as caught:
                getattr(moefold, name)
            self.assertIn(says, str(caught.exception))
        self.assertFalse(hasattr(moefold, "_nothing"))

    def test_the_ten_lines_of_the_documentation(self):
        text = (HERE.parent.parent / "docs" / "LIBRARY.md").read_text()
        code = re.search(r"```python\n(.*?)```", text, re.S).group(1)
        lines = [line for line in code.splitlines() if line.strip()]
        self.assertLessEqual(len(lines), 10)
        try:
            import pandas  # noqa: F401
        except ImportError:
            print("MF_SKIPPED 1 no pandas: of the documentation's ten lines those without a frame were run")
            code = code[: code.index("table = ")]
        names = {}
        exec(compile(code, "docs/LIBRARY.md", "exec"), names)
        rows = [row for row in names["offers"].rows() if row["on_front"]]
        self.assertTrue(rows)
        self.assertLessEqual({"cluster", "gpus", "run_s", "cost_usd", "mfu", "layout.tp"}, set(rows[0]))
        if "front" in names:
            self.assertEqual(len(names["front"]), len(rows))
            self.assertTrue(names["front"]["days"].is_monotonic_increasing)

    @unittest.skipUnless(os.environ.get("MOEFOLD_WHEEL"), "no wheel is installed")
    def test_a_wheel_brings_all_that_it_needs(self):
        moefold.version()
        folder = pathlib.Path(moefold.__file__).resolve().parent
        self.assertIn("site-packages", str(folder))
        loaded = {line.split()[-1] for line in pathlib.Path("/proc/self/maps").read_text().splitlines() if ".so" in line}
        for name in ("libmoefold", "libglpk", "libcjson", "libcolamd", "libamd", "libltdl", "libgmp"):
            found = [path for path in loaded if os.path.basename(path).startswith(name + ".so")]
            self.assertEqual([os.path.dirname(path) for path in found], [str(folder)], name)
        self.assertFalse([path for path in loaded if "mpi" in os.path.basename(path)])
        self.assertTrue((folder / "data" / "models").is_dir())
        self.assertTrue((folder / "licenses").is_dir())


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
