"""The doctor: what it concludes from what it finds, and that nothing it finds ends it."""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from onnxfix.proof.verdict import RUNGS
from onnxfix.report.render.doctor import examination_lines
from onnxfix.report.render.lines import wrapped
from onnxfix.runtime.confinement import InForce
from onnxfix.runtime.nvidia import Gpu, Missing
from onnxfix.runtime.sandbox import Outcome, Worker
from onnxfix.tensorrt.package import Choice
from onnxfix.verbs import examination
from onnxfix.verbs.examination import examine, facts
from onnxfix.verbs.examination.facts import Facts
from onnxfix.verbs.examination.judge import judged
from onnxfix.verbs.examination.records import Driver, Examination, Problem
from support.cli import run
from support.doctor_cases import (
    CASES,
    CUDNN,
    RTX_NOTE,
    RUNG_CASES,
    RUNTIME,
    SOUND,
    machine,
    versions,
    without_gpu,
)
from support.paths import ROOT
from support.patience import PATIENCE

HERE = __name__


def shown(found: Examination) -> str:
    return "\n".join(line.plain for line in examination_lines(found))


# --------------------------------------------------------------------------------------- what facts mean


def test_a_sound_machine_has_no_problem() -> None:
    found = judged(SOUND)
    assert found.problems == ()
    assert found.exit_code == 0
    assert {rung.name for rung in found.rungs if not rung.available} == set()
    assert found.rung("ort-cuda").reason == "onnxruntime-gpu 1.31.1 on NVIDIA H100 80GB HBM3"
    assert found.rung("trt-gpu").reason == "tensorrt 11.1.0.106 on NVIDIA H100 80GB HBM3"
    assert shown(found).endswith("no problems")


@pytest.mark.parametrize(("given", "words", "mend", "lost"), CASES.values(), ids=CASES)
def test_a_problem_has_its_words_its_mend_and_its_rungs(
    given: Facts, words: str, mend: str, lost: tuple[str, ...]
) -> None:
    found = judged(given)
    assert found.exit_code == 1
    matching = [problem for problem in found.problems if words in problem.text]
    assert [problem.mend for problem in matching] == [mend], found.problems
    assert len({problem.text for problem in found.problems}) == len(found.problems)
    assert all(problem.mend for problem in found.problems)
    network = {"trt-network"} if "trt-build" in lost else set()  # it asks the same TensorRT
    gone = {rung.name for rung in found.rungs if not rung.available}
    assert gone - {"ort-trt"} == {*lost, *network}
    assert ("ort-trt" in gone) == (not given.machine.gpus or bool(given.unstarted))
    assert all(rung.reason for rung in found.rungs)
    assert mend in shown(found)


@pytest.mark.parametrize(("given", "name", "reason", "mend"), RUNG_CASES.values(), ids=RUNG_CASES)
def test_what_is_missing_is_no_problem(given: Facts, name: str, reason: str, mend: str) -> None:
    found = judged(given)
    rung = found.rung(name)
    assert (rung.available, rung.reason, rung.mend) == (False, reason, mend)
    assert found.problems == ()
    assert f"fix: {mend}" in shown(found) or not mend


def test_what_cuda_computed_overrules_what_was_found() -> None:
    """Libraries may lie where only ONNX Runtime looks; it has just used them, all but cuDNN."""
    here = machine(
        libraries=(replace(RUNTIME, version="12.9", cuda="12.9"), CUDNN), driver=Driver(True, "12.4")
    )
    found = judged(replace(SOUND, machine=here, trt=Missing("x")))
    assert found.problems == ()
    assert found.rung("ort-cuda").available


def test_a_refusal_that_is_explained_is_not_told_twice() -> None:
    found = judged(
        replace(SOUND, machine=machine(libraries=()), cuda_works=False, cuda_refusal=Missing("it fell back"))
    )
    assert [problem.text for problem in found.problems] == [
        "onnxruntime-gpu 1.31.1 is built for CUDA 13, and no CUDA runtime was found"
    ]


