"""benchmarks/speed: what a process cost, what counts as right, which limits are met, and what the tables say."""

# Long because: it covers models, processes, judgment, limits and tables of one benchmark.

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator
from speed import judge, models, run, screening, synthetic, tables, timing, tools, verdict
from speed.timing import Result

from support.models import model
from support.paths import ROOT
from support.patience import PATIENCE

FOLDER = ROOT / "benchmarks" / "speed"


# ---------------------------------------------------------------------------------------------------- models


def nodes(graph: onnx.GraphProto) -> int:
    inner = [a.g for node in graph.node for a in node.attribute if a.HasField("g")]
    return len(graph.node) + sum(nodes(one) for one in inner)


@pytest.mark.parametrize("kind", models.KINDS)
def test_synthetic_models_are_valid_of_their_size_and_finite(kind: str) -> None:
    model = synthetic.made(f"{kind}.1k")
    onnx.checker.check_model(onnx.shape_inference.infer_shapes(model, strict_mode=True), full_check=True)
    assert abs(nodes(model.graph) - 1_000) <= 60
    [value] = ReferenceEvaluator(model).run(None, {"x": np.full((2, 4), 8.0, np.float32)})
    assert value.shape == (2, 4)
    assert np.isfinite(value).all()
    assert synthetic.made(f"{kind}.1k").SerializeToString() == model.SerializeToString()


def test_each_synthetic_model_is_hard_in_its_own_way() -> None:
    casts = {
        kind: sum(n.op_type == "Cast" for n in synthetic.made(f"{kind}.1k").graph.node)
        for kind in models.KINDS
    }
    assert casts["findings"] > 3 * casts["chain"] > 0
    used = [name for node in synthetic.dag(1_000).graph.node for name in node.input]
    assert max(used.count(name) for name in set(used)) > 2
    depth, graph = 0, synthetic.nested(1_000).graph
    while inner := [a.g for node in graph.node for a in node.attribute if a.name == "then_branch"]:
        depth, graph = depth + 1, inner[0]
    assert depth == 29  # what the README says


# ---------------------------------------------------------------------------------------------------- processes


def launched(code: str, tmp_path: Path, **limits: Any) -> dict[str, Any]:
    asked = {
        "command": [sys.executable, "-c", code],
        "timeout": PATIENCE,
        "memory_mb": 2000,
        "watch": False,
        "words": str(tmp_path / "words"),
        **limits,
    }
    command = [sys.executable, "-I", "-S", str(FOLDER / "launch.py"), json.dumps(asked)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.slow
def test_a_process_and_its_children_are_counted(tmp_path: Path) -> None:
    child = "x = b'1' * (150 << 20); import time; time.sleep(2)"
    code = f"import subprocess, sys; print('hello'); subprocess.run([sys.executable, '-c', {child!r}])"
    found = launched(code, tmp_path, watch=True)
    assert (found["code"], found["status"]) == (0, "ended")
    assert found["wall"] > 0.2
    assert found["cpu"] > 0.0
    assert found["rss"] > 150 > found["parent"] > 5  # the greatest process is the child
    assert found["children"] > 150
    assert found["together"] > 150
    assert (tmp_path / "words").read_text() == "hello\n"


def test_the_launcher_does_not_weigh_on_what_it_measures(tmp_path: Path) -> None:
    found = launched("pass", tmp_path)
    assert found["rss"] < 25
    assert (found["parent"], found["together"]) == (0, 0)


def test_what_takes_too_long_or_too_much_is_ended(tmp_path: Path) -> None:
    assert launched("import time; time.sleep(600)", tmp_path, timeout=0.5)["status"] == "timeout"
    hungry = "x = b'1' * (300 << 20); import time; time.sleep(600)"
    assert launched(hungry, tmp_path, watch=True, memory_mb=200)["status"] == "memory"


@pytest.mark.parametrize(
    ("code", "said", "written", "status", "message"),
    [
        (0, "done", True, "ok", ""),
        (0, "\n", False, "refused", "wrote no model: no word"),
        (1, "ValueError: too large\nbye\n", False, "refused", "exit code 1: ValueError: too large"),
        (-6, "terminate called\n  what():  bad\n", False, "crash", "killed by signal 6: what(): bad"),
    ],
)
def test_how_a_tool_ended(code: int, said: str, written: bool, status: str, message: str) -> None:
    assert tools.status_of({"status": "ended", "code": code}, said, written) == (status, message)


def test_a_user_has_none_of_our_python_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "elsewhere")
    assert not [key for key in tools._environment() if key.startswith("PYTHON")]


