"""Whole-model steps: onnxsim and GraphSurgeon scripts, guarded, in a run of ``apply``."""
# Long because: one test for each promise of the two options, on models that hold what the tools lose.

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import onnxfix
from onnxfix.errors import UsageError
from onnxfix.report.report import Report, StepDone
from onnxfix.runtime.sandbox import Worker
from onnxfix.verbs.whole import steps
from support import hard_models, models, peer_models
from support.cli import output, process, refused
from support.ort import runner as by_runtime
from support.paths import FIXTURES
from support.peer_models import PEERS, Peer
from test_peer_bugs import close, faults, oracle, raw, sound

REAL_MODELS = sorted(path.name for path in FIXTURES.glob("*.onnx"))
CPU = ["contract", "reference", "ort-cpu"]
NOTHING = "def fix(graph):\n    pass\n"
WRONG = """
def fix(graph):
    for node in graph.nodes:
        if node.op == "Exp":
            node.op = "Sin"
"""
DROP = """
import onnx_graphsurgeon as gs

def fix(graph):
    for node in [node for node in graph.nodes if node.op == "Identity"]:
        reader = node.o()
        reader.inputs[0] = node.inputs[0]
        node.outputs.clear()
    return graph.cleanup()
"""
MODEL = "g (float[N, 4] x) => (float[N, 4] y) { a = Identity(x) b = Exp(a) c = Identity(b) y = Neg(c) }"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        any(importlib.util.find_spec(name) is None for name in ("onnxsim", "onnx_graphsurgeon")),
        reason="needs the extras: pip install 'onnxfix[simplify,graphsurgeon]'",
    ),
]


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def model_at(folder: Path, text: str = MODEL) -> Path:
    return models.write(folder / "m.onnx", text, 18)


def apply(source: Any, output: Path | None = None, **options: Any) -> Report:
    options.setdefault("rungs", CPU)
    options.setdefault("select", ["OPS044"])  # a rule that finds nothing here
    return onnxfix.apply(source, output, **options)


def the_step(report: Report) -> StepDone:
    (step,) = report.steps
    return step


@pytest.fixture
def one_child(monkeypatch: pytest.MonkeyPatch, worker: Worker) -> None:
    """All steps run in one child, which has loaded the tools: starting one for each takes longer than most models."""
    monkeypatch.setattr(steps, "Worker", lambda: contextlib.nullcontext(worker))


def assert_right_or_dropped(case: Peer, report: Report) -> None:
    """What comes out is the same model: as it was, or with other nodes."""
    original, step = case.model(), the_step(report)
    assert report.model is not None
    if step.status == "dropped" or step.safety == "exact":
        assert raw(report.model) == raw(original)
        return
    kinds = {fault.partition(":")[0] for fault in faults(original, report.model, case.feeds)}
    assert kinds <= {"values", "size"} if step.name != "--simplify" else kinds <= {"values"}
    again, expected = oracle(sound(original), case.feeds)
    for feed, want in zip(case.feeds, expected, strict=True):
        assert all(map(close, want, again(report.model)(feed)))


# ---- --simplify


@pytest.mark.corpus
@pytest.mark.usefixtures("one_child")
@pytest.mark.parametrize("case", PEERS, ids=lambda case: case.id)
def test_simplified_traps_are_right_or_dropped(case: Peer) -> None:
    """Whatever onnxsim makes of a model that it is known to break: what comes out is the same model."""
    assert_right_or_dropped(case, apply(case.model(), simplify=True))


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        ("12-pad-axes-order", "output y has shape"),
        ("13-my-relu-twice", "removed 1 call of my::Relu"),
        ("13-my-identity-negates", "removed 2 calls of my::Identity"),
        ("15-two-draws-normal", "random operators decide y"),
        ("15-two-draws-function", "random operators decide y"),
        ("16-training-dropout-folded", "random operators decide y"),
        ("18-add-zero-removes-minus-zero", "NaN or Inf at different positions"),
        ("25-default-fold", "the default of input 'c' was built in"),
        ("31-unsorted-nodes", "topologically sorted"),
        ("33-bloat-widened-weights", "bytes larger"),
        ("39-custom-operator", "not proven"),
    ],
)
def test_dropped_results_are_named_with_the_reason(case: str, reason: str) -> None:
    report = apply(next(peer for peer in PEERS if peer.id == case).model(), simplify=True)
    step = the_step(report)
    assert (step.status, step.name, step.safety) == ("dropped", "--simplify", "")
    assert reason in step.reason
    assert report.exit_code == 1


