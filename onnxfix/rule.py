"""What a rule is: metadata, a docstring, a generator of matches, and examples.

A rule pack needs no other module: this one also exports the model's graph, edits, shapes and types.
"""

from __future__ import annotations

import enum
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Final, Literal

from onnxfix.files import dtypes
from onnxfix.files.dtypes import INTEGERS, holds_exactly, is_float, is_integer, name_of
from onnxfix.graph.overlay import CONSTANT_LIMIT, Node, Scope, Unknown, UnknownAttribute, Use, Value, is_read
from onnxfix.graph.shared import Operator, elem_types, every_node, imported, imported_nodes, shared
from onnxfix.graph.signatures import Formal, signature, takes
from onnxfix.model import Model
from onnxfix.place import Place
from onnxfix.rewrite.edits import (
    AddInitializer,
    AddNode,
    Draft,
    Edit,
    RemoveInitializer,
    RemoveNode,
    RenameNode,
    ReplaceUses,
    SetImport,
    SetInput,
    SetOutput,
    SetValueInfo,
    SortNodes,
    defined,
    is_small,
    least_inputs,
)
from onnxfix.shapes import symbols
from onnxfix.shapes.symbols import Dim, equal
from onnxfix.targets import DEFAULT, Target

__all__ = [
    "CONSTANT_LIMIT", "INTEGERS", "NO_MODEL", "AddInitializer", "AddNode", "Context", "Dim", "Draft", "Edit",
    "Example", "Fix", "Fixed", "Flagged", "Formal", "Generator", "Match", "Model", "Node", "Operator", "Per",
    "Place", "RemoveInitializer", "RemoveNode", "RenameNode", "ReplaceUses", "Rule", "Safety", "Scope",
    "SetImport", "SetInput", "SetOutput", "SetValueInfo", "Severity", "Silent", "SortNodes", "Target",
    "Unknown", "UnknownAttribute", "Use", "Value", "defined", "dtypes", "elem_types", "equal", "every_node",
    "holds_exactly", "imported", "imported_nodes", "is_float", "is_integer", "is_read", "is_small", "least_inputs",
    "name_of", "rule", "shared", "signature", "symbols", "takes", "target_of",
]  # fmt: skip


class Safety(enum.IntEnum):
    """What a fix may change. A run applies fixes up to the level that the user allowed."""

    EXACT = 0
    """Outputs are bit-identical; on by default."""
    NUMERIC = 1
    """Outputs agree within tolerance; ``--numeric-fixes``."""
    UNSAFE = 2
    """Behavior or the interface may change; ``--unsafe-fixes``."""


class Severity(enum.IntEnum):
    """How bad a finding is for the target."""

    INFO = 0
    """Minor cost or cleanliness issue."""
    WARNING = 1
    """Rejected or wrong under stated conditions."""
    ERROR = 2
    """TensorRT rejects it or is known to compute something else."""


@dataclass(frozen=True)
class Fix:
    """A remedy as data: a ``title`` in the imperative, and edits.

    ``source`` may be a function that makes the edits. It is called once, on the first use of ``edits``, and
    never if another fix removes the node. Such a fix names the node that its edits remove in ``replaces``.
    The edits may depend on that node, on its content, on the names that exist when the round begins, and on
    values computed earlier. The rule decides whether there is a fix before the function is called.

    Two rules whose edits copy much use a function. With it `check` of 50 BatchNormalizations behind Convs (118 MB of
    weights) takes 0.06 s instead of 0.17 s, and fixing 40 nested Ifs 0.22 s instead of 0.52 s, where the difference
    grows with the square of the depth.
    """

    title: str
    source: Sequence[Edit] | Callable[[], Sequence[Edit]]
    safety: Safety = Safety.EXACT
    replaces: Node | None = None

    @cached_property
    def edits(self) -> tuple[Edit, ...]:
        """The edits, made on first use."""
        return tuple(self.source() if callable(self.source) else self.source)


@dataclass(frozen=True)
class Match:
    """One place where a rule's pattern occurs.

    ``node`` is the place; a finding about a graph input, an initializer or a whole graph names ``value`` or
    ``scope`` instead. ``reads`` lists what else the match relied on (constants, nodes further up), so that no
    other fix of the same round removes it. ``severity`` overrides the rule's.

    A rule about builds has no nodes. ``at`` is the place, and ``said`` the record of what TensorRT reported.
    ``about`` are the codes of rules that look for the same cause, most informative first (empty: no rule;
    None: unknown).
    """

    message: str
    node: Node | None = None
    value: Value | None = None
    scope: Scope | None = None
    fix: Fix | None = None
    severity: Severity | None = None
    reads: tuple[Node | Value, ...] = ()
    at: Place | None = None
    about: tuple[str, ...] | None = None
    said: object = None

    @property
    def place(self) -> Place:
        """The place of the match, as reports show it."""
        if self.at is not None:
            return self.at
        if self.node is not None:
            return self.node.at
        if self.value is not None:
            ends = self.value.producer, *(use.node for use in self.value.uses[:1])
            source = next((node.source for node in ends if node is not None), None)
            return Place(self.value.scope.trail, output=self.value.name, source=source)
        return Place(self.scope.trail if self.scope is not None else ())


Context = Literal["renamed", "branch", "function", "foreign"]
"""Where ``onnxfix.testing.check_contexts`` repeats every example: with other names, as a branch of an If, as the body
of a local function, and with nodes that call local functions of their operators' names."""


