"""The controller paused: while /admin/camerlengo_pause is there it elects for failures, and moves nothing by choice.

    nothing goes back to its preferred leader, by itself, by the znode or by request
    no reassignment begins, those asked for wait in ZooKeeper; one on its way goes on, or back if it is cancelled

The znode outlives controllers, and is read in every term before anything could be moved. What waited is taken up when
it goes.
"""

from __future__ import annotations

from controller.core.events import PauseChanged, PreferredElectionAsked, ReassignmentAsked
from controller.core.leadership import Term
from controller.zookeeper import paths
from controller.zookeeper.codecs import decode_pause
from controller.zookeeper.operations import DamagedZnode

UNREADABLE = "the reason can't be read"


async def look(term: Term) -> None:
    """Read the pause from its znode. An unreadable znode pauses too, because its writer intended a pause."""
    row = (await term.zookeeper.read([paths.CONTROLLER_PAUSE])).rows[0]
    before, term.context.paused = term.context.paused, None
    if row is not None:
        try:
            term.context.paused = decode_pause(row.path, row.data).reason
        except DamagedZnode as damaged:
            term.note("error", str(damaged))
            term.context.paused = UNREADABLE
    if term.context.paused != before:
        term.note("warning", "paused: " + term.context.paused if term.context.paused is not None else "goes on")


async def pause_changed(term: Term, event: PauseChanged) -> None:
    was_paused = term.context.paused is not None
    await look(term)
    if was_paused and term.context.paused is None:
        term.put(ReassignmentAsked())
        term.put(PreferredElectionAsked())
