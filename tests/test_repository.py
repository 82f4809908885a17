"""The repository's own files: the workflow, the hooks and the templates parse, and name what exists; constraints.txt
names everything that the set-up commands install, in versions that pyproject.toml allows."""

from __future__ import annotations

import ast
import json
import re
import tomllib
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from support.paths import ROOT

WORKFLOW = ROOT / ".github" / "workflows" / "ci.yml"
NIGHTLY = ROOT / ".github" / "workflows" / "nightly.yml"
HOOKS = ROOT / ".pre-commit-config.yaml"
NOT_PORTABLE = re.compile(
    r"real_tensorrt|os\.fork|mark\.(trt|gpu)|subprocess|Worker|symlink|mkfifo|chmod|os\.kill"
)


def parsed(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


@cache
def project() -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return found


@cache
def noxfile() -> ast.Module:
    return ast.parse((ROOT / "noxfile.py").read_text(encoding="utf-8"))


def sessions() -> set[str]:
    """The names of noxfile.py's sessions, read and not imported: nox may be absent."""
    functions = (one for one in noxfile().body if isinstance(one, ast.FunctionDef))
    return {one.name for one in functions if any("nox.session" in ast.unparse(d) for d in one.decorator_list)}


def portable() -> list[str]:
    (value,) = (
        one.value
        for one in noxfile().body
        if isinstance(one, ast.Assign) and ast.unparse(one.targets[0]) == "PORTABLE"
    )
    found: list[str] = ast.literal_eval(value)
    return found


def pythons() -> list[str]:
    return re.findall(r"Python :: (3\.\d+)", "\n".join(project()["classifiers"]))


def jobs() -> dict[str, Any]:
    found: dict[str, Any] = parsed(WORKFLOW)["jobs"]
    return found


def commands(job: dict[str, Any]) -> Iterator[str]:
    """What a job runs, a line at a time, once for each entry of its matrix."""
    matrix = job.get("strategy", {}).get("matrix", {})
    for entry in matrix.get("include", [{}]):
        for step in job["steps"]:
            text = step.get("run", "")
            for name, value in entry.items():
                text = text.replace(f"${{{{ matrix.{name} }}}}", value)
            yield from text.splitlines()


def test_the_linux_job_runs_the_readme_on_every_python() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    block = re.search(r"```sh\n(.*?)```", readme, re.DOTALL)
    assert block
    wanted = [line for line in block[1].splitlines() if line and not line.startswith("#")]
    ran = list(commands(jobs()["linux"]))
    assert [line for line in wanted if line not in ran] == []
    assert any(line.endswith("--lane=rest") for line in ran)
    assert jobs()["linux"]["strategy"]["matrix"]["python"] == pythons()
    assert project()["requires-python"] == f">={pythons()[0]}"


@pytest.mark.parametrize(
    ("workflow", "named"),
    [
        (WORKFLOW, {"lint", "docs", "portable", "newest", "oldest"}),
        (NIGHTLY, {"full", "fuzz", "random"}),
    ],
    ids=["each change", "nightly"],
)
def test_a_workflow_runs_sessions_and_pythons_that_exist(workflow: Path, named: set[str]) -> None:
    found = parsed(workflow)
    lines = [line for job in found["jobs"].values() for line in commands(job)]
    assert {name for line in lines for name in re.findall(r"\bnox -s (\S+)", line)} == named <= sessions()
    assert set(re.findall(r"\b3\.\d+\b", workflow.read_text(encoding="utf-8"))) <= set(pythons())
    assert all(job["timeout-minutes"] for job in found["jobs"].values())
    assert found["permissions"] == {"contents": "read"}


@pytest.mark.parametrize("place", ["noxfile.py", "CONTRIBUTING.md"])
def test_every_session_is_described(place: str) -> None:
    text = (ROOT / place).read_text(encoding="utf-8")
    assert set(re.findall(r"^ *nox -s (\w+)", text, re.MULTILINE)) == sessions()


def test_the_portable_files_are_there_and_need_nothing_special() -> None:
    assert "tests/test_rules.py" in portable()
    assert len(set(portable())) == len(portable())
    for name in portable():
        text = (ROOT / name).read_text(encoding="utf-8")
        assert NOT_PORTABLE.search(text) is None, name


def test_hooks_run_tools_of_the_environment_and_scripts_that_exist() -> None:
    tools = {Requirement(text).name for text in project()["optional-dependencies"]["dev"]} | {"python"}
    local = [hook for repo in parsed(HOOKS)["repos"] if repo["repo"] == "local" for hook in repo["hooks"]]
    assert {hook["id"] for hook in local} == {"ruff-check", "ruff-format", "mypy", "docs", "subject"}
    for hook in (one for one in local if one["language"] == "system"):
        program, *arguments = hook["entry"].split()
        assert program in tools
        assert all((ROOT / one).is_file() for one in arguments if one.endswith(".py"))
    for repo in parsed(HOOKS)["repos"]:
        assert repo["repo"] == "local" or re.fullmatch(r"v\d+\.\d+\.\d+", repo["rev"])


PINS = [
    Requirement(line)
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    if not line.startswith("#")
]
PYTHONS = ("3.11", "3.12", "3.13", "3.14")


def named(requirements: Iterable[Requirement]) -> set[str]:
    return {canonicalize_name(one.name) for one in requirements}


def pinned(name: str, version: str) -> bool:
    """Whether the version is that of constraints.txt, or the distribution is not named there."""
    here = [
        one
        for one in PINS
        if canonicalize_name(one.name) == canonicalize_name(name)
        and (one.marker is None or one.marker.evaluate())
    ]
    return all(one.specifier.contains(version) for one in here)


def required(name: str, extras: Iterable[str]) -> list[Requirement]:
    """What an installed distribution needs here, with some of its extras."""
    found = [Requirement(text) for text in metadata.requires(name) or ()]
    return [
        one
        for one in found
        if one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in ("", *extras))
    ]


