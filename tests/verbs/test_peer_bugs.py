"""onnxfix does not break what other tools break.

Every entry of the list of known failures has models in ``peer_models``. A judge compares a rewritten model
with its original, independently of onnxfix's own verification: interface, checker, file size, metadata, and
every bit of every output. First the judge is judged: it must find the fault in each peer's rewrite.
"""
# Long because: one judge and the cases that need more than a model, in the order of the table they follow.

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime.capi.onnxruntime_pybind11_state as pybind
import pytest
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

import onnxfix
from support import hard_models, peer_models
from support.cli import run
from support.ort import run as outputs
from support.ort import runner as by_runtime
from support.paths import ROOT
from support.patience import PATIENCE
from support.peer_models import PEERS, Feed, Peer

pytestmark = pytest.mark.slow

RUNTIME_ERRORS = (
    pybind.Fail,
    pybind.InvalidGraph,
    pybind.InvalidArgument,
    pybind.NotImplemented,
    pybind.RuntimeException,
)
SLACK = 4096
"""Bytes by which a fixed small model may grow: names, attributes, small folded constants."""


# ---- the judge
class Twist(OpRun):
    """The custom operator of the models: two outputs, the second an int32."""

    op_domain = "org.mine"

    def _run(self, x: np.ndarray, k: np.ndarray, mode: str = "") -> tuple[np.ndarray, ...]:
        return (x * k if mode == "up" else x, x.astype(np.int32))


Run = Callable[[Feed], list[Any]]


def by_reference(model: onnx.ModelProto) -> Run:
    evaluator = ReferenceEvaluator(model, new_ops=[Twist])
    return lambda feed: list(evaluator.run(None, feed))


def same_bits(a: Any, b: Any) -> bool:
    """Equal in kind, type, shape and every bit; NaNs are equal to one another."""
    if isinstance(a, list | tuple):
        return isinstance(b, list | tuple) and len(a) == len(b) and all(map(same_bits, a, b))
    if a is None or b is None:
        return a is b
    a, b = np.asarray(a), np.asarray(b)
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if a.dtype.kind in "fc":
        nan = np.isnan(a)
        return bool(np.array_equal(nan, np.isnan(b))) and a[~nan].tobytes() == b[~nan].tobytes()
    return bool(np.array_equal(a, b))


def interface(model: onnx.ModelProto) -> list[Any]:
    """Inputs and outputs in order with names and types, and the defaults of overridable inputs."""
    inputs = {i.name for i in model.graph.input}
    defaults = {t.name: t.SerializeToString() for t in model.graph.initializer if t.name in inputs}
    values = [
        [(v.name, v.type.SerializeToString()) for v in vs] for vs in (model.graph.input, model.graph.output)
    ]
    return [*values, defaults]


def checked(model: onnx.ModelProto) -> bool:
    try:
        onnx.checker.check_model(model)
    except onnx.checker.ValidationError:
        return False
    return True


def notes(model: onnx.ModelProto) -> dict[str, Any]:
    """Whatever people have written into the model that has no effect on its outputs."""
    graph = model.graph
    values = [*graph.input, *graph.output]
    tensors = {t.name for t in graph.initializer}
    producer = (model.producer_name, model.producer_version, model.domain, model.model_version)
    return {
        "model": (*producer, model.doc_string),
        "props": {p.key: p.value for p in model.metadata_props},
        "graph": (graph.name, graph.doc_string, {p.key: p.value for p in graph.metadata_props}),
        "values": [(v.doc_string, {p.key: p.value for p in v.metadata_props}) for v in values],
        "annotations": [a.SerializeToString() for a in graph.quantization_annotation],
        "annotated": [
            p.value in tensors for a in graph.quantization_annotation for p in a.quant_parameter_tensor_names
        ],
    }


def node_notes(model: onnx.ModelProto) -> dict[str, Any]:
    """Documentation and metadata of nodes by first output, without onnxfix's own mark."""
    return {
        n.output[0]: (n.doc_string, {p.key: p.value for p in n.metadata_props if p.key != "onnxfix"})
        for n in model.graph.node
    }


