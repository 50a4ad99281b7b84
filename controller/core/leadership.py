"""The election of a controller: one multi that makes /controller and raises /controller_epoch together.

`elect` stands once, and says what came of it; it arms no watch and starts nothing. Whoever calls it has the watch on
/controller standing first, so that a loser hears when it goes. That the id in /controller is one's own proves nothing:
an older session of this broker's may have left it (S07), so only the session that owns it decides.
"""

from __future__ import annotations

from dataclasses import dataclass

from controller.clock import Clock
from controller.zookeeper.client import ZooKeeperClient
from controller.zookeeper.codecs import (
    ControllerZnode,
    decode_controller,
    decode_controller_epoch,
    encode_controller,
    encode_controller_epoch,
)
from controller.zookeeper.errors import (
    BadVersion,
    MultiFailed,
    NodeExists,
    NoNode,
    SessionGone,
    UnknownOutcome,
    ZooKeeperError,
)
from controller.zookeeper.leadership import Leadership
from controller.zookeeper.operations import Create, Row, SetData, Stat, Write
from controller.zookeeper.paths import CONTROLLER, CONTROLLER_EPOCH

INITIAL_CONTROLLER_EPOCH = 0
"""What /controller_epoch is created with: the first term is epoch 1, at version 1."""

LOOKS = 50
"""How often one election may look again. Each look after the first follows another's progress or a connection that
broke under the write, so that only a cluster in which nothing lasts comes this far."""


class ElectionUndecided(ZooKeeperError):
    """`LOOKS` looks ended without a winner that lasted until the next one. Stand again later."""

    def __init__(self, broker_id: int) -> None:
        super().__init__(f"broker {broker_id}: no election was decided in {LOOKS} attempts")
        self.broker_id = broker_id


@dataclass(frozen=True, slots=True)
class Won:
    """`taken_over`: /controller was this session's already, from a term that ended inside it."""

    leadership: Leadership
    taken_over: bool = False


@dataclass(frozen=True, slots=True)
class Lost:
    """`controller_id` is what /controller says. It may be this broker's own id, written by an older session of its:
    that is no victory, and the znode goes when that session does."""

    controller_id: int
    owner_session: int


ElectionOutcome = Won | Lost


@dataclass(frozen=True, slots=True)
class _Attempt:
    """One multi: the epoch that it would make, and the version that /controller_epoch would then have."""

    session: int
    epoch: int
    epoch_zk_version: int
    operations: tuple[Write, ...]
    takes_over: bool

    def leadership(self) -> Leadership:
        return Leadership(self.session, self.epoch, self.epoch_zk_version)


def void_reason(leadership: Leadership, zookeeper: ZooKeeperClient, now_ms: float) -> str | None:
    """Why nothing more may be done in a term, as far as this node can know by itself; None while it may hold. What only
    ZooKeeper knows, the fence of each write finds."""
    if zookeeper.session() != leadership.session:
        return f"session 0x{leadership.session:x} has ended"
    late_ms = now_ms - zookeeper.lease_until_ms()
    return f"the lease ran out {late_ms:.0f} ms ago" if late_ms >= 0 else None


async def elect(zookeeper: ZooKeeperClient, broker_id: int, clock: Clock) -> ElectionOutcome:
    """Stands for election in the present session, until it is decided who leads.

    Raises SessionGone when the session has ended (its successor stands anew), DamagedZnode when /controller or
    /controller_epoch can't be read, ElectionUndecided. A reply that is lost is settled by looking again (S08): the
    election is won only if the id is ours, the epoch is the one attempted, and /controller belongs to this session.
    """
    session = zookeeper.session()
    if not session:
        raise SessionGone(session)
    unsettled: _Attempt | None = None
    for _ in range(LOOKS):
        controller, epoch = await _look(zookeeper, session)
        if unsettled is not None and _is_won(unsettled, broker_id, controller, epoch):
            return Won(unsettled.leadership(), unsettled.takes_over)
        unsettled = None
        if controller is not None and not _is_owned_by(controller, session):
            return Lost(_controller_id(controller), controller.stat.ephemeral_owner)
        if epoch is None:
            await _create_epoch(zookeeper)
            continue
        attempt = _attempt(session, broker_id, clock.wall_ms(), controller, epoch)
        try:
            results = await zookeeper.seize(attempt.operations)
        except MultiFailed as failed:
            if not isinstance(failed.error, NodeExists | BadVersion | NoNode):
                raise failed.error from failed
            continue  # somebody was faster: look who
        except UnknownOutcome:
            unsettled = attempt
            continue
        _refuse_another_session(zookeeper, session)
        raised = results[-1]
        assert isinstance(raised, Stat)
        assert raised.version == attempt.epoch_zk_version, (raised, attempt)
        return Won(attempt.leadership(), attempt.takes_over)
    raise ElectionUndecided(broker_id)


async def _look(zookeeper: ZooKeeperClient, session: int) -> tuple[Row | None, Row | None]:
    """Both znodes, with everything in them that was decided before now. In `session`, or not at all: a client asks on
    in its next session, and a write made there would belong to that one."""
    await zookeeper.sync(CONTROLLER_EPOCH)
    reading = await zookeeper.read([CONTROLLER, CONTROLLER_EPOCH])
    _refuse_another_session(zookeeper, session)
    controller, epoch = reading.rows
    return controller, epoch


def _refuse_another_session(zookeeper: ZooKeeperClient, session: int) -> None:
    if zookeeper.session() != session:
        raise SessionGone(session)


async def _create_epoch(zookeeper: ZooKeeperClient) -> None:
    """Creates /controller_epoch. Whatever comes of it, the next look shows."""
    try:
        await zookeeper.seize([Create(CONTROLLER_EPOCH, encode_controller_epoch(INITIAL_CONTROLLER_EPOCH))])
    except UnknownOutcome:
        return
    except MultiFailed as failed:
        if not isinstance(failed.error, NodeExists):
            raise failed.error from failed


def _attempt(session: int, broker_id: int, wall_ms: int, controller: Row | None, epoch: Row) -> _Attempt:
    """What to write. Where /controller is this session's own, its former term must be made void by the same multi: the
    znode is rewritten at the version that was read, and the epoch raised, which fences that term's writes."""
    term = decode_controller_epoch(CONTROLLER_EPOCH, epoch.data) + 1
    data = encode_controller(ControllerZnode(broker_id, wall_ms))
    claim: Write
    if controller is None:
        claim = Create(CONTROLLER, data, ephemeral=True)
    else:
        claim = SetData(CONTROLLER, data, controller.stat.version)
    raised = SetData(CONTROLLER_EPOCH, encode_controller_epoch(term), epoch.stat.version)
    return _Attempt(session, term, epoch.stat.version + 1, (claim, raised), controller is not None)


def _is_won(attempt: _Attempt, broker_id: int, controller: Row | None, epoch: Row | None) -> bool:
    """Whether an attempt without an answer is what the znodes now show."""
    return (
        controller is not None
        and epoch is not None
        and _is_owned_by(controller, attempt.session)
        and _controller_id(controller) == broker_id
        and epoch.stat.version == attempt.epoch_zk_version
        and decode_controller_epoch(CONTROLLER_EPOCH, epoch.data) == attempt.epoch
    )


def _is_owned_by(controller: Row, session: int) -> bool:
    return controller.stat.ephemeral_owner == session


def _controller_id(controller: Row) -> int:
    return decode_controller(CONTROLLER, controller.data).broker_id
