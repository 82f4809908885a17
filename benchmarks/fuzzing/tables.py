"""The results of a run as tables for a README, and as lines for a terminal."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence

from pages import markdown, spaced

from fuzzing.running import Outcome

CODES = ("0", "1", "2", "3")


def _code(outcome: Outcome) -> str:
    """The worst exit code of a case's steps, or "other"."""
    return str(max(outcome.codes)) if all(0 <= code <= 3 for code in outcome.codes) else "other"


def _counts(groups: dict[str, list[Outcome]]) -> Iterator[Sequence[object]]:
    for name, members in sorted(groups.items()):
        codes = Counter(map(_code, members))
        bad = sum(bool(one.faults) for one in members)
        yield name, f"{len(members):,}", *(f"{codes[code]:,}" for code in (*CODES, "other")), bad


def _grouped(outcomes: Iterable[Outcome], names: object) -> dict[str, list[Outcome]]:
    found: dict[str, list[Outcome]] = defaultdict(list)
    for one in outcomes:
        for name in names(one):  # type: ignore[operator]
            found[name].append(one)
    return found


def tables(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """By command, by mutator and by seed model: how many ended with which exit code, and how many showed a fault."""
    head = ("tried", *(f"exit {code}" for code in CODES), "other", "faults")
    everything = {"all": list(outcomes)}
    models = _grouped(outcomes, lambda one: [one.model.partition("/")[0]])
    return spaced(
        markdown(("", *head), _counts(everything)),
        markdown(("command", *head), _counts(_grouped(outcomes, lambda one: [one.command]))),
        markdown(("damaged by", *head), _counts(_grouped(outcomes, lambda one: set(one.mutators)))),
        markdown(("model from", *head), _counts(models)),
    )


def costs(outcomes: Sequence[Outcome]) -> str:
    """Time and memory in one line."""
    cheap = sorted(one.cpu for one in outcomes if not one.verified)
    grown = sorted(one.memory for one in outcomes)
    if not cheap:
        return "nothing was measured"
    return (
        f"processor time without execution: median {cheap[len(cheap) // 2]:.3f} s, most {cheap[-1]:.1f} s; "
        f"growth of the main process: median {grown[len(grown) // 2] >> 20} MiB, most {grown[-1] >> 20} MiB"
    )


def findings(outcomes: Iterable[Outcome]) -> Iterator[str]:
    """A line for each kind of fault: how often, the first numbers, and what it says."""
    groups: dict[tuple[str, str], list[tuple[Outcome, str]]] = defaultdict(list)
    for one in outcomes:
        for fault in one.faults:
            groups[fault.kind, fault.sign].append((one, fault.text))
    for (kind, sign), members in sorted(groups.items(), key=lambda item: -len(item[1])):
        numbers = ", ".join(str(one.number) for one, _ in members[:5])
        text = " ".join(members[0][1].split())
        yield f"{len(members)} × {kind} {sign}: number {numbers} ({members[0][0].command}): {text[:300]}"
