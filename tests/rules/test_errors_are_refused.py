"""In every example, what is an error is refused by the real TensorRT-RTX, or known to be read as something else.

What is no error, as it is or after a fix, is taken.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto

from onnxfix.rewrite.engine import check
from onnxfix.rewrite.registry import registry
from onnxfix.rule import NO_MODEL, Example, Rule, Safety, Severity
from onnxfix.runtime.sandbox import Worker
from onnxfix.testing import findings, fixed, model_of, overlay
from onnxfix_rules.trt.results import known
from support.lifted import feed_of, lifted, run
from support.real_tensorrt import FACT, REAL, built, older_than

pytestmark = pytest.mark.corpus

#: TensorRT takes these and means something else, as their pages and tests show.
MISREAD = {
    "CTL001": "rows of a scan output that the loop never made",
    "GRA003": "a declared type that nothing has",
    "IFC001": "an input of unknown shape as a scalar",
    "OPS010": "the lower triangle for the upper one",
    "OPS011": "the batch as time",
    "OPS012": "channels in another order",
    "OPS013": "a result that is moved by a pixel",
    "OPS014": "another size of the result",
    "OPS015": "keys that are padding, or outside of the window",
    "OPS016": "pads that do not count",
    "OPS017": "an input of another name",
    "OPS018": "a bias where ONNX has none",
    "OPS034": "another bound",
    "OPS035": "an index that is none",
    "OPS036": "a reflection of what is not there",
    "OPS060": "the operator of that name",
    "OPS072": "each channel by itself for all together",
    "OPS073": "the element for its amount, square or logarithm",
    "OPS074": "0 for the bounds",
    "OPS075": "a window that starts in the padding",
    "OPS076": "a mean times the size of a full window",
    "OPS080": "half a pixel aside",
    "OPS081": "the ratio of lengths for the scale",
    "OPS082": "0 for the activation",
    "OPS083": "another size of the result",
    "OPS084": "NaN for the dividend",
    "OPS085": "an input of another name",
    "OPS086": "a mask of one key for all of them, or one that does not fit",
    "OPS102": "another function of that name",
    "OPS126": "another tensor",
    "OPS105": "another factor than 1/n",
    "OPS106": "0 for the missing bound",
    "QDQ004": "uint8 as int8",
    "QDQ017": "blocks of one size",
    "QDQ018": "the bytes of words",
    "QDQ019": "a vector for a scalar",
}
#: Those whose misreading the network that TensorRT imports shows, read back as a model.
READ_BACK = (
    *(
        f"OPS0{number}"
        for number in (10, 11, 12, 13, 14, 15, 16, 18, 72, 73, 74, 75, 76, 80, 81, 82, 83, 84, 86, 87)
    ),
    *("QDQ004", "QDQ017", "QDQ018", "QDQ019"),
)
#: Integers are lengths there, and of large scores a softmax gives one key alone.
SMALL = {"OPS011", "OPS015"}
#: Left alone, and ONNX Runtime does not do as ONNX says, or the model is not valid.
NOT_ABOUT = {
    "before opset 11 ONNX cut the odd element at the end, as TensorRT does",
    "opset 11 has no Clip of integers",
    "invalid: one scale too many",
}
#: It builds for the one size that it works for.
ONE_SIZE = {"OPS064"}

RULES = [
    rule for rule in registry().rules if rule.per not in NO_MODEL and rule.module.startswith("onnxfix_rules")
]


def errors(rule: Rule) -> Iterator[Example]:
    """The rule's examples in which it finds an error for TensorRT-RTX."""
    for example in rule.examples:
        if example.found and any(
            found.severity is Severity.ERROR for found in findings(rule, model_of(example), "rtx")
        ):
            yield example


REFUSED = [rule for rule in RULES if rule.code not in MISREAD.keys() | ONE_SIZE]

#: The text is of something else, which the model has too.
BESIDE = {"GRA020", "IFC005", "IFC008", "OPS001", "OPS110", "OPS111", "OPS112"}


@REAL
@pytest.mark.parametrize("rule", REFUSED, ids=lambda rule: rule.code)
def test_tensorrt_refuses_what_is_an_error(rule: Rule, worker: Worker, tmp_path: Path) -> None:
    """What it says is known to be about the rule, if it is known at all: else the rule's finding would not be
    confirmed, and TensorRT's would point elsewhere."""
    for example in errors(rule):
        build = built(worker, model_of(example), tmp_path)
        assert build.status != "accepted", (
            f"{rule.code} calls it an error, and TensorRT-RTX builds it: {example.why}"
        )
        about = known(build.errors[0].text) if build.errors and rule.code not in BESIDE else None
        assert about is None or rule.code in about, f"{example.why}: {build.errors[0].text}"