@pytest.mark.corpus
@pytest.mark.parametrize("name", REAL_MODELS)
def test_real_models_are_simplified(name: str, tmp_path: Path) -> None:
    source = FIXTURES / name
    report = apply(source, tmp_path / "out.onnx", simplify=True)
    step = the_step(report)
    assert (step.status, step.safety) == ("taken", "numeric"), step.reason
    assert step.nodes_after < step.nodes_before
    original, fixed = onnx.load(source), onnx.load(tmp_path / "out.onnx")
    assert original.graph.input == fixed.graph.input
    assert original.graph.output == fixed.graph.output
    assert original.opset_import == fixed.opset_import
    assert {n.domain for n in fixed.graph.node} <= {n.domain for n in original.graph.node}
    known = {info.name for info in original.graph.value_info}
    assert {info.name for info in fixed.graph.value_info} <= known, "declarations that the model did not make"
    # A second run may find more to simplify once rules have been at work; without rules it finds nothing.
    again = apply(tmp_path / "out.onnx", tmp_path / "again.onnx", simplify=True)
    assert the_step(again).safety == "exact"
    assert (tmp_path / "again.onnx").read_bytes() == (tmp_path / "out.onnx").read_bytes()


def test_the_same_bytes_from_another_process(tmp_path: Path) -> None:
    made = []
    for number in (1, 2):
        out = tmp_path / f"{number}.onnx"
        arguments = (
            "apply",
            FIXTURES / "vit.legacy.op17.onnx",
            "--simplify",
            "-o",
            out,
            "--rungs",
            "contract",
        )
        done = process(*arguments, env={**os.environ, "PYTHONHASHSEED": str(number)})
        assert done.returncode in (0, 1)
        made.append(out.read_bytes())
    assert made[0] == made[1]


