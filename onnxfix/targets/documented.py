"""What NVIDIA documents of each release of TensorRT: operators, element types, restrictions. They are read from the
tables beside this file, which name their sources.

A list says what its authors intended to support. It contains types that the parser refuses, and omits others that it
accepts: ``onnxfix.targets`` compares the lists with the measurements.

NVIDIA's plugins, for which the parser looks when it has no importer of an operator's name, are read from the plugin
registries of TensorRT 8.6.1, 10.6.0, 10.15.1 and 11.2.1 and of TensorRT-RTX 1.7.1, without those that convert weights
inside of TensorRT. Between two of these, the release in which a plugin came or went is that of NVIDIA's sources
(plugin/ of NVIDIA/TensorRT, branches release/8.6 to release/11.1), if they have it.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

Types = dict[str, frozenset[str]]
"""Operator -> ONNX's names of element types."""
Version = tuple[int, ...]


def table(groups: Mapping[str, str]) -> Types:
    """Operators with their types, from groups of operators that share them: "types" -> "operators"."""
    return {name: frozenset(types.split()) for types, names in groups.items() for name in names.split()}


def names(text: str) -> frozenset[str]:
    """The names in a text."""
    return frozenset(text.split())


def notes(groups: Mapping[str, str]) -> dict[str, str]:
    """Operator -> restriction, from "operators" -> restriction."""
    return {name: text for words, text in groups.items() for name in words.split()}


def version_of(text: str) -> Version:
    """(10, 3) for 10.3."""
    return tuple(map(int, text.split(".")))


def text_of(version: Version) -> str:
    """10.3 for (10, 3)."""
    return ".".join(map(str, version))


def _rows(name: str) -> Iterator[list[str]]:
    """The rows of a table, without its comments and its header."""
    lines = Path(__file__).with_name(f"{name}.tsv").read_text("utf-8").splitlines()
    rows = (line.split("\t") for line in lines if not line.startswith("#"))
    next(rows)
    return rows


class Release(NamedTuple):
    """A release. ``opset`` is the newest that it imports, ``listed`` whether its list of operators was read, ``types``
    are those that tensors may have, ``jetpacks`` the versions of JetPack that ship it."""

    opset: str
    listed: bool
    types: frozenset[str]
    jetpacks: tuple[str, ...]


RELEASES: dict[Version, Release] = {
    version_of(version): Release(opset, listed == "yes", names(types), tuple(jetpacks.strip("-").split()))
    for version, opset, listed, types, jetpacks in _rows("releases")
}
"""In their order."""


class Facts(NamedTuple):
    """What a release imports: operators with the types that are listed for them, those that it does not import, and the
    restrictions of those that it does. All others are unknown."""

    types: Types
    missing: frozenset[str]
    notes: dict[str, str]


class Row(NamedTuple):
    """What holds for operators in all releases from ``first`` to ``last``: see the head of operators.tsv."""

    operators: frozenset[str]
    first: Version
    last: Version
    types: str
    restriction: str
    source: str


@cache
def operator_rows() -> list[Row]:
    """The rows of operators.tsv."""
    return [
        Row(names(operators), version_of(first), version_of(last), *rest)
        for operators, first, last, *rest in _rows("operators")
    ]


def facts_of(version: Version) -> Facts:
    """The facts of a release."""
    types: Types = {}
    missing: frozenset[str] = frozenset()
    restrictions: dict[str, list[str]] = {}
    for operators, first, last, listed, restriction, _ in operator_rows():
        if not first <= version <= last:
            continue
        if listed == "no":
            missing |= operators
        elif listed != "-":
            types.update(dict.fromkeys(operators, names(listed)))
        for name in operators if restriction else ():
            restrictions.setdefault(name, []).append(restriction)
    return Facts(types, missing, {name: "; ".join(texts) for name, texts in restrictions.items()})


def describe_lists(version: Version) -> str:
    """Which lists say so: that of the release, or those before and after it."""
    known = [one for one, release in RELEASES.items() if release.listed]
    around = [max((one for one in known if one <= version), default=None)]
    around += [min((one for one in known if one >= version), default=None)]
    return " and ".join(dict.fromkeys(text_of(one) for one in around if one is not None))


