"""Changes inputs a little: the same chance gives the same inputs."""

from __future__ import annotations

import random
from collections.abc import Sequence

__all__ = ["MAX_BYTES", "mutate"]

MAX_BYTES = 8192
EXTREMES = (0, 1, 0x7F, 0x80, 0xFF)
WIDE = (0, 1, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)
TOKENS = (
    *(b"\0", b"\n", b"[", b"]", b"{", b'"', b"=", b"..", b"/", b"-1", b"1e999", b"null", b"true"),
    *(b"999999999999999999999", b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", b"\xed\xa0\x80"),
    *(b"[" * 200, b"S[", b"P[", b"cmd=", b"float32", b"object", b"V8", b"value=" + b"x" * 2000),
)


def mutate(chance: random.Random, corpus: Sequence[bytes]) -> bytes:
    """Makes a new input of one or two of a corpus."""
    data = bytearray(chance.choice(corpus))
    for _ in range(1 << chance.randrange(4)):
        change = chance.choice(_CHANGES)
        change(chance, data, corpus)
    return bytes(data[:MAX_BYTES])


def _flip(chance, data, _corpus):
    if data:
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)


def _set(chance, data, _corpus):
    if data:
        data[chance.randrange(len(data))] = chance.choice((*EXTREMES, chance.randrange(256)))


def _number(chance, data, _corpus):
    at, size = chance.randrange(len(data) + 1), chance.choice((2, 4, 8))
    number = chance.choice(WIDE) % (1 << (8 * size))
    data[at : at + size] = number.to_bytes(size, "little")


def _insert(chance, data, _corpus):
    at = chance.randrange(len(data) + 1)
    data[at:at] = chance.choice((*TOKENS, chance.randbytes(chance.randrange(1, 9))))


def _delete(chance, data, _corpus):
    at = chance.randrange(len(data) + 1)
    del data[at : at + chance.randrange(1, 17)]


def _double(chance, data, _corpus):
    at = chance.randrange(len(data) + 1)
    part = data[at : at + chance.randrange(1, 65)]
    data[at:at] = part * chance.choice((1, 1, 2, 50))


def _splice(chance, data, corpus):
    other = chance.choice(corpus)
    at, begin = chance.randrange(len(data) + 1), chance.randrange(len(other) + 1)
    data[at:] = other[begin:]


_CHANGES = (_flip, _set, _number, _insert, _delete, _double, _splice)
