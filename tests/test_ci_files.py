"""What runs in other people's pipelines, run here: hooks, the composite action, GitLab's job, the container.

Steps are executed as the files have them, in a temporary folder. There is no network: environments that they make see
the dependencies of the interpreter that runs the tests, and pip installs onnxfix alone.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
import shlex
import subprocess
import sys
import sysconfig
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import onnx
import pytest
import yaml

from support.cli_models import CLEAN, FIXABLE, write
from support.paths import ROOT
from support.patience import PATIENCE

ACTION = ROOT / "action.yml"
HAZARD = "g (float[2,3] x) => (float[A,B] y) <int64[2] s = {0, -1}> { y = Reshape<allowzero = 1>(x, s) }"
OFFLINE = {
    "PIP_NO_INDEX": "1",
    "PIP_NO_DEPS": "1",
    "PIP_NO_BUILD_ISOLATION": "0",
    "PIP_CONSTRAINT": "",
    "PIP_NO_COMPILE": "1",
}
"""pip takes 0 for "no build isolation"."""
_SHIM = """#!/bin/sh
if [ "$1 $2" != "-m venv" ]; then exec "{real}" "$@"; fi
"{real}" -m venv --without-pip "$3" || exit
echo "{site}" > "$(echo "$3"/lib/python*/site-packages)/dependencies.pth"
"""
"""Environments without a pip of their own, which takes seconds to set up."""


def parsed(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)


def shell(text: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """A script as GitHub and GitLab run it, with ``onnxfix`` and ``python`` from ``folder``/bin if they are there."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    env = {**kept, **OFFLINE, "PATH": f"{folder / 'bin'}:{kept['PATH']}", **environment}
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", text],
        cwd=folder, env=env, capture_output=True, text=True, timeout=PATIENCE, stdin=subprocess.DEVNULL,
    )  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A repository with models, onnxfix on the PATH, and a python whose environments see the dependencies."""
    program(tmp_path / "bin" / "onnxfix", f'#!/bin/sh\nexec "{sys.executable}" -m onnxfix "$@"\n')
    site = sysconfig.get_path("purelib")
    program(tmp_path / "bin" / "python", _SHIM.format(real=sys.executable, site=site))
    (tmp_path / "models").mkdir()
    write(tmp_path / "models" / "clean one.onnx", CLEAN)
    write(tmp_path / "models" / "hazard.onnx", HAZARD)
    write(tmp_path / "models" / "fixable.onnx", FIXABLE)
    return tmp_path


def source() -> str:
    """What makes the checkout importable."""
    return f"{ROOT}:{ROOT / 'rules'}"


# ----------------------------------------------------------------------------------------------------------- pre-commit


@pytest.mark.slow
def test_hooks_take_files_and_fail_where_they_should(folder: Path) -> None:
    hooks = {one["id"]: one for one in parsed(ROOT / ".pre-commit-hooks.yaml")}
    assert set(hooks) == {"onnxfix-check", "onnxfix-apply"}
    for name, more in (("onnxfix-check", ""), ("onnxfix-apply", "--rungs contract ")):
        hook = hooks[name]
        files = [str(one.relative_to(folder)) for one in sorted(folder.rglob("*"))]
        taken = [one for one in files if re.search(hook["files"], one)]
        assert len(taken) == 3
        done = shell(f"{hook['entry']} {more}{shlex.join(taken)}", folder, PYTHONPATH=source())
        assert (done.returncode, "RSH002" in done.stdout) == (1, True), done.stderr
        assert hook["language"] == "python"
        assert hook["require_serial"]
    nodes = [node.op_type for node in onnx.load(folder / "models" / "fixable.onnx").graph.node]
    assert nodes.count("Cast") < FIXABLE.count("Cast")


# -------------------------------------------------------------------------------------------------------------- GitHub


def step_of(name: str) -> dict[str, Any]:
    (found,) = (one for one in parsed(ACTION)["runs"]["steps"] if one.get("name") == name)
    return dict(found)


def resolved(text: str, inputs: dict[str, str]) -> str:
    """A value of a step with GitHub's expressions replaced."""
    known = {f"inputs.{name}": value for name, value in inputs.items()} | {"github.action_path": str(ROOT)}
    return re.sub(r"\$\{\{ *(.+?) *\}\}", lambda match: known[match[1]], text)


