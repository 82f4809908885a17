"""Models whose inputs are given optimization profiles."""

from __future__ import annotations

from onnxfix.inputs.feeds.signature import Signature, signature
from support.models import model

RELU = "g (float[N,4] x) => (float[N,4] y) { y = Relu(x) }"
TWO = "g (float[N,S,4] x, float[N,T] w) => (float[N,S,4] y, float[N,T] z) { y = Relu(x)  z = Abs(w) }"
PAST = 'g (float[N,S] x, float[N,"S + 1"] p) => (float[N,S] y, float[N,A] z) { y = Relu(x)  z = Abs(p) }'
RESHAPE = "g (int64[2] s, float[N] x) => (float[A,B] y) { y = Reshape(x, s) }"


def known(text: str) -> Signature:
    return signature(model(text))
