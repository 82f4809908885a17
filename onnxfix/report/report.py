"""The report of a run as frozen records, with JSON by ``Report.to_json``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cached_property
from importlib import metadata
from typing import TYPE_CHECKING, Any, ClassVar

from onnxfix._version import __version__
from onnxfix.errors import UsageError, decoded
from onnxfix.report.findings import COLUMNS, Suppressed, Vanished, row_of
from onnxfix.report.findings import AppliedFix as AppliedFix
from onnxfix.report.findings import Finding as Finding
from onnxfix.report.findings import Withdrawn as Withdrawn
from onnxfix.report.summary import Summary, summarize
from onnxfix.rule import Severity
from onnxfix.runtime.causes import Problem
from onnxfix.shown import Shown, pandas_for

if TYPE_CHECKING:
    from onnx import ModelProto

    from onnxfix.files.lazy import Pending
    from onnxfix.proof.verdict import Executed, RungResult
    from onnxfix.proof.verify import Verdict
    from onnxfix.report.findings import Picture
    from onnxfix.tensorrt.reading import Reading
    from onnxfix.tensorrt.records import Partition, TrtBuild
    from onnxfix.verbs.difference.records import ModelDifference
    from onnxfix.verbs.intake import Intake, Stopped

SCHEMA = 2
"""Version of the JSON report; it increases when a field changes its meaning or is removed."""
UNWRITTEN = ("pending", "pictures")
"""Fields of ``Report`` that the JSON report leaves out."""
FailOn = Severity | str | None
"""The least severity of a finding that fails a run, also by name; None or "never" for none."""
Errors = Sequence[tuple[str, str]]
"""Path and message of each model that could not be processed; an empty path is about the whole call."""
_RUNTIMES = ("", "-gpu", "-directml", "-openvino", "-qnn", "-rocm", "-migraphx", "-training")
_BY_ONNX = ("contract", "symbolic", "reference", "trt-build")
"""Checks that do not use ONNX Runtime: a report with no others omits its version."""


@dataclass(frozen=True)
class Fixed:
    """A dimension or input that specializing made constant. ``kind`` is "dimension" or "input"; ``value`` is a size, or
    an input's value if that is short, otherwise its type and shape. ``kept``: the input still exists, unused."""

    kind: str
    name: str
    value: str
    dtype: str = ""
    shape: tuple[int, ...] = ()
    kept: bool = False


@dataclass(frozen=True)
class StepDone:
    """A whole-model step, such as ``--simplify``.

    ``status`` is "taken" or "dropped"; ``reason`` is what was proven about its result, or why it was dropped. The
    ``safety`` of a step that was taken is "exact" (it changed nothing), "numeric" or "unsafe". Node counts include
    subgraphs and functions. ``fixed`` is what specializing (``--fix-dim``, ``--fix-input``, ``--static``) made
    constant; the verdict says what was proven about it, and for which inputs.
    """

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
class DataFile:
    """A file beside the result that has weights of it, and its size. ``kind`` is "own" (the result's alone), "kept"
    (``--in-place``), or "shared" (the original's, with ``--share-data``; ``sha256`` is its hash)."""

    path: str
    bytes: int
    kind: str
    sha256: str = ""


@dataclass(frozen=True)
class NodeCounts:
    """The nodes of a model, in subgraphs and functions too.

    ``operators`` are all but ONNX's Constant, which computes nothing: name (with the domain, if that is not ONNX's) ->
    count, the most frequent first. ``weights`` are the bytes of stored tensors by element type, the most first.
    """

    operators: Mapping[str, int]
    constants: int = 0
    weights: Mapping[str, int] = field(default_factory=dict)

    RENDERED: ClassVar[tuple[str, ...]] = ("compute",)

    @property
    def compute(self) -> int:
        """How many nodes compute something."""
        return sum(self.operators.values())


