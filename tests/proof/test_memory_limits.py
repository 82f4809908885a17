"""Models that do not fit into memory: weights that are mapped, limits that are respected and told."""
# Long because: what a lack of memory looks like is made in every place where it may happen

from __future__ import annotations

import mmap
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxfix.api.repair import apply
from onnxfix.errors import UsageError
from onnxfix.files import lazy, wire
from onnxfix.proof.validity import Checked
from onnxfix.proof.verify import Limits, RungResult, Verdict, verify
from onnxfix.runtime import sandbox, system
from onnxfix.runtime.allowance import memory_limit
from onnxfix.runtime.backends import ort, ort_weights
from onnxfix.runtime.sandbox import Outcome, Worker, allow_maps
from support import models
from support.cli import run as command
from support.patience import PATIENCE

if not sys.platform.startswith("linux"):
    pytest.skip("memory is limited on Linux only", allow_module_level=True)

# Children under memory limits, and models that do not fit.
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("new_children")]

MIB = 1 << 20
Run = Callable[..., Verdict]


# ------------------------------------------------------------------------------------------------ the limit


def map_and_fill(path: str, told: bool, more_mib: int) -> str:
    """Map a file as ONNX Runtime does, and then take ``more_mib`` of memory."""
    size = os.path.getsize(path)
    if told:
        allow_maps(size)
    with open(path, "rb") as file:
        try:
            held = mmap.mmap(
                file.fileno(), size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE
            )
        except OSError:
            return "not mapped"
    if told:
        allow_maps()
    try:
        block = np.ones(more_mib * MIB, np.uint8)
    except MemoryError:
        return "mapped, and full"
    finally:
        held.close()
    return f"mapped, and {block.nbytes // MIB} more"


@pytest.fixture
def sparse(tmp_path: Path) -> Path:
    """A file of 1 GiB that takes no room, where one might take it for a program or a library."""
    path = tmp_path / "bin" / "m.so.onnx"
    path.parent.mkdir()
    path.touch()
    os.truncate(path, 1 << 30)
    return path


def test_files_that_are_mapped_do_not_count_and_all_else_does(sparse: Path) -> None:
    with Worker(memory_mb=400) as worker:

        def call(told: bool, more: int) -> Any:
            return worker.call(
                f"{__name__}:map_and_fill", timeout=PATIENCE, path=str(sparse), told=told, more_mib=more
            ).value

        assert call(False, 1) == "not mapped"
        assert call(True, 100) == "mapped, and 100 more"
        assert call(True, 600) == "mapped, and full"
        assert call(False, 1) == "not mapped", "the limit is what it was as soon as nothing is mapped"


@pytest.mark.parametrize("enough", [-1, 0, 63])
def test_what_python_itself_needs_is_the_least(enough: int) -> None:
    with (
        pytest.raises(UsageError, match=f"a memory limit of {enough} MiB is too little"),
        memory_limit(enough),
    ):
        pass


def test_what_a_container_holds_of_files_is_not_in_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system, "GROUPS", tmp_path)
    (tmp_path / "memory.max").write_text(f"{2000 * MIB}\n")
    (tmp_path / "memory.current").write_text(f"{1900 * MIB}\n")
    assert sandbox.default_memory_mb() == 256
    (tmp_path / "memory.stat").write_text(f"anon 5\ninactive_file {1000 * MIB}\nactive_file {500 * MIB}\n")
    assert sandbox.default_memory_mb() == 1200
    (tmp_path / "memory").mkdir()
    for name, text in (("limit_in_bytes", 1000 * MIB), ("usage_in_bytes", 900 * MIB)):
        (tmp_path / "memory" / f"memory.{name}").write_text(f"{text}\n")
    stat = f"inactive_file 7\nactive_file 7\ntotal_inactive_file {400 * MIB}\ntotal_active_file 0\n"
    (tmp_path / "memory" / "memory.stat").write_text(stat)
    assert sandbox.default_memory_mb() == 375
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory" / "memory.stat").unlink()
    assert sandbox.default_memory_mb() == 256