def test_batch_norm_is_fused_within_tolerance(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    text = """g (float[N,3,8,8] x) => (float[N,4,6,6] y) {
        c = Conv(x, w)  y = BatchNormalization(c, s, b, m, v) }"""
    shapes = {"w": (4, 3, 3, 3), "s": (4,), "b": (4,), "m": (4,), "v": (4,)}
    weights = {name: rng.random(shape, np.float32) + 0.5 for name, shape in shapes.items()}
    model = models.model(text, 17, 8, **weights)
    report = apply(model, simplify=True)
    assert [node.op_type for node in report.model.graph.node] == ["Conv"]
    step = the_step(report)
    assert step.safety == "numeric"
    assert "within tolerance" in step.reason
    assert report.verdict.passed
    assert not any(rung.exact for rung in report.verdict.rungs), "identical bits were asked of a fusion"


@pytest.mark.parametrize("option", ["simplify", "graphsurgeon"])
def test_external_data_stay_where_they_are(tmp_path: Path, option: str) -> None:
    model = hard_models.write_external(tmp_path)
    for number in range(3):  # so that there is something to save
        model.graph.node.add(op_type="Exp", input=["x"], output=[f"dead_{number}"])
    (tmp_path / "model.onnx").write_bytes(raw(model))
    out = tmp_path / "out"
    out.mkdir()
    script = write(tmp_path / "s.py", "def fix(graph):\n    graph.cleanup().toposort()\n")
    how: dict[str, Any] = {"simplify": True} if option == "simplify" else {"graphsurgeon": [script]}
    report = apply(tmp_path / "model.onnx", out / "model.onnx", **how)
    assert (the_step(report).status, the_step(report).safety) == ("taken", "numeric"), the_step(report).reason
    fixed = onnx.load(out / "model.onnx", load_external_data=False)
    before = onnx.load(tmp_path / "model.onnx", load_external_data=False)
    assert [t for t in fixed.graph.initializer if t.name in "wb"] == list(before.graph.initializer)
    assert (out / "model.onnx.data").read_bytes() == (tmp_path / "model.onnx.data").read_bytes()
    assert sorted(path.name for path in out.iterdir()) == ["model.onnx", "model.onnx.data"]
    got = by_runtime(onnx.load(out / "model.onnx"))({"x": peer_models.ramp(2, 4, 32)})
    want = by_runtime(onnx.load(tmp_path / "model.onnx"))({"x": peer_models.ramp(2, 4, 32)})
    assert close(want, got)


def test_steps_read_the_models_own_data_whatever_lies_in_the_outputs_folder(tmp_path: Path) -> None:
    """A file of the data's name there, from another model, was taken for it: wrong weights, found proven."""
    for name in ("in", "out"):
        (tmp_path / name).mkdir()
    w, v = (np.arange(1, 4, dtype=np.float32) * factor for factor in (1, 2))
    text = "g (float[3] x) => (float[3] y) { k = Add(w, v)  y = Mul(x, k) }"
    path = tmp_path / "in/m.onnx"
    onnx.save(
        models.model(text, 18, w=w, v=v), path, save_as_external_data=True, location="d", size_threshold=0
    )
    (tmp_path / "out/d").write_bytes(bytes((path.parent / "d").stat().st_size))
    unsafe = write(
        tmp_path / "a.py",
        "def fix(graph):\n    graph.outputs[0].name = graph.nodes[-1].outputs[0].name = 'z'\n",
    )
    folding = write(tmp_path / "b.py", "def fix(graph):\n    graph.fold_constants().cleanup()\n")
    report = apply(path, tmp_path / "out/f.onnx", graphsurgeon=[unsafe, folding], unsafe_fixes=True)
    assert [step.status for step in report.steps] == ["taken", "taken"], report.steps
    [got] = by_runtime(onnx.load(tmp_path / "out/f.onnx"))({"x": np.ones(3, np.float32)})
    assert got.tolist() == [3, 6, 9]
    assert not (tmp_path / "out/d").read_bytes().strip(b"\0"), "it is somebody else's"


def test_more_than_2_gb_is_refused_by_onnxsim_and_not_by_a_script(tmp_path: Path) -> None:
    """Of 2.2 GB of weights two rows are ever read: nothing loads them."""
    hard_models.write_big(tmp_path)
    script = write(tmp_path / "s.py", "def fix(graph):\n    graph.cleanup().toposort()\n")
    began = time.monotonic()
    report = apply(
        tmp_path / "model.onnx",
        tmp_path / "out.onnx",
        simplify=True,
        graphsurgeon=[script],
        rungs=["contract"],
    )
    assert [step.status for step in report.steps] == ["dropped", "taken"]
    assert report.steps[0].reason == "onnxsim handles models of up to 2 GB, and this one has 2.2 GB"
    before, after = (
        onnx.load(tmp_path / name, load_external_data=False) for name in ("model.onnx", "out.onnx")
    )
    assert [t.dims for t in after.graph.initializer if t.name == "w"] == [
        t.dims for t in before.graph.initializer if t.name == "w"
    ]
    assert (tmp_path / "out.onnx.data").stat().st_size == (tmp_path / "model.data").stat().st_size
    assert len(after.graph.node) == len(before.graph.node) - 1  # the dead one
    assert time.monotonic() - began < 60


def test_the_rules_go_on_with_the_model_as_it_was(tmp_path: Path) -> None:
    path = model_at(tmp_path)
    wrong = write(tmp_path / "wrong.py", WRONG)
    text = "g (float[N, 4] x) => (float[N, 4] y) { a = Cast<to=11>(x) b = Cast<to=1>(a) y = Exp(b) }"
    models.write(path, text, 18)
    report = apply(path, tmp_path / "out.onnx", graphsurgeon=[wrong], select=["CST003"])
    step = the_step(report)
    assert step.status == "dropped"
    assert "reference: output y" in step.reason
    assert [item.code for item in report.applied] == ["CST003"]
    fixed = onnx.load(tmp_path / "out.onnx")
    assert "Exp" in [node.op_type for node in fixed.graph.node]
    assert all(rung.exact for rung in report.verdict.rungs if rung.name in CPU), "no step was taken"
    assert report.exit_code_for(None) == 1
    assert report.to_json()["steps"][0]["status"] == "dropped"


# ---- --graphsurgeon


@pytest.mark.corpus
@pytest.mark.usefixtures("one_child")
@pytest.mark.parametrize("case", PEERS, ids=lambda case: case.id)
def test_a_script_that_does_nothing_changes_nothing(case: Peer, tmp_path: Path) -> None:
    original = case.model()
    report = apply(original, graphsurgeon=[write(tmp_path / "s.py", NOTHING)])
    assert (the_step(report).status, the_step(report).safety) == ("taken", "exact"), the_step(report).reason
    assert report.model is not None
    assert raw(report.model) == raw(original)
    assert not report.changed


@pytest.mark.corpus
@pytest.mark.usefixtures("one_child")
@pytest.mark.parametrize("case", PEERS, ids=lambda case: case.id)
def test_folding_by_graphsurgeon_is_right_or_dropped(case: Peer, tmp_path: Path) -> None:
    script = write(tmp_path / "s.py", "def fix(graph):\n    graph.fold_constants().cleanup().toposort()\n")
    original = case.model()
    if case.entry == 20:  # graphsurgeon can export what it folded, but for strings
        with contextlib.suppress(UsageError):
            apply(original, graphsurgeon=[script])
        return
    assert_right_or_dropped(case, apply(original, graphsurgeon=[script]))


def test_a_script_may_leave_alone_an_if_that_reads_a_weight(tmp_path: Path) -> None:
    """graphsurgeon moves such a weight into the branches."""
    text = """g (float[2] x, bool c) => (float[2] y) <float[2] w = {1, 2}> {
        r = If(c) <then_branch = t () => (float[2] a) { a = Add(x, w) },
                   else_branch = e () => (float[2] b) { b = Mul(x, w) }>
        n = Exp(r)  y = Neg(n) }"""
    script = "def fix(graph):\n    next(node for node in graph.nodes if node.op == 'Neg').name = 'z'\n"
    report = apply(model_at(tmp_path, text), graphsurgeon=[write(tmp_path / "s.py", script)])
    assert the_step(report).status == "taken", the_step(report).reason
    assert [tensor.name for tensor in report.model.graph.initializer] == ["w"]
    assert report.model.graph.node[-1].name == "z"


def test_onnxsim_keeps_what_is_said_of_nodes(tmp_path: Path) -> None:
    proto = models.model("g (float[2] x) => (float[2] y) { a = Identity(x)  b = Exp(a)  y = Neg(b) }", 18)
    proto.graph.node[2].metadata_props.add(key="pkg.torch", value="layer.1")
    report = apply(models.write(tmp_path / "m.onnx", proto), simplify=True)
    assert the_step(report).status == "taken", the_step(report).reason
    assert len(report.model.graph.node) == 2
    assert report.model.graph.node[1] == proto.graph.node[2]


def test_scripts_run_in_their_order_and_a_wrong_one_does_not_stop_the_others(tmp_path: Path) -> None:
    path = model_at(tmp_path)
    names = [("drop", DROP), ("wrong", WRONG), ("count", COUNT)]
    scripts = [write(tmp_path / f"{name}.py", text) for name, text in names]
    report = apply(path, tmp_path / "out.onnx", graphsurgeon=scripts)
    assert [step.status for step in report.steps] == ["taken", "dropped", "taken"]
    fixed = onnx.load(tmp_path / "out.onnx")
    assert [(node.op_type, node.name) for node in fixed.graph.node] == [
        ("Exp", "the first of 2"),
        ("Neg", ""),
    ]


COUNT = "def fix(graph):\n    graph.nodes[0].name = f'the first of {len(graph.nodes)}'\n"


FAULTS = {
    "no function": ("x = 1\n", "s.py: defines no function fix(graph)"),
    "syntax": ("def fix(graph)\n    pass\n", "s.py:1: SyntaxError: expected ':'"),
    "import": ("import nosuchmodule\n", "s.py:1: ModuleNotFoundError: No module named 'nosuchmodule'"),
    "raises": (
        "def fix(graph):\n    h(graph)\n\ndef h(g):\n    1 / 0\n",
        "s.py:5: ZeroDivisionError: division",
    ),
    "exits": ("def fix(graph):\n    import sys\n    sys.exit(3)\n", "s.py:3: the script ended itself"),
    "returns": ("def fix(graph):\n    return 7\n", "s.py: fix returns int; return a gs.Graph"),
    "export": ("def fix(graph):\n    graph.outputs[0].dtype = None\n", "cannot be exported"),
    "crash": ("import os\ndef fix(graph):\n    os.kill(os.getpid(), 11)\n", "killed by SIGSEGV"),
    "interrupts": ("def fix(graph):\n    raise KeyboardInterrupt\n", "s.py:2: KeyboardInterrupt"),
    "no text": (
        "class Odd(Exception):\n    def __str__(self):\n        return 1 / 0\ndef fix(graph):\n    raise Odd\n",
        "s.py:5: Odd",
    ),
}


@pytest.mark.parametrize(("text", "message"), FAULTS.values(), ids=FAULTS)
def test_a_script_at_fault_is_one_line_and_nothing_is_written(
    tmp_path: Path, text: str, message: str
) -> None:
    path = model_at(tmp_path)
    script = write(tmp_path / "s.py", text)
    err = refused("apply", path, "-o", tmp_path / "out.onnx", "--graphsurgeon", script, "--rungs", "contract")
    assert message in err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.onnx", "s.py"]


@pytest.mark.parametrize("name", ["model.onnx", "model.onnx.data"])
def test_a_script_that_writes_over_the_model_is_at_fault(tmp_path: Path, name: str) -> None:
    """As a script does that was run by hand before: its result would be compared with itself, and be proven."""
    (tmp_path / "model.onnx").write_bytes(raw(hard_models.write_external(tmp_path)))
    text = (
        f"import pathlib\nFILE = pathlib.Path({str(tmp_path / name)!r})\n"
        "def fix(graph):\n    FILE.write_bytes(FILE.read_bytes())\n"
    )
    script = write(tmp_path / "s.py", text)
    with pytest.raises(
        UsageError, match=rf"s\.py: the script changed .*{name}; it may change only the graph"
    ):
        apply(tmp_path / "model.onnx", tmp_path / "out.onnx", graphsurgeon=[script])
    assert not (tmp_path / "out.onnx").exists()


def test_a_script_that_hangs_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "TIMEOUT", 2.0)
    script = write(tmp_path / "s.py", "def fix(graph):\n    while True:\n        pass\n")
    with pytest.raises(UsageError, match="took more than 2 s"):
        apply(model_at(tmp_path), graphsurgeon=[script])


