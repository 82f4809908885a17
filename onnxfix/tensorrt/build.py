"""TensorRT's real parser and builder, for ``tensorrt`` and ``tensorrt_rtx`` alike. No engine is executed here.

``build`` runs foreign code that crashes, hangs and eats memory on real models: ``attempt`` calls it in a sandbox and
turns such an end into a result. The plain TensorRT API is used and not Polygraphy's loaders, because those raise one
exception for all the parser's errors (without codes, node indices and local functions), print the texts of warnings
and builder errors instead of returning them, and report "Invalid Engine" where the builder gave a reason. Polygraphy
executes engines: ``trt.engine``.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from onnxfix.errors import OnnxfixError, UsageError
from onnxfix.files import atomic, loading
from onnxfix.inputs.sizes.search import Search
from onnxfix.place import NOWHERE, Place
from onnxfix.runtime.backends.ort_weights import LARGE, weight_bytes
from onnxfix.runtime.sandbox import Outcome, Worker, note
from onnxfix.tensorrt import files, messages
from onnxfix.tensorrt import profiles as trt_profiles
from onnxfix.tensorrt.log import Message, logger_of, text_of, watch, word_of
from onnxfix.tensorrt.messages import means, without_missing_gpu
from onnxfix.tensorrt.package import DEFAULT_CAPABILITY, load, member, missing
from onnxfix.tensorrt.places import Layers, Places
from onnxfix.tensorrt.records import Ending, Issue, Profile, Severity, Stage, Status, TrtBuild

__all__ = ["attempt", "build", "missing"]

#: Stages that the child reports besides "parse" and "build": checking the options, before the model is parsed and
#: after, and writing the result.
_ASKED, _PLANNING, _SAVING = "asked", "planning", "saving"
#: What the full TensorRT timed in this process: a fixed model has most layers of its original. ``trt.layers`` compares
#: builds and leaves it alone.
_TIMINGS = [b""]
T = TypeVar("T", bound=Issue)
_STAGES: dict[str, Stage] = {"parse": "parse", _PLANNING: "profile", "build": "build", _SAVING: "build"}


def attempt(
    worker: Worker,
    path: Path | str,
    *,
    package: str,
    compute_capability: str = DEFAULT_CAPABILITY,
    timeout: float = 300.0,
    **how: Any,
) -> TrtBuild:
    """``build`` in a sandbox, whose crash, hang or lack of memory is a result too.

    ``timeout`` is in seconds, for parsing and for building each; ``worker`` bounds the memory. Status "error" at no
    stage: TensorRT did not start.

    Raises:
        UsageError: the options do not fit the model or this TensorRT.
        OnnxfixError: a file cannot be written.
    """
    how |= {"path": str(path), "package": package, "compute_capability": compute_capability}
    outcome = worker.call(f"{__name__}:build", timeout=timeout, **how)
    build: TrtBuild = outcome.value if outcome.ok else failed(outcome, package, compute_capability)
    return build


def failed(outcome: Outcome, package: str, compute_capability: str) -> TrtBuild:
    """What a call of ``build`` in a sandbox that did not end well says about the build.

    Raises:
        UsageError, OnnxfixError: as for ``attempt``.
    """
    if outcome.status == "error" and outcome.note in (_ASKED, _PLANNING, _SAVING):
        raise (OnnxfixError if outcome.note == _SAVING else UsageError)(outcome.message)
    stage = _STAGES.get(outcome.note, "")
    doing = {"parse": "the parser", "build": "the builder"}.get(stage, "TensorRT")
    ended = ended_in_memory(outcome)
    status: Status = "error" if ended.status == "ok" else ended.status
    issue = Ending if ended.died or status == "timeout" else Issue
    errors = (issue(stage, "error", describe_end(outcome, doing)),)
    return TrtBuild(status, stage, errors, package=package, compute_capability=compute_capability)


def ended_in_memory(outcome: Outcome) -> Outcome:
    """The outcome, with the status "memory" where the child crashed and what it printed last says that memory ran out:
    TensorRT has more ways to say so than the sandbox knows."""
    starved = outcome.status == "crash" and means("memory", [outcome.printed])
    return replace(outcome, status="memory") if starved else outcome


def describe_end(outcome: Outcome, doing: str) -> str:
    """What became of a call that did not end well, while TensorRT was ``doing`` something, in one line."""
    was = " was" if outcome.killed else ""
    return f"{doing}{was} {outcome.message}" if outcome.status != "error" else outcome.message


def need_mb(path: Path) -> int:
    """MiB that building a model file needs, by rule of thumb; 0 for a file that is not a model.

    Measured on 0.5 to 2.9 GB of weights: 2.1 to 2.4 times the weights for the network and the engine (1.75 where it is
    discarded), and the file where it embeds them.
    """
    try:
        loaded = loading.open_model(path)
    except OnnxfixError:
        return 0
    return 256 + (int(2.5 * weight_bytes(loaded.proto)) + loaded.size >> 20)


def build(
    path: str, *, package: str, compute_capability: str = DEFAULT_CAPABILITY, tf32: bool = False, **how: Any
) -> TrtBuild:
    """Parse the model file (external data lies beside it) and build an engine. Call it in a sandbox.

    Args:
        path: the ONNX file.
        package: ``tensorrt`` or ``tensorrt-rtx``, as chosen by ``trt.package.choose``.
        compute_capability: what tensorrt-rtx builds for, "8.9"; ``tensorrt`` builds for its own GPU.
        tf32: allow TF32 in float32 convolutions and products.
        **how: as for ``Run.run``.

    Raises:
        ImportError: the package does not load.
        MemoryError: memory ran out.
        UsageError: the package does not build for the compute capability, or cannot use the timing cache or the
            profiles.
        OnnxfixError: a file cannot be written.
        RuntimeError: TensorRT refuses to start here, or another logger was there first.
    """
    with messages.memory_errors():
        run = Run(load(package), path, package, compute_capability, tf32)
        run.discards = not how.get("save_engine")
        return run.run(**how)


class Run:
    """One parse and build. ``prepare`` is called with each configuration before it is used, and once more before the
    model is parsed: a UsageError that it raises is the user's mistake. ``parsed`` is called with this where the
    parser took the model."""

    def __init__(
        self,
        trt: Any,
        path: str,
        package: str,
        capability: str = DEFAULT_CAPABILITY,
        tf32: bool = False,
        prepare: Callable[[Any], None] | None = None,
    ) -> None:
        self.trt, self.path, self.tf32, self.prepare = trt, path, tf32, prepare
        self.parsed: Callable[[Run], None] = lambda run: None
        self.engine: Any = None  # the serialized engine of the accepted build
        self.discards = False  # nobody reads the engine
        self.capability = member(trt, capability) if package == "tensorrt-rtx" else None
        self.places = Places(path)
        self.layers: Layers | None = None
        self.log, self.received = logger_of(trt)
        self.received.clear()
        self.builder = trt.Builder(self.log)
        # Strongly typed: the graph's own types are the precision. From TensorRT 11 on there is nothing else.
        flag = trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED
        self.network = self.builder.create_network(1 << int(flag))
        if self.network is None:
            raise RuntimeError(self.received.first_error or "TensorRT made no network")
        self.base = TrtBuild(
            "refused", "parse", package=package, version=str(trt.__version__), compute_capability=capability
        )

    def run(
        self,
        profiles: Sequence[Profile] | None = None,
        save_engine: str = "",
        timing_cache: str = "",
        parse_only: bool = False,
    ) -> TrtBuild:
        """Parse and build; raises what ``build`` raises.

        Args:
            profiles: optimization profiles. Inputs that one leaves out, and all of them when None, get sizes derived
                from the model's symbols; where those do not fit the model, larger ones are tried.
            save_engine: a file to write the engine to, in a folder of the caller's own.
            timing_cache: a file to read timings from, if it exists, and to write them to; tensorrt-rtx ignores it.
            parse_only: build no engine; a model that the parser takes is "accepted".
        """
        self.save_engine = save_engine
        # In TensorRT-RTX timing caches are no-ops since 1.2, and using one makes an ahead-of-time build look for a GPU
        # ("Timing Cache Migration" in its documentation).
        self.cache = Path(timing_cache) if timing_cache and self.capability is None else None
        if self.cache is not None:
            note(_ASKED)
            self._timing_cache(self.builder.create_builder_config())
            self.received.clear()
        if self.prepare is not None:
            note(_ASKED)
            self.prepare(self.builder.create_builder_config())
            self.received.clear()
        parser, parsed, seconds = self._parse()
        self.layers = Layers(self.network)
        done = replace(
            self.base,
            parse_seconds=seconds,
            layers=tuple(sorted(self.layers.kinds.items())),
            warnings=self._issues("parse", "warning"),
        )
        if not parsed:
            errors = self._parser_errors(parser) or self._issues("parse", "error")
            status: Status = "memory" if means("memory", [one.text for one in errors]) else "refused"
            none = (Issue("parse", "error", "TensorRT gave no reason"),)
            return replace(done, status=status, errors=errors or none)
        self.parsed(self)
        if parse_only:
            return replace(done, status="accepted", stage="")
        self.received.at = ("", "")
        note(_PLANNING)
        plans = self._plans(profiles)
        note("build")
        began = time.perf_counter()
        done = self._build(done, plans)
        return replace(done, build_seconds=time.perf_counter() - began)

    def _parse(self) -> tuple[Any, bool, float]:
        """Parse the model file into the network; returns the parser, whether it took the model, and the seconds."""
        note("parse")
        began, lines = time.perf_counter(), self.received.lines
        parser = self.trt.OnnxParser(self.network, self.log)
        parsed = parser.parse_from_file(self.path)
        if self.received.lines == lines:
            raise RuntimeError("TensorRT reports to another logger of this process: use a fresh sandbox")
        return parser, bool(parsed), time.perf_counter() - began

    def _build(self, done: TrtBuild, plans: Iterable[tuple[Profile, ...]]) -> TrtBuild:
        """Try profiles until one is accepted or refused for another reason; report the first otherwise."""
        first: TrtBuild | None = None
        tried = 0
        for chosen in plans:
            self.received.clear()
            tried += 1
            found = self._once(replace(done, profiles=chosen))
            first = first or found
            if found.accepted:
                return replace(found, attempts=tried)
            if not any(p.derived for p in chosen) or not means("profile", [one.text for one in found.errors]):
                break
        assert first is not None
        return replace(first, attempts=tried)

    def _plans(self, profiles: Sequence[Profile] | None) -> Iterable[tuple[Profile, ...]]:
        inputs = trt_profiles.inputs_of(self.network)
        graph = search = None
        if any(one.is_shape_tensor for one in inputs) and self.places.proto is not None:
            graph = self.places.proto.graph
        if any(one.dynamic for one in inputs) and self.places.proto is not None:
            search = Search(trt_profiles.with_names(self.places.proto), Path(self.path).parent)
        series = [trt_profiles.candidates(inputs, given, graph, search) for given in profiles or (None,)]
        found = zip(*series, strict=False)
        first = next(found, ())  # stray values show now; further profiles are rarely needed, and dear to find
        return itertools.chain((first,), found)

    def _once(self, done: TrtBuild) -> TrtBuild:
        config = self.builder.create_builder_config()
        if self.capability is not None:
            config.num_compute_capabilities = 1
            config.set_compute_capability(self.capability, 0)
        if not self.tf32:
            config.clear_flag(self.trt.BuilderFlag.TF32)
        self.monitor = watch(self.trt, config)  # it must outlive the build
        cache = self._timing_cache(config)
        if self.prepare is not None:
            self.prepare(config)
        for profile in done.profiles:
            problem = trt_profiles.add(self.builder, config, profile)
            if problem:
                errors = self._issues("profile", "error") or (Issue("profile", "error", problem),)
                return replace(done, stage="profile", errors=errors)
        # The serialized engine: deserializing it would need a GPU.
        engine, size = self._serialize(config)
        warnings = done.warnings + self._issues("build", "warning")
        if not size:
            errors = self._issues("build", "error")
            # What led to it is logged as a warning at times.
            memory = means("memory", [one.text for one in (*errors, *warnings)])
            return replace(
                done,
                status="memory" if memory else "refused",
                stage="build",
                warnings=warnings,
                errors=errors or (Issue("build", "error", "TensorRT built no engine and gave no reason"),),
            )
        self.engine = engine
        note(_SAVING)
        if self.save_engine:
            atomic.hand_over(Path(self.save_engine), engine)
        if self.cache is not None:
            atomic.put(self.cache, cache.serialize())
        elif cache is not None:
            _TIMINGS[0] = bytes(cache.serialize())
        return replace(done, status="accepted", stage="", warnings=warnings, engine_bytes=size)

    def _serialize(self, config: Any) -> tuple[Any, int]:
        """The serialized engine (None if it is discarded as it is written, which saves the memory for another copy of
        large weights), and its bytes: 0 for none."""
        to_stream = getattr(self.builder, "build_serialized_network_to_stream", None)
        proto = self.places.proto
        if not self.discards or to_stream is None or proto is None or weight_bytes(proto) < LARGE:
            engine = self.builder.build_serialized_network(self.network, config)
            return engine, 0 if engine is None else int(engine.nbytes)

        writer: type[Any] = self.trt.IStreamWriter

        class Discarded(writer):  # type: ignore[misc]
            size = 0

            def write(self, data: bytes) -> int:
                self.size += len(data)
                return len(data)

        written = Discarded()
        built = to_stream(self.network, config, written)
        return None, written.size if built else 0

    def _timing_cache(self, config: Any) -> Any:
        """The user's timing cache, else this process's; None where neither is used."""
        if self.cache is not None:
            return files.timing_cache(
                config, self.cache, lambda: [one.text for one in self.received.messages]
            )
        if self.capability is not None or self.prepare is not None:
            return None
        cache = config.create_timing_cache(_TIMINGS[0])
        return cache if config.set_timing_cache(cache, False) else None

    # -- messages

    def _parser_errors(self, parser: Any) -> tuple[Issue, ...]:
        """All of the parser's errors. It stops at the first node that it refuses, so that is mostly one."""
        found: list[Issue] = []
        for number in range(parser.num_errors):
            error = parser.get_error(number)
            found.append(replace(issue_of(error), place=self._place(error, text_of(error.desc))))
        counts = Counter(found)  # a check of each of two dilations reports the same twice
        return tuple(replace(one, count=count) for one, count in counts.items())

    def _place(self, error: Any, text: str) -> Place:
        """Where a parser error is."""
        function, operator = str(error.func() or ""), str(error.node_operator() or "")
        if function == "importInput":  # the parser gives the input's name for its own file's
            return Place(output=str(error.file()))
        label, at = self.received.at
        if not operator and function == f"import{at}":  # it forgot the node that it was at
            return self.places.of_label(label, at)
        if at != operator:  # not the node that was being parsed: a check of the whole model
            label = str(error.node_name() or "")
        place = self.places.of_error(int(error.node()), label, operator)
        return place if place.known else Place(output=messages.tensor_in(text), op_type=operator)

    def _issues(self, stage: Stage, severity: Severity) -> tuple[Issue, ...]:
        """What the logger heard, each text once."""
        logged = [
            one for one in self.received.messages if (one.severity == "WARNING") == (severity == "warning")
        ]
        telling = [one for one in logged if without_missing_gpu(one.text)] or logged
        found = Counter(self._issue(one, stage, severity) for one in telling)
        return tuple(replace(one, count=count) for one, count in found.items())

    def _issue(self, one: Message, stage: Stage, severity: Severity) -> Issue:
        source, text = messages.split_source(one.text)
        layer = self.layers.named_in(text) if stage != "parse" and self.layers is not None else ""
        label, operator = one.at
        if layer and self.layers is not None:
            label, operator = self.layers.label(layer), ""
        place = self.places.of_label(label, operator) if label else Place(output=messages.tensor_in(text))
        if bound := messages.binding_in(text):
            place, layer = Place(output=bound), ""
        elif not place.known:
            place = self.places.of_operation(text)
        return Issue(stage, severity, without_missing_gpu(text) or text, place, source=source, layer=layer)


def issue_of(error: Any, kind: type[T] = Issue) -> T:  # type: ignore[assignment]
    """One of the parser's errors, without the place."""
    text, source = text_of(error.desc), f"{error.file()}:{error.line()} {error.func()}"
    stack, code = tuple(error.local_function_stack() or ()), word_of(error.code())
    return kind("parse", "error", without_missing_gpu(text) or text, NOWHERE, code, source, stack)
