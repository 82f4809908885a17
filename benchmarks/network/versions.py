"""Whether each version of TensorRT-RTX gives a network that onnxfix reads back, and the same verdict.

    python benchmarks/network/versions.py VERSION... [--models PATH...] [--environments FOLDER] [--json FILE]

Each version of the package is installed into a folder of its own, which a process of its own finds before everything
else; the rest of the environment stays. There each model is lifted, and the rung trt-network is climbed with the model
as its own fixed model. The last VERSION is the one that the others are held against. FOLDER keeps what was installed
for the next time; without it a temporary folder is used. No engine is executed.

The exit code is 1 where reading a model back breaks, or a version comes to another verdict than the last.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "tensorrt-rtx"


@dataclass(frozen=True)
class Row:
    """One model with one version. ``lift`` and ``rung`` are statuses, ``cause`` says why the rung judged nothing."""

    model: str
    version: str
    lift: str
    layers: int
    rung: str
    cause: str
    seconds: float
    reason: str = ""


def models(paths: list[Path]) -> list[Path]:
    """Files, and the ONNX files of folders and of those in them, by name."""
    found = [one for path in paths for one in (sorted(path.rglob("*.onnx")) if path.is_dir() else [path])]
    return list(dict.fromkeys(found))


# ------------------------------------------------------------------------------ in the process of one version


def measure(path: Path, version: str) -> Row:
    """Lift one model and climb the rung with the package that this process finds."""
    import time

    from onnxfix.sandbox import shared
    from onnxfix.trt import lift
    from onnxfix.trt.records import TrtOptions
    from onnxfix.verification.ladder import verify

    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        found = lift.attempt(shared("tensorrt"), path, Path(folder, "seen.onnx"), package=PACKAGE)
    options = TrtOptions(package=PACKAGE)
    (rung,) = verify(path, path, exact=True, rungs=["trt-network"], trt=options).rungs
    return Row(
        path.stem,
        found.version or version,
        found.status,
        sum(count for _, count in found.layers),
        rung.status,
        rung.cause,
        time.monotonic() - began,
        " ".join(rung.reason.split()),
    )


def child(paths: list[Path]) -> None:
    """Print the rows of this process's version."""
    import tensorrt_rtx

    rows = [measure(path, str(tensorrt_rtx.__version__)) for path in paths]
    print(json.dumps([asdict(row) for row in rows]))


# ------------------------------------------------------------------------------ around it


def install(version: str, folder: Path) -> Path:
    """Where this version lies, installed unless it is there."""
    place = folder / f"{PACKAGE}-{version}"
    if not (place / "tensorrt_rtx").is_dir():
        wanted = f"{PACKAGE}=={version}"
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(place), wanted]
        subprocess.run(command, check=True, stdout=sys.stderr)
    return place


def rows_of(version: str, place: Path, paths: list[Path]) -> list[Row]:
    """The rows of one version, from a process that finds it before any other.

    Raises:
        RuntimeError: another version answered.
    """
    before = [str(place), str(ROOT), str(ROOT / "rules"), os.environ.get("PYTHONPATH", "")]
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, before)))
    command = [sys.executable, __file__, "--child", "--models", *map(str, paths)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=environment, text=True)
    rows = [Row(**row) for row in json.loads(done.stdout.splitlines()[-1])]
    if any(row.version != version for row in rows):
        raise RuntimeError(f"{version} was wanted, and {rows[0].version} answered")
    return rows


def same(row: Row, newest: Row) -> bool:
    """Whether a version comes to what the newest comes to."""
    return (row.lift, row.rung, row.cause) == (newest.lift, newest.rung, newest.cause)


def table(rows: list[Row], versions: list[str]) -> list[str]:
    """Models by versions, and one line for each version, in Markdown."""
    by = {(row.model, row.version): row for row in rows}
    names = list(dict.fromkeys(row.model for row in rows))
    lines = [f"| model | {' | '.join(versions)} |", f"|---|{'---|' * len(versions)}"]
    for name in names:
        cells = (by[name, version] for version in versions)
        lines.append(f"| `{name}` | {' | '.join(f'{one.lift}, {one.rung}' for one in cells)} |")
    lines += ["", "| version | models | read back | same verdict | seconds |", "|---|---|---|---|---|"]
    for version in versions:
        own = [by[name, version] for name in names]
        alike = sum(same(row, by[row.model, versions[-1]]) for row in own)
        lifted, seconds = sum(row.lift == "lifted" for row in own), sum(row.seconds for row in own)
        lines.append(f"| {version} | {len(own)} | {lifted} | {alike} | {seconds:.0f} |")
    return lines


def faults(rows: list[Row], newest: str) -> list[str]:
    """What is not as it should be, one line each."""
    last = {row.model: row for row in rows if row.version == newest}
    found = []
    for row in rows:
        words = f"{row.model} with {row.version}: {row.lift}, {row.rung}: {row.reason}"
        if row.lift == "error" or row.rung == "broke":
            found.append(f"broke: {words}")
        elif not same(row, last[row.model]):
            found.append(f"another verdict: {words}")
    return found


def main() -> int:
    """Run as the module's docstring says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("versions", nargs="*", help="of tensorrt-rtx, oldest first, such as 1.4.0.76")
    parser.add_argument("--models", nargs="*", type=Path, default=[ROOT / "fixtures"])
    parser.add_argument("--environments", type=Path, help="keep what is installed in this folder")
    parser.add_argument("--json", type=Path, help="write all rows to this file")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    paths = [path.resolve() for path in models(given.models)]
    if given.child:
        child(paths)
        return 0
    with tempfile.TemporaryDirectory() as spare:
        folder = (given.environments or Path(spare)).resolve()
        rows = [row for v in given.versions for row in rows_of(v, install(v, folder), paths)]
    if given.json is not None:
        given.json.write_text(json.dumps([asdict(row) for row in rows], indent=1), encoding="utf-8")
    print("\n".join(table(rows, given.versions)))
    wrong = faults(rows, given.versions[-1]) if rows else []
    print("\n".join(wrong), file=sys.stderr)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
