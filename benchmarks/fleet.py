"""Whether several models at once are faster, die alone, and are done once: 500 small models, made from ``fixtures/``.

    python benchmarks/fleet.py [--models 500] [--jobs 4] [--runs 5] [--work FOLDER]

Runs whole processes in turn, with one job and with ``--jobs`` jobs, of ``check``, of ``apply --no-verify`` and of
``apply`` with ONNX Runtime, and prints medians with least and greatest. Then one model's rule aborts the worker
process (a rule pack of a third party, installed for this run only); then a run is interrupted, another killed, and
each resumed.

The exit code is 1 unless all of this holds: ``apply`` with ``--jobs`` jobs is faster by three quarters of the number
of jobs or cores at the median (3 times for four; not judged with ``--no-speed``, for machines that others use too;
``check`` takes some 10 ms a model, so that starting the processes counts, and is not judged); reports and outputs are
the same whatever the number of jobs; the crash is reported for its model and all others are done; nothing that the
journal held is done twice, nothing is missing in the end, and no temporary file or process is left. CPU seconds are
of the processes that were waited for: without the sandbox children of workers.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
from onnx import ModelProto, NodeProto

ROOT = Path(__file__).resolve().parents[1]
CASES = {
    "check": ["check"],
    "apply --no-verify": ["apply", "--no-verify"],
    "apply --rungs ort-cpu": ["apply", "--rungs", "ort-cpu"],
}
SMALLEST, LARGEST = 12, 120
"""Nodes of the models that are made, subgraphs not counted."""

PACK = '''"""Aborts the process at a node named 'crash here', as a fault in somebody's native code would."""
import os
from onnxfix.rule import Severity, rule


@rule("ZZZ001", ops=["*"], severity=Severity.INFO)
def aborts(node, model):
    """Aborts."""
    if node.name == "crash here":
        os.abort()
    return
    yield