@pytest.mark.parametrize(
    ("line", "names", "place"),
    [
        ("0::/PATH", ("max", "current"), "."),
        ("3:cpuset:/\n4:hugetlb,memory:/PATH", ("limit_in_bytes", "usage_in_bytes"), "memory"),
    ],
)
def test_the_least_of_the_groups_around_a_process_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, names: tuple[str, str], place: str
) -> None:
    (tmp_path / "own").write_text(f"{line.replace('PATH', 'outer/middle/inner')}\n")
    monkeypatch.setattr(system, "GROUPS", tmp_path)
    monkeypatch.setattr(system, "OWN_GROUPS", tmp_path / "own")
    sizes = {"outer/middle/inner": 3000, "outer/middle": 800, "outer": 2000, "outer/other": 1000}
    for group, most in sizes.items():
        (tmp_path / place / group).mkdir(parents=True, exist_ok=True)
        for name, size in zip(names, (most, 400), strict=True):
            (tmp_path / place / group / f"memory.{name}").write_text(f"{size * MIB}\n")
    assert sandbox.default_memory_mb() == 300
    (tmp_path / place / "outer/middle" / f"memory.{names[0]}").write_text("max\n")
    assert sandbox.default_memory_mb() == 1200


# ------------------------------------------------------------------------------------------ weights of a file

MATMUL = 2400  # times 2400 float32 are 22 MiB


def matmul(path: Path, *, seed: int = 0, external: bool = False, **changed: Any) -> Path:
    """``y = Relu(x @ w + b)``, with a weight of 22 MiB in the file and one of 9,600 bytes."""
    rng = np.random.default_rng(seed)
    weights = {
        "w": rng.standard_normal((MATMUL, MATMUL), np.float32),
        "b": rng.standard_normal(MATMUL, np.float32),
    }
    weights.update(changed)
    model = models.model(
        f"""g (float[N, {MATMUL}] x) => (float[N, {MATMUL}] y)
        {{ m = MatMul(x, w)  a = Add(m, b)  y = Relu(a) }}""",
        17,
        **weights,
    )
    path.parent.mkdir(exist_ok=True)
    where = {"save_as_external_data": True, "location": "weights.bin"} if external else {}
    onnx.save(model, path, **where)
    return path


FEED = {"x": np.random.default_rng(1).standard_normal((3, MATMUL), np.float32)}


def test_large_weights_are_mapped_from_the_model_itself(tmp_path: Path) -> None:
    path = matmul(tmp_path / "m.onnx")
    where = ort_weights.stored(str(path))
    weight, bias = where.skeleton.graph.initializer
    about = {one.key: one.value for one in weight.external_data}
    data, wanted = path.read_bytes(), numpy_helper.to_array(onnx.load(path).graph.initializer[0]).tobytes()
    assert (about["location"], int(about["length"])) == ("m.onnx", len(wanted))
    assert data[int(about["offset"]) :][: len(wanted)] == wanted
    assert numpy_helper.to_array(bias).shape == (MATMUL,), "what is small is kept, and not as a stand-in"
    assert not list(lazy.tokens(where.skeleton.SerializeToString()))
    assert (where.total, where.outside) == (len(wanted) + 4 * MATMUL, 0)
    assert len(wanted) <= where.inside < len(wanted) + MIB
    assert where.folder == str(tmp_path)
    mapped, plain = ort.load(str(path)), ort.load(str(path), mapped=False)
    assert (mapped.mapped, plain.mapped) == (True, False)
    assert mapped.run(FEED)[0].tobytes() == plain.run(FEED)[0].tobytes()


def test_what_the_file_does_not_say_itself_is_loaded_as_usual(tmp_path: Path) -> None:
    """The name after the bytes, which protobuf reads and never writes; so that a wrong range would show."""
    path = matmul(tmp_path / "m.onnx")
    data, name = path.read_bytes(), wire.prefix(8, 1) + b"w"
    size = MATMUL * MATMUL * 4
    at = data.index(name + wire.prefix(9, size)) + len(name)
    end = at + len(wire.prefix(9, size)) + size
    odd = tmp_path / "odd.onnx"
    odd.write_bytes(data[: at - len(name)] + data[at:end] + name + data[end:])
    assert onnx.load(odd) == onnx.load(path)
    assert ort_weights.stored(str(odd)).skeleton is None
    session = ort.load(str(odd))
    assert not session.mapped
    assert session.run(FEED)[0].tobytes() == ort.load(str(path)).run(FEED)[0].tobytes()


