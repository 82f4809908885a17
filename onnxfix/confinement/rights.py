"""Giving up what a policy takes."""

from __future__ import annotations

import os
from typing import Any

from onnxfix.confinement import Policy, landlock, privileges, seccomp


class Confinement:
    """What a policy takes from a process, prepared: most of the work may be done before a fork.

    ``confine`` gives it up, for good, in a process that has one thread, before foreign code runs. ``close`` ends the
    preparation, where nothing is given up.
    """

    def __init__(self, wanted: Policy | None) -> None:
        self._wanted = wanted
        self._rules, self._version = -1, 0
        self._libc: Any = None
        if wanted is not None:
            import ctypes  # lazy: start-up

            self._libc = ctypes.CDLL(None, use_errno=True)
            files = (wanted.read, wanted.write) if wanted.files else None
            self._rules, self._version = landlock.ruleset(self._libc, files)

    def confine(self) -> None:
        if self._wanted is None:
            return
        privileges.restrict(self._libc)
        held = self._rules >= 0 and landlock.restrict(self._libc, self._rules)
        self.close()
        signals = held and self._version >= landlock.SIGNALS_SINCE
        seccomp.restrict(self._libc, local_sockets=self._wanted.local_sockets, signals=signals)

    def close(self) -> None:
        if self._rules >= 0:
            os.close(self._rules)
            self._rules = -1


def confine(wanted: Policy | None) -> None:
    """Give up what a policy takes, for good. Call it in a new process that has one thread, before foreign code runs."""
    Confinement(wanted).confine()
