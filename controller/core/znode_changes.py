"""Read-modify-write of one znode by the controller, conditional on the version that was read, and fenced.

The change is decided again after a conflicting write, or when the outcome of the write is unknown.
"""

from __future__ import annotations

from collections.abc import Callable

from controller.core.term import Term
from controller.zookeeper.operations import (
    BadVersion,
    Create,
    MultiFailed,
    NodeExists,
    NoNode,
    SetData,
    UnknownOutcome,
    Znode,
    ZooKeeperError,
)

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
