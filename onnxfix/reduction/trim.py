"""Simpler parts of the same nodes: constants as initializers, static and smaller shapes, zeros for weights, attributes
at their defaults, and nothing that is not read; and bodies in place of the model: the branch of an If, one iteration of
a Loop or a Scan on the values that it gets, the bodies of local functions in place of their calls."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, ValueInfoProto, defs

from onnxfix.diagnosis.graph import Graph
from onnxfix.diagnosis.iterations import ENTERED, Body, Unknown, iterations
from onnxfix.errors import Fault
from onnxfix.files import lazy, tensors, walk
from onnxfix.reduction import case as cases
from onnxfix.reduction.case import Case
from onnxfix.reduction.search import Reducer

_LARGEST = 64 << 20  # bytes of a tensor that is looked at
_TRIES = 64  # sizes, weights and attributes that are tried, of each


def constants(reducer: Reducer) -> bool:
    """Constant nodes of the main graph become initializers."""
    model = reducer.case.copy()
    graph = model.graph
    place, left = reducer.failure.place.label, []
    for node in graph.node:
        array = tensors.constant_node_array(node, None, _LARGEST) if node.op_type == "Constant" else None
        if array is None or not node.output or node.output[0] == place or array.dtype.kind == "O":
            left.append(node)
        else:
            graph.initializer.append(cases.tensor_of(node.output[0], np.asarray(array)))
    if len(left) == len(graph.node):
        return False
    cases.refill(graph.node, left)
    results = {info.name for info in graph.output}
    if not left or results & {tensor.name for tensor in graph.initializer}:
        return False
    return reducer.attempt(reducer.case.with_model(model), "constants as initializers")


def static(reducer: Reducer) -> bool:
    """All inputs get the shapes of their values. Where that loses the failure, symbolic sizes are kept from here on."""
    model = reducer.case.copy()
    dynamic = False
    for info in model.graph.input:
        value = reducer.case.inputs.get(info.name)
        before = [dim.dim_value for dim in info.type.tensor_type.shape.dim]
        if isinstance(value, np.ndarray) and before != list(value.shape):
            dynamic = True
            info.CopyFrom(cases.info_of(info.name, value))
    if not dynamic:
        return False
    del model.graph.value_info[:]
    for info in model.graph.output:
        _open(info)
    done = reducer.attempt(reducer.case.with_model(model), "static shapes")
    reducer.dynamic = not done
    return done


def _open(info: ValueInfoProto) -> None:
    """Leave all sizes of a declaration open, but not its rank."""
    for dim in info.type.tensor_type.shape.dim:
        dim.ClearField("value")


def declared(reducer: Reducer) -> bool:
    """Outputs get the types and shapes that they have when the model is run."""
    if not reducer.runs:
        return False
    values = reducer.values.run(reducer.case).values
    model = reducer.case.copy()
    for info in model.graph.output:
        if isinstance(values.get(info.name), np.ndarray):
            info.CopyFrom(cases.info_of(info.name, values[info.name]))
    changed = model != reducer.case.model
    return changed and reducer.attempt(reducer.case.with_model(model), "declared outputs")


def cleaned(reducer: Reducer) -> bool:
    """Without what nothing reads: initializers, inputs, declarations, metadata, imports of domains."""
    before = reducer.case
    model = before.copy()
    graph = model.graph
    del graph.value_info[:], model.metadata_props[:]
    for name in ("doc_string", "producer_name", "producer_version", "domain"):
        model.ClearField(name)
    graph.ClearField("doc_string")
    used = {""}
    for node in walk.model_nodes(model):
        used.add(walk.domain_of(node.domain))
        node.ClearField("doc_string")
        node.ClearField("metadata_props")
    imports = [one for one in model.opset_import if walk.domain_of(one.domain) in used]
    cases.refill(model.opset_import, imports)
    bare = before.with_model(model).copy()
    read = {name for node in bare.graph.node for name in walk.reads(node)}
    read |= {info.name for info in bare.graph.output}
    cases.refill(bare.graph.initializer, [one for one in bare.graph.initializer if one.name in read])
    cases.refill(bare.graph.input, [info for info in bare.graph.input if info.name in read])
    for candidate in (bare, model):  # the second keeps what is stored
        if candidate == before.model or reducer.attempt(before.with_model(candidate), "nothing unused"):
            break
    return reducer.case is not before


# --------------------------------------------------------------------------------------------------------- shapes


def sizes(reducer: Reducer) -> bool:
    """Smaller dimensions: each size is replaced everywhere, in inputs, weights and the shapes that nodes read."""
    before = reducer.case
    shapes = [list(one.dims) for one in before.model.graph.initializer]
    shapes += [list(value.shape) for value in before.inputs.values() if isinstance(value, np.ndarray)]
    found = {size for shape in shapes for size in shape if size > 1}
    for size in sorted(found, reverse=True)[:_TRIES]:
        for smaller in dict.fromkeys(n for n in (1, 2, 3, 4, 8, size // 4, size // 2) if 0 < n < size):
            if reducer.attempt(_resized(reducer.case, size, smaller), f"{smaller} for {size} in shapes"):
                reducer.values.forget()
                break
    return reducer.case is not before


def _resized(case: Case, size: int, smaller: int) -> Case | None:
    """The case with one size replaced by another; None where nothing has it that may be cut."""
    model = case.copy()
    inputs = {name: _cut(value, size, smaller) for name, value in case.inputs.items()}
    for info in model.graph.input:
        for dim in info.type.tensor_type.shape.dim:
            if dim.dim_value == size:
                dim.dim_value = smaller
    for tensor in model.graph.initializer:
        array = _array(tensor)
        if array is None:
            return None
        new = _cut(array, size, smaller)
        if cases.makes_shapes(array):
            new = np.where(new == size, np.asarray(smaller, new.dtype), new).reshape(new.shape)
        if new.shape != array.shape or not np.array_equal(new, array):
            tensor.CopyFrom(cases.tensor_of(tensor.name, new))
    for info in model.graph.output:
        _open(info)
    del model.graph.value_info[:]
    return case.with_model(model, inputs=inputs)


def _cut(value: Any, size: int, smaller: int) -> Any:
    if not isinstance(value, np.ndarray) or size not in value.shape:
        return value
    return np.ascontiguousarray(value[tuple(slice(smaller if one == size else None) for one in value.shape)])


def _array(tensor: TensorProto) -> np.ndarray[Any, Any] | None:
    return tensors.to_array(tensor, None, _LARGEST)


# ------------------------------------------------------------------------------------------- weights and attributes


def weights(reducer: Reducer) -> bool:
    """Zeros, or ones, in floating-point weights, all at once or one by one; and one weight for several equal ones."""
    before = reducer.case
    kinds = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)
    floats = [one for one in reducer.case.model.graph.initializer if one.data_type in kinds]
    names = [one.name for one in floats if tensors.element_count(one.dims) > 1][:_TRIES]
    if not (len(names) > 1 and reducer.attempt(_filled(reducer.case, names, 0.0), "weights of zeros")):
        for name in names:
            if not reducer.attempt(_filled(reducer.case, [name], 0.0), "weights of zeros"):
                reducer.attempt(_filled(reducer.case, [name], 1.0), "weights of ones")
    if reducer.case is not before:
        reducer.values.forget()
    reducer.attempt(_merged(reducer.case), "equal weights once")
    return reducer.case is not before


def _filled(case: Case, names: list[str], number: float) -> Case | None:
    model, changed = case.copy(), False
    for tensor in model.graph.initializer:
        array = _array(tensor) if tensor.name in names else None
        if array is not None and not (array == array.dtype.type(number)).all():
            tensor.CopyFrom(cases.tensor_of(tensor.name, np.full(array.shape, number).astype(array.dtype)))
            changed = True
    return case.with_model(model) if changed else None


def _merged(case: Case) -> Case | None:
    model = case.copy()
    first: dict[bytes, str] = {}
    names: dict[str, str] = {}
    results = {info.name for info in model.graph.output}
    for tensor in model.graph.initializer:
        plain = walk.copied(tensor)
        plain.ClearField("name")
        kept = first.setdefault(plain.SerializeToString(deterministic=True), tensor.name)
        if kept != tensor.name and tensor.name not in results:
            names[tensor.name] = kept
    if not names:
        return None
    for node in walk.nodes(model.graph.node):
        node.input[:] = [names.get(name, name) for name in node.input]
    cases.refill(model.graph.initializer, [one for one in model.graph.initializer if one.name not in names])
    return case.with_model(model)


def attributes(reducer: Reducer) -> bool:
    """Without attributes that have a default value."""
    before = reducer.case
    tried = 0
    for number, stored in enumerate(before.model.graph.node):
        domain = walk.domain_of(stored.domain)
        imports = (one for one in before.model.opset_import if walk.domain_of(one.domain) == domain)
        try:
            known = defs.get_schema(stored.op_type, next(imports).version, domain).attributes
        except (defs.SchemaError, StopIteration):
            continue
        for name in [one.name for one in stored.attribute]:
            if name not in known or known[name].required or tried >= _TRIES:
                continue
            tried += 1
            model = reducer.case.copy()
            node = model.graph.node[number]
            cases.refill(node.attribute, [one for one in node.attribute if one.name != name])
            if reducer.attempt(reducer.case.with_model(model), "attributes at defaults"):
                reducer.values.forget()
    return reducer.case is not before


_ITERATIONS = 8
"""Iterations that are tried."""


def opened(reducer: Reducer) -> bool:
    """Take whatever body keeps the failure. Returns whether any did."""
    before = reducer.case
    while any(_attempt(reducer, what, candidate) for what, candidate in _candidates(reducer)):
        reducer.values.forget()  # of a branch that is not taken, or of another iteration
    return reducer.case is not before


def _attempt(reducer: Reducer, what: str, candidate: Case | None) -> bool:
    """Try a case with a body in it: the failure may be at a node that was inside, or has another operator now."""
    if candidate is None:
        return False
    before = {name: node.op_type for node in reducer.case.model.graph.node for name in node.output}
    nodes = candidate.model.graph.node
    new = {name for node in nodes for name in node.output if before.get(name) != node.op_type}
    return reducer.attempt(candidate, what, new)


def _candidates(reducer: Reducer) -> Iterator[tuple[str, Case | None]]:
    if reducer.case.model.functions:
        yield "the bodies of functions", _functions_inlined(reducer)
    for number, node in enumerate(reducer.case.model.graph.node):
        if node.op_type not in ENTERED or node.domain:
            continue
        names = ["body"]
        if node.op_type == "If":
            names = ["then_branch", "else_branch"]
            value = (reducer.values.of(reducer.case, [node.input[0]]) or {}).get(node.input[0])
            if value is not None and not np.asarray(value).reshape(-1)[:1].all():
                names.reverse()  # the branch that is taken comes first
        for name in names:
            for candidate in bodies(reducer, number, name):
                yield "one branch" if node.op_type == "If" else "one iteration", candidate


def _functions_inlined(reducer: Reducer) -> Case | None:
    """The case with the nodes of all local functions in place of their calls; None where ONNX cannot inline them."""
    try:
        data = reducer.values.bench.call("inlined", model=reducer.case.model.SerializeToString())
    except Fault:
        return None
    return reducer.case.with_model(ModelProto.FromString(data))


def bodies(reducer: Reducer, number: int, name: str) -> Iterator[Case]:
    """The graph ``name`` of a node as a case of its own: of a Loop or Scan one case for each iteration."""
    case = reducer.case
    node = case.model.graph.node[number]
    alone = cases.part(case.model, {number}, [ValueInfoProto(name=one) for one in node.output if one])
    for tensor in walk.model_tensors(alone):
        tensor.CopyFrom(lazy.with_payload(tensor))
    graph = Graph(alone)
    known = reducer.known([one for one in graph.reads[0] if not graph.is_constant(one)])
    if known is None:
        return
    fixed = cases.fixed_values(case.model.graph)
    try:
        body = Body(graph, 0, known, name)
        # The number of a Loop's iteration and its condition.
        fixed |= set(body.formal[:2]) if node.op_type == "Loop" else set()
        for now in itertools.islice(iterations(body, reducer.values.bench), _ITERATIONS):
            feed = {one: np.asarray(value) for one, value in body.feed(now.formal).items()}
            inputs = {k: v for k, v in feed.items() if k not in fixed and not cases.makes_shapes(v)}
            model = body.model(feed, inputs).proto
            del model.graph.value_info[:]
            cases.refill(model.graph.input, [cases.info_of(*one) for one in inputs.items()])
            made = cases.producers(model.graph)
            outputs = model.graph.output[node.op_type == "Loop" :]
            cases.refill(model.graph.output, [info for info in outputs if info.name in made])
            yield case.with_model(model, inputs=inputs)
    except (Unknown, IndexError, KeyError, ValueError):
        return
