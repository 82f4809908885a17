"""The structure that ARCHITECTURE.md promises, checked on the source itself.

The checks are functions over a list of imports or over source text, and each has a test that shows it a
violation: a check that cannot fail would keep nothing in order.
"""
# Long because: each check stands beside the test that shows it a violation.

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from support.paths import ROOT
from support.patience import PATIENCE

pytestmark = pytest.mark.xdist_group("architecture")  # the sources are parsed once, not once a worker

# A module imports from earlier lines and from its own entry only; entries on one line know nothing of each other.
# A room whose modules stand on several lines has an entry for each.
LAYERS = [
    [
        "_version",
        "runtime.deadline",
        "errors",
        "files.dtypes",
        "runtime.interrupts",
        "names",
        "runtime.system",
        "files.walk",
    ],
    ["source"],
    ["place"],
    ["runtime.allowance", "runtime.causes", "runtime.confinement", "rewrite.packs", "runtime.replies"],
    ["shown"],
    ["runtime._child"],
    ["runtime.prefork"],
    ["options"],
    ["runtime.sandbox"],
    ["runtime.nvidia"],
    ["files"],
    ["graph"],
    ["shapes"],
    ["model"],
    ["rewrite.edits"],
    ["rewrite.changes"],
    ["rewrite.transaction", "rewrite.fitting"],
    ["targets"],
    ["rule"],
    ["rewrite.catalog"],
    ["rewrite.registry"],
    ["rewrite.engine"],
    ["inputs.sizes"],
    ["runtime.backends"],
    ["tensorrt"],
    ["proof.compare", "proof.outputs", "proof.symbolic"],
    ["proof.validity", "inputs.feeds"],
    ["inputs.specialize"],
    ["proof.verdict"],
    ["proof.request"],
    ["proof.copies"],
    ["proof.remote"],
    ["proof.cuda", "proof.extents"],
    ["proof.pair"],
    ["proof.execution"],
    ["proof.checks"],
    ["proof.readback"],
    ["proof.verify"],
    ["proof.asking"],
    ["rewrite.contexts"],
    ["testing"],
    ["verbs.examination"],
    ["lowering.quantized"],
    ["lowering.lowered"],
    ["lowering.records"],
    ["lowering.choice"],
    ["lowering.convert"],
    ["diagnosis.child"],
    ["diagnosis.graph", "diagnosis.distance"],
    ["diagnosis.bench"],
    ["diagnosis.rows"],
    ["diagnosis.lockstep"],
    ["diagnosis.iterations", "diagnosis.opening"],
    ["lowering"],
    ["diagnosis"],
    ["verbs.difference", "reduction"],
    ["report"],
    ["config"],
    ["verbs"],
    ["verbs.exporting"],
    ["api"],
    ["backend"],
    ["verbs.fleet"],
    ["cli"],
    ["__main__"],
]
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
# The front door re-exports from everywhere, lazily; that it stays cheap has a test of its own below.
FACADE = "__init__"

CEILINGS = {
    "": 1_600,
    "api": 970,
    "backend": 650,
    "cli": 1_810,
    "config": 1_170,
    "diagnosis": 6_810,
    "files": 3_110,
    "graph": 1_320,
    "inputs": 3_700,
    "lowering": 2_670,
    "proof": 12_570,
    "reduction": 1_770,
    "report": 7_080,
    "rewrite": 2_690,
    "runtime": 3_670,
    "shapes": 4_050,
    "targets": 815,
    "tensorrt": 7_470,
    "verbs": 9_380,
}
"""Lines that each room may have; "" are the modules beside the rooms. Who adds to a full room cuts in it."""
TOTALS = {"onnxfix": 73_220, "rules": 47_610, "tests": 66_750, "benchmarks": 18_700}
"""Lines that each folder may have."""
FULL = "cut lines in the same room or folder (CEILINGS, TOTALS)"

TERMINAL = {"rich", "typer", "click"}
HEAVY = {
    "onnxruntime",
    "onnx.reference",
    "onnx.backend",
    "onnx_graphsurgeon",
    "onnxsim",
    "polygraphy",
    "fsspec",
    "ray",
    "tensorrt",
    "tensorrt_rtx",
}
HOME = {
    "onnxfix.backend": "onnx.backend",
    "onnxfix.runtime.backends.reference_legacy": "onnx.reference",
    "onnxfix.runtime.backends.reference_ops": "onnx.reference",
}
"""Modules that are nothing but adapters to a heavy one, which they may load."""
OPTIONAL = {"onnxfix.verbs.fleet.ray", "onnxfix.verbs.fleet.remote"}
"""Packages that only ``--ray`` and URLs load."""
RULE_MAY_IMPORT = {"onnxfix", "onnxfix_rules", "numpy", "onnx", "ml_dtypes"} | set(sys.stdlib_module_names)
LONG_FILE = 400
LONG_FUNCTION = 60
LONG_REASON = re.compile(r"^\s*# Long because: \S.{15,}")
LAZY_REASON = re.compile(r"# lazy: \S")