def test_rtx_ahead_of_time_is_said_to_be_that() -> None:
    found = judged(replace(SOUND, trt=Choice("tensorrt-rtx", "1.7.1", "8.9", None, RTX_NOTE)))
    build = found.rung("trt-build")
    assert build.available
    assert build.reason == "tensorrt-rtx 1.7.1, ahead of time for compute capability 8.9"
    assert found.rung("trt-gpu").reason == RTX_NOTE


def test_a_package_names_its_fault() -> None:
    found = judged(
        replace(
            SOUND,
            versions=versions(onnxruntime="1.30.0"),
            missing=("polygraphy",),
            faults={"contract": "onnx does not load: x", "ort-cpu": "killed by SIGSEGV"},
            unloaded={"contract": "onnx", "ort-cpu": ""},
        )
    )
    faults = {package.name: package.fault for package in found.packages}
    assert faults["onnx"] == "does not load"
    assert faults["polygraphy"] == "its files are missing"
    assert faults["onnxruntime-gpu"] == "does not load; installs the same files as onnxruntime"
    assert faults["onnxruntime"] == "installs the same files as onnxruntime-gpu"
    assert faults["tensorrt"] == ""
    assert all(package.note == "" for package in found.packages if package.name != "onnxruntime-gpu")
    notes = {package.name: package.note for package in judged(SOUND).packages}
    assert notes["onnxruntime-gpu"] == "built for CUDA 13.0; providers CUDA, CPU"


# ------------------------------------------------------------------------------------------ this machine


@pytest.fixture(scope="module")
def here() -> Examination:
    return examine()


def test_this_machine_runs_what_is_installed_on_it(here: Examination) -> None:
    assert here.rung("contract").available, here.rung("contract").reason
    assert here.rung("reference").available, here.rung("reference").reason
    assert here.rung("ort-cpu").available == (importlib.util.find_spec("onnxruntime") is not None)
    rtx = importlib.util.find_spec("tensorrt_rtx") is not None
    assert here.rung("trt-build").available >= rtx
    assert here.rung("trt-build").available or "pip install" in here.rung("trt-build").mend
    assert {"onnx", "numpy", "onnxfix"} <= {package.name for package in here.packages}
    assert here.machine.cpus >= 1
    assert here.machine.memory_mb is None or here.machine.memory_mb > 256


def test_json_holds_everything(here: Examination) -> None:
    data = json.loads(json.dumps(here.to_json(), allow_nan=False))
    assert set(data) == {"schema", "machine", "packages", "rungs", "problems", "packs"}
    assert [rung["name"] for rung in data["rungs"]] == list(RUNGS)
    assert set(data["rungs"][0]) == {"name", "available", "reason", "mend"}
    assert data["machine"]["executable"] == sys.executable


# -------------------------------------------------------------------------------- probes that do not return


def segfault(**_: object) -> None:
    ctypes.string_at(0)


def hang(**_: object) -> None:
    time.sleep(600)


def raises(**_: object) -> None:
    raise ImportError("first line\nsecond line")


def not_what_was_asked_for(**_: object) -> Any:
    return lambda: None  # does not pickle


class Impatient(Worker):
    """Waits two seconds for what hangs here, and as long as it takes for what works."""

    def call(self, target: str, *, timeout: float, **arguments: Any) -> Outcome:
        return super().call(target, timeout=2.0 if target.endswith("hang") else timeout, **arguments)


ENDS: dict[Callable[..., Any], str] = {
    segfault: "killed by SIGSEGV",
    hang: "took more than 2 s and was stopped",
    raises: "ImportError: first line second line",
    not_what_was_asked_for: "pickle",
}
DRIVER = "NVIDIA's driver does not answer: "


