"""Export the zoo: 75 architectures of torchvision, timm and transformers with both exporters, random weights.

    python benchmarks/zoo/make.py FOLDER [--jobs 16]        all that FOLDER does not have yet
    python benchmarks/zoo/make.py FOLDER NAME...            these, again

It needs torch, torchvision, timm, transformers and onnxscript, no GPU and no download. Names and exports are as those
of exports/make.py. Some architectures do not export with one of the two; the script names them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import transformers as hf
from exports import make as exports
from exports.make import BATCH, TEXT, Axes, Built, Of, Row, built, ids, image, mask, random
from torch import nn


def _sizes(groups: dict[int, str]) -> dict[str, int]:
    """Name -> size of its images."""
    return {name: size for size, names in groups.items() for name in names.split()}


TORCHVISION = _sizes(
    {
        224: "convnext_tiny densenet121 efficientnet_b0 googlenet mnasnet1_0 mobilenet_v3_small regnet_y_400mf "
        "resnet18 shufflenet_v2_x1_0 squeezenet1_1 vit_b_32",
        256: "swin_v2_t",
    }
)
TIMM = _sizes(
    {
        224: "cait_xxs24_224 coat_tiny convit_tiny deit_tiny_patch16_224 dla34 efficientformer_l1 "
        "eva02_tiny_patch14_224 ghostnet_100 gmlp_s16_224 hrnet_w18_small inception_next_atto levit_128s mixer_s32_224 "
        "mobileone_s0 mvitv2_tiny nest_tiny poolformer_s12 pvt_v2_b0 repvgg_a0 resmlp_12_224 sequencer2d_s "
        "tnt_s_patch16_224 twins_pcpvt_small visformer_tiny volo_d1_224 xcit_nano_12_p16_224",
        240: "crossvit_tiny_240",
        256: "edgenext_xx_small fastvit_t8 mobilevit_xxs nf_resnet50",
    }
)


def first(model: nn.Module, outputs: dict[str, Axes], size: int) -> Built:
    """A model of images whose result is a tensor, or a record of which the first field is taken."""

    def call(model: nn.Module, pixels: torch.Tensor) -> torch.Tensor:
        result = model(pixels)
        return result if isinstance(result, torch.Tensor) else next(iter(result.values()))

    return Built(Of(random(model), call), {"pixels": image(size)}, outputs)


def from_torchvision(name: str, size: int) -> Built:
    """A classifier of torchvision."""
    import torchvision

    options = {"init_weights": False, "aux_logits": False} if name == "googlenet" else {}
    return first(torchvision.models.get_model(name, weights=None, **options), {"logits": BATCH}, size)


def segmentation(name: str, size: int = 256) -> Built:
    """A model of torchvision that says a class for each pixel."""
    import torchvision

    model = torchvision.models.get_model(name, weights=None, weights_backbone=None)
    return first(model, {"classes": BATCH}, size)


def detector(name: str, size: int = 320) -> Built:
    """A detector of torchvision, for one image of a fixed size: boxes, scores and labels."""
    import torchvision

    outputs = {name: {0: "found"} for name in ("boxes", "scores", "labels")}
    # A threshold of nought: random weights are sure of nothing.
    sure = "box_score_thresh" if "rcnn" in name else "score_thresh"
    options = {"weights": None, "weights_backbone": None, sure: 0.0}
    model = random(getattr(torchvision.models.detection, name)(**options))

    def call(model: nn.Module, image: torch.Tensor) -> tuple[torch.Tensor, ...]:
        (found,) = model([image])
        return tuple(found[output] for output in outputs)

    return Built(Of(model, call), {"image": (torch.rand(3, size, size), {})}, outputs)


class PointNet(nn.Module):
    """The classifier of clouds of points (Qi et al. 2017): a transform of the points, shared layers, a maximum."""

    def __init__(self) -> None:
        super().__init__()
        self.turn = nn.Sequential(nn.Conv1d(3, 64, 1), nn.BatchNorm1d(64), nn.ReLU(), nn.Conv1d(64, 256, 1))
        self.matrix = nn.Sequential(nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 9))
        self.points = nn.Sequential(nn.Conv1d(3, 64, 1), nn.BatchNorm1d(64), nn.ReLU(), nn.Conv1d(64, 512, 1))
        self.head = nn.Sequential(nn.Linear(512, 128), nn.ReLU(), nn.Linear(128, 40))

    def forward(self, cloud: torch.Tensor) -> torch.Tensor:
        matrix = self.matrix(self.turn(cloud).amax(dim=2)).view(-1, 3, 3) + torch.eye(3)
        return self.head(self.points(torch.bmm(matrix, cloud)).amax(dim=2)).log_softmax(dim=1)


def pointnet() -> Built:
    """PointNet over clouds of any number of points."""
    cloud = (torch.randn(2, 3, 1024), {0: "batch", 2: "points"})
    return Built(random(PointNet()), {"cloud": cloud}, {"scores": BATCH})


def images(model: Callable[[Any], nn.Module], config: Any, field: str, size: int) -> Built:
    """A model of transformers over images, of whose result one field is taken."""
    config._attn_implementation = "eager"
    return built(random(model(config)), {"pixel_values": image(size)}, {field: BATCH})


def sound(model: Callable[[Any], nn.Module], config: Any) -> Built:
    """A model of transformers over a second of sound."""
    config._attn_implementation = "eager"
    inputs = {"input_values": (torch.randn(2, 16000), BATCH)}
    return built(random(model(config)), inputs, {"last_hidden_state": BATCH})


def series(model: Callable[[Any], nn.Module], config: Any) -> Built:
    """A model of transformers over series of numbers: 7 channels, 96 steps."""
    inputs = {"past_values": (torch.randn(2, 96, 7), BATCH)}
    return built(random(model(config)), inputs, {"prediction_outputs": BATCH})


def rt_detr() -> Built:
    """RT-DETR with a ResNet of 18 layers."""
    backbone = hf.RTDetrResNetConfig(
        layer_type="basic",
        depths=[2, 2, 2, 2],
        hidden_sizes=[64, 128, 256, 512],
        out_features=["stage2", "stage3", "stage4"],
    )
    config = hf.RTDetrConfig(
        backbone_config=backbone,
        encoder_in_channels=[128, 256, 512],
        decoder_layers=3,
        num_queries=100,
        num_labels=80,
    )
    model = random(hf.RTDetrForObjectDetection(config))
    return built(model, {"pixel_values": image(320)}, {"logits": BATCH, "pred_boxes": BATCH})


def from_timm(name: str, size: int) -> Built:
    """A classifier of timm."""
    import timm

    return first(timm.create_model(name), {"logits": BATCH}, size)


def words(model: Callable[[Any], nn.Module], config: Any, **fixed: Any) -> Built:
    """A model of transformers over tokens and their mask."""
    config._attn_implementation = "eager"
    inputs = {"input_ids": ids(1000), "attention_mask": mask()}
    return built(random(model(config)), inputs, {"last_hidden_state": TEXT}, **fixed)


def words_only(model: Callable[[Any], nn.Module], config: Any) -> Built:
    """A model of transformers over tokens without a mask."""
    return built(
        random(model(config)), {"input_ids": ids(1000)}, {"last_hidden_state": TEXT}, use_cache=False
    )


def _cached(config: Any, length: int = 8) -> Built:
    """A decoder that is given one token and the keys and values of those before."""
    config._attn_implementation = "eager"
    model = random(hf.AutoModelForCausalLM.from_config(config))
    heads, width = config.num_key_value_heads, config.head_dim
    inputs = {"input_ids": (torch.randint(3, 1000, (2, 1)), BATCH)}
    inputs["attention_mask"] = (torch.ones(2, length + 1, dtype=torch.int64), {0: "batch", 1: "total"})
    names = [f"past_{kind}_{i}" for i in range(config.num_hidden_layers) for kind in ("key", "value")]
    for name in names:
        inputs[name] = (torch.randn(2, heads, length, width), {0: "batch", 2: "past"})

    def step(model: nn.Module, tokens: torch.Tensor, seen: torch.Tensor, *past: torch.Tensor) -> Any:
        cache = hf.DynamicCache(list(zip(past[::2], past[1::2], strict=True)))
        result = model(input_ids=tokens, attention_mask=seen, past_key_values=cache, use_cache=True)
        layers = result.past_key_values.layers
        return (result.logits, *(tensor for layer in layers for tensor in (layer.keys, layer.values)))

    present = {name.replace("past", "present"): {0: "batch", 2: "total"} for name in names}
    return Built(Of(model, step), inputs, {"logits": BATCH, **present})


def _ocr() -> Built:
    """MGP-STR: the text in a picture of a word."""
    model = random(hf.MgpstrForSceneTextRecognition(hf.MgpstrConfig(hidden_size=192, num_attention_heads=3)))
    pixels = (torch.randn(2, 3, 32, 128), BATCH)
    return Built(
        Of(model, lambda model, pixels: model(pixels).logits[0]), {"pixels": pixels}, {"letters": BATCH}
    )


def _depth_anything() -> Any:
    backbone = hf.Dinov2Config(
        hidden_size=192,
        num_attention_heads=3,
        num_hidden_layers=4,
        image_size=224,
        patch_size=14,
        out_features=["stage1", "stage2", "stage3", "stage4"],
        reshape_hidden_states=False,
        apply_layernorm=True,
    )
    return hf.DepthAnythingConfig(
        backbone_config=backbone, reassemble_hidden_size=192, neck_hidden_sizes=[48, 96, 192, 384]
    )


def _encodec() -> Built:
    """EnCodec's encoder: sound to a row of features."""
    encoder = random(hf.EncodecModel(hf.EncodecConfig(num_filters=16, hidden_size=64)).encoder)
    return Built(encoder, {"sound": (torch.randn(2, 1, 24000), BATCH)}, {"features": BATCH})


