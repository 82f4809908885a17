"""Classical machine learning: linear models (OPS121) and ensembles of trees (OPS122)."""

# Long because: two rules that write scores and labels alike, with an example of each operator.

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from onnx import TensorProto

from onnxfix.rule import (
    Draft,
    Fix,
    Fixed,
    Flagged,
    Match,
    Model,
    Node,
    Safety,
    Severity,
    Silent,
    is_small,
    rule,
    target_of,
)

Array: TypeAlias = np.ndarray[Any, Any]
_ML = "ai.onnx.ml"
_POST = {"NONE": "", "SOFTMAX": "Softmax", "LOGISTIC": "Sigmoid"}
_LINEAR = ("LinearClassifier", "LinearRegressor", "Normalizer", "Scaler")
_TREES = ("TreeEnsembleClassifier", "TreeEnsembleRegressor")


class Unable(Exception):
    """The operator has a form that is not decomposed."""


@rule(
    "OPS121",
    ops=[f"{_ML}::{name}" for name in _LINEAR],
    safety=Safety.NUMERIC,
    severity=Severity.ERROR,
    hazards=[43],
)
def linear_model(node: Node, model: Model) -> Iterator[Match]:
    """A linear model or a scaler of `ai.onnx.ml`, of which TensorRT imports no operator.

    ## Why it matters
    Converters of scikit-learn write them. The parser looks for a plugin of that name and stops, measured with
    TensorRT-RTX 1.7.1: `Plugin not found, are the plugin name, version, and namespace correct?`

    ## Fix
    LinearRegressor and LinearClassifier become MatMul and Add, Scaler becomes Sub and Mul, Normalizer a reduction and
    Div. The label is that of the largest score. NUMERIC: products are added in another order.

    No fix for data other than matrices of float with a known number of columns, for labels that are strings, for a
    classifier with one row of coefficients, for another norm than L1, and for the post transforms PROBIT and
    SOFTMAX_ZERO.

    ## References
    - https://onnx.ai/onnx/operators/onnx_aionnxml_LinearClassifier.html
    """
    yield from _match(node, model, _WRITERS[node.op_type])


@rule(
    "OPS122",
    ops=[f"{_ML}::{name}" for name in _TREES],
    safety=Safety.NUMERIC,
    severity=Severity.ERROR,
    hazards=[43],
)
def tree_ensemble(node: Node, model: Model) -> Iterator[Match]:
    """An ensemble of decision trees of `ai.onnx.ml`, which TensorRT does not import.

    ## Why it matters
    Converters of scikit-learn, LightGBM and XGBoost write it. The parser looks for a plugin of that name and stops,
    measured with TensorRT-RTX 1.7.1: `Plugin not found, are the plugin name, version, and namespace correct?`

    ## Fix
    All comparisons at once: Gather takes each node's feature, a comparison with the thresholds tells each node's
    branch, and MatMul with a constant of 1 and -1 counts, for each leaf, the branches on its path that are taken. A
    leaf is reached where the count is the number of its right turns: sums of 1 and -1 are exact. A second MatMul adds
    the leaves' weights. NUMERIC: these are added in another order. The label is that of the largest score.

    No fix for data other than matrices of float with a known number of columns, several kinds of comparison,
    aggregates other than the sum, labels that are strings, fewer than three classes, negative weights of a classifier
    or leaves without any, base values of a classifier (of a regressor: targets that no tree always has), and more than
    2**20 places in the constants.

    ## References
    - https://onnx.ai/onnx/operators/onnx_aionnxml_TreeEnsembleClassifier.html
    """
    yield from _match(node, model, _trees)


def _match(node: Node, model: Model, write: Callable[[Node, Draft], None]) -> Iterator[Match]:
    if node.function is not None:
        return
    data, draft, fix = node.require(0), Draft(node), None
    draft.remove(node)
    try:
        if model.shapes.elem_type(data) != TensorProto.FLOAT or node.scope.opset() < 13:
            raise Unable
        write(node, draft)
        fix = Fix("compute it by matrix products", draft.edits, Safety.NUMERIC)
    except Unable:
        pass
    message = f"{target_of(model).title} imports no operator of {_ML}, such as {node.op_type}"
    yield Match(message, node=node, fix=fix)


def _numbers(node: Node, name: str) -> Array:
    return np.array(node.attr(name, []), np.float32)


