"""Which partitions keep a broker from going: those that it would leave with fewer replicas in sync than a record sent
with acks=all needs. Kafka's controller does not ask; here such a partition stays with its broker until another replica
has come into sync, or the broker goes by force.
"""

from __future__ import annotations

import msgspec
import numpy as np

from controller.core.context import NO_BROKER, Bools, Int32s, Replicas, Rows
from controller.core.leadership import Term
from controller.core.state_changes import by_topic, take_in
from controller.zookeeper.codecs import decode_config
from controller.zookeeper.operations import DamagedZnode, Znode

MIN_INSYNC = "min.insync.replicas"
SHOWN = 5
"""How many partitions a reason names."""


def falls_short(left: Int32s, least: Int32s, replicas: Int32s) -> Bools:
    """Return, by column, which partitions would have too few in-sync replicas.

    `left` replicas are in sync after the shutdown, `least` are required, of `replicas` in total. A partition without
    another replica is not counted, nor one that requires more replicas than it has.
    """
    short: Bools = (left < least) & (least <= replicas) & (replicas > 1)
    return short


class Held(msgspec.Struct, frozen=True, eq=False):
    """Partitions (`rows`) that must not lose the broker: what they would be left with, and what they need."""

    rows: Rows
    left: Int32s
    least: Int32s

    def reason(self, term: Term) -> str:
        """In words, "" if there are none."""
        if not len(self.rows):
            return ""
        table = term.context.partitions
        shown = zip(*(one[:SHOWN].tolist() for one in (self.rows, self.left, self.least)), strict=True)
        names = [f"{table.name_of(row)} ({left} of {least})" for row, left, least in shown]
        more = f" and {len(self.rows) - SHOWN} more" if len(self.rows) > SHOWN else ""
        number = f"{len(self.rows)} partition{'' if len(self.rows) == 1 else 's'}"
        return f"{number} would be left under {MIN_INSYNC}: {', '.join(names)}{more}"


async def held_back(term: Term, broker: int, replicas: Replicas) -> Held:
    """Return those of the broker's `replicas` that are in sync and can't be spared.

    Replicas that are shutting down or on failed log directories don't count as remaining. Raises the errors of reading
    ZooKeeper.

    Leaders below inter-broker protocol 2.7 change ISRs in ZooKeeper and notify the controller seconds later: the states
    of partitions that would be held back are read again before the result is returned.
    """
    held = await _held_back(term, broker, replicas)
    if len(held.rows):
        states = await term.zookeeper.read(term.context.partitions.state_paths(held.rows))
        for row, state in zip(held.rows.tolist(), states.rows, strict=True):
            take_in(term, row, state)
        held = await _held_back(term, broker, replicas)
    return held


async def _held_back(term: Term, broker: int, replicas: Replicas) -> Held:
    """By the ISRs that the context has."""
    context, table = term.context, term.context.partitions
    rows = replicas.rows[(table.isr[replicas.rows] == broker).any(axis=1)]
    remaining = context.eligible_in_isr(rows) & (table.isr[rows] != broker)
    left = np.count_nonzero(remaining, axis=1).astype(np.int32)
    if not len(rows):
        return Held(rows, left, left)
    values, places = await by_topic(term, rows, _least_in, term.settings.min_insync_replicas)
    least = np.array(values, dtype=np.int32)[places]
    count = np.count_nonzero(table.assignment[rows] != NO_BROKER, axis=1).astype(np.int32)
    short = falls_short(left, least, count)
    return Held(rows[short], left[short], least[short])


def _least_in(term: Term, row: Znode | None) -> int | None:
    """Return the value in one config; None if it has none or an unreadable one, which a leader ignores too."""
    if row is None:
        return None
    try:
        said = decode_config(row.path, row.data).config.get(MIN_INSYNC)
    except DamagedZnode as damaged:
        term.note("error", f"its {MIN_INSYNC} is not known: {damaged}")
        return None
    return int(said) if said is not None and said.isascii() and said.isdigit() and len(said) < 10 else None
