"""``record`` makes what ``dataclass(frozen=True)`` makes, and not before somebody uses it."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import FrozenInstanceError, field, fields
from typing import Any, ClassVar

import pytest

from onnxfix import record as module
from onnxfix.record import record


@record
class Pickled:
    """A class that pickles find by its name."""

    name: str
    sizes: tuple[int, ...] = ()


@pytest.fixture
def completed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the classes that were completed since."""
    names: list[str] = []
    real = dataclasses.dataclass

    def counted(**options: Any) -> Callable[[type], type]:
        def complete(cls: type) -> type:
            names.append(cls.__name__)
            return real(**options)(cls)  # what its like gets

        return complete

    monkeypatch.setattr(module, "dataclass", counted)
    return names


def pair() -> type[Any]:
    @record
    class Pair:
        """Two numbers."""

        first: int
        second: int = 2
        more: list[int] = field(default_factory=list, compare=False)

        @property
        def total(self) -> int:
            return self.first + self.second

    return Pair


def unpickled(cls: type, **values: Any) -> Any:
    """One that another process made: no ``__init__`` is called."""
    made = object.__new__(cls)
    made.__dict__.update(values)
    return made


def test_nothing_is_compiled_before_the_first_use(completed: list[str]) -> None:
    cls = pair()
    assert cls.__doc__ == "Two numbers."
    assert completed == []
    assert cls(1).total == 3
    assert cls(1, 3).total == 4
    assert completed == ["Pair"]


@pytest.mark.parametrize(
    "use",
    [
        fields,
        inspect.signature,
        dataclasses.is_dataclass,
        lambda cls: cls.__match_args__,
        lambda cls: unpickled(cls, first=1, second=2, more=[]) == unpickled(cls, first=1, second=2, more=[]),
        lambda cls: {unpickled(cls, first=1, second=2, more=[])},
        lambda cls: repr(unpickled(cls, first=1, second=2, more=[])),
        lambda cls: dataclasses.replace(unpickled(cls, first=1, second=2, more=[]), first=3),
        lambda cls: dataclasses.asdict(unpickled(cls, first=1, second=2, more=[])),
    ],
    ids=["fields", "signature", "is_dataclass", "match_args", "eq", "hash", "repr", "replace", "asdict"],
)
def test_each_first_use_completes_the_class(use: Callable[[type], Any], completed: list[str]) -> None:
    cls = pair()
    assert use(cls)
    assert completed == ["Pair"]
    use(cls)
    assert completed == ["Pair"]


def test_it_is_what_a_frozen_data_class_is() -> None:
    @dataclasses.dataclass(frozen=True)
    class Pair:
        first: int
        second: int = 2
        more: list[int] = field(default_factory=list, compare=False)

    cls, plain = pair(), Pair
    assert [(one.name, one.default, one.compare) for one in fields(cls)] == [
        (one.name, one.default, one.compare) for one in fields(plain)
    ]
    assert str(inspect.signature(cls)) == str(inspect.signature(plain))
    assert cls(1) == cls(1, 2, [5]) != cls(2)
    assert cls(1) != plain(1)
    assert len({cls(1), cls(1, 2, [5]), cls(2)}) == 2
    assert repr(cls(1)).endswith("Pair(first=1, second=2, more=[])")
    assert dataclasses.replace(cls(1), second=9).total == 10
    assert dataclasses.asdict(cls(1)) == {"first": 1, "second": 2, "more": []}
    assert copy.copy(cls(1)) == copy.deepcopy(cls(1)) == cls(1)
    assert cls(1).more is not cls(1).more
    match cls(1, 5):
        case cls(first, second):  # type: ignore[misc]
            assert (first, second) == (1, 5)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'first'"):
        cls()


