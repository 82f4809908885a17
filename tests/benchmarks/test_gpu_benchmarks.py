"""benchmarks/gpu: what is carried to a GPU, what engines are found to do there, and what the tables say of it.

No engine of TensorRT is executed: ``fake_engines`` runs ONNX models in their place.
"""

# Long because: three scripts have three steps each, and every way in which a model can end has to be told apart.

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest

from onnxfix.errors import OnnxfixError, UsageError
from onnxfix.nvidia import Gpu, Missing
from onnxfix.place import Place
from onnxfix.sandbox import Worker
from onnxfix.trt.package import Choice
from onnxfix.trt.records import Issue, TrtBuild
from onnxfix.verification.rungs.probe import Probe
from support.paths import ROOT
from support.patience import PATIENCE

sys.path.insert(0, str(ROOT / "benchmarks"))

from acceptance import values
from acceptance.cases import NodeCase
from acceptance.tools import EXACT, Made
from gpu import (
    carrying,
    changed,
    engines,
    explaining,
    ledger,
    mutants,
    network_against_engine,
    node_models,
    node_tables,
    outcomes,
)
from gpu.changed import Change, Recipe
from gpu.engines import Bench, Executed
from gpu.outcomes import Result, Row
from network import parameters

CHOICE = Choice("tensorrt", "10.0", "8.9", Gpu("NVIDIA Test", "8.9"))
ADD = "g (float[3] x) => (float[3] y) { y = Add(x, x) }"


def model(text: str, opset: int = 20) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : {opset}]>\n' + text)


def tricky(text: str, **tricks: Any) -> bytes:
    """A model that the fakes do something with: ``build`` is what becomes of the build."""
    made = model(text)
    onnx.helper.set_model_props(made, {"fake": json.dumps(tricks)})
    return made.SerializeToString()


def case(text: str = ADD, *, expected: Any = None, name: str = "test_add", **feed: Any) -> NodeCase:
    feed = feed or {"x": np.array([1, 2, 3], np.float32)}
    given = [feed["x"] * 2] if expected is None else expected
    return NodeCase(name, model(text).SerializeToString(), (feed,), (given,), 1e-3, 1e-7)


def build(worker: Worker, path: Path, *, save_engine: str, timeout: float, **rest: Any) -> TrtBuild:
    """In the place of TensorRT's: the engine is the model, unless its metadata say otherwise."""
    said = {one.key: one.value for one in onnx.load(path).metadata_props}
    status, stage = json.loads(said.get("fake", "{}")).get("build", ("accepted", ""))
    if status == "unfit":
        raise UsageError("the profile does not fit")
    if status == "accepted":
        shutil.copy(path, save_engine)
        return TrtBuild("accepted")
    place = Place(op_type="Add")
    return TrtBuild(status, stage, (Issue(stage or "build", "error", "no such thing", place),))


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    with Bench(CHOICE, PATIENCE, build=build, module="support.fake_engines") as found:
        yield found


def executed(bench: Bench, data: bytes, **feed: Any) -> Executed:
    return bench.execute(data, [feed or {"x": np.array([1, 2, 3], np.float32)}], None)


# ---------------------------------------------------------------------------------------------------- executing


def test_an_engine_is_built_and_run_on_every_feed(bench: Bench) -> None:
    feeds = [{"x": np.full(3, number, np.float32)} for number in (1, 2)]
    found = bench.execute(tricky(ADD), feeds, None)
    assert (found.how, found.stage) == ("ran", "")
    assert [one["y"].tolist() for one in found.outputs] == [[2, 2, 2], [4, 4, 4]]
    assert len(found.seconds) == 3


@pytest.mark.parametrize(
    ("tricks", "how", "stage", "reason"),
    [
        ({"build": ("refused", "parse")}, "parser", "parse", "no such thing"),
        ({"build": ("refused", "profile")}, "builder", "profile", "no such thing"),
        ({"build": ("refused", "build")}, "builder", "build", "no such thing"),
        ({"build": ("timeout", "build")}, "timeout", "build", "no such thing"),
        ({"build": ("crash", "parse")}, "crash", "parse", "no such thing"),
        ({"build": ("memory", "build")}, "crash", "build", "no such thing"),
        ({"build": ("error", "")}, "failed", "build", "no such thing"),
        ({"build": ("unfit", "")}, "unfed", "profile", "does not fit"),
        ({"refused": "no kernel"}, "failed", "load", "no kernel"),
        ({"fails": "illegal address"}, "failed", "run", "illegal address"),
        ({"dies": True}, "crash", "run", "SIGABRT"),
    ],
)
def test_everything_that_can_go_wrong_has_a_name(
    bench: Bench, tricks: dict[str, Any], how: str, stage: str, reason: str
) -> None:
    found = executed(bench, tricky(ADD, **tricks))
    assert (found.how, found.stage) == (how, stage)
    assert reason in found.reason
    assert executed(bench, tricky(ADD)).how == "ran", "what one model did must not be the next one's fault"


def test_a_process_in_which_something_failed_is_not_used_again(bench: Bench) -> None:
    assert executed(bench, tricky(ADD)).how == "ran"
    assert bench._runner.pid is not None
    assert executed(bench, tricky(ADD, refused="no kernel")).how == "failed"
    assert bench._runner.pid is None


