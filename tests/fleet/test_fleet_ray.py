"""Fleets on Ray: a real cluster of two nodes, one of which dies; and what is asked of Ray, on a Ray that is made up."""
# Long because: both Rays are to answer the same questions.

from __future__ import annotations

import contextlib
import json
import os
import pickle
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.cli import process
from support.fleets import (
    environment,
    install,
    run,
    seen,
    started,
    variables_as_before,
    without_times,
    write,
)
from support.folders import snapshot
from support.patience import PATIENCE

pytest.importorskip("ray", reason="the extra 'ray' is not installed")

from ray_nodes import Cluster

from onnxfix.errors import OnnxfixError, UsageError
from onnxfix.options import RunOptions
from onnxfix.verbs.fleet import ray as fleet
from onnxfix.verbs.fleet.work import Outcome, Task, sweep
from support.options import run_options

__all__ = ["variables_as_before"]  # a fixture

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ray")]  # one cluster


class Ray:
    """Enough of Ray: tasks end as told, in the order in which they were sent. ``sent`` is what was asked for."""

    def __init__(self, *ends: Any, nodes: tuple[tuple[int, int, int], ...] = ((2, 0, 4096),)) -> None:
        self.ends = list(ends)
        self.machines = nodes
        self.sent: list[tuple[Task, dict[str, Any]]] = []
        self.most = 0
        self._flying: list[int] = []

    def nodes(self) -> list[dict[str, Any]]:
        named = [{"CPU": cpus, "GPU": gpus, "memory": float(mb << 20)} for cpus, gpus, mb in self.machines]
        return [{"Alive": True, "Resources": one} for one in named] + [
            {"Alive": False, "Resources": {"CPU": 64}}
        ]

    def remote(self, function: Any) -> Ray:
        return self

    def options(self, **asked: Any) -> Any:
        ray = self

        class Call:
            def remote(self, payload: bytes, *_: Any) -> int:
                ray.sent.append((pickle.loads(payload), asked))
                ray._flying.append(len(ray.sent) - 1)
                ray.most = max(ray.most, len(ray._flying))
                return len(ray.sent) - 1

        return Call()

    def wait(self, refs: list[int], num_returns: int, timeout: float) -> tuple[list[int], list[int]]:
        assert refs
        done = sorted(refs)[: num_returns if self.ends else 0]
        return done, [ref for ref in refs if ref not in done]

    def get(self, ref: int) -> Any:
        self._flying.remove(ref)
        end = self.ends.pop(0)
        if isinstance(end, BaseException):
            raise end
        return end if isinstance(end, str) else pickle.dumps(end)

    def cancel(self, ref: int, force: bool = False) -> None:
        """Nothing is under way that would have to be stopped."""


def tasks(count: int, options: RunOptions | None = None) -> list[Task]:
    return [Task(number, f"{number}.onnx", options=options or run_options()) for number in range(count)]


def done(**more: Any) -> Outcome:
    return Outcome(Task(99, "of the worker's"), **more)


def attempt(ray: Ray, tasks: list[Task]) -> Iterator[Outcome]:
    return fleet.Run(ray, tasks).outcomes()


# ------------------------------------------------------------------------------------------------ what is asked of Ray


def test_a_task_asks_for_a_cpu_and_its_share_of_memory() -> None:
    ray = Ray(done(), nodes=((2, 0, 4096), (8, 0, 32768)))
    run = fleet.Run(ray, tasks(1))
    assert [outcome.task.index for outcome in run.outcomes()] == [0]
    assert ray.sent[0][1] == {"num_cpus": 1, "num_gpus": 0, "max_retries": 0, "memory": 2048 << 20}


@pytest.mark.parametrize("options", [run_options(rungs=("ort-cuda",)), run_options(require=("trt-gpu",))])
def test_a_gpu_rung_asks_for_a_gpu(options: RunOptions) -> None:
    ray = Ray(done(), nodes=((2, 0, 999999), (4, 1, 8192)))
    assert len(list(attempt(ray, tasks(1, options)))) == 1
    assert ray.sent[0][1]["num_gpus"] == 1
    assert ray.sent[0][1]["memory"] == 2048 << 20  # of the node with the GPU
    with pytest.raises(UsageError, match="no node of the cluster has a CPU and a GPU"):
        attempt(Ray(), tasks(1, options))


def test_two_links_to_a_file_are_not_replaced_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "m.onnx").touch()
    links = [tmp_path / f"link{i}.onnx" for i in range(3)]
    for link in links:
        link.symlink_to(tmp_path / "m.onnx")
    made = [Task(i, str(link), "", "apply", run_options(in_place=True)) for i, link in enumerate(links)]
    ray = Ray(*[done()] * 3)
    monkeypatch.setattr(fleet, "connected", lambda address: contextlib.nullcontext(ray))
    assert len(list(fleet.RayExecutor().run(made))) == 3
    assert ray.most == 1


