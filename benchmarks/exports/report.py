"""What onnxfix finds and fixes in real exports, what TensorRT says of it, and whether the results are the same.

    python benchmarks/exports/report.py FOLDER... [--onnx-data] [--target rtx] --json FILE

For each model: ``check`` with its seconds (the median of three, in one process); every finding of severity error held
against the real TensorRT parser and builder; ``apply`` with exact fixes over all rungs of this machine; what
``--numeric-fixes`` add; TensorRT's layers and build seconds before and after (medians of ``--repeat`` builds, in turn).
No engine is executed. Each model has a process of its own. FILE is written after each model, and models that it holds
are not measured again. The exit code is 1 where a finding of severity error is neither confirmed nor known, a fix
was withdrawn, a result is not bit-identical or not built any more, or onnxfix reports a fault of its own.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from corpus import onnx_data_folder

from exports.outcome import measure


def faults(row: dict[str, Any]) -> list[str]:
    """Everything that is wrong with one model's row, one line each."""
    found = [row["fault"]] if row["fault"] else []
    for part in ("exact", "numeric"):
        if row[part] is not None:
            found += [f"{part}: {fault}" for fault in row[part]["faults"]]
            if not row[part]["passed"]:
                found.append(f"{part}: not verified: {'; '.join(row[part]['rungs'])}")
    found += [
        f"unconfirmed {e['code']} at {e['place']}: {e['message']}"
        for e in row["errors"]
        if e["how"] == "unconfirmed"
    ]
    if row["accepted"] and row["accepted"][0] and not all(row["accepted"]):
        found.append(f"built before and not after: {row['reasons'][-1]}")
    return found


def steps(values: list[Any], form: str = "{}") -> str:
    """``before → after``."""
    return " → ".join(form.format(value) for value in values)


def by_severity(found: dict[str, int]) -> str:
    """``errors/warnings/infos``."""
    return "/".join(
        str(sum(count for key, count in found.items() if key.startswith(f"{name} ")))
        for name in ("error", "warning", "info")
    )


def proven(part: dict[str, Any]) -> str:
    """Which value rungs passed, with the runs that were bit-identical."""
    said = [rung.split(" (")[0].replace(" passed", "") for rung in part["rungs"]]
    return ", ".join(text for text in said if not text.startswith(("contract", "trt-", "ort-cuda"))) or "–"