def test_a_link_is_followed_to_where_the_weights_are(tmp_path: Path) -> None:
    """As a cache of downloads has them: what is linked has another name in another folder."""
    path = matmul(tmp_path / "blobs" / "0123456789abcdef")
    link = tmp_path / "snapshot" / "model.onnx"
    link.parent.mkdir()
    link.symlink_to(Path("..") / "blobs" / path.name)
    session = ort.load(str(link))
    assert session.mapped
    assert session.run(FEED)[0].tobytes() == ort.load(str(path), mapped=False).run(FEED)[0].tobytes()


def test_a_model_with_weights_inside_and_beside_it(tmp_path: Path) -> None:
    path = matmul(tmp_path / "m.onnx")
    model = onnx.load(path)
    bias = model.graph.initializer[1]
    wanted = ort.load(str(path)).run(FEED)[0].tobytes()
    (tmp_path / "bias").write_bytes(bias.raw_data)
    models.external(bias, "bias")
    onnx.save(model, path)
    session = ort.load(str(path))
    assert session.mapped
    assert session.run(FEED)[0].tobytes() == wanted
    link = tmp_path / "other" / "link.onnx"
    link.parent.mkdir()
    link.symlink_to(path)
    shutil.copy(tmp_path / "bias", link.parent)
    assert ort_weights.stored(str(link)).skeleton is None, "what lies beside it is looked for beside the link"
    assert ort.load(str(link)).run(FEED)[0].tobytes() == wanted


def test_models_that_are_loaded_as_they_are(tmp_path: Path) -> None:
    path = matmul(tmp_path / "m.onnx")
    outside = matmul(tmp_path / "external" / "m.onnx", external=True)
    typed = tmp_path / "typed.onnx"
    model = onnx.load(path)
    model.graph.initializer[0].CopyFrom(
        helper.make_tensor("w", TensorProto.FLOAT, [MATMUL, MATMUL], np.ones(MATMUL * MATMUL, np.float32))
    )
    onnx.save(model, typed)
    short = tmp_path / "short.onnx"
    model.graph.initializer[0].CopyFrom(onnx.load(path).graph.initializer[0])
    model.graph.initializer[0].dims[0] = MATMUL - 1
    onnx.save(model, short)
    small = models.write(tmp_path / "small.onnx", "g (float x) => (float y) { y = Relu(x) }", 17)
    for one in (outside, typed, short, small):
        assert ort_weights.stored(str(one)).skeleton is None, one
    for one in (outside, typed):
        assert ort.load(str(one)).run(FEED)[0].shape == (3, MATMUL)
    size = MATMUL * (MATMUL + 1) * 4
    assert size <= ort_weights.stored(str(outside)).outside < size + MIB
    (tmp_path / "no.onnx").write_bytes(b"nothing")
    assert ort_weights.stored(str(tmp_path / "no.onnx")) == ort_weights.Stored()


def test_weights_in_half_precision_are_widened_one_at_a_time(tmp_path: Path) -> None:
    """ONNX Runtime computes in float32: the 20 weights are 200 MiB, and 400 in that type."""
    size, count = 2290, 20
    steps = "  ".join(f"x{n + 1} = MatMul(x{n}, w{n})" for n in range(count))
    model = models.model(
        f"""g (float16[N, {size}] x0) => (float16[N, {size}] x{count})
        {{ {steps} }}""",
        17,
    )
    for number in range(count):
        tensor = model.graph.initializer.add(
            name=f"w{number}", data_type=TensorProto.FLOAT16, dims=[size] * 2
        )
        models.external(tensor, "w", number * size * size * 2, size * size * 2)
    path, weights = tmp_path / "m.onnx", tmp_path / "w"
    onnx.save(model, path)
    weights.touch()
    os.truncate(weights, count * size * size * 2)
    feeds = [{"x0": np.ones((2, size), np.float16)}]
    with Worker(memory_mb=300) as worker:
        found = verify(path, path, exact=True, rungs=["ort-cpu"], inputs=feeds, worker=worker).rung("ort-cpu")
    assert found.status == "passed", found.reason


# ---------------------------------------------------------------------------------------- larger than memory