# ------------------------------------------------------------------------------------------------ what Ray says


def test_out_of_memory_is_tried_once_more_with_a_whole_node() -> None:
    ray = Ray(
        done(error="0.onnx: no", memory=True), done(error="0.onnx: no", memory=True), nodes=((4, 0, 8192),)
    )
    [outcome] = attempt(ray, tasks(1))
    assert [asked["memory"] >> 20 for _, asked in ray.sent] == [2048, 8192]
    assert (outcome.attempts, outcome.memory) == (2, True)


def test_without_its_own_node_the_run_ends() -> None:
    from ray.exceptions import LocalRayletDiedError

    with pytest.raises(OnnxfixError, match="the Ray node of this run's connection died"):
        list(attempt(Ray(LocalRayletDiedError()), tasks(1)))


def test_a_file_that_only_we_have_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "0.onnx").touch()
    ends = [done(error=f"{name}.onnx: gone", node="10.0.0.1", missing=True) for name in (0, 1)]
    outcomes = {one.task.index: one.error for one in attempt(Ray(*ends), tasks(2))}
    assert outcomes == {
        0: "0.onnx: gone (on Ray's node 10.0.0.1; with local paths, all nodes must share the folder)",
        1: "1.onnx: gone",
    }


def test_the_run_ends_when_no_node_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_NO_NODE_SECONDS", "_POLL_SECONDS"):
        monkeypatch.setattr(fleet, name, 0.0)
    with pytest.raises(UsageError, match="no node of the cluster has a CPU"):
        attempt(Ray(nodes=()), tasks(1))
    ray = Ray()
    run = fleet.Run(ray, tasks(1))
    ray.machines = ()
    with pytest.raises(OnnxfixError, match="no node of the Ray cluster is left"):
        list(run.outcomes())


def test_leftovers_are_the_tasks_own_and_new(tmp_path: Path) -> None:
    names = [
        ".m.onnx.abcd1234.tmp", ".m.onnx.old_1234.tmp", ".m.onnx.v2.onnx.abcd1234.tmp", ".n.onnx.abcd1234.tmp",
        ".m.onnx.abcd1234", "m.onnx",
    ]  # fmt: skip
    began = time.time() - fleet.CLOCK_SKEW
    for name in names:
        (tmp_path / name).touch()
    os.utime(tmp_path / ".m.onnx.old_1234.tmp", (1, 1))
    task = Task(0, "in.onnx", str(tmp_path / "m.onnx"), "apply")
    others = Task(0, "in.onnx", "memory://b/m.onnx", "apply"), Task(0, str(tmp_path / "m.onnx"))
    sweep(others, began)
    assert len(list(tmp_path.iterdir())) == len(names)
    sweep([task], began)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names[1:])


# ------------------------------------------------------------------------------------------------ connecting


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("model.onnx", "must be auto, local or HOST:PORT"),
        ("127.0.0.1:1", "no Ray cluster answers: Connection refused"),
        ("ray://127.0.0.1:1", "no Ray cluster answers"),
        ("127.0.0.1:99999", "no Ray cluster answers"),
    ],
)
def test_a_wrong_address_is_refused_at_once(address: str, words: str) -> None:
    with pytest.raises(UsageError, match=words), fleet.connected(address):
        pass


def test_the_address_in_the_environment_is_looked_at_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with (
        pytest.raises(UsageError, match=r"--ray 127\.0\.0\.1:1: no Ray cluster answers"),
        fleet.connected("auto"),
    ):
        pass


def test_without_ray_one_line_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "__init__.py").write_text("raise ImportError('no ray here')")
    model = write(tmp_path / "m.onnx")
    for more, words in (
        ([], "onnxfix: --ray needs Ray: pip install 'onnxfix[ray]'\n"),
        (
            ["--jobs", "2"],
            "onnxfix: --jobs applies to this machine only: with --ray, Ray decides how many models run at once\n",
        ),
    ):
        told = run(tmp_path, "check", model, "--ray", "local", *more)
        assert (told.returncode, told.stdout, told.stderr) == (2, "", words)


# ------------------------------------------------------------------------------------------------ a real cluster


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(tmp_path_factory.mktemp("pack"))


@pytest.fixture(scope="module")
def two_nodes(pack: Path) -> Iterator[Cluster]:
    with Cluster(nodes=2, cpus=2, environ=environment(pack)) as found:
        yield found


