"""The project's tasks, each in a fresh environment.

    nox -s quick       the quick lane with the versions of constraints.txt, as README's test command
    nox -s full        every test with the same versions, and all of ONNX's node models
    nox -s newest      every test with the newest releases that pyproject.toml allows
    nox -s oldest      every test with the oldest ones, on the oldest Python that is found
    nox -s portable    the tests that need no fork, no TensorRT and no POSIX file system, on any system
    nox -s lint        ruff, and mypy for Linux, Windows and macOS
    nox -s docs        writes the pages of rules, hazards and mis-imports; ``-- --check`` only compares
    nox -s site        builds the site into build/site; fails on dead links and on pages that load from the network
    nox -s benchmarks  startup and growth, the benchmarks that take minutes; the others are in benchmarks/README.md
    nox -s fuzz        damaged models of a new seed, for 40 minutes; ``-- --seed N --count M`` tries others
    nox -s random      5,000 random models of a fresh seed, which is printed: what holds for every fix; hours of a night
    nox -s pin         writes constraints.txt, with the newest releases for each Python that is found, and locked/
    nox -s lock        writes locked/: what constraints.txt names, with the hashes of its files
    nox -s release     sdist, wheel and SBOM in dist/; the wheel is installed beside what locked/ names, and tried

What stands behind ``--`` goes to pytest (``nox -s oldest -- -x tests/cli/test_cli.py``), docs/make.py or startup.py.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nox
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

HEAD = """\
# What `pip install -c constraints.txt -e ".[dev]"` installs, and ".[cpu]" of it. The suite passed with the versions for
# Python 3.11; those for other Pythons are the newest that pip takes there. Written by `nox -s pin`.
"""
PORTABLE = [
    # the examples of every rule, and the rules' own tests
    "tests/test_rules.py",
    "tests/rules/test_brc_broadcasting.py",
    "tests/rules/test_cst_casts.py",
    "tests/rules/test_gra_hygiene.py",
    "tests/rules/test_int_integers.py",
    "tests/rules/test_rsh_reshapes.py",
    "tests/rules/test_integer_expansions.py",
    "tests/rules/test_float_expansions.py",
    "tests/rules/test_dynamic_sizes.py",
    "tests/report/test_catalogue.py",
    "tests/engine/test_registry.py",
    # reading models, edits and the engine
    "tests/files/test_random_encodings.py",
    "tests/files/test_malformed_protobuf.py",
    "tests/test_dtypes.py",
    "tests/engine/test_edits.py",
    "tests/engine/test_edits_nested.py",
    "tests/engine/test_engine.py",
    "tests/shapes/test_shapes_kept_between_passes.py",
    "tests/graph/test_deep_nesting.py",
    "tests/verbs/test_contract.py",
    "tests/report/test_wrapping.py",
    # shapes and sizes
    "tests/shapes/test_dimension_names.py",
    "tests/shapes/test_shapes.py",
    "tests/shapes/test_shapes_properties.py",
    "tests/shapes/test_shapes_scopes.py",
    "tests/inputs/test_sizes.py",
    "tests/engine/test_fitting.py",
    "tests/verbs/test_intake.py",
    "tests/verbs/test_stopped.py",
    "tests/inputs/test_input_values.py",
    # verification by the reference evaluator and ONNX Runtime
    "tests/proof/test_reference_evaluator.py",
    "tests/proof/test_compare.py",
    "tests/proof/test_empty_tensors.py",
    "tests/proof/test_input_files.py",
    "tests/proof/test_feeds.py",
    "tests/proof/test_float64_judge.py",
    "tests/proof/test_feeds_of_quantizers.py",
    "tests/proof/test_twin.py",
]
"""Test files that need no fork, no TensorRT and no POSIX file system. On other systems than Linux they have not run
yet."""
LOCKED = {
    "cpu": "pip install --require-hashes -r locked/cpu.txt && pip install --no-deps onnxfix",
    "dev": "pip install --require-hashes -r locked/dev.txt && pip install --no-deps -e .",
}
"""The extras that are locked, and how to install from each of these files. `-c` with hashes would not do: pip refuses
it where anything that is installed has none, as onnxfix itself from a folder."""
PROJECT: dict[str, Any] = nox.project.load_toml("pyproject.toml")["project"]

nox.options.sessions = ["full"]
nox.options.default_venv_backend = "virtualenv"


def interpreters() -> Iterator[tuple[str, str]]:
    """The Pythons of this machine that the project says it runs on, the oldest first: version and path."""
    pyenv = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser() / "versions"
    for version in sorted(nox.project.python_versions({"project": PROJECT}), key=Version):
        found = [shutil.which(f"python{version}"), *sorted(pyenv.glob(f"{version}.*/bin/python"))]
        yield from ((version, str(path)) for path in found if path is not None and starts(str(path)))


def starts(python: str) -> bool:
    """Whether it is more than the stand-in of a version manager for a Python that is not chosen."""
    return subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode == 0


def oldest_releases(extra: str) -> list[str]:
    """The lower bounds in pyproject.toml of what the package and an extra of it need, as pins.

    Raises:
        ValueError: a requirement has no lower bound.
    """
    optional = PROJECT["optional-dependencies"]
    pins, wanted, seen = [], [*map(Requirement, PROJECT["dependencies"] + optional[extra])], {extra}
    while wanted:
        one = wanted.pop(0)
        if one.name == PROJECT["name"]:  # an extra that takes in others
            wanted += [Requirement(text) for more in sorted(one.extras - seen) for text in optional[more]]
            seen |= one.extras
            continue
        bounds = [part.version for part in one.specifier if part.operator in (">=", "~=", "==")]
        if len(bounds) != 1:
            raise ValueError(f"{one} has no lower bound in pyproject.toml")
        pins.append(f"{one.name}=={bounds[0]}")
    return sorted(set(pins))


def resolved(python: str, folder: Path) -> dict[str, str]:
    """What pip would install of the checkout with its tools: name -> version."""
    subprocess.run([python, "-m", "venv", folder], check=True)
    report = folder / "report.json"
    options = ["--quiet", "--disable-pip-version-check", "--dry-run", "--report", report]
    subprocess.run([folder / "bin" / "python", "-m", "pip", "install", *options, "-e", ".[dev]"], check=True)
    found = (one["metadata"] for one in json.loads(report.read_text(encoding="utf-8"))["install"])
    versions = {canonicalize_name(one["name"]): one["version"] for one in found}
    return {name: version for name, version in versions.items() if name != PROJECT["name"]}


def constraints(by_python: dict[str, dict[str, str]]) -> str:
    """The text of constraints.txt, from what each Python (the oldest first) takes: name -> version. One line where all
    that need a package take the same version."""
    lines = []
    for name in sorted({name for versions in by_python.values() for name in versions}):
        versions = {python: found[name] for python, found in by_python.items() if name in found}
        firsts = [  # the Pythons with which another version begins
            python
            for before, python in zip([None, *versions], versions, strict=False)
            if before is None or versions[before] != versions[python]
        ]
        for first, after in zip(firsts, [*firsts[1:], None], strict=True):
            since = f'python_version >= "{first}"' if first != firsts[0] else ""
            until = f'python_version < "{after}"' if after is not None else ""
            where = " and ".join(filter(None, (since, until)))
            lines.append(f"{name}=={versions[first]}" + (f" ; {where}" if where else ""))
    return HEAD + "\n".join(lines) + "\n"


def suite(session: nox.Session, *options: str, lane: str = "full") -> None:
    """Install the checkout with its tools, by these options of pip, and run the tests of a lane."""
    session.env.update(PYTHONPATH="", PIP_DISABLE_PIP_VERSION_CHECK="1")
    session.install("-q", *options, "-e", ".[dev]")
    session.run("pytest", "-q", "-n", "auto", "-p", "no:cacheprovider", f"--lane={lane}", *session.posargs)


@nox.session
def quick(session: nox.Session) -> None:
    """The quick lane with the versions of constraints.txt."""
    suite(session, "-c", "constraints.txt", lane="quick")


@nox.session
def full(session: nox.Session) -> None:
    """The suite with the versions of constraints.txt."""
    suite(session, "-c", "constraints.txt")


@nox.session
def newest(session: nox.Session) -> None:
    """The suite with the newest releases."""
    suite(session, "--upgrade")


@nox.session(python=next((path for _, path in interpreters()), None))
def oldest(session: nox.Session) -> None:
    """The suite with the lower bounds of pyproject.toml."""
    pins = Path(session.create_tmp()) / "oldest.txt"
    pins.write_text("\n".join(oldest_releases("dev")) + "\n", encoding="utf-8")
    session.log(pins.read_text(encoding="utf-8").replace("\n", " "))
    suite(session, "-c", str(pins))


@nox.session
def portable(session: nox.Session) -> None:
    """The tests that run on any system, without TensorRT, which has no wheels for some."""
    tools = {"hypothesis", "pytest", "pytest-timeout", "pytest-xdist"}
    wanted = [text for text in PROJECT["optional-dependencies"]["dev"] if Requirement(text).name in tools]
    session.env.update(PYTHONPATH="", PIP_DISABLE_PIP_VERSION_CHECK="1", PYTHONUTF8="1")
    session.install("-q", "-c", "constraints.txt", "-e", ".[cpu]", *wanted)
    options = ("-q", "-n", "auto", "-p", "no:cacheprovider", "--lane=quick")
    session.run("pytest", *options, *(session.posargs or PORTABLE))


@nox.session
def lint(session: nox.Session) -> None:
    """Formatting, lint, and types as on Linux, Windows and macOS."""
    session.env.update(PYTHONPATH="", PIP_DISABLE_PIP_VERSION_CHECK="1")
    session.install("-q", "-c", "constraints.txt", "-e", ".[dev]")
    session.run("ruff", "format", "--check", ".")
    session.run("ruff", "check", ".")
    for system in ("linux", "win32", "darwin"):
        session.run("mypy", f"--platform={system}")


@nox.session
def docs(session: nox.Session) -> None:
    """The generated pages: what docs/make.py writes."""
    session.env.update(PYTHONPATH="", PIP_DISABLE_PIP_VERSION_CHECK="1")
    session.install("-q", "-c", "constraints.txt", "-e", ".")
    session.run("python", "docs/make.py", *session.posargs)


@nox.session
def site(session: nox.Session) -> None:
    """The site, in build/site. Installing needs the network, building does not."""
    session.env.update(PYTHONPATH="", PIP_DISABLE_PIP_VERSION_CHECK="1")
    session.install("-q", "-c", "constraints.txt", "-e", ".[docs]")
    session.run("python", "docs/website.py", *session.posargs)


@nox.session
def benchmarks(session: nox.Session) -> None:
    """The benchmarks that need no other models and take minutes: startup, and growth with the number of nodes."""
    session.env.update(PYTHONPATH="", PIP_DISABLE_PIP_VERSION_CHECK="1")
    session.install("-q", "-c", "constraints.txt", "-e", ".[cpu]")
    session.run("python", "benchmarks/startup.py", *session.posargs)
    session.run("python", "benchmarks/scaling.py", "--runs", "1")


@nox.session
def fuzz(session: nox.Session) -> None:
    """Damaged models of a new seed, which is printed; what was found is in build/fuzzing, as small as it gets."""
    session.env.update(PYTHONPATH="", PIP_DISABLE_PIP_VERSION_CHECK="1")
    session.install("-q", "-c", "constraints.txt", "-e", ".[cpu,tensorrt-rtx]")
    chosen = session.posargs or ("--count", "20000", "--minutes", "40")
    jobs = ("--jobs", str(os.cpu_count() or 1), "--keep", "build/fuzzing")
    session.run("python", "benchmarks/fuzzing/run.py", *jobs, *chosen)


@nox.session
def random(session: nox.Session) -> None:
    """Random models of a fresh seed: fixed, executed, parsed and in part built by TensorRT-RTX."""
    session.env.update(PYTHONPATH="", PIP_DISABLE_PIP_VERSION_CHECK="1")
    session.install("-q", "-c", "constraints.txt", "-e", ".[cpu,tensorrt-rtx]")
    options = session.posargs or ["--tensorrt", "build", "--command", "50"]
    session.run("python", "benchmarks/random_models/run.py", *options)


@nox.session(venv_backend="none")
def pin(session: nox.Session) -> None:
    """Write constraints.txt: the newest releases for each Python that is found here."""
    found: dict[str, dict[str, str]] = {}
    for version, python in interpreters():
        if version not in found:
            session.log(f"resolving for Python {version}")
            found[version] = resolved(python, Path(session.create_tmp()) / version)
    Path("constraints.txt").write_text(constraints(found), encoding="utf-8")
    _lock(session)


@nox.session(venv_backend="none")
def lock(session: nox.Session) -> None:
    """Write locked/ from pyproject.toml and constraints.txt."""
    _lock(session)


def _lock(session: nox.Session) -> None:
    """The files of locked/, for every system and Python at once, without the index that they were found on."""
    tool = Path(session.create_tmp()) / "uv"
    session.run("python", "-m", "venv", str(tool), external=True)
    python = next(iter(sorted(tool.glob("*/python*"))))
    session.run(str(python), "-m", "pip", "install", "-q", "uv", external=True)
    options = [
        "--universal",
        "--generate-hashes",
        "--no-header",
        "--no-annotate",
        "--no-emit-index-url",
        "-q",
    ]
    oldest = f"--python-version={nox.project.python_versions({'project': PROJECT})[0]}"
    for extra, use in LOCKED.items():
        path = Path("locked", f"{extra}.txt")
        path.unlink(missing_ok=True)  # its versions would be kept
        wanted = ["pyproject.toml", f"--extra={extra}", "-c", "constraints.txt", oldest, "-o", str(path)]
        session.run(str(python), "-m", "uv", "pip", "compile", *wanted, *options, external=True)
        head = f"# The tested versions by the hashes of their files. {use}\n# Written by `nox -s lock`.\n"
        path.write_text(head + path.read_text(encoding="utf-8"), encoding="utf-8")


@nox.session
def release(session: nox.Session) -> None:
    """The distributions and the SBOM in dist/, the same bytes wherever and whenever this commit is built."""
    session.env.update(PYTHONPATH="", PIP_DISABLE_PIP_VERSION_CHECK="1")
    session.install("-q", "-c", "constraints.txt", "build", "hatchling", "cyclonedx-bom>=7.0")
    when = session.run("git", "log", "-1", "--format=%ct", external=True, silent=True)
    shutil.rmtree("dist", ignore_errors=True)
    session.run("python", "-m", "build", "--no-isolation", env={"SOURCE_DATE_EPOCH": str(when).strip()})
    (wheel,) = Path("dist").glob("*.whl")
    folder = Path(session.create_tmp()) / "user"
    shutil.rmtree(folder, ignore_errors=True)
    session.run("python", "-m", "venv", "--without-pip", str(folder))
    (scripts,) = (path for path in (folder / "bin", folder / "Scripts") if path.is_dir())
    install = ("python", "-m", "pip", "--python", str(scripts / "python"), "install", "-q")
    session.run(*install, "--require-hashes", "-r", "locked/cpu.txt")
    session.run(*install, "--no-deps", "--no-index", "--find-links=dist", PROJECT["name"])
    model = Path("fixtures/vit.legacy.op17.onnx")
    session.run(str(scripts / "onnxfix"), "check", str(model), success_codes=[0, 1], external=True)
    found = Path(session.create_tmp()) / "sbom.json"
    options = [
        "--pyproject=pyproject.toml",
        "--mc-type=application",
        "--spec-version=1.6",
        "--output-reproducible",
    ]
    session.run(
        "cyclonedx-py", "environment", str(scripts / "python"), *options, "-o", str(found), "--validate"
    )
    text = sbom(json.loads(found.read_text(encoding="utf-8")), wheel.name.split("-")[1])
    Path("dist", f"{PROJECT['name']}.cdx.json").write_text(text, encoding="utf-8")


def sbom(document: dict[str, Any], version: str) -> str:
    """A CycloneDX document of an installed wheel as it is released: with onnxfix's version.

    Raises:
        ValueError: it names a path of this machine, or lacks a dependency.
    """
    document["metadata"]["component"]["version"] = version
    text = json.dumps(document, indent=2, sort_keys=True) + "\n"
    named = {canonicalize_name(one["name"]) for one in document["components"]}
    lacking = {canonicalize_name(Requirement(one).name) for one in PROJECT["dependencies"]} - named
    if lacking or "file://" in text or str(Path.cwd()) in text:
        raise ValueError(
            f"the SBOM lacks {sorted(lacking)}" if lacking else "the SBOM names a path of this machine"
        )
    return text
