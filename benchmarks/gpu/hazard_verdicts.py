"""What the examples of a rule showed on engines, and Markdown of it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Literal, get_args

from machine import lines
from pages import cell, markdown, spaced

from gpu.hazard_cases import AFTER, BEFORE, TWIN, Entry, entry_of
from gpu.hazard_runs import Fed, Outcome
from onnxfix.runtime.sandbox import one_line

#: Of an example, and of a rule the first that one of its examples has. contradicted: the original is right, or at least
#: runs, and the fixed model is wrong, or does not. wrong-confirmed: the original is wrong, and the fixed one right.
#: refused-confirmed: TensorRT refuses the original, crashes or hangs, and runs the fixed one rightly.
#: finding-confirmed: the original is wrong or refused, and there is no fix, or nobody knows what the fixed one should
#: give. not-repaired: so is the original, and so is the fixed one. not-confirmed: the original is right. not-runnable:
#: neither was shown.
Verdict = Literal[
    "contradicted",
    "wrong-confirmed",
    "refused-confirmed",
    "finding-confirmed",
    "not-repaired",
    "not-confirmed",
    "not-runnable",
]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
_LONGEST = 160
_STOPPED = ("parser", "builder", "timeout", "crash", "failed")
_MET = ("right", "other")
_UNSAFE = "unsafe"


@dataclass(frozen=True)
class Shown:
    """One example. ``after`` is "" where there is no fix; ``reason`` is that of the worse side."""

    number: int
    verdict: Verdict
    before: str
    after: str = ""
    safety: str = ""
    reason: str = ""


def shown(entry: Entry, before: Outcome, after: Outcome | None) -> Shown:
    """What both sides of an example come to."""
    verdict = _alone(before) if after is None else _pair(entry, before, after)
    bad = after if after is not None and verdict in ("contradicted", "not-repaired") else before
    reason = bad.reason or (after.reason if after is not None else "") or entry.skipped
    return Shown(
        entry.number,
        verdict,
        before.status,
        after.status if after is not None else "",
        entry.safety,
        shortened(reason if verdict != "not-confirmed" else ""),
    )


def _stopped(outcome: Outcome) -> bool:
    """Whether TensorRT makes no engine of it, or one that does not run, or not on the model's own inputs; not where
    nothing came to TensorRT."""
    told = (outcome.status, outcome.stage)
    return told == ("unfed", "run") or (outcome.status in _STOPPED and told != ("failed", "build"))


def _alone(before: Outcome) -> Verdict:
    if before.status == "wrong" or _stopped(before):
        return "finding-confirmed"
    return "not-confirmed" if before.status in _MET else "not-runnable"


def _pair(entry: Entry, before: Outcome, after: Outcome) -> Verdict:
    if after.status in ("error", "not measured") or before.status in ("error", "not measured"):
        return "not-runnable"
    ran = before.status in (*_MET, "wrong", "unknown")
    if ran and _stopped(after):
        # A fix that may change behavior owes nothing to a model of which nobody knows what it should give.
        return "not-runnable" if (before.status, entry.safety) == ("unknown", _UNSAFE) else "contradicted"
    if before.status in _MET and after.status == "unfed" and entry.safety != _UNSAFE:
        return "contradicted"
    if _stopped(before):
        kept: Verdict = "not-repaired" if after.status == "wrong" or _stopped(after) else "finding-confirmed"
        return "refused-confirmed" if after.status in _MET else kept
    if not ran or before.status == "unknown":
        return "not-runnable"
    pairs = [*zip(before.feeds, after.feeds, strict=False)]
    # A fix that may change behavior, and does so without TensorRT too, is not the engine's fault.
    if entry.agrees is not False and any(a.status == "right" and b.status == "wrong" for a, b in pairs):
        return "contradicted"
    wrong = [b for a, b in pairs if a.status == "wrong" or _overflows(entry, a, b)]
    if wrong:
        return "wrong-confirmed" if all(one.status in _MET for one in wrong) else "not-repaired"
    return "not-confirmed" if before.status in _MET else _alone(before)


def _overflows(entry: Entry, before: Fed, after: Fed) -> bool:
    """Whether the engine leaves half precision's range, as the original may, and after the fix does not."""
    return entry.truths[:1] == (TWIN,) and (before.status, after.status) == ("other", "right")