'''


def models(folder: Path, count: int) -> list[Path]:
    """Write ``count`` models: the beginnings of the fixtures, each of another length."""
    folder.mkdir()
    bases = []
    for path in sorted((ROOT / "fixtures").glob("*.onnx")):
        bases.append((path.stem, onnx.shape_inference.infer_shapes(onnx.load(path))))
    paths = []
    for number in range(count):
        name, base = bases[number % len(bases)]
        length = SMALLEST + (number * 37) % (LARGEST - SMALLEST)
        paths.append(folder / f"{number:04}.{name}.onnx")
        onnx.save(beginning(base, min(length, len(base.graph.node))), paths[-1])
    return paths


def beginning(base: ModelProto, length: int) -> ModelProto:
    """The first nodes of a model; what nobody among them takes is an output."""
    types = {info.name: info for info in (*base.graph.value_info, *base.graph.output)}
    while True:
        nodes = base.graph.node[:length]
        used = {name for node in nodes for name in taken(node)}
        made = [name for node in nodes for name in node.output if name]
        ends = [types[name] for name in made if name not in used and name in types]
        if ends or length >= len(base.graph.node):
            break
        length += 1  # of none of the last values the type is known
    model = ModelProto()
    model.CopyFrom(base)
    graph = model.graph
    for field in ("node", "output", "value_info", "initializer"):
        graph.ClearField(field)  # type: ignore[arg-type]
    graph.node.extend(nodes)
    graph.output.extend(ends)
    graph.initializer.extend(tensor for tensor in base.graph.initializer if tensor.name in used)
    return model


def taken(node: NodeProto) -> Iterator[str]:
    """Names that a node takes, those of its subgraphs included."""
    yield from node.input
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            for inner in graph.node:
                yield from taken(inner)


@dataclass(frozen=True)
class Run:
    """A whole process. ``cpu`` is user and system time in seconds, of its children too as far as they were reaped."""

    code: int
    out: str
    err: str
    wall: float
    cpu: float


def environment(pack: Path | None = None) -> dict[str, str]:
    paths = [str(ROOT), str(ROOT / "rules"), *([str(pack)] if pack else [])]
    return dict(os.environ, PYTHONPATH=os.pathsep.join(paths))


def start(arguments: list[str], pack: Path | None = None) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "onnxfix", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(pack),
        preexec_fn=lambda: signal.signal(
            signal.SIGINT, signal.SIG_DFL
        ),  # a shell's background jobs ignore it
    )


def run(arguments: list[str], pack: Path | None = None) -> Run:
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    process = start(arguments, pack)
    out, err = process.communicate()
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Run(process.returncode, out, err, wall, cpu)


class Claims:
    """What was claimed and did not hold."""

    def __init__(self) -> None:
        self.broken: list[str] = []

    def hold(self, holds: bool, claim: str) -> None:
        print(f"  {'ok    ' if holds else 'BROKEN'} {claim}", flush=True)
        if not holds:
            self.broken.append(claim)


def untimed(value: Any) -> Any:
    """JSON without what differs from run to run."""
    if isinstance(value, dict):
        return {key: untimed(item) for key, item in value.items() if "seconds" not in key}
    return [untimed(item) for item in value] if isinstance(value, list) else value


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())} if folder.exists() else {}


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):7.2f} ({min(values):.2f} to {max(values):.2f})"


def speed(claims: Claims, pattern: str, work: Path, jobs: int, runs: int, judged: bool) -> None:
    """One job and several, in turn."""
    print(f"{'':24} {'':8} {'wall s, median (least to greatest)':>36} {'CPU s':>28}")
    for name, words in CASES.items():
        walls: dict[int, list[float]] = {1: [], jobs: []}
        cpus: dict[int, list[float]] = {1: [], jobs: []}
        results = {}
        for _ in range(runs):
            for count in (1, jobs):
                out = work / "out"
                where = ["--output-dir", str(out)] if words[0] == "apply" else []
                done = run([*words, pattern, "--jobs", str(count), "--format", "json", *where])
                walls[count].append(done.wall)
                cpus[count].append(done.cpu)
                results[count] = (done.code, untimed(json.loads(done.out)), contents(out))
                shutil.rmtree(out, ignore_errors=True)
        for count in (1, jobs):
            label = f"{name:24} {count} job{'s' if count > 1 else ' '}"
            print(f"{label}   {spread(walls[count]):>36} {spread(cpus[count]):>28}")
        ratios = [one / many for one, many in zip(walls[1], walls[jobs], strict=True)]
        print(f"{name:24} ratio    {spread(ratios):>36}")
        reports = results[1][1]["reports"]
        claims.hold(results[1] == results[jobs], f"{name}: same reports and outputs of {len(reports)} models")
        if judged and words[0] == "apply":
            wanted = 0.75 * min(jobs, len(os.sched_getaffinity(0)))
            claims.hold(statistics.median(ratios) >= wanted, f"{name}: at least {wanted:g} times faster")


def install(folder: Path) -> Path:
    """The rule pack as pip would install it."""
    info = folder / "crashing_rules-1.0.dist-info"
    info.mkdir(parents=True)
    (folder / "crashing_rules.py").write_text(PACK)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: crashing-rules\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[onnxfix.rules]\ncrashing = crashing_rules\n")
    return folder


def crash(claims: Claims, paths: list[Path], pattern: str, work: Path, jobs: int) -> None:
    """One of the models crashes its worker."""
    victim = paths[len(paths) // 2]
    whole = victim.read_bytes()
    model = onnx.load_from_string(whole)
    model.graph.node[0].name = "crash here"
    victim.write_bytes(model.SerializeToString())
    out = work / "out"
    done = run(
        ["apply", "--no-verify", pattern, "--jobs", str(jobs), "--output-dir", str(out), "--format", "json"],
        install(work / "pack"),
    )
    victim.write_bytes(whole)
    document = json.loads(done.out)
    print(f"  {done.err.strip()}")
    claims.hold(done.code == 2 and len(done.err.splitlines()) == 1, "a crash is one line and exit code 2")
    claims.hold([error["path"] for error in document["errors"]] == [str(victim)], "it is its model's")
    claims.hold(len(document["reports"]) == len(paths) - 1, f"the other {len(paths) - 1} are done")
    names = {path.name for path in paths} - {victim.name}
    claims.hold(set(contents(out)) == names, "their results are there, and nothing else")
    shutil.rmtree(out)


def resumed(claims: Claims, paths: list[Path], pattern: str, work: Path, jobs: int) -> None:
    """Interrupted once and killed once, each a third further on, and resumed to the end."""
    out = work / "out"
    journal = out / ".onnxfix-journal.jsonl"
    call = ["apply", "--no-verify", pattern, "-j", str(jobs), "--output-dir", str(out), "--resume"]
    for third, number in ((1, signal.SIGINT), (2, signal.SIGKILL)):
        process = start([*call, "--quiet"])
        while process.poll() is None and len(entries(journal)) < third * len(paths) // 3:
            time.sleep(0.01)
        process.send_signal(number)
        process.communicate()
        until = time.monotonic() + 30
        while children(work) and time.monotonic() < until:
            time.sleep(0.05)
        done = entries(journal)
        print(f"  {number.name} after {len(done)} of {len(paths)} models")
        claims.hold(len(paths) > len(done) >= third * len(paths) // 3, "it was in the middle")
        claims.hold(not children(work), "no process is left")
        claims.hold(
            not [name for name in contents(out) if name.endswith(".tmp")], "no temporary file is left"
        )
    before = {name: os.stat(out / name).st_mtime_ns for name in done}
    last = run([*call, "--format", "json"])
    reports = json.loads(last.out)["reports"]
    again = {Path(report["path"]).name for report in reports if report["reused"]}
    claims.hold(last.code < 2 and len(reports) == len(paths), f"resumed, all {len(paths)} are reported")
    claims.hold(again == set(done), f"{len(done)} of them from the journal, and the others done")
    now = {name: os.stat(out / name).st_mtime_ns for name in done}
    claims.hold(now == before, "what was done was not written again")
    lines = entries(journal)
    claims.hold(
        len(lines) == len(set(lines)) == len(paths),
        "each model has one line in the journal: none was done twice",
    )
    claims.hold({path.name for path in paths} | {journal.name} == set(contents(out)), "all results are there")


def entries(journal: Path) -> list[str]:
    """Names of the models in the journal's whole lines, in order."""
    if not journal.exists():
        return []
    whole = journal.read_bytes().rpartition(b"\n")[0]
    return [Path(json.loads(line)["source"]).name for line in whole.splitlines()[1:]]


def children(work: Path) -> list[int]:
    """Processes of onnxfix whose temporary files are this benchmark's (Linux)."""
    found = []
    mark = f"TMPDIR={work}".encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            ours = mark in (entry / "environ").read_bytes() and b"onnxfix" in (entry / "cmdline").read_bytes()
        except OSError:  # it has just ended
            continue
        if ours:
            found.append(int(entry.name))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", type=int, default=500)
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--work", type=Path, help="folder for models and results; a temporary one without it")
    parser.add_argument("--no-speed", action="store_true", help="print the times and do not judge them")
    asked = parser.parse_args()
    claims = Claims()
    with tempfile.TemporaryDirectory(dir=asked.work) as folder:
        work = Path(folder).resolve()
        (work / "tmp").mkdir()
        os.environ["TMPDIR"] = str(work / "tmp")
        paths = models(work / "models", asked.models)
        size = sum(path.stat().st_size for path in paths) / len(paths)
        print(
            f"{len(paths)} models of {size / 1024:.0f} KiB on average, {len(os.sched_getaffinity(0))} cores"
        )
        pattern = str(work / "models" / "*.onnx")
        if asked.runs:
            speed(claims, pattern, work, asked.jobs, asked.runs, not asked.no_speed)
        print("a model that crashes its worker")
        crash(claims, paths, pattern, work, asked.jobs)
        print("interrupted, killed, resumed")
        resumed(claims, paths, pattern, work, asked.jobs)
    print(f"{len(claims.broken)} claims broken" if claims.broken else "all claims hold")
    return bool(claims.broken)


if __name__ == "__main__":
    sys.exit(main())
