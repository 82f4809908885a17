"""The flow of values backward: the node that made a value, and the constants that it may be."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any

import onnx

from onnxfix.files import tensors
from onnxfix.verification.feeds.flow import Flow, Key, Site

if TYPE_CHECKING:
    import numpy.typing as npt

_SMALL = 1 << 16  # bytes of a constant that is looked at


class Backward:
    """A model's flow, read backward."""

    def __init__(self, flow: Flow) -> None:
        self._flow = flow

    def sites(self, op_types: Collection[str]) -> Iterator[Site]:
        """The nodes of these operators, in subgraphs and functions too."""
        calls = self._flow.functions
        found = (site for site in self._flow.sites if site.node.op_type in op_types)
        return (site for site in found if (site.node.domain, site.node.op_type) not in calls)

    def site_of(self, key: Key) -> Site | None:
        """The node that makes a value."""
        return self._makers.get(key)

    def sources(self, key: Key) -> list[Key]:
        """The values that this one holds, unchanged or merely rounded."""
        return self._kept_from.get(key, [])

    def is_main(self, key: Key) -> bool:
        """Whether it is a value of the main graph."""
        return key[0] == self._flow.main.number

    def reached_from(self, name: str) -> set[Key]:
        """The values that are computed from a graph input."""
        return self._flow.reach((self._flow.main.number, name), (self._flow.keeps, self._flow.changes))

    def constants(self, key: Key | None) -> list[npt.NDArray[Any]]:
        """The small constants that a value may be: one, unless it is a function's and that is called several times;
        none where it may be computed."""
        found: list[npt.NDArray[Any]] = []
        stack, seen = ([key] if key is not None else []), set[Key]()
        while stack:
            one = stack.pop()
            if one in seen:
                continue
            seen.add(one)
            tensor = self._tensor(one)
            array = tensors.to_array(tensor, None, _SMALL) if tensor is not None else None
            if array is not None:
                found.append(array)
                continue
            site = self._makers.get(one)
            formal = site is None or (site.node.domain, site.node.op_type) in self._flow.functions
            sources = self.sources(one) if formal or (site and site.node.op_type == "Identity") else []
            if tensor is not None or not sources:
                return []
            stack.extend(sources)
        return found

    def _tensor(self, key: Key) -> onnx.TensorProto | None:
        """The tensor of an initializer or a Constant; None of any other value."""
        scope, node = self._flow.scopes[key[0]], self._flow.scopes[key[0]].makers.get(key[1])
        if node is not None and node.op_type == "Constant":
            for attribute in node.attribute:
                if attribute.name in ("value", "value_float", "value_int"):
                    return _constant(attribute)
        return scope.tensors.get(key[1])

    @cached_property
    def _makers(self) -> dict[Key, Site]:
        return {key: site for site in self._flow.sites for key in site.outputs if key is not None}

    @cached_property
    def _kept_from(self) -> dict[Key, list[Key]]:
        found: dict[Key, list[Key]] = {}
        for source, targets in self._flow.keeps.items():
            for target in targets:
                found.setdefault(target, []).append(source)
        return found


def _constant(attribute: onnx.AttributeProto) -> onnx.TensorProto:
    if attribute.HasField("t"):
        return attribute.t
    if attribute.name == "value_int":
        return onnx.helper.make_tensor("", onnx.TensorProto.INT64, [], [attribute.i])
    return onnx.helper.make_tensor("", onnx.TensorProto.FLOAT, [], [attribute.f])