def act(name: str, folder: Path, **given: str) -> tuple[subprocess.CompletedProcess[str], dict[str, str]]:
    """A step of the action with these inputs, and what it wrote to GITHUB_OUTPUT."""
    inputs = {key: one.get("default", "") for key, one in parsed(ACTION)["inputs"].items()}
    inputs |= {key.replace("_", "-"): value for key, value in given.items()}
    step = step_of(name)
    assert step["shell"] == "bash"
    assert "${{" not in step["run"]  # inputs are data, never part of a script
    files = {one: str(folder / one) for one in ("GITHUB_OUTPUT", "GITHUB_PATH", "GITHUB_STEP_SUMMARY")}
    environment = {key: resolved(value, inputs) for key, value in step["env"].items()}
    (folder / "temp").mkdir(exist_ok=True)
    done = shell(step["run"], folder, **environment, **files, RUNNER_TEMP=str(folder / "temp"),
                 GITHUB_WORKSPACE=str(folder), PYTHONPATH=source())  # fmt: skip
    said = (folder / "GITHUB_OUTPUT").read_text() if (folder / "GITHUB_OUTPUT").exists() else ""
    (folder / "GITHUB_OUTPUT").unlink(missing_ok=True)
    return done, dict(line.split("=", 1) for line in said.splitlines())


@pytest.mark.slow
def test_the_action_checks(folder: Path) -> None:
    done, outputs = act("Run onnxfix", folder, models="\n  models/**/*.onnx \n")
    assert (done.returncode, outputs["exit-code"], outputs["output-dir"]) == (1, "1", ""), done.stderr
    assert "::error file=models/hazard.onnx" in done.stdout
    log = json.loads(Path(outputs["sarif"]).read_text(encoding="utf-8"))
    assert {one["ruleId"] for one in log["runs"][0]["results"]} >= {"RSH002"}
    assert "RSH002" in (folder / "GITHUB_STEP_SUMMARY").read_text()
    assert not (folder / "temp" / "onnxfix-models").exists()


@pytest.mark.slow
def test_the_action_repairs_and_proves(folder: Path) -> None:
    models = "models/clean one.onnx\nmodels/fixable.onnx"
    done, outputs = act("Run onnxfix", folder, models=models, require="reference", target="trt10", fail_on="error",
                        args="--rungs=reference\n\n-q\n")  # fmt: skip
    assert (done.returncode, outputs["exit-code"]) == (0, "0"), done.stderr
    written = sorted(one.name for one in Path(outputs["output-dir"]).rglob("*.onnx"))
    assert written == ["clean one.onnx", "fixable.onnx"]
    (model,) = {
        one["target"]
        for one in json.loads(Path(outputs["sarif"]).read_text(encoding="utf-8"))["runs"][0]["properties"][
            "models"
        ]
    }
    assert model == "trt10"
    done, outputs = act("Run onnxfix", folder, models="models/none*.onnx", output_dir="out; touch injected")
    assert (done.returncode, outputs["exit-code"]) == (2, "2")
    assert not (folder / "injected").exists()


def test_steps_name_what_there_is() -> None:
    action = parsed(ACTION)
    text = ACTION.read_text(encoding="utf-8")
    used = set(re.findall(r"inputs\.([a-z-]+)", text))
    assert used == set(action["inputs"])
    outputs = set(re.findall(r"steps\.run\.outputs\.([a-z-]+)", text))
    assert outputs == set(action["outputs"])
    assert all(f'echo "{name}=' in step_of("Run onnxfix")["run"] for name in outputs)
    upload = action["runs"]["steps"][-1]
    assert upload["uses"].startswith("github/codeql-action/upload-sarif@v")
    assert upload["if"].startswith("always()")  # findings make the step before it fail


@pytest.mark.slow
def test_the_action_installs_itself(folder: Path) -> None:
    done, _ = act("Install onnxfix", folder)
    assert done.returncode == 0, done.stderr
    path = (folder / "GITHUB_PATH").read_text().strip()
    again = shell(f"PATH={shlex.quote(path)}:$PATH; onnxfix --version; command -v onnxfix", folder)
    assert again.stdout.splitlines()[-1] == f"{path}/onnxfix"


# -------------------------------------------------------------------------------------------------------------- GitLab


@pytest.mark.slow
def test_the_job_for_gitlab(folder: Path) -> None:
    job = parsed(ROOT / "ci" / "gitlab.yml")["onnxfix"]
    done = shell(
        "\n".join(job["script"]), folder, **job["variables"], PYTHONPATH=source(), CI_PROJECT_DIR=str(folder)
    )
    assert done.returncode == 1, done.stderr
    reports = job["artifacts"]["reports"]
    issues = json.loads((folder / reports["codequality"]).read_text())
    assert {one["location"]["path"] for one in issues} >= {"models/hazard.onnx"}
    assert len({one["fingerprint"] for one in issues}) == len(issues)
    suites = ET.parse(folder / reports["junit"]).getroot()
    assert len(suites.findall("testsuite")) == 3
    assert job["artifacts"]["when"] == "always"


