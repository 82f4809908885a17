"""Details of how TensorRT imports a model, for ``--verbose``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnxfix.trt.reading import Misread, Reading


def network_lines(networks: Sequence[Reading]) -> Iterator[str]:
    """Lines about the imported networks of an original and of the fixed model, or of one model."""
    for name, one in zip(("original", "new") if len(networks) > 1 else ("network",), networks, strict=False):
        yield f"{name}: {', '.join(_figures(one))}"
        yield from (f"  {line}" for misread in one.misreads for line in _misread_lines(misread))


def _figures(one: Reading) -> Iterator[str]:
    outcomes = {
        "agrees": "read correctly",
        "differs": "read differently",
        "refused": "not imported",
        "broke": "not compared, by a bug in onnxfix",
    }
    yield outcomes.get(one.status, "not compared")
    if one.reason:
        yield one.reason
    kinds = ", ".join(f"{count} {kind}" for kind, count in one.layers)
    yield f"{one.layer_count} layer{'' if one.layer_count == 1 else 's'}{f' ({kinds})' if kinds else ''}"
    parse, lift, compare = one.seconds
    yield f"{parse:.2f} s to parse, {lift:.2f} s to read back, {compare:.2f} s to compare"


def _misread_lines(misread: Misread) -> Iterator[str]:
    yield f"{'harmless' if misread.harmless else 'differs'} {misread}"
    if misread.layers:
        yield f"  layers: {', '.join(misread.layers)}"
    if misread.feed:
        yield f"  on {misread.feed}"
