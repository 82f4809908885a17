"""What a diagnosis looks like as text, and which keys its JSON has."""

from __future__ import annotations

import io
import json
import math
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from onnxfix.diagnosis.records import Culprit, Diagnosis, Histogram, Marking, NodeError, OutputComparison
from onnxfix.diagnosis.statistics import compare_output
from onnxfix.lowering.records import keep_text, pattern
from onnxfix.place import Place
from onnxfix.proof.compare.tolerance import ErrorHistogram
from onnxfix.report.render.diagnosis import diagnosis_data, diagnosis_page
from onnxfix.report.render.documents import result_lines
from onnxfix.report.render.lines import bound, cosine, percent, print_lines, share, wrapped
from onnxfix.report.render.markdown import render_page
from onnxfix.report.render.stream import as_json

TRUTH = np.array([[1.0, 2.0, 3.0], [4.0, 8.0, 6.0]], np.float32)
OTHER = np.array([[1.0, 2.5, 3.0], [4.0, 5.0, np.nan]], np.float32)
POW = NodeError(
    Place((), "/norm/Pow", "Pow", "/norm/Pow_output_0", 12),
    own_error=1.0,
    own_abs=3.2,
    noise=1.1e-7,
    input_error=0.0,
    output_error=1.0,
    effect=0.21,
    shape=(2, 8, 64),
    dtype="float32",
    low=-3.1,
    high=4.25,
    nonfinite=1024,
    nodes=("POWER", "b", "c", "d"),
)
ADD = NodeError(
    Place(("then_branch of If h",), "", "Add", "h", 13),
    3e-5,
    noise=1e-7,
    input_error=0.5,
    output_error=0.75,
    dtype="float32",
)
CULPRIT = Culprit(
    POW,
    "import",
    "TensorRT computes pow(|x|, 3) there: -3.1 at [0, 1, 2] becomes 29.8 and is -29.8 in the truth, and so on for "
    "every negative base",
    "onnxfix apply decoder.onnx -o fixed.onnx repairs it (OPS042, exact)",
    "OPS042",
    "exact",
)
FOUND = Diagnosis(
    "decoder.onnx",
    "trt-network",
    "",
    "differ",
    "/norm/Pow: what TensorRT computes there",
    samples=2,
    outputs=(
        compare_output("same", [(TRUTH, TRUTH)]),
        replace(compare_output("logits", [(TRUTH, TRUTH), (TRUTH, OTHER)]), noise=2e-7),
        compare_output("words", [(np.array(["a", "b"]), np.array(["a", "c"]))]),
    ),
    culprits=(CULPRIT,),
    begins=(POW,),
    table=(POW, ADD),
    markings=(Marking(("a", "b"), True, 2.1), Marking(("c",), False, 1.0, "logits moved by 0.2")),
    keep_fp32=("/norm/Pow",),
    notes=("nodes that stay in float32: 2 Pow",),
    nodes=114,
    compared=110,
    runs=3.21,
    seconds=4.06,
    environment={"onnxruntime": "1.30.0"},
)
GOLDEN = """\
decoder.onnx against trt-network  differs: /norm/Pow (import)
  node      /norm/Pow (Pow): own error 1 of its scale
  why       TensorRT computes pow(|x|, 3) there: -3.1 at [0, 1, 2] becomes 29.8 and is -29.8 in the
            truth, and so on for every negative base
  do        onnxfix apply decoder.onnx -o fixed.onnx repairs it (OPS042, exact)
outputs
  logits  float32 [2, 3]  3 of 12 elements differ
    absolute error  max 3  mean 0.318  p99 3  (scale 8, rounding 2e-07)
    relative error  max 0.375  mean 0.0568  p99 0.375
    cosine 0.9814, SNR 13.8 dB, argmax agrees in 75 % of rows
    worst at [1, 2] of sample 2: 6.0 in the truth, nan on the other side
    not finite: none in the truth, 1 NaN from [1, 2] on the other side
    passes with no tolerance
    absolute errors
       0  ████████████████████████████████████████ 9
    1e-1  ████ 1
     1e0  ████ 1
  words  string [2]  1 of 2 elements differ
    worst at [1]: b in the truth, c on the other side
    passes with no tolerance
  … and 1 more output, all identical (-v lists them)
begins at
  /norm/Pow (Pow): error 1 of its scale, 0 at its inputs
worst nodes
  node                             own  rounding   in   out  amplified  effect  values
  /norm/Pow (Pow)                    1   1.1e-07    0     1          -    0.21  float32 [2, 8, 64], -3.1
                                                                                to 4.25, 1,024 finite on
                                                                                one side only, other
                                                                                side: POWER, b, c and 1
                                                                                more
  then_branch of If h / h (Add)  3e-05     1e-07  0.5  0.75        1.5       -  float32 [], 0 to 0
marked builds
  a, b: the outputs did not change (2.1 s)
  c: the outputs changed, so it is not believed: logits moved by 0.2 (1.0 s)
  keep      in float32: /norm/Pow (--keep-fp32 FILE writes them)
  note      nodes that stay in float32: 2 Pow
  110 of 114 nodes compared, 2 samples, 3.2 runs of the model, 4.1 s"""


