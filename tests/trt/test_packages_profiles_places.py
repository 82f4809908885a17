"""What surrounds TensorRT: choice of package, profiles, places; and networks of real exports, read back and compared.

What is expected is the same for all versions, so that an environment with the oldest or with the newest one shows
where the package has changed.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from onnxfix.errors import UsageError
from onnxfix.proof.verify import verify
from onnxfix.runtime.nvidia import Gpu, Missing
from onnxfix.runtime.sandbox import Worker
from onnxfix.tensorrt import lift
from onnxfix.tensorrt import package as trt_package
from onnxfix.tensorrt.build import build
from onnxfix.tensorrt.lift.network import read_dims, read_word
from onnxfix.tensorrt.package import Choice, choose
from onnxfix.tensorrt.places import Layers, Places
from onnxfix.tensorrt.profiles import NetInput, candidates, evaluate
from onnxfix.tensorrt.records import Profile, TrtOptions
from support import handmade
from support.models import write
from support.paths import FIXTURES
from support.real_tensorrt import REAL

# ------------------------------------------------------------------------------------------------ packages


def test_a_package_that_is_not_installed_comes_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *_: None)
    assert trt_package.missing("tensorrt") == 'tensorrt is not installed: pip install "onnxfix[tensorrt]"'
    for package in trt_package.PACKAGES:
        found = choose(cast(Any, package))
        assert isinstance(found, Missing)
        assert 'pip install "onnxfix[tensorrt' in found.reason
    with pytest.raises(UsageError, match="pip install"):
        build("model.onnx", package="tensorrt-rtx")


def _installed(monkeypatch: pytest.MonkeyPatch, cards: list[Gpu], **versions: str) -> None:
    numbers = dict.fromkeys(("SM75", "SM80", "SM86", "SM89", "SM120"), 0)
    for name in ("tensorrt", "tensorrt_rtx"):
        module = ModuleType(name)
        module.__dict__.update(
            __version__=versions.get(name, ""), ComputeCapability=SimpleNamespace(__members__=numbers)
        )
        module.__spec__ = importlib.util.spec_from_loader(name, None)
        if name in versions:
            monkeypatch.setitem(sys.modules, name, module)
    real = importlib.util.find_spec

    def find(name: str, *rest: Any) -> Any:
        return sys.modules[name].__spec__ if name in versions else None if "tensorrt" in name else real(name)

    monkeypatch.setattr(importlib.util, "find_spec", find)
    monkeypatch.setattr(trt_package, "gpus", lambda: cards)


ADA, HOPPER = Gpu("L4", "8.9"), Gpu("H100", "9.0")
BOTH = {"tensorrt": "11.4.0", "tensorrt_rtx": "1.7.1"}


@pytest.mark.parametrize(
    ("versions", "cards", "refused", "package", "capability", "runs"),
    [
        (BOTH, [ADA], "", "tensorrt", "8.9", True),
        (BOTH, [HOPPER], "", "tensorrt", "9.0", True),
        (BOTH, [], "", "tensorrt-rtx", "8.9", False),
        ({"tensorrt": "9.3.0", "tensorrt_rtx": "1.7.1"}, [ADA], "", "tensorrt-rtx", "8.9", True),
        # What NVIDIA lists does not matter: a trial does.
        ({"tensorrt_rtx": "1.6.1"}, [HOPPER], "", "tensorrt-rtx", "9.0", True),
        ({"tensorrt_rtx": "1.7.1"}, [HOPPER], "not on this device", "tensorrt-rtx", "8.9", False),
        ({"tensorrt_rtx": "1.7.1"}, [ADA], "out of memory", "tensorrt-rtx", "8.9", False),
        ({"tensorrt_rtx": "1.7.1"}, [Gpu("RTX 2080", "7.5")], "", "tensorrt-rtx", "7.5", True),
    ],
)
def test_auto_prefers_tensorrt_where_it_can_run(
    monkeypatch: pytest.MonkeyPatch,
    versions: dict[str, str],
    cards: list[Gpu],
    refused: str,
    package: str,
    capability: str,
    runs: bool,
) -> None:
    _installed(monkeypatch, cards, **versions)
    monkeypatch.setattr(trt_package, "_refused", lambda module: refused)
    found = choose()
    assert isinstance(found, Choice)
    assert (found.package, found.capability, found.gpu is not None) == (package, capability, runs)
    assert (refused in found.note) if refused else (found.note == "")


def test_what_cannot_be_chosen_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    _installed(monkeypatch, [], **BOTH)
    for package, capability in (("tensorrt", None), ("tensorrt", "8.9")):
        found = choose(cast(Any, package), capability)
        assert isinstance(found, Missing)
        assert "shows none" in found.reason
        assert found.cause == "no-gpu"
    with pytest.raises(UsageError, match=r"builds for 7\.5, 8\.0, 8\.6, 8\.9, 12\.0"):
        choose("tensorrt-rtx", "9.0")
    with pytest.raises(UsageError, match="not a compute capability"):
        choose("tensorrt-rtx", "fast")
    with pytest.raises(UsageError, match="choose from"):
        choose(cast(Any, "trt"))
    assert choose("tensorrt-rtx", "sm_86") == Choice("tensorrt-rtx", "1.7.1", "8.6")


@pytest.mark.parametrize(
    ("version", "cards", "wanted", "cause"),
    [
        ("8.6.1", [], None, "version"),
        ("10.14.1", [ADA], "7.5", "gpu-not-served"),
        ("10.14.1", [Gpu("V100", "7.0")], None, "gpu-not-served"),
    ],
)
def test_why_a_package_cannot_be_used_is_data(
    monkeypatch: pytest.MonkeyPatch, version: str, cards: list[Gpu], wanted: str | None, cause: str
) -> None:
    _installed(monkeypatch, cards, tensorrt=version)
    found = choose("tensorrt", wanted)
    assert isinstance(found, Missing)
    assert found.cause == cause


# ------------------------------------------------------------------------------------------------ profiles


def test_equal_symbols_get_equal_sizes_and_arithmetic_is_done() -> None:
    inputs = [NetInput("x", ("N", "S"), False), NetInput("past", ("N", "S + 1", 4), False)]
    first = next(candidates(inputs, None, None))
    assert first.shapes["x"] == ((1, 1), (3, 3), (8, 8))
    assert first.shapes["past"] == ((1, 2, 4), (3, 4, 4), (8, 9, 4))


def test_sizes_of_leading_dimensions_do_not_grow() -> None:
    later = list(candidates([NetInput("x", ("N", 3, "H", "W"), False)], None, None))
    assert [profile.shapes["x"][1] for profile in later][:3] == [(3, 3, 64, 64), (3, 3, 3, 3), (3, 3, 4, 4)]
    assert len(list(candidates([NetInput("x", ("N",), False)], None, None))) == 1


@pytest.mark.parametrize(
    ("text", "size"), [("a", 7), ("a*b-1", 13), ("a//b", 3), ("batch-size", 7), ("a-9", 0), ("f(a)", 7)]
)
def test_arithmetic_in_names(text: str, size: int) -> None:
    assert evaluate(text, {"a": 7, "b": 2, text: 7}) == size


def test_a_profile_of_feeds_spans_them() -> None:
    feeds = [{"x": np.zeros((n, 4), np.float32), "k": np.array(n)} for n in (1, 5, 2)]
    found = Profile.of_feeds(feeds)
    assert found.shapes["x"] == ((1, 4), (2, 4), (5, 4))
    assert found.values == {"k": ((1,), (2,), (5,))}
    with pytest.raises(ValueError, match="ranks"):
        Profile.of_feeds([{"x": np.zeros(2)}, {"x": np.zeros((2, 2))}])


# -------------------------------------------------------------------------------------------------- places


def test_a_layers_label_is_its_nodes_or_the_next_ones() -> None:
    def layer(name: str, metadata: str = "") -> Any:
        return SimpleNamespace(name=name, metadata=metadata, type=SimpleNamespace(name="SHUFFLE"))

    all_layers = [layer("helper"), layer("y_7", "[ONNX Layer: node_of_y | call (F)]"), layer("a")]
    network = SimpleNamespace(num_layers=3, get_layer=lambda number: all_layers[number])
    layers = Layers(network)
    assert [layers.label(name) for name in ("helper", "y_7", "a", "none")] == [
        "node_of_y",
        "node_of_y",
        "",
        "",
    ]
    assert layers.named_in("Error (IShuffleLayer y_7: bad)") == "y_7"
    assert layers.named_in("{ForeignNode[helper...y_7]}") == "helper"
    assert layers.named_in("a wrong thing, all in all") == ""
    assert layers.named_in("IShuffleLayer a: bad") == "a"


def test_two_nodes_of_one_name_have_no_place(tmp_path: Path) -> None:
    text = "g (float[2] x) => (float[2] y) { [n] a = Relu(x)  [n] y = Neg(a) }"
    places = Places(str(write(tmp_path / "model.onnx", text)))
    assert not places.of_label("n").known
    assert places.of_label("n", "Neg").text == "y (n)"
    assert places.of_error(0, "n", "Relu").text == "a (n)"
    assert not places.of_error(-1, "", "").known


#: Fixture -> what becomes of lifting it, and of the rung trt-network. An export of each kind of architecture, one that
#: TensorRT reads differently, one that only its builder refuses, and one that its parser refuses.
EXPECTED = {
    "mixed_precision.legacy.op17": ("lifted", "passed", ""),
    "bert_fp16.legacy.op13": ("lifted", "passed", ""),
    "gpt2.dynamo.op18": ("lifted", "passed", ""),
    "vit.dynamo.op20": ("lifted", "passed", ""),
    "misread/decoder": ("lifted", "failed", ""),
    "trt/top_4000": ("lifted", "passed", ""),
    "trt/uint16_cast": ("refused", "skipped", "refused"),
}


@REAL
@pytest.mark.parametrize("name", EXPECTED)
def test_a_fixture_is_read_back(name: str, worker: Worker, tmp_path: Path) -> None:
    path, (status, rung, cause) = FIXTURES / f"{name}.onnx", EXPECTED[name]
    found = lift.attempt(worker, path, tmp_path / "seen.onnx", package="tensorrt-rtx")
    assert found.status == status, found.reason
    trt = TrtOptions(package="tensorrt-rtx")
    result = verify(path, path, exact=True, rungs=["trt-network"], trt=trt, worker=worker).rungs[0]
    assert (result.status, result.cause) == (rung, cause), result.reason
    if status == "lifted":
        assert result.networks[0].layer_count == sum(count for _, count in found.layers) > 0
        assert result.networks[0].feeds > 0


# ------------------------------------------------------------------------------------- what is not set in a layer


class NoLength:
    """A Dims of TensorRT-RTX 1.4 that was not set: its length is -1."""

    def __len__(self) -> int:
        return -1

    def __getitem__(self, place: int) -> int:
        raise IndexError(place)


class Raising:
    """A layer of TensorRT-RTX 1.6 whose property was not set."""

    @property
    def block_shape(self) -> Any:
        raise RuntimeError("Could not get block_shape.")


@pytest.mark.parametrize(
    ("native", "dims"),
    [
        (SimpleNamespace(block_shape=None), None),
        (SimpleNamespace(block_shape=NoLength()), None),
        (Raising(), None),
        (SimpleNamespace(), None),
        (SimpleNamespace(block_shape=()), ()),
        (SimpleNamespace(block_shape=[1, -1]), (1, -1)),
    ],
)
def test_every_way_to_say_that_dimensions_are_not_set(native: Any, dims: Any) -> None:
    assert read_dims(native, "block_shape") == dims


def layer_of(package: str, **properties: Any) -> Any:
    """A layer whose class is of the module ``package``."""
    return type("ILayer", (SimpleNamespace,), {"__module__": package})(**properties)


def test_an_enumeration_that_came_later(monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = ModuleType("old_rt"), ModuleType("new_rt")
    new.AttentionIOForm = object()  # type: ignore[attr-defined]
    for module in (old, new):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    form: dict[str, Any] = {"since": "AttentionIOForm", "before": "PADDED_BHND"}
    packed = SimpleNamespace(name="PACKED_NHD")
    assert read_word(layer_of("old_rt"), "query_form", **form) == "PADDED_BHND"
    assert read_word(layer_of("new_rt", query_form=packed), "query_form", **form) == "PACKED_NHD"
    with pytest.raises(AttributeError):  # a package that has the one and not the other is not known
        read_word(layer_of("new_rt"), "query_form", **form)
    with pytest.raises(AttributeError):
        read_word(layer_of("old_rt"), "norm_op")


@REAL
def test_what_is_not_set_in_this_package(worker: Worker, tmp_path: Path) -> None:
    """A shuffle that reshapes nothing, and a slice without axes whose start an input gives."""
    inputs = {"x": ("FLOAT", (2, 3)), "s": ("INT32", (2,))}
    turned = handmade.made(worker, tmp_path, inputs, "shuffle", ("x",), {"first_transpose": (1, 0)})
    assert turned.lifted, turned.reason
    part = ("x", (0, 0), (1, 2), (1, 1))
    sliced = handmade.made(worker, tmp_path, inputs, "slice", part, {"input 1": "s"})
    assert sliced.lifted, sliced.reason


@REAL
def test_a_causal_mask_as_every_version_sets_it(worker: Worker, tmp_path: Path) -> None:
    """``causal`` is all that TensorRT-RTX 1.4 has: the diagonal begins at the upper left."""
    import numpy as np

    from support.attention_by_hand import attention, causal, close, made, values

    shapes = {"q": (2, 4, 3, 8), "k": (2, 2, 5, 8), "v": (2, 2, 5, 8)}
    inputs = {name: ("FLOAT", shape) for name, shape in shapes.items()}
    given = ("q", "k", "v", "trt.AttentionNormalizationOp.SOFTMAX", True)
    found = made(worker, tmp_path, inputs, "attention", given)
    feed = values(inputs)
    got = handmade.computed(found, feed)
    close(got, attention(*feed.values(), scale=1, allowed=causal(3, 5)))
    assert not np.allclose(got, attention(*feed.values(), scale=1))
