"""Attention, rotary embedding and the update of a key/value cache.

Sources: NvInfer.h (IAttention, CausalMaskKind, AttentionIOForm, IRotaryEmbeddingLayer, IKVCacheUpdateLayer),
TensorRT's pages "Attention", "Fused Attention", "Rotary Position Embedding" and "KV Cache", and TRT_custom_ops.md of
its parser. What they leave open is not lifted: a causal mask at the lower right over padded keys with lengths (is
the right edge the padding's or the length's?), masks without a softmax. Nor is what TensorRT's own operators alone
make: packed sequences and quantized weights. No runtime executes a model with those, so that there is nothing to hold
the reading against.

Two things are not documented, and read as follows:

* The type inside. Attention and rotary embedding of HALF and BF16 are computed in FLOAT and rounded once, at the
  end: the layer is meant to be one kernel, and what that does inside is not in the network.
* A query that may attend to nothing. The softmax of nothing but -infinity is NaN, and that is what is written.
"""

from __future__ import annotations

import numpy as np

from onnxfix.tensorrt.lift.emit import Emit, lifts
from onnxfix.tensorrt.lift.network import Layer, Tensor, Unliftable, read_word

#: The inputs of an ATTENTION_INPUT layer. Those from the mask on may be left out.
_QUERY, _KEY, _VALUE, _MASK, _SCALE, _, _KEY_LENGTHS = range(7)
#: The enumeration of how tokens lie, and the only way before there was one.
_FORMS, _PADDED = "AttentionIOForm", "PADDED_BHND"


@lifts("ATTENTION_OUTPUT")
def _attention_output(e: Emit, layer: Layer) -> str:
    return e.op("Identity", e.of(layer.need(0)))


@lifts("ATTENTION_INPUT")
def _attention(e: Emit, layer: Layer) -> str:
    """The whole attention: softmax(Q K^T + mask) V. The ATTENTION_OUTPUT layer reads nothing but this one's output.

    There is no scale: who makes the network multiplies it into Q and K."""
    _check(layer)
    query, key, value = (e.as_float(layer.need(place)) for place in (_QUERY, _KEY, _VALUE))
    key, value = (_repeated(e, layer, place, one, query) for place, one in ((_KEY, key), (_VALUE, value)))
    scores = e.op("MatMul", query, e.op("Transpose", key, perm=[0, 1, 3, 2]))
    scores = _masked(e, layer, scores, _allowed(e, layer))
    if layer.native.attention.norm_op.name == "SOFTMAX":
        scores = e.op("Softmax", scores, axis=-1)
    return e.turn(e.op("MatMul", scores, value), "FLOAT", layer.outputs[0].dtype)


def _causal(layer: Layer) -> str:
    """The kind of causal mask. Before TensorRT-RTX 1.5 there is no more than whether there is one, which is then at the
    upper left ("legacy default when causal=true", NvInfer.h, CausalMaskKind)."""
    native = layer.native.attention
    found = read_word(native, "causal_kind", since="CausalMaskKind")
    return found or ("UPPER_LEFT" if native.causal else "NONE")


def _form(layer: Layer, attribute: str) -> str:
    """How queries, or keys and values, lie. Before TensorRT-RTX 1.5 they are padded."""
    return read_word(layer.native.attention, attribute, since=_FORMS, before=_PADDED)


def _check(layer: Layer) -> None:
    """Raise for what TensorRT's documentation does not define."""
    native = layer.native.attention
    causal, query, key = _causal(layer), _form(layer, "query_form"), _form(layer, "key_value_form")
    _fits(layer)
    if {query, key} != {_PADDED}:
        raise Unliftable(f"queries of form {query} with keys of form {key}")
    if layer.input(_SCALE) is not None:
        raise Unliftable("attention whose weights are quantized")
    if causal not in ("NONE", "UPPER_LEFT", "LOWER_RIGHT"):
        raise Unliftable(f"a causal mask of kind {causal}")
    if native.norm_op.name not in ("NONE", "SOFTMAX"):
        raise Unliftable(f"attention with normalization {native.norm_op.name}")
    lengths = layer.input(_KEY_LENGTHS) is not None
    mask = layer.input(_MASK)
    bars = causal != "NONE" or lengths or (mask is not None and mask.dtype == "BOOL")
    if native.norm_op.name == "NONE" and bars:
        raise Unliftable("attention without softmax, where TensorRT does not say what a masked score counts")
    if mask is not None and mask.dtype not in ("BOOL", layer.need(_QUERY).dtype):
        raise Unliftable(
            f"a mask of type {mask.dtype} on scores of {layer.need(_QUERY).dtype}: TensorRT builds none"
        )
    if causal == "LOWER_RIGHT" and lengths and _dim(layer.need(_QUERY), 2) != 1:
        raise Unliftable(
            "a causal mask at the lower right over padded keys with lengths, where TensorRT does not say"
            " whether it ends at the padding or at the length"
        )


