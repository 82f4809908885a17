"""What -v and --inputs-help add: TensorRT's builds and networks, inputs and sizes, and where a model stops."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal

from onnxfix import system
from onnxfix.report.render.words import counted

if TYPE_CHECKING:
    from onnxfix.pipeline.intake import Example, InputKind, Intake, Way
    from onnxfix.pipeline.stopped import Needed, Stopped
    from onnxfix.sizes.ranges import Range
    from onnxfix.trt.reading import Misread, Reading
    from onnxfix.trt.records import Issue, Profile, Triple, TrtBuild


def build_lines(builds: Sequence[TrtBuild]) -> Iterator[str]:
    """Lines about the builds of an original and of the fixed model, or of one model."""
    for name, build in zip(("original", "new") if len(builds) > 1 else ("build",), builds, strict=False):
        yield f"{name}: {', '.join(_build_figures(build))}"
        for number, profile in enumerate(build.profiles, 1):
            yield f"  profile {number}{' (derived)' if profile.derived else ''}: {_sizes(profile)}"
            yield f"    trtexec {' '.join(flags(profile, 'trtexec'))}"
            yield f"    polygraphy {' '.join(flags(profile, 'polygraphy'))}"
        yield from (f"  {_issue(issue)}" for issue in (*build.errors, *build.warnings))


def flags(profile: Profile, tool: Literal["trtexec", "polygraphy"]) -> list[str]:
    """The options for this optimization profile in trtexec or in Polygraphy's command line. Values of shape tensors are
    passed like shapes."""
    rows = {**profile.shapes, **profile.values}
    names = ("minShapes", "optShapes", "maxShapes")
    if tool == "polygraphy":
        names = ("trt-min-shapes", "trt-opt-shapes", "trt-max-shapes")
    found = []
    for column, name in enumerate(names):
        if tool == "trtexec":
            sizes = ",".join(f"{one}:{'x'.join(map(str, row[column]))}" for one, row in rows.items())
            found.append(f"--{name}={sizes}")
        else:
            sizes = " ".join(f"{one}:[{','.join(map(str, row[column]))}]" for one, row in rows.items())
            found.append(f"--{name} {sizes}")
    return found


def _build_figures(build: TrtBuild) -> Iterator[str]:
    yield build.result if build.accepted else f"{build.result} ({build.stage})"
    kinds = ", ".join(f"{count} {kind}" for kind, count in build.layers)
    yield f"{counted(build.layer_count, 'layer')}{f' ({kinds})' if kinds else ''}"
    yield counted(len(build.warnings), "warning")
    yield f"{build.parse_seconds:.2f} s to parse"
    if build.build_seconds:
        yield f"{build.build_seconds:.2f} s to build for compute capability {build.compute_capability}"
    if build.accepted:
        yield f"engine of {build.engine_bytes:,} bytes"


def _sizes(profile: Profile) -> str:
    shapes = [f"{name} {_span(triple)}" for name, triple in profile.shapes.items()]
    values = [f"values of {name} {_span(triple)}" for name, triple in profile.values.items()]
    return ", ".join(shapes + values)


def _span(triple: Triple) -> str:
    """``1x3..8x3, optimal 4x3``; one shape where all three are the same."""
    minimum, optimum, maximum = ("x".join(map(str, row)) or "scalar" for row in triple)
    return minimum if minimum == optimum == maximum else f"{minimum}..{maximum}, optimal {optimum}"


def _issue(issue: Issue) -> str:
    times = f" ({issue.count} times)" if issue.count > 1 else ""
    return f"{issue.severity} {issue}{times}"


def network_lines(networks: Sequence[Reading]) -> Iterator[str]:
    """Lines about the imported networks of an original and of the fixed model, or of one model."""
    for name, one in zip(("original", "new") if len(networks) > 1 else ("network",), networks, strict=False):
        yield f"{name}: {', '.join(_network_figures(one))}"
        yield from (f"  {line}" for misread in one.misreads for line in _misread_lines(misread))


def _network_figures(one: Reading) -> Iterator[str]:
    outcomes = {
        "agrees": "read correctly",
        "differs": "read differently",
        "refused": "not imported",
        "broke": "not compared, by a bug in onnxfix",
    }
    yield outcomes.get(one.status, "not compared")
    if one.reason:
        yield one.reason
    kinds = ", ".join(f"{count} {kind}" for kind, count in one.layers)
    yield f"{counted(one.layer_count, 'layer')}{f' ({kinds})' if kinds else ''}"
    parse, lift, compare = one.seconds
    yield f"{parse:.2f} s to parse, {lift:.2f} s to read back, {compare:.2f} s to compare"


def _misread_lines(misread: Misread) -> Iterator[str]:
    yield f"{'harmless' if misread.harmless else 'differs'} {misread}"
    if misread.layers:
        yield f"  layers: {', '.join(misread.layers)}"
    if misread.feed:
        yield f"  on {misread.feed}"


# ---------------------------------------------------------------------------------------------------------- inputs


_SHOWN = 8  # examples


def intake_lines(intake: Intake, verbose: bool) -> Iterator[str]:
    """Lines about inputs, sizes and examples; ``verbose`` adds the operators that require the sizes."""
    for one in intake.inputs:
        yield f"input {one.name}: {_kind(one)}"
    for way in intake.ways:
        yield from _way(way, verbose)
    yield from map(_example, intake.examples if verbose else intake.examples[:_SHOWN])


def _kind(one: InputKind) -> str:
    dims = "of unknown rank" if one.dims is None else f"[{', '.join(map(str, one.dims))}]"
    values = f"; the model distinguishes the values {', '.join(map(str, one.values))}" if one.values else ""
    limits = "".join(f"; {limit}" for limit in one.limits)
    return f"{one.type} {dims}{', optional' if one.optional else ''}{values}{limits}"


def _way(way: Way, verbose: bool) -> Iterator[str]:
    values = ", ".join(f"{name}={value}" for name, value in way.values.items())
    indent = ""
    if values:
        yield f"where {values}:"
        indent = "  "
    for one in way.sizes:
        yield f"{indent}{one.symbol}: {range_text(one)}"
        if verbose:
            yield from (f"{indent}  {reason}" for reason in one.because)
    yield from (f"{indent}{one}" for one in way.conditions)


def _example(one: Example) -> str:
    if one.ran is None:
        return f"not tried: {one.words} (ONNX Runtime is not installed)"
    return f"runs: {one.words}" if one.ran else f"fails: {one.words}: {one.reason}"


def range_text(found: Range) -> str:
    """``from 512, in steps of 32``; ``any size``; ``the same as N``."""
    if found.least is None:
        return "no valid size is known"
    if found.tied:
        return f"the same as {found.tied[0]}" if found.always_same else f"depends on {', '.join(found.tied)}"
    if found.least == found.most:
        return f"{found.least} only"
    unbounded = found.least <= 1 and found.most is None and found.step == 1
    begin = "any size" if unbounded else f"from {found.least}"
    end = f" to {found.most}" if found.most is not None else ""
    steps = f", in steps of {found.step}" if found.step > 1 else ""
    return f"{begin}{end}{steps}"


# --------------------------------------------------------------------------------------------- where a model stops


_FILE = "inputs.npz"


_EXPORT_AGAIN = (
    "the fault is in the original: export it again, with PyTorch's other exporter or another opset"
)


def stopped_lines(found: Stopped, path: str, command: str) -> Iterator[str]:
    """Lines for a run of ``command`` on the model at ``path``."""
    if not found.loaded:
        yield f"ONNX Runtime does not load the original, with any inputs: {found.said}"
        if not found.gap:
            yield _EXPORT_AGAIN
        return
    sizes = ", ".join(f"{name}={size}" for name, size in found.fed.items())
    fed = f" with {sizes}" if sizes else ""
    yield f"it stops at {stop_of(found)}{fed}: {found.said}"
    yield from (f"this {found.op_type} requires: {_needed(one)}" for one in found.needed)
    for one in found.sizes:
        if one.least is None or one.most is not None or one.least > 1 or one.step > 1:
            yield f"{one.symbol}: {range_text(one)}"
    if found.shapes:
        unknown = any(one.least is None for one in found.sizes)
        begin = "this was tried" if unknown else "replace the question mark by a size"
        yield f"{begin}: {_command(command, path, '--input-shapes', found.shapes)}"
    if found.inputs:
        begin = "or pass" if found.shapes else "pass"
        inputs = ", ".join(map(_input, found.inputs))
        yield f"{begin} the values in {_FILE} ({inputs}): {_command(command, path, '--inputs', _FILE)}"
    if found.needed and not (found.sizes or found.shapes or found.inputs):
        yield f"no inputs change that: {_EXPORT_AGAIN}"


def stop_of(found: Stopped) -> str:
    """The node at which the original stops."""
    return f"{found.place} ({found.op_type})" if found.place.known else "an unknown node"


def _needed(one: Needed) -> str:
    depends = f", which depends on the values of {', '.join(one.inputs)}" if one.inputs else ""
    return f"{one.words}{depends}"


def _input(one: InputKind) -> str:
    dims = "" if one.dims is None else f" [{', '.join(map(str, one.dims))}]"
    return f"{one.name}: {one.type}{dims}"


def _command(command: str, path: str, option: str, value: str) -> str:
    model = system.quoted_path(path)
    return f"onnxfix {command} {model} {option} {system.quoted(value)}"
