"""The time limit of one run over one model."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from onnxfix import deadline
from onnxfix.errors import TimeLimit


@contextlib.contextmanager
def limited(seconds: float | None) -> Iterator[None]:
    """What happens in the context ends within so many seconds (None: no limit), in this process and its children.

    Raises:
        TimeLimit: it did not, and there is no result to report.
    """
    with deadline.within(seconds):
        try:
            yield
        except deadline.Expired:
            raise TimeLimit(f"not finished within {seconds:g} s, the limit that --timeout sets") from None
        finally:
            if deadline.over():
                from onnxfix.sandbox import close_shared  # lazy: start-up, seldom used

                close_shared()
