"""Tells whether a model has been in the same state before, without keeping the states."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onnx import GraphProto

from onnxfix.graph.overlay import Node

if TYPE_CHECKING:
    from onnxfix.model import Model


def fingerprint(model: Model, digests: dict[Node, bytes]) -> bytes:
    """A hash of everything that fixes change; initializers count by name and shape, never by their bytes.

    ``digests`` holds those of nodes that are known, and takes the others in.
    """
    from hashlib import blake2b  # brings OpenSSL, of which a small run may have no need

    digest = blake2b(digest_size=16)
    digest.update(repr([(entry.domain, entry.version) for entry in model.proto.opset_import]).encode())
    for scope in model.scopes:
        digest.update(scope.path.encode())
        for node in scope.nodes:
            if node not in digests:
                digests[node] = blake2b(_content(node), digest_size=16).digest()
        digest.update(b"".join(map(digests.__getitem__, scope.nodes)))
        if isinstance(scope.proto, GraphProto):
            for tensor in scope.proto.initializer:
                digest.update(repr((tensor.name, tensor.data_type, list(tensor.dims))).encode())
            for sparse in scope.proto.sparse_initializer:
                digest.update(repr((sparse.values.name, list(sparse.dims))).encode())
            for info in scope.proto.value_info:
                digest.update(info.SerializeToString(deterministic=True))
    return digest.digest()


def _content(node: Node) -> bytes:
    """What fixes change in a node. What its subgraphs hold is counted there: here that would be quadratic in depth."""
    proto = node.proto
    if node.subgraphs:
        own = [
            a.SerializeToString(deterministic=True)
            for a in proto.attribute
            if not (a.HasField("g") or a.graphs)
        ]
        return repr((proto.name, list(proto.input), list(proto.output), own)).encode()
    return bytes(proto.SerializeToString(deterministic=True))
