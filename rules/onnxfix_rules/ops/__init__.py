"""OPS: operators that the target does not import as ONNX defines them.

``misimports``: operators that it computes incorrectly; ``expansions``: operators that it lacks, which are decomposed;
``limits``: forms or types that it refuses or restricts, and everything else. Shared modules are here.
"""
