"""Say how many findings on exports name the line of code that the exporter wrote down.

    python benchmarks/exports/sources.py EXPORT.onnx...

A second reading of the stack traces: file and line must be those of the innermost frame in no package, or else in any
but PyTorch. Inputs, and nodes without a trace, are judged by the nodes that read them. Where no node has a trace, as by
the legacy exporter, each finding must name a module. The exit code is 1 if either holds for less than 95 %.
"""

from __future__ import annotations

import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import onnx

import onnxfix

KEY = "pkg.torch.onnx.stack_trace"
INSTALLED = re.compile(r"/(?:site-packages|lib/python[\d.]+)/|^(?:timm|torch|torchvision|transformers)/|^<")
COLUMNS = ("findings", "with line", "agreeing", "with module")


def read(graph: onnx.GraphProto, around: str = "") -> Iterator[tuple[onnx.NodeProto, str]]:
    """Each node with its stack trace, or that of the node around its body."""
    for node in graph.node:
        trace = next((entry.value for entry in node.metadata_props if entry.key == KEY), around)
        yield node, trace
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs):
                yield from read(body, trace)


def choose(trace: str) -> tuple[str, str]:
    """File and line that a stack trace is about."""
    frames = re.findall(r'File "(.+?)", line (\d+)', trace)
    own = [frame for frame in frames if not INSTALLED.search(frame[0])]
    return (own or [frame for frame in frames if "torch/" not in frame[0]] or frames)[-1]


def count(path: str) -> Counter[str]:
    """The columns of one export; "traced" is 1 if it has stack traces."""
    nodes = list(read(onnx.load(path, load_external_data=False).graph))
    written = {name: trace for node, trace in nodes for name in node.output}
    readers: dict[str, set[str]] = defaultdict(set)
    for node, trace in nodes:
        for name in node.input:
            readers[name].add(trace)
    counts = Counter(traced=int(any(written.values())))
    for finding in onnxfix.check(path).findings:
        source, name = finding.source, finding.place.output
        traces = filter(None, [written[name]] if written.get(name) else readers[name])
        line = (source.file, str(source.line)) if source is not None else ("", "")
        held = (True, line[0] != "", line in map(choose, traces), source is not None)
        counts.update(dict(zip(COLUMNS, held, strict=True)))
    return counts


def main() -> int:
    """Print a line for each export, and one for each exporter."""
    rows = [(Path(path).stem, count(path)) for path in sys.argv[1:]]
    sums = {"dynamo": Counter[str](), "legacy": Counter[str]()}
    for _, counts in rows:
        sums["dynamo" if counts["traced"] else "legacy"] += counts
    print(" " * 34, *(f"{name:>12}" for name in COLUMNS))
    for name, counts in [*rows, *sums.items()]:
        print(f"{name:34}", *(f"{counts[column]:12,}" for column in COLUMNS))
    good = {"dynamo": "agreeing", "legacy": "with module"}
    return int(any(counts[good[name]] < 0.95 * counts["findings"] for name, counts in sums.items()))


if __name__ == "__main__":
    sys.exit(main())
