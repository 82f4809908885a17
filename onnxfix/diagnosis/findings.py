"""The findings of onnxfix's rules on a model, by the node that they are about."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from onnx import ModelProto

from onnxfix.lowering.convert import converted
from onnxfix.lowering.lowered import lowerable
from onnxfix.model import Model
from onnxfix.place import Place
from onnxfix.rewrite import engine
from onnxfix.rewrite.registry import registry
from onnxfix.rule import NO_MODEL, Rule, Severity
from onnxfix.targets import DEFAULT

_HALF = "PRC"
"""The family of the rules about half precision."""


@dataclass(frozen=True)
class Hazard:
    """A finding at a node. ``fix`` is the title of its fix, and ``safety`` that fix's ("exact", "numeric", "unsafe"),
    both "" where there is none. ``half``: it was found in the model as it would be in half precision, not as it is."""

    code: str
    name: str
    severity: Severity
    place: Place
    message: str
    fix: str = ""
    safety: str = ""
    half: bool = False


@dataclass(frozen=True)
class Findings:
    """All findings, by the outputs of the nodes of the main graph that they are about or that are around them."""

    by_output: Mapping[str, tuple[Hazard, ...]] = field(default_factory=dict)

    def at(self, outputs: Iterable[str]) -> tuple[Hazard, ...]:
        """The findings about the node with these outputs: the worst first, then by code."""
        found = dict.fromkeys(one for output in outputs for one in self.by_output.get(output, ()))
        return tuple(sorted(found, key=lambda one: (-one.severity, one.code)))


def collect(proto: ModelProto, base_dir: Path | None = None, low: str = "") -> Findings:
    """Run the default rules on a model, and with ``low`` "float16" those about half precision on the model in that
    precision.

    The model is not changed. A rule that fails finds nothing.

    Raises:
        ModelError: names are defined twice or not at all, or the graph has a cycle.
        OnnxfixError: the built-in rules could not be loaded.
    """
    rules = [rule for rule in registry().choose() if rule.per not in NO_MODEL]
    found = list(_check(Model(proto, base_dir), rules, half=False))
    # bfloat16 has the range of float32: what the rules say about the range of float16 does not apply.
    if low == "float16":
        rules = [rule for rule in rules if rule.code.startswith(_HALF)]
        able = lowerable(proto, "fp16", base_dir)
        halved = converted(
            proto, able, frozenset(able.slots), base_dir=base_dir, io_types="low", weights=False
        )
        found += _check(Model(halved, None), rules, half=True)
    by_output: dict[str, list[Hazard]] = {}
    for output, hazard in found:
        by_output.setdefault(output, []).append(hazard)
    return Findings({name: tuple(dict.fromkeys(some)) for name, some in by_output.items()})


def _check(model: Model, rules: list[Rule], *, half: bool) -> Iterable[tuple[str, Hazard]]:
    """The findings about nodes, each with the outputs of the node of the main graph."""
    model.target = DEFAULT
    for item in engine.check(model, rules, problems=[]):
        outer = item.match.node
        while outer is not None and outer.scope.parent is not None:
            outer = outer.scope.owner
        if outer is None or outer.scope is not model.main:
            continue
        fix = item.match.fix
        hazard = Hazard(
            item.rule.code,
            item.rule.name,
            item.severity,
            item.match.place,
            item.match.message,
            fix.title if fix is not None else "",
            fix.safety.name.lower() if fix is not None else "",
            half,
        )
        yield from (
            (value.name.removesuffix("/fp16"), hazard) for value in outer.outputs if value is not None
        )
