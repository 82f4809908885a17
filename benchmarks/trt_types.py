"""Which operators and element types the installed TensorRT takes: the measurement behind onnxfix/targets/measured.py.

    python benchmarks/trt_types.py            compare with onnxfix.targets; exit 1 where they differ
    python benchmarks/trt_types.py --print    the measured data, as measured.py holds them

Operators: TensorRT's own ``supports_operator`` for every operator of ONNX's main domain. Types: for each imported
operator a model of one node, parsed and built for each type that ONNX allows for its data. Nothing is executed.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import onnx.defs
from command import parser_of

from onnxfix.files import dtypes
from onnxfix.runtime.sandbox import Worker
from onnxfix.targets import measured
from onnxfix.tensorrt.build import attempt

#: Types that TensorRT has, as ONNX calls them; float64 it reads as float32.
TYPES = ("FLOAT", "FLOAT16", "BFLOAT16", "INT32", "INT64", "BOOL", "INT8", "UINT8", "FLOAT8E4M3FN", "DOUBLE")


@dataclass(frozen=True)
class Template:
    """A model of one node in ONNX text: ``T`` stands for the type. ``result`` is the output's type."""

    inputs: str
    call: str
    result: str = "T"
    constants: str = ""
    opset: int = 0

    def model(self, operator: str, type_name: str) -> onnx.ModelProto:
        """The model for one type.

        Raises:
            onnx.shape_inference.InferenceError: ONNX allows no such type here.
        """
        number = int(onnx.TensorProto.DataType.Value(type_name))
        words = {
            "T": dtypes.name_of(number),
            "OP": operator,
            "DTYPE": number,
            "FMOD": int(dtypes.is_float(number)),
        }
        values = f"<{self.constants}>" if self.constants else ""
        opset = self.opset or min(onnx.defs.onnx_opset_version(), LATEST)
        text = (
            f'<ir_version: 10, opset_import: ["" : {opset}]> '
            f"g ({self.inputs}) => ({self.result} y) {values} {{ {self.call} }}"
        )
        model = onnx.parser.parse_model(re.sub(r"\b(T|OP|DTYPE|FMOD)\b", lambda m: str(words[m[0]]), text))
        model.graph.output[0].type.tensor_type.ClearField("shape")
        return onnx.shape_inference.infer_shapes(model, check_type=True)


#: What onnx 1.23 ends with: later opsets may change what a template means.
LATEST = 27
_X = "T[2,3] x"
_IMAGE = "T[1,4,8,8] x"


def _templates() -> dict[str, Template]:
    found = {name: Template(_X, "y = OP(x)") for name in _UNARY.split()}
    found |= {name: Template(_X, "y = OP(x)", "bool") for name in ("IsInf", "IsNaN")}
    found |= {name: Template(_X, "y = OP(x)", "int64") for name in ("NonZero", "Shape", "Size")}
    found |= {name: Template(f"{_X}, T[2,3] z", "y = OP(x, z)") for name in _BINARY.split()}
    found |= {name: Template(f"{_X}, T[2,3] z", "y = OP(x, z)", "bool") for name in _COMPARE.split()}
    found |= {name: Template(_IMAGE, "y = OP(x)") for name in _IMAGES.split()}
    found |= {name: Template(_IMAGE, "y = OP<kernel_shape=[2,2]>(x)") for name in _POOLS.split()}
    found |= {name: Template(_X, "y = OP<axis=1>(x)", "int64") for name in ("ArgMax", "ArgMin")}
    found |= {name: Template(_X, "y = OP(x, a)", constants="int64[1] a = {1}") for name in _REDUCE.split()}
    found |= {
        name: Template("T[5,1,4] x, T[1,K,4] w, T[1,K,3] r".replace("K", str(3 * gates)),
                       "y = OP<hidden_size=3>(x, w, r)")
        for name, gates in (("RNN", 1), ("GRU", 3), ("LSTM", 4))
    }  # fmt: skip
    found |= {
        name: Template("T[8] x", "w = OP<output_datatype=DTYPE>(k)  y = Mul(x, w)", constants="int64 k = {8}")
        for name in ("BlackmanWindow", "HammingWindow", "HannWindow")
    }
    return found | _SPECIAL


