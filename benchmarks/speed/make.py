"""Make the large models that run.py measures.

    python benchmarks/speed/make.py FOLDER [NAME...]     an environment as exports/make.py wants it

Two Llamas in half precision with their weights in a file of their own (2.4 GB and 6.4 GB, random, by torch.export at
operator set 20, symbolic batch and sequence). Without names: all that FOLDER does not have yet. Each has a process of
its own. The exit code is 1 where one failed. Up to 10 GB of memory, 10 GB on disk, a quarter of an hour on 4 cores.

The full-size exports that fit into a file are made by benchmarks/exports/make.py.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from exports import make as exports

#: name -> what a transformers.LlamaConfig differs in. The first has thirty layers as SmolLM-135M has, wider; the
#: second is Llama-3.2-3B.
LLAMAS: dict[str, dict[str, int]] = {
    "llama_fp16_2g.dynamo.op20": {
        "hidden_size": 2048,
        "intermediate_size": 4352,
        "num_hidden_layers": 30,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 49152,
    },
    "llama_fp16_6g.dynamo.op20": {
        "hidden_size": 3072,
        "intermediate_size": 8192,
        "num_hidden_layers": 28,
        "num_attention_heads": 24,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
    },
}


def llama(name: str, path: Path) -> None:
    """Export a Llama; ``path`` appears after its ``.data`` file is whole.

    Raises:
        Exception: whatever torch and transformers raise.
    """
    import torch
    import transformers as hf

    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float16)  # never in float32, which would take twice the memory
    config = hf.LlamaConfig(
        **LLAMAS[name], max_position_embeddings=2048, tie_word_embeddings=True, attn_implementation="eager"
    )
    model = exports.random(hf.LlamaForCausalLM(config), half=True)
    vocabulary = LLAMAS[name]["vocab_size"]
    inputs = {"input_ids": exports.ids(vocabulary), "attention_mask": exports.mask()}
    what = exports.built(model, inputs, {"logits": exports.TEXT}, use_cache=False)
    known: dict[str, Any] = {}
    shapes = tuple(
        {axis: known.setdefault(dim, torch.export.Dim(dim)) for axis, dim in axes.items()}
        for _, axes in inputs.values()
    )
    with torch.no_grad():
        torch.onnx.export(
            what.model,
            tuple(example for example, _ in inputs.values()),
            str(path),
            input_names=list(inputs),
            output_names=list(what.outputs),
            opset_version=20,
            dynamo=True,
            dynamic_shapes=(shapes,),
            external_data=True,
            verbose=False,
        )


def main() -> int:
    """Run as the module's docstring says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--here", action="store_true", help="in this process")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.names if name not in LLAMAS]
    if unknown:
        parser.error(f"no model {unknown[0]}; there are {', '.join(LLAMAS)}")
    arguments.folder.mkdir(parents=True, exist_ok=True)
    failed: list[str] = []
    for name in arguments.names or LLAMAS:
        path = arguments.folder / f"{name}.onnx"
        if path.exists() and not arguments.names:
            continue
        if arguments.here:
            llama(name, path)
            continue
        start = time.monotonic()
        command = [sys.executable, __file__, "--here", str(arguments.folder), name]
        child = subprocess.run(command, capture_output=True, text=True)
        if child.returncode == 0:
            total = sum(file.stat().st_size for file in (path, data_of(path)) if file.exists())
            print(f"{name}: {total / 1e6:,.1f} MB, {time.monotonic() - start:.0f} s", flush=True)
        else:
            failed.append(name)
            path.unlink(missing_ok=True)  # torch writes in place
            last = next((line for line in reversed(child.stderr.splitlines()) if line.strip()), "killed")
            print(f"FAILED {name}: {last}", file=sys.stderr, flush=True)
    print(f"{len(failed)} failed: {' '.join(failed) or '–'}")
    return int(bool(failed))


def data_of(path: Path) -> Path:
    """Where the weights lie that are not in the model's file."""
    return path.with_name(path.name + ".data")


if __name__ == "__main__":
    sys.exit(main())
