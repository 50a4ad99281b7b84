"""Lines of Kafka's logs to events, a block of lines at a time: Arrow arrays in, Arrow batches out; no file is read.

Nothing is done a line at a time: the head of all lines is matched at once; each text's phrase then narrows the lines to
those that its pattern is tried on, and what one text took, no other one sees. Every line comes out as exactly one of
event, continuation, empty, or left over with a reason.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from controller.pipeline.event_table import COUNTS, EVENTS, FIELDS, LEFTOVERS
from controller.pipeline.log_texts import (
    BEGINNING,
    BROKER_STATE,
    CONTINUED,
    CONTROLLER,
    STATE_CHANGE_LOGGER,
    STATE_CHANGES,
    WHO_EPOCH,
    WHO_NODE,
    LogText,
)

TORN = "torn"
UNKNOWN_FORM = "in no known form"
UNKNOWN_TEXT = "a text that is not known"
NO_SUCH_TIME = "no such time"
EVENT, CONTINUATION, EMPTY = "event", "stack trace", "empty"

_NUMBERS = re.compile(r"-?[0-9]+")
_FRACTION = re.compile(r",[0-9]{3}")


@dataclass(frozen=True, slots=True)
class LogFile:
    """Where lines come from. `node` is whose they are, should a line not say so itself; -1: not known."""

    run: str
    path: str
    node: int


@dataclass(frozen=True, slots=True, eq=False)
class Parsed:
    """Batches of EVENTS and of LEFTOVERS; how many lines were of which kind."""

    events: tuple[pa.RecordBatch, ...]
    leftovers: tuple[pa.RecordBatch, ...]
    kinds: Mapping[str, int]

    def counts(self, file: LogFile) -> pa.RecordBatch:
        rows = [{"run": file.run, "file": file.path, "kind": kind, "lines": n} for kind, n in self.kinds.items()]
        return pa.RecordBatch.from_pylist(rows, schema=COUNTS)


def parse_lines(lines: pa.Array, places: pa.Array, file: LogFile) -> Parsed:
    """`lines` are strings without their newlines, `places` int64, the byte at which each begins."""
    kinds: Counter[str] = Counter()
    leftovers: list[pa.RecordBatch] = []

    def leave(mask: pa.Array, why: str) -> None:
        kept = pc.filter(lines, mask)
        if len(kept):
            kinds[why] += len(kept)
            leftovers.append(_filled(LEFTOVERS, len(kept), {"run": file.run, "file": file.path, "why": why},
                                     {"place": pc.filter(places, mask), "text": kept}))  # fmt: skip

    begun = pc.match_substring_regex(lines, BEGINNING)
    continued = pc.and_(pc.invert(begun), pc.match_substring_regex(lines, CONTINUED))
    empty = pc.match_substring_regex(lines, r"^\s*$")
    kinds[CONTINUATION] += _count(continued)
    kinds[EMPTY] += _count(empty)
    leave(pc.invert(pc.or_(begun, pc.or_(continued, empty))), UNKNOWN_FORM)

    rows = pc.indices_nonzero(begun).cast(pa.int64())
    parts = _parts(lines.take(rows))
    timed = pc.and_(parts.whole, parts.at.is_valid())
    leave(_at(rows.filter(pc.invert(parts.whole)), len(lines)), TORN)
    leave(_at(rows.filter(pc.and_(parts.whole, pc.is_null(parts.at))), len(lines)), NO_SUCH_TIME)
    rows, parts = rows.filter(timed), parts.take(pc.indices_nonzero(timed))
    known = _Heads(rows, parts, _error_below(lines, continued, rows), file)
    events, unknown = _events(known, places)
    kinds[EVENT] += sum(len(batch) for batch in events)
    leave(_at(pa.array(unknown), len(lines)), UNKNOWN_TEXT)
    return Parsed(tuple(events), tuple(leftovers), {kind: n for kind, n in kinds.items() if n})


@dataclass(frozen=True, slots=True, eq=False)
class _Parts:
    """Of each line that begins with a time, its head: `whole` says of which ones the rest means anything."""

    whole: pa.Array
    at: pa.Array
    level: pa.Array
    who: pa.Array
    text: pa.Array
    logger: pa.Array

    def take(self, rows: pa.Array) -> _Parts:
        columns = (self.whole, self.at, self.level, self.who, self.text, self.logger)
        return _Parts(*(column.take(rows) for column in columns))


def _parts(lines: pa.Array) -> _Parts:
    """`[%d] %p [who] %m (%c)`, cut at fixed places and at separators: an expression that says the same as one takes
    four times as long. log4j's time has 23 characters; `who` may be missing."""
    before, logger = _cut(pc.ascii_rtrim(lines, "\r"), " (", reverse=True)
    stamp = pc.utf8_slice_codeunits(lines, 1, 24)
    level, said = _cut(pc.utf8_slice_codeunits(before, 26), " ")
    said = pc.fill_null(said, "")
    inside, after = _cut(said, "]")
    bracket = pc.and_(pc.starts_with(said, "["), after.is_valid())
    who = pc.if_else(bracket, pc.ascii_ltrim(inside, "["), "")
    text = pc.if_else(bracket, pc.ascii_ltrim(pc.fill_null(after, ""), ": "), said)
    whole = pc.fill_null(pc.ends_with(logger, ")"), False)
    whole = pc.and_(whole, pc.equal(pc.utf8_slice_codeunits(lines, 24, 26), "] "))
    whole = pc.and_(whole, pc.match_substring_regex(level, "^[A-Z]+$"))
    return _Parts(whole, _times(stamp, whole), level, who, text, pc.utf8_rtrim(logger, ")"))