BODIES = {
    "nothing": "    pass",
    "one": "    a: int",
    "defaults": "    a: int\n    b: str = 'b'\n    c: tuple[int, ...] = field(default_factory=tuple)",
    "keywords": "    a: int = 0\n    b: int = field(kw_only=True)\n    c: int = field(default=4, kw_only=True)",
    "made": "    a: int\n    b: tuple = field(default_factory=tuple, init=False)",
    "set": "    a: int\n    c: int = field(default=7, init=False)",
    "left out": "    a: int\n    b: int = field(default=2, compare=False)\n    c: int = field(default=3, repr=False)",
    "not hashed": "    a: int\n    b: dict[str, int] = field(default_factory=dict, hash=False)",
    "class's": "    a: int\n    b: ClassVar[int] = 3",
    "after": "    a: int\n    def __post_init__(self): object.__setattr__(self, 'b', self.a + 1)",
    "passing": "    a: int\n    b: InitVar[int] = 3\n    def __post_init__(self, b): object.__setattr__(self, 'c', b)",
    "itself": "    self: int\n    a: int = 1",
    "its own": "    a: int\n    def __init__(self, a): object.__setattr__(self, 'a', 2 * a)",
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_every_kind_of_field_is_as_in_a_data_class(body: str) -> None:
    plain, ours = (_class(body, made) for made in (dataclasses.dataclass(frozen=True), record))
    assert str(inspect.signature(ours)) == str(inspect.signature(plain))
    assert ours.__match_args__ == plain.__match_args__
    assert [(one.name, one.init, one.default, one.kw_only, one.type) for one in fields(ours)] == [
        (one.name, one.init, one.default, one.kw_only, one.type) for one in fields(plain)
    ]
    given = [one for one in inspect.signature(plain).parameters if one in ("self", "a")]
    tried = [{**dict.fromkeys(given, number), **more} for number in (1, 2) for more in _more(plain)]
    for some in tried:
        one, other = ours(**some), plain(**some)
        assert vars(one) == vars(other)
        assert repr(one) == repr(other)
        assert hash(one) == hash(other)
        assert dataclasses.asdict(one) == dataclasses.asdict(other)
        for more in tried:
            assert (one == ours(**more)) is (other == plain(**more))
    assert ours(**tried[0]).__eq__(plain(**tried[0])) is NotImplemented
    with pytest.raises(TypeError):
        ours(nothing=1)


def _class(body: str, made: Callable[[type], type]) -> Any:
    names: dict[str, Any] = {"made": made, "__name__": __name__, **vars(dataclasses), "ClassVar": ClassVar}
    exec(f"from __future__ import annotations\n@made\nclass Made:\n{body}", names)
    return names["Made"]


def _more(cls: type) -> list[dict[str, Any]]:
    """Values for the other parameters: as few as may be, and all."""
    parameters = [one for one in inspect.signature(cls).parameters.values() if one.name not in ("self", "a")]
    needed = {one.name: 5 for one in parameters if one.default is inspect.Parameter.empty}
    return [needed, {**needed, **{one.name: 6 for one in parameters}}]


def test_it_may_contain_itself() -> None:
    one = pair()(1)
    one.more.append(one)
    assert repr(one).endswith("Pair(first=1, second=2, more=[...])")


@pytest.mark.parametrize("made", [lambda cls: cls(1), lambda cls: unpickled(cls, first=1, second=2)])
def test_it_is_frozen(made: Callable[[type], Any]) -> None:
    with pytest.raises(FrozenInstanceError):
        made(pair()).first = 2
    with pytest.raises(FrozenInstanceError):
        del made(pair()).first


@pytest.mark.parametrize("order", ["base first", "derived first"])
def test_inheritance(order: str, completed: list[str]) -> None:
    @record
    class Base:
        one: int

    @record
    class Derived(Base):
        two: int = 0

    class Plain(Derived):
        def __init__(self) -> None:
            super().__init__(7, 8)

    if order == "base first":
        assert Base(1) == Base(1)
    assert Derived(1, 2) == Derived(one=1, two=2)
    assert sorted(completed) == ["Base", "Derived"]
    assert [one.name for one in fields(Derived)] == ["one", "two"]
    assert (Plain().one, Plain().two) == (7, 8)
    assert Base(1) != Derived(1)


def test_methods_of_the_class_stay(completed: list[str]) -> None:
    @record
    class Own:
        """Compared by its size alone."""

        text: str
        size: int = field(init=False)

        def __post_init__(self) -> None:
            object.__setattr__(self, "size", len(self.text))

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Own) and self.size == other.size

        def __repr__(self) -> str:
            return f"<{self.text}>"

    assert repr(unpickled(Own, text="a", size=1)) == "<a>"
    assert completed == []
    assert Own("ab") == Own("cd") != Own("a")
    assert repr(Own("ab")) == "<ab>"
    assert isinstance(hash(Own("ab")), int)  # dataclass adds one for a class that is frozen


def test_a_class_that_is_no_data_class_says_so_each_time() -> None:
    @record
    class Wrong:
        first: int = 0
        second: int  # type: ignore[misc]

    for _ in range(2):
        with pytest.raises(TypeError, match="non-default argument 'second' follows default argument"):
            Wrong(1, 2)


def test_without_comparison_each_is_itself() -> None:
    @record(eq=False, repr=False)
    class Each:
        name: str

    one = Each("a")
    assert one != Each("a")
    assert {one: 1}[one] == 1
    assert "Each object at" in repr(one)


def test_pickles_of_another_process_are_compared_and_shown() -> None:
    one = Pickled("a", (1, 2))
    assert pickle.loads(pickle.dumps(one)) == one


@pytest.mark.parametrize("use", [lambda cls: cls(1), lambda cls: unpickled(cls, first=1, second=2, more=[])])
def test_threads_that_are_first_at_once_all_get_one(use: Callable[[type], Any]) -> None:
    """Whichever thread completes the class: none finds it without a method meanwhile. (With stubs that were removed
    first, two workers that died at once were `Outcome() takes no arguments`.)"""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(100):
            cls, made, failed, start = pair(), [], [], threading.Barrier(4)

            def make() -> None:
                start.wait()  # noqa: B023  joined below
                try:
                    for _ in range(30):
                        one = use(cls)  # noqa: B023
                        assert one == use(cls) and hash(one) == hash(use(cls))  # noqa: B023, PT018
                        assert repr(one).endswith("Pair(first=1, second=2, more=[])")
                    made.append(one)  # noqa: B023
                except BaseException as error:
                    failed.append(error)  # noqa: B023

            threads = [threading.Thread(target=make) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert failed == []
            assert made == [cls(1)] * 4
    finally:
        sys.setswitchinterval(before)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no forks")
def test_a_fork_beside_a_thread_that_completes_a_class_can_complete_one() -> None:
    taken = threading.Event()

    def hold() -> None:
        with module._COMPLETING:
            taken.set()
            time.sleep(0.3)

    thread = threading.Thread(target=hold)
    thread.start()
    taken.wait()
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(20)
        os._exit(0 if pair()(1).total == 3 else 1)
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