def test_test_files_have_names_of_their_own() -> None:
    """pytest imports them by these names alone: tests/ has no packages."""
    counts = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name, count in counts.items() if count > 1] == []


@dataclass(frozen=True)
class Import:
    """``name`` as imported, absolute; ``lazy`` inside a function; ``typing`` under TYPE_CHECKING."""

    name: str
    line: int
    lazy: bool
    typing: bool


def imports_of(source: str, package: str) -> list[Import]:
    """All imports of a module whose package is ``package``; ``from a import b`` counts as ``a.b``."""
    return list(_walk(ast.parse(source), package, lazy=False, typing=False))


def _walk(node: ast.AST, package: str, *, lazy: bool, typing: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            continue  # no statement is inside an expression
        if isinstance(child, ast.Import):
            for alias in child.names:
                yield Import(alias.name, child.lineno, lazy, typing)
        elif isinstance(child, ast.ImportFrom):
            base = child.module or ""
            if child.level:
                parents = package.split(".")[: len(package.split(".")) - child.level + 1]
                base = ".".join([*parents, base] if base else parents)
            for alias in child.names:
                yield Import(f"{base}.{alias.name}", child.lineno, lazy, typing)
        elif isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING"):
            for part in child.body:
                yield from _walk(ast.Module([part], []), package, lazy=lazy, typing=True)
            for part in child.orelse:
                yield from _walk(ast.Module([part], []), package, lazy=lazy, typing=typing)
        else:
            inside = lazy or isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef))
            yield from _walk(child, package, lazy=inside, typing=typing)


def is_or_in(name: str, modules: set[str]) -> bool:
    """True if ``name`` is one of the modules or lies in one: ``onnx.reference.ops`` in ``onnx.reference``."""
    return any(name == module or name.startswith(module + ".") for module in modules)


def layer_of(dotted: str) -> str | None:
    """The entry of LAYERS for a name: ``proof.readback`` for ``onnxfix.proof.readback.network.run``, ``graph`` for
    ``onnxfix.graph.overlay``; None outside of onnxfix and for packages whose modules have entries of their own."""
    parts = dotted.split(".")
    if parts[0] != "onnxfix" or len(parts) < 2:
        return None
    known = [".".join(parts[1:end]) for end in range(len(parts), 1, -1)]
    found = next((name for name in known if name in RANK), None)
    if found is None and not any(entry.startswith(f"{parts[1]}.") for entry in RANK):
        return FACADE  # `from onnxfix import Node`: a name that the front door re-exports, not a module
    return found


def wrong_direction(module: str, imports: list[Import]) -> list[str]:
    """What ``module`` (dotted, in onnxfix) imports although it stands later in LAYERS, or beside it."""
    own, found = layer_of(module), []
    for imported in imports:
        # Lazy imports count. Imports for annotations alone do not: they are gone at run time.
        layer = layer_of(imported.name)
        if imported.typing or own is None or layer is None or layer == own:
            continue
        if layer == FACADE or RANK[layer] >= RANK[own]:
            found.append(f"{module}:{imported.line} ({own}) imports {imported.name} ({layer})")
    return found


def of_terminal(module: str, imports: list[Import]) -> list[str]:
    """Uses of rich and typer outside of cli/ and report/render/."""
    if is_or_in(module, {"onnxfix.cli", "onnxfix.report.render"}):
        return []
    return [f"{module}:{i.line} imports {i.name}" for i in imports if is_or_in(i.name, TERMINAL)]


def heavy_at_import(module: str, imports: list[Import]) -> list[str]:
    """Heavy modules that are loaded as soon as ``module`` is."""
    return [
        f"{module}:{i.line} imports {i.name} when it is loaded"
        for i in imports
        if not i.lazy
        and not i.typing
        and is_or_in(i.name, HEAVY)
        and not is_or_in(i.name, {HOME.get(module, "-")})
    ]


