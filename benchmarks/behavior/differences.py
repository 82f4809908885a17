"""What differs between two recordings, by kind."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

from behavior.actions import Entry

#: Kind of difference -> the fields of an entry that it is about, in the order in which they are listed.
KINDS = {
    "ended": ("ended", "raised"),
    "exit code": ("exit",),
    "bytes": ("files", "changed"),
    "findings": ("findings",),
    "applied fixes": ("applied",),
    "rungs": ("rungs", "passed", "withdrawn"),
    "problems": ("problems",),
}

Differences = dict[str, list[str]]


def differences(old: Entry, new: Entry) -> Differences:
    """Kind -> one line for each difference.

    Where the recordings were asked for different things, only what both hold is compared.
    """
    found: Differences = defaultdict(list)
    before, after = old["models"], new["models"]
    alike = old["scope"] == new["scope"]
    for name in sorted(before.keys() | after.keys() if alike else before.keys() & after.keys()):
        if name not in before or name not in after:
            found["models"].append(f"{name}: only in the {'new' if name in after else 'old'} recording")
            continue
        if before[name]["model"] != after[name]["model"]:
            found["models"].append(f"{name}: another model under the same name")
            continue
        one, other = before[name], after[name]
        for action in sorted((one.keys() | other.keys() if alike else one.keys() & other.keys()) - {"model"}):
            for kind, line in entry_differences(one.get(action, {}), other.get(action, {})):
                found[kind].append(f"{name}, {action}: {line}")
    order = ("models", *KINDS, "order of findings")
    return {kind: found[kind] for kind in order if kind in found}


def entry_differences(old: Entry, new: Entry) -> Iterator[tuple[str, str]]:
    """The kind and the words of each difference between two entries of a model."""
    if not old or not new:
        yield "ended", f"only in the {'new' if new else 'old'} recording"
        return
    if old.get("ended") or new.get("ended") or old.get("raised") != new.get("raised"):
        if old != new:
            yield "ended", f"{ending(old)} → {ending(new)}"
        return
    for kind, fields in KINDS.items():
        for field in fields:
            one, other = old.get(field), new.get(field)
            if one == other:
                continue
            if field in ("findings", "withdrawn"):
                lines = list(moved(one or [], other or []))
                yield from ((kind, line) for line in lines)
                if not lines:
                    yield f"order of {field}", "the same ones in another order"
            else:
                yield kind, f"{field} {shown(one)} → {shown(other)}"


def ending(entry: Entry) -> str:
    """How a call ended, in words."""
    return str(entry.get("ended") or entry.get("raised") or f"exit code {entry.get('exit')}")


def moved(old: list[list[str]], new: list[list[str]]) -> Iterator[str]:
    """What is in one list only, repeated as often as it is there more than in the other."""
    before, after = Counter(map(tuple, old)), Counter(map(tuple, new))
    yield from (f"- {' | '.join(one)}" for one in sorted((before - after).elements()))
    yield from (f"+ {' | '.join(one)}" for one in sorted((after - before).elements()))


def shown(value: Any) -> str:
    """A field's value in a line; of a file's digest the beginning is enough."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {str(one)[:12]}" for key, one in value.items()) + "}"
    return ", ".join(map("=".join, value)) if isinstance(value, list) else str(value)
