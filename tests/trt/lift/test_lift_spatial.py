"""Convolutions, deconvolutions and poolings, read back from TensorRT: forms that its parser makes, and forms that it
never makes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from onnxfix.runtime.sandbox import Worker
from support import lifted
from support.handmade import Raw, Recipe, one, op, outputs, read
from support.real_tensorrt import REAL
from support.spatial_oracles import MODES, RANDOM, close, convolved, deconvolved, image, pooled

pytestmark = REAL


# -- pooling

#: window, stride, padding before, padding after
POOLS = [
    ((3, 2), (2, 2), (0, 0), (0, 0)),
    ((3, 3), (2, 3), (1, 1), (1, 0)),
    ((1, 1), (2, 2), (0, 0), (0, 0)),
    ((3, 3), (2, 2), (1, 2), (2, 1)),
    ((2, 3), (1, 1), (0, 1), (1, 1)),
    ((3, 3), (5, 4), (1, 0), (0, 2)),
]
SIZES = ((5, 6), (7, 7), (8, 5))


def pool(
    word: str, shape: tuple[int, ...], mode: str, inside: bool, where: Any, dtype: str = "FLOAT"
) -> Recipe:
    size, stride, before, after = where
    return one(
        "pooling_nd",
        "x",
        op("PoolingType", word),
        size,
        inputs={"x": (dtype, shape)},
        stride_nd=stride,
        pre_padding=before,
        post_padding=after,
        padding_mode=op("PaddingMode", mode),
        average_count_excludes_padding=inside,
    )


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("word", "inside"), [("MAX", False), ("AVERAGE", False), ("AVERAGE", True)])
def test_a_pooling_does_what_the_formulas_say(
    worker: Worker, tmp_path: Path, word: str, inside: bool, mode: str, dynamic: bool
) -> None:
    for where in POOLS:
        size, stride, before, after = where
        ends = [a + s - 1 for a, s in zip(after, stride, strict=True)]
        if inside and mode.endswith("UP") and any(end >= f for end, f in zip(ends, size, strict=True)):
            continue  # "the padding size is larger than or equal to the filter size for exclusive-counting pooling"
        shape = (1, 2, -1, -1) if dynamic else (1, 2, *SIZES[0])
        found = read(worker, pool(word, shape, mode, inside, where), tmp_path)
        assert found.lifted, found.reason
        for hw in SIZES if dynamic else SIZES[:1]:
            x = image(1, 2, *hw)
            wanted = pooled(x, word, inside, mode, size, stride, (before, after))
            [y] = lifted.run(Path(found.path), {"x": x})
            if not dynamic:
                assert found.outputs[0].dims == wanted.shape
            close(
                np.maximum(y, -1e9), np.maximum(wanted, -1e9)
            )  # the maximum of nothing is the least of its type


def test_a_pooling_in_three_dimensions(worker: Worker, tmp_path: Path) -> None:
    x, where = image(1, 2, 5, 6, 7), ((2, 3, 2), (2, 1, 2), (1, 1, 0), (0, 1, 1))
    for word in ("MAX", "AVERAGE"):
        [y] = outputs(worker, pool(word, x.shape, "EXPLICIT_ROUND_UP", False, where), tmp_path, {"x": x})
        close(y, pooled(x, word, False, "EXPLICIT_ROUND_UP", *where[:2], where[2:]))


def test_a_window_beside_the_image_is_noted(worker: Worker, tmp_path: Path) -> None:
    where = ((1, 1), (3, 3), (0, 0), (0, 0))
    found = read(worker, pool("MAX", (1, 1, 5, 5), "EXPLICIT_ROUND_UP", False, where), tmp_path)
    assert found.outputs[0].dims == (
        1,
        1,
        3,
        3,
    )  # ONNX: 2 by 2, "windows that would start in the right padded region"
    assert "wholly in the padding" in found.notes[0]
    for mode, stride in (("EXPLICIT_ROUND_DOWN", (3, 3)), ("EXPLICIT_ROUND_UP", (2, 2))):
        where = ((1, 1), stride, (0, 0), (0, 0))
        assert not read(worker, pool("MAX", (1, 1, 5, 5), mode, False, where), tmp_path).notes


@pytest.mark.parametrize("shape", [(1, 2, 7, 6), (1, 2, -1, -1)])
def test_bytes_are_pooled_as_bytes(worker: Worker, tmp_path: Path, shape: tuple[int, ...]) -> None:
    x = RANDOM.integers(-128, -100, (1, 2, 7, 6)).astype(np.int8)
    given = pool("MAX", shape, "SAME_LOWER", False, ((3, 3), (2, 2), (0, 0), (0, 0)), "INT8")
    [y] = outputs(worker, given, tmp_path, {"x": x})
    assert y.dtype == np.int8
    close(y, pooled(x.astype(np.float64), "MAX", False, "SAME_LOWER", (3, 3), (2, 2), ((0, 0), (0, 0))))


@pytest.mark.parametrize(("dtype", "tolerance"), [("HALF", 1e-3), ("BF16", 1e-2)])
def test_short_floats_are_pooled(worker: Worker, tmp_path: Path, dtype: str, tolerance: float) -> None:
    x = image(1, 2, 6, 6).astype(np.float16 if dtype == "HALF" else ml_dtypes.bfloat16)
    where = ((2, 2), (2, 2), (0, 0), (0, 0))
    for word in ("MAX", "AVERAGE"):
        [y] = outputs(
            worker, pool(word, x.shape, "EXPLICIT_ROUND_DOWN", True, where, dtype), tmp_path, {"x": x}
        )
        assert y.dtype == x.dtype
        wanted = pooled(
            x.astype(np.float64), word, True, "EXPLICIT_ROUND_DOWN", (2, 2), (2, 2), ((0, 0), (0, 0))
        )
        close(y.astype(np.float64), wanted, tolerance if word == "AVERAGE" else 0)


# -- convolution

CONVOLUTIONS = [
    ((3, 2), (2, 2), (0, 0), (0, 0)),
    ((3, 3), (2, 3), (1, 1), (1, 0)),
    ((1, 1), (2, 2), (0, 0), (0, 0)),
    ((3, 2), (1, 2), (2, 3), (3, 2)),
    ((2, 2, 3), (2, 1, 2), (1, 0, 1), (0, 1, 1)),
]


def convolution(
    what: str, inputs: Any, maps: int, kernel: Any, bias: Any, mode: str, where: Any, **more: Any
) -> Recipe:
    """A layer over the input x; ``kernel`` and ``bias`` are stored weights, or None."""
    size, stride, before, after = where
    return one(
        f"{what}_nd",
        "x",
        maps,
        size,
        Raw(kernel),
        Raw(bias),
        inputs=inputs,
        stride_nd=stride,
        pre_padding=before,
        post_padding=after,
        padding_mode=op("PaddingMode", mode),
        **more,
    )


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("what", ["convolution", "deconvolution"])
def test_a_convolution_does_what_the_formulas_say(
    worker: Worker, tmp_path: Path, what: str, mode: str, dynamic: bool
) -> None:
    for where, (dilation, groups) in zip(CONVOLUTIONS, [(1, 1), (2, 2), (1, 2), (2, 1), (1, 2)], strict=True):
        size, stride, before, after = where
        inner = (6, 4 // groups) if what == "convolution" else (4, 6 // groups)
        kernel, bias = image(*inner, *size), image(6)
        x = image(2, 4, *(8, 7, 6)[: len(size)])
        shape = (2, 4, *([-1] * len(size))) if dynamic else x.shape
        more = {"dilation_nd": (dilation,) * len(size), "num_groups": groups}
        found = read(
            worker, convolution(what, {"x": ("FLOAT", shape)}, 6, kernel, bias, mode, where, **more), tmp_path
        )
        assert found.lifted, found.reason
        if what == "convolution":
            wanted = convolved(x, kernel, groups, mode, size, stride, (before, after), dilation)
        else:
            wanted = deconvolved(x, kernel, mode, stride, (before, after), dilation, groups)
        if not dynamic:
            assert found.outputs[0].dims == wanted.shape
        [y] = lifted.run(Path(found.path), {"x": x})
        close(y, wanted + bias.reshape(-1, *([1] * len(size))), 1e-4)


@pytest.mark.parametrize("kernel_is", ["stored", "input"])
@pytest.mark.parametrize("bias_is", ["none", "stored", "input"])
def test_kernel_and_bias_are_stored_or_inputs(
    worker: Worker, tmp_path: Path, kernel_is: str, bias_is: str
) -> None:
    x, kernel, bias = image(1, 2, 5, 5), image(3, 2, 3, 3), image(3)
    stored = [kernel if kernel_is == "stored" else None, bias if bias_is == "stored" else None]
    where = ((3, 3), (1, 1), (1, 1), (1, 1))
    inputs, feed, sets = {"x": ("FLOAT", x.shape)}, {"x": x}, {}
    for place, name, value, how in ((1, "k", kernel, kernel_is), (2, "b", bias, bias_is)):
        if how == "input":
            inputs[name], feed[name], sets[f"input {place}"] = ("FLOAT", value.shape), value, name
    given = convolution("convolution", inputs, 3, *stored, "EXPLICIT_ROUND_DOWN", where, **sets)
    [y] = outputs(worker, given, tmp_path, feed)
    wanted = convolved(x, kernel, 1, "EXPLICIT_ROUND_DOWN", *where[:2], where[2:])
    close(y, wanted + (0 if bias_is == "none" else bias.reshape(-1, 1, 1)))


@pytest.mark.parametrize("dtype", ["HALF", "BF16"])
@pytest.mark.parametrize("what", ["convolution", "deconvolution"])
def test_stored_weights_of_short_floats(worker: Worker, tmp_path: Path, what: str, dtype: str) -> None:
    numpy_type = np.float16 if dtype == "HALF" else ml_dtypes.bfloat16
    x, kernel, bias = (a.astype(numpy_type) for a in (image(1, 2, 5, 5), image(2, 2, 3, 3), image(2)))
    where = ((3, 3), (1, 1), (1, 1), (1, 1))
    given = convolution(what, {"x": (dtype, x.shape)}, 2, kernel, bias, "EXPLICIT_ROUND_DOWN", where)
    [y] = outputs(worker, given, tmp_path, {"x": x})
    assert y.dtype == numpy_type
    wide = x.astype(np.float64), kernel.astype(np.float64)
    if what == "convolution":
        wanted = convolved(*wide, 1, "EXPLICIT_ROUND_DOWN", (3, 3), (1, 1), ((1, 1), (1, 1)))
    else:
        wanted = deconvolved(*wide, "EXPLICIT_ROUND_DOWN", (1, 1), ((1, 1), (1, 1)), 1, 1)
    close(y.astype(np.float64), wanted + bias.astype(np.float64).reshape(-1, 1, 1), 0.03)


# -- models

KERNELS = {"plane": (4, 3, 3, 2), "line": (4, 3, 3), "spread": (3, 2, 3, 3)}
MODELS = {
    "a convolution whose padding hangs on the size": """g (float[2,3,h,w] x) => (float[2,4,p,q] y) {
        y = Conv<auto_pad = "SAME_LOWER", strides = [2, 3]>(x, plane)
    }""",
    "a convolution along one axis": """g (float[2,3,w] x) => (float[2,4,q] y) {
        y = Conv<pads = [1, 0], dilations = [2], strides = [2]>(x, line)
    }""",
    "more output than a deconvolution gives": """g (float[2,3,h,w] x) => (float[2,2,p,q] y) {
        y = ConvTranspose<strides = [2, 3], pads = [1, 0, 0, 1], output_padding = [1, 2]>(x, spread)
    }""",
    "a mean that counts padding": """g (float[2,3,h,w] x) => (float[2,3,p,q] y) {
        y = AveragePool<kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1], ceil_mode = 1,
            count_include_pad = 1>(x)
    }""",
    "the mean over an image": "g (float[2,3,h,w] x) => (float[2,3,1,1] y) { y = GlobalAveragePool(x) }",
}


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_tensorrt_reads_these_as_onnx_runtime_does(worker: Worker, tmp_path: Path, model: str) -> None:
    used = [name for name in KERNELS if f", {name})" in model]
    made = lifted.text(model, **{name: image(*KERNELS[name]) for name in used})
    x = image(2, 3, 9) if "[2,3,w]" in model else image(2, 3, 9, 8)
    lifted.agree(worker, made, tmp_path, {"x": x})


@pytest.mark.parametrize("dtype", ["INT8", "FP8"])
def test_the_mean_of_bytes_is_not_known(worker: Worker, tmp_path: Path, dtype: str) -> None:
    found = read(worker, pool("AVERAGE", (1, 2, 4, 4), "SAME_UPPER", True, POOLS[0], dtype), tmp_path)
    assert found.status == "unlifted"
    assert f"how TensorRT computes this in {dtype} is not documented" in found.reason