def shown(found: Diagnosis, width: int = 104, **options: Any) -> str:
    rows = (row for line in result_lines(found, **options) for row in wrapped(line, width))
    return "\n".join(row.plain for row in rows)


def test_the_headline_comes_first_and_is_all_where_quiet() -> None:
    assert shown(FOUND) == GOLDEN
    assert shown(FOUND, quiet=True) == GOLDEN.splitlines()[0]


def test_a_narrow_terminal_keeps_figures_in_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = shown(FOUND, 80, verbose=True).splitlines()
    assert lines[lines.index("worst nodes") + 1 : lines.index("marked builds")] == [
        "    own  rounding   in   out  amplified  effect  node",
        "      1   1.1e-07    0     1          -    0.21  /norm/Pow (Pow)",
        "      values float32 [2, 8, 64], -3.1 to 4.25, 1,024 finite on one side only,",
        "        other side: POWER, b, c and 1 more",
        "  3e-05     1e-07  0.5  0.75        1.5       -  then_branch of If h / h (Add)",
        "      values float32 [], 0 to 0",
    ]


def test_verbose_adds_all_outputs_and_histograms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = shown(FOUND, verbose=True)
    assert "  same  float32 [2, 3]  identical" in text
    assert "… and" not in text
    lines = text.splitlines()
    start = lines.index("    absolute errors")
    assert lines[start + 4] == "    values: truth and other side"
    assert len(lines[start + 5].split()) == 5, "an edge, and bars with numbers for both sides"


@pytest.mark.parametrize(
    ("status", "tolerance", "complete", "first", "second"),
    [
        ("agree", None, True, "agrees: every output is bit-identical", ""),
        (
            "rounding",
            3e-6,
            True,
            "agrees up to rounding",
            "  do        nothing: a tolerance of 3e-06 of each",
        ),
        ("unexplained", None, True, "differs: because", ""),
        ("unknown", None, False, "could not be found out: because (interrupted; this was found until", ""),
    ],
)
def test_every_status_has_its_headline(
    status: Any, tolerance: float | None, complete: bool, first: str, second: str
) -> None:
    found = Diagnosis("m.onnx", "fp16", "", status, "because", tolerance=tolerance, complete=complete)
    lines = shown(found).splitlines()
    assert lines[0].startswith(f"m.onnx against fp16  {first}")
    assert lines[1].startswith(second) if second else len(lines) == 2


def test_markdown_has_every_culprit() -> None:
    rows = [replace(CULPRIT, error=replace(POW, place=replace(POW.place, node=f"n{i}"))) for i in range(8)]
    text = render_page(diagnosis_page(replace(FOUND, culprits=tuple(rows))))
    assert all(f"n{i}" in text for i in range(8))
    assert text.count("- do: ") == 8


