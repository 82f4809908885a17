"""The page of ONNX's own tests on TensorRT, from what benchmarks/conformance recorded."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from making.tables import cell, code

LEVELS = ("as-is", "exact", "numeric")
TITLES = ("as it is", "`apply`", "`apply --numeric-fixes`")
RIGHT = ("right", "near")
_HEAD = """\
# Conformance of TensorRT

ONNX has tests of its own for whoever executes models: {count:,} models of one operator each (or of the functions that
stand for it), with inputs and the outputs that ONNX expects. TensorRT ran them as they are, and after onnxfix:

| | {titles} |
|---|---:|---:|---:|
{summary}

{lost} With numeric fixes, {gained:,} tests pass there that TensorRT alone refuses or computes wrong.

The tests are onnx {onnx}'s own `BackendTest`. They run against `onnxfix.backend`, which is ONNX's standard backend
interface (`prepare`, `run_model`, `run_node`, `supports_device`, `is_compatible`) on TensorRT:

```python
import onnx.backend.test

import onnxfix.backend

as_it_is = onnx.backend.test.BackendTest(onnxfix.backend.AsIs, __name__)
repaired = onnx.backend.test.BackendTest(onnxfix.backend.Repaired, __name__)  # or NumericallyRepaired
```

Every repair is proven by the checks `reference` and `ort-cpu` before TensorRT gets the model. There are two devices:

- **CUDA** builds an engine and executes it. Measured: {engines}.
- **CPU** needs no GPU and executes no engine: TensorRT's parser imports the model, the network that it made is read
  back as ONNX, and ONNX Runtime executes that. It shows what TensorRT understood, and nothing about its kernels.
  Measured: {networks}.

## Results

{results}

{meaning}

## Not right after onnxfix, on engines