def optional_at_import(module: str, imports: list[Import]) -> list[str]:
    """Packages of OPTIONAL that are loaded as soon as ``module``, which is in none of them, is."""
    if is_or_in(module, OPTIONAL):
        return []
    return [
        f"{module}:{i.line} imports {i.name} when it is loaded"
        for i in imports
        if not i.lazy and not i.typing and is_or_in(i.name, OPTIONAL)
    ]


def foreign_to_rules(module: str, imports: list[Import]) -> list[str]:
    """What a rule imports besides onnxfix, onnx, numpy and the standard library."""
    foreign = [i for i in imports if i.name.split(".")[0] not in RULE_MAY_IMPORT]
    return [f"{module}:{i.line} imports {i.name}" for i in foreign]


def rules_in(source: str) -> list[str]:
    """The code of each rule of a file, or its function's name where the code is not a literal."""
    return [
        ast.literal_eval(call.args[0]) if call.args and isinstance(call.args[0], ast.Constant) else node.name
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef)
        for call in node.decorator_list
        if isinstance(call, ast.Call) and ast.unparse(call.func).split(".")[-1] == "rule"
    ]


def unexplained_length(source: str) -> bool:
    """True for a long file without a line ``# Long because: <reason>``."""
    lines = source.splitlines()
    return len(lines) > LONG_FILE and not any(LONG_REASON.match(line) for line in lines)


def long_functions(source: str) -> list[str]:
    """Functions over 60 lines, docstring included, without ``# Long because: ...`` inside or on the line above."""
    lines = source.splitlines()
    return [
        f"{node.name}, line {node.lineno}"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and (node.end_lineno or 0) - node.lineno >= LONG_FUNCTION
        and not any(LONG_REASON.match(line) for line in lines[max(_start(node) - 2, 0) : node.end_lineno])
    ]


def _start(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """The line on which a function begins, its decorators included."""
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])


def unexplained_imports(source: str) -> list[int]:
    """Lines of imports inside functions that do not say why they are there: ``# lazy: start-up``."""
    lines = source.splitlines()
    inside = {
        (node.lineno, node.end_lineno or node.lineno)
        for function in ast.walk(ast.parse(source))
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
        for node in ast.walk(function)
        if isinstance(node, (ast.Import, ast.ImportFrom))
    }
    return sorted(a for a, b in inside if not any(LAZY_REASON.search(line) for line in lines[a - 1 : b]))


def circles(modules: Iterable[tuple[str, list[Import]]]) -> list[list[str]]:
    """Groups of modules that import each other in a circle; imports inside functions count, those for types do not."""
    known = dict(modules)
    uses = {
        name: {found for i in imports if not i.typing and (found := _module(i.name, known)) and found != name}
        for name, imports in known.items()
    }
    # Without the modules that nothing uses and those that use nothing, over and over, only circles are left.
    while True:
        used = set().union(*uses.values()) if uses else set()
        rest = {
            name: targets & uses.keys()
            for name, targets in uses.items()
            if name in used and targets & uses.keys()
        }
        if rest == uses:
            return [sorted(uses)] if uses else []
        uses = rest


def _module(dotted: str, known: Container[str]) -> str | None:
    """The module that an imported name is, or is defined in."""
    while dotted and dotted not in known:
        dotted = dotted.rpartition(".")[0]
    return dotted or None


def read(path: Path) -> str:
    with tokenize.open(path) as file:
        return file.read()


def modules_under(folder: Path) -> list[tuple[str, str, Path]]:
    """(dotted name, package for relative imports, path) of every module in the package ``folder`` and its packages."""
    found = []
    for path in sorted(path for path in folder.rglob("*.py") if (path.parent / "__init__.py").exists()):
        parts = path.relative_to(folder.parent).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package and len(parts) > 2 else parts)
        found.append((name, ".".join(parts[:-1]), path))
    return found


ENGINE = modules_under(ROOT / "onnxfix")
RULES = modules_under(ROOT / "rules" / "onnxfix_rules")


@cache
def engine_imports() -> list[tuple[str, list[Import]]]:
    """What each module of onnxfix imports."""
    return [(name, imports_of(read(path), package)) for name, package, path in ENGINE]


@cache
def rule_imports() -> list[tuple[str, list[Import]]]:
    """What each module of the rules imports."""
    return [(name, imports_of(read(path), package)) for name, package, path in RULES]