def test_names_cannot_forge_lines_or_move_the_cursor() -> None:
    evil = "x\n  do    rm -rf /\x1b[2J"
    error = replace(POW, place=Place((), evil, "Pow", evil), nodes=(evil,))
    found = replace(
        FOUND,
        path=evil,
        culprits=(replace(CULPRIT, error=error, reason=evil, advice=evil),),
        table=(error,),
        outputs=(replace(FOUND.outputs[1], name=evil, values=(evil, evil)),),
        notes=(evil,),
        keep_fp32=(evil,),
        markings=(Marking((evil,), True),),
    )
    for line in result_lines(found, verbose=True):
        assert "\x1b" not in line.plain
        assert "\n" not in line.plain
        assert not line.plain.startswith("  do    rm")


def test_prose_keeps_to_the_width() -> None:
    found = replace(FOUND, table=(), culprits=(replace(CULPRIT, advice="export it again"),))
    for width in (60, 72, 100, 140):
        for line in shown(found, width=width).splitlines()[1:]:
            assert len(line) <= width, line


def test_many_outputs_and_nodes_are_counted() -> None:
    outputs = tuple(replace(FOUND.outputs[1], name=f"past.{n}", max_abs=float(n)) for n in range(20))
    text = shown(replace(FOUND, outputs=(*outputs, FOUND.outputs[0]), table=(ADD,) * 9, begins=(POW,) * 7))
    assert "… and 16 more outputs, 1 of them identical (-v lists them)" in text
    assert "… and 4 more nodes" in text
    assert "… and 2 more nodes" in text


def test_half_precision_names_no_casts() -> None:
    text = shown(replace(FOUND, against="fp16"))
    assert "other side: POWER" not in " ".join(text.split())
    assert "2 more" not in text
    text = shown(replace(FOUND, culprits=(CULPRIT,) * 5))
    assert text.splitlines()[0].endswith("differs: /norm/Pow (import) and 4 more")
    assert "… and 2 more nodes" in text


def test_a_command_stays_on_one_line() -> None:
    command = f"onnxfix apply {'folder/' * 12}decoder.onnx --select OPS042 --numeric-fixes"
    advice = f"{command} (replace the power by products); or keep it in float32"
    lines = shown(replace(FOUND, culprits=(replace(CULPRIT, advice=advice),))).splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("  do"))
    assert lines[start : start + 2] == [
        f"  do        {command}",
        "            (replace the power by products); or keep it in float32",
    ]


def test_an_output_with_a_name_of_its_own_is_named() -> None:
    error = replace(POW, place=Place((), "/norm/Pow", "Pow", "squared"))
    text = shown(replace(FOUND, culprits=(replace(CULPRIT, error=error),)))
    assert "  node      /norm/Pow (Pow, output squared): own error 1 of its scale" in text


def test_an_error_that_is_no_number_is_said_in_words() -> None:
    error = replace(
        POW, own_error=math.inf, input_error=math.inf, output_error=math.inf, nodes=("/norm/Pow",)
    )
    lines = shown(replace(FOUND, culprits=(replace(CULPRIT, error=error),), table=(error,))).splitlines()
    assert lines[1].split(": ")[1] == "1,024 elements are finite on one side only"
    row = next(line for line in lines if "  1.1e-07  " in line)
    assert row.split()[2:8] == ["inf", "1.1e-07", "inf", "inf", "-", "0.21"]
    assert "other side: /norm/Pow" not in lines  # the same node
    shapes = replace(error, nonfinite=0)  # another shape
    lines = shown(replace(FOUND, culprits=(replace(CULPRIT, error=shapes),), begins=(shapes,))).splitlines()
    assert lines[1] == "  node      /norm/Pow (Pow): own error beyond measure"
    assert "  /norm/Pow (Pow): error beyond measure, inf at its inputs" in lines


def test_a_tolerance_that_is_shown_passes() -> None:
    other = (TRUTH * np.float32(1.00004)).astype(np.float32)
    output = compare_output("y", [(TRUTH, other)])
    line = shown(replace(FOUND, outputs=(output,))).partition("passes with ")[2].splitlines()[0]
    atol, rtol = (float(text) for text in re.findall(r"=(\S+)", line))
    assert np.isclose(other, TRUTH, rtol=0.0, atol=atol).all()
    assert np.isclose(other, TRUTH, rtol=rtol, atol=0.0).all()
    assert atol < 1.02 * output.max_abs


