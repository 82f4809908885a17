"""What onnxfix costs beside its peers: seconds, memory, and whether the results are right.

    python benchmarks/speed/run.py FOLDER... --work WORK --onnxfix-python PYTHON --peers-python PYTHON [--write-readme]

FOLDER holds models of exports/make.py; WORK is a folder on the same disk for what the tools write, and for
``results.json``. What is measured runs in two environments: onnxfix from this checkout with ``[cpu]`` in one, onnxsim,
onnxslim, polygraphy, onnx-graphsurgeon, onnxscript, onnxoptimizer and onnxruntime in the other.

Of each model every peer runs once, and ONNX Runtime judges what it writes. Then onnxfix and the ``--peers`` fastest
peers that wrote a right model (as far as they are within ``--near`` times the fastest) run in turn, ``--runs`` times,
with the model's files in memory. A model that results.json holds is not measured again. The exit code is 1 where a
limit of ``LIMITS`` is missed, or where onnxfix wrote a wrong model.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from command import parser_of
from ledger import Ledger
from pages import cell, markdown, show, spaced

from speed.tools import APPLY, CHECK, OURS, PEERS, Bench, Job, Tool

HERE = Path(__file__).resolve().parent
LARGE = 1 << 31
"""Bytes from which on a model counts as large; its peak is limited, not the ratio to a peer's."""
#: Figure -> the most that its median over the exports may be.
LIMITS = {("check", "wall"): 1 / 6, ("apply", "wall"): 1 / 3, ("apply", "rss"): 1 / 5}
PEAKS = {"check": 200.0, "apply": 300.0}  # MB, of large models
_VERSIONS = (
    "import importlib.metadata as m, platform; print('Python ' + platform.python_version(), *sorted(f'{d.name} "
    "{d.version}' for d in m.distributions() if d.name.lower() in 'onnx onnxruntime onnxfix numpy protobuf onnxsim "
    "onnxslim polygraphy onnxscript onnxoptimizer'.split()), sep=', ')"
)

Row = dict[str, Any]
"""One model: ``bytes``, ``once`` (tool -> the cost of one run, and what was judged of its result), ``runs`` (tool ->
the cost of each), ``judged`` (the last result of onnxfix)."""


# ------------------------------------------------------------------------------------------------ measuring


def measure(bench: Bench, source: Path, given: argparse.Namespace) -> Row:
    """Run every tool once and judge it, then the chosen ones in turn."""
    data = source.with_name(source.name + ".data")
    size = source.stat().st_size + (data.stat().st_size if data.exists() else 0)
    row: Row = {"name": source.stem, "bytes": size, "once": {}, "runs": {}, "judged": {}}
    folder = Path(tempfile.mkdtemp(dir=bench.scratch))
    job = Job(source, folder / source.name, data.exists())
    try:
        for tool in (*OURS, *PEERS):
            cost = bench.run(tool, job, watch=True)
            right = judge(bench, job, size) if tool.writes and cost["status"] == "ok" else {}
            row["once"][tool.name] = {**cost, **right}
            words = cost["message"] or right.get("why") or "right"
            print(f"{source.stem} {tool.name}: {cost['wall']:.1f} s, {words}", file=sys.stderr, flush=True)
        tools = [*OURS, *fastest(row, given.peers, given.near)]
        for _ in range(given.runs):
            for tool in tools:
                row["runs"].setdefault(tool.name, []).append(bench.run(tool, job))
        bench.run(APPLY, job)
        row["judged"] = judge(bench, job, size)
    finally:
        shutil.rmtree(folder)
    return row


def judge(bench: Bench, job: Job, size: int) -> dict[str, Any]:
    """What judge.py says of the result that lies at the job's target."""
    feeds = "1" if size >= LARGE else "2"
    command = [str(bench.pythons["onnxfix"]), str(HERE / "judge.py"), str(job.source), str(job.target), feeds]
    own = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=900, env=own)
    except subprocess.TimeoutExpired:
        return {"right": False, "why": "ONNX Runtime takes too long"}
    if done.returncode:
        return {"right": False, "why": f"ONNX Runtime ended: {(done.stderr.splitlines() or ['killed'])[-1]}"}
    judged: dict[str, Any] = json.loads(done.stdout)
    return judged