def codes(counts: dict[str, int]) -> str:
    """``CST002×3 RSH001``."""
    return " ".join(f"{code}×{n}" if n > 1 else code for code, n in counts.items()) or "–"


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Markdown: one line for each model."""
    lines = [
        "| model | nodes | error/warning/info | check, s | exact fixes | bit-identical runs | layers | build, s "
        "| numeric fixes besides: layers |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        exact, numeric = row["exact"], row["numeric"]
        changed = bool(exact["fixes"])
        shown = 2 if changed else 1
        more = "–"
        if numeric is not None:
            added = Counter(numeric["fixes"])
            added.subtract(exact["fixes"])
            more = codes({code: n for code, n in added.items() if n > 0})
            more += f": {row['layers'][-1]:,}"
        cells = [
            f"`{row['name']}`",
            f"{row['nodes']:,}" + (f" → {exact['nodes']:,}" if changed else ""),
            by_severity(row["found"]),
            f"{row['check_seconds']:.2f}",
            str(sum(exact["fixes"].values())),
            proven(exact) if changed else "unchanged",
            steps(row["layers"][:shown], "{:,}"),
            steps(row["build_seconds"][:shown], "{:.2f}"),
            more,
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def by_code(rows: list[dict[str, Any]]) -> list[str]:
    """Markdown: findings of ``check`` by severity and code, and how those of severity error are confirmed."""
    total: Counter[str] = Counter()
    models: Counter[str] = Counter()
    fixed: Counter[str] = Counter()
    how: dict[str, Counter[str]] = {}
    for row in rows:
        total.update(row["found"])
        models.update(row["found"].keys())
        fixed.update(row["exact"]["fixes"])
        for error in row["errors"]:
            how.setdefault(error["code"], Counter())[error["how"]] += 1
    lines = [
        "| severity | code | findings | models | exact fixes | of severity error |",
        "|---|---|---|---|---|---|",
    ]
    order = ("error", "warning", "info")
    for key in sorted(total, key=lambda key: (order.index(key.split()[0]), key)):
        severity, code = key.split()
        said = "–"
        if severity == "error":
            said = ", ".join(f"{count} {name}" for name, count in how.get(code, Counter()).items()) or "–"
        lines.append(
            f"| {severity} | {code} | {total[key]} | {models[key]} | {fixed[code] or '–'} | {said} |"
        )
    return lines


def by_warning(rows: list[dict[str, Any]]) -> list[str]:
    """Markdown: what TensorRT warns of, in how many models as they are, after exact fixes and after numeric ones."""
    stages: list[Counter[str]] = [Counter(), Counter(), Counter()]
    for row in rows:
        told = row["warnings"]
        if not told:
            continue
        # Where fixes of a kind change nothing, the model stays what it was.
        exact = told[1] if row["exact"]["fixes"] else told[0]
        for stage, said in zip(stages, (told[0], exact, told[-1]), strict=True):
            stage.update(said.keys())
    lines = ["| TensorRT's warning | models | after exact fixes | after numeric fixes |", "|---|---|---|---|"]
    for text in sorted(set().union(*stages)):
        cells = [text.replace("|", "\\|"), *(str(stage[text]) for stage in stages)]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def summary(rows: list[dict[str, Any]]) -> list[str]:
    """Counts, and every fault."""
    changed = [row for row in rows if row["exact"]["fixes"]]
    built = [row for row in rows if row["accepted"][:1] == [True]]
    won = [row["name"] for row in rows if row["accepted"] and not row["accepted"][0] and any(row["accepted"])]
    wrong = [f"{row['name']}: {fault}" for row in rows for fault in faults(row)]
    lines = [
        f"{len(rows)} models: TensorRT builds {len(built)} as they are; exact fixes change {len(changed)}, numeric "
        f"ones {sum(row['numeric'] is not None for row in rows)}; won ({len(won)}): {' '.join(won) or '–'}",
        f"faults ({len(wrong)}):",
    ]
    return lines + [f"- {line}" for line in wrong]


def cases(folders: list[Path]) -> list[tuple[str, Path]]:
    """The models in the folders, and for a folder without any, all that are below it."""
    found = []
    for folder in folders:
        for path in sorted(folder.glob("*.onnx")) or sorted(folder.rglob("*.onnx")):
            name = path.relative_to(folder).as_posix().removesuffix(".onnx")
            found.append((name.removesuffix("/model"), path))
    return found


def main() -> int:
    """Run as the module's docstring says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--onnx-data", action="store_true", help="the models that come with the onnx package")
    parser.add_argument("--target", help="what onnxfix fixes the models for, such as rtx; trt11 without it")
    parser.add_argument("--repeat", type=int, default=3, help="builds of each model")
    parser.add_argument("--json", type=Path, required=True)
    arguments = parser.parse_args()
    known: dict[str, Any] = json.loads(arguments.json.read_text()) if arguments.json.exists() else {}
    wanted = cases([*arguments.folders, *([onnx_data_folder()] if arguments.onnx_data else [])])
    with ProcessPoolExecutor(1, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool:
        for name, path in wanted:
            if name not in known:
                outcome = pool.submit(measure, name, str(path), arguments.target, arguments.repeat).result()
                known[name] = asdict(outcome)
                arguments.json.write_text(json.dumps(known, indent=1))
                for fault in faults(known[name]):
                    print(f"FAULT {name}: {fault}", file=sys.stderr, flush=True)
    rows = [known[name] for name, _ in wanted]
    for part in (table(rows), by_code(rows), by_warning(rows), summary(rows)):
        print("\n".join(part) + "\n")
    return int(any(faults(row) for row in rows))


if __name__ == "__main__":
    sys.exit(main())
