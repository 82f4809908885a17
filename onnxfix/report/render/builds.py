"""Details of TensorRT's builds, for ``--verbose``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from onnxfix.trt.records import Issue, Profile, Triple, TrtBuild


def build_lines(builds: Sequence[TrtBuild]) -> Iterator[str]:
    """Lines about the builds of an original and of the fixed model, or of one model."""
    for name, build in zip(("original", "new") if len(builds) > 1 else ("build",), builds, strict=False):
        yield f"{name}: {', '.join(_figures(build))}"
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


def _figures(build: TrtBuild) -> Iterator[str]:
    yield build.result if build.accepted else f"{build.result} ({build.stage})"
    kinds = ", ".join(f"{count} {kind}" for kind, count in build.layers)
    yield f"{_count(build.layer_count, 'layer')}{f' ({kinds})' if kinds else ''}"
    yield _count(len(build.warnings), "warning")
    yield f"{build.parse_seconds:.2f} s to parse"
    if build.build_seconds:
        yield f"{build.build_seconds:.2f} s to build for compute capability {build.compute_capability}"
    if build.accepted:
        yield f"engine of {build.engine_bytes:,} bytes"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


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
