"""Faults of an administrator's hand: /controller and /controller_epoch rewritten, deleted, filled with garbage, or made
persistent for a while. See `faults.py`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from controller.clock import Clock
from controller.core.obstacles import epoch_in, named_in
from controller.pending import Pending
from controller.simulator.faults_between import Undo
from controller.simulator.plan import EditController, EditControllerEpoch
from controller.zookeeper import paths
from controller.zookeeper.codecs import ControllerZnode, encode_controller
from controller.zookeeper.drive import drive
from controller.zookeeper.errors import ZooKeeperError
from controller.zookeeper.memory.connection import InMemoryConnection
from controller.zookeeper.memory.server import InMemoryZooKeeper
from controller.zookeeper.operations import ANY_VERSION, Create, Delete, SetData, Write

GARBAGE = b"{not json"
EPOCHS = {"garbage": GARBAGE, "negative": b"-7", "lowered": b"1", "highest": b"2147483647", "raised": b"2147483646"}
"""What is written into /controller_epoch, by `how`."""
RETRY_MS = 50.0


class HandEdits:
    """Edits through the administrator's own session, `shell`. `expires` is called with each session whose hold of
    /controller ends by it: no lease could foresee that."""

    def __init__(
        self, zookeeper: InMemoryZooKeeper, shell: InMemoryConnection, clock: Clock, expires: Callable[[int], None]
    ) -> None:
        self._zookeeper = zookeeper
        self._shell = shell
        self._clock = clock
        self._expires = expires
        self._epoch_edited = False

    def edit_controller(self, fault: EditController) -> Undo | None:
        row = self._zookeeper.row(paths.CONTROLLER)
        if not self._zookeeper.running or (row is None and fault.how != "persistent"):
            return None
        if row is not None:
            self._expires(row.stat.ephemeral_owner)
        if fault.how == "persistent":
            deletion = [] if row is None else [Delete(paths.CONTROLLER, ANY_VERSION)]
            self._write([*deletion, Create(paths.CONTROLLER, _names(fault.node))])
            return self._delete_persistent
        data = {"another": _names(fault.node), "nobody": _names(-1), "garbage": GARBAGE}[fault.how]
        self._write([SetData(paths.CONTROLLER, data, ANY_VERSION)])
        return _nothing

    def edit_epoch(self, fault: EditControllerEpoch) -> Undo | None:
        row = self._zookeeper.row(paths.CONTROLLER_EPOCH)
        if not self._zookeeper.running or row is None:
            return None
        self._epoch_edited = True
        if fault.how == "deleted":
            self._write([Delete(paths.CONTROLLER_EPOCH, ANY_VERSION)])
        else:
            self._write([SetData(paths.CONTROLLER_EPOCH, EPOCHS[fault.how], ANY_VERSION)])
        return self._delete_unreadable

    def repair(self) -> None:
        """Repair what candidates report, as their log messages advise an administrator.

        An idle controller notices a change of the epoch only at its next write; so an election is forced after one.
        """
        self._delete_persistent()
        self._delete_unreadable()
        if self._epoch_edited:
            self._epoch_edited = False
            drive(self._until_deleted(paths.CONTROLLER, lambda row: True))

    def _delete_persistent(self) -> None:
        drive(self._until_deleted(paths.CONTROLLER, lambda row: not row.stat.ephemeral_owner))

    def _delete_unreadable(self) -> None:
        drive(self._until_deleted(paths.CONTROLLER_EPOCH, lambda row: epoch_in(row) is None))

    async def _until_deleted(self, path: str, wrong: Callable[[Any], bool]) -> None:
        """Delete the znode if it is `wrong`; again while ZooKeeper does not answer."""
        while True:
            row = self._zookeeper.row(path)
            if row is None or not wrong(row):
                return
            if path == paths.CONTROLLER:
                self._expires(row.stat.ephemeral_owner)
            try:
                await self._shell.multi([Delete(path, row.stat.version)])
                return
            except ZooKeeperError:
                pass  # tried again below
            await self._clock.sleep(RETRY_MS)

    def _write(self, operations: Sequence[Write]) -> Pending[Any]:
        return self._shell.multi(operations)


def controller_named(zookeeper: InMemoryZooKeeper) -> int:
    """Return the broker that /controller names, -1 if it names none."""
    row = zookeeper.row(paths.CONTROLLER)
    named = None if row is None else named_in(row)
    return -1 if named is None else named


def _names(broker: int) -> bytes:
    return encode_controller(ControllerZnode(broker, 0))


def _nothing() -> None:
    pass


ON_HAND_EDITS: dict[type, Callable[..., Undo | None]] = {
    EditController: HandEdits.edit_controller,
    EditControllerEpoch: HandEdits.edit_epoch,
}