def test_commands_are_those_of_the_environments(tmp_path: Path) -> None:
    bench = tools.Bench({"onnxfix": Path("/a/bin/python"), "peers": Path("/b/bin/python")}, tmp_path)
    job = tools.Job(tmp_path / "m.onnx", tmp_path / "out" / "m.onnx", external=True)
    for tool in (*tools.PEERS, tools.APPLY):
        words = bench.command(tool, job)
        assert words[0] == ("/a/bin/python" if tool.environment == "onnxfix" else "/b/bin/python")
        assert {str(job.source), str(job.target)} <= set(words)
    assert bench.command(tools.CHECK, job)[1] == "/a/bin/onnxfix"
    assert "--no-verify" in bench.command(tools.APPLY, job)
    plain = tools.Job(job.source, job.target, external=False)
    for name in ("onnxsim", "onnxslim", "polygraphy", "onnxscript"):
        assert bench.command(tools.NAMED[name], job) != bench.command(tools.NAMED[name], plain)


def test_files_leave_the_memory_and_come_back(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(b"1" * (1 << 22))
    case = models.Case("m", path)
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if models.resident(path) > 0.5:
        pytest.skip("this file system keeps its pages, as tmpfs does")
    models.warm(case)
    assert models.resident(path) == 1.0
    assert models.evict(case) == 0.0


# ---------------------------------------------------------------------------------------------------- results


@pytest.mark.parametrize(
    ("wanted", "found", "why"),
    [
        ([1.0, 2.0], [1.0, 2.0001], ""),
        ([1.0, 2.0], [1.0, 2.001], "differs by 5.0e-04 of the largest magnitude"),
        ([1.0, np.nan], [1.0, np.nan], ""),
        ([1.0, np.nan], [1.0, 2.0], "NaN or infinity in other places"),
        ([1.0, 2.0], [1.0, np.nan], "NaN or infinity in other places"),
        ([1.0, np.inf], [1.0, -np.inf], "NaN or infinity in other places"),
        ([0.0, 0.0], [0.0, 1e-30], "differs by inf of the largest magnitude"),
        ([np.nan], [np.nan], ""),
    ],
)
def test_what_counts_as_the_same(wanted: list[float], found: list[float], why: str) -> None:
    assert judge.difference(np.float32(wanted), np.float32(found))[1] == why


def test_types_shapes_and_integers_are_compared_as_they_are() -> None:
    assert "float16[2] instead of float32[2]" in judge.difference(np.zeros(2, "f4"), np.zeros(2, "f2"))[1]
    assert "float32[1, 2]" in judge.difference(np.zeros(2, "f4"), np.zeros((1, 2), "f4"))[1]
    assert judge.difference(np.arange(3), np.array([0, 1, 3]))[1] == "other int64"
    assert judge.difference(np.float16([1.0]), np.float16([1.005]))[1] == ""


@pytest.mark.parametrize(
    ("graph", "note"),
    [
        ("g (float[N] x) => (float[N] y) { y = Neg(x) }", ""),
        ("g (float[N] x) => (float[N] y) { t = Neg(x) y = Identity(t) }", ""),
        ("g (float[M] x) => (float[N] y) { y = Neg(x) }", "input x: float[N] → float[M]"),
        ("g (float[N] x) => (float[3] y) { y = Neg(x) }", "output y: float[N] → float[3]"),
        ("g (float[N] x) => (float[N] z) { z = Neg(x) }", "outputs y → z"),
    ],
)
def test_changes_of_the_interface(graph: str, note: str) -> None:
    first = model("g (float[N] x) => (float[N] y) { y = Neg(x) }")
    assert judge.interface(first, model(graph)) == ([note] if note else [])


def saved(folder: Path, scale: float) -> Path:
    """A model with its weights beside it."""
    folder.mkdir()
    made = model(f"g (float[N,2] x) => (float[N,2] y) <float[2] w = {{{scale}, 2.0}}> {{ y = Mul(x, w) }}")
    made.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(np.float32([scale, 2.0]), "w"))
    onnx.save(made, folder / "m.onnx", save_as_external_data=True, location="m.onnx.data", size_threshold=0)
    return folder / "m.onnx"


@pytest.mark.parametrize(("scale", "right", "data"), [(3.0, True, "identical"), (3.1, False, "differs")])
def test_a_result_is_held_against_the_original(tmp_path: Path, scale: float, right: bool, data: str) -> None:
    known = tmp_path / "known.npz"
    for _ in range(2):  # the second time with what the first one kept
        asked = {"known": str(known), "feeds": 2, "threads": 1, "source": str(tmp_path / "a" / "m.onnx")}
        if not known.exists():
            saved(tmp_path / "a", 3.0)
            saved(tmp_path / "b", scale)
        row = judge.judge({**asked, "target": str(tmp_path / "b" / "m.onnx")})
        assert (row["right"], row["data"]) == (right, data)
        assert bool(row["why"]) is not right
    with np.load(known) as kept:
        assert {kept[key].shape for key in kept} == {(2, 2), (1, 2)}


