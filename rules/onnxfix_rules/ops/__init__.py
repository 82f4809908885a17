"""OPS: operators that the target does not import as ONNX defines them.

``limits``: it refuses or restricts a form or type; ``misimports``: it computes something else; ``expansions``: it lacks
the operator, which is decomposed. Modules that several of them use are here.
"""