def test_a_script_may_have_helpers_beside_it_and_reads_the_users_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "scripts").mkdir()
    write(tmp_path / "scripts" / "my_helper.py", "NAME = 'from the helper'\n")
    write(tmp_path / "name.txt", "from a file")
    text = (
        "from my_helper import NAME\n"
        "def fix(graph):\n    graph.nodes[0].name = NAME + ', ' + open('name.txt').read()\n"
    )
    script = write(tmp_path / "scripts" / "s.py", text)
    monkeypatch.chdir(tmp_path)
    report = apply(model_at(tmp_path), graphsurgeon=[script])
    assert report.model.graph.node[0].name == "from the helper, from a file"


INTERFACE = "def fix(graph):\n    graph.outputs[0].name = 'z'\n"
OPSET = "def fix(graph):\n    graph.opset = 19\n    graph.import_domains = None\n"
FREEZE = "def fix(graph):\n    graph.inputs[0].shape = (3, 4)\n"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (INTERFACE, "the graph's outputs are ['z'] instead of ['y']"),
        (FREEZE, "input 'x' is declared differently"),
        (OPSET, "model field 'opset_import' changed"),
        (WRONG, "ort-cpu: output y"),
    ],
    ids=["name", "shape", "opset", "values"],
)
def test_unsafe_changes_need_the_flag_and_are_reported(tmp_path: Path, text: str, reason: str) -> None:
    path, script = model_at(tmp_path), write(tmp_path / "s.py", text)
    report = apply(path, tmp_path / "out.onnx", graphsurgeon=[script])
    assert the_step(report).status == "dropped"
    assert reason in the_step(report).reason
    assert (tmp_path / "out.onnx").read_bytes() == path.read_bytes()
    report = apply(path, tmp_path / "out.onnx", graphsurgeon=[script], unsafe_fixes=True)
    step = the_step(report)
    assert (step.status, step.safety) == ("taken", "unsafe")
    assert reason in step.reason
    assert (tmp_path / "out.onnx").read_bytes() != path.read_bytes()
    assert any(reason in note and "UNSAFE" in note for note in report.notes)
    contract = report.verdict.rung("contract")
    assert "UNSAFE" in contract.reason
    assert "byte for byte" not in contract.reason


