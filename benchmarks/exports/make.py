"""Make full-size exports: real architectures and sizes, random weights.

    pip install "torch==2.13.0" "transformers==5.*" onnx onnxscript     (an environment of its own; no GPU, no download)
    python benchmarks/exports/make.py FOLDER            all that FOLDER does not have yet
    python benchmarks/exports/make.py FOLDER NAME...    these, again

The name of a row says architecture, exporter (``legacy``: TorchScript, ``dynamo``: torch.export) and opset. Every
export has a process of its own, since exporters keep memory; one that fails is named, and the others go on. The exit
code is 1 where one failed. Weights come from a fixed seed. Up to 5 GB of memory, 7 GB on disk, half an hour on 4 cores.

Sizes are those of bert-base (110M parameters), gpt2 (124M), SmolLM-135M (the Llama architecture; a Llama of a billion
would be over protobuf's 2 GB in float32), vit-base-patch16-224 (86M), swin-tiny (28M), t5-base (encoder 110M, decoder
162M), whisper-base (encoder 20M, decoder 52M), clip-vit-base-patch32 (151M), segformer-b0 (4M), detr-resnet-50 (41M).
Nothing is cut. Language models are exported without a cache of keys and values.

Made only when they are named: whisper.dynamo.op18, and two Llamas in half precision with their weights in a file of
their own (2.4 and 6.4 GB, 10 GB of memory and of disk).
"""

# Long because: it has a builder for each architecture, and the exporter that zoo/make.py shares.

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers as hf
from torch import Tensor, nn

Axes = dict[int, str]
BATCH: Axes = {0: "batch"}
TEXT: Axes = {0: "batch", 1: "seq"}


@dataclass(frozen=True)
class Built:
    """What is exported: ``inputs`` are name -> (example, dynamic axes), ``outputs`` name -> dynamic axes."""

    model: nn.Module
    inputs: dict[str, tuple[Tensor, Axes]]
    outputs: dict[str, Axes]


#: A builder, an exporter ("legacy" or "dynamo") and an opset.
Row = tuple[Callable[[], Built], str, int]


class Of(nn.Module):
    """A model as a function of tensors by position: ``call`` is given the model and these."""

    def __init__(self, model: nn.Module, call: Callable[..., Any]) -> None:
        super().__init__()
        self.model, self.call = model, call

    def forward(self, *inputs: Tensor) -> Any:
        return self.call(self.model, *inputs)


def random(model: nn.Module, half: bool = False) -> nn.Module:
    """The model ready to export, with what starts as zeros and ones made random: trained models have neither."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter += 0.05 * torch.randn_like(parameter)
        for name, buffer in model.named_buffers():
            if name.endswith("running_mean"):
                buffer += 0.05 * torch.randn_like(buffer)
            elif name.endswith("running_var"):
                buffer += 0.05 * torch.rand_like(buffer)
    model.eval()
    return model.half() if half else model


def built(
    model: nn.Module, inputs: dict[str, tuple[Tensor, Axes]], outputs: dict[str, Axes], **fixed: Any
) -> Built:
    """``inputs`` are called as the model's own parameters, ``outputs`` as the fields of its result."""

    def call(model: nn.Module, *given: Tensor) -> tuple[Tensor, ...]:
        result = model(**dict(zip(inputs, given, strict=True)), **fixed)
        return tuple(result[field] for field in outputs)

    return Built(Of(model, call), inputs, outputs)


def decoder(model: nn.Module, head: nn.Module, inputs: dict[str, tuple[Tensor, Axes]]) -> Built:
    """A decoder and its head, as a function of tokens and of what the encoder made."""

    def call(parts: nn.ModuleList, *given: Tensor) -> Tensor:
        model, head = parts
        return head(model(**dict(zip(inputs, given, strict=True)), use_cache=False).last_hidden_state)

    return Built(Of(random(nn.ModuleList([model, head])), call), inputs, {"logits": TEXT})


def ids(vocabulary: int, length: int = 16) -> tuple[Tensor, Axes]:
    """Two rows of tokens."""
    return torch.randint(3, vocabulary, (2, length)), TEXT


