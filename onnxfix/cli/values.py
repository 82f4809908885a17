"""What the values of options become."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from onnxfix.cli.options import FailOn, Package
from onnxfix.errors import UsageError

if TYPE_CHECKING:
    from onnxfix.rule import Severity
    from onnxfix.trt.records import TrtOptions

Texts = Sequence[str] | None
"""The values of an option that may be repeated; None where it was not given."""

Profile = tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]
"""The minimum, optimum and maximum shapes of the optimization profile, as texts."""
NO_PROFILE: Profile = ((), (), ())


def listed(values: Texts) -> tuple[str, ...] | None:
    """``--select A,B --select C`` as three names; None where the option was not given."""
    if not values:
        return None
    return tuple(part.strip() for value in values for part in value.split(",") if part.strip())


def profile_of(minimum: Texts, optimum: Texts, maximum: Texts) -> Profile:
    """The shapes of an optimization profile."""
    return tuple(minimum or ()), tuple(optimum or ()), tuple(maximum or ())


def pairs_of(option: str, texts: Iterable[str]) -> dict[str, str]:
    """``NAME=VALUE`` texts, each split at its first equals sign.

    Raises:
        UsageError: one has no name or no value, or a name has two values.
    """
    found: dict[str, str] = {}
    for text in texts:
        name, _, value = text.partition("=")
        if not name or not value:
            what = "SIZE" if option == "--fix-dim" else "VALUE"
            raise UsageError(f"{option} {text}: write {option} NAME={what}")
        if found.setdefault(name, value) != value:
            raise UsageError(f"{option}: {name} is given two values: {found[name]} and {value}")
    return found


def sizes_of(texts: Iterable[str]) -> dict[str, int]:
    """``NAME=SIZE`` texts.

    Raises:
        UsageError: as for ``pairs_of``, or a size is not a whole number.
    """
    found = {}
    for name, text in pairs_of("--fix-dim", texts).items():
        try:
            found[name] = int(text)
        except ValueError:
            raise UsageError(f"--fix-dim {name}={text}: {text!r} is not a whole number") from None
    return found


def trt_options(
    package: Package,
    capability: str | None = None,
    profile: Profile = NO_PROFILE,
    *,
    tf32: bool = False,
    save_engine: Path | None = None,
    timing_cache: Path | None = None,
    plugins: Sequence[Path] | None = None,
    benchmark: bool = False,
    batch_sweep: int = 0,
    builds: int = 1,
    save_tactics: Path | None = None,
    load_tactics: Path | None = None,
) -> TrtOptions:
    """The options about TensorRT as one record."""
    from onnxfix.trt.records import TrtOptions  # lazy: start-up

    minimum, optimum, maximum = profile
    return TrtOptions(
        package=package.value,
        compute_capability=capability,
        min_shapes=minimum,
        opt_shapes=optimum,
        max_shapes=maximum,
        tf32=tf32,
        save_engine=_named(save_engine),
        timing_cache=_named(timing_cache),
        plugins=tuple(map(str, plugins or ())),
        benchmark=benchmark,
        batch_sweep=batch_sweep,
        builds=builds,
        save_tactics=_named(save_tactics),
        load_tactics=_named(load_tactics),
    )


def _named(path: Path | None) -> str:
    return str(path) if path is not None else ""


def severity_of(fail_on: FailOn) -> Severity | None:
    """The severity that ``--fail-on`` names; None for none."""
    from onnxfix.rule import Severity  # lazy: start-up

    return None if fail_on is FailOn.never else Severity[fail_on.name.upper()]