def fastest(row: Row, count: int, near: float) -> list[Tool]:
    """The fastest peers that wrote a right model: ``count`` at most, all within ``near`` times the first one."""
    spent = {tool: row["once"][tool.name]["cpu"] for tool in PEERS if row["once"][tool.name].get("right")}
    limit = near * min(spent.values(), default=0.0)
    inside = [tool for tool, seconds in spent.items() if seconds <= limit]
    return sorted(inside, key=lambda tool: spent[tool])[:count]


# ------------------------------------------------------------------------------------------------ judging


def seconds(row: Row, tool: str) -> list[float]:
    """Of each run; none where one did not end well."""
    runs = row["runs"].get(tool, [])
    return [run["wall"] for run in runs] if all(run["status"] == "ok" for run in runs) else []


def peak(row: Row, tool: str) -> float:
    """MB: the greatest process of any run, or all processes together if that is more."""
    once = row["once"][tool]
    return max(once["rss"], once["together"], *(run["rss"] for run in row["runs"].get(tool, ())))


def best_peer(row: Row) -> str | None:
    """The peer of the least median."""
    timed = {tool.name: statistics.median(taken) for tool in PEERS if (taken := seconds(row, tool.name))}
    return min(timed, key=lambda name: timed[name], default=None)


def ratio(row: Row, tool: str, what: str) -> float | None:
    """Of a tool to the fastest right peer: of medians of seconds ("wall") or of peaks ("rss")."""
    peer = best_peer(row)
    if peer is None or not seconds(row, tool):
        return None
    if what == "rss":
        return peak(row, tool) / peak(row, peer)
    return statistics.median(seconds(row, tool)) / statistics.median(seconds(row, peer))


def limits(rows: Sequence[Row]) -> Iterator[tuple[str, str, bool]]:
    """What is limited, what was measured, and whether the limit is met."""
    for (tool, what), most in LIMITS.items():
        exports = [row for row in rows if row["bytes"] < LARGE]
        found = [one for row in exports if (one := ratio(row, tool, what)) is not None]
        if found:
            middle, kind = statistics.median(found), "time" if what == "wall" else "peak memory"
            shown = f"{middle:.3f} ({min(found):.3f} to {max(found):.3f})"
            yield (
                f"`{tool}`, {kind} to the fastest right peer's, median, at most {most:.3f}",
                shown,
                middle <= most,
            )
    for row in rows:
        if row["bytes"] >= LARGE:
            for tool, megabytes in PEAKS.items():
                found_peak = peak(row, tool)
                text = f"{row['name']}: `{tool}`, MB at its peak, at most {megabytes:.0f}"
                yield text, f"{found_peak:.0f}", found_peak <= megabytes
        if not row["judged"].get("right") or row["judged"].get("data") == "differs":
            yield (
                f"{row['name']}: `apply` computes the same",
                row["judged"].get("why") or "weights differ",
                False,
            )


# ------------------------------------------------------------------------------------------------ tables


def page(rows: Sequence[Row], told: Sequence[str]) -> Iterator[str]:
    """Everything between the markers of the README."""
    words = {True: "met", False: "**missed**"}
    heads = ("model", "MB", "check, s", "apply, s", "fastest right peer, s", "check to it", "apply to it")
    more = ("check, peak MB", "apply, peak MB", "peer, peak MB", "apply to it", "weights of the result")
    met = ((text, found, words[met]) for text, found, met in limits(rows))
    return spaced(
        told,
        *("### Limits", markdown(("limit", "measured", ""), met)),
        *("### Models, files in memory", markdown((*heads, *more), map(_timed, rows))),
        *("### Every peer, once", markdown(("model", *(tool.title for tool in PEERS)), map(_once, rows))),
    )


