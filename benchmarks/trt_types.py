"""Which operators and element types the installed TensorRT takes: the measurement behind onnxfix/targets/measured.py.

    python benchmarks/trt_types.py            compare with onnxfix.targets; exit 1 where they differ
    python benchmarks/trt_types.py --print    the measured data, as measured.py holds them

Operators: TensorRT's own ``supports_operator`` for every operator of ONNX's main domain. Types: for each imported
operator a model of one node, parsed and built for each type that ONNX allows for its data. Nothing is executed.
"""

from __future__ import annotations

import csv
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


def _templates() -> dict[str, Template]:
    """The rows of trt_types.tsv by operator."""
    text = Path(__file__).with_suffix(".tsv").read_text(encoding="utf-8")
    rows = csv.DictReader(
        (line for line in text.splitlines() if not line.startswith("#")),
        delimiter="\t",
        quoting=csv.QUOTE_NONE,
    )
    return {
        name: Template(row["inputs"], row["call"], row["result"], row["constants"], int(row["opset"]))
        for row in rows
        for name in row["operators"].split()
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
    module = Path(__file__).stem  # `python benchmarks/trt_types.py` made it `__main__`
    with Worker() as worker:
        outcome = worker.call(f"{module}:imported", timeout=120.0, package=package, operators=operators)
    if not outcome.ok:
        raise SystemExit(outcome.message)
    found: list[str] = outcome.value
    return found


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
