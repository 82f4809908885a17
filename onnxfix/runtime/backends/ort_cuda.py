"""ONNX Runtime on the GPU, with every optimization off and, by default, without TF32.

ONNX Runtime goes on without its CUDA provider when a library is missing, and runs single nodes on the CPU. Both are
detected here, since otherwise the CPU would be compared with the CPU under the name of the GPU.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.util
import io
import os
import sys
from collections import Counter
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from onnxfix.runtime import nvidia
from onnxfix.runtime.backends import Broken, NoKernel, Unsupported, ort, ort_messages
from onnxfix.runtime.backends.ort import OrtSession, session_options
from onnxfix.runtime.causes import cause_of
from onnxfix.runtime.nvidia import Missing
from onnxfix.runtime.sandbox import one_line

PROVIDER = "CUDAExecutionProvider"
TF32_VARIABLE = "NVIDIA_TF32_OVERRIDE"
_WINDOWS = sys.platform == "win32"
_NO_GPU = "no NVIDIA GPU found"
_NOT_INSTALLED = "onnxruntime-gpu is not installed:"
#: Both packages install the same files, so removing one breaks the other.
_REINSTALL = 'pip uninstall -y onnxruntime onnxruntime-gpu; pip install "onnxfix[gpu]"'
_PARTS = ("cublas", "cuda_nvrtc", "curand", "cufft", "cuda_runtime")


def missing() -> str | None:
    """Why CUDA cannot be used here, as far as that shows without loading it; see also ``unavailable``."""
    if not has_driver():
        return "no NVIDIA driver found"
    package = importlib.util.find_spec("onnxruntime")
    if package is None:
        return f'{_NOT_INSTALLED} pip install "onnxfix[gpu]"'
    # The files decide: unpacked over each other, both distributions claim the folder.
    places = package.submodule_search_locations or ()
    there = any(any((Path(place) / "capi").glob("*onnxruntime_providers_cuda*")) for place in places)
    if not there:  # there may still be a build that needs no such library
        with contextlib.suppress(metadata.PackageNotFoundError):
            there = bool(metadata.version("onnxruntime-gpu"))
    if not there:
        return f'{_NOT_INSTALLED} pip uninstall -y onnxruntime; pip install "onnxfix[gpu]"'
    return None


def has_driver() -> bool:
    """Whether NVIDIA's driver is installed."""
    # Not initialized: that takes a while, and a broken driver hangs there.
    try:
        ctypes.CDLL("nvcuda.dll" if _WINDOWS else "libcuda.so.1")
    except OSError:
        return False
    return True


@functools.cache
def unavailable() -> Missing | None:
    """Why the CUDA provider cannot be used by this process; None when it has just computed something.

    Loads CUDA and forbids TF32 to the process (see ``load``): call it in the sandbox.
    """
    forbid_tf32()
    printed = preload()
    import onnxruntime  # lazy: optional package
    from onnx import parser  # lazy: start-up

    text = '<ir_version: 8, opset_import: ["": 13]> probe (float[1] x) => (float[1] y) { y = Add(x, x) }'
    model = parser.parse_model(text).SerializeToString()
    if PROVIDER not in onnxruntime.get_available_providers():
        what = f"this onnxruntime ({onnxruntime.__version__}) has no CUDA provider"
        return Missing(what, "not-installed", _REINSTALL)
    try:
        session = onnxruntime.InferenceSession(
            model, session_options(), providers=_providers(tf32=False), enable_fallback=0
        )
        fell_back = PROVIDER not in session.get_providers()
        if not fell_back:
            session.run(None, {"x": np.ones(1, np.float32)})
    except Exception as error:  # whatever CUDA and its libraries come up with
        words = one_line(ort_messages.without_host(str(error)))
        return Missing(f"the CUDA provider does not work: {words}", cause_of(words) or "not-loadable")
    return _why_fallen(onnxruntime, printed) if fell_back else None


def _why_fallen(onnxruntime: Any, printed: str) -> Missing:
    """Find why ONNX Runtime goes on without CUDA: it only logs that, and raises no exception."""
    if not nvidia.gpus():
        return Missing(_NO_GPU, "no-gpu")
    name = "onnxruntime_providers_cuda.dll" if _WINDOWS else "libonnxruntime_providers_cuda.so"
    cause = printed or "no reason given"
    try:
        ctypes.CDLL(str(Path(onnxruntime.__file__).parent / "capi" / name))
    except OSError as error:
        cause = one_line(str(error), 200)
    version = getattr(onnxruntime, "cuda_version", "")
    needs = f" (it is built for CUDA {version})" if version else ""
    mend = 'pip install "onnxruntime-gpu[cuda,cudnn]"'
    return Missing(
        f"onnxruntime falls back to the CPU{needs}: {cause}", cause_of(cause) or "not-loadable", mend
    )