@dataclass(frozen=True)
class Example:
    """A model in ONNX's text format that shows what a rule does: ``Fixed``, ``Flagged`` or ``Silent``.

    ``before`` is the graph (and functions) only; ``opset`` and ``ir_version`` make the header unless it starts with
    ``<``. It may be a function that returns a ModelProto instead, for models that the text format cannot express.
    """

    why: str
    before: str | Callable[[], Any]
    after: str | None = field(default=None, init=False)
    safety: Safety = field(default=Safety.EXACT, kw_only=True)
    """The level of fixes that is allowed in the example."""
    opset: int = field(default=18, kw_only=True)
    ir_version: int = field(default=9, kw_only=True)
    target: str | None = field(default=None, kw_only=True)
    """A target's name; the default target where it is None."""
    runs: bool = field(default=True, kw_only=True)
    """False if no backend can run the model (invalid on purpose). The interface is still checked."""
    differs: Mapping[Context, str] = field(default_factory=dict, kw_only=True, hash=False)
    """Contexts of ``onnxfix.testing.check_contexts`` in which the rule correctly does otherwise, and why."""
    found: ClassVar[bool] = False
    """Whether the rule reports a finding."""


@dataclass(frozen=True)
class Fixed(Example):
    """The rule reports the model ``before`` and its fix makes ``after`` of it."""

    after: str = field()
    found: ClassVar[bool] = True


@dataclass(frozen=True)
class Flagged(Example):
    """The rule reports the model, and there is no fix at the example's ``safety``."""

    found: ClassVar[bool] = True


@dataclass(frozen=True)
class Silent(Example):
    """The rule reports nothing."""


def target_of(model: Model) -> Target:
    """The target to judge for: that of the run; of several releases each in turn, then for fixes what all take."""
    target: Target | None = model.target
    return DEFAULT if target is None else target


Generator = Callable[..., Iterator[Match]]
Per = Literal["node", "scope", "model", "build", "network", "execution", "validity"]
NO_MODEL: Final = ("build", "network", "execution", "validity")
"""Values of ``per`` for rules that are not about a model. These rules have no fixes and no examples."""


@dataclass(eq=False, repr=False)
class Rule:
    """A rule as the engine sees it. Make one with ``@rule``.

    ``examples`` are its tests and documentation. They are assigned below the rule, so that the logic comes first in a
    file; the other fields do not change.
    """

    code: str
    name: str
    generate: Generator
    per: Per
    ops: tuple[tuple[str, str], ...]
    safety: Safety | None
    severity: Severity
    default: bool
    doc: str
    module: str = ""
    general: bool = False
    hazards: tuple[int, ...] = ()
    types: tuple[int, ...] = ()
    alike: tuple[str, ...] = ()
    differs: Mapping[Context, str] = field(default_factory=dict)
    examples: Sequence[Example] = field(default_factory=list)

    @property
    def summary(self) -> str:
        """The docstring's first line."""
        return self.doc.split("\n", 1)[0].strip()

    def __repr__(self) -> str:
        safety = self.safety.name.lower() if self.safety is not None else "none"
        return f"Rule({self.code!r}, {self.name!r}, severity={self.severity.name.lower()!r}, fix={safety!r})"


# Long because: each argument is explained here, where rules' authors look.
def rule(
    code: str,
    *,
    ops: Sequence[str] = (),
    per: Per = "node",
    safety: Safety | None = None,
    severity: Severity = Severity.WARNING,
    default: bool = True,
    general: bool = False,
    hazards: Sequence[int] = (),
    types: Sequence[int] = (),
    alike: Sequence[str] = (),
    differs: Mapping[Context, str] | None = None,
) -> Callable[[Generator], Rule]:
    """Turn a generator into a rule.

    Args:
        code: family and number, such as ``CST001``.
        ops: operators the rule looks at (``Cast``, ``com.microsoft::Gelu``); for ``per="node"`` only. ``"*"`` is
            every operator of every domain. Names without domain mean ONNX's own operators, never a local
            function that has the name.
        per: what the generator is called with: ``(node, model)``, ``(scope, model)``, ``(model)``,
            ``(build)``, ``(network)`` or ``(original, fixed)``. A build is a ``TrtBuild`` (TensorRT's build
            of the model), a network a ``Reading`` (TensorRT's import of it), and ``original`` and ``fixed``
            are ``Checked`` (onnx.checker's results).
        safety: of its fixes; None for a rule that only detects. The fix of a match can override it.
        severity: of its findings. A match can override it.
        default: False for a rule that runs only when it is selected by its code.
        general: True for a rule that other rules may explain better. Its findings give way to findings of
            other rules that are as severe and about the same node.
        hazards: numbers of the entries of ``docs/hazards.md`` that the rule covers. A rule that fits no entry
            has none, and stands in the last table of that page.
        types: element types (TensorProto numbers). If no value of the model has one of them, the rule cannot
            match, and is neither imported nor run. This only saves time. Empty: the rule always runs.
        alike: codes of rules that may find the same cause at the same place. Only one of these findings is
            listed: the one with the safest fix, and in a tie the other rule's.
        differs: contexts of ``onnxfix.testing.check_contexts`` in which its examples need not hold, and why.
            For example, a rule about the model's outputs does not apply to the outputs of a branch.
            ``Example.differs`` is the same for one example.
    """

    def wrap(generate: Generator) -> Rule:
        keys = []
        for op in ops:
            domain, _, op_type = op.rpartition("::")
            keys.append(("" if domain == "ai.onnx" else domain, op_type))
        return Rule(
            code=code,
            name=generate.__name__.replace("_", "-"),
            generate=generate,
            per=per,
            ops=tuple(keys),
            safety=safety,
            severity=severity,
            default=default,
            doc=inspect.getdoc(generate) or "",
            module=generate.__module__,
            general=general,
            hazards=tuple(hazards),
            types=tuple(map(int, types)),
            alike=tuple(alike),
            differs=dict(differs or {}),
        )

    return wrap