_UNARY = (
    "Abs Acos Acosh Asin Asinh Atan Atanh Ceil Celu Cos Cosh Elu Erf Exp Flatten Floor Gelu HardSigmoid HardSwish "
    "Hardmax Identity LeakyRelu Log LogSoftmax LpNormalization Mish Neg Not Reciprocal Relu Round Selu Shrink "
    "Sigmoid Sign Sin Sinh Softmax Softplus Softsign Sqrt Swish Tan Tanh ThresholdedRelu Dropout Transpose "
    "RandomNormalLike RandomUniformLike EyeLike"
)
_BINARY = "Add And Div Max Mean Min Mul Or PRelu Pow Sub Sum Xor"
_COMPARE = "Equal Greater GreaterOrEqual Less LessOrEqual"
_IMAGES = "GlobalAveragePool GlobalLpPool GlobalMaxPool MeanVarianceNormalization"
_POOLS = "AveragePool LpPool MaxPool"
_REDUCE = (
    "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum "
    "ReduceSumSquare"
)
_INDICES = "int64[1,3] i = {0,1,0}"
_SPECIAL = {
    "Attention": Template("T[1,2,16,64] x, T[1,2,16,64] k, T[1,2,16,64] v", "y = OP(x, k, v)"),
    "BatchNormalization": Template("T[2,3,4,4] x, T[3] s, T[3] b, T[3] m, T[3] v", "y = OP(x, s, b, m, v)"),
    "Cast": Template(_X, "y = OP<to=1>(x)", "float"),
    "CastLike": Template(f"{_X}, float[1] z", "y = OP(x, z)", "float"),
    "CausalConvWithState": Template("T[1,4,8] x, T[4,1,3] w", "y, p = OP(x, w)"),
    "Clip": Template(f"{_X}, T a, T b", "y = OP(x, a, b)"),
    "Concat": Template(f"{_X}, T[2,3] z", "y = OP<axis=0>(x, z)"),
    "Constant": Template(_X, "c = OP<value = T[2,3] {1,0,1,0,1,1}>()  y = Concat<axis=0>(x, c)"),
    "ConstantOfShape": Template(
        _X, "c = OP<value = T[1] {1}>(s)  y = Concat<axis=0>(x, c)", constants="int64[2] s = {2,3}"
    ),
    "Conv": Template("T[1,4,8,8] x, T[2,4,3,3] w", "y = OP(x, w)"),
    "ConvTranspose": Template("T[1,4,8,8] x, T[4,2,3,3] w", "y = OP(x, w)"),
    "CumSum": Template(_X, "y = OP(x, a)", constants="int64 a = {1}"),
    "DepthToSpace": Template(_IMAGE, "y = OP<blocksize=2>(x)"),
    "DequantizeLinear": Template(
        "float[2,3] x, T[2,3] q", "d = OP(q, s)  y = Add(x, d)", "float", "float s = {0.5}"
    ),
    "Einsum": Template(f"{_X}, T[3,4] z", 'y = OP<equation="ij,jk->ik">(x, z)'),
    "Expand": Template(_X, "y = OP(x, s)", constants="int64[3] s = {2,2,3}"),
    "Gather": Template(_X, "y = OP(x, i)", constants="int64[1] i = {0}"),
    "GatherElements": Template(_X, "y = OP(x, i)", constants=_INDICES),
    "GatherND": Template(_X, "y = OP(x, i)", constants="int64[1,1] i = {1}"),
    "Gemm": Template(f"{_X}, T[3,4] z", "y = OP(x, z)"),
    "GridSample": Template("T[1,2,4,4] x, T[1,3,3,2] g", "y = OP(x, g)"),
    "GroupNormalization": Template("T[2,4,3,3] x, T[4] s, T[4] b", "y = OP<num_groups=2>(x, s, b)"),
    "If": Template(
        f"{_X}, bool c",
        "y = OP(c)<then_branch = p () => (T[2,3] u) { u = Identity(x) }, "
        "else_branch = q () => (T[2,3] v) { v = Concat<axis=0>(x) }>",
    ),
    "InstanceNormalization": Template("T[2,4,3,3] x, T[4] s, T[4] b", "y = OP(x, s, b)"),
    "LRN": Template(_IMAGE, "y = OP<size=3>(x)"),
    "LayerNormalization": Template(f"{_X}, T[3] s", "y = OP(x, s)"),
    "LinearAttention": Template(
        "T[1,4,8] x, T[1,4,8] k, T[1,4,8] v",
        'y, p = OP<q_num_heads=2, kv_num_heads=2, update_rule="linear">(x, k, v)',
    ),
    "Loop": Template(
        f"{_X}, int64 n",
        "y = OP(n, , x)<body = b (int64 i, bool c, T[2,3] v) => (bool d, T[2,3] w) "
        "{ d = Constant<value = bool {1}>()  w = Identity(v) }>",
    ),
    "MatMul": Template(f"{_X}, T[3,4] z", "y = OP(x, z)"),
    "Mod": Template(f"{_X}, T[2,3] z", "y = OP<fmod=FMOD>(x, z)"),
    "NonMaxSuppression": Template("T[1,6,4] x, T[1,1,6] s", "y = OP(x, s, n)", "int64", "int64[1] n = {3}"),
    "OneHot": Template("int64[2,3] i, T[2] v", "y = OP(i, n, v)", constants="int64 n = {4}"),
    "Pad": Template(_X, "y = OP(x, p)", constants="int64[4] p = {0,1,0,1}"),
    "QuantizeLinear": Template(_X, "y = OP(x, s, z)", "int8", "float s = {1}, int8 z = {0}"),
    "RMSNormalization": Template(f"{_X}, T[3] s", "y = OP(x, s)"),
    "RandomNormal": Template(_X, "r = OP<shape=[2,3], dtype=DTYPE>()  y = Add(x, r)"),
    "RandomUniform": Template(_X, "r = OP<shape=[2,3], dtype=DTYPE>()  y = Add(x, r)"),
    "Range": Template(
        "T[4] x", "r = OP(a, b, c)  y = Max(x, r)", constants="T a = {0}, T b = {4}, T c = {1}"
    ),
    "Reshape": Template(_X, "y = OP(x, s)", constants="int64[2] s = {3,2}"),
    "Resize": Template(_IMAGE, "y = OP(x, , s)", constants="float[4] s = {1,1,2,2}"),
    "ReverseSequence": Template(
        _X, "y = OP<time_axis=0, batch_axis=1>(x, n)", constants="int64[3] n = {1,2,1}"
    ),
    "RoiAlign": Template("T[1,2,8,8] x, T[1,4] r", "y = OP(x, r, i)", constants="int64[1] i = {0}"),
    "RotaryEmbedding": Template("T[1,2,4,8] x, T[1,4,4] c, T[1,4,4] s", "y = OP(x, c, s)"),
    "STFT": Template("T[1,16,1] x", "y = OP(x, s, , n)", constants="int64 s = {4}, int64 n = {8}"),
    "Scan": Template(
        f"T[3] s, {_X}",
        "y, o = OP<num_scan_inputs=1, body = b (T[3] a, T[3] e) => (T[3] f, T[3] g) "
        "{ f = Identity(a)  g = Identity(e) }>(s, x)",
    ),
    "Scatter": Template(f"{_X}, T[1,3] u", "y = OP(x, i, u)", constants=_INDICES, opset=10),
    "ScatterElements": Template(f"{_X}, T[1,3] u", "y = OP(x, i, u)", constants=_INDICES),
    "ScatterND": Template(f"{_X}, T[1,3] u", "y = OP(x, i, u)", constants="int64[1,1] i = {1}"),
    "Slice": Template(
        _X, "y = OP(x, s, e, a)", constants="int64[1] s = {0}, int64[1] e = {1}, int64[1] a = {0}"
    ),
    "SpaceToDepth": Template(_IMAGE, "y = OP<blocksize=2>(x)"),
    "Split": Template("T[2,4] x", "y, z = OP<axis=1, num_outputs=2>(x)"),
    "Squeeze": Template("T[2,1] x", "y = OP(x, a)", constants="int64[1] a = {1}"),
    "TensorScatter": Template("T[2,3,8,4] x, T[2,3,1,4] u, int64[2] i", "y = OP<axis=-2>(x, u, i)"),
    "Tile": Template(_X, "y = OP(x, r)", constants="int64[2] r = {2,1}"),
    "TopK": Template(_X, "y, i = OP(x, k)", constants="int64[1] k = {2}"),
    "Trilu": Template(_X, "y = OP<upper=1>(x)"),
    "Unsqueeze": Template(_X, "y = OP(x, a)", constants="int64[1] a = {0}"),
    "Upsample": Template(_IMAGE, "y = OP(x, s)", constants="float[4] s = {1,1,2,2}", opset=9),
    "Where": Template(f"bool[2,3] c, {_X}, T[2,3] z", "y = OP(c, x, z)"),
}