def _columns(node: Node) -> int:
    """The number of features."""
    shape = node.model.shapes.shape(node.require(0)) or ()
    if len(shape) != 2 or shape[1].value is None:
        raise Unable
    return shape[1].value


def _text(node: Node, name: str, default: str) -> str:
    value = node.attr(name, default)
    return value.decode() if isinstance(value, bytes) else str(value)


def _deliver(
    node: Node, draft: Draft, index: int, op_type: str, inputs: list[Any], **attributes: Any
) -> None:
    """Write the node that makes an output, if the output exists."""
    output = node.output(index)
    if output is not None:
        draft.add(op_type, inputs, output=output.name, **attributes)


def _scores(node: Node, draft: Draft, index: int, scores: str) -> None:
    transform = _POST.get(_text(node, "post_transform", "NONE"))
    if transform is None:
        raise Unable
    more = {"axis": 1} if transform == "Softmax" else {}
    _deliver(node, draft, index, transform or "Identity", [scores], **more)


def _label(node: Node, draft: Draft, scores: str, labels: list[int], count: int) -> None:
    if len(labels) != count:
        raise Unable
    largest = draft.add("ArgMax", [scores], axis=1, keepdims=0)
    _deliver(node, draft, 0, "Gather", [draft.integers(labels), largest])


def _scale(node: Node, draft: Draft) -> None:
    offset, scale = _numbers(node, "offset"), _numbers(node, "scale")
    if not {offset.size, scale.size} <= {1, _columns(node)}:
        raise Unable
    moved = draft.add("Sub", [node.require(0), draft.constant(offset)])
    _deliver(node, draft, 0, "Mul", [moved, draft.constant(scale)])


def _normalize(node: Node, draft: Draft) -> None:
    if _text(node, "norm", "MAX") != "L1" or not _columns(node):  # L2 of tiny numbers underflows
        raise Unable
    norm = draft.along("ReduceL1", node.require(0), [1], keepdims=1)
    empty = draft.add("Equal", [norm, draft.constant(np.zeros((), np.float32))])
    divisor = draft.add("Where", [empty, draft.constant(np.ones((), np.float32)), norm])
    _deliver(node, draft, 0, "Div", [node.require(0), divisor])


def _sums(node: Node, draft: Draft, count: int) -> str:
    """Data times coefficients plus intercepts."""
    weights, intercepts = _numbers(node, "coefficients"), _numbers(node, "intercepts")
    if count < 1 or weights.size != count * _columns(node) or intercepts.size not in (0, count):
        raise Unable
    found = draft.add("MatMul", [node.require(0), draft.constant(weights.reshape(count, -1).T)])
    return draft.add("Add", [found, draft.constant(intercepts)]) if intercepts.size else found


def _regress(node: Node, draft: Draft) -> None:
    _scores(node, draft, 0, _sums(node, draft, int(node.attr("targets", 1))))


def _classify(node: Node, draft: Draft) -> None:
    labels = list(node.attr("classlabels_ints", []))
    if len(labels) < 2 or _numbers(node, "intercepts").size != len(labels):
        raise Unable
    sums = _sums(node, draft, len(labels))
    _label(node, draft, sums, labels, len(labels))
    _scores(node, draft, 1, sums)


_WRITERS: dict[str, Callable[[Node, Draft], None]] = dict(
    zip(_LINEAR, (_classify, _regress, _normalize, _scale), strict=True)
)

# -- trees
_COMPARISONS = {
    "BRANCH_LEQ": "LessOrEqual",
    "BRANCH_LT": "Less",
    "BRANCH_GTE": "GreaterOrEqual",
    "BRANCH_GT": "Greater",
}


