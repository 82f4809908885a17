"""Proven pairs on inputs full of special values: does ONNX Runtime compute the same bits for both?

    python -m benchmarks.symbolic.special [FOLDER ...] --draws 6

The pairs are the rules' examples, the exports in ``fixtures/`` and those in the folders (see ``pairs``). A difference
whose cause is known is in ``CAUSES``: then the runtime, not the fix, departs from what ONNX says, or ONNX says nothing.
The exit code is 1 if there is another one.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import multiprocessing
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper

from benchmarks.symbolic.pairs import Pair, example_pairs, fixture_pairs, folder_pairs
from benchmarks.symbolic.planted import session, sizes
from onnxfix.files.walk import nodes
from onnxfix.proof.symbolic.prove import prove

_FEW = 4096
"""Elements up to which an input may decide a shape, as in the check ``symbolic``."""
_SIZES = (3, 4, 2, 8, 1, 16)
"""Sizes of free dimensions: the first at which ONNX Runtime takes the model."""
_SHARES = (1.0, 0.5, 0.2, 0.05)
"""How many of the values are special: sums of many are NaN at once."""
_EDGES = [
    0.5,
    1.5,
    2.5,
    -2.5,
    1e-40,
    1e-7,
    65504,
    65520,
    1 << 24,
    (1 << 24) + 2,
    2147483648,
    -129,
    256,
    88.8,
    1e30,
]
_EDGES += [
    1 + 2**-11 + 2**-30,
    1 + 2**-8 + 2**-30,
    0.49999997,
]  # in single precision halfway between two of a half
_LARGE = (1 << 60) + (1 << 36) + 1


_SIZED = {
    *("Loop", "Range", "Tile", "Expand", "ConstantOfShape", "Pad", "Resize", "Upsample", "OneHot", "TopK"),
    *(
        "EyeLike",
        "Reshape",
        "CenterCropPad",
        "HannWindow",
        "HammingWindow",
        "BlackmanWindow",
        "NonMaxSuppression",
    ),
}
"""Operators of which an integer may be a size: the models' integers are kept."""


_SECONDS = 15
"""Time for one pair: a loop may not come to an end for some values."""


_EXTREMES = {"Max", "Min", "Clip", "ReduceMax", "ReduceMin", "MaxPool", "GlobalMaxPool", "Relu"}
_HALVES = {TensorProto.FLOAT16, TensorProto.BFLOAT16}
CAUSES: dict[str, Callable[[Pair, list[NodeProto], str], bool]] = {
    "a local function is called like an operator of ONNX, and ONNX Runtime runs its own": lambda pair, both, what: (
        any(not one.domain for one in pair.original.functions)
    ),
    "ONNX Runtime's Where loses the sign of zero": lambda pair, both, what: (
        "0.0 and -0.0" in what.replace("-0.0 and 0.0", "0.0 and -0.0")
        and any(one.op_type in ("Where", "If") for one in both)
    ),
    "ONNX does not say what the largest of numbers and NaN is": lambda pair, both, what: (
        "nan" in what and any(one.op_type in _EXTREMES for one in both)
    ),
    "ONNX Runtime computes half precision in single, and inserts and drops Casts": lambda pair, both, what: (
        any(a.name == "to" and a.i in _HALVES for one in both for a in one.attribute)
        or any(one.type.tensor_type.elem_type in _HALVES for one in pair.original.graph.input)
    ),
}
"""Known causes of a difference, the first that fits the pair, the nodes of both models, and what differs."""


def special(kind: np.dtype[Any], shape: tuple[int, ...], share: float, draw: np.random.Generator) -> Any:
    """An array of a type in which a share of the values is special, and the others are small."""
    if kind.kind == "b":
        return draw.integers(0, 2, shape).astype(kind)
    if kind.kind in "iu" or kind.name in ("int4", "uint4"):
        info = ml_dtypes.iinfo(kind)
        numbers = [info.min, info.max, info.max - 1, 0, 1, 2, 7, -1, -7, 300, 1 << 30, _LARGE]
        edges = np.array([one for one in numbers if info.min <= one <= info.max], object)
        calm = draw.integers(0, 3, shape).astype(object)
    else:
        limits = ml_dtypes.finfo(kind)
        numbers = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, *_EDGES]
        numbers += [float(one) for one in (limits.max, -limits.max, limits.tiny, limits.smallest_subnormal)]
        edges, calm = np.array(numbers), draw.normal(size=shape)
        calm = np.where(draw.random(shape) < 0.5, calm, np.round(calm))  # equal ones among them
    with np.errstate(all="ignore"):
        return np.where(draw.random(shape) < share, draw.choice(edges, shape), calm).astype(kind)


def feeds(
    model: ModelProto, base: Mapping[str, Any], kept: tuple[str, ...], draws: int, seed: int
) -> Iterator[dict[str, Any]]:
    """Inputs with special values. ``kept`` inputs, which decide shapes, have those of ``base``; half of the draws keep
    all integers, which may be indices."""
    draw = np.random.default_rng(seed)
    names = {node.op_type for node in nodes(model.graph.node)}
    for number, share in zip(range(draws), itertools.cycle(_SHARES), strict=False):
        feed = dict(base)
        for name, value in base.items():
            whole = value.dtype.kind in "iu"
            if name in kept or value.dtype.kind in "OSU" or (whole and (number % 2 or names & _SIZED)):
                continue
            feed[name] = special(value.dtype, value.shape, share, draw)
            if whole and names & {"Div", "Mod"}:  # ONNX Runtime's process ends when it divides by zero
                feed[name] = np.maximum(feed[name], np.ones((), value.dtype))
        yield feed


