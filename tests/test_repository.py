"""The repository's own files: the workflow, the hooks and the templates parse, and name what exists."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

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