def test_no_result_is_not_right(tmp_path: Path) -> None:
    source = saved(tmp_path / "a", 1.0)
    target = saved(tmp_path / "b", 1.0)
    broken = model("g (float[N,2] x) => (float[N,2] y) { y = Neg(x) }")
    broken.graph.node[0].input[0] = "nowhere"
    onnx.save(broken, target)
    known = str(tmp_path / "known.npz")
    row = judge.judge(
        {"source": str(source), "target": str(target), "known": known, "feeds": 1, "threads": 1}
    )
    assert not row["right"]
    assert row["why"]
    assert str(tmp_path) not in row["why"]


# ---------------------------------------------------------------------------------------------------- limits


def costs(*walls: float, rss: float = 100.0, status: str = "ok") -> list[dict[str, Any]]:
    return [
        asdict(tools.Cost(status, "too bad" * (status != "ok"), w, w, rss, 80.0, 20.0, 90.0)) for w in walls
    ]


def export(check: float = 0.5, apply: float = 1.0, rss: float = 150.0, **rest: Any) -> Result:
    runs = {
        "start": costs(0.05, 0.05, 0.06),
        "import": costs(0.25, 0.25, 0.3),
        "check": costs(check, check, 9.0),
        "apply": costs(apply, apply * 1.1, apply * 0.9, rss=rss),
        "onnxsim": costs(1.0, status="timeout"),
        "onnxslim": costs(5.0, 5.0, 5.0, rss=4000.0),
        "onnxscript": costs(4.0, 4.0, 1.0, rss=1000.0),
    }
    return Result(
        "bert",
        "export",
        4 * 10**8,
        {"warm": runs, **rest},
        {"apply": costs(1.0)[0]},
        {"scan": 0.05, "shapes": 0.1, "nodes": 7},
        {"right": True, "data": "", "difference": 0.0},
    )


def met(results: list[Result], part: str) -> bool | None:
    [point] = [point for point in verdict.points(results) if part in point.text]
    return point.met


def test_ratios_are_of_medians_to_the_fastest_peer_that_ended_well() -> None:
    one = export()
    assert one.fastest(verdict._PEERS) == "onnxscript"
    assert verdict.ratios([one], "check") == {"bert": 0.5 / 4.0}
    assert verdict.ratios([one], "apply", "peak") == {"bert": 150.0 / 1000.0}
    assert verdict.to_parts([one]) == {"bert": pytest.approx(0.5 / (0.25 + 0.05 + 0.1))}
    assert one.median("onnxsim") is None
    one.runs["warm"]["onnxscript"].append(costs(1.0, status="crash")[0])
    assert one.fastest(verdict._PEERS) == "onnxslim"  # one that fails now and then has no median


@pytest.mark.parametrize(
    ("part", "good", "bad"),
    [
        ("warm cache: `check`", export(check=0.66), export(check=0.68)),
        ("warm cache: `apply`", export(apply=1.32), export(apply=1.35)),
        ("peak memory of `apply`", export(rss=199.0), export(rss=201.0)),
        ("sum of its parts", export(check=0.59), export(check=0.61)),
    ],
)
def test_limits_of_exports(part: str, good: Result, bad: Result) -> None:
    assert met([good], part) is True
    assert met([bad], part) is False
    assert met([good, replace(good, name="gpt2"), replace(bad, name="swin")], part) is True  # at the median
    assert met([], part) is None


def test_cold_is_judged_for_itself() -> None:
    assert met([export()], "cold cache: `check`") is None
    cold = {"check": costs(0.5), "apply": costs(1.0), "onnxslim": costs(2.0)}
    assert met([export(cold=cold)], "cold cache: `check`") is False
    assert met([export(cold={**cold, "onnxslim": costs(3.1)})], "cold cache: `apply`") is True


def test_all_processes_together_count_where_they_are_more() -> None:
    one = export(rss=80.0)
    one.peaks["apply"]["rss"] = 70.0
    assert one.peak("apply") == 90.0


def test_a_wrong_result_is_a_missed_limit() -> None:
    wrong = export()
    wrong.judged = {"right": False, "why": "differs"}
    assert met([export(), wrong], "exports: what `apply` writes") is False
    assert met([export()], "exports: what `apply` writes") is True


def large(check: float, apply: float, data: str) -> Result:
    runs = {
        "warm": {"check": costs(1.0, rss=check), "apply": costs(1.0, rss=apply), "onnxscript": costs(3.5)}
    }
    return Result("llama", "large", 10**9, runs, judged={"right": True, "data": data, "difference": 0.0})


