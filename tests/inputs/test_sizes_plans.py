"""Sizes in plans of verification and in TensorRT's optimization profiles."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from onnxfix.inputs.feeds import plan
from onnxfix.inputs.feeds.signature import signature
from onnxfix.inputs.sizes.search import Search
from onnxfix.tensorrt.profiles import NetInput, candidates, with_names
from support import models
from support.paths import ROOT
from support.size_demands import DEMANDS, model, runs

FIXTURES = sorted((ROOT / "fixtures").glob("*.onnx"))


def test_a_sweep_of_sizes_that_fit_is_as_it_was() -> None:
    known = signature(model("g (float[N,S] x) => (float[N,S] y) { y = Relu(x) }"))
    assert plan.assignments(known, {}) == [
        {"N": 1, "S": 1},
        {"N": 2, "S": 2},
        {"N": 3, "S": 5},
        {"N": 0, "S": 5},
        {"N": 3, "S": 0},
    ]


def test_a_sweep_has_only_sizes_that_the_model_takes() -> None:
    proto = model(DEMANDS["a kernel"])
    sweep = plan.assignments(signature(proto), {})
    assert len(sweep) > 3
    assert all(runs(proto, one) for one in sweep)
    held = plan.assignments(signature(proto), {"H": 50})
    assert all(one["H"] == 50 for one in held)
    assert all(runs(proto, one) for one in held)


def test_sizes_of_the_users_that_do_not_fit_are_kept() -> None:
    known = signature(model(DEMANDS["a kernel"]))
    assert all(one["H"] == 2 for one in plan.assignments(known, {"H": 2}))


@pytest.mark.corpus
@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.stem)
def test_fixtures_run_at_all_sizes_of_their_sweep(path: Path) -> None:
    proto = onnx.load(path)
    sweep = plan.assignments(signature(proto), {})
    assert len(sweep) == 1 or len(sweep) >= 3
    ran = [runs(proto, one) for one in sweep if 0 not in one.values()]
    assert all(ran)


def test_long_signals_are_found_by_trial() -> None:
    """What a local function demands is not known: sizes are doubled until the model takes them."""
    text = """<ir_version: 8, opset_import: ["" : 17, "my" : 1]>
        g (float[B,S] x) => (float[B,T] y) { y = my.Ends(x) }
        <domain: "my", opset_import: ["" : 17]>
        Ends (v) => (w) { p = Constant<value_ints = [0, 3000, 0, 3000]>()  w = Pad<mode="reflect">(v, p) }"""
    proto = models.model(text)
    known = signature(proto)
    assert not any(runs(proto, one) for one in plan.assignments(known, {}) if 0 not in one.values())
    assert sum(runs(proto, one) for one in plan.grown(known, {})) > 2
    images = signature(model("g (float[B,3,H,W] x) => (float[B,3,H,W] y) { y = Relu(x) }"))
    assert max(max(one.values()) for one in plan.grown(images, {})) < 300


def test_a_profile_has_a_range_also_where_the_least_size_is_large() -> None:
    text = (
        """g (float[B,S] x) => (float[B,T] y) <int64[4] p = {0,64,0,64}> { y = Pad<mode="reflect">(x, p) }"""
    )
    (first, *_) = candidates([NetInput("x", ("B", "S"), False)], None, None, Search(model(text)))
    assert first.shapes == {"x": ((1, 65), (3, 130), (8, 260))}


def test_a_size_that_is_the_only_one_is_for_tensorrt_to_refuse() -> None:
    text = "g (float[B,4] x) => (float[2,8] y) <int64[2] s = {2, 8}> { y = Reshape(x, s) }"
    (first, *_) = candidates([NetInput("x", ("B", 4), False)], None, None, Search(model(text)))
    assert first.shapes == {"x": ((1, 4), (3, 4), (8, 4))}


def test_dimensions_that_tensorrt_takes_for_one_have_one_size() -> None:
    """ "?" is no name of ONNX's, and one to TensorRT: both sizes have to fit at once."""
    proto = model("g (float[1,3,H,W] x) => (float[1,4,A,B] y) { y = Conv(x, w) }")
    for dim in proto.graph.input[0].type.tensor_type.shape.dim[2:]:
        dim.dim_param = "?"
    assert Search(proto).problem({}).free == ("x.2", "x.3")
    known = with_names(proto)
    assert with_names(known) is known
    assert len(Search(known).problem({}).free) == 1


def test_too_little_memory_to_look_for_sizes_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def near(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(Search, "near", near)
    search = Search(model("g (float[1,1,S] x) => (float[1,4,T] y) { y = Conv(x, w1) }"))
    (first, *_) = candidates([NetInput("x", (1, 1, "S"), False)], None, None, search)
    assert first.shapes["x"][0] == (1, 1, 1)
