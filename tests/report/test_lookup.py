"""Finding rules by family, by words, by a message that was pasted, and by a name that is almost right."""

from __future__ import annotations

import pytest

from onnxfix.errors import UsageError
from onnxfix.report.catalogue import families, quotes_of, search
from onnxfix.report.render.rules import hits_lines, rule_markdown
from onnxfix.rewrite.registry import registry
from support.cli import output, refused, run

RULES = registry().rules
CLAMPED = (
    "[W] onnx2trt_utils.cpp:369: Your ONNX model has been generated with INT64 weights, while TensorRT does not "
    "natively support INT64. Attempting to cast down to INT32."
)
REFUSED = (
    "[TRT] [E] ModelImporter.cpp:190 In function parseNode: [6] Invalid Node - /model/MatMul_3\n"
    "Assertion failed: status.is_success(): Found unsupported input type of INT64"
)
OVERFLOW = (
    "Running layernorm after self-attention in FP16 may cause overflow. Exporting the model to use "
    "INormalizationLayer (available with ONNX opset >= 17) or forcing layernorm layers to run in FP32 precision"
)
SCAN = (
    "both a trip limit and a loop termination condition was set! If the number of iterations of the loop is less than "
    "the trip limit during runtime, scan output 7 may have the wrong shape."
)


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("INT64 weights", "INT004"),
        (CLAMPED, "INT004"),
        (REFUSED, "INT006"),
        (OVERFLOW, "PRC001"),
        (SCAN, "CTL001"),
        ("layernorm fp16 overflow", "PRC001"),
        ("K exceeds the maximum value allowed (4096)", "OPS044"),
        ("GroupNormalization num_groups = 1", "OPS072"),
        ("GroupNormalization", "OPS100"),
        ("hard-coded batch", "RSH008"),
        ("hardcoded size", "RSH008"),
        ("NMS different results", "OPS077"),
        ("no op cast", "CST002"),
        ("No importer registered for op: Det", "OPS001"),
        ("Could not find any implementation for node {ForeignNode[/a/MatMul.../b/Add]}.", "TRT002"),
        ("no optimization profile", "TRT002"),
    ],
)
def test_the_best_rule_is_first(query: str, code: str) -> None:
    hits = search(query, RULES)
    assert hits[0].rule.code == code
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    assert len(hits) <= 10


@pytest.mark.parametrize("query", ["", "the of in", "hello kitty", "🙂"])
def test_words_that_no_rule_is_about_find_nothing(query: str) -> None:
    assert search(query, RULES) == []


@pytest.mark.slow
def test_every_message_that_a_page_quotes_finds_that_page() -> None:
    missed = []
    pages = [(rule, quote) for rule in RULES[::6] for quote in quotes_of(rule)[:1]]
    for rule, quote in pages:
        # Thirteen pages quote the message of a plugin that is missing, more than a search lists.
        hits = search(f"[E] [TRT] node /a/b_7: {quote}", RULES, len(RULES))
        if rule.code not in [hit.rule.code for hit in hits]:
            missed.append((rule.code, quote))
    assert len(pages) > 10
    assert missed == []


def test_the_message_that_matched_is_shown() -> None:
    lines = [str(line) for line in hits_lines("x", search(REFUSED, RULES))]
    assert lines[0].startswith("  INT006 integer-operator-without-kernel  error, exact fix")
    assert lines[2] == "    TensorRT or ONNX Runtime: Found unsupported input type of INT64"
    assert "explain INT006" in lines[-1]


def test_a_query_is_printable() -> None:
    code, out, _ = run("explain", "--search", "\x1b[2J zzz")
    assert (code, "\x1b" in out) == (1, False)
    assert "no rule is about" in out


def test_families() -> None:
    found = {family.name: family for family in families(RULES)}
    assert sum(len(family.rules) for family in found.values()) == len(RULES)
    assert found["PRC"].about.startswith("Half precision that overflows")
    assert all(family.about for family in found.values())
    code, out, _ = run("explain", "prc")
    assert code == 0
    assert out.startswith(f"PRC  {found['PRC'].about}\n")
    assert [rule.code for rule in found["PRC"].rules] == [
        line.split()[0] for line in out.splitlines() if line.startswith("  PRC")
    ]


def test_several_pages_with_two_examples_each() -> None:
    out = output(0, "explain", "CST002,no-op-cast", "CTL", "PRC001")
    assert [line for line in out.splitlines() if line.startswith("# ")] == [
        "# CST002 no-op-cast", "# CST002 no-op-cast", "# PRC001 decomposed-norm-in-half-precision",
    ]  # fmt: skip
    assert out.count("\n### ") == 6
    rule = registry().get("PRC001")
    assert f"\n{len(rule.examples) - 2} more examples: `onnxfix explain PRC001 -v`\n" in out
    assert run("explain", "PRC001", "-v")[1] == rule_markdown(rule)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("CST01", "CST001"),
        ("cst-1", "CST001"),
        ("CST 002", "CST002"),
        ("no-op-casts", "CST002"),
        ("no op cast", "CST002"),
    ],
)
def test_near_misses_are_named(text: str, code: str) -> None:
    assert registry().near(text)[0].code == code
    with pytest.raises(UsageError, match=f"no rule '{text}' .did you mean {code} "):
        registry().get(text)
    assert f"(did you mean {code} " in run("explain", "PRC", text)[2]
    assert f"no rule matches '{text}' (did you mean {code} " in run("check", "m.onnx", "--select", text)[2]


def test_what_explain_refuses() -> None:
    assert run("explain", "quux") == (
        2, "", "onnxfix: no rule 'quux'; 'onnxfix explain --search TEXT' finds rules by words or by a message\n",
    )  # fmt: skip
    for given in ([], ["PRC", "--search", "x"]):
        err = refused("explain", *given)
        assert "name a rule or a family, or give --search TEXT" in err
