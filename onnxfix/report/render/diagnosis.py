"""A diagnosis as text and as JSON: the headline first, then the outputs, where it begins, and the worst nodes."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from importlib import metadata
from typing import Any

from onnxfix._version import __version__
from onnxfix.diagnosis.records import Culprit, Diagnosis, Marking, NodeError, NonFinite, OutputComparison
from onnxfix.report.render.bars import error_lines, value_lines
from onnxfix.report.render.lines import GLUE, Line, columns, labeled, line
from onnxfix.report.render.words import bound, cosine, count, number, percent, places, share
from onnxfix.report.report import plain

SCHEMA = 1
"""Version of the JSON; it increases when a field changes its meaning or is removed."""
WIDTH = 100
"""Columns of histograms where standard output is no terminal."""
MOST = 5
"""Outputs, culprits and nodes that are shown without ``--verbose``."""
_COMMAND = re.compile(r"onnxfix apply [^(;]*[^(; ]")
_STYLES = {"agree": "green", "rounding": "green", "differ": "bold red", "unexplained": "bold red"}


# ------------------------------------------------------------------------------------------------------------- JSON


def diagnosis_data(found: Diagnosis) -> dict[str, Any]:
    """The fields of ``Diagnosis`` as plain dicts, lists, strings, numbers and None, with ``schema``, ``exit_code`` and
    ``versions`` before them. Nodes (``culprits``, ``begins``, ``table``) have ``node``, ``op_type`` and ``output`` at
    their top. Numbers that are not finite are the strings "inf", "-inf" and "nan"."""
    versions = {"onnxfix": __version__, "onnx": metadata.version("onnx"), **found.environment}
    data = {"schema": SCHEMA, "exit_code": found.exit_code, "versions": versions}
    data.update({one.name: plain(getattr(found, one.name)) for one in fields(found)})
    data["outputs"] = [{**plain(one), "same": one.same} for one in found.outputs]
    data["culprits"] = [_culprit_data(one) for one in found.culprits]
    data["begins"] = [_node_data(one) for one in found.begins]
    data["table"] = [_node_data(one) for one in found.table]
    del data["environment"]
    return data


def _node_data(one: NodeError) -> dict[str, Any]:
    names = {"node": node_name(one), "op_type": one.place.op_type, "output": one.place.output}
    return {**names, **plain(one), "amplification": plain(one.amplification)}


def _culprit_data(one: Culprit) -> dict[str, Any]:
    error = _node_data(one.error)
    own = {key: value for key, value in plain(one).items() if key != "error"}
    first = {key: error.pop(key) for key in ("node", "op_type", "output", "own_error")}
    return {**first, **own, **error}


def node_name(one: NodeError) -> str:
    """A node's name, or that of its output where it has none."""
    return one.place.node or one.place.output or one.place.text


# ------------------------------------------------------------------------------------------------------------- text


def diagnosis_lines(found: Diagnosis, *, quiet: bool = False, verbose: bool = False) -> Iterator[Line]:
    """The lines of a diagnosis. ``quiet`` keeps the first one; ``verbose`` lists all outputs and nodes, with
    histograms."""
    lines = _lines(found, verbose)
    yield from [next(lines)] if quiet else lines


def _lines(found: Diagnosis, verbose: bool) -> Iterator[Line]:
    yield line(
        (found.path, "bold"),
        f" against {found.other or found.against}  ",
        (outcome(found), _STYLES.get(found.status, "yellow")),
    )
    yield from _answer(found, verbose)
    if found.outputs:
        yield from _outputs(found.outputs, verbose)
    if found.begins:
        yield line("begins at", style="bold")
        for one in found.begins if verbose else found.begins[:MOST]:
            yield line("  ", _beginning(one), hang=4)
        if len(found.begins) > MOST and not verbose:
            yield _more(len(found.begins) - MOST, "nodes")
    if found.table:
        yield line("worst nodes", style="bold")
        yield from _nodes(found, verbose)
    if found.markings:
        yield line("marked builds", style="bold")
        for mark in found.markings:
            yield _marking(mark)
    if found.keep_fp32:
        yield _labeled("keep", *_kept(found.keep_fp32, verbose))
    for note in found.notes:
        yield _labeled("note", note)
    yield line(f"  {effort_of(found)}", style="dim")


def outcome(found: Diagnosis) -> str:
    """The status in a few words."""
    texts = {
        "agree": "agrees: every output is bit-identical",
        "rounding": "agrees up to rounding",
        "differ": "differs",
        "unexplained": f"differs: {found.reason}",
    }
    text = texts.get(found.status, f"could not be found out: {found.reason}")
    if found.status == "differ" and found.culprits:
        first, more = found.culprits[0], len(found.culprits) - 1
        text = f"differs: {node_name(first.error)} ({first.cause}){f' and {more} more' if more else ''}"
    return text if found.complete else f"{text} (interrupted; this was found until then)"


