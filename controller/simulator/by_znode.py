"""What operators ask of a controller by znodes that it watches: reassignments and preferred elections, as Kafka's old
tools did, and that it move nothing by choice. The writes alone, as a tool that reads first would send them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from controller.simulator.plan import ElectLeaders, Reassign
from controller.zookeeper import paths
from controller.zookeeper.codecs import (
    PreferredElection,
    Reassignments,
    decode_preferred_election,
    decode_reassignments,
    encode_preferred_election,
    encode_reassignments,
)
from controller.zookeeper.codecs_pause import Pause, encode_pause
from controller.zookeeper.memory.server import InMemoryZooKeeper
from controller.zookeeper.operations import Create, SetData, Write

WRITTEN = "written"
WHY = "the plan says so"


def paused() -> Sequence[Write]:
    return (Create(paths.CONTROLLER_PAUSE, encode_pause(Pause(WHY, 0))),)


def asked_for(zookeeper: InMemoryZooKeeper, operation: Reassign | ElectLeaders) -> Sequence[Write]:
    """Beside what is asked for there already; a later word on the same partition counts."""
    key = (operation.topic, operation.partition)
    if isinstance(operation, Reassign):
        path = paths.REASSIGN_PARTITIONS
        row = zookeeper.row(path)
        moves = Reassignments({}) if row is None else decode_reassignments(path, row.data)
        data = encode_reassignments(replace(moves, replicas={**moves.replicas, key: tuple(operation.replicas)}))
    else:
        path = paths.PREFERRED_ELECTION
        row = zookeeper.row(path)
        election = PreferredElection(()) if row is None else decode_preferred_election(path, row.data)
        data = encode_preferred_election(
            replace(election, partitions=tuple(dict.fromkeys((*election.partitions, key))))
        )
    return (Create(path, data),) if row is None else (SetData(path, data, row.stat.version),)