def mask(length: int = 16) -> tuple[Tensor, Axes]:
    """Two rows of tokens of which the second one ends earlier."""
    value = torch.ones(2, length, dtype=torch.int64)
    value[1, length - 3 :] = 0
    return value, TEXT


def image(size: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Axes]:
    """Two square images of three channels."""
    return torch.randn(2, 3, size, size).to(dtype), BATCH


def bert(half: bool = False) -> Built:
    """bert-base-uncased with its pooler."""
    model = random(hf.BertModel(hf.BertConfig(attn_implementation="eager")), half)
    inputs = {"input_ids": ids(30522), "attention_mask": mask()}
    return built(model, inputs, {"last_hidden_state": TEXT, "pooler_output": BATCH})


def language(model: nn.Module, vocabulary: int) -> Built:
    """A language model with its head."""
    inputs = {"input_ids": ids(vocabulary), "attention_mask": mask()}
    return built(model, inputs, {"logits": TEXT}, use_cache=False)


def gpt2() -> Built:
    """gpt2 with its head."""
    return language(random(hf.GPT2LMHeadModel(hf.GPT2Config(attn_implementation="eager"))), 50257)


def _llama_config(hidden: int, inner: int, layers: int, heads: int, groups: int, vocabulary: int) -> Any:
    """``groups`` are the heads of keys and values."""
    return hf.LlamaConfig(
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=groups,
        vocab_size=vocabulary,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        attn_implementation="eager",
    )


def llama() -> Built:
    """SmolLM-135M: rotary embeddings, grouped heads, RMSNorm."""
    return language(random(hf.LlamaForCausalLM(_llama_config(576, 1536, 30, 9, 3, 49152))), 49152)


def vit(half: bool = False) -> Built:
    """vit-base-patch16-224 with its classifier."""
    config = hf.ViTConfig(num_labels=1000, attn_implementation="eager")
    dtype = torch.float16 if half else torch.float32
    model = random(hf.ViTForImageClassification(config), half)
    return built(model, {"pixel_values": image(224, dtype)}, {"logits": BATCH})


def swin(attention: str = "sdpa") -> Built:
    """swin-tiny-patch4-window7-224 with its classifier."""
    config = hf.SwinConfig(num_labels=1000, attn_implementation=attention)
    model = random(hf.SwinForImageClassification(config))
    return built(model, {"pixel_values": image(224)}, {"logits": BATCH})


def _t5_config() -> Any:
    return hf.T5Config(
        d_model=768,
        d_ff=3072,
        d_kv=64,
        num_layers=12,
        num_heads=12,
        use_cache=False,
        attn_implementation="eager",
    )


def t5_encoder() -> Built:
    """t5-base's encoder: relative positions, RMSNorm."""
    model = random(hf.T5EncoderModel(_t5_config()))
    return built(model, {"input_ids": ids(32128), "attention_mask": mask()}, {"last_hidden_state": TEXT})


def t5_decoder() -> Built:
    """t5-base's decoder and head: cross attention over a second symbolic length."""
    source = {0: "batch", 1: "source"}
    inputs = {
        "input_ids": ids(32128, 12),
        "encoder_hidden_states": (torch.randn(2, 16, 768), source),
        "encoder_attention_mask": (mask()[0], source),
    }
    whole = hf.T5ForConditionalGeneration(_t5_config())
    return decoder(whole.decoder, whole.lm_head, inputs)


def _whisper_config(width: int = 512, layers: int = 6, heads: int = 8) -> Any:
    """Encoder and decoder of one size; whisper-base's by default."""
    return hf.WhisperConfig(
        d_model=width,
        encoder_layers=layers,
        encoder_attention_heads=heads,
        encoder_ffn_dim=4 * width,
        decoder_layers=layers,
        decoder_attention_heads=heads,
        decoder_ffn_dim=4 * width,
        use_cache=False,
        attn_implementation="eager",
    )


def whisper_encoder() -> Built:
    """whisper-base's encoder: 30 seconds of sound as 80 bands."""
    model = random(hf.WhisperModel(_whisper_config()).get_encoder())
    inputs = {"input_features": (torch.randn(2, 80, 3000), BATCH)}
    return built(model, inputs, {"last_hidden_state": BATCH})


