"""What a check found, in the words of every format; TensorRT's builds and networks, inputs and sizes, and where a model
stops.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from onnxfix.place import NOWHERE
from onnxfix.report.render import ui
from onnxfix.report.render.lines import counted
from onnxfix.runtime import system

if TYPE_CHECKING:
    from onnxfix.inputs.sizes.search import Range
    from onnxfix.proof.verdict import RungResult
    from onnxfix.tensorrt.reading import Reading
    from onnxfix.tensorrt.records import Outside, Partition, Profile, Triple, TrtBuild
    from onnxfix.verbs.intake import Intake, Stopped, Way


STATUSES = {"passed": "good", "failed": "bad", "broke": "bad", "skipped": "none"}
"""The chips of checks."""
MEANINGS = {
    "contract": "interface unchanged, onnx.checker",
    "symbolic": "hashes instead of numbers, for all values",
    "reference": "ONNX's reference evaluator",
    "ort-cpu": "ONNX Runtime on the CPU",
    "ort-cuda": "ONNX Runtime on the GPU",
    "trt-build": "TensorRT's parser and builder",
    "trt-network": "TensorRT's import, compared with the model",
    "trt-gpu": "TensorRT's engines on the GPU",
    "ort-trt": "ONNX Runtime with its TensorRT provider",
}
PLEASE_REPORT = "a bug in onnxfix, please report it"
"""Added to every check that broke, whatever the reason."""


def describe_outcome(check: RungResult) -> ui.Chip:
    """What came of a check, in a word."""
    word = {"skipped": "not run"}.get(check.status, check.status)
    if check.cause == "undecided":
        word = check.cause
    return ui.Chip(STATUSES.get(check.status, "none"), word)


def describe_reason(check: RungResult) -> str:
    """Why it came to that."""
    return f"{check.reason} ({PLEASE_REPORT})" if check.status == "broke" else check.reason


def describe_exceptions(check: RungResult) -> Iterator[str]:
    """What was not compared, and why."""
    if check.random:
        names = ", ".join(check.random)
        yield f"random nodes gave both models the same numbers, and were not compared: {names}"
    if check.excluded:
        yield f"not compared, since the original is not deterministic: {', '.join(check.excluded)}"


def build_lines(builds: Sequence[TrtBuild]) -> Iterator[str]:
    """Lines about the builds of an original and of the fixed model, or of one model."""
    for name, build in zip(("original", "new") if len(builds) > 1 else ("build",), builds, strict=False):
        yield f"{name}: {', '.join(_build_figures(build))}"
        for number, profile in enumerate(build.profiles, 1):
            yield f"  profile {number}{' (derived)' if profile.derived else ''}: {_sizes(profile)}"
            yield f"    trtexec {' '.join(flags(profile, 'trtexec'))}"
            yield f"    polygraphy {' '.join(flags(profile, 'polygraphy'))}"
        for issue in (*build.errors, *build.warnings):
            times = f" ({issue.count} times)" if issue.count > 1 else ""
            yield f"  {issue.severity} {issue}{times}"


def flags(profile: Profile, tool: Literal["trtexec", "polygraphy"]) -> list[str]:
    """The options for this optimization profile in trtexec or in Polygraphy's command line. Values of shape tensors are
    passed like shapes."""
    rows = {**profile.shapes, **profile.values}
    options = []
    for column, which in enumerate(("min", "opt", "max")):
        if tool == "trtexec":
            sizes = ",".join(f"{name}:{'x'.join(map(str, row[column]))}" for name, row in rows.items())
            options.append(f"--{which}Shapes={sizes}")
        else:
            sizes = " ".join(f"{name}:[{','.join(map(str, row[column]))}]" for name, row in rows.items())
            options.append(f"--trt-{which}-shapes {sizes}")
    return options


def _build_figures(build: TrtBuild) -> Iterator[str]:
    yield build.result if build.accepted else f"{build.result} ({build.stage})"
    yield _layers(build)
    yield counted(len(build.warnings), "warning")
    yield f"{build.parse_seconds:.2f} s to parse"
    if build.build_seconds:
        yield f"{build.build_seconds:.2f} s to build for compute capability {build.compute_capability}"
    if build.accepted:
        yield f"engine of {build.engine_bytes:,} bytes"


def _layers(network: TrtBuild | Reading) -> str:
    kinds = ", ".join(f"{count} {kind}" for kind, count in network.layers)
    return f"{counted(network.layer_count, 'layer')}{f' ({kinds})' if kinds else ''}"


def _sizes(profile: Profile) -> str:
    shapes = [f"{name} {_span(triple)}" for name, triple in profile.shapes.items()]
    values = [f"values of {name} {_span(triple)}" for name, triple in profile.values.items()]
    return ", ".join(shapes + values)


def _span(triple: Triple) -> str:
    """``1x3..8x3, optimal 4x3``; one shape where all three are the same."""
    minimum, optimum, maximum = ("x".join(map(str, row)) or "scalar" for row in triple)
    return minimum if minimum == optimum == maximum else f"{minimum}..{maximum}, optimal {optimum}"


_READ = {
    "agrees": "read correctly",
    "differs": "read differently",
    "refused": "not imported",
    "broke": "not compared, by a bug in onnxfix",
}


def network_lines(networks: Sequence[Reading]) -> Iterator[str]:
    """Lines about the imported networks of an original and of the fixed model, or of one model."""
    names = ("original", "new") if len(networks) > 1 else ("network",)
    for name, network in zip(names, networks, strict=False):
        parse, lift, compare = network.seconds
        reason = [network.reason] if network.reason else []
        took = f"{parse:.2f} s to parse, {lift:.2f} s to read back, {compare:.2f} s to compare"
        figures = (_READ.get(network.status, "not compared"), *reason, _layers(network), took)
        yield f"{name}: {', '.join(figures)}"
        for misread in network.misreads:
            yield f"  {'harmless' if misread.harmless else 'differs'} {misread}"
            if misread.layers:
                yield f"    layers: {', '.join(misread.layers)}"
            if misread.feed:
                yield f"    on {misread.feed}"


def partition_lines(before: Partition | None, after: Partition | None, most: int) -> Iterator[str]:
    """Lines about how ONNX Runtime's TensorRT provider would cut the model and the result, and about the nodes that
    TensorRT does not take: each reason once, with ``most`` of its nodes and the rule that helps."""
    cut = after or before
    if before is None or cut is None:
        return
    yield before.words if cut.words == before.words else f"{before.words} → {cut.words}"
    groups: dict[str, list[Outside]] = {}
    for one in cut.outside:
        groups.setdefault(one.text + one.source, []).append(one)
    for nodes in groups.values():
        named = [one.place.short for one in nodes[:most]]
        more = f" and {len(nodes) - len(named):,} more" if len(nodes) > len(named) else ""
        operators = {one.place.op_type for one in nodes}
        words = (nodes[0] if len(operators) == 1 else replace(nodes[0], place=NOWHERE)).words
        remedy = min((one.remedy for one in nodes), key=lambda words: (not words, " may " in words))
        yield f"outside: {', '.join(named)}{more}: {words}{f' → {remedy}' if remedy else ''}"


_SHOWN = 8  # examples


def intake_lines(intake: Intake, verbose: bool) -> Iterator[str]:
    """Lines about inputs, sizes and examples; ``verbose`` adds the operators that require the sizes."""
    for one in intake.inputs:
        dims = "of unknown rank" if one.dims is None else f"[{', '.join(map(str, one.dims))}]"
        values = ", ".join(map(str, one.values))
        choice = f"; the model distinguishes the values {values}" if values else ""
        limits = "".join(f"; {limit}" for limit in one.limits)
        yield f"input {one.name}: {one.type} {dims}{', optional' if one.optional else ''}{choice}{limits}"
    for way in intake.ways:
        yield from _way(way, verbose)
    for example in intake.examples if verbose else intake.examples[:_SHOWN]:
        if example.ran is None:
            yield f"not tried: {example.words} (ONNX Runtime is not installed)"
        else:
            yield f"runs: {example.words}" if example.ran else f"fails: {example.words}: {example.reason}"


def _way(way: Way, verbose: bool) -> Iterator[str]:
    values = ", ".join(f"{name}={value}" for name, value in way.values.items())
    indent = "  " if values else ""
    if values:
        yield f"where {values}:"
    for one in way.sizes:
        yield f"{indent}{one.symbol}: {range_text(one)}"
        if verbose:
            yield from (f"{indent}  {reason}" for reason in one.because)
    yield from (f"{indent}{one}" for one in way.conditions)


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


_FILE = "inputs.npz"
_EXPORT_AGAIN = (
    "the fault is in the original: export it again, with PyTorch's other exporter or another opset"
)


def stopped_lines(stopped: Stopped, path: str, command: str) -> Iterator[str]:
    """Lines for a run of ``command`` on the model at ``path``."""
    if not stopped.loaded:
        yield f"ONNX Runtime does not load the original, with any inputs: {stopped.said}"
        if not stopped.gap:
            yield _EXPORT_AGAIN
        return
    sizes = ", ".join(f"{name}={size}" for name, size in stopped.fed.items())
    yield f"it stops at {stop_of(stopped)}{f' with {sizes}' if sizes else ''}: {stopped.said}"
    for one in stopped.needed:
        depends = f", which depends on the values of {', '.join(one.inputs)}" if one.inputs else ""
        yield f"this {stopped.op_type} requires: {one.words}{depends}"
    for size in stopped.sizes:
        if size.least is None or size.most is not None or size.least > 1 or size.step > 1:
            yield f"{size.symbol}: {range_text(size)}"
    rerun = f"onnxfix {command} {system.quoted_path(path)}"
    if stopped.shapes:
        unknown = any(size.least is None for size in stopped.sizes)
        begin = "this was tried" if unknown else "replace the question mark by a size"
        yield f"{begin}: {rerun} --input-shapes {system.quoted(stopped.shapes)}"
    if stopped.inputs:
        begin = "or pass" if stopped.shapes else "pass"
        dims = ("" if one.dims is None else f" [{', '.join(map(str, one.dims))}]" for one in stopped.inputs)
        inputs = (f"{one.name}: {one.type}{shape}" for one, shape in zip(stopped.inputs, dims, strict=True))
        yield f"{begin} the values in {_FILE} ({', '.join(inputs)}): {rerun} --inputs {system.quoted(_FILE)}"
    if stopped.needed and not (stopped.sizes or stopped.shapes or stopped.inputs):
        yield f"no inputs change that: {_EXPORT_AGAIN}"


def stop_of(found: Stopped) -> str:
    """The node at which the original stops."""
    return f"{found.place} ({found.op_type})" if found.place.known else "an unknown node"