def result(process: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(process.stdout)
    return document


def asked(folder: Path, output: str, *more: str) -> list[str]:
    options = ["--no-verify", "--format", "json", "--fail-on", "never"]
    return ["apply", f"{folder.name}/*.onnx", "--output-dir", output, *options, *more]


@pytest.mark.long
def test_one_model_is_done_again_and_another_is_given_up(
    two_nodes: Cluster, pack: Path, tmp_path: Path
) -> None:
    """The one whose worker was killed once is done, the one that kills every worker is an error, and so is the one that
    is no model; all others are what they are without Ray. Paths are relative: workers go to the driver's folder."""
    folder = tmp_path / "in"
    folder.mkdir()
    for name in ("a", "b", "c"):
        write(folder / f"{name}.onnx")
    write(folder / "once.onnx", "kill once")
    write(folder / "poison.onnx", "kill")
    (folder / "junk.onnx").write_bytes(b"junk")
    (pack / "seen").unlink(missing_ok=True)
    told = process(*asked(folder, "ray", "--ray", two_nodes.address), cwd=tmp_path, env=two_nodes.environ)
    assert told.returncode == 2, told.stderr
    found = result(told)
    assert [report["path"] for report in found["reports"]] == [
        f"in/{name}.onnx" for name in ("a", "b", "c", "once")
    ]
    assert [error["path"] for error in found["errors"]] == ["in/junk.onnx", "in/poison.onnx"]
    assert found["errors"][1]["message"].startswith("in/poison.onnx: its Ray worker died 4 times: ")
    messages = [f"onnxfix: {error['message']}" for error in found["errors"]]
    assert sorted(told.stderr.splitlines()) == sorted(messages)
    counts = {name: seen(pack).count(name) for name in ("poison", "once")}
    assert counts == {"poison": 1 + len(fleet.PAUSES), "once": seen(pack).count("a") + 1}
    (folder / "poison.onnx").unlink()
    local = run(pack, *asked(folder, "local"), cwd=tmp_path)
    assert snapshot(tmp_path / "ray") == snapshot(tmp_path / "local")
    same = json.loads(local.stdout.replace('"local/', '"ray/'))
    assert without_times(found["reports"]) == without_times(same["reports"])


def test_an_interrupted_run_leaves_nothing_behind(two_nodes: Cluster, pack: Path, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (pack / "seconds").write_text("600")
    for number in range(8):
        write(folder / f"m{number}.onnx", "sleep")
    (pack / "seen").unlink(missing_ok=True)
    call = asked(folder, "out", "--ray", two_nodes.address)
    with started(*call, cwd=tmp_path, env=two_nodes.environ) as running:
        until = time.monotonic() + PATIENCE
        while not seen(pack) and time.monotonic() < until:
            time.sleep(0.05)
        running.send_signal(signal.SIGINT)
        out, words = running.communicate(timeout=PATIENCE)
    assert running.returncode == 130
    said = [one["message"] for one in json.loads(out)["errors"]]  # with --format json, also a document
    assert said == ["interrupted; nothing half-written was left behind"]
    assert words == "onnxfix: interrupted; nothing half-written was left behind\n"
    assert snapshot(tmp_path / "out") == {}


def test_a_cluster_with_other_rules_is_refused(two_nodes: Cluster, tmp_path: Path) -> None:
    other = dict(two_nodes.environ, PYTHONPATH=environment()["PYTHONPATH"])  # without the pack of the nodes
    told = process("check", write(tmp_path / "m.onnx"), "--ray", two_nodes.address, env=other)
    assert (told.returncode, told.stdout) == (2, "")
    assert (
        "has another version of onnxfix or other rules; install the same onnxfix on each node" in told.stderr
    )
    assert told.stderr.count("\n") == 1


def test_a_node_dies_and_every_model_is_done(two_nodes: Cluster, pack: Path, tmp_path: Path) -> None:
    """Last, for it takes one of the two nodes away."""
    folder = tmp_path / "in"
    folder.mkdir()
    (pack / "seconds").write_text("600")
    for number in range(12):  # four are done at once, and the others when the node is dead
        write(folder / f"m{number:02}.onnx", "sleep" if number >= 4 else "")
    call = asked(folder, "ray", "--ray", two_nodes.address)
    with started(*call, cwd=tmp_path, env=two_nodes.environ) as running:
        until = time.monotonic() + PATIENCE
        while len(list((tmp_path / "ray").glob("*.onnx"))) < 4 and time.monotonic() < until:
            time.sleep(0.02)
        assert running.poll() is None
        two_nodes.nodes[1].kill()
        (pack / "awake").write_text("0")
        (pack / "awake").replace(pack / "seconds")  # at once, for somebody may be reading it
        out, words = running.communicate(timeout=PATIENCE)
    assert (running.returncode, words) == (0, "")
    found = json.loads(out)
    assert [report["path"] for report in found["reports"]] == [
        f"in/m{number:02}.onnx" for number in range(12)
    ]
    local = run(pack, *asked(folder, "local"), cwd=tmp_path)
    assert local.returncode == 0
    assert snapshot(tmp_path / "ray") == snapshot(tmp_path / "local")
    assert len(snapshot(tmp_path / "ray")) == 12
