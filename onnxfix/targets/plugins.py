"""The plugins that TensorRT ships, by name: read from the registries of its libraries 8.6.1, 10.6.0, 10.15.1 and
11.2.1, and of TensorRT-RTX 1.7.1. The ONNX parser looks for one where it has no importer for an operator."""

from __future__ import annotations

from onnxfix.targets.documented import names

_ALL = names(
    "CustomEmbLayerNormPluginDynamic CustomFCPluginDynamic CustomQKVToContextPluginDynamic "
    "CustomSkipLayerNormPluginDynamic DLRM_BOTTOM_MLP_TRT DecodeBbox3DPlugin DetectionLayer_TRT "
    "DisentangledAttention_TRT EfficientNMS_Explicit_TF_TRT EfficientNMS_Implicit_TF_TRT EfficientNMS_TRT "
    "FlattenConcat_TRT GenerateDetection_TRT GridAnchorRect_TRT GridAnchor_TRT GroupNormalizationPlugin "
    "InstanceNormalization_TRT ModulatedDeformConv2d MultilevelCropAndResize_TRT MultilevelProposeROI_TRT "
    "MultiscaleDeformableAttnPlugin_TRT PillarScatterPlugin PriorBox_TRT ProposalLayer_TRT PyramidROIAlign_TRT "
    "ROIAlign_TRT RPROI_TRT Region_TRT Reorg_TRT ResizeNearest_TRT RnRes2FullFusion_TRT SmallTileGEMM_TRT "
    "VoxelGeneratorPlugin"
)
_UNTIL_10_6 = names("RNNTEncoderPlugin RnRes2Br1Br2c_TRT RnRes2Br2bBr2c_TRT SingleStepLSTMPlugin")
_UNTIL_10_15 = names(
    "BatchTilePlugin_TRT BatchedNMSDynamic_TRT BatchedNMS_TRT Clip_TRT CoordConvAC CropAndResize CropAndResizeDynamic "
    "CustomGeluPluginDynamic EfficientNMS_ONNX_TRT LReLU_TRT NMSDynamic_TRT NMS_TRT Normalize_TRT Proposal "
    "ProposalDynamic SpecialSlice_TRT"
)
_SINCE_11_2 = names("FFTPlugin TopkLastDim")

TRT_10_6 = _ALL | _UNTIL_10_15 | _UNTIL_10_6
TRT_10_15 = _ALL | _UNTIL_10_15
TRT_11_2 = _ALL | _SINCE_11_2
RTX = names("ROIAlign_TRT")
#: Those that some release has.
EVER = TRT_10_6 | TRT_11_2