def test_limits_of_large_models() -> None:
    good, bad = large(199.0, 299.0, "identical"), large(201.0, 301.0, "differs")
    for part in ("`check`, MB", "`apply`, MB", "byte for byte"):
        assert (met([good], part), met([bad], part)) == (True, False)
    assert met([good], "llama: `apply` to the fastest") is True
    assert met([good], "large: what `apply` writes") is True
    good.judged["right"] = False
    assert met([good], "large: what `apply` writes") is False
    good.runs["warm"]["onnxscript"] = costs(2.9)
    assert met([good], "llama: `apply` to the fastest") is False


def sized(name: str, seconds: float, rss: float = 100.0) -> Result:
    right = {"right": True, "data": "", "difference": 0.0}
    return Result(name, "synthetic", 100, {"warm": {"apply": costs(seconds, rss=rss)}}, judged=right)


def chains(*seconds: float) -> list[Result]:
    names = ("chain.1", "chain.1k", "chain.10k", "chain.100k")
    return [sized(name, value) for name, value in zip(names, seconds, strict=True)]


def test_limits_of_synthetic_models() -> None:
    assert verdict.growth(chains(1.0, 1.1, 2.0, 13.0), "chain") == pytest.approx([10.0, 12.0])
    assert met(chains(1.0, 1.1, 2.0, 13.0 - 1e-6), "chain: growth") is True
    assert met(chains(1.0, 1.1, 2.0, 13.1), "chain: growth") is False
    assert met(chains(1.0, 1.1, 2.3, 13.0), "chain: growth") is False
    assert met(chains(1.0, 1.1, 2.0, 14.9), "chain.100k") is True
    assert met(chains(1.0, 1.1, 2.0, 15.1), "chain.100k") is False
    assert met([sized("dag.1m", 500.0, rss=8193.0)], "dag.1m") is False
    assert met([sized("dag.1m", 500.0, rss=8191.0)], "dag.1m") is True
    failed = sized("dag.1m", 1.0)
    failed.runs["warm"]["apply"] = costs(1.0, status="crash")
    assert met([failed], "dag.1m") is False


# ---------------------------------------------------------------------------------------------------- tables


def screened() -> screening.Screened:
    return {
        "bert": {
            "onnxsim": {
                **costs(2.0)[0],
                "wall": 99.0,
                "right": True,
                "why": "",
                "interface": ["output y: float[N] → no shape"],
            },
            "onnxslim": {**costs(1.0)[0], "right": False, "why": "differs | <much>", "interface": []},
            "onnxscript": {**costs(3.0)[0], "right": True, "why": "", "interface": []},
            "polygraphy": {**costs(9.0, status="crash")[0]},
        }
    }


def test_the_fastest_peers_are_those_that_are_right(tmp_path: Path) -> None:
    case = models.Case("bert", tmp_path / "bert.onnx")

    def names(count: int, near: float) -> list[str]:
        return [tool.name for tool in screening.fastest(screened(), case, tools.PEERS, count, near)]

    assert names(5, 1.5) == ["onnxsim", "onnxscript"]  # 2.0 and 3.0 seconds
    assert names(5, 1.4) == ["onnxsim"]
    assert names(1, 9.0) == ["onnxsim"]
    assert screening.fastest({}, case, tools.PEERS, 2, 9.0) == []


def test_the_page_holds_everything_in_even_rows() -> None:
    results = [
        export(cold={"check": costs(0.5)}),
        large(150.0, 250.0, "identical"),
        *chains(1.0, 1.1, 2.0, 9.0),
    ]
    lines = list(tables.page(results, screened(), verdict.points(results), {"machine": "here"}))
    text = "\n".join(lines)
    for a, b in itertools.pairwise(lines):
        if a.startswith("|") and b.startswith("|"):
            assert len(re.findall(r"(?<!\\)\|", a)) == len(re.findall(r"(?<!\\)\|", b)), b
    assert "onnxscript: 4.00 (1.00–4.00)" in text
    assert "`differs \\| <much>`" in text
    assert "| onnxsim | `output y: float[N] → no shape` | 1: `bert` |" in text
    assert "`too bad`" in text
    assert "weights identical" in text
    assert tables.runs(results) == "1 or 3 (cold: 1)"


def test_results_survive_their_file(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    assert timing.read(path) == {}
    path.write_text(json.dumps({"bert": asdict(export())}))
    assert timing.read(path) == {"bert": export()}


def test_the_readme_has_its_marks() -> None:
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert [text.count(mark) for mark in run.MARKS] == [1, 1]
    assert text.index(run.MARKS[0]) < text.index(run.MARKS[1])