def faults(original: onnx.ModelProto, fixed: onnx.ModelProto, feeds: tuple[Feed, ...]) -> list[str]:
    """What is wrong with ``fixed``, each fault as "kind: what"; nothing wrong is an empty list."""
    found: list[str] = []
    if interface(original) != interface(fixed):
        found.append("interface: inputs, outputs or defaults differ")
    if checked(original) and not checked(fixed):
        found.append("checker: no longer a valid model")
    if fixed.ByteSize() > original.ByteSize() + SLACK:
        found.append(f"size: {original.ByteSize()} -> {fixed.ByteSize()} bytes")
    before, after = node_notes(original), node_notes(fixed)
    kept = [name for name in before if name in after and node_op(original, name) == node_op(fixed, name)]
    if notes(original) != notes(fixed) or any(before[name] != after[name] for name in kept):
        found.append("meta: documentation or metadata lost")
    return [*found, *value_faults(original, fixed, feeds)]


def node_op(model: onnx.ModelProto, output: str) -> tuple[str, str]:
    n = peer_models.node(model, output)
    return n.domain, n.op_type


def value_faults(original: onnx.ModelProto, fixed: onnx.ModelProto, feeds: tuple[Feed, ...]) -> Iterator[str]:
    runner, expected = oracle(sound(original), feeds)
    try:
        actual = runner(fixed)
    except Exception as error:  # whatever the runtime raises is the finding
        yield f"refused: {str(error)[:200]}"
        return
    for index, feed in enumerate(feeds):
        want = expected[index]
        try:
            got = actual(feed)
        except Exception as error:
            yield f"refused: inputs {index}: {str(error)[:200]}"
            continue
        if not same_bits(want, got):
            yield f"values: inputs {index}: {want} -> {got}"


def oracle(
    model: onnx.ModelProto, feeds: tuple[Feed, ...]
) -> tuple[Callable[[onnx.ModelProto], Run], list[list[Any]]]:
    """Who can run the original, and what comes out: ONNX Runtime, else the reference.

    ONNX Runtime cannot run custom operators; and even with all optimization off it removes redundant Cast
    chains, overlooks that a subgraph captures the result, and then misses its own value.
    """
    try:
        run = by_runtime(model)
        return by_runtime, [run(feed) for feed in feeds]
    except RUNTIME_ERRORS:
        run = by_reference(model)
        return by_reference, [run(feed) for feed in feeds]


