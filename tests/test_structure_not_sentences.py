"""No code reads a sentence: with every text that onnxfix makes replaced by a placeholder, all verdicts are the same.

Texts are replaced where records are made, in this process, and where they come out of the sandbox. What TensorRT, ONNX
Runtime and onnx say is input from outside and stays; so do names, and the titles of fixes, which are names too.
"""
# Long because: all kinds of runs, and the records that lose their texts, stand in one place.

from __future__ import annotations

import ast
import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import onnxfix
from onnxfix import place, rule
from onnxfix.graph.overlay import Node
from onnxfix.inputs.feeds import plan
from onnxfix.model import Model
from onnxfix.proof import cuda, remote, validity, verdict
from onnxfix.proof.checks import build, builder, probe
from onnxfix.proof.compare import compare
from onnxfix.proof.compare.compare import Terms
from onnxfix.proof.readback.values import is_lost, is_slight
from onnxfix.proof.remote import Ran
from onnxfix.proof.request import Trial
from onnxfix.report import report
from onnxfix.rewrite.registry import Registry, registry
from onnxfix.rule import Match, Rule, Safety
from onnxfix.runtime import causes, nvidia, sandbox
from onnxfix.runtime.sandbox import Worker
from onnxfix.tensorrt import lift, package, reading
from onnxfix.tensorrt import records as trt_records
from onnxfix.tensorrt.records import TrtOptions
from onnxfix.verbs import intake
from onnxfix.verbs.fleet import work
from support import models
from support.paths import FIXTURES
from support.real_tensorrt import REAL
from support.toy_rules import identity, writes, wrong_abs

GONE = "-"
#: Record -> the fields that hold a text of onnxfix's own.
TEXTS: dict[type, tuple[str, ...]] = {
    compare.Metrics: ("reason",),
    verdict.FeedResult: ("reason", "label"),
    Trial: ("label",),
    verdict.RungResult: ("reason", "notes"),
    verdict.Executed: ("reason",),
    reading.Reading: ("reason", "notes"),
    reading.Misread: ("extent",),
    nvidia.Missing: ("what",),
    package.Choice: ("note",),
    probe.Probe: ("reason",),
    verdict.SweepResult: ("reason", "span"),
    verdict.Pair: ("differing", "unproven"),
    Ran: ("error", "beyond"),
    sandbox.Outcome: ("message",),
    trt_records.Ending: ("text",),
    lift.Lifted: ("reason", "notes"),
    validity.Checked: ("refused", "inference", "skipped", "starved"),
    causes.Problem: ("text",),
    rule.Match: ("message",),
    report.Finding: ("message", "confirmed", "pointer"),
    report.AppliedFix: ("message", "confirmed"),
    report.Withdrawn: ("reason",),
    report.StepDone: ("reason",),
    report.Report: ("headline", "notes"),
    intake.Stopped: ("said",),
}


def gone(value: Any) -> Any:
    """The placeholder for a text, of the same kind; what is empty stays empty, for that is no sentence."""
    if isinstance(value, tuple):
        return tuple(map(gone, value))
    return GONE if value else value