def table(folder: Path, *, external: bool, name: str = "m.onnx", last: float = 0.0) -> Path:
    """``y = Gather(w, i)`` with 1.2 GiB of weights, in a file that has hardly a page of its own."""
    rows, width = 300_000, 1024
    size = rows * width * 4
    model = models.model(f"g (int64[N] i) => (float[N, {width}] y) {{ y = Gather(w, i) }}", 17)
    tensor = model.graph.initializer.add(name="w", data_type=TensorProto.FLOAT, dims=[rows, width])
    folder.mkdir(exist_ok=True)
    path = folder / name
    if external:
        models.external(tensor, f"{name}.bin", 0, size)
        onnx.save(model, path)
        holder, start = folder / f"{name}.bin", 0
        holder.touch()
    else:  # the fields of a message may come in pieces: a second `graph` that holds the tensor is merged with the first
        inner = tensor.SerializeToString()
        del model.graph.initializer[:]
        head = wire.prefix(9, size)
        length = len(inner) + len(head) + size
        body = wire.prefix(5, length) + inner + head
        graph = model.graph.SerializeToString()
        model.ClearField("graph")
        front = model.SerializeToString() + wire.prefix(7, len(graph) + len(body) + size) + graph + body
        path.write_bytes(front)
        holder, start = path, len(front)
    os.truncate(holder, start + size)
    with holder.open("r+b") as file:
        for row in range(0, 200):
            file.seek(start + row * width * 4)
            file.write(np.full(width, row, np.float32).tobytes())
        file.seek(start + 5 * width * 4)
        file.write(np.float32(last).tobytes())
    return path


@pytest.mark.parametrize("external", [True, False])
def test_models_larger_than_the_limit_are_verified(tmp_path: Path, external: bool) -> None:
    """Original and fixed model hold 2.4 GiB, and the sandbox may use 300 MiB."""
    original = table(tmp_path / "a", external=external)
    fixed = table(tmp_path / "b", external=external)
    with Worker(memory_mb=300) as worker:
        verdict = verify(
            original, fixed, exact=True, rungs=["contract", "reference", "ort-cpu"], worker=worker
        )
        assert verdict.rung("ort-cpu").status == "passed", verdict.rung("ort-cpu").reason
        assert len(verdict.rung("ort-cpu").feeds) >= 5
        assert verdict.rung("reference").status == "skipped"
        assert worker.generation == 1, "it was not even tried in vain"
        wrong = table(tmp_path / "c", external=external, last=7.0)
        found = verify(
            original, wrong, exact=True, rungs=["ort-cpu"], worker=worker, inputs=[{"i": np.arange(9)}]
        )
        assert found.rung("ort-cpu").status == "failed"
        assert found.rung("ort-cpu").reason.startswith("output y: ")
    paths = [str(one) for one in (original, fixed, wrong)]
    shared = [ort_weights.borrow(one, paths[0]) for one in paths[1:]]
    assert [one.folder if one else "" for one in shared] == [str(original.parent) if external else "", ""]


# ------------------------------------------------------------------------------------------ what does not fit


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """``verify`` of two models in ONNX text."""

    def call(original: str, fixed: str, **more: Any) -> Verdict:
        texts = {"original": original, "fixed": fixed}
        paths = [models.write(tmp_path / f"{name}.onnx", text, 17) for name, text in texts.items()]
        return verify(*paths, exact=True, **more)

    return call


def hungry(mib: int) -> str:
    """Needs so much memory for a moment."""
    return f"""g (float[N, 2] x) => (float[N, 2] y) <int64[1] n = {{{mib * MIB // 4}}}, int64[1] z = {{0}}>
        {{ big = ConstantOfShape(n)  one = Gather(big, z)  y = Add(x, one) }}"""


PLAIN = "g (float[N, 2] x) => (float[N, 2] y) <float z = {0}> { y = Add(x, z) }"
TOLD = "memory is limited to 400 MiB: --memory-limit sets it"