# ----------------------------------------------------------------------------------------------------------- container


def instructions() -> list[tuple[str, str]]:
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    lines = (line for line in text.splitlines() if line.strip() and not line.startswith("#"))
    return [(line.split()[0], line.split(maxsplit=1)[1]) for line in lines]


def is_sent(path: str) -> bool:
    """Whether the build gets a file: the last line of .dockerignore that is about it decides."""
    sent = True
    for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines():
        if not line or line.startswith("#"):
            continue
        pattern = line.removeprefix("!").removeprefix("**/")
        parts = path.split("/")
        if any(fnmatch.fnmatchcase(part, pattern) for part in (parts if "**/" in line else parts[:1])):
            sent = line.startswith("!")
    return sent


def copied(target: Path) -> None:
    """The build's context, as COPY gets it."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    names = listed.stdout.split("\0") if listed.returncode == 0 else []
    for name in names:
        if name and is_sent(name) and (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            (target / name).write_bytes((ROOT / name).read_bytes())


@pytest.mark.slow
def test_the_container_without_a_container(folder: Path) -> None:
    """Each RUN and COPY, with folders of the image below a temporary one."""
    if not (ROOT / ".git").exists():
        pytest.skip("the context of the build is what git tracks, and this is no checkout")
    root, arguments, entry, path = folder / "image", {}, "", ""
    root.mkdir()

    def inside(text: str) -> str:
        return re.sub(r"(?<![\w.}\]])/(src|opt|work)\b", rf"{root}/\1", text)

    for word, rest in instructions():
        if word == "ARG":
            name, _, value = rest.partition("=")
            arguments[name] = value
        elif word == "COPY" and not rest.startswith("--from"):
            copied(root / rest.split()[1].lstrip("/"))
        elif word == "RUN":
            done = shell(inside(rest), folder, **arguments)
            assert done.returncode == 0, f"{rest}\n{done.stdout}\n{done.stderr}"
        elif word == "ENV":
            path = inside(re.findall(r"PATH=(\S+)", rest)[0]).replace(":$PATH", "")
        elif word == "ENTRYPOINT":
            (entry,) = json.loads(rest)
    assert not (root / "src" / "tests").exists()
    assert "CST002" in (root / "opt" / "onnxfix" / "rules.txt").read_text()
    done = shell(
        f"PATH={shlex.quote(path)}:$PATH; command -v {entry}; {entry} check -q models/fixable.onnx", folder
    )
    assert done.stdout.startswith(f"{path}/onnxfix\nmodels/fixable.onnx"), done.stderr


# ---------------------------------------------------------------------------------------------------------------- docs


def test_the_page_uses_what_there_is() -> None:
    page = (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")
    workflow, gitlab, hooks = (
        yaml.safe_load(one) for one in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    )
    (step,) = (one for one in workflow["jobs"]["onnxfix"]["steps"] if "onnxfix" in one["uses"])
    action = parsed(ACTION)
    assert set(step["with"]) <= set(action["inputs"])
    assert all(f"`{name}`" in page for name in (*action["inputs"], *action["outputs"]))
    known_variables = parsed(ROOT / "ci" / "gitlab.yml")["onnxfix"]["variables"]
    assert set(gitlab["onnxfix"]["variables"]) <= {*known_variables, "GIT_SUBMODULE_STRATEGY"}
    known = {one["id"] for one in parsed(ROOT / ".pre-commit-hooks.yaml")}
    assert {one["id"] for one in hooks["repos"][0]["hooks"]} <= known
    assert all(f"`{name}`" in page for name in known)
    assert "OWNER" not in page, "every address is one that a reader has"


def test_no_page_installs_from_where_nothing_is_yet() -> None:
    """A release of onnxfix is not on PyPI: pages install from a checkout, and one says what messages mean."""
    pages = [*(ROOT / "docs").rglob("*.md"), *(ROOT / "docs").rglob("*.ipynb"), *ROOT.glob("README*.md")]
    naming = [page.name for page in pages if 'pip install "onnxfix' in page.read_text(encoding="utf-8")]
    assert naming == ["install.md"]