def _repeated(e: Emit, layer: Layer, place: int, value: str, query: str) -> str:
    """Keys or values with as many heads as there are of queries: head h reads head h // (heads / key heads)."""
    queries, own = layer.need(_QUERY), layer.need(place)
    many, few = (_dim(tensor, 1) for tensor in (queries, own))
    if few == 1 or many == few != -1:  # one is broadcast
        return value
    if many > 0 and few > 0:
        if many % few:
            raise Unliftable(f"attention with {many} heads of queries and {few} of keys")
        places = e.ints([head // (many // few) for head in range(many)])
    else:
        heads, groups = (e.size(one, 1) for one in (query, value))
        places = e.op("Div", e.range(heads), e.op("Div", heads, groups))
    return e.op("Gather", value, places, axis=1)


def _allowed(e: Emit, layer: Layer) -> list[str]:
    """What each query may attend to besides the mask: values that broadcast to [batch, heads, queries, keys]."""
    found = []
    causal, lengths = _causal(layer), layer.input(_KEY_LENGTHS)
    if causal == "NONE" and lengths is None:
        return []
    size = e.size(e.of(layer.need(_KEY)), 2)
    keys = e.range(size)
    if causal != "NONE":
        queries = e.size(e.of(layer.need(_QUERY)), 2)
        rows = e.op("Unsqueeze", e.range(queries), e.ints([1]))
        if causal == "LOWER_RIGHT":
            rows = e.op("Add", rows, e.op("Sub", size, queries))
        found.append(e.op("LessOrEqual", keys, rows))
    if lengths is not None:
        counts = e.op("Unsqueeze", e.as_type(lengths, "INT64"), e.ints([1, 2, 3]))
        found.append(e.op("Less", keys, counts))
    return found


def _masked(e: Emit, layer: Layer, scores: str, allowed: list[str]) -> str:
    """The scores with -infinity where a query may not attend, and with what an additive mask adds."""
    mask = layer.input(_MASK)
    if mask is not None and mask.dtype == "BOOL":
        allowed = [*allowed, e.of(mask)]  # True: may attend
    elif mask is not None:
        scores = e.op("Add", scores, e.as_float(mask))
    for one in allowed:
        scores = e.op("Where", one, scores, e.const(-np.inf, "FLOAT"))
    if mask is not None or layer.input(_KEY_LENGTHS) is not None:
        e.note("a query whose mask leaves it no key gives NaN: TensorRT does not document what it gives")
    return scores


@lifts("ROTARY_EMBEDDING")
def _rotary(e: Emit, layer: Layer) -> str:
    """x [batch, heads, tokens, size]; cosines and sines [batch, tokens, half], or [positions, half] and the positions
    [batch, tokens]. Of the ``rotary_embedding_dim`` first elements of each head (0: all) two and two are turned:
    neighbors where interleaved, else one of the first half with one of the second."""
    data, size = layer.need(0), int(layer.native.rotary_embedding_dim)
    places = layer.input(3)
    _fits(layer)
    turns = []
    for cache in (layer.need(1), layer.need(2)):
        value = e.as_float(cache)
        if places is not None:
            value = e.op("Gather", value, e.of(places), axis=0)
        turns.append(e.op("Unsqueeze", value, e.ints([1])))
    cosine, sine = turns
    whole = e.as_float(data)
    part = e.op("Slice", whole, e.ints([0]), e.ints([size]), e.ints([-1])) if size else whole
    first, second = _pairs(e, part, bool(layer.native.interleaved))
    turned = [
        e.op("Sub", e.op("Mul", cosine, first), e.op("Mul", sine, second)),
        e.op("Add", e.op("Mul", sine, first), e.op("Mul", cosine, second)),
    ]
    if layer.native.interleaved:
        stacked = e.op("Concat", *(e.op("Unsqueeze", one, e.ints([4])) for one in turned), axis=4)
        result = e.op("Reshape", stacked, e.op("Shape", part))
    else:
        result = e.op("Concat", *turned, axis=-1)
    if size:
        rest = e.op("Slice", whole, e.ints([size]), e.ints([2**62]), e.ints([-1]))
        result = e.op("Concat", result, rest, axis=-1)
    return e.turn(result, "FLOAT", layer.outputs[0].dtype)


def _pairs(e: Emit, value: str, interleaved: bool) -> tuple[str, ...]:
    if not interleaved:
        return e.ops("Split", value, outputs=2, axis=-1, num_outputs=2)
    ends = e.ints([2**62]), e.ints([-1]), e.ints([2])
    return tuple(e.op("Slice", value, e.ints([start]), *ends) for start in (0, 1))


@lifts("KV_CACHE_UPDATE")
def _cache_update(e: Emit, layer: Layer) -> str:
    """The cache [batch, heads, places, size] with the new tokens of each sequence from its write index on. Indices
    beyond the cache are the caller's fault by the documentation; here they are an error or count from the end."""
    if layer.word("cache_mode") != "LINEAR":
        raise Unliftable(f"a key/value cache of mode {layer.word('cache_mode')}")
    form = layer.word("update_form", since=_FORMS, before=_PADDED)
    if form != _PADDED:
        raise Unliftable(f"an update of form {form}")
    cache, starts = e.of(layer.need(0)), e.as_type(layer.need(2), "INT64")
    # [batch, heads, tokens, size] -> [batch, tokens, heads, size]
    update = e.op("Transpose", e.of(layer.need(1)), perm=[0, 2, 1, 3])
    rows = e.op("Unsqueeze", e.range(e.size(cache, 0)), e.ints([1]))
    places = e.op("Add", e.op("Unsqueeze", starts, e.ints([1])), e.range(e.size(update, 1)))
    rows = e.op("Expand", rows, e.op("Shape", places))
    where = e.op("Concat", *(e.op("Unsqueeze", one, e.ints([-1])) for one in (rows, places)), axis=-1)
    written = e.op("ScatterND", e.op("Transpose", cache, perm=[0, 2, 1, 3]), where, update)
    return e.op("Transpose", written, perm=[0, 2, 1, 3])


def _fits(layer: Layer) -> None:
    if layer.outputs[0].shape is None:
        raise Unliftable("TensorRT finds no shape for the output: the inputs do not fit together")


def _dim(tensor: Tensor, axis: int) -> int:
    """One dimension as the network knows it: -1 where it is dynamic."""
    return tensor.shape[axis] if tensor.shape is not None else -1
