"""Hashes of element values that can be added and multiplied.

An element is a member of a product of six prime fields, packed into two words of 64 bits: three fields of 21 bits in
each. A dyadic number (an integer, a finite float) is itself: ``m * 2**e`` modulo each prime. A value that is not
known is a random member, an atom. So sums and products of integers are polynomials in atoms, and two different
polynomials of degree d agree on random atoms with a probability below ``(d / 2**19) ** 6`` (Schwartz and Zippel).
What is not a sum or a product of integers is a random function of its operands' hashes, ``mix``.

Words have the shape ``(2, *shape)`` and the type uint64 everywhere in this package.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

import numpy as np

Words = np.ndarray[Any, np.dtype[np.uint64]]
PRIMES = (1048573, 1048571, 1048559, 1048549, 1048517, 1048507)
"""The six largest primes below 2**20: fields of 21 bits hold the sum of two residues."""
_BITS, _ROOM = 21, 20
_FIELD = np.uint64((1 << _BITS) - 1)


def _packed(numbers: Iterable[int]) -> int:
    return sum(number << (_BITS * place) for place, number in enumerate(numbers))


def _column(first: int, second: int) -> Words:
    return np.array([first, second], np.uint64)


_PRIMES = _column(_packed(PRIMES[:3]), _packed(PRIMES[3:]))
_GAPS = _column(
    *(_packed((1 << _ROOM) - prime for prime in half) for half in (PRIMES[:3], PRIMES[3:]))
)  # adding them carries into the top bit of a field that holds its prime or more
_ONES = np.uint64(_packed([1, 1, 1]))
_ATOMS = np.uint64(_packed([(1 << 19) - 1] * 3))  # any 19 bits are below each prime


def _like(column: Words, words: Words) -> Words:
    return column.reshape(2, *[1] * (words.ndim - 1))


def _reduce(words: Words) -> Words:
    """Words whose fields are below their primes, of words whose fields are below twice their primes."""
    shifted: Words = words + _like(_GAPS, words)
    over = (shifted >> np.uint64(_ROOM)) & _ONES
    carry = over << np.uint64(_ROOM)
    mask = carry - over
    reduced: Words = (shifted & mask) | (words & ~(mask | carry))
    return reduced


def add(first: Words, second: Words) -> Words:
    """The sums, element by element."""
    return _reduce(first + second)


def subtract(first: Words, second: Words) -> Words:
    """The differences, element by element."""
    return _reduce(first + (_like(_PRIMES, second) - second))


def unpack(words: Words) -> Iterator[Words]:
    """The residues modulo each of ``PRIMES``: six arrays of the elements' shape, one after another."""
    return ((words[place // 3] >> np.uint64(_BITS * (place % 3))) & _FIELD for place in range(6))


def pack(residues: Iterable[Words]) -> Words:
    """Words of residues modulo each of ``PRIMES``."""
    halves: list[Words] = []
    for place, residue in enumerate(residues):
        if place % 3:
            halves[-1] = halves[-1] | residue << np.uint64(_BITS * (place % 3))
        else:
            halves.append(residue)
    return np.stack(halves)


def multiply(first: Words, second: Words) -> Words:
    """The products, element by element."""
    pairs = zip(unpack(first), unpack(second), PRIMES, strict=True)
    return pack(one * other % np.uint64(prime) for one, other, prime in pairs)


def total(words: Words, axes: tuple[int, ...]) -> Words:
    """The sums over some axes of the elements, which are kept with size 1."""
    residues = zip(unpack(words), PRIMES, strict=True)
    return pack(one.sum(axes, np.uint64, keepdims=True) % np.uint64(prime) for one, prime in residues)


_DEPTH = 8192  # so many products of two residues are summed without an error in float64


def dot(first: Words, second: Words) -> Words:
    """The products of matrices, as np.matmul multiplies them, in each of the six fields by float64 BLAS."""
    return pack(map(_dot, unpack(first), unpack(second), PRIMES))


def _dot(first: Words, second: Words, prime: int) -> Words:
    left, right = first.astype(np.float64), second.astype(np.float64)
    sums = np.zeros((), np.uint64)
    for begin in range(0, max(left.shape[-1], 1), _DEPTH):
        part = np.matmul(left[..., begin : begin + _DEPTH], right[..., begin : begin + _DEPTH, :])
        sums = (sums + part.astype(np.uint64)) % np.uint64(prime)
    return sums


@cache
def key(text: str) -> tuple[np.uint64, np.uint64]:
    """Two random words that stand for a text."""
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
    return np.uint64(int.from_bytes(digest[:8], "little")), np.uint64(int.from_bytes(digest[8:], "little"))


_MULTIPLIERS = [
    np.uint64(number)
    for number in (0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93, 0xA0761D6478BD642F, 0xE7037ED1A0B428DB)
]


def _finish(state: Words) -> Words:
    """A bijection of 64 bits in which each bit depends on all (the finisher of SplitMix64)."""
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


def _absorb(state: Words, words: Words) -> Words:
    a, b, c, d = _MULTIPLIERS
    first, second = words[:1], words[1:]
    return _finish(state * a + np.concatenate([first * b + second * c, first * d - second * b]))


def _begin(name: str, rank: int) -> Words:
    return np.array(key(name), np.uint64).reshape(2, *[1] * rank)


def aligned(words: Words, rank: int) -> Words:
    """The words with as many axes of size 1 before the others as the rank needs."""
    return words.reshape(len(words), *[1] * (rank + 1 - words.ndim), *words.shape[1:])


def mix(name: str, *operands: Words) -> Words:
    """Atoms that are a random function, called ``name``, of the operands, which are broadcast."""
    rank = max((words.ndim for words in operands), default=1) - 1
    state = _begin(name, rank)
    for words in operands:
        state = _absorb(state, aligned(words, rank))
    return state & _ATOMS


def mix_unordered(name: str, *operands: Words) -> Words:
    """As ``mix``, where the order of the operands is of no importance."""
    rank = max(words.ndim for words in operands) - 1
    sums: Words = np.zeros((), np.uint64)
    for words in operands:
        sums = sums + _absorb(_begin(name, rank), aligned(words, rank))
    return mix(name, sums)


def atoms(name: str, shape: tuple[int, ...]) -> Words:
    """Random members by name and position, of a shape."""
    positions = np.arange(int(np.prod(shape, dtype=np.int64)), dtype=np.uint64)
    return mix(name, np.stack([positions, positions])).reshape(2, *shape)


def digest(words: Words) -> Words:
    """One member, as words of shape (2,), that stands for all elements in their order."""
    flat = words.reshape(2, -1)
    positions = np.arange(flat.shape[1], dtype=np.uint64)
    spread = mix("element", flat, np.stack([positions, positions]))
    return mix("digest", spread.sum(1, np.uint64, keepdims=True))[:, 0]


NEGATIVE = np.array(key("negative zero"), np.uint64) & _ATOMS
"""The hash of -0.0. The negative of a float that may be zero is ``NEGATIVE - hash``, so that the negative of zero is
-0.0, and the negative of a negative is the value itself."""
_LOWEST = 1200  # the exponents of float64 times its mantissa


@cache
def _powers() -> list[Words]:
    return [
        np.array([pow(2, exponent, prime) for exponent in range(-_LOWEST, _LOWEST)], np.uint64)
        for prime in PRIMES
    ]


def encode(values: np.ndarray[Any, Any]) -> Words:
    """The hashes of known elements: of booleans, integers, floats (also those of ml_dtypes), complex numbers or
    texts."""
    if values.dtype.kind in "OSU":
        texts = [key(f"text {one!r}") for one in values.ravel().tolist()]
        return (np.array(texts, np.uint64).reshape(-1, 2).T & _ATOMS).reshape(2, *values.shape)
    if values.dtype.kind == "c":
        return mix("complex", encode(values.real), encode(values.imag))
    if values.dtype.kind == "b":
        values = values.astype(np.uint8)
    if values.dtype.kind == "u":
        return pack([values.astype(np.uint64) % np.uint64(prime) for prime in PRIMES])
    if values.dtype.kind == "i":
        return pack([(values.astype(np.int64) % prime).astype(np.uint64) for prime in PRIMES])
    if values.dtype.kind == "V" and values.dtype.name.startswith(
        ("int", "uint")
    ):  # ml_dtypes' int4 and its like
        return encode(values.astype(np.int64))
    return _encode_floats(values.astype(np.float64))


def _encode_floats(values: np.ndarray[Any, Any]) -> Words:
    finite = np.isfinite(values)
    fractions, exponents = np.frexp(np.where(finite, values, 0.0))
    mantissas = (fractions * 2.0**53).astype(np.int64)
    places = exponents - 53 + _LOWEST
    words = pack(
        [
            (mantissas % prime).astype(np.uint64) * powers[places] % np.uint64(prime)
            for prime, powers in zip(PRIMES, _powers(), strict=True)
        ]
    )
    words[:, (values == 0) & np.signbit(values)] = NEGATIVE[:, None]
    for special, name in ((np.isnan(values), "nan"), (values == np.inf, "inf"), (values == -np.inf, "-inf")):
        words[:, special] = (np.array(key(name), np.uint64) & _ATOMS)[:, None]
    return words