def _patches(config: Callable[..., Any]) -> Any:
    return config(
        num_input_channels=7,
        context_length=96,
        prediction_length=24,
        patch_length=8,
        patch_stride=8,
        d_model=64,
    )


def _decoder(config: Callable[..., Any], **more: Any) -> Built:
    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8}
    return _cached(
        config(**sizes, num_key_value_heads=2, head_dim=32, vocab_size=1000, pad_token_id=0, **more)
    )


BUILDERS: dict[str, Callable[[], Built]] = {
    **{name: partial(from_torchvision, name, size) for name, size in TORCHVISION.items()},
    "lraspp_mobilenet_v3_large": partial(segmentation, "lraspp_mobilenet_v3_large"),
    "fcn_resnet50": partial(segmentation, "fcn_resnet50"),
    **{name: partial(from_timm, name, size) for name, size in TIMM.items()},
    "distilbert": lambda: words(hf.DistilBertModel, hf.DistilBertConfig(vocab_size=1000)),
    "electra": lambda: words(hf.ElectraModel, hf.ElectraConfig(vocab_size=1000)),
    "mpnet": lambda: words(hf.MPNetModel, hf.MPNetConfig(vocab_size=1000, num_hidden_layers=6)),
    "opt": lambda: words(hf.OPTModel, hf.OPTConfig(vocab_size=1000, num_hidden_layers=4), use_cache=False),
    "wav2vec2": lambda: sound(hf.Wav2Vec2Model, hf.Wav2Vec2Config(num_hidden_layers=6)),
    "dpt": lambda: images(
        hf.DPTForDepthEstimation,
        hf.DPTConfig(num_hidden_layers=6, backbone_out_indices=[0, 2, 4, 5]),
        "predicted_depth",
        384,
    ),
    "qwen3": lambda: _decoder(hf.Qwen3Config),
    "gemma2": lambda: _decoder(hf.Gemma2Config),
    "mixtral": lambda: _decoder(hf.MixtralConfig, num_local_experts=4),
    "phi3": lambda: _decoder(hf.Phi3Config),
    **{
        name: partial(detector, name)
        for name in ("fasterrcnn_mobilenet_v3_large_320_fpn", "ssdlite320_mobilenet_v3_large")
    },
    "retinanet_resnet50_fpn": partial(detector, "retinanet_resnet50_fpn"),
    "deeplabv3_mobilenet_v3_large": partial(segmentation, "deeplabv3_mobilenet_v3_large"),
    "pointnet": pointnet,
    "rt_detr": rt_detr,
    "yolos": lambda: images(
        hf.YolosForObjectDetection,
        hf.YolosConfig(hidden_size=192, num_attention_heads=3, intermediate_size=768, image_size=[256, 256]),
        "pred_boxes",
        256,
    ),
    "mgp_str": lambda: _ocr(),
    "sam_encoder": lambda: images(
        hf.SamVisionModel,
        hf.SamVisionConfig(
            hidden_size=192,
            num_attention_heads=3,
            num_hidden_layers=6,
            global_attn_indexes=[2, 5],
            image_size=512,
        ),
        "last_hidden_state",
        512,
    ),
    "depth_anything": lambda: images(
        hf.DepthAnythingForDepthEstimation, _depth_anything(), "predicted_depth", 224
    ),
    "hubert": lambda: sound(hf.HubertModel, hf.HubertConfig(num_hidden_layers=4)),
    "wavlm": lambda: sound(hf.WavLMModel, hf.WavLMConfig(num_hidden_layers=4)),
    "encodec": lambda: _encodec(),
    "patchtst": lambda: series(hf.PatchTSTForPrediction, _patches(hf.PatchTSTConfig)),
    "patchtsmixer": lambda: series(hf.PatchTSMixerForPrediction, _patches(hf.PatchTSMixerConfig)),
    "mamba": lambda: words_only(
        hf.MambaModel, hf.MambaConfig(hidden_size=256, num_hidden_layers=4, vocab_size=1000)
    ),
    "longformer": lambda: words(
        hf.LongformerModel,
        hf.LongformerConfig(
            vocab_size=1000,
            num_hidden_layers=2,
            attention_window=[8, 8],
            hidden_size=128,
            num_attention_heads=4,
            intermediate_size=256,
        ),
    ),
    "deberta_v2": lambda: words(
        hf.DebertaV2Model,
        hf.DebertaV2Config(
            vocab_size=1000,
            hidden_size=256,
            num_hidden_layers=4,
            num_attention_heads=4,
            intermediate_size=512,
            relative_attention=True,
            pos_att_type=["p2c", "c2p"],
        ),
    ),
}
_OPSETS = {"legacy": 17, "dynamo": 18}
ROWS: dict[str, Row] = {
    f"{name}.{exporter}": (build, exporter, opset)
    for name, build in BUILDERS.items()
    for exporter, opset in _OPSETS.items()
}

if __name__ == "__main__":
    sys.exit(exports.make(__doc__ or "", __file__, ROWS))