TEMPLATES = _templates()
#: Operators whose data is not their first input: its index, or the name of the type variable.
_DATA = {"Where": 1, "OneHot": 2, "If": "V", "Loop": "V", "Scan": "V"}


def allowed(operator: str, opset: int) -> set[str]:
    """The types of TYPES that ONNX allows for the operator's data: its first input, or its output without one."""
    schema = onnx.defs.get_schema(operator, opset)
    where = _DATA.get(operator, 0)
    inputless = not schema.inputs or operator == "ConstantOfShape" or operator.endswith(("Window", "Like"))
    inputless = inputless and operator != "CastLike"
    formal = schema.outputs[0] if inputless else schema.inputs[where if isinstance(where, int) else 0]
    variable = where if isinstance(where, str) else formal.type_str
    found = {c.type_param_str: c.allowed_type_strs for c in schema.type_constraints}.get(variable, [variable])
    return {
        name for name in TYPES if f"tensor({dtypes.name_of(onnx.TensorProto.DataType.Value(name))})" in found
    }


def one_node_models(operators: Sequence[str]) -> Iterator[tuple[str, str, onnx.ModelProto]]:
    """(operator, type, model) for each type that ONNX allows; operators without a template are left out."""
    for operator in operators:
        template = TEMPLATES.get(operator)
        if template is None or not onnx.defs.has(operator):
            continue  # TensorRT's own, or newer than this onnx
        for kind in sorted(allowed(operator, template.opset or LATEST), key=TYPES.index):
            try:
                yield operator, kind, template.model(operator, kind)
            except onnx.shape_inference.InferenceError:
                continue  # another operand of the template may not have this type