@functools.cache
def preload() -> str:
    """Load the libraries of CUDA and cuDNN that pip installed. Returns what went wrong, on one line."""
    import onnxruntime  # lazy: optional package

    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        for folder in _library_folders(
            Path(onnxruntime.__file__).parent.parent, str(getattr(onnxruntime, "cuda_version", ""))
        ):
            onnxruntime.preload_dlls(directory=str(folder))
        printed.truncate(printed.seek(0))  # what one folder lacks, the next or the system may have
        onnxruntime.preload_dlls()
    return one_line(printed.getvalue(), 200)


def _library_folders(home: Path, cuda_version: str) -> list[Path]:
    """Where pip put NVIDIA's libraries, when that is not beside onnxruntime, where ``preload_dlls`` looks."""
    if _WINDOWS or (home / "nvidia").is_dir():
        return []
    major = cuda_version.split(".")[0]
    for entry in sys.path:
        root = Path(entry) / "nvidia"
        # From CUDA 13 on there is one folder for all parts but cuDNN.
        wanted = [root / f"cu{major}" / "lib", *(root / part / "lib" for part in (*_PARTS, "cudnn"))]
        found = [folder for folder in wanted if folder.is_dir()]
        if found:
            return found
    return []


def forbid_tf32() -> None:
    """Forbid TF32 to this process, before it loads CUDA."""
    # `use_tf32` alone does not do it: where cuDNN has no other kernel for a Conv, the provider takes one with TF32.
    os.environ[TF32_VARIABLE] = "0"


def _providers(tf32: bool) -> list[str | tuple[str, dict[str, str]]]:
    options = {
        "use_tf32": str(int(tf32)),
        # The default may time algorithms and take the fastest, which is another one in the next session.
        "cudnn_conv_algo_search": "HEURISTIC",
        # Two sessions live side by side: neither may round its share of the memory up to a power of two.
        "arena_extend_strategy": "kSameAsRequested",
    }
    return [(PROVIDER, options), "CPUExecutionProvider"]


def load(path: str, tf32: bool = False, strict: bool = True, guarded: bool = False) -> CudaSession:
    """Load a model file on the first GPU. Raises ORT's exceptions, Unsupported and Broken.

    Without ``tf32``, ``strict`` also forbids it to the whole process, for good: NVIDIA's libraries read their
    environment once. A process that is to load another model with TF32 must not be strict. With ``guarded``, ``run``
    raises what the CPU provider raises for the same feed: CUDA's kernels compute something of an index out of range.
    """
    if strict and not tf32:
        forbid_tf32()
    preload()
    with _translated():
        return CudaSession(path, tf32, guarded)


class CudaSession(OrtSession):
    """An ``onnxruntime.InferenceSession`` with the CUDA provider. ``places``: provider -> nodes."""

    def __init__(self, path: str, tf32: bool, guarded: bool = False) -> None:
        self._guard: OrtSession | None = None
        if guarded:
            with contextlib.suppress(NoKernel):  # the CPU provider lacks one
                self._guard = ort.load(path, threads=0)  # with all cores
        self._admitted: dict[str, Any] | None = None
        options = session_options()
        options.use_deterministic_compute = True
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        super().__init__(path, options, _providers(tf32))
        if PROVIDER not in self._session.get_providers():
            raise Unsupported("onnxruntime silently fell back to the CPU for this model")
        counts: Counter[str] = Counter()
        for part in self._session.get_provider_graph_assignment_info():
            counts[part.ep_name] += len(part.get_nodes())
        self.places = dict(counts)

    def run(self, feed: dict[str, Any]) -> list[Any]:
        """As ``OrtSession.run``; also raises Broken."""
        if self._guard is not None and feed is not self._admitted:
            self._guard.run(feed)
            self._admitted = feed
        with _translated():
            return super().run(feed)


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    """Tell apart a model's own errors, too little memory of the GPU, and errors that ruin the process."""
    try:
        yield
    except (Unsupported, NoKernel, Broken):
        raise
    except Exception as error:
        text = ort_messages.without_host(str(error))
        failure = ort_messages.gpu_failure(text)
        if failure == "memory":
            raise Unsupported(f"not enough memory on the GPU: {one_line(text, 200)}", "memory") from error
        if failure == "device":
            raise Broken(one_line(text, 200)) from error
        if text != str(error):
            raise RuntimeError(text) from error
        raise
