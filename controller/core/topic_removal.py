"""Removal of topics from ZooKeeper: /brokers/topics/T with all below it, /config/topics/T, /admin/delete_topics/T.

Children are deleted before parents, partition by partition, as a 2.8 controller does, in fenced batches of many topics.
One multi deletes a topic's own znode, its config and its deletion request: as long as the request exists there is
something to delete, and without it the deletion is complete. When a topic may be deleted is not decided here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from controller.core.notifications import ROUNDS
from controller.core.term import Term
from controller.pending import Pending
from controller.zookeeper import paths
from controller.zookeeper.operations import (
    ANY_VERSION,
    BATCH,
    Delete,
    MultiFailed,
    NoAuth,
    NoNode,
    NotEmpty,
    UnknownOutcome,
    WriteResults,
)
from controller.zookeeper.row_writes import BATCH_BYTES, operation_bytes

MULTIS_IN_FLIGHT = 4
NO_TOPIC = -1
"""As a czxid: the topic's znode was gone from the beginning."""


@dataclass(frozen=True, slots=True)
class _Found:
    """The znodes that exist of a topic; `czxid` distinguishes the deleted topic from a later one of the same name."""

    czxid: int
    topic: bool
    config: bool
    request: bool

    @property
    def anything(self) -> bool:
        return self.topic or self.config or self.request


async def remove_topics(term: Term, names: Sequence[str]) -> None:
    """Removes them, whatever of them is there. A topic that was made again meanwhile is left alone. What still resists
    after some rounds is named in the log."""
    lives: dict[str, int] = {}
    left = tuple(names)
    for _ in range(ROUNDS):
        found = await _look(term, left)
        for name, one in found.items():
            lives.setdefault(name, one.czxid)
        left = tuple(name for name in left if found[name].anything and found[name].czxid == lives[name])
        if not left:
            return
        trees = await _trees(term, [name for name in left if found[name].topic])
        refused = await _delete(term, [unit for name in left for unit in _units(name, found[name], trees)])
        for name, error in refused.items():
            term.note("error", f"topic {name} could not be removed: {error}")
        left = tuple(name for name in left if name not in refused)
    term.note("error", f"{len(left)} topics could not be removed, {left[0]} among them")


async def _look(term: Term, names: Sequence[str]) -> dict[str, _Found]:
    asked = [path for name in names for path in (paths.topic(name), paths.config_topic(name), paths.delete_topic(name))]
    rows = iter((await term.zookeeper.read(asked)).rows)
    found = {}
    for name, topic, config, request in zip(names, rows, rows, rows, strict=True):
        czxid = NO_TOPIC if topic is None else topic.stat.czxid
        found[name] = _Found(czxid, topic is not None, config is not None, request is not None)
    return found


async def _trees(term: Term, names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The children's paths of every znode in these topics, level by level."""
    children: dict[str, tuple[str, ...]] = {}
    level = [paths.topic(name) for name in names]
    while level:
        listing = await term.zookeeper.children(level)
        for path, there in zip(level, listing.children, strict=True):
            children[path] = tuple(paths.child(path, name) for name in there or ())
        level = [path for parent in level for path in children[parent]]
    return children


def _units(name: str, found: _Found, children: dict[str, tuple[str, ...]]) -> Iterator[tuple[Delete, ...]]:
    """The topic's deletes in order, those together that must be made together."""
    top = paths.topic(name)
    for path in _below(top, children):
        yield (Delete(path, ANY_VERSION),)
    last = ((top, found.topic), (paths.config_topic(name), found.config), (paths.delete_topic(name), found.request))
    yield tuple(Delete(path, ANY_VERSION) for path, there in last if there)


def _below(path: str, children: dict[str, tuple[str, ...]]) -> Iterator[str]:
    for child in children.get(path, ()):
        yield from _below(child, children)
        yield child


async def _delete(term: Term, units: Sequence[tuple[Delete, ...]]) -> dict[str, NoAuth]:
    """Delete in batches, several in flight; return the topics of which ZooKeeper refuses to delete a znode.

    If a batch fails because a znode was already deleted or was created again, the caller reads those topics again.
    """
    refused: dict[str, NoAuth] = {}
    in_flight: deque[Pending[WriteResults]] = deque()
    for batch in _batches(units):
        if len(in_flight) == MULTIS_IN_FLIGHT:
            await _settle(in_flight.popleft(), refused)
        in_flight.append(term.zookeeper.commit(term.leadership, batch))
    while in_flight:
        await _settle(in_flight.popleft(), refused)
    return refused


def _batches(units: Sequence[tuple[Delete, ...]]) -> Iterator[list[Delete]]:
    batch: list[Delete] = []
    size = 0
    for unit in units:
        more = sum(map(operation_bytes, unit))
        if batch and (len(batch) + len(unit) > BATCH - 1 or size + more > BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch += unit
        size += more
    if batch:
        yield batch


async def _settle(sent: Pending[WriteResults], refused: dict[str, NoAuth]) -> None:
    try:
        await sent
    except UnknownOutcome:
        pass  # the next look says what became of it
    except MultiFailed as failed:
        if isinstance(failed.error, NoAuth) and paths.is_one_of_many(failed.error.path):
            path = failed.error.path
            refused[paths.topic_of(path) or path.rpartition("/")[2]] = failed.error
        elif not isinstance(failed.error, NoNode | NotEmpty):
            raise
