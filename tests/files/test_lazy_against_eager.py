"""Weights that stay in their file: the same bytes and the same findings as where all of the file is parsed at once.

``support.eager`` is the eager path. Every model that is at hand takes the lazy path with every weight left in the file,
and again as onnxfix itself does it, from a kilobyte on.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from functools import cache
from itertools import islice
from pathlib import Path

import pytest
from corpus import Case, folder_cases, node_cases, onnx_data_folder

from onnxfix.errors import ModelError
from onnxfix.files import lazy, loading, saving
from onnxfix.files.lazy import Pending
from onnxfix.rewrite.registry import registry
from onnxfix.rule import Safety
from onnxfix.testing import model_of
from support import eager
from support.paths import ROOT
from support.peer_models import PEERS

SHARED = ROOT.parent / "shared" / "models"


pytestmark = pytest.mark.corpus

ENDS = (Safety.EXACT, Safety.UNSAFE)


def peer_cases() -> Iterator[Case]:
    for peer in PEERS:
        yield Case(peer.id, peer.model().SerializeToString())


def rule_cases(family: str) -> Iterator[Case]:
    for rule in registry().rules:
        if not rule.code.startswith(family):
            continue
        for index, example in enumerate(rule.examples):
            yield Case(f"{rule.code} {index}", model_of(example).SerializeToString())
            if example.after is not None:
                yield Case(f"{rule.code} {index} after", model_of(example, example.after).SerializeToString())


def held(case: Case, folder: Path, safeties: tuple[Safety, ...]) -> bool:
    """Hold the lazy path to the eager one; returns whether it left any weight in the file."""
    path, out = folder / "m.onnx", folder / "out.onnx"
    path.write_bytes(case.data)
    base = case.path.parent if case.path else None
    wanted = eager.written(eager.parsed(case.data))

    @cache
    def eagerly(safety: Safety) -> eager.Done | str:
        return outcome(lambda: eager.fixed_eagerly(case.data, base, safety))

    kept: list[int] = []
    for large in (1, lazy.LARGE, lazy.TOKEN_SIZE):
        loaded = eager.opened(path, large) if large == 1 else loading.open_model(path, large=large)
        kept.append(eager.stand_ins(loaded))
        assert kept[-1] <= kept[0]
        assert eager.saved(loaded.proto, out) == wanted == saving.serialize(loaded.proto), case.name
        assert eager.written(Pending(loaded.proto, loaded).model()) == wanted, case.name
        loaded.copy_to(out)
        assert out.read_bytes() == case.data, case.name
        if not kept[-1] or kept[-1] in kept[:-1]:
            continue  # nothing was left out, or the same as before
        for safety in safeties:
            lazily = outcome(lambda: eager.fixed_lazily(loaded, base, safety, out))  # noqa: B023
            assert lazily == eagerly(safety), f"{case.name}, {safety.name}"
    return kept[0] > 0


def outcome(fix: Callable[[], eager.Done]) -> eager.Done | str:
    try:
        return fix()
    except ModelError as error:
        return str(error)


def all_held(cases: Iterator[Case], folder: Path, safeties: tuple[Safety, ...]) -> int:
    """Returns how many of the models left weights in their file."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return sum(held(case, folder, safeties) for case in cases)


@pytest.mark.xdist_group("nodes")
def test_onnx_node_models(tmp_path: Path, stride: int) -> None:
    cases = islice(node_cases(), 0, None, stride)
    assert all_held(cases, tmp_path, (Safety.UNSAFE,)) > 200 // stride


def test_onnx_data(tmp_path: Path, short_stride: int) -> None:
    cases = islice(folder_cases([onnx_data_folder()]), 0, None, short_stride)
    assert all_held(cases, tmp_path, ENDS) > 50 // short_stride


@pytest.mark.parametrize("safety", [pytest.param(Safety.EXACT, marks=pytest.mark.long), Safety.UNSAFE])
def test_fixtures(tmp_path: Path, safety: Safety, short_stride: int) -> None:
    cases = islice(folder_cases([ROOT / "fixtures"]), 0, None, short_stride)
    assert all_held(cases, tmp_path, (safety,)) > 10 // short_stride


def test_exports(tmp_path: Path, short_stride: int) -> None:
    if not SHARED.is_dir():
        pytest.skip("the larger set of exports is not beside this checkout; fixtures/ stands for it")
    cases = islice(folder_cases([SHARED]), 0, None, short_stride)
    assert all_held(cases, tmp_path, (Safety.NUMERIC,)) > 10 // short_stride


def test_peer_models(tmp_path: Path) -> None:
    assert all_held(peer_cases(), tmp_path, tuple(Safety)) > 80


@pytest.mark.corpus(every=1)
@pytest.mark.parametrize("family", sorted({rule.code[:3] for rule in registry().rules if rule.examples}))
def test_examples_of_rules(tmp_path: Path, family: str, short_stride: int) -> None:
    cases = islice(rule_cases(family), 0, None, short_stride**2)
    assert all_held(cases, tmp_path, (Safety.UNSAFE,)) > 3 // short_stride