@pytest.mark.slow
def test_what_hangs_is_stopped() -> None:
    with Bench(CHOICE, 3.0, build=build, module="support.fake_engines") as short:
        found = executed(short, tricky(ADD, hangs=True))
        assert (found.how, found.stage) == ("timeout", "run")
        assert "took more than" in found.reason


def test_a_model_that_the_data_do_not_fit_is_no_crash(bench: Bench) -> None:
    found = executed(bench, tricky(ADD), z=np.zeros(3, np.float32))
    assert found.how in ("failed", "unfed")
    assert executed(bench, tricky(ADD)).how == "ran"


def test_tasks_are_spread_until_the_time_is_up() -> None:
    done: list[int] = []
    assert engines.spread(range(5), 2, lambda: nullcontext(0), lambda _, n: done.append(n), budget=60.0) == 0
    assert sorted(done) == [0, 1, 2, 3, 4]
    assert engines.spread(range(5), 2, lambda: nullcontext(0), lambda _, n: done.append(n), budget=0.0) == 5
    with pytest.raises(OnnxfixError, match="broken"):
        engines.spread(range(5), 2, lambda: nullcontext(0), _raise, budget=60.0)


def _raise(*_: object) -> None:
    raise OnnxfixError("broken")


@pytest.mark.parametrize(
    ("chosen", "told", "words"),
    [
        (Missing("neither is installed"), Probe(), "neither is installed"),
        (None, Probe("no NVIDIA GPU found", "no-gpu"), "no NVIDIA GPU"),
        (None, Probe(precision="tf32"), "tf32"),
        (None, Probe(precision=""), "no known precision"),
    ],
)
def test_a_machine_that_cannot_measure_says_so_at_once(
    monkeypatch: pytest.MonkeyPatch, chosen: Any, told: Probe, words: str
) -> None:
    builder = SimpleNamespace(choice=CHOICE, close=lambda: None)
    monkeypatch.setattr(engines, "builder", lambda _: chosen or builder)
    monkeypatch.setattr(engines, "probe", lambda _: told)
    with pytest.raises(OnnxfixError, match=words):
        engines.ready("tensorrt")


