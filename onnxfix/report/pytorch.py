"""What to write in PyTorch instead: the pairs of modules that lie beside the catalog, as ``pytorch/CODE.py``.

They are read as text, because they import torch.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Set
from typing import Any

from onnxfix.rewrite.packs import BUILT_IN

_FACTS = ("EXPORTERS", "OPERATORS", "SAFETY", "TARGET", "EXPORT", "BEFORE", "AFTER")
"""Constants that say how a pair is exported and judged."""


def advise(code: str, operators: Set[str]) -> str:
    """What to do in PyTorch about a rule's findings at these operators, in one sentence; "" where the rule has no pair,
    or has one about other operators."""
    text = _read(code)
    about = re.search(r"(?m)^OPERATORS = (.+)$", text)
    if about is not None and not operators <= set(ast.literal_eval(about[1])):
        return ""
    return text.partition("\n")[0].strip('"')


def describe_pair(code: str) -> str:
    """The section "In PyTorch" of a rule's page; "" where the rule has no pair."""
    if not (text := _read(code)):
        return ""
    tree, lines = ast.parse(text), text.splitlines()
    facts: dict[str, Any] = {}
    sides: dict[str, list[str]] = {"Before": [], "After": []}
    side, end = "Before", tree.body[0].end_lineno
    node: Any
    for node in tree.body[1:]:
        name = ast.unparse(node.targets[0]) if isinstance(node, ast.Assign) else getattr(node, "name", "")
        if name in _FACTS:
            facts[name] = node.value
        elif name in ("inputs", "inputs_after") and isinstance(node.body[0], ast.Return):
            facts[name] = node.body[0].value
        elif ast.unparse(node) != "import torch":
            sides[side].append("\n".join(lines[end : node.end_lineno]).strip("\n"))
        side, end = "After" if name == "Before" else side, node.end_lineno
    exporters = ast.literal_eval(facts.get("EXPORTERS", "('dynamo', 'legacy')"))
    unused, chosen = ("dynamic_axes", []) if "dynamo" in exporters else ("dynamic_shapes", ["dynamo=False"])
    for side, parts in sides.items():
        given = facts.get(f"inputs_{side.lower()}", facts.get("inputs", ast.Name("inputs()")))
        call = [f"{side}().eval()", ast.unparse(given), '"model.onnx"', *chosen]
        for keywords in filter(None, map(facts.get, ("EXPORT", side.upper()))):
            pairs = zip(map(ast.literal_eval, keywords.keys), map(ast.unparse, keywords.values), strict=True)
            call += [f"{key}={value}" for key, value in pairs if key != unused]
        line = ", ".join(call) if sum(map(len, call)) < 80 else "\n    " + ",\n    ".join(call) + ",\n"
        parts.append(f"torch.onnx.export({line})".replace("'", '"'))
    before, after = ("```python\n" + "\n\n\n".join(parts) + "\n```" for parts in sides.values())
    who = f"The {exporters[0]} exporter writes" if len(exporters) == 1 else "Both exporters write"
    title = f"## In PyTorch\n\n{ast.get_docstring(tree)}"
    return f"{title}\n\n{who} the pattern for this code:\n\n{before}\n\nand not for this code:\n\n{after}"


def _read(code: str) -> str:
    from onnxfix.rewrite import catalog  # lazy: start-up

    path = catalog.path_of(BUILT_IN).with_name("pytorch") / f"{code.lower()}.py"
    return path.read_text(encoding="utf-8") if path.is_file() else ""