@pytest.mark.slow
@pytest.mark.parametrize(
    ("question", "end", "start"),
    [
        *(("driver", end, DRIVER) for end in ENDS),
        ("nvml", segfault, DRIVER),
        ("contract", raises, ""),
        ("trt-build", segfault, "TensorRT does not answer: "),
        ("cudnn", segfault, "an installed cuDNN does not load: "),
    ],
)
def test_one_probe_that_dies_is_one_line(
    question: str, end: Callable[..., Any], start: str, monkeypatch: pytest.MonkeyPatch, here: Examination
) -> None:
    monkeypatch.setitem(facts.PROBES, question, f"{HERE}:{end.__name__}")
    with Impatient() as worker:
        found = examine(worker)
    new = [problem for problem in found.problems if ENDS[end] in problem.text]
    assert len(new) == 1, found.problems
    assert new[0].text.startswith(start)
    assert "\n" not in new[0].text
    lost = {"contract": {"contract", "reference"}, "trt-build": {"trt-build", "trt-network", "trt-gpu"}}
    for name in {"contract", "reference", "ort-cpu", "trt-build"} - lost.get(question, set()):
        assert found.rung(name) == here.rung(name)
    for name in lost.get(question, set()):
        assert not found.rung(name).available


def test_an_onnxruntime_that_dies_costs_its_own_rungs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(facts.PROBES, "ort-cpu", f"{HERE}:segfault")
    found = examine()
    assert not found.rung("ort-cpu").available
    assert "killed by SIGSEGV" in found.rung("ort-cpu").reason
    assert found.rung("ort-cpu").mend.startswith("pip install --force-reinstall onnxruntime")
    assert found.rung("reference").available


def test_a_crash_is_laid_at_the_door_of_the_module_that_crashed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "crashing.py").write_text("import ctypes\nctypes.string_at(0)\n")
    monkeypatch.syspath_prepend(tmp_path)
    with Worker() as worker:
        asker = facts._Prober(worker, 60)
        assert asker("contract", "nothing", modules=("json", "crashing")) == "nothing"
    assert asker.faults["contract"].startswith("crashing does not load: killed by SIGSEGV")
    assert asker.unloaded == {"contract": "crashing"}


class Unstartable(Worker):
    def call(self, target: str, *, timeout: float, **arguments: Any) -> Outcome:
        raise OSError(11, "Resource temporarily unavailable")


def test_a_machine_that_starts_no_process_is_examined_too() -> None:
    found = examine(Unstartable())
    (problem,) = [problem for problem in found.problems if "no child process" in problem.text]
    assert "Resource temporarily unavailable" in problem.text
    assert found.problems[0] == problem
    assert tuple(rung.name for rung in found.rungs) == RUNGS
    assert not any(rung.available for rung in found.rungs)
    assert {rung.reason for rung in found.rungs} == {problem.text}
    assert found.packages


# ------------------------------------------------------------------------------------------- text and CLI


def test_the_text_is_narrow_and_cannot_be_forged() -> None:
    card = Gpu("\x1b[2Jevil\n  ort-cuda yes", "9.0")
    reason = "a long reason of many words " * 12
    found = judged(
        replace(
            SOUND,
            machine=machine(gpus=(card,)),
            cuda_works=False,
            cuda_refusal=Missing(reason),
            versions=versions(onnx="1.2\x1b[0m\n  ort-cuda yes"),
            unknown_pack="[bold]markup[/bold]",
        )
    )
    lines = [row.plain for line in examination_lines(found) for row in wrapped(line, 96)]
    assert all(len(line) <= 96 or "fix: " in line for line in lines)
    assert not any("\x1b" in line for line in lines)
    assert not any(line.startswith("  ort-cuda yes") for line in lines)
    assert any("[bold]markup[/bold]" in line for line in lines)
    (at,) = [number for number, line in enumerate(lines) if line.startswith("  ort-cuda ")]
    assert lines[at].index("a long") == len(lines[at + 1]) - len(lines[at + 1].lstrip()), (
        "words stand under words"
    )