Refusals are not listed. [benchmarks/gpu](../benchmarks/gpu/README.md#onnxs-node-models-on-the-full-tensorrt) says
what the full TensorRT makes of the same models.

{wrong}

## By operator

Three numbers a cell: tests that are **right · wrong · without a result** (refused, stopped, not read back). *Repaired*
is after `onnxfix apply --numeric-fixes` for the TensorRT that is installed.

| operator | tests | engine, as it is | engine, repaired | network, as it is | network, repaired |
|---|---:|---:|---:|---:|---:|
{operators}

These are right in all of their tests, as they are and repaired, on both devices: {always}.

## Run it

```sh
python benchmarks/conformance/run.py --device CPU --json networks.json
python benchmarks/conformance/run.py --device CUDA --json engines.json      # on a machine with a GPU
python benchmarks/conformance/record.py engines.json networks.json && python docs/make.py
```

The first takes five minutes on one core, the second a few minutes on 16 cores and one GPU. A test that crashes or hangs
TensorRT is a result, and no other test's; the same command goes on from where it was stopped.
"""
_MEANING = """\
**Right**: the test passes, within its own tolerance. **Near**: only within that of `onnxfix verify` for the element
type. **Wrong**: neither. **Parser**, **builder**: TensorRT refuses the model there. **Stopped**: it crashes, or takes
more than 40 s. **Not read back**: the network has a layer of which NVIDIA documents too little."""
_STATUSES = ("right", "near", "wrong", "refused:parse", "refused:build", "stopped", "unread", "failed")
_NAMES = ("right", "near", "wrong", "parser", "builder", "stopped", "not read back", "failed")


def conformance_page(recorded: Mapping[str, Any]) -> str:
    """The page.

    Raises:
        KeyError: the record is not what benchmarks/conformance/record.py writes.
    """
    engines, networks = recorded["engines"], recorded["networks"]
    tests = engines["tests"]
    lost = [name for name, row in tests.items() if row[1] == "right" and set(row[2:]) != {"right"}]
    gained = sum(row[1] not in RIGHT and row[3] == "right" for row in tests.values())
    words = f"{len(lost)} that pass as they are do not afterwards: {_listed(lost)}."
    return _HEAD.format(
        count=len(tests),
        titles=" | ".join(TITLES),
        summary="\n".join(_summary(engines, networks)),
        lost=words if lost else "On engines, none that passes as it is fails afterwards.",
        gained=gained,
        onnx=engines["setting"]["onnx"],
        engines=_machine(engines["setting"]),
        networks=_machine(networks["setting"]),
        meaning=_MEANING,
        results="\n".join(_results(engines, networks)),
        wrong="\n".join(_wrong(engines)),
        always=_listed(sorted(_always(tests, networks["tests"]))),
        operators="\n".join(_operators(tests, networks["tests"])),
    )


def _machine(setting: Mapping[str, str]) -> str:
    package, _, version = setting["TensorRT"].partition(" ")
    product = {"tensorrt-rtx": "TensorRT-RTX", "tensorrt": "TensorRT"}.get(package, package)
    card = setting["GPU"].partition(",")[0]
    runtime = setting["onnxruntime"].partition(",")[0]
    where = f" on one {card}" if setting["device"] == "CUDA" else f", ONNX Runtime {runtime}"
    return f"{product} {version}{where}"


def _summary(*devices: Mapping[str, Any]) -> Iterator[str]:
    for name, device in zip(("pass on engines", "pass on the network read back"), devices, strict=True):
        rows = device["tests"].values()
        counts = [sum(row[1 + level] == "right" for row in rows) for level in range(len(LEVELS))]
        shares = [f"{count:,} ({100 * count / len(rows):.0f} %)" for count in counts]
        yield f"| {name} | {' | '.join(shares)} |"


def _results(*devices: Mapping[str, Any]) -> Iterator[str]:
    counts = {
        (device["setting"]["device"], title): Counter(row[1 + level] for row in device["tests"].values())
        for device in devices
        for level, title in enumerate(TITLES)
    }
    used = [number for number, status in enumerate(_STATUSES) if any(one[status] for one in counts.values())]
    yield f"| device | model | {' | '.join(_NAMES[number] for number in used)} |"
    yield f"|---|---|{'---:|' * len(used)}"
    for (device, title), one in counts.items():
        yield f"| {device} | {title} | {' | '.join(f'{one[_STATUSES[number]]:,}' for number in used)} |"


def _wrong(device: Mapping[str, Any]) -> Iterator[str]:
    """Tests with another result than right or refused after some repair."""
    yield "| test | as it is | `apply` | `apply --numeric-fixes` | what it says |"
    yield "|---|---|---|---|---|"
    for name, row in device["tests"].items():
        odd = [LEVELS[level] for level in (1, 2) if row[1 + level] in ("wrong", "stopped", "failed")]
        if odd:
            said = _said(device["reasons"][name][odd[-1]])
            words = (
                code(name),
                *(one.replace(":parse", "").replace(":build", "") for one in row[1:]),
                cell(said),
            )
            yield f"| {' | '.join(words)} |"


def _said(reason: str) -> str:
    """numpy's comparison in few words, or TensorRT's own."""
    count = re.search(r"Mismatched elements: (\d+) / (\d+)", reason)
    if "incorrect shape" in reason:
        return "another shape"
    if "nan location mismatch" in reason:
        return "NaN at other places"
    return f"{count[1]} of {count[2]} elements differ" if count else reason


def _by_operator(tests: Mapping[str, Sequence[str]]) -> dict[str, list[Sequence[str]]]:
    found: dict[str, list[Sequence[str]]] = {}
    for row in tests.values():
        found.setdefault(row[0], []).append(row)
    return found


def _cell(rows: Sequence[Sequence[str]], level: int) -> str:
    right = sum(row[1 + level] in RIGHT for row in rows)
    wrong = sum(row[1 + level] == "wrong" for row in rows)
    return f"{right} · {wrong} · {len(rows) - right - wrong}"


def _always(*devices: Mapping[str, Sequence[str]]) -> set[str]:
    """The operators that are right everywhere."""
    rows = [row for device in devices for row in device.values()]
    return {row[0] for row in rows} - {row[0] for row in rows if any(one not in RIGHT for one in row[1:])}


def _operators(engines: Mapping[str, Sequence[str]], networks: Mapping[str, Sequence[str]]) -> Iterator[str]:
    ours, theirs, plain = _by_operator(engines), _by_operator(networks), _always(engines, networks)
    for name in sorted(ours, key=str.lower):
        if name not in plain:
            sides = [_cell(rows, level) for rows in (ours[name], theirs.get(name, [])) for level in (0, 2)]
            yield f"| {name} | {len(ours[name])} | {' | '.join(sides)} |"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names)
