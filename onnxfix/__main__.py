"""``python -m onnxfix``, and the ``onnxfix`` command."""

from __future__ import annotations

import sys

from onnxfix.runtime.interrupts import INTERRUPTED, finish


def main() -> None:
    """Entry point. An interrupt before the commands are loaded ends the process as one of theirs does: with one line
    and 130."""
    try:
        from onnxfix.cli import app  # lazy: so that this can be interrupted

        command = app.command()
    except KeyboardInterrupt:
        finish()
        sys.stderr.write("onnxfix: interrupted\n")
        sys.exit(INTERRUPTED)
    app.main(command)


if __name__ == "__main__":
    main()