@pytest.mark.parametrize("name", [pytest.param("reference", marks=pytest.mark.long), "ort-cpu"])
def test_a_lack_of_memory_is_told_and_is_no_difference(run: Run, name: str) -> None:
    limits = Limits(memory_mb=400)
    both = run(hungry(600), hungry(600), rungs=[name], limits=limits).rung(name)
    assert (both.status, both.reason.count(TOLD)) == ("skipped", 1), both.reason
    assert "\n" not in both.reason
    assert both.reason.startswith("the original fails: ran out of memory")
    # The original does with what there is, and not with half of it: by chance the limit is between the two.
    chance = run(hungry(230), hungry(600), rungs=[name], limits=limits).rung(name)
    assert (chance.status, chance.reason.count(TOLD)) == ("skipped", 1), chance.reason
    assert chance.reason.startswith("the new model: ran out of memory")
    harm = run(PLAIN, hungry(600), rungs=[name], limits=limits).rung(name)
    assert (harm.status, harm.reason.count(TOLD)) == ("failed", 1), harm.reason
    assert harm.reason.startswith(
        "the original runs within 200 MiB, the new model needs more than twice as much: ran"
    )
    fits = run(hungry(230), PLAIN, rungs=[name], limits=limits).rung(name)
    assert fits.status == "passed", fits.reason


