"""A search among the rules: by a family, words, or a pasted message."""

from __future__ import annotations

import importlib
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from typing import NamedTuple

from onnxfix.rule import NO_MODEL, Rule

_QUOTE = re.compile(r"(?<!`)(`{1,2})(?!`)(.+?)(?<!`)\1(?!`)", re.DOTALL)
_CODE = re.compile(r"→|^[\w.]+\(|^[^A-Za-z]|\*\*|=[^=]*=| [*/+@] ")
_WORD = re.compile(r"(?<!\S)[A-Za-z']{2,}[.,:;!]?(?!\S)")
_WORDS = 3


def quotes_of(rule: Rule) -> tuple[str, ...]:
    """The messages of TensorRT and ONNX Runtime that a rule's section "Why it matters" quotes, in one line each."""
    section = rule.doc.partition("## Why it matters")[2].partition("\n## ")[0]
    lines = [" ".join(quoted.split()) for _, quoted in _QUOTE.findall(section)]
    return tuple(line for line in lines if len(_WORD.findall(line)) >= _WORDS and not _CODE.search(line))


_MAX_HITS = 10
_WEIGHTS = {"quotes": 3.0, "name": 3.0, "summary": 2.0, "operators": 2.0, "page": 1.0}
"""The weight of a word in each part of a rule's page."""
_QUOTE_SCORE = 12.0
"""The score of a quoted message that contains the whole query, or that the query contains."""
_MIN_QUOTE_SHARE = 0.6
"""Minimum share of a message's words that counts as a partial quote."""
_MIN_RELATIVE_SCORE = 0.25
"""Share of the best result's score below which a rule is not listed."""
_MIN_SCORE = 4.0
"""Score below which a rule is unrelated to the query."""
_SYNONYMS = {
    "nms": "nonmaxsuppression",
    "fp16": "float16",
    "bf16": "bfloat16",
    "fp32": "float32",
    "fp8": "float8",
}
_PIECE = re.compile(r"[A-Z]+(?![a-z])\d*|[A-Z]?[a-z]+\d*|[A-Z]\d+")
_GAP = re.compile(r"…|\.\.\.")
_STOP_WORDS = frozenset(
    re.findall(
        r"\w+",
        "a an and are as at be been but by can could do does error failed for from has have if in info into is it its "
        "line message model my no node not of on onnx or other that the then this to trt tensorrt up us warning was "
        "when while which with you your",
    )
)


class Family(NamedTuple):
    """Rules whose codes begin with the same letters. ``about`` is the subject in one line, "" if it is not known."""

    name: str
    about: str
    rules: tuple[Rule, ...]


class Hit(NamedTuple):
    """A rule that a search found. ``said`` is the message on its page that the query repeats, "" for none."""

    rule: Rule
    score: float
    said: str = ""


def families(rules: Sequence[Rule]) -> tuple[Family, ...]:
    """The families of these rules, in the order of the rules."""
    by_family: dict[str, list[Rule]] = {}
    for rule in rules:
        by_family.setdefault(rule.code.rstrip("0123456789"), []).append(rule)
    return tuple(
        Family(name, _about(name, members[0]), tuple(members)) for name, members in by_family.items()
    )


def _about(family: str, rule: Rule) -> str:
    """The first line of the docstring of the family's package, after the family's name."""
    package = importlib.import_module(".".join(rule.module.split(".")[:2]))
    name, _, about = (package.__doc__ or "").partition("\n")[0].partition(": ")
    return about[:1].upper() + about[1:] if name == family else ""