def _timed(row: Row) -> list[object]:
    peer = best_peer(row)
    ratios = [
        ratio(row, tool, what) for tool, what in (("check", "wall"), ("apply", "wall"), ("apply", "rss"))
    ]
    shown = ["–" if one is None else f"{one:.2f}" for one in ratios]
    return [
        f"`{row['name']}`",
        f"{row['bytes'] / 1e6:,.0f}",
        _median(row, CHECK.name),
        _median(row, APPLY.name),
        "–" if peer is None else f"{peer}: {_median(row, peer)}",
        *shown[:2],
        f"{peak(row, CHECK.name):,.0f}",
        f"{peak(row, APPLY.name):,.0f}",
        "–" if peer is None else f"{peak(row, peer):,.0f}",
        shown[2],
        row["judged"].get("data") or "within",
    ]


def _median(row: Row, tool: str) -> str:
    taken = seconds(row, tool)
    return f"{statistics.median(taken):.2f} ({min(taken):.2f}–{max(taken):.2f})" if taken else "–"


def _once(row: Row) -> list[object]:
    cells: list[object] = [f"`{row['name']}`"]
    for tool in PEERS:
        one = row["once"][tool.name]
        cost = f"{one['wall']:.1f} s, {one['rss'] / 1024:.2f} GB"
        why = cell(one["message"] or one.get("why", ""))[:120].replace("`", "'")
        state = one["status"] if one["message"] else "wrong"
        cells.append(cost if one.get("right") else f"{state}: `{why}` ({cost})")
    return cells


def setting(bench: Bench, runs: int) -> list[str]:
    """What the figures depend on."""
    told = []
    for name, python in bench.pythons.items():
        done = subprocess.run(
            [str(python), "-c", _VERSIONS], capture_output=True, text=True, check=True, cwd=HERE
        )
        told.append(f"- environment of {name}: {done.stdout.strip()}")
    info = Path("/proc/cpuinfo")
    model = re.search(r"model name\s*: (.*)", info.read_text(encoding="utf-8")) if info.exists() else None
    told.append(
        f"- {os.cpu_count()} cores ({model[1] if model else platform.processor()}); medians of {runs}, in turn"
    )
    return told


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = parser_of(__doc__)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--models", default="", metavar="REGEX", help="only these models")
    parser.add_argument("--peers", type=int, default=2, help="how many peers are timed, the fastest first")
    parser.add_argument("--near", type=float, default=1.25, help="how slow another peer may have been")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--timeout", type=float, default=180.0, help="seconds for one run")
    parser.add_argument("--memory-mb", type=int, default=16_000, help="for a run, all processes together")
    parser.add_argument("--onnxfix-python", type=Path, required=True)
    parser.add_argument("--peers-python", type=Path, required=True)
    parser.add_argument("--write-readme", action="store_true", help="put the tables into the README")
    return parser.parse_args()


def main() -> int:
    """Run as the module's docstring says."""
    given = arguments()
    work = given.work.resolve()
    scratch = work / "scratch"
    scratch.mkdir(parents=True, exist_ok=True)
    pythons = {"onnxfix": given.onnxfix_python, "peers": given.peers_python}
    bench = Bench(
        {name: path.absolute() for name, path in pythons.items()}, scratch, given.timeout, given.memory_mb
    )
    with Ledger(work / "results.json", {}, pause=0.0) as book:
        for source in (path for folder in given.folders for path in sorted(folder.resolve().glob("*.onnx"))):
            if re.search(given.models, source.stem) and source.stem not in book:
                book.record(source.stem, measure(bench, source, given))
    rows: list[Row] = list(book.results.values())
    show(page(rows, setting(bench, given.runs)), HERE, "measured", write=given.write_readme)
    return int(not all(met for *_, met in limits(rows)))


if __name__ == "__main__":
    sys.exit(main())