def bits_differ(one: Any, other: Any) -> bool:
    """Whether two outputs differ in a bit; all NaN are one."""
    first, second = np.asarray(one), np.asarray(other)
    if (first.shape, first.dtype) != (second.shape, second.dtype):
        return True
    if first.dtype.kind in "OSUbiu":
        return not np.array_equal(first, second)
    both = np.isnan(first) & np.isnan(second)
    return bool(np.any(~both & ((first != second) | (np.signbit(first) != np.signbit(second)))))


def calm_feed(pair: Pair) -> dict[str, Any] | None:
    """Inputs that ONNX Runtime takes; None if it takes none of those tried."""
    if pair.feed:
        return pair.feed
    try:
        runtime = session(pair.original)
    except Exception:  # it raises what it likes
        return None
    kinds = {one.name: one.type.tensor_type.elem_type for one in pair.original.graph.input}
    draw = np.random.default_rng(0)
    for size in _SIZES:
        try:
            shapes = sizes(pair.original, size)
            feed = {
                name: special(np.dtype(helper.tensor_dtype_to_np_dtype(kinds[name])), shape, 0.0, draw)
                for name, shape in shapes.items()
            }
            runtime.run(None, feed)
        except Exception:  # noqa: S112  # it raises what it likes
            continue
        return feed
    return None


def apart(
    pair: Pair, base: Mapping[str, Any] | None, kept: tuple[str, ...], draws: int, seed: int = 1
) -> str | bool | None:
    """What differs in ONNX Runtime on special values; False if nothing does, None if it does not run both models."""
    if base is None:
        return None
    try:
        first, second = session(pair.original), session(pair.fixed)
    except Exception:  # it raises what it likes
        return None
    ran = None
    for feed in feeds(pair.original, base, kept, draws, seed):
        try:
            expected = first.run(None, feed)
        except Exception:  # noqa: S112  # it does not take these inputs
            continue
        try:
            results = second.run(None, feed)
        except Exception as error:
            return f"the fixed model fails: {str(error)[:100]}"
        ran = False
        for name, *outputs in zip(
            [o.name for o in pair.original.graph.output], expected, results, strict=True
        ):
            if bits_differ(*outputs):
                return f"{name}: {_first(*outputs)}"
    return ran


def judge(pair: Pair, draws: int, seed: int) -> str:
    """What is to be said of a pair: a word to count, or "different: CAUSE (WHERE)"."""
    base = calm_feed(pair)
    if base is None:
        return "not run"
    shapes = {name: np.shape(value) for name, value in base.items()}
    outcome = prove(pair.original, pair.fixed, shapes, {k: v for k, v in base.items() if np.size(v) <= _FEW})
    if not outcome.proven:
        return "not proven"
    difference = apart(pair, base, outcome.given, draws, seed)
    if not difference:
        return "proven, not run with special values" if difference is None else "proven, equal bits"
    both = [*nodes(pair.original.graph.node), *nodes(pair.fixed.graph.node)]
    difference = str(difference)
    cause = next((text for text, fits in CAUSES.items() if fits(pair, both, difference)), "not known")
    return f"different: {cause} ({difference})"


def judge_in_child(pair: Pair, draws: int, seed: int) -> str:
    """As ``judge``, in a process of its own, which may crash or not come to an end."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=lambda: sender.send(judge(pair, draws, seed)))
    child.start()
    sender.close()
    try:
        return str(receiver.recv()) if receiver.poll(_SECONDS) else "ONNX Runtime does not come to an end"
    except EOFError:
        return "ONNX Runtime crashes"
    finally:
        child.kill()
        child.join()


def _first(one: Any, other: Any) -> str:
    if one.shape != other.shape:
        return f"{one.shape} and {other.shape}"
    for left, right in zip(one.reshape(-1), other.reshape(-1), strict=True):
        if bits_differ(left, right):
            return f"{left!s} and {right!s}"
    return f"{one.dtype} and {other.dtype}"


def main() -> None:
    """Print the differences and count the pairs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", type=Path, nargs="*")
    parser.add_argument("--draws", type=int, default=6)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--match", default="", help="only pairs whose name holds this")
    parser.add_argument("--only-folders", action="store_true", help="no examples and no fixtures")
    arguments = parser.parse_args()
    sources = [folder_pairs(folder) for folder in arguments.folders]
    sources += [] if arguments.only_folders else [example_pairs(), fixture_pairs()]
    counts: collections.Counter[str] = collections.Counter()
    for pair in itertools.chain(*sources):
        if arguments.match not in pair.name:
            continue
        word = judge_in_child(pair, arguments.draws, arguments.seed)
        if word.startswith(("different", "ONNX")):
            print(f"{pair.name}: {word}", flush=True)
        counts[word.partition(" (")[0]] += 1
    for word, count in counts.most_common():
        print(f"{count:6} {word}")
    sys.exit(any("not known" in word for word in counts))


if __name__ == "__main__":
    main()
