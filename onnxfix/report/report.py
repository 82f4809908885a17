"""What a run found, did and proved: frozen, and JSON-able through ``Report.to_json``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Any

from onnxfix._version import __version__
from onnxfix.causes import Problem
from onnxfix.engine import Applied, Found
from onnxfix.place import Place
from onnxfix.registry import BUILT_IN
from onnxfix.rule import Rule, Severity

if TYPE_CHECKING:
    from onnx import ModelProto

    from onnxfix.files.lazy import Pending
    from onnxfix.pipeline.intake import Intake
    from onnxfix.pipeline.stopped import Stopped
    from onnxfix.trt.reading import Reading
    from onnxfix.trt.records import TrtBuild
    from onnxfix.verification.ladder import Verdict
    from onnxfix.verification.verdict import Executed

SCHEMA = 2
"""Version of the JSON report; it grows when a field changes its meaning or goes."""
WORKED_OUT = ("schema", "exit_code", "versions")
"""What the JSON report has besides the fields of ``Report``."""
_RUNTIMES = ("", "-gpu", "-directml", "-openvino", "-qnn", "-rocm", "-migraphx", "-training")
_PAGES = "docs/rules"
_BY_ONNX = ("contract", "reference", "trt-build")  # rungs that do not ask ONNX Runtime


@dataclass(frozen=True)
class Finding:
    """A hazard at a place. ``fix`` and ``safety`` are empty where there is no remedy.

    ``confirmed`` is what TensorRT itself said of the same thing at the same place, "" where it was not asked or said
    nothing. ``on_engine``: an engine of the model was executed, and was wrong for this. ``pointer`` of a finding that
    is TensorRT's says which rule helps. ``rule_url`` is the rule's page in onnxfix's repository, "" for another pack's.
    """

    code: str
    name: str
    severity: str
    place: Place
    message: str
    fix: str = ""
    safety: str = ""
    confirmed: str = ""
    on_engine: bool = False
    pointer: str = ""
    rule_url: str = ""


@dataclass(frozen=True)
class AppliedFix:
    """A fix that is in the result. ``confirmed`` is what TensorRT said of the original at that place, if anything.

    ``on_engine``: engines were executed; that of the original was wrong for what this fix repairs, and that of the
    result is right.
    """

    code: str
    name: str
    severity: str
    place: Place
    message: str
    fix: str
    safety: str
    round: int
    confirmed: str = ""
    on_engine: bool = False
    rule_url: str = ""


@dataclass(frozen=True)
class Fixed:
    """Something that specializing made a constant. ``kind`` is "dimension" or "input"; ``value`` is a size, or an
    input's value where it is short and else its type and shape. ``kept``: the input is still there, unused."""

    kind: str
    name: str
    value: str
    dtype: str = ""
    shape: tuple[int, ...] = ()
    kept: bool = False


@dataclass(frozen=True)
class StepDone:
    """A whole-model step, such as ``--simplify``. ``status`` is "taken" or "dropped", ``reason`` what was proven of
    its result or why it was dropped; ``safety`` of one that was taken is "exact" (it changed nothing), "numeric" or
    "unsafe". Nodes are counted in subgraphs and functions too. ``fixed`` is what specializing (``--fix-dim``,
    ``--fix-input``, ``--static``) made constant; what was proven of it, and for which inputs, is in the verdict."""

    name: str
    tool: str
    status: str
    reason: str
    safety: str = ""
    nodes_before: int = 0
    nodes_after: int = 0
    seconds: float = 0.0
    fixed: tuple[Fixed, ...] = ()


@dataclass(frozen=True)
class Withdrawn:
    """A fix that was undone because the model did not verify with it."""

    code: str
    place: Place
    fix: str
    reason: str