@dataclass(frozen=True, repr=False)
class Report(Shown):
    """The report on one model. ``print`` shows it as the command line does, and a notebook as a table.

    ``findings`` are those of the result (for ``check``: of the model); ``applied`` were fixed; ``withdrawn`` had a fix
    that failed verification. ``steps`` are the requested whole-model edits, taken or dropped. ``problems`` are faults
    of onnxfix or of a rule, or why TensorRT could not run: the report is incomplete. ``notes`` is further information.
    ``installed`` is the version of the installed TensorRT that the target was chosen for, "" for any other target.
    ``producer`` is what made the model, by its own account: "pytorch".
    ``suppressed`` are findings that a configuration or a baseline accepts, ``vanished`` those of the baseline that are
    gone. ``verdict`` is None if nothing was verified. ``headline`` is TensorRT's result on the model, where it is news.
    ``build`` is the build of a ``check``, ``network`` how TensorRT imports the model, ``partition`` how ONNX Runtime's
    TensorRT provider would cut it, ``partition_after`` the result. ``stopped`` is where an original stops that accepts
    none of the generated inputs. ``data`` are the files beside ``output`` that it needs. ``difference`` is what
    ``--diff`` would change; nothing is written. ``pending`` is the result with its weights still in the file (use
    ``model``), and ``pictures`` are the nodes around findings and fixes, where these were wanted; neither is part of
    the JSON. ``fail_on`` is the least severity of a finding that fails the run ("never": none does). ``reused``: the
    report is from an earlier run, and the model is unchanged.
    """

    path: str
    command: str
    target: str
    installed: str = ""
    producer: str = ""
    headline: str = ""
    findings: tuple[Finding, ...] = ()
    suppressed: tuple[Suppressed, ...] = ()
    vanished: tuple[Vanished, ...] = ()
    applied: tuple[AppliedFix, ...] = ()
    withdrawn: tuple[Withdrawn, ...] = ()
    steps: tuple[StepDone, ...] = ()
    verdict: Verdict | None = None
    build: TrtBuild | None = None
    network: Reading | None = None
    partition: Partition | None = None
    partition_after: Partition | None = None
    intake: Intake | None = None
    stopped: Stopped | None = None
    difference: ModelDifference | None = None
    output: str = ""
    data: tuple[DataFile, ...] = ()
    engine: str = ""
    changed: bool = False
    nodes_before: int = 0
    nodes_after: int = 0
    safety: str = ""
    operators_before: NodeCounts | None = None
    operators_after: NodeCounts | None = None
    bytes_before: int = 0
    bytes_after: int = 0
    rounds: int = 0
    seconds: float = 0.0
    problems: tuple[Problem, ...] = ()
    notes: tuple[str, ...] = ()
    reused: bool = False
    fail_on: str = "warning"
    pending: Pending | None = field(default=None, repr=False, compare=False)
    pictures: tuple[Picture, ...] = field(default=(), repr=False, compare=False)

    @property
    def model(self) -> ModelProto | None:
        """The resulting ``ModelProto``; None if there is none.

        Its weights are read from the input file on first use.

        Raises:
            ModelError: that file has been changed since.
        """
        return self.pending.model() if self.pending is not None else None

    @property
    def checks(self) -> tuple[RungResult, ...]:
        """The results of the checks, in the order in which they ran; empty if nothing was verified."""
        return self.verdict.rungs if self.verdict is not None else ()

    def check(self, name: str) -> RungResult | None:
        """The result of the check of this name; None if it was not requested."""
        return next((one for one in self.checks if one.name == name), None)

    @property
    def builds(self) -> tuple[TrtBuild, ...]:
        """TensorRT's builds of the original and, if it is another model, of the result; empty if it did not run."""
        rung = self.check("trt-build")
        return rung.builds if rung is not None else (self.build,) if self.build is not None else ()

    @property
    def networks(self) -> tuple[Reading, ...]:
        """How TensorRT imports the original and, if it is another model, the result; empty if it did not run."""
        rung = self.check("trt-network")
        return rung.networks if rung is not None else (self.network,) if self.network is not None else ()

    @property
    def executed(self) -> Executed | None:
        """The comparison of executed engines of the original and of the result; None if none was executed."""
        rung = self.check("trt-gpu")
        return rung.executed if rung is not None else None

    @property
    def righted(self) -> bool:
        """Whether TensorRT imports the original differently, and the result correctly."""
        return len(self.networks) > 1 and [one.status for one in self.networks] == ["differs", "agrees"]

    @property
    def won(self) -> bool:
        """Whether TensorRT does not build the original, but builds the result."""
        if len(self.builds) < 2 or not self.builds[0].judged:
            return False
        return not self.builds[0].accepted and self.builds[-1].accepted

    @property
    def renamed(self) -> bool:
        """Whether the output says something else of its data files than the input, were it otherwise unchanged."""
        return any(one.kind in ("own", "shared") for one in self.data)

    @cached_property
    def summary(self) -> Summary:
        """The facts that every rendering of the report shows."""
        return summarize(self)

    @property
    def versions(self) -> dict[str, str]:
        """The versions of the packages that were used: distribution -> version."""
        rungs = self.checks
        found = {"onnxfix": __version__, "onnx": _version("onnx")}
        if self.intake is not None or any(one.judged and one.name not in _BY_ONNX for one in rungs):
            found.update(runtimes())
        found.update((one.package, one.version) for one in self.builds)
        found.update((one.package, one.version) for one in self.networks)
        if self.partition is not None:
            found[self.partition.package] = self.partition.version
        if self.executed is not None:
            found[self.executed.package] = self.executed.version
        return {name: version for name, version in found.items() if version}

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The findings of severity "error" that are left."""
        return tuple(one for one in self.findings if one.severity == "error")

    @property
    def warnings(self) -> tuple[Finding, ...]:
        """The findings of severity "warning" that are left."""
        return tuple(one for one in self.findings if one.severity == "warning")

    def by_rule(self) -> dict[str, tuple[Finding, ...]]:
        """The findings that are left by the code of their rule, the worst rules first."""
        groups: dict[str, list[Finding]] = {}
        for one in sorted(self.findings, key=lambda one: (-Severity[one.severity.upper()], one.code)):
            groups.setdefault(one.code, []).append(one)
        return {code: tuple(some) for code, some in groups.items()}

    def rows(self) -> list[dict[str, Any]]:
        """One flat dict for each finding that is left, each fix in the result, and each withdrawn fix, in this order:
        what tables are made of. ``status`` is "left", "fixed" or "withdrawn"."""
        return [
            row_of(status, one)
            for status, some in (
                ("left", self.findings),
                ("fixed", self.applied),
                ("withdrawn", self.withdrawn),
            )
            for one in some
        ]

    def to_dataframe(self) -> Any:
        """``rows`` as a ``pandas.DataFrame``.

        Raises:
            UsageError: pandas is not installed.
        """
        return pandas_for("to_dataframe").DataFrame(self.rows(), columns=COLUMNS)

    def to_dict(self) -> dict[str, Any]:
        """The report as plain dicts, lists, strings, numbers and None."""
        data = {"schema": SCHEMA, "exit_code": self.exit_code, "versions": self.versions}
        data["summary"] = plain(self.summary)
        data.update({f.name: plain(getattr(self, f.name)) for f in fields(self) if f.name not in UNWRITTEN})
        return data

    to_json = to_dict

    @property
    def exit_code(self) -> int:
        """0, 1, 2 or 3 as the command line defines them, see ``exit_code_for`` and ``fail_on``."""
        return self.exit_code_for(self.fail_on)

    def exit_code_for(self, fail_on: FailOn) -> int:
        """The exit code of ``--fail-on``: findings of this severity and worse give 1. "never" or None: none do. Of
        ``--diff``: 1 if the model would change, whatever is left.

        Raises:
            UsageError: there is no such severity.
        """
        least = least_severity(fail_on)
        if self.verdict is not None and not self.verdict.passed:
            return 3
        if self.problems:
            return 2
        if self.difference is not None:
            return int(self.changed)
        if self.withdrawn or any(step.status == "dropped" for step in self.steps):
            return 1
        worst = max((Severity[f.severity.upper()] for f in self.findings), default=None)
        return int(least is not None and worst is not None and worst >= least)

    def _facts(self) -> dict[str, object]:
        facts: dict[str, object] = {"path": self.path, "command": self.command, "ok": self.ok}
        if self.verdict is not None:
            facts["verified"] = self.verdict.passed and self.verdict.compared
        if self.command == "apply":
            facts["fixed"] = len(self.applied)
        if self.command != "verify":
            counts = Counter(one.severity for one in self.findings)
            facts.update(errors=counts["error"], warnings=counts["warning"], infos=counts["info"])
        if self.withdrawn:
            facts["withdrawn"] = len(self.withdrawn)
        if self.problems:
            facts["problems"] = len(self.problems)
        if self.output:
            facts["output"] = self.output
        return facts


def least_severity(fail_on: FailOn) -> Severity | None:
    """The least severity of a finding that fails a run; None for none.

    Raises:
        UsageError: there is no such severity.
    """
    if fail_on is None or isinstance(fail_on, Severity):
        return fail_on
    names = {one.name.lower(): one for one in Severity}
    if fail_on != "never" and fail_on not in names:
        raise UsageError(f"fail_on is one of {', '.join(names)} and never, not {fail_on!r}")
    return names.get(fail_on)


def plain(value: Any) -> Any:
    """Converts frozen dataclasses and tuples to dicts and lists, and numpy scalars to Python's."""
    if is_dataclass(value) and not isinstance(value, type):
        names = [f.name for f in fields(value)] + list(getattr(value, "RENDERED", ()))
        return {name: plain(getattr(value, name)) for name in names}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    if isinstance(value, bytes):
        return decoded(value)
    if isinstance(value, float) and value != value:
        return "nan"  # JSON has no NaN and no infinities
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return "inf" if value > 0 else "-inf"
    return value.item() if hasattr(value, "item") and not isinstance(value, str) else value


def runtimes() -> dict[str, str]:
    """The installed distributions of ONNX Runtime: name -> version."""
    found = ((f"onnxruntime{kind}", _version(f"onnxruntime{kind}")) for kind in _RUNTIMES)
    return {name: version for name, version in found if version}


def _version(name: str) -> str:
    """The version of an installed distribution; "" for one that is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""
