"""Optimization profiles: from what the user gave, else made from the model's symbols.

Equal symbols get equal sizes in all inputs. Unequal ones get equal sizes too at first: exporters name one dimension
differently in each input (PyTorch's ``s12`` and ``s86``), and TensorRT refuses a profile whose usual sizes do not fit
each other. The usual size is 3 and not 1 or 2, because those are the sizes that models are traced with: a batch that
the exporter froze must not pass for a dynamic one by chance.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx
from google.protobuf.message import Error

from onnxfix.errors import UsageError
from onnxfix.inputs.sizes.search import Search
from onnxfix.shapes import dimnames
from onnxfix.tensorrt.records import Profile, Sizes, Triple

BASE: Sizes = (1, 3, 8)
#: For heights and widths: TensorRT builds an image network for 3x3 pixels too, of which its convolutions leave nothing.
SPATIAL: Sizes = (32, 64, 128)
#: For models that want more of every dimension but the leading ones: windows, strides, images. The usual sizes are
#: even and large; the leading dimensions stay at BASE.
GROWN: tuple[Sizes, ...] = ((4, 4, 8), (16, 16, 32), (64, 64, 128), (224, 224, 256))
_LARGE = 2**31 - 1


@dataclass(frozen=True)
class NetInput:
    """An input of the imported network. ``dims`` are sizes and, for dynamic dimensions, symbols."""

    name: str
    dims: tuple[int | str, ...]
    is_shape_tensor: bool

    @property
    def dynamic(self) -> bool:
        return any(isinstance(dim, str) for dim in self.dims)


def inputs_of(network: Any) -> list[NetInput]:
    """The inputs of a TensorRT network; a dynamic dimension without a name is ``input.axis``."""
    found = []
    for number in range(network.num_inputs):
        tensor = network.get_input(number)
        dims = tuple(
            size if size >= 0 else named(tensor.get_dimension_name(axis) or "") or f"{tensor.name}.{axis}"
            for axis, size in enumerate(tensor.shape)
        )
        found.append(NetInput(tensor.name, dims, bool(tensor.is_shape_tensor)))
    return found


def named(dim: str) -> str:
    """The name of a dimension. TensorRT takes any text for a name and what has it for one size, even "?"."""
    return dim if not dim or dimnames.own(dim) else f"size_{dim.encode().hex()}"


def with_names(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model with the dimensions of inputs named as in TensorRT: itself where they already are."""
    dims = [dim for one in proto.graph.input for dim in one.type.tensor_type.shape.dim]
    if all(named(dim.dim_param) == dim.dim_param for dim in dims):
        return proto
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    for one in copy.graph.input:
        for dim in one.type.tensor_type.shape.dim:
            if dim.dim_param:
                dim.dim_param = named(dim.dim_param)
    return copy


def candidates(
    inputs: Sequence[NetInput],
    given: Profile | None,
    graph: onnx.GraphProto | None,
    search: Search | None = None,
) -> Iterator[Profile]:
    """Profiles to try, in order; none for a static model. ``given`` fixes a part or all of it.

    ``graph`` tells what shape tensors are used for, and ``search`` finds sizes that the model takes: they come before
    sizes that it does not take. A later profile is worth trying only if TensorRT's messages mean "profile".

    Raises:
        UsageError: a ``strict`` profile has values for an input whose values TensorRT does not ask for.
    """
    given = Profile() if given is None else given
    _no_stray_values(inputs, given)
    needed = [one for one in inputs if one.dynamic or one.is_shape_tensor]
    if not needed:
        return
    bound = _bound(inputs, given)
    symbols = [dim for one in inputs for dim in one.dims if isinstance(dim, str)]
    leading = {one.dims[0] for one in inputs if one.dims}
    spatial = _spatial(inputs)
    tried: list[Profile] = []
    for image, grown in ((SPATIAL, BASE), *((size, size) for size in (BASE, *GROWN))):
        sizes = {
            name: bound.get(name, BASE if name in leading else image if name in spatial else grown)
            for name in symbols
        }
        for chosen in (_near(search, sizes, bound), sizes):
            profile = _profile(needed, given, chosen, graph)
            if profile not in tried:
                tried.append(profile)
                yield profile