def test_the_worst_output_comes_first() -> None:
    near = compare_output("near", [(TRUTH, TRUTH * np.float32(1.001))])
    far = compare_output("far", [(TRUTH * np.float32(1e-6), TRUTH * np.float32(2e-6))])
    lines = shown(replace(FOUND, outputs=(near, FOUND.outputs[0], far))).splitlines()
    names = [line.split()[0] for line in lines if line.endswith("elements differ")]
    assert names == ["far", "near"]


# ------------------------------------------------------------------------------------------------------------- JSON


def test_numbers_that_are_not_finite_are_strings() -> None:
    data = json.loads(
        as_json(diagnosis_data(replace(FOUND, table=(replace(POW, own_error=math.inf, low=-math.inf),))))
    )
    assert (data["table"][0]["own_error"], data["table"][0]["low"]) == ("inf", "-inf")


# ------------------------------------------------------------------------------------------------- parts of the text


def test_bounds_hold_what_they_bound() -> None:
    for value in np.random.default_rng(0).uniform(0.0, 1.0, 500) ** 20 * 1e5:
        assert value <= float(bound(float(value))) <= value * 1.011


def test_only_all_is_all() -> None:
    assert [percent(value) for value in (0.0, 1e-9, 0.125, 0.9999, 1.0)] == [
        "0 %", "0.1 %", "12.5 %", "99.9 %", "100 %"
    ]  # fmt: skip
    assert share(None) == "-"
    assert [cosine(value) for value in (1.0, 0.99999, 0.98, -1.0)] == ["1", "1 - 1e-05", "0.98", "-1"]


def test_bars_show_what_is_not_nothing_in_ten_bins_and_80_columns() -> None:
    values = Histogram(tuple(map(float, range(17))), (1, *[0] * 14, 10**9), (10**9,) * 16)
    errors = ErrorHistogram(tuple(10.0**at for at in range(-14, 3)), (3, 4, *[0] * 13, 10**9), 2)
    output = OutputComparison("y", "float32", (2,), 2, 1, histogram=values, errors=errors)
    text = shown(replace(FOUND, outputs=(output,)), verbose=True)
    assert re.search(r"^ +0  █ 1  ", text, re.MULTILINE)
    _, bars = text.split("absolute errors\n")
    lines = bars.split("values:")[0].splitlines()[:-1]
    assert [line.split()[0] for line in lines] == ["0", "to", *(f"1e{at}" for at in range(-7, 2))]
    assert [line.split()[1:] for line in lines[1:3]] == [["1e-7", "█", "7"], []]
    assert 70 < max(len(line) for line in text.splitlines() if "█" in line) <= 80
    bare = replace(output, histogram=None, errors=ErrorHistogram(zeros=3))
    assert "█" not in shown(replace(FOUND, outputs=(bare,)), verbose=True)


def test_bars_are_plain_where_the_encoding_has_no_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), "ascii")
    monkeypatch.setattr("sys.stdout", stream)
    print_lines(result_lines(FOUND))
    assert b"    1e-1  #### 1\n" in stream.buffer.getvalue()  # type: ignore[attr-defined]


# ------------------------------------------------------------------------------------------------------ keep_fp32.txt


@pytest.mark.parametrize(
    "name", ["/Add", "/layers.0/attn/MatMul_1", "a b", "x[0]*(y)+z$^|{2}?\\#", "naïve", "#1", "\t"]
)
def test_a_line_matches_its_name_alone(name: str) -> None:
    others = [name, name + "_1", name.replace(".", "x") + "x"]
    text = keep_text([pattern(name, others)] * 2)
    (line,) = text.splitlines()
    assert [one for one in others if re.match(line, one)] == [name]  # as AutoCast matches
    assert len(line.split()) == 1  # for $(cat keep_fp32.txt)
