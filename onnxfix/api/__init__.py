"""The commands as functions: their keywords become one record for the pipeline.

The command line makes the same record from its options, see :mod:`onnxfix.cli`.
"""