def _cut(words: pa.Array, at: str, *, reverse: bool = False) -> tuple[pa.Array, pa.Array]:
    """What stands before and after the first (last) `at`; null after where there is none."""
    split = pc.split_pattern(words, at, max_splits=1, reverse=reverse)
    starts = split.offsets.to_numpy()
    first, second = starts[:-1], starts[:-1] + 1
    return split.values.take(pa.array(first)), split.values.take(pa.array(second, mask=second >= starts[1:]))


@dataclass(frozen=True, slots=True, eq=False)
class _Heads:
    """The complete lines: their numbers in the block, their parts, and the error printed below each, if any."""

    rows: pa.Array
    parts: _Parts
    error: pa.Array
    file: LogFile


def _events(known: _Heads, places: pa.Array) -> tuple[list[pa.RecordBatch], np.ndarray[Any, Any]]:
    """The events, and the rows of the block with texts that no pattern reads."""
    text, who = known.parts.text, known.parts.who
    node, epoch = _who(who, known.file.node)
    of_state = pc.equal(known.parts.logger, STATE_CHANGE_LOGGER).to_numpy(zero_copy_only=False)
    batches: list[pa.RecordBatch] = []
    unread = np.ones(len(text), dtype=np.bool_)
    for texts, left in ((STATE_CHANGES, np.flatnonzero(of_state)), (CONTROLLER, np.flatnonzero(~of_state))):
        for one, taken, fields in _read(texts, text, left):
            rows = pa.array(taken)
            columns = {
                "at": known.parts.at.take(rows),
                "node": node.take(rows),
                "place": places.take(known.rows.take(rows)),
                "error": known.error.take(rows),
                "level": known.parts.level.take(rows),
                "who": who.take(rows),
                "controller_epoch": epoch.take(rows),
                **fields,
            }
            constants = {"run": known.file.run, "file": known.file.path, "origin": "log", "event": one.event}
            batches.append(_filled(EVENTS, len(taken), {**constants, **one.constants}, columns))
            unread[taken] = False
    return batches, known.rows.to_numpy()[unread]


def _read(
    texts: tuple[LogText, ...], text: pa.Array, left: np.ndarray[Any, Any]
) -> Iterator[tuple[LogText, np.ndarray[Any, Any], dict[str, pa.Array]]]:
    """Each text with the rows of `text` that it reads, and the columns that it spells."""
    rows, mine = left, text.take(pa.array(left))
    for one in texts:
        hits = np.flatnonzero(pc.match_substring(mine, one.phrase).to_numpy(zero_copy_only=False))
        if not len(hits):
            continue
        groups = pc.extract_regex(mine.take(pa.array(hits)), _renamed(one))
        fits = groups.is_valid().to_numpy(zero_copy_only=False)
        if not fits.any():
            continue
        read = groups.filter(pa.array(fits))
        yield one, rows[hits[fits]], {name: _typed(name, read.field(f"g_{name}")) for name in one.groups}
        open_rows = np.ones(len(rows), dtype=np.bool_)
        open_rows[hits[fits]] = False
        rows, mine = rows[open_rows], mine.filter(pa.array(open_rows))
        if not len(rows):
            return


