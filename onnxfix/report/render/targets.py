"""The releases of TensorRT that can be targets, and what differs between two targets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from onnxfix.names import TARGETS as NAMES
from onnxfix.report.render.lines import Line, labeled, line
from onnxfix.targets import TARGETS, Support, Target
from onnxfix.targets.documented import RELEASES, text_of

_LABEL = 19


def targets_lines() -> Iterator[Line]:
    """A line for each release: newest opset, element types that came with it, JetPacks, source; then other names."""
    known: frozenset[str] = frozenset()
    for version, release in RELEASES.items():
        target = TARGETS[f"trt{text_of(version)}"]
        added = sorted(release.types - known) if known else ()
        facts = [f"opset {release.opset}", f"also {' '.join(added)}" if added else ""]
        facts += [f"JetPack {', '.join(release.jetpacks)}" if release.jetpacks else "", target.source]
        yield line((f"{target.name:<10}", "bold"), "; ".join(filter(None, facts)), hang=10)
        known = release.types
    for name in [name for name in NAMES if "." not in name]:
        yield line((f"{name:<10}", "bold"), f"{TARGETS[name].title}; {TARGETS[name].source}", hang=10)


def difference_lines(old: Target, new: Target) -> Iterator[Line]:
    """Operators, element types and restrictions that differ."""
    yield line((f"{old.title}, {new.title}", "bold"))
    for one, other in ((new, old), (old, new)):
        alone = sorted(name for name in one.operators if not other.imports(name))
        yield labeled(f"only {one.name}", ", ".join(alone) or "–", columns=_LABEL)
    both = sorted(old.operators.keys() & new.operators.keys())
    for (lost, more), names in _differences(old.operators, new.operators, both).items():
        words = [
            f"{word} {' '.join(types)}" for word, types in (("also", more), ("no longer", lost)) if types
        ]
        yield labeled("types", f"{', '.join(names)}: {', '.join(words)}", columns=_LABEL)
    for name in both:
        texts = [(target.name, target.operators[name].notes) for target in (old, new)]
        if texts[0][1] != texts[1][1]:
            said = "; ".join(f"{target}: {text or 'none'}" for target, text in texts)
            yield labeled(name, said, columns=_LABEL)


def _differences(
    old: Mapping[str, Support], new: Mapping[str, Support], names: list[str]
) -> dict[tuple[tuple[str, ...], tuple[str, ...]], list[str]]:
    """The types that are known to be taken by one alone -> the operators."""
    found: dict[tuple[tuple[str, ...], tuple[str, ...]], list[str]] = {}
    for name in names:
        before, after = (side[name].types - {"DOUBLE"} for side in (old, new))  # read as FLOAT by all
        if before != after:
            found.setdefault((tuple(sorted(before - after)), tuple(sorted(after - before))), []).append(name)
    return found
