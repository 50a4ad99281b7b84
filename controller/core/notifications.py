"""Notification znodes: children that other clients create for the controller, which reads and deletes them."""

from __future__ import annotations

from collections.abc import Sequence

from controller.core.term import Term
from controller.zookeeper.operations import ANY_VERSION, BATCH, Delete, MultiFailed, NoNode, UnknownOutcome
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