def _answer(found: Diagnosis, verbose: bool) -> Iterator[Line]:
    """Which node, why, and what to do."""
    for one in found.culprits if verbose else found.culprits[:3]:
        place = f"{where_of(one.error)}: {own_of(one.error)}"
        yield _labeled("node", place, style="bold red")
        yield _labeled("why", one.reason)
        if one.advice:
            yield _labeled("do", _COMMAND.sub(_unbroken, one.advice), style="cyan")
    if len(found.culprits) > 3 and not verbose:
        yield _more(len(found.culprits) - 3, "nodes")
    if found.status == "rounding" and found.tolerance is not None:
        text = f"nothing: a tolerance of {number(found.tolerance)} of each output's scale is right"
        yield _labeled("do", text, style="cyan")


def _unbroken(match: re.Match[str]) -> str:
    """A command that stays on one line, so that it can be copied."""
    return match[0].replace(" ", GLUE)


def own_of(one: NodeError) -> str:
    """A node's own error in words."""
    if math.isfinite(one.own_error) or not one.nonfinite:
        return f"own error {_of_scale(one.own_error)}"
    return f"{count(one.nonfinite)} element{'s are' if one.nonfinite > 1 else ' is'} finite on one side only"


def _name(one: NodeError, output: str = "") -> str:
    return f"{' / '.join((*one.place.graph, node_name(one)))} ({one.place.op_type or 'value'}{output})"


def _of_scale(value: float | None) -> str:
    """An error that is not finite: values of another shape, not finite, or where the truth is all zeros."""
    return "beyond measure" if value == math.inf else f"{share(value)} of its scale"


def where_of(one: NodeError) -> str:
    """The node with its output, unless that has the node's name, or continues it as PyTorch's exporter does."""
    output = one.place.output
    return _name(one, f", output {output}" if output and not output.startswith(node_name(one)) else "")


# ---------------------------------------------------------------------------------------------------------- outputs


def _outputs(outputs: Sequence[OutputComparison], verbose: bool) -> Iterator[Line]:
    yield line("outputs", style="bold")
    ranked = sorted(outputs, key=lambda one: -_badness(one))  # stable: in the model's order where alike
    shown = ranked if verbose else [one for one in ranked if not one.same][:MOST] or ranked[:1]
    for one in shown:
        yield from _output(one)
        if verbose:
            width = min(max(columns() or WIDTH, 60), 140) - 4
            bars = (*value_lines(one.histogram, width), *error_lines(one.errors, width))
            yield from (line(f"    {each}") for each in bars)
    rest = [one for one in ranked if one not in shown]
    if rest:
        same = sum(one.same for one in rest)
        which = "all identical" if same == len(rest) else f"{same} of them identical"
        yield _more(len(rest), f"outputs, {which}")


def _badness(one: OutputComparison) -> float:
    if one.same:
        return -1.0
    if one.differs or one.atol is None:
        return float("inf")
    return one.max_abs / one.scale if one.scale else one.max_abs


def _output(one: OutputComparison) -> Iterator[Line]:
    shape = "" if one.shape is None else f" [{', '.join(map(str, one.shape))}]"
    if one.same:
        yield line("  ", (one.name, "bold"), f"  {one.dtype}{shape}  ", ("identical", "green"))
        return
    differing = f"{count(one.differing)} of {count(one.elements)} elements differ"
    yield line("  ", (one.name, "bold"), f"  {one.dtype}{shape}  {differing}")
    yield from (line(f"    {text}", hang=6) for text in figures_of(one))


def figures_of(one: OutputComparison) -> Iterator[str]:
    """What was measured of an output that differs, line by line."""
    if one.differs:
        yield one.differs
    if one.errors is not None:
        for what, kind in (("absolute error", "abs"), ("relative error", "rel")):
            figures = [
                f"{figure} {number(getattr(one, f'{figure}_{kind}'))}" for figure in ("max", "mean", "p99")
            ]
            yield f"{what}  {'  '.join(figures)}{_scale(one) if kind == 'abs' else ''}"
        similar = [f"cosine {cosine(one.cosine)}" if one.cosine is not None else ""]
        similar += [f"SNR {one.snr:.1f} dB" if one.snr is not None else ""]
        similar += [f"argmax agrees in {percent(one.argmax)} of rows" if one.argmax is not None else ""]
        if any(similar):
            yield ", ".join(text for text in similar if text)
    if one.worst is not None and one.values is not None:
        sample = f" of sample {one.sample + 1}" if one.sample else ""
        truth, other = one.values
        yield f"worst at [{', '.join(map(str, one.worst))}]{sample}: {truth} in the truth, {other} on the other side"
    if one.truth_nonfinite != one.other_nonfinite or one.truth_nonfinite.first is not None:
        truth, other = _nonfinite(one.truth_nonfinite), _nonfinite(one.other_nonfinite)
        yield f"not finite: {truth} in the truth, {other} on the other side"
    tolerances = [
        f"{name}={bound(value)}" for name, value in (("atol", one.atol), ("rtol", one.rtol)) if value
    ]
    if tolerances:
        yield f"passes with {' or '.join(tolerances)} alone"
    elif one.atol is None:
        yield "passes with no tolerance"


