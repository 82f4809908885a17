"""OPS: operators that the target does not import as ONNX defines them.

``limits``: forms or types that it refuses or restricts; ``misimports``: operators that it computes incorrectly;
``expansions``: operators that it lacks, which are decomposed. Shared modules are here.
"""
