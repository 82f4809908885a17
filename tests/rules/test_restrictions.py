"""Every restriction of the operator tables is a predicate of OPS124, another rule's, or none for a reason."""

from __future__ import annotations

import re

import pytest

from onnxfix.rewrite.catalog import path_of
from onnxfix.targets import measured
from onnxfix.targets.documented import RELEASES, facts_of
from onnxfix_rules.ops.limits._restrictions import RESTRICTIONS

#: Words of a restriction, and which rules report it, or why none does.
ELSEWHERE = {
    "2D or 3D Pooling only": "OPS038; one dimension is taken (8.6.1 and 10.6.0 executed it)",
    "2D or 3D pooling only": "OPS038; one dimension is taken (8.6.1 and 10.6.0 executed it)",
    "2D or 3D convolutions only": "OPS038; the parser's source of 8.4 takes one dimension",
    "2D or 3D deconvolutions only": "OPS038; the parser's source of 8.4 takes one dimension",
    "Weights `W` must be an initializer": "the parser's source of 8.4 takes computed kernels, too",
    "`Indices` output tensor unsupported": "OPS021 OPS119",
    "`dilations` must be empty or all ones": "OPS037 OPS066 OPS067",
    "`axis` must be an initializer": "OPS099",
    "`axis` must be a build-time constant": "OPS099; 11.2.1 takes a graph input",
    "zero_point` must be": "QDQ001 QDQ003 QDQ011",
    "UINT8 constants are properly imported": "QDQ002; what went wrong before is not said",
    "Runs on a cuFFT-backed plugin": "about the machine, not the model",
    "The transform axis must be `-2`": "OPS099",
    "The opset 20 `axis` input must be": "OPS099",
    "`is_training` must be an initializer": "OPS043",
    "`input` must have static dimensions": "OPS046",
    "5-D input since 11.2": "OPS099",
    "Input must be 4D input": "OPS099",
    "Broadcasting between inputs is not": "8.6.1 and 10.6.0 broadcast (executed)",
    "opset 21 (scale and bias by channel)": "OPS100",
    "two conditional branches must have": "CTL011; the same names are taken (TensorRT-RTX 1.7.1)",
    "a bug made If nodes fail to import": "CTL011",
    "fixed in 9.0 GA": "CTL011",
    "Only the first output `Y`": "OPS021 OPS050",
    "Scan output length cannot be dynamic": "CTL001 CTL012",
    "The shape of Loop carried dependencies": "CTL015",
    "`input_forget` attribute must be 0": "OPS038",
    "`layout` attribute must be 0": "OPS011; it is ignored",
    "`depth` must be a build-time constant": "OPS040",
    "integer exponents since 10.8": "OPS099",
    "integer bases since 10.12": "OPS099",
    "INT4 since 10.0": "CST005",
    "FLOAT4E2M1 since 10.8": "CST005",
    "`seed` value is ignored": "OPS099",
    "`axes` must be an initializer": "OPS040 OPS041 OPS042 OPS098 OPS099",
    "`axes` must be a constant tensor": "OPS040 OPS042",
    "`axes` must be resolvable to a constant": "OPS040 OPS042",
    "without axes: taken since 11.5": "RSH009",
    "without the attribute allowzero throws": "RSH005",
    "8.4.2: the default is 0": "RSH005",
    "Supported resize": "OPS031",
    "Supported nearest modes": "OPS031",
    "Supported aspect ratio policy": "OPS031",
    "Antialiasing is not supported": "OPS031",
    "When `scales` is a tensor input": "OPS081; constant scales with axes are taken (TensorRT-RTX 1.7.1)",
    "`past_cache` and `update` must be 4D": "OPS065",
    "`Q`, `K`, `V` and `attn_mask` must be 4D": "OPS050 OPS086; 10.15.1 imports three dimensions",
    "`softcap` attributes are unsupported": "OPS050",
    "`position_ids` must be INT64": "ONNX allows no other type",
    "`reduction`": "OPS039 OPS099",
    "the attribute reduction is taken since 10.0": "OPS039",
    "opset 18 and later: fixed in 10.9": "OPS039 OPS099",
    "`sparse_value`, `value_string`": "GRA006 GRA008; no operator that is imported reads strings",
    "`frame_step` and `window` must": "OPS099",
    "`sorted` must be 1": "TensorRT-RTX 1.7.1 takes 0",
    "`K` input must be less than 3840": "OPS044; 3840 is taken",
    "`past_key`, `past_value` and": "OPS021 OPS050; 11.2.1 imports `nonpad_kv_seqlen` (OPS015)",
    "`present_key`, `present_value` and": "OPS021 OPS050",
    "`q_num_heads` and `kv_num_heads`": "restricts nothing",
    # measured with TensorRT-RTX
    "rank 2 at least": "OPS023",
    "no past or present, softcap": "OPS021 OPS050",
    "float does not build for compute capability 8.9": "OPS050",
    "to uint8 only where the result is": "CST003 CST004",
    "at most three spatial dimensions": "OPS038",
    "no dilations together with strides": "OPS038",
    "output_shape and auto_pad may be misread": "OPS013 OPS014",
    "the zero point must be 0, the scale positive": "QDQ003 QDQ010",
    "layout 1 is ignored": "OPS011",
    "input_forget must be 0": "OPS038",
    "axes must be a build-time constant": "OPS040 OPS041",
    "rank 1 at least": "OPS024",
    "no reduction": "OPS039",
    "without axes, starts and ends": "OPS020",
    "mode CRD is ignored": "OPS012",
    "K at most 3840": "OPS044",
    "without the attribute upper": "OPS010",
}


def restrictions() -> set[tuple[str, str]]:
    """Operators with their restrictions, in all releases."""
    notes = [facts_of(version).notes for version in RELEASES] + [measured.NOTES]
    return {(name, text) for group in notes for name, text in group.items()}


def sentences(text: str) -> list[str]:
    return [part for part in re.split(r"(?<=[\w)`\]-])\.\s+|;\s+", text.rstrip(".")) if part]


CATALOG = path_of("onnxfix_rules").read_text("utf-8")
PREDICATES = [(name, words) for name, rows in RESTRICTIONS.items() for _, words, _ in rows]


def test_every_restriction_has_a_predicate_a_rule_or_a_reason() -> None:
    open_ones = {
        (name, sentence)
        for name, text in restrictions()
        for sentence in sentences(text)
        if not any(name == operator and words in sentence for operator, words in PREDICATES)
        and not any(words in sentence for words in ELSEWHERE)
    }
    assert not open_ones


def test_no_row_is_left_over() -> None:
    texts = restrictions()
    assert not [
        row for row in PREDICATES if not any(name == row[0] and row[1] in text for name, text in texts)
    ]
    assert not [words for words in ELSEWHERE if not any(words in text for _, text in texts)]


@pytest.mark.parametrize("reason", sorted(set(ELSEWHERE.values())))
def test_a_rule_that_is_named_exists(reason: str) -> None:
    assert all(f'"{code}"' in CATALOG for code in re.findall(r"\b[A-Z]{3}\d{3}\b", reason))