@pytest.mark.parametrize(("more", "words"), [("", "ort-cpu: identical"), (WRONG, "ort-cpu: output y")])
def test_an_unsafe_change_of_a_note_does_not_hide_one_of_values(
    tmp_path: Path, more: str, words: str
) -> None:
    text = (more or NOTHING).replace("def fix", "def more")
    text += "\ndef fix(graph):\n    graph.name = 'another'\n    more(graph)\n"
    report = apply(model_at(tmp_path), graphsurgeon=[write(tmp_path / "s.py", text)], unsafe_fixes=True)
    step = the_step(report)
    assert (step.status, step.safety) == ("taken", "unsafe")
    assert "graph field 'name' changed" in step.reason
    assert words in step.reason
    assert "not compared" not in step.reason


def test_rules_after_an_unsafe_step_are_proven_against_its_result(tmp_path: Path) -> None:
    text = "g (float[N] x) => (float[N] y) { a = Cast<to=11>(x) b = Cast<to=1>(a) y = Exp(b) }"
    path, script = model_at(tmp_path, text), write(tmp_path / "s.py", WRONG)
    report = apply(path, tmp_path / "out.onnx", graphsurgeon=[script], unsafe_fixes=True, select=["CST003"])
    assert [item.code for item in report.applied] == ["CST003"]
    assert [n.op_type for n in onnx.load(tmp_path / "out.onnx").graph.node] == ["Sin"]
    for name in ("reference", "ort-cpu"):
        rung = report.verdict.rung(name)
        assert (rung.status, rung.exact) == ("passed", True)
        assert rung.reason.startswith(f"against the model after --graphsurgeon {script} (UNSAFE): ")