def wiped(value: Any) -> Any:
    """What came out of the sandbox, without the texts in its records."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        texts = TEXTS.get(type(value), ())
        held = {one.name: getattr(value, one.name) for one in dataclasses.fields(value) if one.init}
        new = {name: gone(item) if name in texts else wiped(item) for name, item in held.items()}
        changed = {name: item for name, item in new.items() if item is not held[name]}
        return dataclasses.replace(value, **changed) if changed else value
    if type(value) in (tuple, list):
        items = [wiped(item) for item in value]
        return value if all(map(lambda a, b: a is b, items, value)) else type(value)(items)
    return value


def wipe(monkeypatch: pytest.MonkeyPatch) -> list[type]:
    """Replace every text from here on. Returns the records of which one was replaced, as they come."""
    seen: list[type] = []
    for kind, names in TEXTS.items():
        monkeypatch.setattr(kind, "__init__", _made(kind, names, seen))
    call = Worker.call
    monkeypatch.setattr(Worker, "call", lambda *args, **more: wiped(call(*args, **more)))
    monkeypatch.setattr(place.Place, "text", property(lambda self: GONE))
    return seen


def _made(kind: type, names: tuple[str, ...], seen: list[type]) -> Callable[..., None]:
    init: Callable[..., None] = kind.__init__  # type: ignore[misc]
    signature = inspect.signature(init)

    def made(self: Any, *args: Any, **more: Any) -> None:
        given = signature.bind(self, *args, **more).arguments
        for name in names:
            if given.get(name):
                given[name] = gone(given[name])
                seen.append(kind)
        init(**given)

    return made


# ------------------------------------------------------------------------------------------------- what is run


def model(folder: Path, text: str, name: str = "m.onnx") -> Path:
    return models.write(folder / name, models.model(text, 17, 8, {"my": 1}))


infinite = writes("BBB002", "Sqrt", "Log")  # not finite where the square root is
invalid = writes("BBB003", "Neg", "Concat")  # without its axis
unsafe = writes("BBB004", "Exp", "Sqrt", Safety.UNSAFE)


@rule.rule("CCC001", ops=["Abs"])
def starving(node: Node, model: Model) -> Iterator[Match]:
    """Has no memory."""
    raise MemoryError
    yield Match("never")


@rule.rule("CCC002", ops=["*"])
def failing(node: Node, model: Model) -> Iterator[Match]:
    """Fails at each node."""
    raise ValueError(node.first_output)
    yield Match("never")


CHAIN = """g (float[N,4] x) => (float[N,4] y) {
    a = Identity(x) b = Abs(a) c = Identity(b) d = Neg(c) e = Exp(d) f = Identity(e) y = Sqrt(f) }"""
HALF = (
    """g (float16[N,4] x) => (float16[N,4] y) { a = Identity(x) b = Exp(a) c = Mul(b, b) y = Identity(c) }"""
)
COUNTED = """g (float[N] x) => (float[4,25] y) <int64[2] s = {4, 25}> {
    i = NonZero(x)  f = Cast<to=1>(i)  d = Reshape(f, s)  y = Identity(d) }"""
LOOPED = """g (float[N,2] x, bool k) => (float[N,2] y) {
    y = If(k) <then_branch = t () => (float[N,2] p) { o = Identity(x) p = Abs(o) },
               else_branch = u () => (float[N,2] q) { q = Neg(x) }> }"""
ONE = "g (float[N,4] x) => (float[N,4] y) { y = Relu(x) }"
ABS = "g (float[N,4] x) => (float[N,4] y) { y = Abs(x) }"
PAIRS = {
    "values": (ABS, ABS.replace("Abs", "Neg")),
    "special": (ONE, "g (float[N,4] x) => (float[N,4] y) { z = Relu(x) y = Div(z, z) }"),
    "shape": (
        ONE,
        "g (float[N,4] x) => (float[1,N,4] y) <int64[1] a = {0}> { z = Relu(x) y = Unsqueeze(z, a) }",
    ),
    "dtype": (ONE, "g (float[N,4] x) => (double[N,4] y) { z = Relu(x) y = Cast<to=11>(z) }"),
    "absent": ("g (float[N,4] x) => (float[N,4] y, float[N,4] w) { y = Relu(x) w = Neg(x) }", ONE),
    "same": (ONE, ONE),
    "random": (
        "g (float[N,4] x) => (float[N,4] y) { r = RandomNormalLike(x) y = Add(x, r) }",
        "g (float[N,4] x) => (double[N,4] y) { r = RandomNormalLike(x) z = Add(x, r) y = Cast<to=11>(z) }",
    ),
    "unloaded": ("g (float[N,4] x) => (float[N,4] y) { y = my.None(x) }", ONE),
}


class Runs:
    """The runs, by name; ``rules`` takes the place of the registry's."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.monkeypatch = folder, monkeypatch

    def apply(self, text: str, rules: tuple[Rule, ...] = (), **more: Any) -> report.Report:
        source = model(self.folder, text)
        return self.applied(source, rules, **more)

    def applied(self, source: Path, rules: tuple[Rule, ...] = (), **more: Any) -> report.Report:
        with self.monkeypatch.context() as patch:
            if rules:
                patch.setattr("onnxfix.verbs.job.registry", lambda: Registry(rules, ()))
            return onnxfix.apply(source, self.folder / "out.onnx", **more)

    def verify(self, name: str, **more: Any) -> report.Report:
        first, second = (model(self.folder, text, f"{i}.onnx") for i, text in enumerate(PAIRS[name]))
        return onnxfix.verify(first, second, **{"rungs": ["reference", "ort-cpu"], **more})


