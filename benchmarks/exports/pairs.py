"""Export and judge the pairs "In PyTorch": code that makes what a rule reports, and code that does not.

    pip install "torch==2.13.0" onnxscript onnxruntime     (beside onnxfix; no GPU)
    python benchmarks/exports/pairs.py fixtures/pytorch            all pairs of rules/onnxfix_rules/pytorch
    python benchmarks/exports/pairs.py FOLDER BRC001 CST002        these

A pair is a file with two modules, ``Before`` and ``After``, and ``inputs()``. Optional: ``inputs_after()``, where After
takes other inputs; EXPORTERS, SAFETY ("exact" or "numeric") and TARGET; OPERATORS, if the advice is only about these;
EXPORT, BEFORE and AFTER, keywords of ``torch.onnx.export``. The script prints what does not hold of each export, and
ends with 1 where anything does not.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import inspect
import io
import re
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

import onnxfix
import onnxfix_rules

PACKAGE = Path(onnxfix_rules.__file__).parent
FOLDER = PACKAGE / "pytorch"
MAX_BYTES = 10_000
ONLY = {
    "dynamo": {"dynamic_shapes", "optimize"},
    "legacy": {"dynamic_axes", "do_constant_folding", "training", "keep_initializers_as_inputs"},
}
"""Keywords that one exporter alone takes."""
PATH = re.compile(rb"(?<![\w.-])/[\w./-]+\.py|site-packages|/(?:tmp|home|root|work)/")
"""The path of a machine."""


@dataclass(frozen=True)
class Pair:
    """What a pair's file says without PyTorch."""

    code: str
    EXPORTERS: Sequence[str] = ("dynamo", "legacy")
    SAFETY: str = "exact"
    TARGET: str | None = None

    @classmethod
    def read(cls, path: Path) -> Pair:
        known = {}
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Assign) and (name := ast.unparse(node.targets[0])) in cls.__annotations__:
                known[name] = ast.literal_eval(node.value)
        return cls(path.stem.upper(), **known)

    def judge(
        self, before: onnx.ModelProto, after: onnx.ModelProto, feeds: Sequence[Sequence[Any]] = ()
    ) -> list[str]:
        """What does not hold of two exports: findings, and outputs for drawn inputs and for ``feeds``."""
        found = [_findings(model, self.TARGET) for model in (before, after)]
        faults = ["Before: not found"] * (self.code not in found[0])
        faults += ["After: still found"] * (self.code in found[1])
        new = [code for code, severity in found[1].items() if severity != "info" and code not in found[0]]
        faults += [f"After: new {code}" for code in new]
        for feed in (_draw(before), *feeds):
            if not self.equal(_run(before, feed), _run(after, feed)):
                faults.append("ONNX Runtime's outputs differ")
        for side, model in (("Before", before), ("After", after)):
            data = model.SerializeToString()
            faults += [f"{side}: names {match[0].decode()}" for match in [PATH.search(data)] if match]
            faults += [f"{side}: {len(data):,} bytes"] * (len(data) > MAX_BYTES)
        return faults

    def equal(self, before: Sequence[Any], after: Sequence[Any]) -> bool:
        """Whether the outputs are equal within the safety; types may differ."""
        return len(before) == len(after) and all(
            a.shape == b.shape and np.allclose(a, b, **self._tolerance(a), equal_nan=True)
            for a, b in zip(before, after, strict=True)
        )

    def _tolerance(self, value: Any) -> dict[str, float]:
        loose = 1e-2 if value.dtype == np.float16 else 1e-5
        return dict.fromkeys(("rtol", "atol"), 0.0 if self.SAFETY == "exact" else loose)


def _findings(model: onnx.ModelProto, target: str | None) -> Mapping[str, str]:
    return {one.code: one.severity for one in onnxfix.check(model, target=target).findings}