@pytest.mark.parametrize("name", ["original", "fixed"])
def test_a_checker_without_memory_refutes_nobody(
    run: Run, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forked(check: Any, asked: str | list[str], *_: Any, **__: Any) -> Outcome:
        if not isinstance(asked, str) or asked.endswith(f"{name}.onnx"):
            return Outcome("memory", message="ran out of memory (of 7 MiB)")
        return Outcome("ok", Checked() if name == "fixed" else Checked("a complaint"))

    monkeypatch.setattr("onnxfix.proof.validity.forked", forked)
    found = run(PLAIN, RELU, rungs=["contract"]).rung("contract")
    words = "onnx.checker did not run: ran out of memory (of 7 MiB)"
    assert (found.status, found.reason) == ("skipped", words)
    kept = run(PLAIN, RELU, rungs=["contract"], contract=lambda *_: []).rung("contract")
    assert (kept.status, kept.reason) == ("passed", f"the interface is unchanged; {words}")


def eat() -> int:
    return np.ones(600 * MIB, np.uint8).nbytes


def test_a_fork_says_its_limit_unless_it_is_its_own() -> None:
    with memory_limit(100):
        assert sandbox.forked(eat, timeout=PATIENCE).message.endswith(
            "(memory is limited to 100 MiB: --memory-limit sets it)"
        )
        assert "--memory-limit" not in sandbox.forked(eat, timeout=PATIENCE, memory_mb=100).message


def test_the_command_takes_the_limit(tmp_path: Path) -> None:
    path = models.write(tmp_path / "m.onnx", hungry(600), 17)
    code, out, _ = command("verify", path, "--memory-limit", "400", "--rungs", "ort-cpu")
    assert (code, out.count(TOLD)) == (3, 1), out
    report = apply(path, tmp_path / "out.onnx", memory_mb=400, rungs=["ort-cpu"], select=["CST001"])
    assert report.verdict.settled or TOLD in report.verdict.rung("ort-cpu").reason
    code, _, error = command("check", path, "--memory-limit", "400")
    assert code == 2
    assert "--memory-limit: has no effect without --trt" in error
    assert command("verify", path, "--memory-limit", "10")[0] == 2


# --------------------------------------------------------------------------------------- what backends make of it

BACKEND = """
import os, signal
import numpy as np, onnx
LOADS = os.path.join(os.path.dirname(__file__), "loads")
class Session:
    outputs = ["y"]
    def __init__(self, path, mapped):
        self.relu, self.mapped = onnx.load(path).graph.node[0].op_type == "Relu", mapped
    def run(self, feed): return [feed["x"] + off(self)]
def off(session): return {off}
def load(path, lean=None, mapped=True, like=""):
    with open(LOADS, "a") as file: file.write(f"{{lean}} {{mapped}}\\n")
    {load}
    return Session(path, mapped)
"""
REMOTE = """
from onnxfix.runtime import backends
from onnxfix.proof.remote import *
backends.BACKENDS["ort-cpu"] = "odd_backend"
"""
RELU = "g (float[N, 2] x) => (float[N, 2] y) { y = Relu(x) }"


@pytest.fixture
def odd(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., tuple[RungResult, list[str]]]:
    """The rung ort-cpu with a backend of our own, and how its models were loaded."""

    def call(fixed: str = RELU, *, off: str = "0", load: str = "pass", memory_mb: int = 4000) -> Any:
        (tmp_path / "odd_backend.py").write_text(BACKEND.format(off=off, load=load))
        (tmp_path / "odd_remote.py").write_text(REMOTE)
        (tmp_path / "loads").unlink(missing_ok=True)
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.setattr("onnxfix.proof.pair.REMOTE", "odd_remote")
        found = run(PLAIN, fixed, rungs=["ort-cpu"], limits=Limits(memory_mb=memory_mb)).rung("ort-cpu")
        return found, (tmp_path / "loads").read_text().splitlines()

    return call


def test_what_differs_where_weights_are_mapped_must_differ_where_they_are_loaded(odd: Any) -> None:
    both = ["None True"] * 2
    found, loads = odd()
    assert (found.status, loads) == ("passed", both)
    found, loads = odd(off="int(session.relu and session.mapped)")
    assert (found.status, loads) == ("passed", [*both, *["None False"] * 2])
    found, loads = odd(off="int(session.relu)")
    assert (found.status, loads) == ("failed", [*both, *["None False"] * 2])


def test_a_difference_stands_where_its_weights_cannot_be_loaded(odd: Any) -> None:
    for problem in (
        "if not mapped: raise MemoryError()",
        "if not mapped: os.kill(os.getpid(), signal.SIGKILL)",
    ):
        found, loads = odd(off="int(session.relu)", load=problem)
        assert found.status == "failed"
        assert found.reason.startswith("output y: ")
        assert loads[:3] == ["None True", "None True", "None False"]


def test_what_runs_out_of_memory_is_tried_with_less(odd: Any) -> None:
    found, loads = odd(load="if not lean: raise MemoryError()")
    assert (found.status, loads) == ("passed", ["None True", "True True", "True True"])
    # Killed for want of memory by the system, in the second model's name.
    found, loads = odd(
        load="if not lean and not path.endswith('original.onnx'): os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert (found.status, loads) == ("passed", ["None True", "None True", "True True", "True True"])
    found, loads = odd(load="raise RuntimeError('std::bad_alloc')")
    assert (found.status, loads) == ("skipped", ["None True", "True True"])
    assert found.reason == (
        "the original cannot be loaded: ran out of memory (memory is limited to 4000 MiB: --memory-limit sets it): "
        "RuntimeError: std::bad_alloc"
    )


def test_a_crash_with_little_memory_is_taken_for_a_lack_of_it(odd: Any) -> None:
    crash = "if path.endswith('fixed.onnx'): os.abort()"
    found, _ = odd(load=crash, memory_mb=4000)
    assert (found.status, found.reason) == (
        "failed", "the original loads, the new model does not: killed by SIGABRT"
    )  # fmt: skip
    found, loads = odd(load=crash, memory_mb=400)
    assert loads[2:4] == ["True True", "True True"]
    assert (found.status, loads[-1]) == ("failed", "True True"), "half of that is enough for the original"
    assert (
        "probably ran out of memory (memory is limited to 400 MiB: --memory-limit sets it): killed"
        in found.reason
    )
    always = "if lean is not None or path.endswith('fixed.onnx'): os.abort()"
    found, _ = odd(load=always, memory_mb=400)
    assert found.status == "skipped"


def test_what_fits_alone_and_not_beside_the_original_does_no_harm(odd: Any) -> None:
    """The child holds both: what is left for the fixed model is less than the limit."""
    beside = (
        "if not lean: raise MemoryError()\n    "
        "if path.endswith('fixed.onnx') and sum(1 for _ in open(LOADS)) {}: raise MemoryError()"
    )
    found, loads = odd(load=beside.format("== 3"))
    assert (found.status, found.reason) == (
        "skipped",
        "the new model: ran out of memory (memory is limited to 4000 MiB: --memory-limit sets it): MemoryError",
    )
    assert loads == ["None True", *["True True"] * 4]
    found, loads = odd(load=beside.format("> 2"))
    assert (found.status, loads) == ("failed", ["None True", *["True True"] * 4])
    assert found.reason.startswith("the original runs within 2000 MiB, the new model needs more than twice")


def test_nothing_is_left_beside_the_model(tmp_path: Path) -> None:
    path = matmul(tmp_path / "m.onnx")
    copy = Path(shutil.copy(path, tmp_path / "copy.onnx"))
    assert verify(path, copy, exact=True, rungs=["ort-cpu"], inputs=[FEED]).rung("ort-cpu").status == "passed"
    assert {one.name for one in tmp_path.iterdir()} == {"m.onnx", "copy.onnx"}
