"""What the doctor finds: its questions, the driver, CUDA's libraries, the metadata of packages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from onnxfix.runtime.nvidia import Missing
from onnxfix.runtime.sandbox import Outcome, Worker
from onnxfix.tensorrt.package import Choice
from onnxfix.verbs.examination import facts, probes
from onnxfix.verbs.examination.records import Driver
from support.doctor_cases import H100

# ----------------------------------------------------------------------------------------- the questions


def test_cuda_is_tried_where_there_is_a_gpu_and_a_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "ort_build", lambda: ("onnxruntime-gpu", "13.0"))
    for refusal in (None, Missing("it fell back")):
        asked = answers(monkeypatch, {"driver": Driver(True, "13.0"), "gpus": [H100], "ort-cuda": refusal})
        with asked as worker:
            found = facts.gather(worker, 1)
        assert (found.cuda_works, found.cuda_refusal) == (refusal is None, refusal)
    asked = answers(monkeypatch, {"driver": Driver(True, "13.0"), "gpus": []})
    with asked as worker:
        assert not facts.gather(worker, 1).cuda_works
    assert "ort-cuda" not in asked.questions


def test_tensorrt_is_asked_why_it_was_passed_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "tensorrt").mkdir()
    (tmp_path / "tensorrt" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    rtx = Choice("tensorrt-rtx", "1.7.1", "8.9")
    with answers(monkeypatch, {"trt-build": rtx, "tensorrt": Missing("it does not load")}) as worker:
        found = facts.gather(worker, 1)
    assert (found.trt, found.passed_over) == (rtx, Missing("it does not load"))
    with answers(monkeypatch, {"trt-build": rtx}) as worker:
        assert facts.gather(worker, 1).passed_over == Missing("no answer")


class Answers(Worker):
    """Answers from a dictionary of questions; "no answer" to the others."""

    def __init__(self, given: dict[str, Any]) -> None:
        super().__init__()
        self.given = given
        self.questions: list[str] = []

    def call(self, target: str, *, timeout: float, **arguments: Any) -> Outcome:
        self.questions.append(target)
        known = target in self.given
        return Outcome("ok", self.given[target]) if known else Outcome("error", message="no answer")


def answers(monkeypatch: pytest.MonkeyPatch, given: dict[str, Any]) -> Answers:
    monkeypatch.setattr(facts, "PROBES", {name: name for name in facts.PROBES})
    return Answers(given)


# -------------------------------------------------------------------------------------- driver, libraries


@pytest.mark.parametrize(
    ("number", "cuda", "cudnn"),
    [(0, "", "0.0.0"), (12040, "12.4", "12.0.40"), (8907, "8.90", "8.9.7"), (91002, "91.0", "9.10.2")],
)
def test_version_numbers(number: int, cuda: str, cudnn: str) -> None:
    assert (probes.cuda_version(number), probes.cudnn_version(number)) == (cuda, cudnn)


def test_the_kernel_says_its_driver() -> None:
    closed = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024\n"
    opened = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build\n"
    compiler = "GCC version:  gcc version 13.3.0 (Ubuntu 13.3.0-6ubuntu2)\n"
    versions = [facts.driver_version(text) for text in (closed, opened + compiler, compiler, "")]
    assert versions == ["535.183.01", "580.159.04", "", ""]


# ----------------------------------------------------------------------------------------------- packages


def distribution(folder: Path, name: str, version: str, requires: tuple[str, ...] = ()) -> None:
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    lines = [f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {text}" for text in requires)]
    (info / "METADATA").write_text("Metadata-Version: 2.1\n" + "\n".join(lines) + "\n\n")


def test_distributions_are_read_from_their_metadata(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    distribution(tmp_path, "onnxruntime-gpu", "1.31.1")
    distribution(tmp_path, "onnxruntime", "1.30.0")
    distribution(tmp_path, "tensorrt_rtx", "1.6.0")
    monkeypatch.syspath_prepend(tmp_path)
    found = facts.installed()
    assert (found["onnxruntime-gpu"], found["onnxruntime"], found["tensorrt-rtx"]) == (
        "1.31.1",
        "1.30.0",
        "1.6.0",
    )


@pytest.mark.parametrize("text", [None, b"", b"\xff\xfe\x00", b"Name: onnx\n\n"])
def test_damaged_metadata_is_a_line(
    text: bytes | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    info = tmp_path / "polygraphy-9.9.dist-info"
    info.mkdir()
    if text is not None:
        (info / "METADATA").write_bytes(text)
    monkeypatch.syspath_prepend(tmp_path)
    assert facts.installed()["polygraphy"] == facts.UNREADABLE