def reachable(name: str, extras: Iterable[str]) -> set[str]:
    """The installed distributions that one needs, with some of its extras, and those that these need.

    What is needed by a distribution that is installed in another version than the pinned one says nothing of that one.
    """
    found: set[str] = set()
    seen: set[tuple[str, frozenset[str]]] = set()
    left = [(name, frozenset(extras))]
    while left:
        one = left.pop()
        if one in seen:
            continue
        seen.add(one)
        try:
            needs = required(*one)
            version = metadata.version(one[0])
        except metadata.PackageNotFoundError:  # of an extra that is not installed here
            continue
        found.add(canonicalize_name(one[0]))
        if not pinned(one[0], version):
            continue
        left += [(canonicalize_name(need.name), frozenset(need.extras)) for need in needs]
    return found - {canonicalize_name(name)}


@pytest.mark.parametrize("extra", ["cpu", "dev"])
def test_everything_that_is_installed_is_pinned(extra: str) -> None:
    found = reachable("onnxfix", [extra])
    assert {"onnx", "numpy", "onnxruntime"} <= found
    missing = sorted(found - named(PINS))
    assert not missing, "`nox -s pin` writes constraints.txt anew"


def test_readme_and_ci_install_in_the_same_way() -> None:
    """.ci/run proves the set-up commands of the README only while they are the same."""
    readme, ci = (ROOT / "README.md").read_text(), (ROOT / ".ci" / "run").read_text()
    block = re.search(r"```sh\n(.*?)```", readme, re.DOTALL)
    assert block
    use, develop = (line for line in block[1].splitlines() if line and not line.startswith("#"))
    for line, scratch in ((use, "user"), (develop, "dev")):
        for step in line.split(" && "):
            step = step.replace("-o fixed.onnx", '-o "$scratch/fixed.onnx"')
            for name, arguments in re.findall(r"^\.venv/bin/(\w+) (.*)$", step):
                assert f'"$scratch/{scratch}/bin/{name}" {arguments}' in ci
    assert "fixtures/vit.legacy.op17.onnx" in use
    assert [line.count("install -q -c constraints.txt ") for line in (use, develop)] == [1, 1]
    assert develop in (ROOT / "CONTRIBUTING.md").read_text()


