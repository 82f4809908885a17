"""The few functions of the CUDA runtime that are needed to time an engine, through ctypes.

Streams and memory are those of the device's primary context, which TensorRT and Polygraphy use too.
"""

from __future__ import annotations

import contextlib
import ctypes
from typing import Any

from onnxfix.errors import OnnxfixError

#: cudaStreamNonBlocking: waits for nothing on the legacy default stream, so that it can be captured.
_NON_BLOCKING = 1
#: cudaStreamCaptureModeThreadLocal: what other threads do, such as compile kernels, does not matter.
_THREAD_LOCAL = 1
_TO_DEVICE, _TO_HOST = 1, 2  # cudaMemcpyKind


class CudaError(OnnxfixError):
    """A call of the CUDA runtime that failed; ``str`` names it, with CUDA's reason."""


class Cuda:
    """The CUDA runtime, as loaded by ``ctypes.CDLL``. Handles and addresses are numbers. ``close`` releases what they
    stand for, the last first."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self._held: list[tuple[str, int]] = []  # (function that releases, handle)

    def close(self) -> None:
        """Release everything. Errors are ignored: a device that failed reports it again at each call."""
        while self._held:
            function, handle = self._held.pop()
            with contextlib.suppress(CudaError):
                self._call(function, ctypes.c_void_p(handle))

    def _call(self, function: str, *arguments: Any) -> None:
        """Call a function.

        Raises:
            CudaError: it failed, or there is none of that name.
        """
        try:
            code = getattr(self._library, function)(*arguments)
        except AttributeError as error:
            raise CudaError(f"this CUDA runtime has no {function}") from error
        if code:
            self._library.cudaGetLastError()  # else the next call reports it once more
            describe = self._library.cudaGetErrorString
            describe.restype = ctypes.c_char_p
            words = describe(code)
            reason = words.decode("utf-8", "replace") if isinstance(words, bytes) else f"error {code}"
            raise CudaError(f"{function}: {reason}")

    def _make(self, function: str, release: str, *arguments: Any) -> int:
        """Call a function that hands back a handle by its first argument, which ``release`` gives up again."""
        handle = ctypes.c_void_p()
        self._call(function, ctypes.byref(handle), *arguments)
        self._held.append((release, handle.value or 0))
        return handle.value or 0

    # -- memory

    def allocate(self, size: int) -> int:
        """Memory on the device: at least a byte, since no tensor may be at address 0."""
        return self._make("cudaMalloc", "cudaFree", ctypes.c_size_t(max(1, size)))

    def upload(self, address: int, host: int, size: int, stream: int) -> None:
        """Copy ``size`` bytes to the device, on the stream."""
        self._copy(address, host, size, _TO_DEVICE, stream)

    def download(self, host: int, address: int, size: int, stream: int) -> None:
        """Copy ``size`` bytes from the device, on the stream: they are there after ``synchronize``."""
        self._copy(host, address, size, _TO_HOST, stream)

    def _copy(self, to: int, source: int, size: int, kind: int, stream: int) -> None:
        places = ctypes.c_void_p(to), ctypes.c_void_p(source)
        how = ctypes.c_size_t(size), ctypes.c_int(kind), ctypes.c_void_p(stream)
        self._call("cudaMemcpyAsync", *places, *how)

    def fill(self, address: int, byte: int, size: int, stream: int) -> None:
        """Set ``size`` bytes on the device, on the stream."""
        where, what = ctypes.c_void_p(address), (ctypes.c_int(byte), ctypes.c_size_t(size))
        self._call("cudaMemsetAsync", where, *what, ctypes.c_void_p(stream))

    # -- streams and events

    def stream(self) -> int:
        """A new stream."""
        return self._make("cudaStreamCreateWithFlags", "cudaStreamDestroy", ctypes.c_uint(_NON_BLOCKING))

    def synchronize(self, stream: int) -> None:
        """Wait until all is done that was put on the stream."""
        self._call("cudaStreamSynchronize", ctypes.c_void_p(stream))

    def event(self) -> int:
        """A new event."""
        return self._make("cudaEventCreate", "cudaEventDestroy")

    def record(self, event: int, stream: int) -> None:
        """Put the event on the stream."""
        self._call("cudaEventRecord", ctypes.c_void_p(event), ctypes.c_void_p(stream))

    def elapsed(self, first: int, last: int) -> float:
        """Milliseconds between two events that have happened."""
        found = ctypes.c_float()
        self._call("cudaEventElapsedTime", ctypes.byref(found), ctypes.c_void_p(first), ctypes.c_void_p(last))
        return found.value

    # -- graphs

    def begin_capture(self, stream: int) -> None:
        """From here on, work put on the stream is recorded instead of executed."""
        self._call("cudaStreamBeginCapture", ctypes.c_void_p(stream), ctypes.c_int(_THREAD_LOCAL))

    def end_capture(self, stream: int) -> int:
        """The graph of what was put on the stream. Also ends a capture that failed, and raises then."""
        graph = ctypes.c_void_p()
        self._call("cudaStreamEndCapture", ctypes.c_void_p(stream), ctypes.byref(graph))
        self._held.append(("cudaGraphDestroy", graph.value or 0))
        return graph.value or 0

    def nodes(self, graph: int) -> int:
        """How many nodes a graph has."""
        count = ctypes.c_size_t()
        self._call("cudaGraphGetNodes", ctypes.c_void_p(graph), None, ctypes.byref(count))
        return count.value

    def instantiate(self, graph: int) -> int:
        """An executable graph."""
        return self._make(
            "cudaGraphInstantiateWithFlags",
            "cudaGraphExecDestroy",
            ctypes.c_void_p(graph),
            ctypes.c_ulonglong(0),
        )

    def launch(self, executable: int, stream: int) -> None:
        """Put an executable graph on the stream."""
        self._call("cudaGraphLaunch", ctypes.c_void_p(executable), ctypes.c_void_p(stream))
