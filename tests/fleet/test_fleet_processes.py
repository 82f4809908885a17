"""Several models at once in worker processes: same results, and one model's death is its own."""
# Long because: one test for each way in which a worker, a model or the whole run may end.

from __future__ import annotations

import ast
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from onnxfix.proof.verdict import FeedResult, RungResult, Verdict
from onnxfix.report.render.stream import Steps
from onnxfix.report.report import Report
from onnxfix.runtime.causes import Problem
from onnxfix.runtime.sandbox import Worker
from onnxfix.tensorrt.reading import Reading
from onnxfix.tensorrt.records import TrtBuild
from onnxfix.verbs.fleet import work
from onnxfix.verbs.fleet.processes import Processes
from onnxfix.verbs.fleet.work import Outcome, Task
from support import cli
from support.fleets import ROOT, environment, install, run, seen, started, without_times, write
from support.models import write as write_model
from support.options import run_options
from support.patience import PATIENCE

pytestmark = pytest.mark.slow  # each starts processes that work, hang or die

FIXTURES = ROOT / "fixtures"


@pytest.fixture
def pack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The misbehaving rules, on the path of every process that this one starts; temporary files in a folder."""
    folder = install(tmp_path / "pack")
    monkeypatch.setenv("PYTHONPATH", environment(folder)["PYTHONPATH"])
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])  # which workers get
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    return folder


def tasks(*models: Path, **options: object) -> list[Task]:
    return [Task(i, str(model), options=run_options(**options)) for i, model in enumerate(models)]


def repairs(models: list[Path], out: Path, **options: object) -> list[Task]:
    out.mkdir()
    given = run_options(**options)
    return [Task(i, str(model), str(out / model.name), "apply", given) for i, model in enumerate(models)]


def processes() -> set[int]:
    """Children of this process and theirs, by their ids (Linux), without multiprocessing's own helper."""
    found: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError):
                if b"resource_tracker" not in (entry / "cmdline").read_bytes():
                    found[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    family = {os.getpid()}
    while more := {pid for pid, parent in found.items() if parent in family} - family:
        family |= more
    return family - {os.getpid()}


def test_same_reports_and_bytes_as_one_by_one(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for name in ("vit_fp16.legacy.op16", "bert.dynamo.op20"):
        shutil.copy(FIXTURES / f"{name}.onnx", folder)
    for number in range(5):
        write(folder / f"small{number}.onnx")
    broken = folder / "broken.onnx"
    broken.write_bytes(b"no model")
    models = [*sorted(folder.glob("*.onnx")), tmp_path / "missing.onnx"]
    documents, outputs = [], []
    for jobs in (1, 4):
        result = run(
            None,
            *("apply", *models, "--jobs", jobs, "--rungs", "ort-cpu", "--output-dir", tmp_path / "out"),
            *("--format", "json", "--report", tmp_path / "report.json"),
        )
        assert result.returncode == 2, result.stderr
        documents.append(without_times(json.loads(result.stdout)))
        assert documents[-1] == without_times(json.loads((tmp_path / "report.json").read_text()))
        assert sorted(result.stderr.splitlines()) == sorted(
            f"onnxfix: {error['message']}" for error in documents[-1]["errors"]
        )
        outputs.append({path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()})
        shutil.rmtree(tmp_path / "out")
    assert documents[0] == documents[1]
    assert outputs[0] == outputs[1]
    assert len(outputs[0]) == 7
    paths = [report["path"] for report in documents[1]["reports"]]
    assert paths == [str(model) for model in models if model not in (broken, models[-1])]


def test_each_way_to_die_is_one_line_and_the_others_are_done(tmp_path: Path, pack: Path) -> None:
    kinds = {
        "abort": "killed by SIGABRT",
        "exit": "exited with status 3",
        "segfault": "killed by SIGSEGV",
        "sys.exit": "SystemExit: 5",
        "kill": "killed by SIGKILL, probably because memory ran out",
    }
    models = []
    for number, kind in enumerate(kinds):
        models += [write(tmp_path / f"bad{number}.onnx", kind), write(tmp_path / f"good{number}.onnx")]
    out = tmp_path / "out"
    result = run(pack, "apply", *models, "-j", 2, "--no-verify", "-q", "--output-dir", out)
    assert result.returncode == 2
    lines = result.stderr.splitlines()
    assert len(lines) == len(kinds), result.stderr
    for number, words in enumerate(kinds.values()):
        [line] = [line for line in lines if f"bad{number}.onnx: its worker process" in line]
        assert words in line
    assert sorted(path.name for path in out.iterdir()) == [f"good{number}.onnx" for number in range(5)]
    assert "10 models" in result.stdout
    assert "4 crashed or out of memory" in result.stdout
    assert "1 unreadable" in result.stdout  # sys.exit is no crash
    assert list((tmp_path / "tmp").iterdir()) == []


def test_what_was_killed_for_memory_is_tried_once_more_alone(tmp_path: Path, pack: Path) -> None:
    [outcome] = Processes(1, 4096).run(tasks(write(tmp_path / "alone.onnx", "kill once")))
    assert outcome.memory  # it had everything: once more would change nothing
    (pack / "killed").unlink()
    models = [write(tmp_path / "m.onnx", "kill once"), write(tmp_path / "n.onnx", "kill")]
    outcomes = {outcome.task.index: outcome for outcome in Processes(2, 4096).run(tasks(*models))}
    assert outcomes[0].report is not None
    assert outcomes[0].attempts == outcomes[1].attempts == 2
    assert outcomes[1].memory
    assert outcomes[1].error.endswith("(this run may use 4096 MiB)")
    assert seen(pack).count("m") == seen(pack).count("n") == 2


def test_more_than_a_share_is_had_alone_and_more_than_all_is_refused(tmp_path: Path, pack: Path) -> None:
    models = [write(tmp_path / "large.onnx", "eat 2500"), write(tmp_path / "giant.onnx", "eat 5000")]
    outcomes = {outcome.task.index: outcome for outcome in Processes(2, 4096).run(tasks(*models))}
    assert outcomes[0].report.problems == ()
    assert outcomes[0].attempts == 2
    assert "MemoryError" in outcomes[1].report.problems[0].text  # the rule's, which the engine survives
    assert outcomes[1].memory


def test_two_links_to_a_file_are_repaired_one_after_the_other(tmp_path: Path) -> None:
    model = write(tmp_path / "m.onnx")
    links = [tmp_path / f"link{i}.onnx" for i in range(2)]
    for link in links:
        link.symlink_to(model)
    options = run_options(verify=False, in_place=True)
    work = [Task(i, str(path), "", "apply", options) for i, path in enumerate((model, *links))]
    outcomes = {outcome.task.index: outcome.report for outcome in Processes(3, 8192).run(work)}
    assert [report is not None and report.changed for _, report in sorted(outcomes.items())] == [
        True,
        False,
        False,
    ]


def test_no_process_is_left_when_all_is_done(tmp_path: Path, pack: Path) -> None:
    """Those that ran ONNX Runtime for the workers included."""
    before = processes()
    work = repairs([write(tmp_path / f"m{i}.onnx") for i in range(3)], tmp_path / "out", rungs=("ort-cpu",))
    outcomes = list(Processes(2, 4096).run(work))
    assert all(outcome.report is not None and outcome.report.output for outcome in outcomes)
    assert processes() == before
    assert list((tmp_path / "tmp").iterdir()) == []


def test_nothing_is_left_when_it_is_closed_in_the_middle(tmp_path: Path, pack: Path) -> None:
    (pack / "seconds").write_text("600")
    before = processes()
    quick = write(tmp_path / "quick.onnx")
    slow = [write(tmp_path / f"slow{i}.onnx", "sleep") for i in range(4)]
    out = tmp_path / "out"
    outcomes = Processes(2, 4096).run(repairs([quick, *slow], out, verify=False))
    assert next(outcomes).task.index == 0
    while not any("slow" in name for name in seen(pack)):
        time.sleep(0.05)
    assert processes() > before
    outcomes.close()
    assert processes() == before
    assert [path.name for path in out.iterdir()] == ["quick.onnx"]
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.parametrize("twice", [(signal.SIGINT, signal.SIGINT), (signal.SIGHUP, signal.SIGTERM)])
def test_a_second_interrupt_does_not_disturb_the_cleaning_up(
    tmp_path: Path, pack: Path, twice: tuple[signal.Signals, signal.Signals]
) -> None:
    (pack / "seconds").write_text("600")
    models = [write(tmp_path / f"m{i}.onnx", "sleep") for i in range(3)]
    out = tmp_path / "out"
    call = ("apply", *models, "-j", 2, "--no-verify", "-q", "--output-dir", out)
    with started(*call, env=environment(pack)) as process:
        while len(set(seen(pack))) < 2:
            assert process.poll() is None, process.communicate()
            time.sleep(0.02)
        for number in twice:
            process.send_signal(number)
            time.sleep(0.05)
        stderr = process.communicate(timeout=PATIENCE)[1]
    assert (process.returncode, stderr) == (
        128 + twice[0],
        "onnxfix: interrupted; nothing half-written was left behind\n",
    )
    assert list(out.iterdir()) == list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.corpus(every=3)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_interrupted_and_resumed(tmp_path: Path, pack: Path, number: signal.Signals) -> None:
    """A run that is ended leaves no process, no temporary file, and a journal from which the next one goes on."""
    (pack / "seconds").write_text("600")
    models = [write(tmp_path / f"m{i:02}.onnx", "sleep" if i >= 8 else "") for i in range(24)]
    out, journal = tmp_path / "out", tmp_path / "out" / ".onnxfix-journal.jsonl"
    call = ("apply", *models, "-j", 3, "--no-verify", "-q", "--output-dir", out, "--resume")
    with started(*call, env=environment(pack)) as process:
        while not journal.exists() or journal.read_text().count("\n") < 9 or len(set(seen(pack))) < 11:
            assert process.poll() is None, process.communicate()
            time.sleep(0.02)
        ours = {int(line.split()[1]) for line in (pack / "seen").read_text().splitlines()} | {process.pid}
        process.send_signal(number)
        stderr = process.communicate(timeout=PATIENCE)[1]
    if number != signal.SIGKILL:
        assert process.returncode == 128 + number
        assert stderr == "onnxfix: interrupted; nothing half-written was left behind\n"
    until = time.monotonic() + PATIENCE
    while any(Path(f"/proc/{pid}").exists() for pid in ours) and time.monotonic() < until:
        time.sleep(0.05)  # workers of a parent that was killed end by themselves
    assert not [pid for pid in ours if Path(f"/proc/{pid}").exists()]
    assert not [path.name for path in out.iterdir() if path.suffix == ".tmp"]
    if number != signal.SIGKILL:
        assert list((tmp_path / "tmp").iterdir()) == []
    done = {Path(json.loads(line)["source"]).stem for line in journal.read_text().splitlines()[1:]}
    assert done == {model.stem for model in models[:8]}
    (pack / "seen").unlink()
    (pack / "seconds").write_text("0")
    result = run(pack, *call, "--report", tmp_path / "report.json")
    assert result.returncode == 0, result.stderr
    assert set(seen(pack)) == {model.stem for model in models} - done
    reports = json.loads((tmp_path / "report.json").read_text())["reports"]
    assert [report["path"] for report in reports] == [str(model) for model in models]
    assert {Path(report["path"]).stem for report in reports if report["reused"]} == done
    assert f"{len(done)} unchanged and skipped" in result.stdout
    assert sorted(path.name for path in out.iterdir()) == [journal.name, *(model.name for model in models)]


def test_workers_share_cores_and_memory(tmp_path: Path, pack: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONNXFIX_CORES", "6")
    monkeypatch.setenv("OMP_NUM_THREADS", "64")
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")
    models = [write(tmp_path / f"m{i}.onnx", "environment") for i in range(2)]
    outcomes = list(Processes(2, 5000).run(tasks(*models)))
    assert all(outcome.report is not None for outcome in outcomes)
    told = ast.literal_eval((pack / "environment").read_text())
    assert told["ONNXFIX_CORES"] == told["OMP_NUM_THREADS"] == "3"
    assert told["OPENBLAS_NUM_THREADS"] == "1"  # what the user asked for is not raised
    assert told["ONNXFIX_MEMORY_MB"] == "2500"


def test_children_of_a_worker_keep_to_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONNXFIX_MEMORY_MB", "300")
    with Worker() as worker:
        told = worker.call("onnxfix.runtime._child:default_memory_mb", timeout=PATIENCE)
        assert told.value == 300
        eaten = worker.call("builtins:bytearray", timeout=PATIENCE, source=400 << 20)
    assert eaten.status == "memory"


@pytest.mark.parametrize("words", ["x", "-1", "1.5", ""])
def test_a_number_of_jobs_that_is_none(tmp_path: Path, words: str) -> None:
    result = run(None, "check", write(tmp_path / "m.onnx"), f"--jobs={words}")
    assert result.returncode == 2
    assert len(result.stderr.splitlines()) == 1
    assert "is not a number of models" in result.stderr


def test_globs_keep_their_folders(tmp_path: Path) -> None:
    for folder in ("a", "b", "b/c"):
        (tmp_path / "in" / folder).mkdir(parents=True)
        write(tmp_path / "in" / folder / "model.onnx")
    out = tmp_path / "out"
    result = run(None, "apply", tmp_path / "in/**/*.onnx", "--no-verify", "-q", "-j", 2, "--output-dir", out)
    assert result.returncode == 0, result.stderr
    assert sorted(str(path.relative_to(out)) for path in out.rglob("*.onnx")) == [
        "a/model.onnx",
        "b/c/model.onnx",
        "b/model.onnx",
    ]
    named = [tmp_path / "in/a/model.onnx", tmp_path / "in/b/model.onnx"]
    refused = run(None, "apply", *named, "--output-dir", tmp_path / "other")
    assert refused.returncode == 2
    assert "two models would be written to" in refused.stderr


def test_perform_never_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "m.onnx")

    def broken(*_: object, **__: object) -> None:
        raise RecursionError

    monkeypatch.setattr("onnxfix.verbs.checking.check", broken)
    outcome = work.perform(Task(0, str(path)))
    assert outcome.report is None
    assert outcome.error == f"{path}: is nested too deeply to be processed"
    assert not outcome.memory

    def hungry(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr("onnxfix.verbs.checking.check", hungry)
    assert work.perform(Task(0, str(path))).memory


@pytest.mark.parametrize("name", ["two  spaces.onnx", "a\nbreak.onnx"])
def test_an_error_names_a_model_of_an_odd_name_once(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"no model")
    error = work.perform(tasks(tmp_path / name)[0]).error
    assert error.count(".onnx: ") == 1
    assert len(error.splitlines()) == 1


def test_a_lack_of_memory_is_seen_wherever_it_shows() -> None:
    def starved(*rungs: RungResult, **more: object) -> bool:
        return work._ran_out_of_memory(
            Report("m", "apply", "trt11", verdict=Verdict(rungs) if rungs else None, **more)
        )

    assert starved(RungResult("ort-cpu", "skipped", cause="memory"))
    assert starved(RungResult("ort-cpu", "failed", cause="memory"))
    assert starved(
        RungResult("ort-cpu", "passed", feeds=(FeedResult("x", None, "not counted", cause="memory"),))
    )
    assert starved(RungResult("trt-network", "failed", networks=(Reading("unknown", cause="memory"),)))
    assert starved(RungResult("trt-build", "passed", builds=(TrtBuild("memory"),)))
    assert starved(build=TrtBuild("memory"))
    assert starved(problems=(Problem("a rule failed", "memory"),))
    assert not starved(RungResult("ort-cpu", "skipped", "ran out of memory", cause="not-installed"))
    assert not starved(RungResult("ort-cpu", "passed", "identical", cause="memory"))
    assert not starved(problems=(Problem("ran out of memory"),))
    assert not starved(build=TrtBuild("accepted"))


def test_a_worker_that_cannot_be_started_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tempfile.mkdtemp", full)
    models = [write(tmp_path / f"m{i}.onnx") for i in range(2)]
    outcomes = list(Processes(2, 4096).run(tasks(*models)))
    assert len(outcomes) == 2
    assert all("cannot be started: No space left on device" in outcome.error for outcome in outcomes)


def test_results_come_as_they_are_ready_and_are_reported_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    models = [write(tmp_path / f"m{i}.onnx") for i in range(3)]

    class Backwards:
        def run(self, tasks: list[Task], progress: object = None) -> object:
            for task in reversed(tasks):
                yield Outcome(task, error="x: dead", crashed=True) if task.index == 1 else work.perform(task)

    monkeypatch.setattr("onnxfix.cli.runs.executor_of", lambda *_: Backwards().run)
    code, out, _ = cli.run("check", *models, "-q")
    heads = [line.split()[0] for line in out.splitlines()[:2]]
    assert heads == [str(models[2]), str(models[0])]
    assert code == 2
    document = json.loads(cli.run("check", *models, "--format", "json")[1])
    assert [report["path"] for report in document["reports"]] == [str(models[0]), str(models[2])]
    assert document["errors"] == [{"path": str(models[1]), "message": "x: dead"}]


def test_bar_names_what_is_under_way() -> None:
    steps = Steps(5)
    steps.at("a", "reading")
    assert steps.text == "[1/5] a: reading"
    steps.at("a", "fixing")
    steps.over("a")
    steps.at("b\x1b[2J", "working")
    steps.at("c", "working")
    assert steps.text == "[1/5] b\\x1b[2J, c"
    steps.over("b\x1b[2J")
    assert steps.text == "[3/5] c: working"


def test_a_terminal_shows_how_far_a_long_proof_is(tmp_path: Path) -> None:
    pty, shown = pytest.importorskip("pty"), [b""]

    def read(descriptor: int) -> bytes:
        shown.append(os.read(descriptor, 4096))
        return shown[-1]

    slow = " ".join(f"a{n + 1} = MatMul(a{n}, a{n})" for n in range(24))
    text = f"g (float[1024,1024] a0) => (float[1024,1024] y) {{ {slow} y = Tanh(a24) }}"
    model = str(write_model(tmp_path / "a.onnx", text, 17))
    assert (
        pty.spawn([sys.executable, "-m", "onnxfix", "verify", model, model, "--rungs", "ort-cpu"], read) == 0
    )
    bar = rb"a.onnx: verifying, \d+ %: ort-cpu, feed \d of \d, about \d+ s left"
    assert re.search(bar, b"".join(shown)), shown


def test_workers_import_nothing_from_the_folder_of_the_models(tmp_path: Path) -> None:
    """The installed command has its own folder in sys.path, and not the current one."""
    (tmp_path / "bin").mkdir()
    started = tmp_path / "bin" / "started.py"
    started.write_text("from onnxfix.__main__ import main\n\nif __name__ == '__main__':\n    main()\n")
    folder = tmp_path / "models"
    folder.mkdir()
    for name in ("pickle", "socket", "tempfile", "runpy"):
        (folder / f"{name}.py").write_text("open('ran', 'w').close()\nraise ImportError('not meant to be')\n")
    for name in ("a.onnx", "b.onnx"):
        write(folder / name)
    words = [sys.executable, started, "check", "a.onnx", "b.onnx", "--jobs", "2", "--fail-on", "never"]
    paths = os.pathsep.join([str(ROOT), str(ROOT / "rules")])
    done = subprocess.run(
        words, cwd=folder, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert not (folder / "ran").exists()
