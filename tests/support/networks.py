"""Pairs of models made by hand for the rung trt-network: an ONNX model, and what TensorRT is said to make of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import ModelProto, TensorProto

from onnxfix.proof.checks.builder import Builder
from onnxfix.proof.readback import network as trt_network
from onnxfix.proof.verdict import RungResult
from onnxfix.proof.verify import verify
from onnxfix.runtime.sandbox import Worker, shared
from onnxfix.tensorrt.lift.records import ONNX_TYPES, Lifted, NetTensor
from onnxfix.tensorrt.package import Choice
from onnxfix.tensorrt.records import TrtOptions
from support.models import model, write

_NATIVE = {elem: name for name, elem in ONNX_TYPES.items()}


def lifted(network: ModelProto, out: Path, **more: Any) -> Lifted:
    """Write a model as the network that TensorRT made, each node a layer of the ONNX node whose output it is called
    like. Every tensor has the same name on both sides."""
    for node in network.graph.node:
        for key, value in (("onnx_node", f"node_of_{node.output[0]}"), ("trt_kind", node.op_type.upper())):
            node.metadata_props.add(key=key, value=value)
        node.metadata_props.add(key="trt_layer", value=f"node_of_{node.output[0]}")
        node.name = f"node_of_{node.output[0]}/{node.op_type}"
    onnx.save(network, out)
    made = [name for node in network.graph.node for name in node.output]
    ends = ([_described(info) for info in infos] for infos in (network.graph.input, network.graph.output))
    inputs, outputs = map(tuple, ends)
    names = {name: name for name in (*made, *(tensor.name for tensor in inputs))}
    base = Lifted("lifted", "", str(out), inputs, outputs, names, package="tensorrt-rtx", version="1.7.1.116")
    return replace(base, **more)


def _described(info: onnx.ValueInfoProto) -> NetTensor:
    tensor = info.type.tensor_type
    dims = tuple(dim.dim_param or dim.dim_value for dim in tensor.shape.dim)
    return NetTensor(info.name, _NATIVE[tensor.elem_type or TensorProto.FLOAT], dims)


#: What TensorRT makes of a model file: a network in text or as a model, or a record.
Makes = Callable[[Path, Path], Lifted]


@dataclass
class Stage:
    """Climbs the rung on models whose networks are given. ``asked`` collects the files that were read back."""

    folder: Path
    monkeypatch: pytest.MonkeyPatch
    asked: list[str]
    worker: Worker

    def climb(
        self,
        original: tuple[Any, Any],
        fixed: tuple[Any, Any] | None = None,
        *,
        inherit: bool = True,
        **more: Any,
    ) -> RungResult:
        """The rung for an original and a fixed model, each with its network: text, a model, or a Lifted. ``lifts`` are
        fields of both records."""
        lifts = more.pop("lifts", {})
        pairs = {"original.onnx": original, "fixed.onnx": fixed or original}
        for name, (said, _) in pairs.items():
            write(self.folder / name, said)
        second = "fixed.onnx" if fixed is not None else "original.onnx"

        def attempt(worker: Worker, path: Path, out: Path, *, package: str, timeout: float) -> Lifted:
            self.asked.append(Path(path).name)
            network = pairs[Path(path).name][1]
            if isinstance(network, Lifted):
                return network
            return lifted(model(network) if isinstance(network, str) else network, Path(out), **lifts)

        choice = Choice("tensorrt-rtx", "1.7.1.116", "8.9", None)
        self.monkeypatch.setattr(trt_network.lift, "attempt", attempt)
        self.monkeypatch.setattr(
            trt_network, "builder", lambda options: Builder(choice, options, shared("tensorrt"))
        )
        trt_network._LAST.clear()
        paths = self.folder / "original.onnx", self.folder / second
        verdict = verify(
            *paths,
            exact=False,
            rungs=["trt-network"],
            inherit=inherit,
            worker=self.worker,
            trt=TrtOptions(),
            **more,
        )
        return verdict.rungs[0]
