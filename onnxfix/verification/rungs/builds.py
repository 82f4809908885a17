"""Several engines of one model: what differs between them, and which is best.

TensorRT times tactics when it builds, so that two builds of one model may choose others, and their outputs and latency
differ. Each engine is built by a builder of its own, without a timing cache. With a GPU the engines run on the same
inputs and are compared with the ONNX model; without one, only the layers and the files can be compared.

Engines are built and executed in processes with the user's own environment, since the one that is kept is for the user
to load: ``TF32_OFF`` is not set, and an engine counts as wrong only beyond what TF32 explains.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from onnxfix.causes import Cause
from onnxfix.errors import UsageError
from onnxfix.place import Place
from onnxfix.sandbox import Worker
from onnxfix.trt.layer_records import LayerTable
from onnxfix.trt.layers import differing
from onnxfix.trt.messages import means
from onnxfix.trt.records import Profile
from onnxfix.trt.timing import Timing
from onnxfix.verification.feeds.profiles import bound_profile, given_profiles
from onnxfix.verification.request import Request
from onnxfix.verification.rungs import benchmark, probe
from onnxfix.verification.rungs.builder import Builder
from onnxfix.verification.rungs.gpu_result import executes
from onnxfix.verification.rungs.judge import Terms, judge
from onnxfix.verification.rungs.oracle import Oracle
from onnxfix.verification.rungs.sessions import Sessions
from onnxfix.verification.rungs.trials import Finder, Trial, outside, profiles
from onnxfix.verification.verdict import FeedResult
