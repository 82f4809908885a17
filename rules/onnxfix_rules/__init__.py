"""The rules that come with onnxfix; loaded like any other pack.

What reads a node's attributes raises UnknownAttribute where the surrounding function sets them.
"""