def test_unsafe_does_not_make_onnxsim_unsafe() -> None:
    case = next(peer for peer in PEERS if peer.id == "12-pad-axes-order")
    report = apply(case.model(), simplify=True, unsafe_fixes=True)
    assert the_step(report).status == "dropped"


def test_an_invalid_model_is_dropped_even_with_unsafe(tmp_path: Path) -> None:
    text = "def fix(graph):\n    graph.nodes[0].op = 'NoSuchOperator'\n"
    report = apply(model_at(tmp_path), graphsurgeon=[write(tmp_path / "s.py", text)], unsafe_fixes=True)
    assert the_step(report).status == "dropped"
    assert "onnx.checker" in the_step(report).reason


def dies(source: str, output: str) -> None:
    """Stands in for a tool that takes the process with it."""
    os.kill(os.getpid(), signal.SIGSEGV)


def test_a_crash_of_onnxsim_is_a_dropped_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "crashing.py", "from test_whole_model_steps import dies as simplify\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(steps, "REMOTE", "crashing")
    report = apply(model_at(tmp_path), tmp_path / "out.onnx", simplify=True)
    assert the_step(report).status == "dropped"
    assert "killed by SIGSEGV" in the_step(report).reason
    assert (tmp_path / "out.onnx").read_bytes() == (tmp_path / "m.onnx").read_bytes()


@pytest.mark.parametrize(
    ("option", "extra"), [("--simplify", "simplify"), ("--graphsurgeon", "graphsurgeon")]
)
def test_a_missing_package_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str, extra: str
) -> None:
    monkeypatch.setattr(steps.importlib.util, "find_spec", lambda name: None)
    script = [write(tmp_path / "s.py", NOTHING)] if option == "--graphsurgeon" else []
    err = refused("apply", model_at(tmp_path), option, *script)
    assert f"{option} needs " in err
    assert f"pip install 'onnxfix[{extra}]'" in err
    assert not (tmp_path / "m.fixed.onnx").exists()


def test_the_report_says_what_was_taken_and_what_was_dropped(tmp_path: Path) -> None:
    path, script = model_at(tmp_path), write(tmp_path / "s.py", WRONG)
    options = ("--graphsurgeon", script, "--simplify", "--rungs", "contract,ort-cpu", "--select", "OPS044")
    out = output(1, "apply", path, "-o", tmp_path / "out.onnx", *options)
    out = " ".join(out.split())
    assert " taken --simplify (onnxsim" in out
    assert ", numeric, 4 → 2 nodes): ort-cpu: identical on" in out
    assert f" dropped --graphsurgeon {script} (onnx-graphsurgeon" in out
    assert "1 dropped" in out


def test_without_verification_the_contract_still_holds(tmp_path: Path) -> None:
    path = model_at(tmp_path)
    for text, status in ((WRONG, "taken"), (INTERFACE, "dropped")):
        script = write(tmp_path / "s.py", text)
        report = apply(path, graphsurgeon=[script], verify=False, rungs=None)
        assert the_step(report).status == status
    assert steps.FUNCTION == "fix"