def _scale(one: OutputComparison) -> str:
    rounding = f", rounding {number(one.noise)}" if one.noise else ""
    return f"  (scale {number(one.scale)}{rounding})"


def _nonfinite(one: NonFinite) -> str:
    found = [f"{count(value)} {name}" for name, value in (("NaN", one.nan), ("infinite", one.inf)) if value]
    first = f" from [{', '.join(map(str, one.first))}]" if one.first is not None else ""
    return f"{' and '.join(found) or 'none'}{first}"


# ------------------------------------------------------------------------------------------------------------ nodes

_COLUMNS = ("own", "rounding", "in", "out", "x", "effect")


def _nodes(found: Diagnosis, verbose: bool) -> Iterator[Line]:
    """One line of figures for each node, and one of facts below. With half precision the other side's nodes are the
    same ones between Casts, which say nothing."""
    nodes, same = found.table, found.against in ("fp16", "bf16")
    yield line(f"  {''.join(f'{name:>10}' for name in _COLUMNS)}  node", style="dim")
    for one in nodes if verbose else nodes[:MOST]:
        figures = (one.own_error, one.noise, one.input_error, one.output_error, one.amplification, one.effect)
        yield line(f"  {''.join(f'{share(value):>10}' for value in figures)}  ", (_name(one), "bold"))
        facts = facts_of(one if not same else replace(one, nodes=()))
        yield line(f"        {facts}", style="dim", hang=10)
    if len(nodes) > MOST and not verbose:
        yield _more(len(nodes) - MOST, "nodes")


def _beginning(one: NodeError) -> str:
    before = f", {share(one.input_error)} at its inputs" if one.input_error is not None else ""
    return f"{where_of(one)}: error {_of_scale(one.output_error)}{before}"


def facts_of(one: NodeError) -> str:
    """Type, shape, range of the true values, and what computes it on the other side."""
    facts = [f"{one.dtype} [{', '.join(map(str, one.shape))}]"] if one.dtype else []
    facts.append(f"{number(one.low)} to {number(one.high)}")
    if one.nonfinite:
        facts.append(f"{count(one.nonfinite)} finite on one side only")
    if one.nodes not in ((), (node_name(one),)):
        facts.append(f"other side: {places(one.nodes)}")
    return ", ".join(facts)


def _marking(one: Marking) -> Line:
    outcome = "the outputs did not change" if one.unchanged else "the outputs changed, so it is not believed"
    reason = f": {one.reason}" if one.reason else ""
    return line(f"  {places(one.tensors)}: {outcome}{reason} ({one.seconds:.1f} s)", hang=4)


def _kept(names: Sequence[str], verbose: bool) -> Iterator[str]:
    """The names in pieces: there may be many."""
    shown = names if verbose else names[:MOST]
    yield "in float32: "
    yield from (f"{', ' * bool(number)}{name}" for number, name in enumerate(shown))
    more = f" and {len(names) - len(shown)} more" if len(shown) < len(names) else ""
    yield f"{more} (--keep-fp32 FILE writes them)"


def effort_of(found: Diagnosis) -> str:
    """How much was compared, and how long that took."""
    parts = [f"{found.compared} of {found.nodes} nodes compared"] if found.nodes else []
    parts += [f"{found.samples} sample{'s' * (found.samples != 1)}"] if found.samples else []
    parts += [f"{found.runs:.1f} runs of the model"] if found.runs else []
    return ", ".join([*parts, f"{found.seconds:.1f} s"])


# ------------------------------------------------------------------------------------------------------------ lines


def _labeled(label: str, *texts: str, style: str = "") -> Line:
    return labeled(label, *((text, style) for text in texts), style="", columns=6)


def _more(number_of: int, what: str) -> Line:
    return line(f"  … and {number_of} more {what} (--verbose lists them)", style="dim")