def _trees(node: Node, draft: Draft) -> None:
    classifies = node.op_type == "TreeEnsembleClassifier"
    paths, comparison = _paths(node)
    leaves, count = _leaf_weights(node, "class" if classifies else "target")
    inner = max(1, *(len(branches) for branches, _ in paths))
    ends = max(len(found) for _, found in paths)
    read = {branch[0] for branches, _ in paths for branch in branches.values()}
    if not is_small(len(paths), inner, ends) or not is_small(len(paths), ends, count):
        raise Unable
    if not read <= {*range(_columns(node))}:
        raise Unable
    turns, right = (
        np.zeros((len(paths), inner, ends), np.float32),
        np.full((len(paths), 1, ends), -1, np.float32),
    )
    weights = np.zeros((len(paths), ends, count), np.float32)
    given = np.zeros(weights.shape, bool)
    features, thresholds = np.zeros((len(paths), inner), np.int64), np.zeros((len(paths), inner), np.float32)
    missing = np.zeros((len(paths), inner), bool)
    for tree, (branches, found) in enumerate(paths):
        for place, (feature, threshold, tracks) in enumerate(branches.values()):
            features[tree, place], thresholds[tree, place], missing[tree, place] = feature, threshold, tracks
        order = list(branches)
        for place, (leaf, path) in enumerate(found.items()):
            right[tree, 0, place] = sum(taken for _, taken in path)
            for branch, taken in path:
                turns[tree, order.index(branch), place] = 1 if taken else -1
            for number, weight in leaves.get(leaf, {}).items():
                weights[tree, place, number], given[tree, place, number] = weight, True
    bases = _numbers(node, "base_values")
    if classifies and (
        bases.size or count < 3 or weights.min() < 0 or not weights.sum(2)[right[:, 0] >= 0].all()
    ):
        raise Unable
    whole = np.logical_or(given, right[:, 0, :, None] < 0).all(1).any(0)
    if bases.size and (bases.size != count or not whole.all()):  # ONNX Runtime adds them to what has a weight
        raise Unable
    values = draft.add("Gather", [node.require(0), draft.integers(features.reshape(-1))], axis=1)
    taken = draft.add(comparison, [values, draft.constant(thresholds.reshape(-1))])
    if missing.any():
        lacking = draft.add("And", [draft.add("IsNaN", [values]), draft.constant(missing.reshape(-1))])
        taken = draft.add("Or", [taken, lacking])
    split = draft.reshape(draft.cast(taken, TensorProto.FLOAT), [-1, len(paths), inner])
    counts = draft.add("MatMul", [draft.add("Transpose", [split], perm=[1, 0, 2]), draft.constant(turns)])
    reached = draft.cast(draft.add("Equal", [counts, draft.constant(right)]), TensorProto.FLOAT)
    sums = draft.sum(draft.add("MatMul", [reached, draft.constant(weights)]), [0])
    if bases.size:
        sums = draft.add("Add", [sums, draft.constant(bases)])
    if classifies:
        _label(node, draft, sums, list(node.attr("classlabels_int64s", [])), count)
    _scores(node, draft, int(classifies), sums)


def _paths(node: Node) -> tuple[list[tuple[dict[int, Any], dict[tuple[int, int], Any]]], str]:
    """For each tree its branches (feature, threshold, whether NaN is true) and paths to leaves; the comparison."""
    names = ("treeids", "nodeids", "featureids", "truenodeids", "falsenodeids")
    trees, ids, features, true, false = (list(node.attr(f"nodes_{name}", [])) for name in names)
    modes = [m.decode() if isinstance(m, bytes) else m for m in node.attr("nodes_modes", [])]
    thresholds, tracks = (
        _numbers(node, "nodes_values"),
        list(node.attr("nodes_missing_value_tracks_true", [])),
    )
    tracks = tracks or [0] * len(ids)
    if not ids or {len(found) for found in (trees, features, true, false, modes, thresholds, tracks)} != {
        len(ids)
    }:
        raise Unable
    comparisons = {mode for mode in modes if mode != "LEAF"} or {"BRANCH_LEQ"}
    if len(comparisons) != 1 or not comparisons <= set(_COMPARISONS):
        raise Unable
    if _text(node, "aggregate_function", "SUM") != "SUM" or len(set(zip(trees, ids, strict=True))) != len(
        ids
    ):
        raise Unable
    places = {key: place for place, key in enumerate(zip(trees, ids, strict=True))}
    found = []
    for tree in dict.fromkeys(trees):
        branches: dict[int, Any] = {}
        leaves: dict[tuple[int, int], Any] = {}
        stack: list[tuple[int, Any]] = [(next(i for t, i in places if t == tree), ())]
        while stack:
            name, path = stack.pop()
            place = places.get((tree, name))
            if place is None or name in branches or (tree, name) in leaves:
                raise Unable
            if modes[place] == "LEAF":
                leaves[tree, name] = path
                continue
            branches[name] = (features[place], thresholds[place], tracks[place])
            stack += [(false[place], (*path, (name, 0))), (true[place], (*path, (name, 1)))]
        if len(branches) + len(leaves) != trees.count(tree):
            raise Unable
        found.append((branches, leaves))
    return found, _COMPARISONS[comparisons.pop()]


