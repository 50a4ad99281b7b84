"""Malformed inputs made from sound ones: wounds that have hurt parsers before. Fast, and all from one Random."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

EXTREMES = (b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x80\0\0\0", b"\0\0\0\0", b"\xff\xff", b"\xff\xff\xff\xff\x0f")
TOKENS = (b"null", b"-1", b"2147483648", b"1e999", b'"', b"[", b"]", b"{", b"}", b",", b":", b"\\u0000", b"\\ud800")
TOKENS_TOO = (b"true", b"[" * 64, b'{"a":' * 64, b"9" * 40, b"0.5", b'"version"', b"\xc3\x28", b"\xed\xa0\x80")
LONGEST = 1 << 16

Wound = Callable[[random.Random, bytearray], None]


def _place(rng: random.Random, data: bytearray) -> int:
    return rng.randrange(len(data) + 1)


def change_a_bit(rng: random.Random, data: bytearray) -> None:
    if data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def change_a_byte(rng: random.Random, data: bytearray) -> None:
    if data:
        data[rng.randrange(len(data))] = rng.randrange(256)


def put_an_extreme_number(rng: random.Random, data: bytearray) -> None:
    at, number = _place(rng, data), rng.choice(EXTREMES)
    data[at : at + len(number)] = number


def put_a_token(rng: random.Random, data: bytearray) -> None:
    at = _place(rng, data)
    data[at : at + rng.randrange(3)] = rng.choice(TOKENS + TOKENS_TOO)


def take_out(rng: random.Random, data: bytearray) -> None:
    at = _place(rng, data)
    del data[at : at + 1 + rng.randrange(16)]


def put_in(rng: random.Random, data: bytearray) -> None:
    at = _place(rng, data)
    data[at:at] = rng.randbytes(1 + rng.randrange(8))


def repeat_a_part(rng: random.Random, data: bytearray) -> None:
    at = _place(rng, data)
    data[at:at] = data[at : at + 1 + rng.randrange(64)] * (1 + rng.randrange(8))


def cut_off(rng: random.Random, data: bytearray) -> None:
    del data[_place(rng, data) :]


WOUNDS: Sequence[Wound] = (
    change_a_bit,
    change_a_byte,
    put_an_extreme_number,
    put_a_token,
    take_out,
    put_in,
    repeat_a_part,
    cut_off,
)


def malformed(rng: random.Random, sound: Sequence[bytes]) -> bytes:
    """One of the sound inputs with one to four wounds; sometimes two halves of two of them; sometimes mere noise."""
    kind = rng.random()
    if kind < 0.05:
        return rng.randbytes(rng.randrange(256))
    data = bytearray(rng.choice(sound))
    if kind < 0.15:
        other = rng.choice(sound)
        data[_place(rng, data) :] = other[rng.randrange(len(other) + 1) :]
    for _ in range(rng.choice((1, 1, 2, 4))):
        rng.choice(WOUNDS)(rng, data)
    return bytes(data[:LONGEST])