#: Where a rule knows too little to speak, TensorRT may know more: ranks, types, attributes of the caller.
UNKNOWN = re.compile(r"unknown|attribute of the surrounding function")
#: About types and operators that TensorRT lacks, or forms of them: what is no error there has to build.
ABOUT_REFUSALS = re.compile(
    r"OPS0(0[12]|2\d|3\d|4[0-6]|5[0-35-7]|6[13-9]|7[01]|9[0-5])|GRA00[678]|GRA020|CTL01[0-6]|CTL020|IFC00[56]|CST005|BRC00[78]"
    r"|QDQ0(0\d|1[0-69])"
)
_KEPT = "a reader that no fix touches keeps a quantized constant"
#: Rule and number of the example -> why TensorRT refuses what no rule calls an error.
REFUSED_ALL_THE_SAME = {
    ("BRC007", 8): "sizes that may be equal; BRC004 warns",
    ("CTL010", 16): "its builder fails on an axis of no length",
    ("CTL011", 6): "ranks of two branches, although nothing reads the output",
    ("CTL013", 2): "its builder fails on a scan output that nothing reads",
    ("OPS055", 4): "floats in a Mod without fmod, which opset 10 cannot write otherwise",
    ("OPS031", 12): "a mode that TensorRT does not have besides",
    ("OPS071", 8): "a shape that the usual profile does not fit",
    ("QDQ001", 3): _KEPT,
    ("QDQ006", 6): "its builder fails on int4 beside int8",
    ("QDQ008", 5): "its builder crashes on a scale that is computed",
    ("QDQ010", 4): _KEPT,
    ("QDQ010", 12): "it cannot see that a scale at run time is positive",
    ("QDQ011", 3): _KEPT,
    ("QDQ011", 11): "an axis before opset 13, which TensorRT reads, and a zero point that is not constant",
    ("QDQ012", 5): _KEPT,
    ("QDQ012", 14): "a constant that may be overridden",
    ("QDQ013", 4): "float8 that leaves a branch",
}


@FACT
@REAL
@pytest.mark.corpus(every=1)
@pytest.mark.parametrize(
    "rule", [rule for rule in RULES if ABOUT_REFUSALS.fullmatch(rule.code)], ids=lambda rule: rule.code
)
def test_tensorrt_takes_what_is_no_error(
    rule: Rule, worker: Worker, tmp_path: Path, short_stride: int
) -> None:
    """What the rule leaves alone, and what its fix leaves, unless another rule calls it an error."""
    refused = {}
    for number, example in list(enumerate(rule.examples))[::short_stride]:
        if (example.found and example.after is None) or UNKNOWN.search(example.why):
            continue
        proto = model_of(example)
        if example.found:
            proto, _ = fixed([rule], proto, safety=example.safety, target="rtx")
        if any(found.severity is Severity.ERROR for found in check(overlay(proto, "rtx"), RULES)):
            continue
        build = built(worker, proto, tmp_path)
        if build.status != "accepted":
            refused[rule.code, number] = f"{example.why}: {build.reason}"
    assert refused.keys() == {
        (code, number)
        for code, number in REFUSED_ALL_THE_SAME
        if code == rule.code and not number % short_stride
    }, refused


#: Those that an older TensorRT-RTX may refuse: its parser (QDQ019), or its builder, which has no such kernels (OPS015)
#: or wants a GPU to choose them.
REFUSED_BEFORE = {"OPS015": "1.7", **dict.fromkeys(("OPS074", "QDQ004", "QDQ017", "QDQ019"), "1.5")}


@REAL
@pytest.mark.parametrize("code", sorted(MISREAD.keys() | ONE_SIZE))
def test_the_exceptions_are_needed(code: str, worker: Worker, tmp_path: Path) -> None:
    rule = next(rule for rule in RULES if rule.code == code)
    taken = []
    for example in errors(rule):
        taken.append(built(worker, model_of(example), tmp_path).status == "accepted")
    assert any(taken) or older_than(REFUSED_BEFORE.get(code, "0")), f"{code} needs no exception"


def small(values: Any) -> Any:
    """Numbers around 0, and lengths of 2 and 3."""
    if values.dtype.kind == "i":
        return np.resize(np.array([2, 3], values.dtype), values.shape)
    return (values / 16).astype(values.dtype) if values.dtype.kind == "f" else values


def agrees(worker: Worker, model: ModelProto, folder: Path, code: str) -> bool | None:
    """Whether TensorRT's reading of a model computes what the model does, by ONNX Runtime or else by the evaluator.

    None where TensorRT takes no such model, or neither of them runs it.
    """
    found = lifted(worker, model, folder)
    feed = {name: small(item) if code in SMALL else item for name, item in feed_of(model).items()}
    wanted = read = None
    for backend in ("ort-cpu", "reference"):
        with contextlib.suppress(Exception):
            wanted = run(folder / "model.onnx", feed, backend)
            break
    if wanted is None or not found.lifted:
        return None
    with contextlib.suppress(Exception):
        read = run(Path(found.path), feed)
    return read is not None and all(
        one.shape == other.shape
        and np.allclose(one.astype(float), other.astype(float), rtol=1e-3, atol=5e-3, equal_nan=True)
        for one, other in zip(map(np.asarray, wanted), read, strict=True)
    )


@REAL
@pytest.mark.parametrize("code", READ_BACK)
def test_a_misreading_is_read_back(code: str, worker: Worker, tmp_path: Path) -> None:
    """What TensorRT does not refuse computes something else in the network that it imports, until it is fixed."""
    rule = next(rule for rule in RULES if rule.code == code)
    for example in errors(rule):
        model = model_of(example)
        if built(worker, model, tmp_path).status == "accepted":
            assert not agrees(worker, model, tmp_path, code), example.why
        if example.after is not None and example.safety < Safety.UNSAFE:
            after, _ = fixed([rule], model, safety=example.safety, target="rtx")
            assert agrees(worker, after, tmp_path, code) is not False, example.why


@REAL
@pytest.mark.parametrize("code", READ_BACK)
def test_what_is_left_alone_is_read_right(code: str, worker: Worker, tmp_path: Path) -> None:
    """As far as TensorRT takes it."""
    for example in next(rule for rule in RULES if rule.code == code).examples:
        model = model_of(example)
        clear = "function" not in example.why and example.why not in NOT_ABOUT
        if clear and not example.found and not check(overlay(model, "rtx"), RULES):
            assert agrees(worker, model, tmp_path, code) is not False, example.why


def test_most_rules_are_asked() -> None:
    asked = [len(list(errors(rule))) for rule in REFUSED]
    assert sum(map(bool, asked)) > 60
    assert sum(asked) > 400
