"""NVIDIA's plugins by name. TensorRT's ONNX parser looks for a plugin of an operator's name when it has no importer.

Read from the plugin registries of TensorRT 8.6.1, 10.6.0, 10.15.1 and 11.2.1 and of TensorRT-RTX 1.7.1, without those
that convert weights inside of TensorRT. Between two of these, the release in which a plugin came or went is that of
NVIDIA's sources (plugin/ of NVIDIA/TensorRT, branches release/8.6 to release/11.1), if they have it.
"""

from __future__ import annotations

from typing import NamedTuple

from onnxfix.targets.documented import names, notes


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