CPU = ("contract", "reference", "ort-cpu", "ort-cuda")
RUNS: dict[str, Callable[[Runs], report.Report]] = {
    "withdrawn": lambda runs: runs.apply(CHAIN, (identity, wrong_abs, infinite, invalid), rungs=CPU),
    "unsafe": lambda runs: runs.apply(CHAIN, (identity, unsafe), unsafe_fixes=True, rungs=CPU),
    "nothing": lambda runs: runs.apply(ONE, (identity,), rungs=CPU),
    "half": lambda runs: runs.apply(HALF, (identity,), rungs=CPU),
    "branch": lambda runs: runs.apply(LOOPED, (identity, wrong_abs), rungs=CPU),
    "faults": lambda runs: runs.apply(CHAIN, (identity, starving, failing), rungs=CPU),
    "stopped": lambda runs: runs.apply(COUNTED, (identity,), rungs=("ort-cpu",)),
    "required": lambda runs: runs.apply(CHAIN, (identity,), rungs=CPU, require=["ort-cuda"]),
    "static": lambda runs: runs.apply(CHAIN, (identity,), rungs=CPU, static=True, fix_dims={"N": 2}),
    "fixture": lambda runs: runs.applied(
        FIXTURES / "mixed_precision.legacy.op17.onnx", numeric_fixes=True, rungs=CPU
    ),
    "checked": lambda runs: onnxfix.check(FIXTURES / "trt" / "hard_coded_batch.onnx"),
    **{f"verify {name}": partial(Runs.verify, name=name) for name in PAIRS},
    "verify given": lambda runs: runs.verify(
        "values", inputs=_given(runs.folder, np.ones((2, 4), np.float32))
    ),
    "verify given exactly": lambda runs: runs.verify(
        "values", inputs=_given(runs.folder, np.ones((2, 4), np.float32)), exact=True
    ),
}
TRT = TrtOptions(package="tensorrt-rtx")
NETWORK = ("contract", "ort-cpu", "trt-build", "trt-network", "trt-gpu")
REAL_RUNS: dict[str, Callable[[Runs], report.Report]] = {
    "refused": lambda runs: runs.applied(FIXTURES / "trt" / "int32_relu.onnx", trt=TRT, rungs=NETWORK),
    "in a branch": lambda runs: onnxfix.check(FIXTURES / "trt" / "int32_relu_in_a_branch.onnx", trt=TRT),
    "a dead node": lambda runs: onnxfix.check(FIXTURES / "trt" / "dead_node.onnx", trt=TRT),
    "misread": lambda runs: runs.applied(FIXTURES / "misread" / "decoder.onnx", trt=TRT, rungs=NETWORK),
    "misread and left": lambda runs: onnxfix.check(FIXTURES / "misread" / "decoder.onnx", trt=TRT),
    "sweep": lambda runs: onnxfix.verify(
        FIXTURES / "trt" / "hard_coded_batch.onnx", trt=TRT, rungs=["trt-build"], batch_sweep=2
    ),
    "sweep that fits": lambda runs: onnxfix.verify(
        model(runs.folder, ONE), trt=TRT, rungs=["trt-build", "trt-network"], batch_sweep=2
    ),
    "differs": lambda runs: runs.verify("values", trt=TRT, rungs=["ort-cpu", "trt-build", "trt-network"]),
}


def _given(folder: Path, value: Any) -> str:
    np.savez(folder / "inputs.npz", x=value)
    return str(folder / "inputs.npz")


def told(found: report.Report) -> Any:
    """What a report says, without a sentence."""
    task = work.Task(0, found.path)
    ladder = found.verdict
    return {
        "exit": found.exit_code,
        "memory": work.attempt(task, lambda: found).memory,
        "verdict": None
        if ladder is None
        else (ladder.passed, ladder.failed, ladder.settled, ladder.compared),
        "rungs": [_rung(one) for one in (ladder.rungs if ladder is not None else ())],
        "findings": [
            (one.code, _place(one.place), one.severity, one.safety, bool(one.confirmed), one.on_engine)
            for one in found.findings
        ],
        "applied": [
            (one.code, _place(one.place), one.safety, bool(one.confirmed), one.round) for one in found.applied
        ],
        "withdrawn": [(one.code, _place(one.place)) for one in found.withdrawn],
        "steps": [(one.name, one.status, one.safety, one.fixed) for one in found.steps],
        "networks": [_reading(one) for one in found.networks],
        "builds": [(one.status, one.stage, len(one.errors), len(one.warnings)) for one in found.builds],
        "problems": [(one.cause, one.source, one.rule) for one in found.problems],
        "stopped": None if found.stopped is None else (_place(found.stopped.place), found.stopped.op_type),
        "changed": found.changed,
        "written": bool(found.output),
        "headline": bool(found.headline),
        "counts": (found.nodes_before, found.nodes_after, found.rounds),
    }