def whisper_decoder() -> Built:
    """whisper-base's decoder and head."""
    inputs = {"input_ids": ids(51865, 12), "encoder_hidden_states": (torch.randn(2, 1500, 512), BATCH)}
    whole = hf.WhisperForConditionalGeneration(_whisper_config())
    return decoder(whole.model.decoder, whole.proj_out, inputs)


def whisper() -> Built:
    """Encoder and decoder of whisper-tiny's size in one model: sound and text in, scores of the next word out."""
    model = random(hf.WhisperForConditionalGeneration(_whisper_config(384, 4, 6)))
    inputs = {"input_features": (torch.randn(2, 80, 3000), BATCH), "decoder_input_ids": ids(51865, 12)}
    return built(model, inputs, {"logits": TEXT}, use_cache=False)


def clip() -> Built:
    """clip-vit-base-patch32: both towers and their similarity."""
    config = hf.CLIPConfig(attn_implementation="eager")
    inputs = {
        "input_ids": (torch.randint(3, 49408, (2, 16)), {0: "texts", 1: "seq"}),
        "pixel_values": (torch.randn(2, 3, 224, 224), {0: "images"}),
        "attention_mask": (mask()[0], {0: "texts", 1: "seq"}),
    }
    outputs = {"logits_per_image": {0: "images", 1: "texts"}, "image_embeds": {0: "images"}}
    return built(random(hf.CLIPModel(config)), inputs, outputs)


def segformer() -> Built:
    """segformer-b0-finetuned-ade-512-512."""
    config = hf.SegformerConfig(num_labels=150)
    model = random(hf.SegformerForSemanticSegmentation(config))
    return built(model, {"pixel_values": image(512)}, {"logits": BATCH})


def detr() -> Built:
    """detr-resnet-50 on images of 640 x 640, with the mask of what is padded."""
    backbone = hf.ResNetConfig(
        depths=[3, 4, 6, 3],
        hidden_sizes=[256, 512, 1024, 2048],
        layer_type="bottleneck",
        out_features=["stage4"],
    )
    config = hf.DetrConfig(
        use_timm_backbone=False,
        use_pretrained_backbone=False,
        backbone=None,
        backbone_config=backbone,
        num_labels=91,
        attn_implementation="eager",
    )
    pixels = torch.ones(2, 640, 640, dtype=torch.int64)
    pixels[1, :, 500:] = 0
    inputs = {"pixel_values": image(640), "pixel_mask": (pixels, BATCH)}
    return built(random(hf.DetrForObjectDetection(config)), inputs, {"logits": BATCH, "pred_boxes": BATCH})


def llama_fp16(hidden: int, inner: int, layers: int, heads: int, vocabulary: int) -> Built:
    """A Llama with tied embeddings, made in half precision: in float32 it would take twice the memory."""
    torch.set_default_dtype(torch.float16)
    config = _llama_config(hidden, inner, layers, heads, 8, vocabulary)
    return language(random(hf.LlamaForCausalLM(config), half=True), vocabulary)


#: name -> (builder, exporter, opset)
ROWS: dict[str, Row] = {
    "bert.legacy.op11": (bert, "legacy", 11),
    "bert.legacy.op17": (bert, "legacy", 17),
    "bert.dynamo.op20": (bert, "dynamo", 20),
    "bert_fp16.legacy.op13": (lambda: bert(half=True), "legacy", 13),
    "gpt2.legacy.op13": (gpt2, "legacy", 13),
    "gpt2.dynamo.op18": (gpt2, "dynamo", 18),
    "llama.legacy.op14": (llama, "legacy", 14),
    "llama.dynamo.op20": (llama, "dynamo", 20),
    "vit.legacy.op17": (vit, "legacy", 17),
    "vit.dynamo.op19": (vit, "dynamo", 19),
    "vit_fp16.legacy.op16": (lambda: vit(half=True), "legacy", 16),
    # The fused attention of PyTorch has no export below opset 14.
    "swin.legacy.op13": (lambda: swin("eager"), "legacy", 13),
    "swin.dynamo.op18": (swin, "dynamo", 18),
    "t5_encoder.legacy.op12": (t5_encoder, "legacy", 12),
    "t5_decoder.dynamo.op18": (t5_decoder, "dynamo", 18),
    "whisper_encoder.legacy.op15": (whisper_encoder, "legacy", 15),
    "whisper_decoder.dynamo.op19": (whisper_decoder, "dynamo", 19),
    "clip.legacy.op14": (clip, "legacy", 14),
    "segformer.legacy.op16": (segformer, "legacy", 16),
    "segformer.dynamo.op20": (segformer, "dynamo", 20),
    "detr.legacy.op12": (detr, "legacy", 12),
    "detr.dynamo.op18": (detr, "dynamo", 18),
}
#: Rows that are made only when they are named; the same form.
MORE: dict[str, Row] = {
    "whisper.dynamo.op18": (whisper, "dynamo", 18),
    # Thirty layers as SmolLM-135M has, wider; and Llama-3.2-3B.
    "llama_fp16_2g.dynamo.op20": (lambda: llama_fp16(2048, 4352, 30, 32, 49152), "dynamo", 20),
    "llama_fp16_6g.dynamo.op20": (lambda: llama_fp16(3072, 8192, 28, 24, 128256), "dynamo", 20),
}
EXTERNAL = ("llama_fp16_2g.dynamo.op20", "llama_fp16_6g.dynamo.op20")
"""Larger than a protobuf may be: their weights lie in NAME.onnx.data."""