def test_every_module_has_a_layer() -> None:
    empty = {
        path.parent for _, _, path in ENGINE if path.name == "__init__.py" and not imports_of(read(path), "")
    }
    unknown = [
        name
        for name, _, path in ENGINE
        if (path.parent != ROOT / "onnxfix" and path.parent not in empty) or path.name != "__init__.py"
        if layer_of(name) in (None, FACADE) and name != f"onnxfix.{FACADE}"
    ]
    assert not unknown, f"add {unknown} to LAYERS in this file, below all that they import"


def test_imports_run_one_way() -> None:
    inside = [(name, imports) for name, imports in engine_imports() if name != f"onnxfix.{FACADE}"]
    assert [line for name, imports in inside for line in wrong_direction(name, imports)] == []


def test_the_engine_knows_no_rule() -> None:
    known = [
        (n, i) for n, imports in engine_imports() for i in imports if is_or_in(i.name, {"onnxfix_rules"})
    ]
    assert known == []


def test_only_cli_and_render_know_the_terminal() -> None:
    assert [line for name, imports in engine_imports() for line in of_terminal(name, imports)] == []


def test_heavy_modules_are_loaded_where_they_are_used() -> None:
    everything = engine_imports() + rule_imports()
    assert [line for name, imports in everything for line in heavy_at_import(name, imports)] == []


def test_ray_and_remote_files_are_loaded_where_they_are_used() -> None:
    everything = engine_imports() + rule_imports()
    assert [line for name, imports in everything for line in optional_at_import(name, imports)] == []


def test_rules_import_onnxfix_only() -> None:
    assert [line for name, imports in rule_imports() for line in foreign_to_rules(name, imports)] == []


def test_a_file_has_rules_or_serves_them() -> None:
    """A file has the rules about one subject, or its name starts with an underscore and it serves other files."""
    codes: dict[str, Path] = {}
    for _, _, path in RULES:
        found = rules_in(read(path))
        assert bool(found) != path.name.startswith("_"), f"{path}: rules {found}"
        for code in found:
            assert code not in codes, f"{code} is in {codes[code]} and in {path}"
            codes[code] = path
    assert codes, "no rule was found: does rules_in() still know what a rule looks like?"


def test_rules_import_no_file_of_rules() -> None:
    """What several files of rules need is in a file whose name starts with an underscore."""
    files = {name for name, _, path in RULES if not path.name.startswith("_")}
    found = [
        f"{name}:{i.line} imports {i.name}"
        for name, imports in rule_imports()
        for i in imports
        if _module(i.name, files) in files
    ]
    assert found == []


def test_a_long_file_says_why() -> None:
    folders = ("onnxfix", "rules", "tests")
    files = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    long = [str(path.relative_to(ROOT)) for path in files if unexplained_length(read(path))]
    assert not long, f"over {LONG_FILE} lines: split them, or add a line '# Long because: ...': {long}"


def lines_under(folder: Path) -> Counter[str]:
    """Lines of Python by the room below ``folder``; "" for modules in the folder itself."""
    found: Counter[str] = Counter()
    for path in folder.rglob("*.py"):
        parts = path.relative_to(folder).parts
        found[parts[0] if len(parts) > 1 else ""] += len(read(path).splitlines())
    return found


def above(counts: Mapping[str, int], ceilings: Mapping[str, int]) -> dict[str, str]:
    """The rooms that have more lines than they may, with the number of lines to cut."""
    return {
        name: f"{count} lines, {count - limit} more than allowed"
        for name, count in counts.items()
        if count > (limit := ceilings.get(name, 0))
    }


def test_no_room_outgrows_its_ceiling() -> None:
    assert above(lines_under(ROOT / "onnxfix"), CEILINGS) == {}, FULL
    totals = {folder: lines_under(ROOT / folder).total() for folder in TOTALS}
    assert above(totals, TOTALS) == {}, FULL


def test_no_module_imports_itself_by_way_of_others() -> None:
    assert circles(engine_imports()) == []
    assert circles(rule_imports()) == []


def test_an_import_inside_a_function_says_why() -> None:
    silent = {str(path): lines for _, _, path in ENGINE + RULES if (lines := unexplained_imports(read(path)))}
    assert not silent, f"move them to the top, or add '# lazy: start-up' or another reason: {silent}"


def test_a_long_function_says_why() -> None:
    long = {str(path): found for _, _, path in ENGINE + RULES if (found := long_functions(read(path)))}
    assert not long, f"over {LONG_FUNCTION} lines: split them, or add a line '# Long because: ...': {long}"