def _near(
    search: Search | None, sizes: Mapping[str, Sizes], bound: Mapping[str, Sizes]
) -> Mapping[str, Sizes]:
    """The sizes, or near to them those that the model takes: least, usual and greatest; bound ones stay."""
    if search is None:
        return sizes
    rows: list[Mapping[str, int]] = []
    for column in range(3):
        before = rows[-1] if rows else {}
        # Sizes that had to grow beyond what was thought of grow further, so that there is a range.
        wish = {
            name: triple[column] if before.get(name, 0) <= triple[column] else 2 * before[name]
            for name, triple in sizes.items()
        }
        try:
            found = search.near(wish, {name: triple[column] for name, triple in bound.items()})
        except (MemoryError, Error):  # memory is limited here, and TensorRT is to report it
            return sizes
        if found is None or any(found.get(name, size) < size for name, size in before.items()):
            return sizes
        rows.append({name: found.get(name, wish[name]) for name in wish})
    # Where the model says that it takes more than the one size that it takes, TensorRT is to say so.
    if any(rows[0][name] == rows[2][name] for name, (low, _, high) in sizes.items() if low < high):
        return sizes
    return {name: (rows[0][name], rows[1][name], rows[2][name]) for name in sizes}


def _no_stray_values(inputs: Sequence[NetInput], given: Profile) -> None:
    """A user's profile must be used in full; other profiles have values just in case."""
    for one in inputs if given.strict else ():
        if one.name in given.values and one.name not in given.shapes and not one.is_shape_tensor:
            shape = "x".join(map(str, one.dims)) or "scalar"
            given_values = "x".join(map(str, given.values[one.name][1]))
            raise UsageError(
                f"input {one.name} is not a shape tensor in TensorRT: its profile needs the shape {shape}, "
                f"not values {given_values}"
            )


def _spatial(inputs: Sequence[NetInput]) -> set[int | str]:
    """Symbols that look like heights and widths: two or more dynamic dimensions behind batch and channels."""
    found: set[int | str] = set()
    for one in inputs:
        behind = [dim for dim in one.dims[2:] if isinstance(dim, str)]
        if len(one.dims) >= 4 and len(behind) >= 2:
            found.update(behind)
    return found


def add(builder: Any, config: Any, profile: Profile) -> str:
    """Add a profile to TensorRT's configuration; returns what is wrong with it, "" for nothing."""
    made = builder.create_optimization_profile()
    try:
        for name, triple in profile.shapes.items():
            made.set_shape(name, *triple)
        for name, triple in profile.values.items():
            made.set_shape_input(name, *triple)
        if config.add_optimization_profile(made) >= 0:
            return ""
    except (TypeError, ValueError, RuntimeError) as error:
        return " ".join(str(error).split())
    return f"TensorRT rejects this profile: {dict(profile.shapes)} {dict(profile.values)}"


def _bound(inputs: Sequence[NetInput], given: Profile) -> dict[str, Sizes]:
    """Sizes of symbols that are given, and that the given shapes fix."""
    found = dict(given.symbols)
    for one in inputs:
        triple = given.shapes.get(one.name)
        if triple is not None and all(len(shape) == len(one.dims) for shape in triple):
            for axis, dim in enumerate(one.dims):
                if isinstance(dim, str):
                    found.setdefault(dim, (triple[0][axis], triple[1][axis], triple[2][axis]))
    return found