def _place(one: place.Place) -> Any:
    return one.graph, one.label, one.node, one.layer


def _rung(one: verdict.RungResult) -> Any:
    feeds = [(f.fed, f.status, f.cause, f.stopped, f.sides, [*map(_metric, f.metrics)]) for f in one.feeds]
    swept = one.sweep
    pairs = [(bool(p.wrong), bool(p.differing)) for p in swept.pairs] if swept is not None else []
    more = (one.inherited, one.stopped, one.excluded, one.exact, len(one.notes))
    return one.name, one.status, one.cause, more, feeds, swept.status if swept is not None else "", pairs


def _metric(one: compare.Metrics) -> Any:
    return one.name, one.agreement, one.kind, one.mismatches, one.special, one.beyond, one.at


def _reading(one: reading.Reading) -> Any:
    misreads = [(m.kind, _place(m.place), m.subject, m.name, m.harmless, m.index) for m in one.misreads]
    return one.status, one.cause, misreads, one.feeds, one.excluded


def forget() -> None:
    """Drop what rungs keep of the last original, which would come with its texts."""
    from onnxfix.proof.checks import build, gpu
    from onnxfix.proof.readback import network

    for one in (build, gpu, network):
        one._LAST.clear()


@cache
def _known() -> tuple[Rule, ...]:
    return registry().rules


def same(
    run: Callable[[Runs], report.Report], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Any, list[type]]:
    """Run twice, with texts and without; what both say, and of which records texts were replaced."""
    assert _known()
    runs = Runs(folder, monkeypatch)
    forget()
    first = told(run(runs))
    with monkeypatch.context() as patch:
        seen = wipe(patch)
        forget()
        second = run(runs)
        assert _only_placeholders(second)
        assert told(second) == first
    forget()
    return first, seen


def _only_placeholders(value: Any) -> bool:
    """Whether no record in a report holds a text."""
    if isinstance(value, Mapping):
        return all(map(_only_placeholders, value.values()))
    if isinstance(value, (tuple, list)):
        return all(map(_only_placeholders, value))
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return True
    texts = [getattr(value, name) for name in TEXTS.get(type(value), ())]
    return all(text == gone(text) for text in texts) and all(
        _only_placeholders(getattr(value, one.name))
        for one in dataclasses.fields(value)
        if one.name != "pending"
    )