@pytest.mark.parametrize("command", [["--version"], ["--help"]])
def test_version_and_help_load_neither_onnx_nor_numpy(command: list[str]) -> None:
    arguments = [sys.executable, "-X", "importtime", "-m", "onnxfix", *command]
    run = subprocess.run(arguments, capture_output=True, text=True, cwd=ROOT, timeout=PATIENCE, check=True)
    loaded = {line.rsplit("|", 1)[1].strip() for line in run.stderr.splitlines() if line.count("|") == 2}
    assert "onnxfix.cli.app" in loaded, "the list of loaded modules is not what this test takes it for"
    assert not {name for name in loaded if is_or_in(name, {"onnx", "numpy", "ml_dtypes"} | HEAVY)}


def test_importing_onnxfix_loads_neither_onnx_nor_numpy() -> None:
    code = "import sys, onnxfix; print(*sorted({'onnx', 'numpy', 'rich', 'typer'} & set(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert run.stdout.strip() == ""


def clashes(exported: set[str], modules: set[str]) -> set[str]:
    """Exported names that are modules too: importing the module would replace the export behind our back."""
    return exported & modules


def test_no_export_has_the_name_of_a_module() -> None:
    code = "import onnxfix; print(*onnxfix.__all__)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    exported = set(run.stdout.split())
    assert {"check", "apply", "verify", "__version__"} <= exported
    assert clashes(exported, {name.split(".")[1] for name, _ in engine_imports()}) == set()


# The checks themselves: each is shown what it has to object to, and what it has to let pass.


@pytest.mark.parametrize(
    ("module", "source", "violations"),
    [
        ("onnxfix.graph.overlay", "from ..edits import commit", 1),
        ("onnxfix.graph.overlay", "from onnxfix import edits", 1),
        ("onnxfix.graph.overlay", "def f():\n    import onnxfix.rewrite.engine", 1),
        ("onnxfix.graph.overlay", "try:\n    import onnxfix.cli.app\nexcept ImportError:\n    pass", 1),
        ("onnxfix.graph.overlay", "from onnxfix import Node", 1),
        ("onnxfix.files.dtypes", "from . import errors", 1),
        ("onnxfix.graph.overlay", "from ..errors import ModelError\nfrom .shapes import Shapes", 0),
        ("onnxfix.graph.overlay", "from onnxfix.runtime.sandbox import forked", 0),
        ("onnxfix.graph.overlay", "if TYPE_CHECKING:\n    from onnxfix.targets import Target", 0),
        ("onnxfix.graph.overlay", "if TYPE_CHECKING:\n    pass\nelse:\n    import onnxfix.targets", 1),
        ("onnxfix.inputs.feeds.plan", "from onnxfix.proof.request import Request", 1),
        ("onnxfix.inputs.feeds.plan", "from onnxfix.proof import request", 1),
        ("onnxfix.inputs.feeds.plan", "from onnxfix.inputs.sizes.search import Search", 0),
        ("onnxfix.proof.checks.build", "from onnxfix.proof.readback.network import run", 1),
        ("onnxfix.proof.checks.build", "from onnxfix.proof.checks import probe", 0),
        ("onnxfix.proof.checks.build", "from onnxfix.proof.verdict import RungResult", 0),
        ("onnxfix.cli.app", "from onnxfix.api import check\nimport onnx", 0),
    ],
)
def test_the_direction_check_can_fail(module: str, source: str, violations: int) -> None:
    imports = imports_of(source, module.rsplit(".", 1)[0])
    assert len(wrong_direction(module, imports)) == violations


@pytest.mark.parametrize(
    ("module", "source", "violations"),
    [
        ("onnxfix.rewrite.engine", "from rich.console import Console", 1),
        ("onnxfix.rewrite.engine", "def f():\n    import typer", 1),
        ("onnxfix.rewrite.engine", "import richly", 0),
        ("onnxfix.report.render.text", "import rich", 0),
        ("onnxfix.cli.app", "import typer", 0),
    ],
)
def test_the_terminal_check_can_fail(module: str, source: str, violations: int) -> None:
    assert len(of_terminal(module, imports_of(source, "onnxfix"))) == violations


@pytest.mark.parametrize(
    ("source", "violations"),
    [
        ("import onnxruntime as ort", 1),
        ("from onnx import reference", 1),
        ("from onnx.reference import ReferenceEvaluator", 1),
        ("class A:\n    import tensorrt", 1),
        ("def f():\n    import onnxruntime", 0),
        ("import onnx", 0),
    ],
)
def test_the_heavy_check_can_fail(source: str, violations: int) -> None:
    assert len(heavy_at_import("onnxfix.x", imports_of(source, "onnxfix"))) == violations