def sound(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model as somebody with patience would repair it, where ONNX Runtime does not load it as it is."""
    if len({n.name for n in model.graph.node if n.name}) < sum(1 for n in model.graph.node if n.name):
        model = onnx.ModelProto.FromString(model.SerializeToString())
        for index, n in enumerate(model.graph.node):
            n.name = f"n{index}"
    return model


by_id = pytest.mark.parametrize("case", PEERS, ids=lambda case: case.id)


def test_every_entry_has_a_model() -> None:
    """Those about files, bad input and verification have tests of their own, below or in tests/files."""
    apart = {5, 9, 10, 11, 32, 36, 37, 38}
    assert {case.entry for case in PEERS} | apart == set(range(1, 45))
    assert len({case.id for case in PEERS}) == len(PEERS)


@pytest.mark.corpus
@by_id
def test_judge_sees_the_peers_fault(case: Peer) -> None:
    """The judge clears the original and finds the stated fault in the peer's rewrite."""
    assert faults(case.model(), sound(case.model()), case.feeds) == []
    found = faults(case.model(), case.wrong_model(), case.feeds)
    assert case.fault in {fault.split(":")[0] for fault in found}, found


# ---- the models of the list
def families(report: Any) -> set[str]:
    return {item.code.rstrip("0123456789") for item in report.applied}


def kinds(model: onnx.ModelProto) -> Counter[str]:
    """How many nodes there are of each operator, subgraphs and functions included."""
    count: Counter[str] = Counter()

    def walk(nodes: Any) -> None:
        for n in nodes:
            count[n.op_type] += 1
            for attribute in n.attribute:
                for graph in [attribute.g, *attribute.graphs]:
                    walk(graph.node)

    walk(model.graph.node)
    for function in model.functions:
        walk(function.node)
    return count


def raw(model: onnx.ModelProto) -> bytes:
    return bytes(model.SerializeToString(deterministic=True))


@pytest.mark.corpus
@by_id
def test_exact_fixes_change_no_bit(case: Peer) -> None:
    """With the default rules: something was fixed where there is bait, and the judge finds no fault."""
    original = case.model()
    before = raw(original)
    report = onnxfix.apply(original, verify=False)
    assert raw(original) == before, "the caller's model was changed"
    assert faults(original, report.model, case.feeds) == []
    assert set(case.bait.split()) <= families(report), f"applied: {sorted(families(report))}"
    assert [kinds(original)[op] for op in case.keeps] == [kinds(report.model)[op] for op in case.keeps]
    assert raw(onnxfix.apply(original, verify=False).model) == raw(report.model), "not deterministic"
    assert raw(onnxfix.apply(report.model, verify=False).model) == raw(report.model), "not idempotent"


@pytest.mark.corpus
@by_id
def test_numeric_fixes_stay_close(case: Peer) -> None:
    """With numeric fixes as well the interface stays, and the outputs in shape, type and (nearly) value."""
    original = case.model()
    fixed = onnxfix.apply(original, numeric_fixes=True, verify=False).model
    assert [fault for fault in faults(original, fixed, case.feeds) if not fault.startswith("values")] == []
    run, expected = oracle(sound(original), case.feeds)
    again = run(fixed)
    for feed, want in zip(case.feeds, expected, strict=True):
        assert close(want, again(feed))


def close(a: Any, b: Any) -> bool:
    if isinstance(a, list | tuple):
        return isinstance(b, list | tuple) and len(a) == len(b) and all(map(close, a, b))
    a, b = np.asarray(a), np.asarray(b)
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return (
        np.allclose(a, b, rtol=1e-5, atol=1e-6, equal_nan=True)
        if a.dtype.kind == "f"
        else bool(np.array_equal(a, b))
    )


# ---- the command line
@dataclass(frozen=True)
class Ended:
    """How a run of the command ended, the most memory that one process of it took, in bytes, and what all of them took
    of the processor, in seconds."""

    code: int
    out: str
    err: str
    peak: int
    processor: float


WATCH = """
import json, resource, subprocess, sys
if sys.argv[1] != "0":
    resource.setrlimit(resource.RLIMIT_DATA, (int(sys.argv[1]),) * 2)
done = subprocess.run([sys.executable, *sys.argv[2:]], capture_output=True, text=True)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
spent = used.ru_utime + used.ru_stime
print(json.dumps([done.returncode, done.stdout, done.stderr, used.ru_maxrss * 1024, spent]))
"""


def onnxfix_command(
    *arguments: str | Path,
    cwd: Path,
    data_limit: int = 0,
    program: Sequence[str] = ("-m", "onnxfix"),
    python_path: Path | None = None,
) -> Ended:
    """Run ``onnxfix`` in its own process. ``data_limit`` bounds each process's memory, in bytes; ``program`` is what
    Python is told to run."""
    environment = dict(os.environ, NO_COLOR="1", COLUMNS="200")
    paths = [str(python_path or ""), str(ROOT), str(ROOT / "rules"), os.environ.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    words = [sys.executable, "-c", WATCH, str(data_limit), *program, *map(str, arguments)]
    done = subprocess.run(words, cwd=cwd, env=environment, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    return Ended(*json.loads(done.stdout))


def clean(ended: Ended) -> bool:
    """A result, or one line of complaint; never a traceback or a signal."""
    if ended.code == 2:
        return len(ended.err.strip().splitlines()) == 1 and "Traceback" not in ended.out
    return ended.code in (0, 1, 3) and "Traceback" not in ended.out + ended.err


def digests(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.mark.corpus
def test_verified_by_the_command(tmp_path: Path, stride: int) -> None:
    """Models in one call, in the full lane all of them: verification fails on no right fix, and what is written is
    right."""
    (tmp_path / "in").mkdir()
    cases = [case for case in PEERS if case.id != "39-custom-operator"][:: 1 if stride == 1 else 16]
    for case in cases:
        (tmp_path / "in" / f"{case.id}.onnx").write_bytes(case.model().SerializeToString())
    before = digests(tmp_path / "in")
    ended = onnxfix_command(
        "apply", *sorted((tmp_path / "in").iterdir()), "--output-dir", tmp_path / "out", cwd=tmp_path
    )
    refused = [line for line in ended.out.splitlines() if " failed " in line or "nothing was written" in line]
    assert ended.code in (0, 1), "\n".join([*refused, ended.err])
    assert digests(tmp_path / "in") == before
    for case in cases:
        fixed = onnx.load(tmp_path / "out" / f"{case.id}.onnx")
        assert faults(case.model(), fixed, case.feeds) == [], case.id


def test_39_custom_operator_is_verified_without_being_run(tmp_path: Path) -> None:
    """Nothing here can run it: what is said is that the fixes are proven for all values, and what was not run."""
    case = next(case for case in PEERS if case.id == "39-custom-operator")
    (tmp_path / "model.onnx").write_bytes(case.model().SerializeToString())
    plain = onnxfix_command("apply", "model.onnx", "-o", "fixed.onnx", cwd=tmp_path)
    told = [line.split()[2] for line in plain.out.splitlines() if line.startswith("  not run   ")]
    unrun = [name for name in told if name.endswith(":")]  # the others need a GPU
    assert unrun == ["reference:", "ort-cpu:"], plain.out
    assert re.search(r"VERIFIED: for all values at \d shapes? \(symbolic\)", plain.out), plain.out
    assert faults(case.model(), onnx.load(tmp_path / "fixed.onnx"), case.feeds) == []
    forced = onnxfix_command("apply", "model.onnx", "-o", "forced.onnx", "--no-verify", cwd=tmp_path)
    assert forced.code in (0, 1), forced.out + forced.err
    assert faults(case.model(), onnx.load(tmp_path / "forced.onnx"), case.feeds) == []


# ---- 5: models of more than 2 GB
def test_05_more_than_2_gb(tmp_path: Path) -> None:
    hard_models.write_big(tmp_path)
    data = tmp_path / "model.data"
    if data.stat().st_blocks * 512 > 1 << 24:
        pytest.skip("the file system keeps no sparse files: the test would fill 2.2 GB")
    before = data.stat()
    # TensorRT's builder needs the weights; the engine and the other rungs must not read them.
    rungs = ["--rungs", "contract,reference,ort-cpu"]
    ended = onnxfix_command("apply", "model.onnx", "-o", "fixed.onnx", *rungs, cwd=tmp_path)
    assert ended.code in (0, 1), ended.out + ended.err
    assert ended.peak < 1 << 30, "the weights were read"
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["fixed.onnx", "fixed.onnx.data", "model.data", "model.onnx"]
    after = data.stat()
    for what in ("st_ino", "st_size", "st_blocks", "st_mtime_ns"):
        assert getattr(before, what) == getattr(after, what), what
    paths = [tmp_path / name for name in ("model.onnx", "fixed.onnx")]
    original, fixed = (onnx.load(path, load_external_data=False) for path in paths)
    weights = next(t for t in fixed.graph.initializer if t.name == "w")
    assert {one.key: one.value for one in weights.external_data}["location"] == "fixed.onnx.data"
    assert len(fixed.graph.node) < len(original.graph.node)
    feed = {"x": peer_models.f32(1, -2), "i": peer_models.i64(3, hard_models.BIG_ROWS - 1)}
    results = [outputs(path, feed) for path in paths]
    assert results[0][0][1, 0] == 10
    assert same_bits(*results)


# ---- 7: operator sets before 7
def test_07_operands_aligned_by_axis() -> None:
    """No runtime but ONNX's reference runs it: the converted model aligns the operands as before."""
    fixed = onnxfix.apply(hard_models.opset6_axis_broadcast(), verify=False).model
    x = np.arange(18, dtype=np.float32).reshape(2, 3, 3)
    (y,) = ReferenceEvaluator(fixed).run(None, {"x": x})
    np.testing.assert_array_equal(y, x + np.array([1, 20, 300], np.float32)[:, None])


# ---- 9 and 10: the user's files
EXTERNAL_FEED = {"x": peer_models.ramp(2, 4, 32)}


@pytest.mark.parametrize(
    "options",
    [("-o", "out/model.onnx"), ("--output-dir", "out"), ("-o", "fixed.onnx"), ("--in-place",)],
    ids=["other-folder", "output-dir", "beside", "in-place"],
)
def test_09_data_beside_the_model_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]
) -> None:
    """Whoever runs it where the data lies keeps the data, and the output finds its weights."""
    hard_models.write_external(tmp_path)
    (tmp_path / "out").mkdir()
    before = digests(tmp_path)
    want = outputs(tmp_path / "model.onnx", EXTERNAL_FEED)
    monkeypatch.chdir(tmp_path)
    code, out, err = run("apply", "model.onnx", *options)
    assert code in (0, 1), out + err
    after = digests(tmp_path)
    if options == ("--in-place",):
        assert after.pop("model.onnx") != before.pop("model.onnx")
    assert {name: after.get(name) for name in before} == before
    written = {"--output-dir": "out/model.onnx", "--in-place": "model.onnx"}.get(options[0], options[-1])
    assert same_bits(want, outputs(tmp_path / written, EXTERNAL_FEED))


# ---- 11: a fix that verification finds wrong
TOY_RULES = '''
from onnx import helper
from onnxfix.rewrite.edits import SetAttribute
from onnxfix.rule import Fix, Match, rule


@rule("TOY001", ops=["LeakyRelu"])
def steep_slope(node, model):
    """A slope that somebody thinks does not matter."""
    if node.attr("alpha", 0.01) != 0.5:
        slope = helper.make_attribute("alpha", 0.5)
        yield Match("slope", node=node, fix=Fix("set it", [SetAttribute(node, "alpha", slope)]))


@rule("TOY002", ops=["ReduceSum"])
def scalar_sum(node, model):
    """A shape () that somebody thinks is a shape (1,)."""
    if node.attr("keepdims", 1) == 0:
        keep = helper.make_attribute("keepdims", 1)
        yield Match("scalar", node=node, fix=Fix("keep it", [SetAttribute(node, "keepdims", keep)]))
'''


@pytest.fixture
def toy_pack(tmp_path: Path) -> Path:
    """A folder with an installed rule pack whose fixes are wrong though they claim to be exact."""
    folder = tmp_path / "site"
    (folder / "toy-1.dist-info").mkdir(parents=True)
    (folder / "toy_rules.py").write_text(TOY_RULES)
    (folder / "toy-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 1\n")
    (folder / "toy-1.dist-info" / "entry_points.txt").write_text("[onnxfix.rules]\ntoy = toy_rules\n")
    return folder


@pytest.mark.parametrize("code", ["TOY001", "TOY002"])
def test_11_wrong_fix_is_not_success(tmp_path: Path, toy_pack: Path, code: str) -> None:
    """The exit code is not 0, the rule is named, and the wrong model is not what lies at the output."""
    model = hard_models.steep_slopes()
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    arguments = ("apply", "model.onnx", "-o", "fixed.onnx", "--select", f"CST,{code}")
    ended = onnxfix_command(*arguments, cwd=tmp_path, python_path=toy_pack)
    assert ended.code in (1, 3), ended.out + ended.err
    assert code in ended.out
    if (tmp_path / "fixed.onnx").exists():
        fixed = onnx.load(tmp_path / "fixed.onnx")
        assert faults(model, fixed, ({"x": peer_models.ramp(5)}, {"x": peer_models.ramp(1)})) == []
        assert kinds(fixed)["Cast"] < kinds(model)["Cast"], (
            "the right fix was withdrawn along with the wrong one"
        )


# ---- 15 and 16: outputs that differ from run to run
def test_16_random_output_is_not_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two runs of one model differ: no fix of ours is to blame, and the draw stays a draw."""
    (tmp_path / "model.onnx").write_bytes(hard_models.random_output().SerializeToString())
    monkeypatch.chdir(tmp_path)
    code, out, err = run("apply", "model.onnx", "-o", "fixed.onnx")
    assert code in (0, 1), out + err
    fixed = onnx.load(tmp_path / "fixed.onnx")
    assert kinds(fixed)["RandomNormal"] == 1
    assert kinds(fixed)["Cast"] < 2
    computed = by_runtime(fixed)
    feed = {"x": peer_models.ramp(2)}
    assert not same_bits(computed(feed)[0], computed(feed)[0])


# ---- 32: what verification must notice
@pytest.mark.parametrize("word", hard_models.DIFFERENT)
def test_32_verify_sees_the_difference(tmp_path: Path, word: str) -> None:
    paths = [tmp_path / "a.onnx", tmp_path / "b.onnx"]
    for path, model in zip(paths, hard_models.different(word), strict=True):
        path.write_bytes(model.SerializeToString())
    result = onnxfix.verify(*paths)
    assert getattr(result, "verdict", result).failed
    same = onnxfix.verify(paths[0], paths[0])
    assert not getattr(same, "verdict", same).failed


# ---- 36 to 38: models that hang, bomb or crash native code
ENDLESS = 60.0
"""Seconds of the processor that a run must not take, which what hangs would."""


IMPATIENT = """
from onnxfix.cli.app import main
from onnxfix.verbs import proof
proof._SMALL_STEP = 2.0
main()
"""


@pytest.mark.slow
def test_36_endless_einsum(tmp_path: Path) -> None:
    """ONNX Runtime 1.32 never returns from it, so that a limit ends the rung: 2 seconds here, usually a minute."""
    (tmp_path / "model.onnx").write_bytes(hard_models.endless_einsum().SerializeToString())
    checked = onnxfix_command("check", "model.onnx", cwd=tmp_path)
    assert clean(checked)
    patched = ("-c", IMPATIENT)
    ended = onnxfix_command("apply", "model.onnx", "-o", "fixed.onnx", cwd=tmp_path, program=patched)
    assert clean(ended), ended.out + ended.err
    assert max(checked.processor, ended.processor) < ENDLESS
    assert (ended.code in (0, 1)) == (tmp_path / "fixed.onnx").exists()


@pytest.mark.corpus(every=3)
@pytest.mark.parametrize("word", hard_models.BOMBS)
def test_37_memory_bomb(tmp_path: Path, word: str) -> None:
    """Little memory and time; the data limit only protects the machine that runs the tests."""
    model = hard_models.bomb(word)
    assert model.ByteSize() < 400
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    ended = onnxfix_command("apply", "model.onnx", "-o", "fixed.onnx", cwd=tmp_path, data_limit=12 << 30)
    assert clean(ended), ended.out + ended.err
    assert ended.processor < ENDLESS
    assert (ended.code in (0, 1)) == (tmp_path / "fixed.onnx").exists()
    assert ended.peak < 1 << 30
    if (tmp_path / "fixed.onnx").exists():
        assert (tmp_path / "fixed.onnx").stat().st_size < model.ByteSize() + SLACK


def test_37_dead_bomb_is_defused(tmp_path: Path) -> None:
    """No rung can run the original to compare with; on request the part that nothing needs is taken out."""
    (tmp_path / "model.onnx").write_bytes(hard_models.bomb("dead").SerializeToString())
    ended = onnxfix_command("apply", "model.onnx", "-o", "fixed.onnx", "--no-verify", cwd=tmp_path)
    assert ended.code in (0, 1), ended.out + ended.err
    x = peer_models.ramp(3)
    assert same_bits(by_runtime(onnx.load(tmp_path / "fixed.onnx"))({"x": x}), [-x])


CRASHING_RUNTIME = """
import importlib, os, signal, sys
here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.remove(here)
del sys.modules["onnxruntime"]
real = importlib.import_module("onnxruntime")
sys.path.insert(0, here)


def run(*arguments, **options):
    os.kill(os.getpid(), signal.SIGSEGV)


for name in ("run", "run_with_ort_values", "run_with_iobinding"):
    setattr(real.InferenceSession, name, run)
"""


@pytest.mark.slow
def test_38_crash_in_the_runtime(tmp_path: Path) -> None:
    """ONNX Runtime dies of SIGSEGV in run(): onnxfix lives, and does not call that rung passed."""
    shim = tmp_path / "site" / "onnxruntime"
    shim.mkdir(parents=True)
    (shim / "__init__.py").write_text(CRASHING_RUNTIME)
    (tmp_path / "model.onnx").write_bytes(hard_models.steep_slopes().SerializeToString())
    probe = subprocess.run(
        [sys.executable, "-c", "import onnxruntime as o; o.InferenceSession.run(None)"],
        env=dict(os.environ, PYTHONPATH=str(tmp_path / "site")),
        capture_output=True,
    )
    assert probe.returncode == -11, "the stand-in for a crashing runtime does not crash"
    ended = onnxfix_command(
        "apply", "model.onnx", "-o", "fixed.onnx", cwd=tmp_path, python_path=tmp_path / "site"
    )
    assert clean(ended), ended.out + ended.err
    assert ended.code in (0, 1, 3), ended.err
    rung = [line for line in ended.out.splitlines() if "ort-cpu" in line]
    assert rung, ended.out
    assert not any("passed" in line for line in rung), ended.out
