"""What users install: the distributions, built and installed in clean environments, run outside the checkout.

The environments see the dependencies of the interpreter that runs the tests through a .pth file, so the tests
need no network. That the declared dependencies suffice is checked twice: here against the imports of the
wheel, and for real by .ci/run, which installs from the index as the README says.
"""

from __future__ import annotations

import email
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.paths import ROOT
from support.patience import PATIENCE
from test_architecture import imports_of, modules_under, read, rules_in

MODEL = ROOT / "fixtures" / "vit.legacy.op17.onnx"
VERSION = re.findall(r'__version__ = "(.+)"', read(ROOT / "onnxfix" / "_version.py"))[0]
CODES = [
    code for _, _, path in modules_under(ROOT / "rules" / "onnxfix_rules") for code in rules_in(read(path))
]

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("packaging")]  # build once, not once a worker


def clean_environ() -> dict[str, str]:
    """The environment without anything that could make the checkout importable, or color the output."""
    unwanted = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "FORCE_COLOR")
    return {key: value for key, value in os.environ.items() if key not in unwanted}


def run(*command: str | Path, cwd: Path, ok: tuple[int, ...] = (0,)) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=clean_environ(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode in ok, f"{command} ended {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


@dataclass(frozen=True)
class Environment:
    """A fresh virtual environment without pip, and a folder outside of the checkout to work in."""

    scripts: Path
    packages: Path
    work: Path

    @property
    def python(self) -> Path:
        return self.scripts / "python"

    def install(self, *arguments: str | Path) -> None:
        pip = [sys.executable, "-m", "pip", "--python", self.python, "--disable-pip-version-check", "install"]
        offline = ["-q", "--no-deps", "--no-index", "--no-build-isolation"]
        run(*pip, *offline, *arguments, cwd=self.work)

    def onnxfix(self, *arguments: str | Path, ok: tuple[int, ...] = (0,)) -> subprocess.CompletedProcess[str]:
        return run(self.scripts / "onnxfix", *arguments, cwd=self.work, ok=ok)


def make_environment(folder: Path) -> Environment:
    venv.EnvBuilder(with_pip=False, symlinks=True).create(folder / "venv")
    scripts = folder / "venv" / "bin"
    ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = Path(run(scripts / "python", "-c", ask, cwd=folder).stdout.strip())
    borrowed = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    # A plain path in a .pth file: the .pth files in that folder (of an editable onnxfix, say) are not read.
    (packages / "dependencies.pth").write_text("\n".join(sorted(borrowed)) + "\n")
    work = folder / "elsewhere"
    work.mkdir()
    shutil.copy(MODEL, work)
    return Environment(scripts, packages, work)


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and the wheel that was built from that sdist."""
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, ROOT, cwd=out)
    return out


def test_the_same_sources_give_the_same_bytes(distributions: Path, tmp_path: Path) -> None:
    """From the sdist's own content, in another folder, at another time, with other rights and another time zone."""
    (sdist,) = distributions.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (copy,) = tmp_path.iterdir()
    for path in copy.rglob("*"):
        os.chmod(path, 0o700 if path.is_dir() or os.access(path, os.X_OK) else 0o600)
        os.utime(path, (1e9, 1e9))
    again = ("-m", "build", "--no-isolation", "--sdist", "--wheel", "--outdir", tmp_path / "again", copy)
    run("env", "TZ=Asia/Tokyo", "LC_ALL=C", sys.executable, *again, cwd=tmp_path)
    assert {path.name: path.read_bytes() for path in (tmp_path / "again").iterdir()} == {
        path.name: path.read_bytes() for path in distributions.iterdir()
    }


@pytest.fixture(scope="module")
def wheel(distributions: Path) -> Path:
    (path,) = distributions.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    environment = make_environment(tmp_path_factory.mktemp("wheel"))
    environment.install(wheel)
    return environment


@pytest.fixture(scope="module")
def editable(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    environment = make_environment(tmp_path_factory.mktemp("editable"))
    environment.install("-e", ROOT)
    return environment


@pytest.fixture(params=["installed", "editable"])
def environment(request: pytest.FixtureRequest) -> Environment:
    """Both ways of installing, one after the other."""
    found = request.getfixturevalue(request.param)
    assert isinstance(found, Environment)
    return found


def metadata(wheel: Path) -> email.message.Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(archive.read(name))


def distribution_names(wheel: Path, *, extras: bool) -> set[str]:
    """Import names of what the wheel requires: always, or by one of its extras."""
    required = [
        line for line in metadata(wheel).get_all("Requires-Dist", []) if ("extra ==" in line) == extras
    ]
    return {re.split(r"[\s<>=!~;\[(]", line)[0].replace("-", "_") for line in required}


def test_the_wheel_holds_the_two_packages_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    tops = {name.split("/")[0] for name in names}
    assert tops == {"onnxfix", "onnxfix_rules", f"onnxfix-{VERSION}.dist-info"}
    assert {"onnxfix/py.typed", "onnxfix_rules/py.typed"} <= names
    assert f"onnxfix-{VERSION}.dist-info/licenses/LICENSE" in names
    # The parts of HTML reports and the facts about releases are read from beside their code.
    own = [
        path for kind in ("py", "css", "js", "j2", "tsv") for path in (ROOT / "onnxfix").rglob(f"*.{kind}")
    ]
    sources = {f"onnxfix/{path.relative_to(ROOT / 'onnxfix')}" for path in own}
    rules = ROOT / "rules" / "onnxfix_rules"
    sources |= {f"onnxfix_rules/{path.relative_to(rules)}" for path in rules.rglob("*.py")}
    sources |= {
        f"onnxfix_rules/{name}.json" for name in ("catalog", "proofs")
    }  # by which rules are found and described
    code = {name for name in names if ".dist-info/" not in name and not name.endswith("py.typed")}
    assert code == sources


def test_the_wheel_declares_its_command_and_its_rule_pack(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        declared = archive.read(f"onnxfix-{VERSION}.dist-info/entry_points.txt").decode().split("\n\n")
    assert [group.split("\n", 1) for group in map(str.strip, declared)] == [
        ["[console_scripts]", "onnxfix = onnxfix.__main__:main"],
        ["[onnxfix.rules]", "core = onnxfix_rules"],
    ]


def test_the_sdist_can_build_and_test_itself(distributions: Path) -> None:
    (path,) = distributions.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames()}
    needed = {
        "pyproject.toml",
        "README.md",
        "README.zh-CN.md",
        "mkdocs.yml",
        "LICENSE",
        "tests/conftest.py",
        "docs/make.py",
        "docs/hazards.md",
        f"fixtures/{MODEL.name}",
        ".ci/run",
        "constraints.txt",
        "noxfile.py",
    }
    assert needed <= names
    assert not {name for name in names if "__pycache__" in name or name.startswith((".venv", ".git/"))}


def test_the_wheel_requires_what_it_imports(wheel: Path) -> None:
    base, optional = distribution_names(wheel, extras=False), distribution_names(wheel, extras=True)
    assert "onnx" in base
    assert "onnxruntime" in optional - base
    own = {"onnxfix", "onnxfix_rules", "google"} | set(
        sys.stdlib_module_names
    )  # google.protobuf comes with onnx
    missing = []
    for folder in (ROOT / "onnxfix", ROOT / "rules" / "onnxfix_rules"):
        for name, package, path in modules_under(folder):
            for found in imports_of(read(path), package):
                allowed = base | optional if found.lazy else base
                if found.name.split(".")[0] not in own | allowed:
                    missing.append(f"{name}:{found.line} {found.name}")
    assert missing == []


def test_version(environment: Environment) -> None:
    version = environment.onnxfix("--version").stdout
    assert VERSION in version.split()
    assert run(environment.python, "-m", "onnxfix", "--version", cwd=environment.work).stdout == version


def test_the_code_comes_from_where_it_was_installed(installed: Environment, editable: Environment) -> None:
    ask = "import onnxfix, onnxfix_rules; print(onnxfix.__file__); print(onnxfix_rules.__file__)"
    for found in run(installed.python, "-c", ask, cwd=installed.work).stdout.split():
        assert Path(found).is_relative_to(installed.packages)
    files = run(editable.python, "-c", ask, cwd=editable.work).stdout.split()
    assert files == [str(ROOT / "onnxfix/__init__.py"), str(ROOT / "rules/onnxfix_rules/__init__.py")]


def test_rules_are_found(environment: Environment) -> None:
    listed = environment.onnxfix("rules")
    assert CODES
    assert [code for code in CODES if code not in listed.stdout] == []
    assert "warning" not in listed.stderr.lower()


def test_pages_have_the_code_of_pytorch(environment: Environment) -> None:
    assert "## In PyTorch\n\n" in environment.onnxfix("explain", "BRC001").stdout


def test_check_a_real_model(environment: Environment) -> None:
    done = environment.onnxfix("check", MODEL.name, ok=(0, 1))
    assert MODEL.name in done.stdout
    assert sorted(path.name for path in environment.work.iterdir()) == [MODEL.name]
