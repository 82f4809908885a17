"""Resizes, grids and the choice of boxes, read back from TensorRT: forms that its parser makes, and forms that it never
makes."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onnxfix.runtime.sandbox import Worker
from support import lifted
from support.handmade import one, op, outputs, read
from support.real_tensorrt import REAL, older_than, since
from support.spatial_oracles import RANDOM, Array, chosen, close, image, resized

pytestmark = REAL


# -- resizing

RESIZES = [
    ((1, 2, 4, 5), (1, 2, 7, 10)),
    ((1, 2, 4, 5), (1, 2, 1, 3)),
    ((1, 2, 1, 1), (1, 2, 3, 2)),
    ((4, 5), (6, 3)),
    ((5,), (8,)),
    ((2, 4, 5), (2, 3, 8)),
    ((2, 4, 5), (3, 3, 8)),
    ((2, 3, 4, 5), (2, 5, 2, 8)),
    ((1, 1, 2, 3, 4, 5), (1, 1, 2, 4, 3, 9)),
]
WHERE = ("ALIGN_CORNERS", "ASYMMETRIC", "HALF_PIXEL")


def resize(
    x: Any, mode: str, where: str, rounding: str = "FLOOR", upper: bool = False, **more: Any
) -> dict[str, Any]:
    return {
        "inputs": {"x": x},
        "resize_mode": f"trt.InterpolationMode.{mode}",
        "coordinate_transformation": f"trt.ResizeCoordinateTransformation.{where}",
        "nearest_rounding": f"trt.ResizeRoundMode.{rounding}",
        "selector_for_single_pixel": f"trt.ResizeSelector.{'UPPER' if upper else 'FORMULA'}",
        **more,
    }


@pytest.mark.parametrize("how", ["shape", "input", "scales", "dynamic input", "dynamic scales"])
@pytest.mark.parametrize("mode", ["NEAREST", "LINEAR", "CUBIC"])
def test_a_resize_does_what_the_formulas_say(worker: Worker, tmp_path: Path, mode: str, how: str) -> None:
    for number, ((before, after), where) in enumerate(itertools.product(RESIZES, WHERE)):
        upper = number % 2 == 1
        changed = [axis for axis in range(len(before)) if before[axis] != after[axis]]
        if mode == "CUBIC" and (len(before) < 2 or min(changed) < len(before) - 2):
            continue  # "resizes innermost 2 dimensions of N-D, N >= 2"
        x, scales = image(*before), ()
        shape = before if "dynamic" not in how else (-1,) * len(before)
        given = resize(("FLOAT", shape), mode, where, "HALF_UP" if upper else "CEIL", upper)
        options = {"upper": upper, "rounding": "HALF_UP" if upper else "CEIL"}
        if mode == "CUBIC":
            given |= {"cubic_coeff": -0.5, "exclude_outside": upper}
            options |= {"a": -0.5, "exclude": upper}
        feed = {"x": x}
        if how == "shape":
            given["shape"] = after
        elif "input" in how:
            given["inputs"]["s"], feed["s"] = ("INT64", (len(before),)), np.array(after)
            given["input 1"] = "s"
        else:  # 0.3 more than whole lengths, which makes no ties
            scales = tuple((b + 0.3) / a if b != a else 1.0 for a, b in zip(before, after, strict=True))
            given["scales"] = list(scales)
        [y] = outputs(worker, one("resize", "x", **given), tmp_path, feed)
        close(y, resized(x, after, scales, mode=mode, where=where, **options), 1e-4)


#: The rows of an image of 4 by 5 that TensorRT 10 itself picked for one of 6 by 10, by rounding, and the columns: its
#: output in NVIDIA's cookbook (trt-samples-for-hackathon-cn, cookbook/02-API/Layer/Resize/log-main.py.log).
PICKED = {
    "FLOOR": ([0, 0, 1, 2, 2, 3], [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]),
    "CEIL": ([0, 1, 2, 2, 3, 3], [0, 1, 1, 2, 2, 3, 3, 4, 4, 4]),
    "HALF_DOWN": ([0, 1, 1, 2, 3, 3], [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]),
    "HALF_UP": ([0, 1, 1, 2, 3, 3], [0, 1, 1, 2, 2, 3, 3, 4, 4, 4]),
}


@pytest.mark.parametrize("rounding", PICKED)
def test_the_nearest_elements_are_those_that_tensorrt_printed(
    worker: Worker, tmp_path: Path, rounding: str
) -> None:
    x = image(1, 3, 4, 5)
    given = resize(("FLOAT", x.shape), "NEAREST", "ASYMMETRIC", rounding, shape=(2, 3, 6, 10))
    [y] = outputs(worker, one("resize", "x", **given), tmp_path, {"x": x})
    rows, columns = PICKED[rounding]
    close(y, np.broadcast_to(x[:, :, rows][..., columns], y.shape), 0)


def test_scales_are_used_as_they_are_given(worker: Worker, tmp_path: Path) -> None:
    x = np.arange(1, 9, dtype=np.float32).reshape(1, 1, 2, 4)
    for where, wanted in (
        ("HALF_PIXEL", [2.6666667, 4.3333335]),
        ("ALIGN_CORNERS", [1, 3.142857]),
    ):  # ONNX's tests
        given = resize(("FLOAT", x.shape), "LINEAR", where, scales=[1.0, 1.0, 0.6, 0.6])
        [y] = outputs(worker, one("resize", "x", **given), tmp_path, {"x": x})
        close(y, np.array(wanted, np.float32).reshape(1, 1, 1, 2))
    assert "scale times length" in read(worker, one("resize", "x", **given), tmp_path).notes[0]


@pytest.mark.parametrize(("dtype", "kind"), [("HALF", np.float16), ("INT8", np.int8)])
def test_other_types_are_resized(worker: Worker, tmp_path: Path, dtype: str, kind: type) -> None:
    x = (image(1, 2, 4, 4) * 20).astype(kind)
    given = resize((dtype, x.shape), "NEAREST", "HALF_PIXEL", shape=(1, 2, 6, 8))
    [y] = outputs(worker, one("resize", "x", **given), tmp_path, {"x": x})
    assert y.dtype == kind
    close(y, resized(x, (1, 2, 6, 8), mode="NEAREST", where="HALF_PIXEL", rounding="FLOOR").astype(kind), 0)
    given = resize((dtype, x.shape), "LINEAR", "HALF_PIXEL", shape=(1, 2, 6, 8))
    found = read(worker, one("resize", "x", **given), tmp_path)
    assert found.lifted == (dtype == "HALF")
    assert (
        found.lifted or "how TensorRT rounds what it interpolates in INT8 is not documented" in found.reason
    )


# -- grids


#: Modes by their names in opset 20, and in opset 16, which are all that TensorRT-RTX knows before 1.6.
MODES = {"linear": "bilinear", "nearest": "nearest", "cubic": "bicubic"}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("outside", ["zeros", "border", "reflection"])
def test_a_grid_is_sampled(worker: Worker, tmp_path: Path, mode: str, outside: str) -> None:
    older = older_than("1.6")
    for kind, corners, depth in itertools.product(("float", "float16"), (0, 1), (0, 1)):
        if depth and (mode == "cubic" or older):
            continue  # neither ONNX Runtime nor TensorRT has it
        axes, shape, at = ("d,h,w", (3, 4, 5), (2, 3, 4)) if depth else ("h,w", (4, 5), (3, 4))
        model = lifted.text(
            f"""g ({kind}[1,2,{axes}] x, {kind}[{",".join(map(str, (1, *at, len(at))))}] grid)
            => ({kind}[1,2,{",".join(map(str, at))}] y) {{
            y = GridSample<mode = "{MODES[mode] if older else mode}", padding_mode = "{outside}",
                align_corners = {corners}>(x, grid)
        }}""",
            16 if older else 21,
        )
        feed = {"x": image(1, 2, *shape), "grid": image(1, *at, len(at)) * np.float32(1.2)}
        feed = {
            name: value.astype(kind.replace("float16", "f2").replace("float", "f4"))
            for name, value in feed.items()
        }
        lifted.agree(worker, model, tmp_path, feed)


# -- boxes


@pytest.mark.parametrize("form", ["CORNER_PAIRS", "CENTER_SIZES"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_boxes_are_chosen_by_score_whatever_their_class(
    worker: Worker, tmp_path: Path, form: str, dynamic: bool
) -> None:
    scores = (RANDOM.permutation(2 * 7 * 3).reshape(2, 7, 3) / 40 - 0.2).astype(
        np.float32
    )  # some are negative
    boxes = RANDOM.random((2, 7, 4)).astype(np.float32)
    for limit, iou, least in ((5000, None, None), (6, 0.3, None), (8, 0.3, 0.25), (5000, 0.1, -1.0)):
        shapes = [tuple(-1 if dynamic and size != 4 else size for size in a.shape) for a in (boxes, scores)]
        given: dict[str, Any] = {
            "inputs": {"b": ("FLOAT", shapes[0]), "s": ("FLOAT", shapes[1]), "m": ("INT32", ())},
            "bounding_box_format": f"trt.BoundingBoxFormat.{form}",
            "topk_box_limit": limit,
        }
        feed: dict[str, Array] = {"b": boxes, "s": scores, "m": np.array(2, np.int32)}
        for place, name, value in (("input 3", "i", iou), ("input 4", "t", least)):
            if value is not None:
                given["inputs"][name], given[place] = ("FLOAT", ()), name
                feed[name] = np.array(value, np.float32)
        rows, count = outputs(worker, one("nms", *"bsm", outputs=("rows", "count"), **given), tmp_path, feed)
        wanted = chosen(boxes, scores, 2, iou or 0.0, least or 0.0, form == "CENTER_SIZES", limit)
        assert rows.dtype == count.dtype == np.int32
        assert rows.tolist() == wanted
        assert count.tolist() == len(wanted) > 0


def test_no_box_may_be_left(worker: Worker, tmp_path: Path) -> None:
    given: dict[str, Any] = {
        "inputs": {"b": ("FLOAT", (1, 2, 4)), "s": ("FLOAT", (1, 2, 1)), "m": ("INT32", ())}
    }
    feed = {"b": image(1, 2, 4), "s": np.full((1, 2, 1), -1, np.float32), "m": np.array(2, np.int32)}
    rows, count = outputs(worker, one("nms", *"bsm", outputs=("rows", "count"), **given), tmp_path, feed)
    assert rows.shape == (0, 3)
    assert count.tolist() == 0


@since("1.6", "sampling in three dimensions")
def test_bicubic_sampling_in_three_dimensions_is_not_known(worker: Worker, tmp_path: Path) -> None:
    inputs = {"x": ("FLOAT", (1, 1, 3, 4, 4)), "g": ("FLOAT", (1, 2, 2, 2, 3))}
    assert read(worker, one("grid_sample", *"xg", inputs=inputs), tmp_path).lifted
    cubic = op("InterpolationMode", "CUBIC")
    found = read(worker, one("grid_sample", *"xg", inputs=inputs, interpolation_mode=cubic), tmp_path)
    assert found.status == "unlifted"
    assert "bicubic sampling of an input of 5 dimensions is not documented" in found.reason


def test_part_of_the_axes_is_resized(worker: Worker, tmp_path: Path) -> None:
    model = lifted.text("""g (float[2,3,h,w] x) => (float[2,3,p,w] y) <float[1] s = {1.3}> {
        y = Resize<mode = "cubic", axes = [2], exclude_outside = 1>(x, , s)
    }""")
    lifted.agree(worker, model, tmp_path, {"x": image(2, 3, 9, 8)})