@pytest.mark.parametrize(
    "name",
    [pytest.param("withdrawn", marks=pytest.mark.slow), *(name for name in RUNS if name != "withdrawn")],
)
def test_without_sentences_verdicts_are_the_same(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, seen = same(RUNS[name], tmp_path, monkeypatch)
    assert seen
    expected = {"withdrawn": {"BBB001", "BBB002", "BBB003"}, "branch": {"BBB001"}}
    assert {code for code, _ in first["withdrawn"]} == expected.get(name, set())
    kind = name.removeprefix("verify ")
    if kind in ("values", "special", "shape", "dtype", "absent"):
        kinds = {m[2] for rung in first["rungs"] for feed in rung[4] for m in feed[5] if m[1] == "different"}
        assert kinds == {kind}
        assert first["exit"] == 3
    if name == "faults":
        assert first["memory"]
        assert {one[2] for one in first["problems"]} == {"CCC001", "CCC002"}
    if name in ("stopped", "verify unloaded"):
        assert first["stopped"] is not None


@REAL
@pytest.mark.parametrize("name", REAL_RUNS)
def test_without_sentences_tensorrts_word_counts_the_same(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, seen = same(REAL_RUNS[name], tmp_path, monkeypatch)
    assert seen
    if name in ("refused", "misread"):
        assert any(one[3] for one in first["applied"])
    if name in ("in a branch", "misread and left"):
        assert any(one[4] for one in first["findings"])


@pytest.mark.parametrize("name", [name for name in PAIRS if name != "unloaded"])
def test_without_sentences_the_sandbox_judges_the_same(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the sandbox's child does, done here: there, texts cannot be replaced."""
    paths = [str(model(tmp_path, text, f"{i}.onnx")) for i, text in enumerate(PAIRS[name])]
    feed = {"x": np.linspace(-4, 4, 8, dtype=np.float32).reshape(2, 4)}
    drawn = ("y",) if name == "random" else ()

    def judged() -> Any:
        assert not remote.load("ort-cpu", *paths).stage
        ran = remote.run(feed, again=False, drawn=drawn, terms=Terms(), skip=())
        remote.drop()
        return ran.stage, ran.unstable, [_metric(one)[:3] for one in ran.metrics]

    first = judged()
    seen = wipe(monkeypatch)
    assert judged() == first
    assert (compare.Metrics in seen) == any(one[2] for one in first[2])


def test_without_sentences_a_difference_means_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    same, first = np.ones(4, np.float32), np.array([True, False, False, False])
    others = [
        same + np.float32(1e-3),
        same + 1,
        np.where(first, np.float32("nan"), same),
        np.where(first, np.float32("inf"), same + 1),
        same.reshape(2, 2),
        same.astype(np.float64),
        [same],
        None,
    ]
    feed = plan.Feed({}, "extreme", 0)

    def meant() -> Any:
        found = [compare.compare("y", same, other, exact=False)[0] for other in others]
        return [(cuda.overflows(one, feed), is_lost(one), is_slight(one)) for one in found]

    before = meant()
    assert before == [
        (False, False, True),
        (False, False, False),
        (True, True, False),
        (True, False, False),
        *[(False, False, False)] * 4,
    ]
    wipe(monkeypatch)
    assert meant() == before


def test_the_wipe_reaches_what_comes_out_of_the_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    metric = compare.Metrics("y", "different", "has shape", "shape", ("(1,)", "(2,)"))
    found = wiped(Ran("fixed", "it fails", (metric,), said="no", beyond="first"))
    assert (found.stage, found.said, found.error, found.beyond) == ("fixed", "no", GONE, GONE)
    assert found.metrics[0].reason == GONE
    assert (found.metrics[0].kind, found.metrics[0].sides) == ("shape", ("(1,)", "(2,)"))
    wipe(monkeypatch)
    assert verdict.RungResult("x", "failed", "why", notes=("one", "two")).notes == (GONE, GONE)
    assert verdict.RungResult("x", "passed").reason == ""


ENDINGS = (
    sandbox.Outcome("crash", message="killed by SIGSEGV", died=True, printed="std::bad_alloc"),
    sandbox.Outcome("crash", message="killed by SIGSEGV, out of memory", died=True, printed="no"),
    sandbox.Outcome("memory", message="ran out of memory", note="build", died=True),
    sandbox.Outcome("memory", message="MemoryError: bad_alloc", note="parse"),
    sandbox.Outcome("timeout", message="took more than 1 s: out of memory", note="build"),
    sandbox.Outcome("error", message="RuntimeError: out of memory", note="build"),
    sandbox.Outcome("ok", nvidia.Missing("out of memory", "not-loadable")),
    sandbox.Outcome("ok", nvidia.Missing("it does not load", "memory")),
)


@pytest.mark.parametrize("outcome", ENDINGS, ids=lambda one: f"{one.status} {one.note}")
def test_without_sentences_an_end_of_tensorrt_means_the_same(
    outcome: sandbox.Outcome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the process that chooses TensorRT, of the one that builds, and of the one that reads the network back."""
    path = model(tmp_path, ONE)
    monkeypatch.setattr(Worker, "call", lambda *_, **__: outcome)

    def meant() -> Any:
        chosen = builder._choice.__wrapped__("auto", None, TrtOptions(), 0, None)
        found: list[Any] = [chosen.cause]
        if not outcome.ok:
            asked = builder.Builder(package.Choice("tensorrt", "10.14", "8.9"), TrtOptions(), Worker())
            built = asked.build(path)
            rung = build.judge((built,), asked, inherit=False)
            lifted = lift.attempt(Worker(), path, tmp_path / "out.onnx", package="tensorrt")
            found += [built.status, built.stage, rung.status, rung.cause, lifted.status]
        return found

    first = meant()
    assert first[0] == {"no": "crash", "std::bad_alloc": "memory"}.get(outcome.printed, first[0])
    wipe(monkeypatch)
    assert meant() == first


#: Modules that apply expressions to texts: of TensorRT, of ONNX Runtime, and of users (versions, shapes, file names).
READERS = {
    "tensorrt.messages",
    "runtime.backends.ort_messages",
    "tensorrt.package",
    "inputs.feeds.files",
    "inputs.feeds.plan",
}


def test_texts_from_outside_are_read_in_one_module_each() -> None:
    root = Path(onnxfix.__file__).parent
    files = [
        path
        for room in ("tensorrt", "runtime/backends", "proof", "inputs/feeds", "inputs/specialize")
        for path in sorted((root / room).rglob("*.py"))
    ]
    found = {
        ".".join(path.relative_to(root).with_suffix("").parts)
        for path in files
        if any(
            isinstance(node, ast.Import) and any(alias.name == "re" for alias in node.names)
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        )
    }
    assert found == READERS
