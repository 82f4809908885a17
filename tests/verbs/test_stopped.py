"""Models of which no made input runs: where they stop, what they demand there, and a command that goes on."""

from __future__ import annotations

import re
import shlex
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import onnxfix
from onnxfix.report.render.text import render_report
from onnxfix.report.report import Report
from onnxfix.runtime import system
from onnxfix.runtime.backends import ort_messages
from onnxfix.verbs.intake import Stopped
from support.cli import output, reported, run
from support.models import model, write
from support.paths import FIXTURES

RUNGS = ("ort-cpu",)

COUNTED = """g (float[N] x) => (float[4,25] y) <int64[2] s = {4, 25}> {
    i = NonZero(x)  f = Cast<to=1>(i)  d = Reshape(f, s)  y = Identity(d) }"""
LOOKED_UP = """g (float[N] x) => (float[N] y) <float[5] t = {1, 2, 3, 4, 5}, float k = {1000000.0}, float h = {3.25}> {
    a = Sub(x, h)  e = Mul(a, a)  b = Mul(e, k)  i = Cast<to=7>(b)  j = Gather(t, i)  c = Identity(j)  y = Neg(c) }"""
LONG = """g (float[B,S] x) => (float[B,T] y) { y = my.Ends(x) }
    <domain: "my", opset_import: ["" : 17]>
    Ends (v) => (w) { p = Constant<value_ints = [0, 90000, 0, 90000]>()
                      u = Pad<mode="reflect">(v, p)  w = Identity(u) }"""


TRIED = "input_ids:1x1,attention_mask:1x1"


def saved(folder: Path, body: str) -> Path:
    return write(folder / "m.onnx", model(body, 17, 8, {"my": 1}))


def halted(folder: Path, body: str) -> tuple[Report, Stopped]:
    """The report of an apply that proves nothing, and where the model stops."""
    report = onnxfix.apply(saved(folder, body), folder / "o.onnx", rungs=RUNGS)
    assert report.exit_code == 3
    assert report.stopped is not None
    return report, report.stopped


def words(report: Report) -> str:
    return "\n".join(one.plain for one in render_report(report))


UNKNOWN = "g (float[N] x) => (float[N] y) { a = Identity(x)  y = my.Unknown(a) }"
WRONG = """g (float[N] x) => (float[A] y) <int64[2] s = {2, 3}, int64[2] t = {3, 2}, float h = {0.5}> {
    a = Reshape(x, s)  b = Reshape(x, t)  c = Mul(a, h)  y = Add(c, b) }"""
FIXED = """g (float[2,12] x) => (float[A,B] y) <int64[2] s = {7, 5}, float[1] c = {2.5}> {
    a = Add(x, c)  b = Reshape(a, s)  y = Relu(b) }"""
NO_SIZE = FIXED.replace("2,12", "N,8").replace("7, 5", "3, 7")
AGAIN = "the fault is in the original: export it again"


@dataclass(frozen=True)
class Stop:
    """Where a model stops, the sizes that the command asks for, what is said of it and what is not."""

    body: str
    place: str
    shapes: str
    said: tuple[str, ...]
    unsaid: str = AGAIN


STOPS = {
    "a number of elements that is data": Stop(
        COUNTED,
        "d",
        "x:?",
        (
            "NOT VERIFIED: the original stops at d (Reshape); nothing was written",
            "it stops at d (Reshape) with N=1: ",
            "which depends on the values of x",
            "The input tensor cannot be reshaped to the requested shape",
            f"--input-shapes {system.quoted('x:?')}",
        ),
    ),
    "a node of a function": Stop(
        LONG, "fn my::Ends / u", "x:1x?", ("replace the question mark by a size",), "must be"
    ),
    "not loaded": Stop(
        UNKNOWN,
        "",
        "",
        ("NOT VERIFIED: ONNX Runtime does not load the original", "with any inputs: ", "my:Unknown"),
    ),
    "wrong": Stop(WRONG, "", "", ("Incompatible dimensions", AGAIN), "--inputs-help"),
    "no inputs change that": Stop(FIXED, "b", "", (f"no inputs change that: {AGAIN}",), "question mark"),
    "no size fits": Stop(
        NO_SIZE,
        "b",
        "",
        ("number of elements 8*N must be equal to 21", f"no inputs change that: {AGAIN}"),
        "question mark",
    ),
}


