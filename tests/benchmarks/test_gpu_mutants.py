"""benchmarks/gpu/mutants.py: which mutants count as caught, as missed, and as saying nothing."""

from __future__ import annotations

from typing import Any

from gpu import mutants
from gpu.changed import Change, Recipe


def mutant(
    key: str, *, gpu: str = "passed", cpu: str = "passed", network: str = "passed", **change: Any
) -> mutants.Row:
    kind = "none" if key == "control" else "scale"
    measured = Change(
        **{"runs": 5, "differing": 4, "relative": 0.1, "precision": "float64", "beyond": True, **change}
    )
    statuses = (("trt-gpu", gpu), ("ort-cpu", cpu), ("trt-network", network))
    said = {name: {"status": one, "reason": f"{name} says"} for name, one in statuses if one}
    return mutants.Row(Recipe("m", kind, 0, key, "d"), measured, said)


MUTANTS = [
    mutant("both", gpu="failed", cpu="failed"),
    mutant("alone", gpu="failed"),
    mutant("theirs", cpu="failed"),
    mutant("network", network="failed"),
    mutant("tiny", relative=1e-7, beyond=False),
    mutant("same", equivalent="in float64 nothing", relative=0.0, beyond=False),
    mutant("skipped", gpu="skipped", cpu="failed"),
    mutant("late", gpu="timeout", cpu="failed"),
    mutant("open", gpu="", cpu="failed"),
    mutant("control", equivalent="in float64 nothing", relative=0.0, beyond=False),
]


def test_who_catches_what() -> None:
    text = "\n".join(mutants.page(MUTANTS, {"GPU": "A"}))
    assert "**5 mutants change an output: trt-gpu refutes 2, 2 of the 4 that change one" in text
    assert "Of 9 mutants 1 are excluded, since they change nothing, and of 3 no engine was executed." in text
    assert "| ort-cpu or trt-network alone | 2 | 2 |" in text
    assert "| neither | 1 | 0 |" in text


def test_what_is_missed_is_a_fault_and_so_is_a_refuted_copy() -> None:
    assert len(mutants.faults(MUTANTS)) == 2  # theirs, network
    assert mutants.faults([mutant("control", gpu="failed", equivalent="nothing")])
    assert not mutants.faults([mutant("tiny", beyond=False), mutant("late", gpu="timeout")])