def test_the_text_shows_what_matters() -> None:
    found = judged(replace(SOUND, machine=machine(libraries=(replace(RUNTIME, wheel=False), CUDNN))))
    text = shown(found)
    for words in (
        "NVIDIA H100 80GB HBM3, compute capability 9.0",
        "NVIDIA 580.159.04, supports up to CUDA 13.0",
        "13.0 (/site/nvidia/cu13/lib/libcudart.so.13)",
        "9.28.0 for CUDA 13.5 (Python package)",
        "128.0 GiB, of which a verification may use 87.9 GiB now",
        "onnxruntime-gpu  1.31.1",
        "  trt-network  yes  tensorrt 11.1.0.106, read back and run as on ort-cuda",
    ):
        assert words in text
    assert "rung" not in text, "the options have kept that name, and nothing else"
    bare = shown(judged(without_gpu(kernel_driver="580.1.2")))
    assert "NVIDIA 580.1.2, its library was not found" in bare
    assert "cuDNN         not found" in bare


@pytest.mark.parametrize(
    ("children", "line"),
    [
        (InForce(True, True, True), "no network; no signals to other processes; no private files"),
        (
            InForce(True, False, True, "old"),
            "no network; no private files; not denied: signals to other processes (old)",
        ),
        (InForce(reason="old"), "not denied: network, signals to other processes, private files (old)"),
    ],
)
def test_it_says_what_children_cannot_do(children: InForce, line: str) -> None:
    found = judged(replace(SOUND, machine=machine(children=children)))
    assert f"  children      {line}\n" in shown(found)
    assert found.to_json()["machine"]["children"]["network"] is children.network


def test_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examination, "examine", lambda: judged(SOUND))
    code, out, err = run("doctor")
    assert (code, err) == (0, "")
    assert out.splitlines()[0] == "machine"
    assert out.endswith("no problems\n")
    code, out, err = run("doctor", "--format", "json")
    assert (code, err) == (0, "")
    assert json.loads(out) == json.loads(json.dumps(judged(SOUND).to_json()))
    sick = replace(judged(SOUND), problems=(Problem("it is broken", "mend it"),))
    monkeypatch.setattr(examination, "examine", lambda: sick)
    code, out, err = run("doctor")
    assert (code, err) == (1, "")
    assert out.endswith("problems\n  it is broken\n    fix: mend it\n")
    assert run("doctor", "--format", "json")[0] == 1


def process(*arguments: str, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    places = [str(path)] if path else []
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*places, str(ROOT), str(ROOT / "rules")])}
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env=environment)


@pytest.mark.slow
def test_a_broken_package_does_not_break_the_doctor(tmp_path: Path) -> None:
    (tmp_path / "onnx").mkdir()
    (tmp_path / "onnx" / "__init__.py").write_text("import ctypes\nctypes.string_at(0)\n")
    done = process("-m", "onnxfix", "doctor", "--format", "json", path=tmp_path)
    assert done.returncode == 1, done.stderr
    assert done.stderr == ""
    found = json.loads(done.stdout)
    rungs = {rung["name"]: rung for rung in found["rungs"]}
    assert not rungs["contract"]["available"]
    assert "does not load: killed by SIGSEGV" in rungs["contract"]["reason"]
    assert any("killed by SIGSEGV" in problem["text"] for problem in found["problems"])


@pytest.mark.slow
def test_the_doctor_itself_loads_nothing_that_may_be_broken() -> None:
    done = process("-X", "importtime", "-m", "onnxfix", "doctor")
    loaded = {line.rsplit("|", 1)[1].strip() for line in done.stderr.splitlines() if line.count("|") == 2}
    assert "onnxfix.verbs.examination.facts" in loaded
    risky = {"onnx", "numpy", "ml_dtypes", "onnxruntime", "tensorrt", "tensorrt_rtx", "polygraphy", "google"}
    assert not {name.partition(".")[0] for name in loaded} & risky
