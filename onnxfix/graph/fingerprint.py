"""Recognizes a state that a model was in before, without keeping the states."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onnx import GraphProto

from onnxfix.files import walk
from onnxfix.graph.overlay import Node

if TYPE_CHECKING:
    from onnxfix.model import Model


def fingerprint(model: Model, digests: dict[Node, bytes]) -> bytes:
    """A hash of everything that fixes change. Initializers count by name, type and shape, not by their bytes.

    ``digests`` caches the hashes of the nodes.
    """
    from hashlib import blake2b  # lazy: start-up, brings OpenSSL

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
            for info in (*scope.proto.value_info, *scope.proto.output):
                digest.update(info.SerializeToString(deterministic=True))
    return digest.digest()


def _content(node: Node) -> bytes:
    """The parts of a node that fixes change, without its subgraphs: they are hashed as scopes of their own."""
    proto = node.proto
    if node.subgraphs:
        plain = [one for one in proto.attribute if not walk.attribute_graphs(one)]
        own = [one.SerializeToString(deterministic=True) for one in plain]
        return repr((proto.name, list(proto.input), list(proto.output), own)).encode()
    return bytes(proto.SerializeToString(deterministic=True))
