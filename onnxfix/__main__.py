"""``python -m onnxfix``: the same program as the ``onnxfix`` command."""

from __future__ import annotations

from onnxfix.cli.app import main

if __name__ == "__main__":
    main()