def _renamed(one: LogText) -> str:
    """Arrow wants at least one group, and group names that are nothing else's: an empty group for texts without."""
    pattern = one.pattern.replace("(?P<", "(?P<g_")
    return pattern if one.groups else pattern.replace("^", "^(?P<g_none>)", 1)


def _typed(name: str, words: pa.Array) -> pa.Array:
    kind = FIELDS[name]
    if pa.types.is_list(kind):
        return _lists(words)
    if kind == pa.string():
        return words
    # A group that took no part in the match is an empty word.
    return pc.cast(pc.if_else(pc.equal(words, ""), pa.scalar(None, pa.string()), words), kind)


def _lists(words: pa.Array) -> pa.Array:
    """Ids in a row, each distinct spelling read once: there are few of them."""
    spelled = words.dictionary_encode()
    rows = [
        None if word is None else [int(number) for number in _NUMBERS.findall(re.sub(BROKER_STATE, r"\1", word))]
        for word in spelled.dictionary.to_pylist()
    ]
    return pa.array(rows, pa.list_(pa.int64())).take(spelled.indices)


def _who(who: pa.Array, otherwise: int) -> tuple[pa.Array, pa.Array]:
    """Node (int32) and controller epoch (int64, null where not said) from "Controller id=3 epoch=2" and the like."""
    spelled = pc.fill_null(who, "").dictionary_encode()
    nodes, epochs = [], []
    for words in spelled.dictionary.to_pylist():
        node, epoch = re.search(WHO_NODE, words), re.search(WHO_EPOCH, words)
        nodes.append(int(node["node"]) if node else otherwise)
        epochs.append(int(epoch["controller_epoch"]) if epoch else None)
    return pa.array(nodes, pa.int32()).take(spelled.indices), pa.array(epochs, pa.int64()).take(spelled.indices)


def _times(stamp: pa.Array, whole: pa.Array) -> pa.Array:
    """UTC by the line's own clock ("2026-11-21 08:05:18,123"); null for lines that are not whole, and for a time that
    no calendar has. Each distinct second is read once."""
    stamp = pc.if_else(whole, stamp, pa.scalar(None, stamp.type))
    seconds = pc.utf8_slice_codeunits(stamp, 0, 19).dictionary_encode()
    read = pa.array([_microseconds(word) for word in seconds.dictionary.to_pylist()], pa.int64())
    fraction = pc.utf8_slice_codeunits(stamp, 19, 23).dictionary_encode()
    ms = [int(word[1:]) if _FRACTION.fullmatch(word) else None for word in fraction.dictionary.to_pylist()]
    at = pc.add(read.take(seconds.indices), pc.multiply(pa.array(ms, pa.int64()).take(fraction.indices), 1000))
    return pc.cast(at, pa.timestamp("us"))


def _microseconds(second: str) -> int | None:
    try:
        at = datetime.strptime(second, "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC)
    except ValueError:
        return None
    return int(at.timestamp()) * 1_000_000


def _error_below(lines: pa.Array, continued: pa.Array, rows: pa.Array) -> pa.Array:
    """Return for each row the line below it, if that line begins a stack trace."""
    if not len(lines):
        return pa.array([], pa.string())
    below = pa.concat_arrays([lines.slice(1), pa.array([""], lines.type)])
    is_below = pa.concat_arrays([continued.slice(1), pa.array([False])])
    return pc.if_else(is_below, below, pa.scalar(None, lines.type)).take(rows)


def _filled(schema: pa.Schema, rows: int, constants: Mapping[str, str], columns: Mapping[str, pa.Array]) -> Any:
    """A batch with all of the schema's columns: given, constant, or null."""
    arrays = []
    for column in schema:
        given = columns.get(column.name)
        if given is not None:
            arrays.append(given if given.type == column.type else given.cast(column.type))
        elif column.name in constants:
            arrays.append(pa.repeat(pa.scalar(constants[column.name], column.type), rows))
        else:
            arrays.append(pa.nulls(rows, column.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _at(rows: pa.Array, length: int) -> pa.Array:
    """The mask that is true at these rows."""
    mask = np.zeros(length, dtype=np.bool_)
    mask[rows.to_numpy()] = True
    return pa.array(mask)


def _count(mask: pa.Array) -> int:
    return int(pc.sum(mask).as_py() or 0)