def imported(package: str, operators: Sequence[str]) -> list[str]:
    """Those of ``operators`` that the package's parser says it supports. Call it in a sandbox of its own."""
    from onnxfix.tensorrt.package import load

    trt: Any = load(package)

    class Silent(trt.ILogger):
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: Any, msg: str) -> None:
            pass

    log = Silent()
    flag = 1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
    network = trt.Builder(log).create_network(flag)
    parser = trt.OnnxParser(network, log)
    return [name for name in operators if parser.supports_operator(name)]


Answers = dict[str, dict[str, set[str]]]
"""What happened -> operator -> types."""


def measure(package: str, jobs: int, timeout: float, stride: int = 1) -> Answers:
    """Parse and build one of ``stride`` models of one node, ``jobs`` at a time."""
    models = list(one_node_models(sorted(TEMPLATES)))[::stride]

    def share(number: int) -> list[tuple[str, str, str]]:
        with Worker() as worker, tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.onnx"
            found = []
            for operator, kind, model in models[number::jobs]:
                path.write_bytes(model.SerializeToString())
                built = attempt(worker, path, package=package, timeout=timeout)
                stage = "ACCEPTED" if built.accepted else "REFUSED" if built.stage == "parse" else "UNBUILT"
                found.append((stage, operator, kind))
            return found

    answers: Answers = {"ACCEPTED": {}, "REFUSED": {}, "UNBUILT": {}}
    with ThreadPoolExecutor(jobs) as pool:
        for stage, operator, kind in (row for rows in pool.map(share, range(jobs)) for row in rows):
            answers[stage].setdefault(operator, set()).add(kind)
    return answers