def _leaf_weights(node: Node, kind: str) -> tuple[dict[tuple[int, int], dict[int, Any]], int]:
    """The weights of each leaf by target or class, and how many of these there are."""
    trees, ids, places = (list(node.attr(f"{kind}_{name}", [])) for name in ("treeids", "nodeids", "ids"))
    count = int(node.attr("n_targets", 1)) if kind == "target" else len(node.attr("classlabels_int64s", []))
    weights = _numbers(node, f"{kind}_weights")
    if (
        not count
        or {len(trees), len(places), len(weights)} != {len(ids)}
        or not all(0 <= i < count for i in places)
    ):
        raise Unable
    found: dict[tuple[int, int], dict[int, Any]] = {}
    for tree, name, place, weight in zip(trees, ids, places, weights, strict=True):
        if place in found.setdefault((tree, name), {}):
            raise Unable
        found[tree, name][place] = weight
    return found, count


_X = '<ir_version: 9, opset_import: ["" : 18, "ai.onnx.ml" : 3]> g (float[N,2] x) => '
_fixed = partial(Fixed, safety=Safety.NUMERIC)
_flagged = partial(Flagged, safety=Safety.NUMERIC)
_ROWS = "coefficients = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0], intercepts = [0.5, 0.0, 1.0]"


def _foreign(y: str, call: str) -> str:
    return f"""<ir_version: 9, opset_import: ["" : 18, "my" : 1]> g (float[N,2] x) => (float[{y}] y) {{
        y = {call}(x) }}"""


linear_model.examples = [
    Flagged(
        "a dynamic number of features, which may not be that of the coefficients",
        f"{_X.replace('N,2', 'N,D')}(float[N,3] y) {{ y = ai.onnx.ml.LinearRegressor<{_ROWS}, targets = 3>(x) }}",
        safety=Safety.NUMERIC,
        runs=False,
    ),
    _fixed(
        "a Scaler",
        before=f"{_X}(float[N,2] y) {{ y = ai.onnx.ml.Scaler<offset = [1.0, 2.0], scale = [0.5, 2.0]>(x) }}",
        after=f"{_X}(float[N,2] y) <float[2] o = {{1, 2}}, float[2] s = {{0.5, 2}}> {{ a = Sub(x, o)  y = Mul(a, s) }}",
    ),
    _fixed(
        "a Normalizer; rows of zeros stay",
        before=f'{_X}(float[N,2] y) {{ y = ai.onnx.ml.Normalizer<norm = "L1">(x) }}',
        after=f"""{_X}(float[N,2] y) <int64[1] a = {{1}}, float z = {{0}}, float o = {{1}}> {{
            n = ReduceL1<keepdims = 1>(x, a)  e = Equal(n, z)  d = Where(e, o, n)  y = Div(x, d) }}""",
    ),
    _fixed(
        "a LinearRegressor of three targets",
        before=f"{_X}(float[N,3] y) {{ y = ai.onnx.ml.LinearRegressor<{_ROWS}, targets = 3>(x) }}",
        after=f"""{_X}(float[N,3] y) <float[2,3] w = {{1, 3, 5, 2, 4, 6}}, float[3] b = {{0.5, 0, 1}}> {{
            m = MatMul(x, w)  s = Add(m, b)  y = Identity(s) }}""",
    ),
    _fixed(
        "a LinearClassifier with labels",
        before=f"""{_X}(int64[N] l, float[N,3] y) {{
            l, y = ai.onnx.ml.LinearClassifier<{_ROWS}, classlabels_ints = [7, 8, 9],
            post_transform = "SOFTMAX">(x) }}""",
        after=f"""{_X}(int64[N] l, float[N,3] y) <float[2,3] w = {{1, 3, 5, 2, 4, 6}}, float[3] b = {{0.5, 0, 1}},
            int64[3] c = {{7, 8, 9}}> {{ m = MatMul(x, w)  s = Add(m, b)  a = ArgMax<axis = 1, keepdims = 0>(s)
            l = Gather(c, a)  y = Softmax<axis = 1>(s) }}""",
    ),
    _flagged(
        "one row of coefficients: the label depends on a threshold",
        f"""{_X}(int64[N] l, float[N,2] y) {{ l, y = ai.onnx.ml.LinearClassifier<coefficients = [1.0, 2.0],
            intercepts = [0.5], classlabels_ints = [0, 1]>(x) }}""",
    ),
    _flagged("the norm MAX", f"{_X}(float[N,2] y) {{ y = ai.onnx.ml.Normalizer(x) }}"),
    Silent("an operator of another domain", _foreign("N,2", "my.Scaler"), runs=False),
]


