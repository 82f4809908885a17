"""Results that ended as they should."""

from __future__ import annotations

from typing import Any


def ended(status: str, result: Any) -> Any:
    """The result, which has this status; where it has another one, its reason is told."""
    assert result.status == status, (result.status, result.reason)
    return result