def test_without_a_gpu_the_script_ends_with_a_reason(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "gpu" / "node_models.py"), "execute", "carry.zip"]
    done = subprocess.run(
        [*command, "--json", str(tmp_path / "found.json")],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": f"{ROOT}:{ROOT / 'rules'}", "CUDA_VISIBLE_DEVICES": "", "PATH": ""},
        timeout=PATIENCE * 4,
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr


# ---------------------------------------------------------------------------------------------------- judging


def ran(*outputs: Any, unread: dict[str, str] | None = None) -> Executed:
    return Executed("ran", outputs=tuple({"y": value} for value in outputs), unread=unread or {})


def test_right_within_the_case_or_within_the_type() -> None:
    exact = outcomes.judge(case(), ran(np.array([2, 4, 6], np.float32)))
    assert (exact.status, exact.within, exact.largest, list(exact.outputs)) == ("right", "case", 0.0, [])
    narrow = replace(case(), rtol=0.0, atol=0.0)
    close = outcomes.judge(narrow, ran(np.array([2, 4, 6.0001], np.float32)))
    assert (close.status, close.within) == ("right", "type")
    assert close.largest == pytest.approx(1e-4, rel=0.1)


def test_wrong_keeps_its_values_and_the_largest_error() -> None:
    found = outcomes.judge(case(), ran(np.array([2, 4, 9], np.float32)))
    assert (found.status, found.within, found.structure) == ("wrong", "", False)
    assert (found.largest, found.relative) == (3.0, 0.5)
    assert "6.0 expected, 9.0 found" in found.reason
    assert values.unpack(found.outputs)[0][0].tolist() == [2, 4, 9]


def test_another_shape_or_type_is_wrong_in_structure() -> None:
    assert outcomes.judge(case(), ran(np.zeros(4, np.float32))).structure
    assert outcomes.judge(case(), ran(np.array([2, 4, 6], np.float16))).status == "wrong"


def test_float64_is_judged_as_float32() -> None:
    wide = case(expected=[np.array([0.1, 0.2, 0.3])])
    given = ran(np.array([0.1, 0.2, 0.3], np.float32))
    assert outcomes.judge(wide, given).within == "case"
    assert outcomes.judge(wide, given).largest == 0.0
    near = ran(np.array([0.1, 0.2, 0.30001], np.float32))
    assert outcomes.judge(replace(wide, rtol=0.0, atol=0.0), near).within == "type"


def test_an_output_that_is_not_there_is_no_wrong_one() -> None:
    none = outcomes.judge(case(), Executed("ran", outputs=({"z": 1},)))
    assert (none.status, none.reason) == ("unfed", "the engine has no output y")
    small = outcomes.judge(case(), Executed("ran", outputs=({},), unread={"y": "y is INT4"}))
    assert (small.status, small.reason) == ("unfed", "y is INT4")


@pytest.mark.parametrize("how", ["parser", "builder", "timeout", "crash", "failed", "unfed"])
def test_what_did_not_run_keeps_its_name(how: Any) -> None:
    found = outcomes.judge(case(), Executed(how, "load", "why", "Add"))
    assert (found.status, found.reason, found.stage, found.operator) == (how, "why", "load", "Add")


def test_values_cross_json() -> None:
    import ml_dtypes

    given = [[np.arange(6, dtype=np.int8).reshape(2, 3), np.array(1.5, ml_dtypes.bfloat16)], [np.zeros(0)]]
    back = values.unpack(json.loads(json.dumps(values.pack(given))))
    for one, other in zip(given, back, strict=True):
        for a, b in zip(one, other, strict=True):
            assert (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())
    assert values.pack([[np.zeros(values.MOST + 1, np.int8)]]) == []
    assert values.pack([["text"]]) == values.pack([[np.array(["text"])]]) == []


def row(name: str, **statuses: Any) -> Row:
    """Results by tool; every tool wrote a model of its own."""
    results = {
        tool.replace("_", "-"): one if isinstance(one, Result) else Result(one)
        for tool, one in statuses.items()
    }
    return Row(name, results, {tool: f"{name}-{tool}" for tool in results})


@pytest.mark.parametrize(
    ("before", "after", "is_lost", "is_gained"),
    [
        ("right", "right", False, False),
        ("right", "wrong", True, False),
        ("right", "timeout", True, False),
        ("right", "no model", True, False),
        ("right", "not measured", False, False),
        ("wrong", "right", False, True),
        ("parser", "right", False, True),
        ("parser", "wrong", False, False),
        ("not measured", "right", False, False),
    ],
)
def test_lost_and_gained(before: Any, after: Any, is_lost: bool, is_gained: bool) -> None:
    one = row("m", as_is=before, exact=after)
    assert (outcomes.lost(one, "exact"), outcomes.gained(one, "exact")) == (is_lost, is_gained)


# ---------------------------------------------------------------------------------------------------- the ledger


def test_a_ledger_is_gone_on_with(tmp_path: Path) -> None:
    path = tmp_path / "found.json"
    with ledger.Ledger(path, {"setting": {"GPU": "A"}}) as book:
        book.record("a", {"x": 1})
        assert ledger.load(path)["results"] == {}, "within the pause nothing is written"
    assert ledger.load(path) == {"setting": {"GPU": "A"}, "results": {"a": {"x": 1}}}
    with ledger.Ledger(path, {"setting": {"GPU": "A"}}, pause=0.0) as book:
        assert "a" in book
        book.record("b", None)
        assert set(ledger.load(path)["results"]) == {"a", "b"}, "written at once, for a process may be killed"
    with pytest.raises(OnnxfixError, match="another run"):
        ledger.Ledger(path, {"setting": {"GPU": "B"}})


def test_a_ledger_that_cannot_be_kept(tmp_path: Path) -> None:
    with pytest.raises(OnnxfixError, match="cannot be written"):
        ledger.Ledger(tmp_path / "none" / "found.json", {})
    for text in ("{", "[]", "{}"):
        (tmp_path / "other.json").write_text(text)
        with pytest.raises(OnnxfixError, match=r"other\.json"):
            ledger.load(tmp_path / "other.json")
    with pytest.raises(OnnxfixError, match="No such file"):
        ledger.load(tmp_path / "absent.json")


# ---------------------------------------------------------------------------------------------------- carrying


class FakeMaker(carrying.Maker):
    """Tools whose models are given."""

    def __init__(self, folder: Path, **made: Made | bytes) -> None:
        self.given = made
        self.tools = [replace(EXACT, name=name.replace("_", "-")) for name in made]
        self._folder, self._peers = folder, None

    def _run(self, tool: Any, source: Path, target: Path) -> Made:
        found = self.given[tool.name.replace("-", "_")]
        if isinstance(found, bytes):
            target.write_bytes(found)
            return Made("ok", codes={"OPS001": 1})
        return found


RENAMED = model(ADD.replace("g (", "another ("))
DOUBLED = "g (float[3] x) => (float[3] y) { two = Constant<value = float {2.0}>() y = Mul(x, two) }"


@pytest.fixture
def carried(tmp_path: Path) -> Path:
    """One case: fixed, left alone, rewritten to the same graph, and refused."""
    maker = FakeMaker(
        tmp_path,
        exact=model(DOUBLED).SerializeToString(),
        numeric_rtx=Made("ok", changed=False),
        onnxsim=RENAMED.SerializeToString(),
        onnxslim=Made("refused", "it does not like it"),
    )
    carrying.pack(tmp_path / "carry.zip", [case()], maker)
    return tmp_path / "carry.zip"


def test_models_are_carried_once_and_originals_not_at_all(carried: Path) -> None:
    with carrying.Carried(carried) as found:
        entries = found.manifest["made"]["test_add"]
        own = carrying.digest_of(case().data)
        assert {tool: one["digest"] == own for tool, one in entries.items()} == {
            "as-is": True, "exact": False, "numeric-rtx": True, "onnxsim": True, "onnxslim": False,
        }  # fmt: skip
        assert (entries["onnxslim"]["status"], entries["onnxslim"]["digest"]) == ("refused", "")
        assert entries["exact"]["codes"] == {"OPS001": 1}
        models = found.models(case(), list(entries))
        assert set(models) == {own, entries["exact"]["digest"]}
        assert models[own] == case().data
        assert models[entries["exact"]["digest"]] == model(DOUBLED).SerializeToString()
        assert set(found.models(case(), ["numeric-rtx", "onnxslim"])) == {own}


def test_another_model_of_the_same_name_is_noticed(carried: Path) -> None:
    with carrying.Carried(carried) as found:
        assert case() in found
        assert replace(case(), data=RENAMED.SerializeToString()) not in found
        assert replace(case(), name="test_other") not in found


def test_what_is_no_carried_file_says_so(tmp_path: Path) -> None:
    (tmp_path / "carry.zip").write_text("nothing")
    for name in ("carry.zip", "absent.zip"):
        with pytest.raises(OnnxfixError, match="prepare"):
            carrying.Carried(tmp_path / name)


def test_onnxfix_itself_makes_the_models() -> None:
    with ExitStack() as stack:
        maker = carrying.Maker(outcomes.TOOLS[1:], None, PATIENCE, stack)
        assert [tool.name for tool in maker.tools] == ["exact", "numeric-rtx"]
        twice = "g (float[3] x) => (float[3] y) { a = Identity(x) y = Add(a, x) }"
        entries, models = maker.make(replace(case(), data=model(twice).SerializeToString()))
    assert entries["exact"]["status"] == "ok"
    assert entries["exact"]["digest"] in models


# ---------------------------------------------------------------------------------------------------- the script


@pytest.fixture
def faked(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A machine with a GPU whose engines are fakes, and an onnx with these cases."""

    def fake(*cases: NodeCase) -> None:
        for script in (node_models, network_against_engine):
            monkeypatch.setattr(script, "node_cases", lambda every=1, match="": list(cases))
        monkeypatch.setattr(engines, "ready", lambda package: (CHOICE, {"TensorRT": f"{package} 10.0"}))
        monkeypatch.setattr(node_models, "Bench", partial(Bench, build=build, module="support.fake_engines"))

    return fake


def test_from_the_carried_file_to_the_table(
    carried: Path, tmp_path: Path, faked: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    faked(case())
    target = tmp_path / "found.json"
    command = ["execute", str(carried), "--json", str(target), "--jobs", "1", "--timeout", str(PATIENCE)]
    assert node_models.main(command) == 0
    stored = ledger.load(target)
    assert len(stored["results"]) == 2, "one for each different model"
    assert {one["status"] for one in stored["results"].values()} == {"right"}
    assert node_models.main(command) == 0, "and again, from where it stopped"
    assert "0 models to measure" in capsys.readouterr().out
    assert node_models.main(["table", str(target)]) == 0
    said = capsys.readouterr()
    assert "| as they are | 1 (0) |" in said.out
    assert "Lost by onnxslim:\n\n- no model, 1: `test_add`" in said.out
    assert "0 faults" in said.err


def test_what_is_not_measured_in_time_is_told(
    carried: Path, tmp_path: Path, faked: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    faked(case())
    command = ["execute", str(carried), "--json", str(tmp_path / "found.json"), "--budget", "0"]
    assert node_models.main(command) == 1
    assert "0 measured, 2 left" in capsys.readouterr().out


def test_another_onnx_is_refused(
    carried: Path, tmp_path: Path, faked: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    faked(replace(case(), data=RENAMED.SerializeToString()))
    assert node_models.main(["execute", str(carried), "--json", str(tmp_path / "found.json")]) == 2
    assert "no model in it is one of onnx" in capsys.readouterr().err


def test_a_case_without_data_or_profile_is_not_fed() -> None:
    bench: Any = SimpleNamespace(execute=_raise)
    assert node_models.measure(bench, ("k", replace(case(), feeds=()), b"")).status == "unfed"
    odd = replace(case(), feeds=({"x": np.zeros(3)}, {"x": np.zeros((3, 1))}))
    assert "different ranks" in node_models.measure(bench, ("k", odd, b"")).reason


def test_faults_are_what_onnxfix_lost_and_what_nobody_explains() -> None:
    rows = [
        row("lost", as_is="right", exact="builder"),
        row("known", as_is="wrong", exact="wrong"),
        row("peer", as_is="right", onnxsim="wrong"),
    ]
    why = {"known/known-as-is": ["random"]}
    assert [one.partition(":")[0] for one in node_models.faults(rows, why)] == ["exact lost", "exact known"]


# ---------------------------------------------------------------------------------------------------- tables


def cells(text: str) -> list[str]:
    return [one.strip() for one in text.strip("|").split("|")]


def test_every_status_is_counted_once() -> None:
    loose = Result("right", within="type")
    statuses = ["wrong", "parser", "builder", "timeout", "crash", "failed", "unfed", "not measured"]
    rows = [row(f"m{n}", as_is=one, exact="right") for n, one in enumerate(statuses)]
    rows += [row("close", as_is=loose, exact="wrong"), row("none", as_is="right", exact="no model")]
    head, _, before, after = node_tables.summary(rows, ["as-is", "exact"])
    counted = dict(zip(cells(head)[1:], cells(before)[1:], strict=True))
    assert counted == {
        "right": "2 (1)", "wrong": "1", "parser": "1", "builder": "1", "timed out": "1", "crashed": "1",
        "fails": "1", "cannot be fed": "1", "no model": "0", "not measured": "1", "gained": "–", "lost": "–",
    }  # fmt: skip
    counted = dict(zip(cells(head)[1:], cells(after)[1:], strict=True))
    assert (counted["right"], counted["gained"], counted["lost"]) == ("8 (0)", "7", "2")


def test_the_page_lists_the_wrong_the_lost_and_the_stopped() -> None:
    wrong = Result("wrong", "output 0: 1 of 3 | elements", largest=3.0, relative=0.5)
    shape = Result("wrong", "has shape (2,)", structure=True)
    shared = Row("same", {"as-is": wrong, "exact": wrong}, {"as-is": "d", "exact": "d"})
    stopped = Result("timeout", "took more than 60 s", "load")
    rows = [
        shared,
        row("shape", as_is=shape, exact="right"),
        row("lost", as_is="right", exact=stopped),
        row("refused", as_is=Result("parser", "no Foo", operator="Foo"), exact="right"),
    ]
    cases = {"refused": replace(case(), name="refused")}
    stored = {"setting": {"GPU": "A"}, "versions": {"onnx": "1"}, "strange": ["x"]}
    text = "\n".join(node_tables.page(stored, rows, {"same/d": ["random: Bernoulli draws"]}, cases))
    assert "- GPU: A\n- onnx: 1\n- 1 models are others" in text
    assert "### Wrong: 2 models" in text
    assert "| `same` | as-is, exact | 3 | 0.5 | output 0: 1 of 3 " in text
    assert "random: Bernoulli draws |" in text
    assert "| `shape` | as-is | – | – | has shape (2,) | **unknown** |" in text
    assert "Lost by exact:\n\n- timeout, 1: `lost`" in text
    assert "| timeout, load | took more than 60 s | 1 | `lost` |" in text
    assert "### No engine" in text


# ---------------------------------------------------------------------------------------------------- explaining


@pytest.fixture(scope="module")
def subject(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., explaining.Subject]]:
    with Worker() as runner:

        def make(
            one: NodeCase, *found: Any, predicted: Any = None, structure: bool = False
        ) -> explaining.Subject:
            result = Result(
                "wrong", "why", structure=structure, outputs=values.pack([found]) if found else ()
            )
            return explaining.Subject(one, result, predicted, runner, tmp_path_factory.mktemp("explained"))

        yield make


def test_random_operators_explain_values_and_no_shapes(subject: Callable[..., explaining.Subject]) -> None:
    one = case("g (float[3] x) => (float[3] y) { y = Bernoulli(x) }")
    assert explaining.drawn(subject(one, np.zeros(3, np.float32))) == "random: Bernoulli draws"
    assert explaining.drawn(subject(one, np.zeros(3, np.float32), structure=True)) is None
    assert explaining.drawn(subject(case(), np.zeros(3, np.float32))) is None


def test_the_networks_values_have_to_be_the_engines(subject: Callable[..., explaining.Subject]) -> None:
    said = np.array([1, 1, 1], np.float32)
    predicted = {"outputs": values.pack([[said]]), "backend": "ort-cpu"}
    assert "trt-network predicts" in str(
        explaining.foreseen(subject(case(), said.copy(), predicted=predicted))
    )
    assert explaining.foreseen(subject(case(), said * 2, predicted=predicted)) is None
    assert explaining.foreseen(subject(case(), said)) is None


def test_a_misread_attribute_is_confirmed_on_the_values(subject: Callable[..., explaining.Subject]) -> None:
    x = np.arange(1, 10, dtype=np.float32).reshape(3, 3)
    text = "g (float[3,3] x) => (float[3,3] y) { y = Trilu(x) }"
    one = case(text, expected=[np.triu(x)], x=x)
    assert "upper=0 gives the same" in str(explaining.misread(subject(one, np.tril(x))))
    assert explaining.misread(subject(one, x)) is None


def test_only_operands_that_are_not_finite(subject: Callable[..., explaining.Subject]) -> None:
    x, nan = np.array([1, np.inf, np.nan], np.float32), np.float32("nan")
    one = case(expected=[np.array([2, np.inf, nan], np.float32)], x=x)
    assert explaining.not_finite(subject(one, np.array([2, 0, nan], np.float32)))
    assert explaining.not_finite(subject(one, np.array([3, 0, nan], np.float32))) is None


def test_one_quantized_step_and_no_more(subject: Callable[..., explaining.Subject]) -> None:
    text = "g (float[3] x, float s) => (int8[3] y) { z = Constant<value = int8 {0}>() y = QuantizeLinear(x, s, z) }"
    x = np.array([1, 2, 3], np.float32)
    one = case(text, expected=[np.array([1, 2, 3], np.int8)], x=x, s=np.float32(1))
    off = subject(one, np.array([1, 3, 3], np.int8))
    assert explaining.one_step(off) == "quantized: 1 element is off by one step"
    assert explaining.one_step(subject(one, np.array([1, 4, 3], np.int8))) is None
    plain = case(expected=[np.array([1, 2, 3], np.int8)])
    assert explaining.one_step(subject(plain, np.array([1, 3, 3], np.int8))) is None


def test_half_precision_no_further_off_than_onnx_itself(subject: Callable[..., explaining.Subject]) -> None:
    text = "g (float16[3] x) => (float16[3] y) { y = Add(x, x) }"
    x = np.array([1, 2, 3], np.float16)
    one = case(text, expected=[np.array([2, 4, 7], np.float16)], x=x)
    assert "float16 rounding" in str(explaining.half_rounding(subject(one, np.array([2, 4, 5], np.float16))))
    assert explaining.half_rounding(subject(one, np.array([2, 4, 9], np.float16))) is None
    assert explaining.half_rounding(subject(case(), np.zeros(3, np.float32))) is None


def test_what_nothing_explains_stays_unknown(subject: Callable[..., explaining.Subject]) -> None:
    assert explaining.explain(subject(case(), np.zeros(3, np.float32))) == []
    assert explaining.explain(subject(case())) == [], "values that were not kept explain nothing"


# ---------------------------------------------------------------------------------------------------- predictions


def predictions(**statuses: str) -> dict[str, Any]:
    return {
        f"{name}/{name}-as-is": {"status": one, "reason": f"because {one}"} for name, one in statuses.items()
    }


def test_the_matrix_of_predictions() -> None:
    rows = [
        row("a", as_is="right"),
        row("b", as_is="wrong"),
        row("c", as_is=Result("right", within="type")),
        row("d", as_is=Result("wrong", "output 0: 1 expected, 2 found")),
        row("e", as_is="timeout"),
        row("f", as_is="right"),
        row("g", as_is="parser"),
        row("h", as_is="right"),
        row("i", as_is="not measured"),
        row("j", as_is="right"),
    ]
    said = predictions(
        a="equal", b="differs", c="differs", d="equal", e="differs", f="unlifted", g="not built", i="equal",
        j="rounding",
    )  # fmt: skip
    pairs = network_against_engine.pairs_of(said, rows, {})
    assert [one.name for one in pairs] == ["a", "b", "c", "d", "e", "f", "j"]
    assert [one.name for one in pairs if one.disagree] == ["c", "d"]
    text = "\n".join(network_against_engine.page(pairs, {"engines executed by": "X"}))
    assert "| as they are | right | 2 | 1 | – | 0 |" in text
    assert "|  | wrong | 1 | 1 | 0 | 1 |" in text
    assert "|  | nothing | 1 | 0 | – | 0 |" in text
    assert "says wrong, the engine is right: 1" in text
    assert "| `c` | as-is | because differs | as expected |" in text
    assert "| `d` | as-is | because equal | output 0: 1 expected, 2 found |" in text
    assert "| unlifted | right | 1 | `f` |" in text


def test_wrong_in_the_same_way_or_in_another() -> None:
    one = case()
    wrong = np.array([9, 9, 9], np.float32)
    result = Result("wrong", "w", outputs=values.pack([[wrong]]))
    for said, same in ((wrong, True), (wrong + 1, False)):
        stored = {"status": "differs", "reason": "r", "outputs": values.pack([[said]])}
        [pair] = network_against_engine.pairs_of(
            {"test_add/test_add-as-is": stored}, [row("test_add", as_is=result)], {"test_add": one}
        )
        assert (pair.same, pair.disagree) == (same, False)
        other = "\n".join(network_against_engine.page([pair], {}))
        assert f"Both wrong, with other values: {int(not same)}" in other


def test_predictions_are_judged_as_engines_are() -> None:
    strict = replace(case(), rtol=0.0, atol=0.0)
    right = row("test_add", as_is=Result("right", within="type"))
    for off, said in ((1e-5, "right"), (1e-2, "wrong")):
        outputs = values.pack([[np.array([2, 4, 6 + off], np.float32)]])
        stored = {"status": "differs", "reason": "r", "outputs": outputs}
        [pair] = network_against_engine.pairs_of(
            {"test_add/test_add-as-is": stored}, [right], {"test_add": strict}
        )
        assert (pair.predicted, pair.disagree) == (said, said == "wrong")


def test_variants_are_cases_of_their_own(carried: Path) -> None:
    with carrying.Carried(carried) as found:
        made = network_against_engine.variants(found, [case()], ["as-is", "exact", "onnxslim"], ())
        assert len(made) == 2
        assert {one.name.partition("/")[0] for one in made} == {"test_add"}
        assert {one.data for one in made} == {case().data, model(DOUBLED).SerializeToString()}
        left = network_against_engine.variants(found, [case()], ["as-is", "exact"], {made[0].name: 1})
        assert [one.name for one in left] == [made[1].name]


def test_files_without_a_model_in_common(
    tmp_path: Path, faked: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    faked(case())
    for name, document in (("a", {"TensorRT": "1"}), ("b", {"setting": {"TensorRT": "1"}, "made": {}})):
        (tmp_path / name).write_text(json.dumps({**document, "results": {}}))
    assert network_against_engine.main(["table", str(tmp_path / "a"), str(tmp_path / "b")]) == 2
    assert "no model in common" in capsys.readouterr().err


# ---------------------------------------------------------------------------------------------------- mutants

NET = """g (float[2,4] x) => (float[4,2] y) {
n = Mul(x, tenth)  a = LayerNormalization<axis = 1, epsilon = 0.00001>(n, w)  b = Sub(a, x)
c = Softmax<axis = 1>(b)  d = Add(c, zero)  y = Transpose<perm = [1, 0]>(d) }"""


def net() -> onnx.ModelProto:
    found = model(NET)
    for name, value in (("w", np.arange(1, 5)), ("tenth", 0.1), ("zero", np.zeros(8).reshape(2, 4))):
        found.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(value, np.float32), name))
    return found


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("constant", "tenth[] × 1.01"),
        ("epsilon", "epsilon 1e-05 → 0.001"),
        ("perm", "perm [1, 0] → [0, 1]"),
        ("operands", "operands swapped"),
    ],
)
def test_one_parameter_changes(kind: Any, words: str) -> None:
    import random

    found = list(parameters.MAKERS[kind](net(), random.Random(0)))
    assert len(found) == 1
    assert words in found[0].what
    assert found[0].model.SerializeToString() != net().SerializeToString()


def test_a_whole_weight_and_every_operator() -> None:
    import random

    found = list(parameters.scales(net(), random.Random(0)))
    assert found == [], "zeros cannot be scaled, and four elements are no weight"
    names = {one.what.partition(": ")[2] for one in parameters.operators(net(), random.Random(0))}
    assert names == {"Sub → Add", "Softmax → LogSoftmax", "Add → Sub"}


def test_paddings_move_or_begin() -> None:
    assert parameters._moved([1, 2, 1, 2]) == [0, 2, 2, 2]
    assert parameters._moved([0, 0, 0, 0]) == [1, 0, 0, 0]
    assert parameters._moved([0, 0, 0, 3]) == [0, 1, 0, 2]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Iterator[changed.Subject]:
    path = tmp_path_factory.mktemp("mutants") / "net.onnx"
    onnx.save(net(), path)
    with ExitStack() as stack:
        yield changed.Subject(path, stack)


def test_what_a_mutant_changes(exported: changed.Subject) -> None:
    found = {kind: exported.pick(kind, 0, 0) for kind in ("none", "epsilon", "operands", "operator", "pads")}
    assert found["pads"] is None
    same = found["none"]
    assert same is not None
    assert (same[1].differing, same[1].relative, same[1].beyond) == (0, 0.0, False)
    assert same[1].equivalent.startswith("in float64")
    for kind in ("epsilon", "operands"):
        picked = found[kind]
        assert picked is not None
        assert picked[1].relative > changed.SAME
        assert picked[1].beyond
        assert picked[1].precision.startswith("float64")
        assert not picked[1].equivalent


def test_a_change_that_changes_nothing_is_equivalent(exported: changed.Subject) -> None:
    other = net()
    other.graph.node[4].op_type = "Sub"  # of zeros
    found = exported.change(other)
    assert found is not None
    assert found.equivalent
    assert not found.beyond
    broken = net()
    broken.graph.node[4].op_type = "NoSuchOperator"
    assert exported.change(broken) is None


def test_empty_inputs_are_left_out_where_values_are_compared(exported: changed.Subject) -> None:
    kept = exported.feeds
    try:
        exported.feeds = [*kept, {"x": np.zeros((0, 4), np.float32)}]
        assert len(exported._double(net())[1]) == len(kept)
    finally:
        exported.feeds = kept


def test_a_recipe_makes_the_same_mutant_or_none(exported: changed.Subject) -> None:
    picked = exported.pick("epsilon", 0, 0)
    assert picked is not None
    data = changed.again(net(), picked[0], 0)
    assert carrying.digest_of(data) == picked[0].digest
    for other in (replace(picked[0], digest="0"), replace(picked[0], number=99)):
        with pytest.raises(OnnxfixError, match="another model here"):
            changed.again(net(), other, 0)


def test_the_weights_amounts_take_turns(exported: changed.Subject) -> None:
    found = [exported.pick("weight", 0, turn) for turn in range(3)]
    assert [one[0].number for one in found if one is not None] != [0, 0, 0]


def report(**statuses: str) -> str:
    rungs = [{"name": name.replace("_", "-"), "status": one, "reason": "r"} for name, one in statuses.items()]
    return json.dumps({"reports": [{"verdict": {"rungs": rungs}}]})


def test_rungs_are_read_from_the_report() -> None:
    found = mutants.rungs_of(report(contract="passed", trt_gpu="failed"), "")
    assert found["trt-gpu"] == {"status": "failed", "reason": "r", "outcome": ""}
    broken = mutants.rungs_of("no report", "error: it is broken")
    assert broken == {"none": {"status": "error", "reason": "error: it is broken"}}
    assert mutants.rungs_of('{"reports": [{"verdict": null}]}', "")["none"]["status"] == "error"


def mutant(
    key: str, *, gpu: str = "passed", cpu: str = "passed", network: str = "passed", **change: Any
) -> mutants.Row:
    kind = "none" if key == "control" else "scale"
    what = Change(
        **{"runs": 5, "differing": 4, "relative": 0.1, "precision": "float64", "beyond": True, **change}
    )
    said = {
        name: {"status": one, "reason": f"{name} says"}
        for name, one in (("trt-gpu", gpu), ("ort-cpu", cpu), ("trt-network", network))
        if one
    }
    return mutants.Row(Recipe("m", kind, 0, key, "d"), what, said)


MUTANTS = [
    mutant("both", gpu="failed", cpu="failed"),
    mutant("alone", gpu="failed"),
    mutant("theirs", cpu="failed"),
    mutant("network", network="failed"),
    mutant("tiny", relative=1e-7, beyond=False),
    mutant("same", equivalent="in float64 nothing", relative=0.0, beyond=False),
    mutant("skipped", gpu="skipped", cpu="failed"),
    mutant("late", gpu="timeout", cpu="failed"),
    mutant("open", gpu="", cpu="failed"),
    mutant("control", equivalent="in float64 nothing", relative=0.0, beyond=False),
]


def test_who_catches_what() -> None:
    text = "\n".join(mutants.page(MUTANTS, {"GPU": "A"}))
    assert "**5 mutants change an output: trt-gpu refutes 2, 2 of the 4 that change one" in text
    assert "Of 9 mutants 1 are excluded, since they change nothing, and of 3 no engine was executed." in text
    assert "0 of 1 copies are refuted" in text
    for line in (
        "| trt-gpu alone | 1 | 1 |",
        "| ort-cpu or trt-network alone | 2 | 2 |",
        "| both | 1 | 1 |",
        "| neither | 1 | 0 |",
        "| `m` | scale | both | 1.0e-01 (float64) | refuted | passed | refuted | trt-gpu says |",
        "| `m` | scale | same | none | passed | passed | passed | in float64 nothing |",
        "| `m` | scale | open | 1.0e-01 (float64) | refuted | passed | – | – |",
    ):
        assert line in text
    assert "control" not in text


def test_what_is_missed_is_a_fault_and_so_is_a_refuted_copy() -> None:
    assert len(mutants.faults(MUTANTS)) == 2  # theirs, network
    assert mutants.faults([mutant("control", gpu="failed", equivalent="nothing")])
    assert not mutants.faults([mutant("tiny", beyond=False), mutant("late", gpu="timeout")])


def test_a_model_whose_engine_is_wrong_by_itself_says_nothing_of_mutants() -> None:
    said = {"trt-gpu": {"status": "failed", "reason": "r", "outcome": "alike"}}
    made: dict[str, Any] = {"results": {}}
    measured: dict[str, Any] = {"results": {}}
    for model_name, kind in (("half", "none"), ("half", "scale"), ("good", "none"), ("good", "scale")):
        recipe = Recipe(model_name, kind, 0, "w", "d")
        change = Change(5, 4, 0.1, "float64", True)
        prepared = {"recipe": asdict(recipe), "change": asdict(change), "said": {"rungs": {}}}
        made["results"][f"{model_name}/{kind}"] = prepared
        good = {"trt-gpu": {"status": "passed", "reason": "r", "outcome": "agree"}}
        rungs = said if model_name == "half" else good
        measured["results"][recipe.key] = {"digest": "d", "rungs": rungs}
    rows = mutants.rows_of(made, measured)
    assert [one.spoilt for one in rows] == [False, False, True, True]
    assert [one.counts for one in rows] == [False, True, False, False]
    assert [one.partition(":")[0] for one in mutants.faults(rows)] == ["good/scale/0"]
    assert "so its mutants do not count: half." in "\n".join(mutants.page(rows, {}))


def test_the_mutants_from_recipes_to_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = {"ort-cpu": "failed", "trt-network": "passed", "trt-gpu": "failed"}
    copies: list[bytes] = []

    def climb(original: Path, path: Path, rungs: Any, timeout: float) -> dict[str, Any]:
        copies.append(path.read_bytes())
        same = path.read_bytes() == onnx.load(original).SerializeToString()
        rung = {one: {"status": "passed" if same else said[one], "reason": "r"} for one in rungs}
        return {"exit": 0, "seconds": 0.1, "rungs": rung}

    onnx.save(net(), tmp_path / "net.onnx")
    monkeypatch.setattr(mutants, "FIXTURES", tmp_path)
    monkeypatch.setattr(mutants, "climb", climb)
    monkeypatch.setattr(engines, "ready", lambda package: (CHOICE, {"TensorRT": "10.0"}))
    recipes, found = tmp_path / "recipes.json", tmp_path / "found.json"
    given = SimpleNamespace(json=recipes, seed=0, kinds=["epsilon", "pads"], models=["net"], timeout=9.0)
    assert mutants.prepare(given) == 0  # type: ignore[arg-type]
    assert {key: one is None for key, one in ledger.load(recipes)["results"].items()} == {
        "net/none": False, "net/epsilon": False, "net/pads": True,
    }  # fmt: skip
    assert mutants.main(["execute", str(recipes), "--json", str(found), "--jobs", "1"]) == 0
    assert copies[2:] == copies[:2], "the same models on the other machine"
    assert mutants.main(["table", str(recipes), str(found)]) == 0
    assert "**1 mutants change an output: trt-gpu refutes 1" in capsys.readouterr().out
    stored = json.loads(found.read_text())
    for one in stored["results"].values():
        one["digest"] = "other"
    found.write_text(json.dumps(stored))
    assert mutants.main(["table", str(recipes), str(found)]) == 2


def test_a_process_that_hangs_is_a_timeout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def hang(command: Any, **rest: Any) -> None:
        raise subprocess.TimeoutExpired(command, rest["timeout"])

    monkeypatch.setattr(mutants.subprocess, "run", hang)
    found = mutants.climb(tmp_path, tmp_path, mutants.GPU, 5.0)
    assert found["exit"] is None
    assert found["rungs"] == {"trt-gpu": {"status": "timeout", "reason": "took more than 5 s"}}


def test_rows_of_a_run_that_is_not_complete() -> None:
    stored = {
        "made": {"m": {
            "as-is": asdict(Made("ok")) | {"digest": "a"},
            "exact": asdict(Made("ok")) | {"digest": "b"},
            "onnxsim": asdict(Made("timeout", "took too long")) | {"digest": ""},
        }},
        "results": {"m/a": asdict(Result("right", within="case"))},
    }  # fmt: skip
    [found] = outcomes.rows_of(json.loads(json.dumps(stored)))
    assert [one.status for one in found.results.values()] == ["right", "not measured", "no model"]
    assert found.results["onnxsim"].reason == "timeout: took too long"