def search(query: str, rules: Sequence[Rule], most: int = _MAX_HITS) -> list[Hit]:
    """The rules that match the words of ``query``, best first, at most ``most``.

    The score counts the words that a rule shares with the query; rare words count more. A message that the
    page quotes and the query repeats counts most. Names, numbers and shapes in a message do not matter.
    """
    pages = {rule: _parts(rule) for rule in rules}
    counts = Counter(word for parts in pages.values() for word in set().union(*parts.values()))
    rarity = {word: math.log(1 + len(pages) / count) for word, count in counts.items()}
    wanted = list(dict.fromkeys(word for word in _words(query) if word in rarity))
    hits = [_score(rule, parts, wanted, _normal(query), rarity) for rule, parts in pages.items()]
    hits = sorted(
        (hit for hit in hits if hit.score >= _MIN_SCORE), key=lambda hit: (-hit.score, hit.rule.code)
    )
    return [hit for hit in hits[:most] if hit.score >= _MIN_RELATIVE_SCORE * hits[0].score]


@cache
def _parts(rule: Rule) -> dict[str, Counter[str]]:
    """The words of each part of a rule's page, with their counts."""
    return {
        "quotes": Counter(word for quote in quotes_of(rule) for word in _words(quote)),
        "name": Counter(_words(rule.name.replace("-", " "))),
        "summary": Counter(_words(rule.summary)),
        "operators": Counter(word for _, op in rule.ops for word in set(_words(op))),
        "page": Counter(_words(rule.doc)),
    }


def _score(
    rule: Rule, parts: dict[str, Counter[str]], wanted: Sequence[str], normal: str, rarity: dict[str, float]
) -> Hit:
    """How well the query fits a rule. ``wanted`` are the query's words, ``normal`` is its normal form."""
    score = 0.0
    for word in wanted:
        for part, weight in _WEIGHTS.items():
            count = parts[part][word]
            score += rarity[word] * weight * count / (count + 1) * 2
    shared = sum(rarity[word] for word in wanted if any(word in words for words in parts.values()))
    score *= (shared / sum(rarity[word] for word in wanted)) ** 2 if wanted else 0.0
    quoted, best_share = "", 0.0
    for quote in quotes_of(rule):
        if (repeated := _share(quote, set(wanted), normal, rarity)) > best_share:
            quoted, best_share = quote, repeated
    # A rule about TensorRT's messages in general explains less than a rule about their cause.
    score *= 0.5 if rule.per in NO_MODEL else 1.0
    return Hit(rule, score * (1 + best_share) + best_share * _QUOTE_SCORE, quoted)


def _share(quote: str, wanted: set[str], normal: str, rarity: dict[str, float]) -> float:
    """How much of a quoted message the query repeats: from 0 to 1."""
    pieces = [piece for part in _GAP.split(quote) if (piece := _normal(part))]
    words = set(_words(quote))
    if not words or not pieces or not wanted:
        return 0.0
    if all(piece in normal for piece in pieces) or (len(wanted) > 1 and normal in _normal(quote)):
        return 1.0
    both = sum(rarity[word] for word in words & wanted)
    covered = both / sum(rarity[word] for word in words)
    matched_query = both / sum(rarity[word] for word in wanted)
    share = max(covered, matched_query if len(wanted) > 1 else 0.0)
    return share * 0.8 if share >= _MIN_QUOTE_SHARE else 0.0


def _words(text: str) -> Iterator[str]:
    """The words of a text in lower case and singular. CamelCase and hyphenated words also count as one."""
    for token in re.findall(r"[A-Za-z][A-Za-z0-9]*(?:-[A-Za-z0-9]+)*", text):
        parts = [part.lower() for piece in token.split("-") for part in (piece, *_PIECE.findall(piece))]
        for part in dict.fromkeys([token.replace("-", "").lower(), *parts]):
            word = _SYNONYMS.get(part, part)
            word = word.removesuffix("s") if len(word) > 3 and not word.endswith("ss") else word
            if word not in _STOP_WORDS and len(word) > 1:
                yield word


def _normal(text: str) -> str:
    """A message without case, numbers, quotes and spacing, which vary."""
    return " ".join(re.findall(r"[a-z_]+", text.lower()))