def _profile(
    needed: Sequence[NetInput], given: Profile, sizes: Mapping[str, Sizes], graph: onnx.GraphProto | None
) -> Profile:
    shapes: dict[str, Triple] = {}
    values: dict[str, Triple] = {}
    for one in needed:
        if one.is_shape_tensor:
            values[one.name] = given.values.get(one.name) or _values(one, sizes, graph)
        if one.dynamic:
            shapes[one.name] = given.shapes.get(one.name) or _shape(one.dims, sizes)
    chosen = {*given.shapes, *given.values}
    derived = given.derived or any(one.name not in chosen for one in needed)
    return Profile(shapes, values, derived=derived)


def _shape(dims: Sequence[int | str], sizes: Mapping[str, Sizes]) -> Triple:
    """A shape. Its dimensions are sizes, symbols, or arithmetic on symbols such as ``past + 1``."""
    rows = []
    for column in range(3):
        chosen = {name: triple[column] for name, triple in sizes.items()}
        rows.append(tuple(dim if isinstance(dim, int) else evaluate(dim, chosen) for dim in dims))
    return rows[0], rows[1], rows[2]


def evaluate(dim: str, sizes: Mapping[str, int]) -> int:
    """The size of the dimension ``dim``; its own, where it is no arithmetic on other names of ``sizes``."""
    found = dimnames.evaluate(dim, {name: size for name, size in sizes.items() if name != dim})
    return sizes[dim] if found is None else found


# ------------------------------------------------------------------------------- values of shape tensors

#: (operator, operand) -> (min, opt, max) of each element. What is missing here is a size.
_BY_USE: dict[tuple[str, int], Sizes] = {
    ("Slice", 1): (0, 0, 0), ("Slice", 2): (1, _LARGE, _LARGE), ("Slice", 4): (1, 1, 1), ("Tile", 1): (1, 1, 2),
    ("Pad", 1): (0, 0, 1), ("TopK", 1): (1, 1, 1), ("Range", 0): (0, 0, 0), ("Range", 2): (1, 1, 1),
    ("CumSum", 1): (0, 0, 0), ("Trilu", 1): (0, 0, 0), ("Expand", 1): (1, 1, 1), ("Reshape", 1): (-1, -1, -1),
    ("Upsample", 1): (1, 1, 1), ("Gather", 1): (0, 0, 0), ("Loop", 1): (1, 1, 1), ("If", 0): (0, 1, 1),
}  # fmt: skip
_LOOKED_UP = ("Add", 0)
"""Axes that a table is looked up by (Add, then Gather), which is how OPS041 and OPS042 write them."""
_AXES = {("Slice", 3), ("Squeeze", 1), ("Unsqueeze", 1), ("Pad", 3), _LOOKED_UP}


def _values(one: NetInput, sizes: Mapping[str, Sizes], graph: onnx.GraphProto | None) -> Triple:
    count = 1
    for dim in one.dims:
        count *= dim if isinstance(dim, int) else sizes[dim][1]
    use = _use(one.name, graph)
    if use in _AXES or use[0].startswith("Reduce"):
        row = tuple(range(count))
        return row, row, row
    if use == ("Reshape", 1):  # one row of everything fits whatever the data's volume is
        row = (-1, *[1] * (count - 1))[:count]
        return row, row, row
    least, usual, most = _BY_USE.get(use, BASE)
    return (least,) * count, (usual,) * count, (most,) * count


def _use(name: str, graph: onnx.GraphProto | None) -> tuple[str, int]:
    """The first operand that the input ends in, looking through what only passes values on."""
    names, shifted = {name}, set[str]()
    for node in graph.node if graph is not None else ():
        for position, operand in enumerate(node.input):
            use = node.op_type, position
            if operand in shifted and use == ("Gather", 1):
                return _LOOKED_UP
            if (use == ("Squeeze", 0) and operand in shifted) or (use == ("Add", 0) and operand in names):
                shifted.update(node.output)
            elif operand in names:
                if node.op_type not in ("Cast", "Identity", "Unsqueeze", "Squeeze", "Concat") or position:
                    return use
                names.update(node.output)
    return "", 0
