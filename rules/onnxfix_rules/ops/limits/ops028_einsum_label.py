"""OPS028: Einsum equations that TensorRT does not support."""

from __future__ import annotations

import string
from collections.abc import Iterator

from onnx import ModelProto, TensorProto, helper

from onnxfix.rule import Draft, Fix, Fixed, Flagged, Match, Model, Node, Safety, Severity, Silent, rule


@rule("OPS028", ops=["Einsum"], safety=Safety.EXACT, severity=Severity.ERROR, hazards=[63])
def einsum_label(node: Node, model: Model) -> Iterator[Match]:
    """An Einsum whose equation has labels other than lowercase letters.

    ## Why it matters
    ONNX allows uppercase letters, which label other axes than lowercase ones. TensorRT stops: `Invalid character(s) in
    Einsum equation: A,B,B,C,A,C`, measured with TensorRT-RTX 1.7.1. Diagonals, ellipses and three operands build there;
    OPS124 reports releases that do not take them.

    ## Fix
    Relabel with the first unused lowercase letters. Exact: labels are only names. An equation without `->` orders the
    axes of its result alphabetically, so the result is written explicitly. There is no fix for more than 26 different
    labels, or for an equation without `->` in mixed case: NumPy and the ONNX reference sort uppercase before lowercase,
    ONNX Runtime 1.31 refuses uppercase there.

    ## References
    - https://onnx.ai/onnx/operators/onnx__Einsum.html
    - https://github.com/onnx/onnx-tensorrt/blob/main/docs/operators.md
    """
    equation = node.attr("equation")
    if not isinstance(equation, str):
        return
    invalid = sorted(set(equation) - set(string.ascii_lowercase + " .,->"))
    if not invalid:
        return
    relabeled = _relabeled(equation)
    fix = None
    if relabeled is not None:
        draft = Draft(node)
        draft.set_attr(node, "equation", relabeled)
        fix = Fix(f"relabel as {relabeled}", draft.edits)
    text = f"TensorRT supports only lowercase letters in an equation, and {equation} has {', '.join(invalid)}"
    yield Match(text, node=node, fix=fix)


def _relabeled(equation: str) -> str | None:
    """The equation with lowercase labels; None if it has too many labels, or other characters."""
    labels = [c for c in equation if c not in " .,->"]
    used = sorted(set(labels))
    if len(used) > 26 or not set(used) <= set(string.ascii_letters):
        return None
    if "->" not in equation:
        if not (equation.isupper() or equation.islower()):
            return None
        free = ["..."] if "..." in equation else []
        equation += "->" + "".join([*free, *(c for c in used if labels.count(c) == 1)])
    spare = (c for c in string.ascii_lowercase if c not in used)
    names: dict[str, str] = {}
    for label in labels:
        if label.isupper() and label not in names:
            names[label] = next(spare)
    return "".join(names.get(c, c) for c in equation)


_XY = "g (float[N,3] x, float[3,4] z) => (float[N,4] y)"


def _long() -> ModelProto:
    """An outer product of 27 vectors."""
    labels = string.ascii_lowercase + "A"
    infos = [helper.make_tensor_value_info(f"x{i}", TensorProto.FLOAT, [1]) for i in range(27)]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])
    names = [info.name for info in infos]
    node = helper.make_node("Einsum", names, ["y"], equation=f"{','.join(labels)}->A")
    graph = helper.make_graph([node], "g", infos, [output])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def _einsum(attributes: str) -> str:
    return f"g (float[2,3] x) => (float[3,2] y) {{ y = Einsum<{attributes}>(x) }}"


einsum_label.examples = [
    Fixed(
        "uppercase",
        before=f'{_XY} {{ y = Einsum<equation = "BI,IO->BO">(x, z) }}',
        after=f'{_XY} {{ y = Einsum<equation = "ab,bc->ac">(x, z) }}',
    ),
    Fixed(
        "uppercase and lowercase label different axes; lowercase labels stay",
        before=f'{_XY} {{ y = Einsum<equation = "Aa,ab->Ab">(x, z) }}',
        after=f'{_XY} {{ y = Einsum<equation = "ca,ab->cb">(x, z) }}',
    ),
    Fixed(
        "with spaces and an ellipsis",
        before="""g (float[M,N,3] x, float[3,4] z) => (float[M,N,4] y) {
            y = Einsum<equation = "...K, K l -> ...l">(x, z) }""",
        after="""g (float[M,N,3] x, float[3,4] z) => (float[M,N,4] y) {
            y = Einsum<equation = "...a, a l -> ...l">(x, z) }""",
    ),
    Fixed(
        "without an arrow the result's axes are alphabetical, which becomes explicit",
        before=_einsum('equation = "KH"'),
        after=_einsum('equation = "ab->ba"'),
    ),
    Flagged("mixed case without an arrow: backends disagree on the order", _einsum('equation = "aB"')),
    Fixed(
        "without an arrow, a repeated label is summed, and the ellipsis comes first",
        before='g (float[2,3,4] x, float[3,5] z) => (float[A,B,C] y) { y = Einsum<equation = "...KL,KM">(x, z) }',
        after='g (float[2,3,4] x, float[3,5] z) => (float[A,B,C] y) { y = Einsum<equation = "...ab,ac->...bc">(x, z) }',
    ),
    Flagged("more than 26 different labels", lambda: _long(), runs=False),
    Flagged("a label that ONNX does not allow", _einsum('equation = "a1->1a"'), runs=False),
    Silent("lowercase", f'{_XY} {{ y = Einsum<equation = "ab , bc -> ac">(x, z) }}'),
    Silent(
        "the equation is an attribute of the surrounding function",
        """<ir_version: 9, opset_import: ["" : 18, "my" : 1]>
            g (float[2,3] x) => (float[3,2] y) { y = my.F<e = "AB->BA">(x) }
            <domain: "my", opset_import: ["" : 18]> F <e> (a) => (b) { b = Einsum<equation : string = @e>(a) }""",
    ),
    Silent(
        "a diagonal, an ellipsis and three operands in lowercase, which TensorRT supports",
        """g (float[3,3] x, float[2,3,3] z) => (float[3] u, float[2,3] v, float[2,3] w) {
            u = Einsum<equation = "ii->i">(x)  v = Einsum<equation = "...ii->...i">(z)
            w = Einsum<equation = "ij,bjk,kk->bi">(x, z, x) }""",
    ),
    Silent(
        "a diagonal and an ellipsis, for TensorRT 11",
        """g (float[2,3,3] z) => (float[2,3] w) { w = Einsum<equation = "...ii->...i">(z) }""",
    ),
    Silent(
        "a diagonal and an ellipsis, for TensorRT-RTX",
        """g (float[2,3,3] z) => (float[2,3] w) { w = Einsum<equation = "...ii->...i">(z) }""",
        target="rtx",
    ),
    Silent(
        "a product, for TensorRT 8",
        """g (float[2,3] x, float[3,4] w) => (float[2,4] y) { y = Einsum<equation = "ij,jk->ik">(x, w) }""",
        target="trt8.6",
    ),
]
