"""Which rule and which option help with a finding, as text."""

from __future__ import annotations

_OPTIONS = {"numeric": "--numeric-fixes", "unsafe": "--unsafe-fixes"}


def required_option(safety: str) -> str:
    """The option that a fix of this safety requires, as the end of a sentence; "" for an exact fix."""
    return f", with {_OPTIONS[safety]}" if safety in _OPTIONS else ""


def fixed_by(code: str, safety: str, *, sure: bool) -> str:
    """That a rule's fix helps, or may help, with a finding of TensorRT's."""
    return f"{code} {'fixes it' if sure else 'may fix it'}{required_option(safety)}"


def explained_by(code: str) -> str:
    """That a rule without a fix explains a finding of TensorRT's."""
    return f"see {code}"