@dataclass(frozen=True)
class Report:
    """One model's run.

    ``findings`` are those that stand at the end (for ``check``: all); ``applied`` went away by a fix;
    ``withdrawn`` had a fix that failed verification. ``steps`` are the whole-model edits that were asked for, taken
    or dropped. ``problems`` are faults of onnxfix or of a rule, or why TensorRT could not run: the run is
    not to be trusted in full. ``notes`` is what a reader should know besides. ``verdict`` is None where nothing
    was to be verified. ``headline`` is TensorRT's word on the model, where that is news. ``build`` is what ``check``
    had it build, ``network`` how it reads what it imported. ``stopped`` is where the original stops that takes none of
    the inputs made for it. ``pending`` is the result with its weights still in the
    file; ask ``model`` for it. It is not part of the JSON. ``reused``: it is an earlier run's, and the model unchanged.
    """

    path: str
    command: str
    target: str
    headline: str = ""
    findings: tuple[Finding, ...] = ()
    applied: tuple[AppliedFix, ...] = ()
    withdrawn: tuple[Withdrawn, ...] = ()
    steps: tuple[StepDone, ...] = ()
    verdict: Verdict | None = None
    build: TrtBuild | None = None
    network: Reading | None = None
    intake: Intake | None = None
    stopped: Stopped | None = None
    output: str = ""
    engine: str = ""
    changed: bool = False
    nodes_before: int = 0
    nodes_after: int = 0
    rounds: int = 0
    seconds: float = 0.0
    problems: tuple[Problem, ...] = ()
    notes: tuple[str, ...] = ()
    reused: bool = False
    pending: Pending | None = field(default=None, repr=False, compare=False)

    @property
    def model(self) -> ModelProto | None:
        """The resulting ``ModelProto``; None where there is none.

        Its weights are read from the input file when it is first asked for.

        Raises:
            ModelError: that file has been written to since.
        """
        return self.pending.model() if self.pending is not None else None

    @property
    def builds(self) -> tuple[TrtBuild, ...]:
        """What TensorRT made of the original and, if that is another model, of the result; empty where not asked."""
        rung = self.verdict.rung("trt-build") if self.verdict is not None else None
        return rung.builds if rung is not None else (self.build,) if self.build is not None else ()

    @property
    def networks(self) -> tuple[Reading, ...]:
        """How TensorRT reads the original and, if that is another model, the result; empty where not asked."""
        rung = self.verdict.rung("trt-network") if self.verdict is not None else None
        return rung.networks if rung is not None else (self.network,) if self.network is not None else ()

    @property
    def executed(self) -> Executed | None:
        """What executed engines of the original and of the result showed; None where none was executed."""
        rung = self.verdict.rung("trt-gpu") if self.verdict is not None else None
        return rung.executed if rung is not None else None

    @property
    def righted(self) -> bool:
        """Whether TensorRT reads the original differently, and the result as it is."""
        return len(self.networks) > 1 and [one.status for one in self.networks] == ["differs", "agrees"]

    @property
    def won(self) -> bool:
        """Whether TensorRT did not build the original and does build the result."""
        if len(self.builds) < 2 or not self.builds[0].judged:
            return False
        return not self.builds[0].accepted and self.builds[-1].accepted

    @property
    def versions(self) -> dict[str, str]:
        """The versions of what judged: distribution -> version."""
        rungs = self.verdict.rungs if self.verdict is not None else ()
        found = {"onnxfix": __version__, "onnx": _version("onnx")}
        if self.intake is not None or any(one.judged and one.name not in _BY_ONNX for one in rungs):
            found.update((f"onnxruntime{kind}", _version(f"onnxruntime{kind}")) for kind in _RUNTIMES)
        found.update((one.package, one.version) for one in self.builds)
        found.update((one.package, one.version) for one in self.networks)
        if self.executed is not None:
            found[self.executed.package] = self.executed.version
        return {name: version for name, version in found.items() if version}

    def to_json(self, fail_on: Severity | None = Severity.WARNING) -> dict[str, Any]:
        """The report as plain dicts, lists, strings, numbers and None. ``fail_on`` is for ``exit_code``."""
        data = {"schema": SCHEMA, "exit_code": self.exit_code(fail_on), "versions": self.versions}
        data.update({f.name: plain(getattr(self, f.name)) for f in fields(self) if f.name != "pending"})
        return data

    def exit_code(self, fail_on: Severity | None = Severity.WARNING) -> int:
        """0, 1, 2 or 3 as the command line defines them; ``fail_on=None`` never fails for findings."""
        if self.verdict is not None and not self.verdict.passed:
            return 3
        if self.problems:
            return 2
        if self.withdrawn or any(step.status == "dropped" for step in self.steps):
            return 1
        worst = max((Severity[f.severity.upper()] for f in self.findings), default=None)
        return int(fail_on is not None and worst is not None and worst >= fail_on)


def plain(value: Any) -> Any:
    """Frozen dataclasses and tuples to dicts and lists, and numpy scalars to Python's."""
    if is_dataclass(value) and not isinstance(value, type):
        names = [f.name for f in fields(value)] + list(getattr(value, "RENDERED", ()))
        return {name: plain(getattr(value, name)) for name in names}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    if isinstance(value, float) and value != value:
        return "nan"  # JSON has no NaN and no infinities
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return "inf" if value > 0 else "-inf"
    return value.item() if hasattr(value, "item") and not isinstance(value, str) else value


def finding_of(found: Found) -> Finding:
    """An engine's match as a finding."""
    fix = found.match.fix
    return Finding(
        code=found.rule.code,
        name=found.rule.name,
        severity=found.severity.name.lower(),
        place=found.match.place,
        message=found.match.message,
        fix=fix.title if fix else "",
        safety=fix.safety.name.lower() if fix else "",
        rule_url=_page(found.rule),
    )


def applied_of(applied: Applied, rule: Rule) -> AppliedFix:
    """An engine's applied fix, which is the rule's, as a record."""
    key = applied.key
    return AppliedFix(
        code=key.code,
        name=rule.name,
        severity=applied.severity.name.lower(),
        place=key.place,
        message=applied.message,
        fix=key.title,
        safety=applied.safety.name.lower(),
        round=applied.round,
        rule_url=_page(rule),
    )


def _page(rule: Rule) -> str:
    return f"{_PAGES}/{rule.code}.md" if rule.module.split(".")[0] == BUILT_IN else ""


def _version(name: str) -> str:
    """The version of an installed distribution; "" for one that is not there."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""