def shortened(reason: str) -> str:
    """One line without names of folders."""
    text = one_line(re.sub(r"(?<![\w/])/(?:[\w.+-]+/)*([\w.+-]+)", r"\1", reason))
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def verdict_of(examples: Sequence[Shown]) -> Verdict:
    """A rule's verdict."""
    return min((one.verdict for one in examples), key=VERDICTS.index, default="not-runnable")


def distilled(stored: Mapping[str, Any]) -> dict[str, Any]:
    """What is kept of a run, complete or not: every rule with its verdict and its examples."""
    rules: dict[str, list[Shown]] = {code: [] for code in stored["rules"]}
    for result in stored["results"].values():
        entry = entry_of(result["entry"])
        before = _outcome(result.get(BEFORE))
        after = _outcome(result.get(AFTER)) if AFTER in entry.sides else None
        rules[entry.code].append(shown(entry, before, after))
    setting = stored["setting"]
    return {
        "setting": {key: setting[key] for key in ("TensorRT", "GPU", "onnx") if key in setting},
        "rules": {
            code: {
                "verdict": verdict_of(found),
                "examples": [_short(one) for one in sorted(found, key=attrgetter("number"))],
            }
            for code, found in rules.items()
        },
    }


def _outcome(stored: Mapping[str, Any] | None) -> Outcome:
    if stored is None:
        return Outcome("not measured")
    return Outcome(**{**stored, "feeds": tuple(Fed(**one) for one in stored["feeds"])})


def _short(one: Shown) -> dict[str, Any]:
    return {key: value for key, value in vars(one).items() if value != ""}


# ------------------------------------------------------------------------------------------------------ Markdown


def page(known: Mapping[str, Any]) -> Iterator[str]:
    """The setting, what a fix made worse, the verdicts, and a line for each rule."""
    rules = known["rules"]
    counts = Counter(one["verdict"] for one in rules.values())
    examples = Counter(one["verdict"] for rule in rules.values() for one in rule["examples"])
    rows = ([f"**{one}**", counts[one], examples[one]] for one in VERDICTS)
    return spaced(
        lines(known["setting"]),
        *_examples("Contradicted", rules, "contradicted"),
        markdown(("verdict", "rules", "examples"), rows),
        *_examples("Not repaired", rules, "not-repaired"),
        markdown(("rule", "verdict", "examples: before → after", "TensorRT says"), _rules(rules)),
    )


def _examples(title: str, rules: Mapping[str, Any], verdict: Verdict) -> tuple[str, list[str]]:
    found = [
        [f"{code}, {one['number']}", _sides(one), one.get("safety", "–"), cell(one.get("reason", "–"))]
        for code, rule in rules.items()
        for one in rule["examples"]
        if one["verdict"] == verdict
    ]
    rows = markdown(("rule, example", "before → after", "fix", "why"), found) if found else ()
    return f"**{title}: {len(found)} examples.**", list(rows)


def _sides(one: Mapping[str, Any]) -> str:
    return f"{one['before']} → {one['after']}" if one.get("after") else str(one["before"])


def _rules(rules: Mapping[str, Any]) -> Iterator[list[object]]:
    for code, rule in rules.items():
        sides = Counter(_sides(one) for one in rule["examples"])
        first: Mapping[str, Any] = next(
            (one for one in rule["examples"] if one["verdict"] == rule["verdict"]), {}
        )
        text = ", ".join(f"{count} × {name}" for name, count in sides.items())
        yield [code, rule["verdict"], text or "no examples", cell(first.get("reason", "–"))]


def faults(known: Mapping[str, Any]) -> list[str]:
    """Examples that a fix made worse."""
    return [
        f"{code}.{one['number']}: {_sides(one)}: {one.get('reason', '')}"
        for code, rule in known["rules"].items()
        for one in rule["examples"]
        if one["verdict"] == "contradicted"
    ]