def _tree(names: str, modes: str = "BRANCH_LEQ") -> str:
    """x[1] compared with 0.5, then x[0] with -1; and a tree of one leaf."""
    return f"""nodes_treeids = [0, 0, 0, 0, 0, 1], nodes_nodeids = [0, 1, 2, 3, 4, 0],
        nodes_featureids = [1, 0, 0, 0, 0, 0], nodes_values = [0.5, 0.0, -1.0, 0.0, 0.0, 0.0],
        nodes_truenodeids = [1, 0, 3, 0, 0, 0], nodes_falsenodeids = [2, 0, 4, 0, 0, 0],
        nodes_modes = ["{modes}", "LEAF", "{modes}", "LEAF", "LEAF", "LEAF"], {names}_treeids = [0, 0, 0, 1],
        {names}_nodeids = [1, 3, 4, 0], {names}_ids = [0, %s, %s, 0],
        {names}_weights = [1.0, 2.0, 3.0, 0.5]"""


_COUNT = """float[2,1,3] r = {1, 1, 0, 0, -1, -1}, float[2,2,3] t = {1, -1, -1, 0, 1, -1, 0, 0, 0, 0, 0, 0},
    int64[4] f = {1, 0, 0, 0}, float[4] v = {0.5, -1, 0, 0}, int64[3] s = {-1, 2, 2}, int64[1] z = {0}"""
_REACH = """g0 = Gather<axis = 1>(x, f)  b = %s(g0, v)  h = Cast<to = FLOAT>(b)  k = Reshape(h, s)
    p = Transpose<perm = [1, 0, 2]>(k)  n = MatMul(p, t)  e = Equal(n, r)  q = Cast<to = FLOAT>(e)  o = MatMul(q, w)
    u = ReduceSum<keepdims = 0>(o, z)"""

tree_ensemble.examples = [
    _fixed(
        "a regressor of two trees",
        before=f"""{_X}(float[N,1] y) {{
            y = ai.onnx.ml.TreeEnsembleRegressor<{_tree("target") % (0, 0)}, n_targets = 1>(x) }}""",
        after=f"""{_X}(float[N,1] y) <{_COUNT}, float[2,3,1] w = {{1, 2, 3, 0.5, 0, 0}}> {{
            {_REACH % "LessOrEqual"}  y = Identity(u) }}""",
    ),
    _fixed(
        "a classifier with labels, other comparisons and scores",
        before=f"""{_X}(int64[N] l, float[N,3] y) {{ l, y = ai.onnx.ml.TreeEnsembleClassifier<
            {_tree("class", modes="BRANCH_GT") % (1, 2)}, classlabels_int64s = [7, 8, 9],
            post_transform = "SOFTMAX">(x) }}""",
        after=f"""{_X}(int64[N] l, float[N,3] y) <{_COUNT}, int64[3] c = {{7, 8, 9}},
            float[2,3,3] w = {{1, 0, 0, 0, 2, 0, 0, 0, 3, 0.5, 0, 0, 0, 0, 0, 0, 0, 0}}> {{ {_REACH % "Greater"}
            a = ArgMax<axis = 1, keepdims = 0>(u)  l = Gather(c, a)  y = Softmax<axis = 1>(u) }}""",
    ),
    _flagged(
        "two classes, whose label ONNX Runtime takes by a threshold",
        f"""{_X}(int64[N] l, float[N,2] y) {{ l, y = ai.onnx.ml.TreeEnsembleClassifier<
            {_tree("class") % (1, 1)}, classlabels_int64s = [7, 8]>(x) }}""",
    ),
    _flagged(
        "the mean of trees",
        f"""{_X}(float[N,1] y) {{ y = ai.onnx.ml.TreeEnsembleRegressor<
            {_tree("target") % (0, 0)}, n_targets = 1, aggregate_function = "AVERAGE">(x) }}""",
    ),
    Silent("an operator of another domain", _foreign("N,1", "my.TreeEnsembleRegressor"), runs=False),
]