def export(row: Row, path: Path) -> None:
    """Build and export one row. The file appears when it is whole; one with a file of weights is written in place, for
    it names that file.

    Raises:
        Exception: whatever torch and transformers raise; the model does not export.
    """
    build, exporter, opset = row
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "4")))
    what = build()
    examples = tuple(example for example, _ in what.inputs.values())
    external = path.stem in EXTERNAL
    unfinished = path if external else path.with_name(path.name + ".part")
    options: dict[str, Any] = {"input_names": list(what.inputs), "output_names": list(what.outputs)}
    if exporter == "legacy":
        options["dynamic_axes"] = {key: axes for key, (_, axes) in what.inputs.items()} | what.outputs
    else:
        options |= {"dynamic_shapes": (tuple(_dims(what)),), "verbose": False}
    options |= {"dynamo": exporter == "dynamo", "opset_version": opset, "external_data": external}
    with torch.no_grad():
        torch.onnx.export(what.model, examples, str(unfinished), **options)
    unfinished.replace(path)


def _dims(what: Built) -> list[dict[int, Any]]:
    """The dynamic axes as torch.export wants them: one object for each name."""
    known: dict[str, Any] = {}
    return [
        {axis: known.setdefault(dim, torch.export.Dim(dim)) for axis, dim in axes.items()}
        for _, axes in what.inputs.values()
    ]


def make(description: str, script: str, rows: Mapping[str, Row], more: Mapping[str, Row] = {}) -> int:
    """The command line of a script that makes rows; ``more`` are made only when they are named."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--jobs", type=int, default=1, help="exports at once")
    parser.add_argument("--here", action="store_true", help="export in this process")
    arguments = parser.parse_intermixed_args()
    known = {**rows, **more}
    unknown = [name for name in arguments.names if name not in known]
    if unknown:
        parser.error(f"no row {unknown[0]}; the rows are {', '.join(known)}")
    arguments.folder.mkdir(parents=True, exist_ok=True)

    def one(name: str) -> str:
        """The name if its export failed, "" otherwise."""
        path = arguments.folder / f"{name}.onnx"
        if path.exists() and not arguments.names:
            return ""
        if arguments.here:
            export(known[name], path)
            return ""
        start = time.monotonic()
        child = subprocess.run(
            [sys.executable, script, "--here", str(arguments.folder), name], capture_output=True, text=True
        )
        seconds = time.monotonic() - start
        if child.returncode == 0:
            print(f"{name}: {path.stat().st_size / 1e6:.0f} MB, {seconds:.0f} s", flush=True)
            return ""
        last = next((line for line in reversed(child.stderr.splitlines()) if line.strip()), "killed")
        print(f"FAILED {name}: {last}", file=sys.stderr, flush=True)
        return name

    with ThreadPoolExecutor(arguments.jobs) as pool:
        failed = [name for name in pool.map(one, arguments.names or rows) if name]
    print(f"{len(failed)} failed: {' '.join(failed) or '–'}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(make(__doc__ or "", __file__, ROWS, MORE))