@pytest.mark.parametrize("stop", STOPS.values(), ids=STOPS)
def test_where_a_model_stops_and_what_is_said(tmp_path: Path, stop: Stop) -> None:
    report, found = halted(tmp_path, stop.body)
    told = words(report)
    assert (found.place.text if found.loaded else "", found.shapes) == (stop.place, stop.shapes)
    assert [one for one in stop.said if one not in told] == [], told
    assert stop.unsaid not in told
    assert "onnxruntime_src" not in told


def test_the_command_with_the_size_filled_in_goes_on(tmp_path: Path) -> None:
    report, found = halted(tmp_path, COUNTED)
    assert found.shapes == "x:?"
    line = next(one for one in words(report).splitlines() if "--input-shapes" in one)
    command = shlex.split(line.partition("onnxfix ")[2])
    code, told, _ = run(*(word.replace("?", "100") for word in command), "--rungs", "ort-cpu")
    assert code in (0, 1), told
    assert "  written   " in told


def test_indices_that_are_computed_from_floats(tmp_path: Path) -> None:
    report, found = halted(tmp_path, LOOKED_UP)
    assert (found.place.text, found.op_type, found.shapes) == ("j", "Gather", "")
    assert [(one.words, one.inputs) for one in found.needed] == [("indices must be from -5 to 4", ("x",))]
    assert [(one.name, one.type, one.dims) for one in found.inputs] == [("x", "float", ("N",))]
    line = next(one for one in words(report).splitlines() if "--inputs inputs.npz" in one)
    assert "(x: float [N])" in line
    np.savez(tmp_path / "inputs.npz", x=np.full(3, 3.25, np.float32))
    command = shlex.split(line.partition("onnxfix ")[2])[:-1]
    output(0, *command, tmp_path / "inputs.npz", "--rungs", "ort-cpu")


@pytest.mark.slow
def test_a_search_in_vain_ends_soon(tmp_path: Path) -> None:
    """The heads of a BERT have 8 elements, and are to have 13: with no batch and no length. Took 30 s."""
    proto = onnx.load(FIXTURES / "bert.legacy.op11.onnx")
    makers = {name: node for node in proto.graph.node for name in node.output}
    (heads, *_) = (one for one in proto.graph.node if one.name.endswith("layer.0/attention/self/Reshape_1"))
    proto.graph.initializer.append(numpy_helper.from_array(np.array([13]), "wrong"))
    makers[heads.input[1]].input[3] = "wrong"
    began = time.process_time()
    report = onnxfix.apply(proto, tmp_path / "o.onnx", rungs=RUNGS)
    assert time.process_time() - began < 10
    assert (report.exit_code, report.stopped and report.stopped.op_type) == (3, "Reshape")
    told = words(report)
    assert f"it stops at {heads.output[0]} ({heads.name}) (Reshape) with batch=1, seq=1: " in told
    assert "Input shape:{1,1,32}, requested shape:{1,1,-1,13}" in told
    assert "must be a multiple of 13*batch" in told
    assert f"this was tried: onnxfix apply '<model>' --input-shapes {system.quoted(TRIED)}" in told


def test_verify_says_it_too_and_json_holds_it(tmp_path: Path) -> None:
    path = saved(tmp_path, COUNTED)
    told = output(3, "verify", path, path, "--rungs", "ort-cpu")
    assert re.search(rf"onnxfix verify \S*m\.onnx --input-shapes {re.escape(system.quoted('x:?'))}", told)
    held = reported("verify", path, path, "--rungs", "ort-cpu")[1]["stopped"]
    assert held["place"]["text"] == "d"
    assert held["needed"][0]["inputs"] == ["x"]


@pytest.mark.parametrize(
    ("said", "plain"),
    [
        (
            "Status Message: /onnxruntime_src/onnxruntime/core/providers/cpu/tensor/reshape_helper.h:91 "
            "onnxruntime::ReshapeHelper::ReshapeHelper(const onnxruntime::TensorShape&, onnxruntime::TensorShapeVector&"
            ", bool) a == b was false. It cannot be reshaped",
            "Status Message: a == b was false. It cannot be reshaped",
        ),
        (
            "/onnxruntime_src/core/a.cc:12 void f(std::function<void(int)>, long int) const [with T = float] no",
            "no",
        ),
        ("Pad reflect requires more", "Pad reflect requires more"),
    ],
)
def test_words_without_places_in_onnx_runtimes_source(said: str, plain: str) -> None:
    assert ort_messages.plain(said) == plain