def supported(package: str, operators: Sequence[str]) -> list[str]:
    """``imported``, in a sandbox.

    Raises:
        SystemExit: the package does not answer.
    """
    with Worker() as worker:
        outcome = worker.call(f"{_module()}:imported", timeout=120.0, package=package, operators=operators)
    if not outcome.ok:
        raise SystemExit(outcome.message)
    found: list[str] = outcome.value
    return found


def _module() -> str:
    return Path(__file__).stem  # `python benchmarks/trt_types.py` made this module `__main__`


def standard_operators() -> list[str]:
    """Every operator that ONNX's main domain has or had."""
    return sorted({s.name for s in onnx.defs.get_all_schemas_with_history() if s.domain == ""})


def differences(answers: Answers, imports: Sequence[str]) -> Iterator[str]:
    """Where the measurement is not what measured.py says, a line each. What was not asked makes no difference."""
    tables = {"ACCEPTED": measured.ACCEPTED, "REFUSED": measured.REFUSED, "UNBUILT": measured.UNBUILT}
    held = {(name, kind): stage for stage, table in tables.items() for name in table for kind in table[name]}
    known = {name for name, _ in held} | measured.UNKNOWN
    for name in standard_operators():
        if name in known and (name in imports) != (name not in measured.UNKNOWN):
            yield f"{name}: supports_operator says {name in imports}, measured.py {name not in measured.UNKNOWN}"
    for stage, found in answers.items():
        for name, kind in sorted((name, kind) for name, kinds in found.items() for kind in kinds):
            if held.get((name, kind)) != stage:
                yield f"{name} {kind}: {stage}, measured.py {held.get((name, kind), 'nothing')}"


def printed(answers: Answers, imports: Sequence[str]) -> Iterator[str]:
    """The measurement as measured.py writes it, groups with the most types first."""
    for stage, found in answers.items():
        groups: dict[str, list[str]] = defaultdict(list)
        for name in sorted(found):
            groups[" ".join(kind for kind in TYPES if kind in found[name])].append(name)
        yield f"{stage}:"
        yield from (
            f"  {kinds}: {' '.join(group)}"
            for kinds, group in sorted(groups.items(), key=lambda g: -len(g[0]))
        )
    yield f"UNKNOWN:\n  {' '.join(name for name in standard_operators() if name not in imports)}"


def main() -> int:
    """Run as the module's docstring says."""
    parser = parser_of(__doc__)
    parser.add_argument("--package", default="tensorrt-rtx", help="tensorrt or tensorrt-rtx")
    parser.add_argument("--print", action="store_true", help="the measurement instead of the comparison")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds for parsing, and for building")
    arguments = parser.parse_args()
    imports = supported(arguments.package, standard_operators())
    answers = measure(arguments.package, arguments.jobs, arguments.timeout)
    if arguments.print:
        print("\n".join(printed(answers, imports)))
        return 0
    lines = list(differences(answers, imports))
    count = sum(len(kinds) for found in answers.values() for kinds in found.values())
    print("\n".join([*lines, f"{len(imports)} operators, {count} models: {len(lines)} differences"]))
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main())