#: A known fault, in the words of its source (faults.tsv says what each column is).
Fault = namedtuple(
    "Fault", "id first last fixed where pattern effect certainty workaround rule source read words"
)


@cache
def faults() -> dict[str, Fault]:
    """All known faults, by id."""
    return {row[0]: Fault(*row) for row in _rows("faults")}


def faults_of(version: Version) -> list[Fault]:
    """The known faults of a release."""
    return [
        fault
        for fault in faults().values()
        if version_of(fault.first) <= version and (not fault.last or version <= version_of(fault.last))
    ]


class Shipped(NamedTuple):
    """The first release with a plugin, and the first one without it; () for none."""

    since: tuple[int, ...]
    gone: tuple[int, ...] = ()


SHIPPED: dict[str, Shipped] = {
    name: releases
    for text, releases in {
        "CropAndResizeDynamic CustomEmbLayerNormPluginDynamic CustomFCPluginDynamic CustomQKVToContextPluginDynamic "
        "CustomSkipLayerNormPluginDynamic DLRM_BOTTOM_MLP_TRT DecodeBbox3DPlugin DetectionLayer_TRT "
        "DisentangledAttention_TRT EfficientNMS_Explicit_TF_TRT EfficientNMS_Implicit_TF_TRT EfficientNMS_TRT "
        "FlattenConcat_TRT GenerateDetection_TRT GridAnchorRect_TRT GridAnchor_TRT GroupNormalizationPlugin "
        "InstanceNormalization_TRT ModulatedDeformConv2d MultilevelCropAndResize_TRT MultilevelProposeROI_TRT "
        "MultiscaleDeformableAttnPlugin_TRT PillarScatterPlugin PriorBox_TRT ProposalLayer_TRT PyramidROIAlign_TRT "
        "ROIAlign_TRT RPROI_TRT Region_TRT Reorg_TRT ResizeNearest_TRT RnRes2FullFusion_TRT ScatterND "
        "SmallTileGEMM_TRT VoxelGeneratorPlugin": Shipped((8, 6)),
        "BatchTilePlugin_TRT BatchedNMSDynamic_TRT BatchedNMS_TRT Clip_TRT CoordConvAC CropAndResize "
        "CustomGeluPluginDynamic EfficientNMS_ONNX_TRT LReLU_TRT NMSDynamic_TRT NMS_TRT Normalize_TRT Proposal "
        "ProposalDynamic SpecialSlice_TRT Split": Shipped((8, 6), (11, 0)),
        "RNNTEncoderPlugin RnRes2Br1Br2c_TRT RnRes2Br2bBr2c_TRT SingleStepLSTMPlugin": Shipped(
            (8, 6), (10, 15)
        ),
        "ScatterElements": Shipped((10, 0)),
        "TopkLastDim": Shipped((11, 0)),
        "FFTPlugin": Shipped((11, 2)),
    }.items()
    for name in text.split()
}

#: What to use instead of plugins that are gone: NVIDIA's notes on their deprecation, in ONNX's operators.
INSTEAD = notes(
    {
        "BatchTilePlugin_TRT": "ONNX's Tile",
        "BatchedNMSDynamic_TRT BatchedNMS_TRT NMSDynamic_TRT NMS_TRT": "EfficientNMS_TRT or ONNX's NonMaxSuppression",
        "Clip_TRT": "ONNX's Clip",
        "CropAndResize": "CropAndResizeDynamic",
        "CustomGeluPluginDynamic": "ONNX's Gelu",
        "EfficientNMS_ONNX_TRT": "ONNX's NonMaxSuppression",
        "LReLU_TRT": "ONNX's LeakyRelu",
        "Normalize_TRT": "ONNX's LpNormalization and Mul",
        "SpecialSlice_TRT": "ONNX's Slice",
    }
)


def shipped(release: tuple[int, ...]) -> frozenset[str]:
    """The plugins that a release of TensorRT ships. Those of 8.4 and 8.5 were not read: they count as 8.6."""
    read = max(release, (8, 6))
    return frozenset(
        name for name, (since, gone) in SHIPPED.items() if since <= read and (not gone or read < gone)
    )


RTX = names("ROIAlign_TRT")
