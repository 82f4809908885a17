"""The search: interrupts, time limits, and the parts that do not need a check; the user's commands as checks; the
folder that is written."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import onnxfix
from onnxfix.errors import UsageError
from onnxfix.place import Place
from onnxfix.reduction import case, checks
from onnxfix.reduction.case import Failure, Seen
from onnxfix.reduction.checks import npz
from onnxfix.tensorrt import messages
from support import models
from support.ort import run
from support.reductions import COMMAND, fresh, operators, reduced

CHAIN = "g (float[4] x) => (float[4] y) { " + "  ".join(
    [f"t{n} = {'Tanh' if n == 5 else 'Neg'}({'x' if n == 0 else f't{n - 1}'})" for n in range(11)]
    + ["y = Abs(t10) }"]
)
FAILS = "! grep -q Tanh {}"
TOGETHER = "! (grep -q Tanh {} && grep -q Sigmoid {})"
Examine = Callable[[Any, Any, Path], Seen]


def counted(monkeypatch: pytest.MonkeyPatch, stop: int, error: type[BaseException]) -> None:
    """Let the check end by ``error`` at its call number ``stop``."""
    real: Examine = checks.CommandCheck.examine
    calls = [0]

    def examine(self: Any, case: Any, path: Path) -> Seen:
        calls[0] += 1
        if calls[0] == stop:
            raise error
        return real(self, case, path)

    monkeypatch.setattr(checks.CommandCheck, "examine", examine)


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    return models.write(tmp_path / "whole.onnx", CHAIN)


def test_an_interrupt_leaves_the_smallest_so_far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = models.write(tmp_path / "whole.onnx", CHAIN.replace("t6 = Neg", "t6 = Sigmoid"))
    folder = tmp_path / "out"
    with monkeypatch.context() as patch:
        counted(patch, 17, KeyboardInterrupt)
        found = onnxfix.reduce(whole, folder, check=TOGETHER)
    assert (found.status, found.complete, found.exit_code) == ("reduced", False, 130)
    assert 1 < found.nodes_after < found.nodes_before
    assert len(onnx.load(folder / "model.onnx").graph.node) == found.nodes_after
    assert onnxfix.reproduce(folder) is not None

    again = onnxfix.reduce(folder / "model.onnx", tmp_path / "again", check=TOGETHER)
    assert (again.complete, again.nodes_after) == (True, 2)


def test_an_interrupt_before_the_failure_is_known_writes_nothing(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted(monkeypatch, 1, KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        onnxfix.reduce(whole, tmp_path / "out", check=FAILS)
    assert not (tmp_path / "out").exists()


def test_a_time_limit(whole: Path, tmp_path: Path) -> None:
    found = onnxfix.reduce(whole, tmp_path / "out", check=FAILS, time_limit=0.0)
    assert (found.status, found.complete, found.nodes_after) == ("reduced", False, 12)
    assert (found.interrupted, found.exit_code) == (False, 0)


def test_a_folder_of_another_version(whole: Path, tmp_path: Path) -> None:
    onnxfix.reduce(whole, tmp_path / "out", check=FAILS)
    state = tmp_path / "out" / "reduction.json"
    state.write_text(json.dumps({**json.loads(state.read_text()), "onnxfix": 0}))
    with pytest.raises(onnxfix.UsageError, match="another version"):
        onnxfix.reproduce(tmp_path / "out")


def test_dynamic_shapes_are_kept_where_the_failure_needs_them(tmp_path: Path) -> None:
    """The command fails as long as the file holds the name of the symbol."""
    path = models.write(
        tmp_path / "whole.onnx",
        "g (float[batch,4] x) => (float[batch,4] y) { a = Exp(x)  b = Tanh(a)  y = Neg(b) }",
    )
    check = "! { grep -q Tanh {} && grep -q batch {}; }"
    found = onnxfix.reduce(path, tmp_path / "out", check=check)
    assert found.nodes_after == 1
    model = onnx.load(tmp_path / "out" / "model.onnx")
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"


def test_small_weights_and_attributes(tmp_path: Path) -> None:
    whole = models.model(
        "g (float[64,32] x) => (float[64,48] y) { y = Gemm<alpha = 0.5, transB = 1>(x, w, c) }",
        w=np.random.default_rng(0).normal(size=(48, 32)).astype(np.float32), c=np.ones(48, np.float32),
    )  # fmt: skip
    onnx.save(whole, tmp_path / "whole.onnx")
    found = onnxfix.reduce(tmp_path / "whole.onnx", tmp_path / "out", check="! grep -q Gemm {}")
    model = onnx.load(tmp_path / "out" / "model.onnx")
    assert found.bytes_after < 250
    assert [one.name for one in model.graph.node[0].attribute] in ([], ["transB"])
    onnx.checker.check_model(model, full_check=True)


def test_a_model_that_runs_is_reduced_to_one_that_runs(tmp_path: Path) -> None:
    """The command takes any model with this operator; an image smaller than the window does not run."""
    nodes = "a = Abs(x)  m = MaxPool<kernel_shape = [3, 3]>(a)  y = Neg(m)"
    text = f"g (float[1,2,5,5] x) => (float[1,2,3,3] y) {{ {nodes} }}"
    path = models.write(tmp_path / "whole.onnx", text)
    found = onnxfix.reduce(path, tmp_path / "out", check="! grep -q MaxPool {}")
    assert found.operators == ("MaxPool",)
    model = onnx.load(tmp_path / "out" / "model.onnx")
    [output] = run(model, dict(np.load(tmp_path / "out" / "inputs.npz")))
    np.testing.assert_array_equal(output, next(iter(np.load(tmp_path / "out" / "expected.npz").values())))


# ---------------------------------------------------------------------------------------------------------- pieces


def test_failures_are_the_same_for_one_cause_at_one_place() -> None:
    one = Failure("refused", "parse", Place(output="a"), "Cast", "INVALID", "x.cpp:1 f", "no *")
    assert one.same(Failure(**{**vars(one), "text": "other words"}))
    for change in (
        {"place": Place(output="b")}, {"op_type": "Relu"}, {"code": "X"}, {"source": "x.cpp:2 f"}, {"form": "yes"},
        {"detail": "build"}, {"kind": "crash"},
    ):  # fmt: skip
        assert not one.same(Failure(**{**vars(one), **change}))


def test_outputs_that_differ_are_one_failure_wherever_the_part_ends() -> None:
    one = Failure("differs", "values", Place(output="y"), text="far")
    assert one.same(Failure("differs", "shape", Place(output="inner")))
    assert not one.same(Failure("differs", "dtype", Place(output="y")))
    assert not one.same(Failure("error", "values", Place(output="y")))


@pytest.mark.parametrize(
    ("text", "other", "same"),
    [
        ("reshaping [2,3,4] to [0,12]", "reshaping [1] to [5,6]", True),
        ("node_of_y: K is 4000", "node_of_z: K is 17", True),
        ("y: at least 2 dimensions", "z: at least 2 dimensions", True),
        ("axis is too large", "axis is too small", False),
        ("Invalid Node - y", "Invalid Graph - y", False),
    ],
)
def test_the_form_of_a_message(text: str, other: str, same: bool) -> None:
    names = {"y", "z", "node_of_y", "node_of_z"}
    assert (messages.form_of(text, names) == messages.form_of(other, names)) is same


def test_what_a_branch_draws_is_not_fixed() -> None:
    model = models.model(
        """g () => (float[2] y) { c = Constant<value = bool {1}>()
        y = If(c)<then_branch = p () => (float[2] u) { u = RandomNormal<shape = [2]>() },
                  else_branch = q () => (float[2] v) { v = Constant<value = float[2] {1, 2}>() }> }"""
    )
    assert case.fixed_values(model.graph) == {"c"}


# -------------------------------------------------------------------------------------------------------- commands


TANH = "g (float[4] x) => (float[4] y) { a = Exp(x)  s = Sqrt(a)  t = Tanh(s)  y = Neg(t) }"


def test_a_command(tmp_path: Path) -> None:
    found, model = reduced(tmp_path, models.model(TANH), check=COMMAND)
    assert operators(model) == ["Tanh"]  # without it, Sqrt fails with another exit code
    assert found.failure.code == "3"
    assert fresh(tmp_path / "out") == 1
    found, model = reduced(tmp_path, models.model(TANH), check=COMMAND, match="tanh is wrong")
    assert operators(model) == ["Tanh"]


def test_a_command_that_needs_two_nodes(tmp_path: Path) -> None:
    text = """g (float[4] x) => (float[4] y) {
        a = Exp(x)  e = Erf(a)  b = Neg(e)  c = Abs(b)  d = Softmax(c)  y = Ceil(d) }"""
    _, model = reduced(tmp_path, models.model(text), check=COMMAND)
    assert operators(model) == ["Erf", "Softmax"]


def test_a_command_whose_output_does_not_match(tmp_path: Path) -> None:
    path = models.write(tmp_path / "whole.onnx", TANH)
    found = onnxfix.reduce(path, tmp_path / "out", check=COMMAND, match="no such text")
    assert found.status == "passes"


def test_a_command_that_is_not_there(tmp_path: Path) -> None:
    path = models.write(tmp_path / "whole.onnx", TANH)
    found = onnxfix.reduce(path, tmp_path / "out", check="/nowhere/at-all {}")
    assert (found.status, found.exit_code) == ("unknown", 3)


# ------------------------------------------------------------------------------------------------------ the folder


def test_what_is_in_the_folder(tmp_path: Path) -> None:
    found, model = reduced(tmp_path, models.model(TANH), check=COMMAND)
    folder = tmp_path / "out"
    names = {path.name for path in folder.iterdir()}
    assert names == {
        "model.onnx", "inputs.npz", "expected.npz", "error.txt", "versions.json", "README.md", "reproduce.py",
        "reduction.json",
    }  # fmt: skip
    onnx.checker.check_model(model, full_check=True)
    assert json.loads((folder / "versions.json").read_text())["onnx"] == onnx.__version__
    readme = (folder / "README.md").read_text()
    assert found.command in readme
    assert all(name in readme for name in names)
    assert list(np.load(folder / "expected.npz")) == [info.name for info in model.graph.output]


def test_a_folder_with_something_else_is_left_alone(tmp_path: Path) -> None:
    path = models.write(tmp_path / "whole.onnx", TANH)
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "mine.txt").write_text("mine")
    with pytest.raises(onnxfix.UsageError, match=r"mine\.txt"):
        onnxfix.reduce(path, folder, check=COMMAND)
    (folder / "mine.txt").unlink()
    (folder / "model.onnx").write_text("not ours either")
    with pytest.raises(onnxfix.UsageError, match=r"model\.onnx"):
        onnxfix.reduce(path, folder, check=COMMAND)
    assert (folder / "model.onnx").read_text() == "not ours either"


def test_a_folder_of_an_earlier_run_is_replaced(tmp_path: Path) -> None:
    reduced(tmp_path, models.model(TANH), check=COMMAND)
    _, model = reduced(tmp_path, models.model(TANH.replace("Exp", "Abs")), check=COMMAND)
    assert operators(model) == ["Tanh"]


def test_external_data_is_embedded(tmp_path: Path) -> None:
    whole = models.model(
        "g (float[64,64] x) => (float[64,64] y) { a = MatMul(x, w)  b = Tanh(a)  c = MatMul(b, v)  y = Neg(c) }",
        w=np.eye(64, dtype=np.float32), v=np.ones((64, 64), np.float32),
    )  # fmt: skip
    path = tmp_path / "whole.onnx"
    onnx.save(whole, path, save_as_external_data=True, location="whole.data", size_threshold=0)
    both = "! { grep -q MatMul {} && grep -q Tanh {}; }"
    found, model = reduced(tmp_path, path, check=both)
    assert sorted(operators(model)) == ["MatMul", "Tanh"]
    assert not any(one.external_data for one in model.graph.initializer)
    assert found.bytes_after < 20_000


def test_inputs_with_the_names_of_numpys_own_arguments(tmp_path: Path) -> None:
    """numpy.savez takes ``file`` for its own, and ``allow_pickle`` too or for one more array, as its release has it."""
    values = {name: np.float32([number]) for number, name in enumerate(("file", "allow_pickle", "a/b:0"))}
    texts = np.array(["é", ""], dtype=object)
    (tmp_path / "inputs.npz").write_bytes(npz({**values, "texts": texts, "several": [np.zeros(1)]}))
    with np.load(tmp_path / "inputs.npz", allow_pickle=False) as archive:
        assert archive.files == [*values, "texts"]
        assert all(archive[name] == value for name, value in values.items())
        assert archive["texts"].tolist() == ["é", ""]


@pytest.mark.parametrize("lacking", ["cwd", "names", "check", "package"])
def test_a_damaged_state_is_one_line_and_no_traceback(tmp_path: Path, lacking: str) -> None:
    reduced(tmp_path, models.model(TANH), check=COMMAND)
    state = tmp_path / "out" / "reduction.json"
    document = json.loads(state.read_text())
    del (document if lacking in document else document["identity"])[lacking]
    state.write_text(json.dumps(document))
    with pytest.raises(UsageError, match=f"reduction.json: cannot be read: .*{lacking}"):
        onnxfix.reproduce(tmp_path / "out")
