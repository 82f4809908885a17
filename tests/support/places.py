"""Places of findings, written as reports show them."""

from __future__ import annotations

from onnxfix.place import Place


def at(text: str) -> Place:
    """The place with this text: ``graph / graph / output (node)``, or ``the graph``. The node around is called like the
    first graph, up to the dot."""
    if text in ("", "the graph"):
        return Place()
    *graph, last = text.split(" / ")
    output, _, node = last.removesuffix(")").partition(" (")
    around = Place(output=graph[0].partition(".")[0]) if graph and not graph[0].startswith("fn ") else None
    return Place(tuple(graph), node, output=output, around=around)
