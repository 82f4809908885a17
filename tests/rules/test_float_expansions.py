"""OPS039, OPS053, OPS055 to OPS057, OPS065 to OPS067: operators that TensorRT refuses, written in others.

Compared with numpy or ONNX Runtime. What TensorRT says is in test_expansions_of_node_models.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

from onnxfix.rule import Safety
from test_integer_expansions import INTEGERS, Array, after, model, run


def test_remainders_of_floats() -> None:
    """As ONNX has them since opset 28, the signs of zeros included, which are those of the divisor."""
    x = np.array([-4.3, 7.2, 5, 0.0, -0.0, -3, np.inf, np.nan, 1e-30, 4, -8], np.float32)
    d = np.array([2.1, -3.4, 8, -2, 3, np.inf, -np.inf], np.float32)[:, None]
    made = model("g (float[N] x, float[M,1] d) => (float[M,N] y) { y = Mod(x, d) }", 28)
    with np.errstate(all="ignore"):
        wanted = np.mod(x, d)
    result = after(made)
    by_reference = ReferenceEvaluator(result).run(None, {"x": x, "d": d})
    for [got] in (by_reference, run(result, x=x, d=d), run(made, x=x, d=d)):
        np.testing.assert_allclose(got, wanted, rtol=1e-6)
        np.testing.assert_array_equal(np.signbit(got)[wanted == 0], np.signbit(wanted)[wanted == 0])


@pytest.mark.parametrize("reverse", [0, 1])
@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("length", [1, 2, 5, 8])
def test_cumulative_products(length: int, exclusive: int, reverse: int) -> None:
    x = np.random.default_rng(length).integers(-9, 9, (3, length, 2)).astype(np.int32)
    flags = f"exclusive = {exclusive}, reverse = {reverse}"
    for axis in (1, -2):
        made = model(
            f"g (int32[N,{length},2] x) => (int32[N,{length},2] y) {{ y = CumProd<{flags}>(x, a) }}", 26,
            a=np.array(axis, np.int64),
        )  # fmt: skip
        data = x[:, ::-1] if reverse else x
        if exclusive:
            data = np.concatenate([np.ones_like(data[:, :1]), data[:, :-1]], axis=1)
        wanted = np.cumprod(data, axis=1, dtype=np.int32)
        [got] = run(after(made, Safety.EXACT), x=x)
        np.testing.assert_array_equal(got, wanted[:, ::-1] if reverse else wanted)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_determinants(size: int) -> None:
    x = np.random.default_rng(size).standard_normal((2, 5, size, size)).astype(np.float32)
    made = model(f"g (float[M,N,{size},{size}] x) => (float[M,N] y) {{ y = Det(x) }}")
    np.testing.assert_allclose(run(after(made), x=x)[0], np.linalg.det(x.astype(np.float64)), 1e-3, 1e-5)
    assert run(after(made), x=x[:, :0])[0].shape == (2, 0)


@pytest.mark.parametrize("given", [None, 1, 3, 5, 8])
@pytest.mark.parametrize("length", [1, 4, 5])
@pytest.mark.parametrize("axis", [0, 1, -2])
def test_fourier_transforms(axis: int, length: int, given: int | None) -> None:
    place = axis % 4
    shape = [3, 2, 3, 2]
    shape[place] = length
    x = np.random.default_rng(0).standard_normal(shape)
    signal = x[..., 0] + 1j * x[..., 1]
    whole = given or length
    cases: list[tuple[str, Array, Array]] = [
        ("", x, np.fft.fft(signal, whole, place)),
        ("inverse = 1", x, np.fft.ifft(signal, whole, place)),
        ("", x[..., :1], np.fft.fft(x[..., 0], whole, place)),
        ("onesided = 1", x[..., :1], np.fft.rfft(x[..., 0], whole, place)),
    ]
    if given or length > 1:
        cases.append(("onesided = 1, inverse = 1", x, np.fft.irfft(signal, given or 2 * (length - 1), place)))
    weights = {"a": np.array(axis, np.int64)} | ({"n": np.array(given, np.int64)} if given else {})
    for flags, data, wanted in cases:
        dims = ",".join("N" if i != place and i < 3 else str(d) for i, d in enumerate(data.shape))
        made = model(
            f"""g (double[{dims}] x) => (double[A,B,C,D] y) {{
                y = DFT{f"<{flags}>" if flags else ""}(x, {"n" if given else ""}, a) }}""",
            20,
            **weights,
        )
        [got] = run(after(made), x=data)
        parts = [wanted.real, wanted.imag] if np.iscomplexobj(wanted) else [wanted]
        np.testing.assert_allclose(got, np.stack(parts, -1), 1e-9, 1e-9, err_msg=flags)


REDUCTIONS = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


@pytest.mark.parametrize("kind", ["int32", "int64", "float"])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_scattered_updates_at_run_time(reduction: str, kind: str) -> None:
    rng = np.random.default_rng(7)
    dtype = np.float32 if kind == "float" else INTEGERS[kind]
    x, u = rng.integers(-9, 9, (4, 3, 2)).astype(dtype), rng.integers(-9, 9, (2, 5, 2)).astype(dtype)
    i = np.stack([rng.integers(-4, 4, (2, 5)), rng.integers(-3, 3, (2, 5))], -1)
    made = model(
        f"""g ({kind}[4,3,2] x, int64[2,5,2] i, {kind}[2,5,2] u) => ({kind}[4,3,2] y) {{
            y = ScatterND<reduction = "{reduction}">(x, i, u) }}"""
    )
    wanted = x.copy()
    REDUCTIONS[reduction].at(wanted, (i[..., 0], i[..., 1]), u)
    np.testing.assert_array_equal(run(after(made), x=x, i=i, u=u)[0], wanted)
    for axis in range(3):
        shape = [4, 3, 2]
        shape[axis] = 6
        u, i = rng.integers(-9, 9, shape).astype(dtype), rng.integers(-x.shape[axis], x.shape[axis], shape)
        made = model(
            f"""g ({kind}[4,3,2] x, int64{shape} i, {kind}{shape} u) => ({kind}[4,3,2] y) {{
                y = ScatterElements<axis = {axis}, reduction = "{reduction}">(x, i, u) }}"""
        )
        wanted = x.copy()
        grid = list(np.indices(shape))
        grid[axis] = i
        REDUCTIONS[reduction].at(wanted, tuple(grid), u)
        np.testing.assert_array_equal(run(after(made), x=x, i=i, u=u)[0], wanted)


@pytest.mark.parametrize("ceil", [0, 1])
@pytest.mark.parametrize("padding", [0, 1])
@pytest.mark.parametrize("steps", [[1, 1], [2, 3], [5, 1]])
@pytest.mark.parametrize("pads", [[0, 0, 0, 0], [1, 0, 2, 1], [1, 1, 1, 1]])
def test_averages_and_norms_of_windows_with_gaps(
    pads: list[int], steps: list[int], padding: int, ceil: int
) -> None:
    x = np.random.default_rng(3).standard_normal((2, 3, 9, 8)).astype(np.float32)
    window = (
        f"kernel_shape = [3, 2], dilations = [2, 3], pads = {pads}, strides = {steps}, ceil_mode = {ceil}"
    )
    made = model(
        f"""g (float[N,3,9,8] x) => (float[A,B,C,D] y) {{
            y = AveragePool<{window}, count_include_pad = {padding}>(x) }}""",
        19,
    )
    np.testing.assert_allclose(run(after(made), x=x)[0], run(made, x=x)[0], 1e-5, 1e-6)
    if not ceil:
        for power in (1, 2, 3):
            made = model(
                f"g (float[N,3,9,8] x) => (float[A,B,C,D] y) {{ y = LpPool<{window}, p = {power}>(x) }}"
            )
            np.testing.assert_allclose(run(after(made), x=x)[0], run(made, x=x)[0], 1e-5, 1e-6)


@pytest.mark.parametrize("rows", [1, 2, 5])
@pytest.mark.parametrize("mode", ["linear", "circular"])
@pytest.mark.parametrize("given", [True, False])
def test_cache_updates(given: bool, mode: str, rows: int) -> None:
    rng = np.random.default_rng(5)
    for shape, axis in (((3, 5, 2), -2), ((3, 2, 5, 2, 1), 2), ((3, 2, 5), 2)):
        place = axis % len(shape)
        cache, update = (
            rng.standard_normal(shape),
            rng.standard_normal(tuple(rows if i == place else n for i, n in enumerate(shape))),
        )
        dims = [",".join(map(str, one.shape)) for one in (cache, update)]
        made = model(
            f"""g (double[{dims[0]}] p, double[{dims[1]}] u{", int64[3] w" if given else ""})
                => (double[{dims[0]}] y) {{
                y = TensorScatter<axis = {axis}, mode = "{mode}">(p, u{", w" if given else ""}) }}""",
            24,
        )
        last = 4 if mode == "circular" else 5 - rows
        first = np.array([0, last, last // 2])
        wanted = cache.copy()
        for row, start in enumerate(first if given else [0, 0, 0]):
            for number in range(rows):
                to: list[Any] = [row, *[slice(None)] * (len(shape) - 1)]
                source = list(to)
                to[place], source[place] = (start + number) % 5, number
                wanted[tuple(to)] = update[tuple(source)]
        feed = {"p": cache, "u": update} | ({"w": first} if given else {})
        if mode == "linear" and len(shape) == 4:
            continue
        np.testing.assert_array_equal(run(after(made, Safety.EXACT), **feed)[0], wanted)
