"""The first stage of a run, before a model is read: its options with the rules and the target that they name."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace

from onnxfix.options import RunOptions
from onnxfix.registry import registry
from onnxfix.rule import Rule, Safety
from onnxfix.targets import Target, choose_target

Progress = Callable[[str], None]
"""Called with a short text before each step of a run."""


@dataclass(frozen=True)
class Plan:
    """A run's options, the ``rules`` that it selects among all that are ``known``, its target, and its progress.
    ``installed`` is the version of the installed TensorRT that the target was chosen for, "" for any other target."""

    options: RunOptions
    rules: tuple[Rule, ...]
    known: tuple[Rule, ...]
    target: Target
    installed: str
    say: Progress

    @property
    def safety(self) -> Safety:
        """The least safe kind of fix that may be applied."""
        fixes = self.options.fixes
        return Safety.UNSAFE if fixes.unsafe else Safety.NUMERIC if fixes.numeric else Safety.EXACT


def planned(options: RunOptions, progress: Progress | None) -> Plan:
    """The plan of a run.

    Raises:
        UsageError: a selector or the target does not exist, or TensorRT does not load the user's plugins.
    """
    known = registry()
    chosen = known.choose(options.rules.select, options.rules.ignore)
    target, installed = choose_target(options.rules.target)
    if options.trt is not None and options.trt.plugins:
        from onnxfix.verification.asking import require_tensorrt  # lazy: start-up, seldom used

        with closing(require_tensorrt(options.trt)) as builder:
            target = replace(target, plugins=target.plugins.union(builder.choice.served))
    return Plan(options, tuple(chosen), known.rules, target, installed, progress or (lambda text: None))
