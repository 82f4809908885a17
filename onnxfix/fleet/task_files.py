"""The local files that a task reads and writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import TypeVar

from onnxfix.record import record

Record = TypeVar("Record")


@record
class TaskFiles:
    """The files of a task with local paths: its own. ``fleet.remote.staging`` has a subclass for URLs.

    ``target`` is "" where nothing will be written. ``fetched`` maps each URL that was copied here to its fingerprint
    before the copy.
    """

    source: str
    target: str
    fetched: Mapping[str, str] = field(default_factory=dict)

    def as_named(self, record: Record) -> Record:
        """A string, or a record of strings, with the paths that the user named instead of those of local copies."""
        return record

    def publish(self) -> None:
        """Move the result to its final place."""