@pytest.mark.parametrize(
    ("module", "source", "violations"),
    [
        ("onnxfix.verbs.fleet.work", "from onnxfix.verbs.fleet.remote import stage", 1),
        ("onnxfix.verbs.fleet.work", "from onnxfix.verbs.fleet import ray", 1),
        ("onnxfix.verbs.fleet.work", "from .ray import RayExecutor", 1),
        ("onnxfix.cli.app", "try:\n    import onnxfix.verbs.fleet.remote\nexcept ImportError:\n    pass", 1),
        ("onnxfix.verbs.fleet.work", "def f():\n    from onnxfix.verbs.fleet import remote", 0),
        ("onnxfix.verbs.fleet.work", "if TYPE_CHECKING:\n    from onnxfix.verbs.fleet import remote", 0),
        ("onnxfix.verbs.fleet.remote", "from onnxfix.verbs.fleet import ray", 0),
        ("onnxfix.verbs.fleet.work", "from onnxfix.verbs.fleet import paths", 0),
    ],
)
def test_the_optional_check_can_fail(module: str, source: str, violations: int) -> None:
    imports = imports_of(source, module.rsplit(".", 1)[0])
    assert len(optional_at_import(module, imports)) == violations


@pytest.mark.parametrize(("source", "violations"), [("import torch", 1), ("import math, onnx.helper", 0)])
def test_the_rule_import_check_can_fail(source: str, violations: int) -> None:
    assert len(foreign_to_rules("onnxfix_rules.x", imports_of(source, "onnxfix_rules"))) == violations


def test_the_rule_count_can_fail() -> None:
    one = "@rule('A1', ops=['Cast'])\ndef a(node, model): ...\n"
    two = one + "@onnxfix.rule('A2', ops=['Cast'])\ndef b(node, model): ...\n"
    assert (rules_in(one), rules_in(two), rules_in("def helper(): ...")) == (["A1"], ["A1", "A2"], [])


def test_the_check_of_ceilings_can_fail() -> None:
    rooms = above({"graph": 10, "files": 11, "new": 1}, {"graph": 10, "files": 10})
    assert rooms == {"files": "11 lines, 1 more than allowed", "new": "1 lines, 1 more than allowed"}


def test_the_clash_check_can_fail() -> None:
    assert clashes({"verify", "check"}, {"verify", "engine"}) == {"verify"}


def test_the_length_check_can_fail() -> None:
    body = "x = 1\n" * (LONG_FILE + 1)
    assert unexplained_length(body)
    assert not unexplained_length("# Long because: one table, and half of it would be of no use\n" + body)
    assert unexplained_length("# Long because: yes\n" + body)
    assert not unexplained_length("x = 1\n" * LONG_FILE)


def test_the_check_of_long_functions_can_fail() -> None:
    body = "    x = 1\n"
    assert long_functions("def f():\n" + body * LONG_FUNCTION) == ["f, line 1"]
    assert long_functions("def f():\n" + body * (LONG_FUNCTION - 1)) == []
    reason = "# Long because: one table, and half of it would be of no use\n"
    assert long_functions(reason + "@decorated\ndef f():\n" + body * LONG_FUNCTION) == []
    assert long_functions("def f():\n    " + reason + body * LONG_FUNCTION) == []
    assert long_functions(reason + "\n\n\ndef f():\n" + body * LONG_FUNCTION) == ["f, line 5"]


def test_the_check_of_imports_in_functions_can_fail() -> None:
    source = "import a\ndef f():\n    import b\n    from c import (  # lazy: start-up\n        d,\n    )\n"
    assert unexplained_imports(source) == [3]
    assert unexplained_imports("def f():\n    if x:\n        import b  # lazy:\n") == [3]


@pytest.mark.parametrize(
    ("sources", "found"),
    [
        ({"p.a": "import p.b", "p.b": "import p.c", "p.c": ""}, []),
        (
            {"p.a": "import p.b", "p.b": "from p.c import x", "p.c": "def f():\n    from p import a"},
            [["p.a", "p.b", "p.c"]],
        ),
        ({"p.a": "from p.b import x", "p.b": "if TYPE_CHECKING:\n    import p.a"}, []),
        ({"p.a": "import q.b", "p.b": "import p.a"}, []),
    ],
)
def test_the_check_of_circles_can_fail(sources: dict[str, str], found: list[list[str]]) -> None:
    assert circles([(name, imports_of(source, "p")) for name, source in sources.items()]) == found