def declared(extra: str) -> list[Requirement]:
    """What pyproject.toml asks for, with an extra and those that it takes in."""
    optional = project()["optional-dependencies"]
    left, found = [*project()["dependencies"], *optional[extra]], []
    while left:
        one = Requirement(left.pop())
        if one.name == "onnxfix":
            left += [text for more in one.extras for text in optional[more]]
        else:
            found.append(one)
    return found


@pytest.mark.parametrize("python", PYTHONS)
def test_every_python_has_one_version_of_each_and_it_is_allowed(python: str) -> None:
    here = {"python_version": python, "python_full_version": f"{python}.0"}
    pins = [one for one in PINS if one.marker is None or one.marker.evaluate(here)]
    versions = {canonicalize_name(one.name): str(one.specifier).removeprefix("==") for one in pins}
    assert len(versions) == len(pins), "one package twice"
    assert all(str(one.specifier).startswith("==") and "*" not in str(one.specifier) for one in pins)
    for one in declared("dev"):
        assert one.specifier.contains(versions[canonicalize_name(one.name)]), one


def test_every_requirement_has_one_lower_bound() -> None:
    """From which ``nox -s oldest`` makes what it installs."""
    for extra in project()["optional-dependencies"]:
        for one in declared(extra):
            lower = [part for part in one.specifier if part.operator in (">=", "~=")]
            assert len(lower) == 1, f"{extra}: {one}"


# ------------------------------------------------------------------------------------------------------------- locked/


def locked(extra: str) -> dict[Requirement, list[str]]:
    """The pins of a file of locked/, each with its hashes."""
    text = (ROOT / "locked" / f"{extra}.txt").read_text(encoding="utf-8")
    entries = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", " ").splitlines()
    found = {}
    for entry in entries:
        pin, *hashes = re.split(r"\s+--hash=", entry.strip())
        found[Requirement(pin)] = hashes
    return found


@pytest.mark.parametrize("extra", ["cpu", "dev"])
@pytest.mark.parametrize("python", PYTHONS)
def test_what_is_locked_is_what_was_tested(extra: str, python: str) -> None:
    here = {
        "python_version": python,
        "python_full_version": f"{python}.0",
        "sys_platform": "linux",
        "os_name": "posix",
    }
    versions = {
        canonicalize_name(one.name): str(one.specifier)
        for one in PINS
        if one.marker is None or one.marker.evaluate(here)
    }
    pins = [one for one in locked(extra) if one.marker is None or one.marker.evaluate(here)]
    assert {canonicalize_name(one.name): str(one.specifier) for one in pins}.items() <= versions.items()
    assert len(named(pins)) == len(pins)
    assert named(declared(extra)) <= named(pins), "`nox -s lock` writes locked/ anew"


@pytest.mark.parametrize("extra", ["cpu", "dev"])
def test_everything_that_is_locked_has_hashes_and_names_no_index(extra: str) -> None:
    for pin, hashes in locked(extra).items():
        assert hashes, pin
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", one) for one in hashes), pin
    text = (ROOT / "locked" / f"{extra}.txt").read_text(encoding="utf-8")
    assert not re.search(r"://|^ *-(?!-hash)|index|find-links", text, re.MULTILINE)


def test_the_sbom_is_of_this_version_and_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("nox", reason="nox is not installed: pip install -e '.[dev]'")
    monkeypatch.chdir(ROOT)
    monkeypatch.syspath_prepend(ROOT)
    import noxfile

    names = [Requirement(text).name.replace("_", "-").upper() for text in project()["dependencies"]]
    document = {
        "metadata": {"component": {"name": "onnxfix"}},
        "components": [{"name": name} for name in names],
    }
    assert json.loads(noxfile.sbom(document, "1.2"))["metadata"]["component"] == {
        "name": "onnxfix",
        "version": "1.2",
    }
    document["components"].append({"name": f"file://{ROOT}"})
    with pytest.raises(ValueError, match="names a path"):
        noxfile.sbom(document, "1.2")
    with pytest.raises(ValueError, match="lacks"):
        noxfile.sbom({**document, "components": document["components"][1:-1]}, "1.2")
