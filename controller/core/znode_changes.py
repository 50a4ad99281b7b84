"""Read-modify-write of one znode by the controller, conditional on the version that was read, and fenced.

The change is decided again after a conflicting write, or when the outcome of the write is unknown.

Notification znodes: children that other clients create for the controller, which reads and deletes them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from controller.core.leadership import Term
from controller.zookeeper.operations import (
    ANY_VERSION,
    BATCH,
    BadVersion,
    Create,
    Delete,
    MultiFailed,
    NodeExists,
    NoNode,
    SetData,
    UnknownOutcome,
    Znode,
    ZooKeeperError,
)
from controller.zookeeper.paths import child
from controller.zookeeper.row_writes import spans

ROUNDS = 10
"""How often remaining children are listed and deleted again: each round follows another client's deletion of the same
children, or a connection that broke during the request."""


async def list_children(term: Term, parent: str) -> tuple[str, ...]:
    """Sorted; () where there is no parent."""
    listing = await term.zookeeper.children([parent])
    return listing.children[0] or ()


async def delete_children(term: Term, parent: str, names: Sequence[str]) -> None:
    """Deletes these children, fenced. One that is gone already is fine (KAFKA-5879); what is still there after
    `ROUNDS` is named in the log and left for the next notification."""
    left = list(names)
    for _ in range(ROUNDS):
        if not left:
            return
        if await _delete(term, [child(parent, name) for name in left]):
            return
        there = frozenset(await list_children(term, parent))
        left = [name for name in left if name in there]
    if left:
        term.note("error", f"{parent}: {len(left)} children could not be deleted, {left[0]} among them")


async def _delete(term: Term, names: Sequence[str]) -> bool:
    """False if some may still be there."""
    whole = True
    deletes = [Delete(name, ANY_VERSION) for name in names]
    for start, end in spans(deletes, BATCH - 1):
        try:
            await term.zookeeper.commit(term.leadership, deletes[start:end])
        except UnknownOutcome:
            whole = False
        except MultiFailed as failed:
            if not isinstance(failed.error, NoNode):
                raise
            whole = False
    return whole


LOOKS = 10
"""How often the znode is looked at again."""


class NeverStill(ZooKeeperError):
    """The znode was another each time, or no write had an answer."""


async def change_znode(term: Term, path: str, decide: Callable[[Znode | None], bytes | None]) -> None:
    """Writes what `decide` makes of what is there; nothing where it makes None. Raises what it raises, NeverStill, and
    what `ZooKeeperClient.commit` raises once the term is over."""
    for _ in range(LOOKS):
        row = (await term.zookeeper.read([path])).rows[0]
        data = decide(row)
        if data is None:
            return
        write = Create(path, data) if row is None else SetData(path, data, row.stat.version)
        try:
            await term.zookeeper.commit(term.leadership, [write])
        except UnknownOutcome:
            continue
        except MultiFailed as failed:
            if not isinstance(failed.error, NodeExists | BadVersion | NoNode):
                raise
        else:
            return
    raise NeverStill(f"{path} changed under {LOOKS} looks and is left as it is")