def _draw(model: onnx.ModelProto) -> list[Any]:
    """Numbers for the model's inputs: indices are 0 or 1, and a dynamic dimension is 3."""
    numbers = np.random.default_rng(0)
    feed = []
    for one in model.graph.input:
        tensor = one.type.tensor_type
        shape = [dim.dim_value or 3 for dim in tensor.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        floats = np.issubdtype(dtype, np.floating)
        feed.append((numbers.normal(size=shape) if floats else numbers.integers(2, size=shape)).astype(dtype))
    return feed


def _run(model: onnx.ModelProto, feed: Sequence[Any]) -> list[Any]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    types = [
        onnx.helper.tensor_dtype_to_np_dtype(one.type.tensor_type.elem_type) for one in model.graph.input
    ]
    names = [one.name for one in session.get_inputs()]
    given = [value.astype(dtype) for value, dtype in zip(feed, types, strict=True)]
    return list(session.run(None, dict(zip(names, given, strict=True))))


def export(pair: Pair) -> tuple[dict[str, tuple[onnx.ModelProto, onnx.ModelProto]], dict[str, list[str]]]:
    """The exports of Before and After by exporter, and what does not hold by exporter; eager outputs are compared, too.

    Raises:
        Exception: what the modules and exporters raise.
    """
    import torch

    file = importlib.import_module(f"onnxfix_rules.pytorch.{pair.code.lower()}")
    torch.manual_seed(0)
    feeds = [file.inputs()]
    torch.manual_seed(0)
    feeds.append(getattr(file, "inputs_after", file.inputs)())
    modules = []
    for side in (file.Before, file.After):
        torch.manual_seed(0)
        modules.append(side().eval())
    states = [module.state_dict() for module in modules]
    same = {key: states[0][key] for key, value in states[1].items() if _shape(states[0], key) == value.shape}
    modules[1].load_state_dict(states[1] | same)
    with torch.no_grad():
        eager = [_arrays(module(*feed)) for module, feed in zip(modules, feeds, strict=True)]
    exports, faults = {}, {}
    for exporter in pair.EXPORTERS:
        before, after = (
            _export(module, feed, exporter, getattr(file, "EXPORT", {}) | getattr(file, name, {}))
            for module, feed, name in zip(modules, feeds, ("BEFORE", "AFTER"), strict=True)
        )
        exports[exporter] = before, after
        faults[exporter] = pair.judge(before, after, [_arrays(feeds[0])])
        faults[exporter] += ["eager outputs differ"] * (not pair.equal(*eager))
    return exports, faults


def _shape(state: Mapping[str, Any], key: str) -> Any:
    return state[key].shape if key in state else None


def _arrays(values: Any) -> list[Any]:
    return [value.numpy() for value in (values if isinstance(values, tuple | list) else [values])]


def _export(module: Any, feed: Sequence[Any], exporter: str, options: Mapping[str, Any]) -> onnx.ModelProto:
    import torch

    others = set().union(*(names for name, names in ONLY.items() if name != exporter))
    names = list(inspect.signature(module.forward).parameters)[: len(feed)]
    options = {"input_names": names} | {key: value for key, value in options.items() if key not in others}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if exporter == "dynamo":
            program = torch.onnx.export(module, tuple(feed), dynamo=True, verbose=False, **options)
            model = program.model_proto
        else:
            file = io.BytesIO()
            torch.onnx.export(module, tuple(feed), file, dynamo=False, **options)
            model = onnx.load_model_from_string(file.getvalue())
    _shorten(model, [f"{Path(torch.__file__).parent.parent}/", f"{PACKAGE.parent}/"])
    return model


def _shorten(message: Any, folders: Sequence[str]) -> None:
    """Remove the folders from all strings of a message."""
    for field, value in message.ListFields():
        for one in value if isinstance(value, Sequence) else [value]:
            if field.message_type:
                _shorten(one, folders)
        if field.type == field.TYPE_STRING and isinstance(value, str):
            for folder in folders:
                value = value.replace(folder, "")
            setattr(message, field.name, value)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("codes", nargs="*")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    failed = False
    for path in sorted(FOLDER.glob("*.py")):
        pair = Pair.read(path)
        if given.codes and pair.code not in given.codes:
            continue
        try:
            exports, faults = export(pair)
        except Exception as error:
            failed = True
            print(f"{pair.code}: {type(error).__name__}: {str(error).strip()[:600]}")
            continue
        for exporter, sides in exports.items():
            for side, model in zip(("before", "after"), sides, strict=True):
                onnx.save(model, given.out / f"{path.stem}.{side}.{exporter}.onnx")
            failed |= bool(faults[exporter])
            print(f"{pair.code} {exporter}: {'; '.join(faults[exporter]) or 'holds'}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
