"""The rules that a decoded znode must satisfy beyond the JSON types, for one znode and for columns.

A codec accepts every value of the right types. No Kafka cluster can have some of those values: a broker named twice in
one replica set, an ISR of 130 members, a host name that no request can carry. The code behind the loading boundary
(elections, request encoders) relies on these rules. A value that breaks one is a DamagedZnode, like a value that cannot
be decoded: only its own topic, partition or broker is affected. `sound_X` decodes and checks. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from controller.zookeeper import paths
from controller.zookeeper.codecs import (
    INT32_MAX,
    REPLICAS_MAX,
    BrokerRegistration,
    PartitionStateZnode,
    TopicAssignment,
    decode_broker_registration,
    decode_partition_state,
    decode_topic_assignment,
)
from controller.zookeeper.codecs_columns import PartitionStateColumns, TopicAssignmentColumns
from controller.zookeeper.operations import DamagedZnode
from controller.zookeeper.row_writes import Int32s

LEADER_EPOCH_MAX = INT32_MAX - (1 << 20)
"""The highest leader epoch that is read: each election adds one, and no epoch may leave the 32 bits."""
CONTROLLER_EPOCH_MAX = INT32_MAX - 1_000_000
"""The highest controller epoch of a state that is read, which is the highest that an election gives."""
STATE_BYTES_MAX = 64 << 10
"""The most bytes of a partition's state, unknown fields included: it has to fit into a request beside others."""
TEXT_BYTES_MAX = 32_767
"""The most bytes of a string in Kafka's protocol."""
HOST_LENGTH_MAX = 255
TOPIC_NAME_LENGTH_MAX = 249
SECURITY_PROTOCOLS: Mapping[str, int] = {"PLAINTEXT": 0, "SSL": 1, "SASL_PLAINTEXT": 2, "SASL_SSL": 3}

_LEGAL_TOPIC = re.compile(r"[a-zA-Z0-9._-]+")
_PAIRWISE_WIDTH = 8
"""Up to this width duplicates are found by comparing columns, beyond it by sorting rows."""

Bools = npt.NDArray[np.bool_]


# -- topics


def topic_name_fault(name: str) -> str | None:
    """Return Kafka 2.8's error message for a topic name, or None if it is valid."""
    if not name:
        return "Topic name is illegal, it can't be empty"
    if name in (".", ".."):
        return 'Topic name cannot be "." or ".."'
    if len(name) > TOPIC_NAME_LENGTH_MAX:
        return f"Topic name is illegal, it can't be longer than {TOPIC_NAME_LENGTH_MAX} characters, topic name: {name}"
    if not _LEGAL_TOPIC.fullmatch(name):
        return (
            f'Topic name "{name}" is illegal, it contains a character other than ASCII alphanumerics, ".", "_" and "-"'
        )
    return None


def replicas_fault(replicas: Sequence[int]) -> str | None:
    """Return why these broker ids are not the replicas of a partition, or None if they can be."""
    if not replicas:
        return "it has no replicas"
    if len(replicas) > REPLICAS_MAX:
        return f"it has {len(replicas)} replicas, expected {REPLICAS_MAX} at most"
    if min(replicas) < 0 or max(replicas) > INT32_MAX:
        return f"{list(replicas)}: expected broker ids from 0 to {INT32_MAX}"
    if len(set(replicas)) != len(replicas):
        return f"{list(replicas)} names a broker twice"
    return None


def reassigning_fault(replicas: Sequence[int], adding: Sequence[int], removing: Sequence[int]) -> str | None:
    """Return why these are not the replicas of a partition that is being reassigned, or None if they can be."""
    for name, some in (("adding", adding), ("removing", removing)):
        if len(set(some)) != len(some) or not set(some) <= set(replicas):
            return f"{name} replicas {list(some)} are not some of its replicas {list(replicas)}, each once"
        if len(some) == len(replicas):
            return f"{name} replicas {list(some)} are all of its replicas"
    if set(adding) & set(removing):
        return f"replicas {sorted(set(adding) & set(removing))} are both added and removed"
    return None


def topic_fault(topic: TopicAssignment) -> str | None:
    """Return why no controller could serve the topic, or None if one can.

    `adding` and `removing` of partitions that the topic does not have are ignored.
    """
    for partition, replicas in topic.partitions.items():
        fault = replicas_fault(replicas) or reassigning_fault(
            replicas, topic.adding.get(partition, ()), topic.removing.get(partition, ())
        )
        if fault is not None:
            return f"partition {partition}: {fault}"
    return None


def sound_topic_assignment(path: str, data: bytes | None) -> TopicAssignment:
    """Raises DamagedZnode."""
    topic = decode_topic_assignment(path, data)
    if (fault := topic_fault(topic)) is not None:
        raise DamagedZnode(path, f"a topic's assignment ({fault})", data)
    return topic


def sound_topics(columns: TopicAssignmentColumns) -> tuple[TopicAssignmentColumns, dict[int, str]]:
    """The columns without the topics of no sense, and by topic number what is wrong with each of those, in the words of
    a DamagedZnode. They are not `present`, have no rows, and are not among the `damaged`, which cannot be decoded."""
    faults: dict[int, str] = {}
    for row in np.flatnonzero(_unsound_sets(columns.assignment, empty=True)).tolist():
        fault = replicas_fault(_members(columns.assignment[row]))
        faults.setdefault(int(columns.topic_index[row]), _in_topic(columns, row, fault))
    for row in sorted(columns.adding.keys() | columns.removing.keys()):
        fault = reassigning_fault(
            _members(columns.assignment[row]), columns.adding.get(row, ()), columns.removing.get(row, ())
        )
        if fault is not None:
            faults.setdefault(int(columns.topic_index[row]), _in_topic(columns, row, fault))
    return (without_topics(columns, list(faults)), faults) if faults else (columns, faults)


def _in_topic(columns: TopicAssignmentColumns, row: int, fault: str | None) -> str:
    path = paths.topic(columns.names[columns.topic_index[row]])
    return f"{path}: expected a topic's assignment (partition {columns.partition[row]}: {fault})"


def without_topics(columns: TopicAssignmentColumns, topics: Sequence[int]) -> TopicAssignmentColumns:
    """The columns without the rows of these topics, which are not `present`."""
    present = columns.present.copy()
    present[topics] = False
    kept = ~np.isin(columns.topic_index, topics)
    moved_to = np.cumsum(kept) - 1
    sizes = np.bincount(columns.topic_index[kept], minlength=len(columns.names))
    return replace(
        columns,
        present=present,
        starts=np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(sizes))),
        topic_index=columns.topic_index[kept],
        partition=columns.partition[kept],
        assignment=columns.assignment[kept],
        adding={int(moved_to[row]): one for row, one in columns.adding.items() if kept[row]},
        removing={int(moved_to[row]): one for row, one in columns.removing.items() if kept[row]},
        extra={topic: data for topic, data in columns.extra.items() if topic not in topics},
    )


# -- partition states


def state_fault(state: PartitionStateZnode) -> str | None:
    """Return why a controller cannot continue from the state, or None if it can.

    An empty ISR, and a leader or members that are not in the assignment, are contradictions that the next election
    ends.
    """
    if len(state.isr) > REPLICAS_MAX:
        return f"its ISR has {len(state.isr)} members, expected {REPLICAS_MAX} at most"
    if len(set(state.isr)) != len(state.isr):
        return f"its ISR {list(state.isr)} names a broker twice"
    if state.leader_epoch > LEADER_EPOCH_MAX:
        return _epoch_fault("leader", state.leader_epoch, LEADER_EPOCH_MAX)
    if state.controller_epoch > CONTROLLER_EPOCH_MAX:
        return _epoch_fault("controller", state.controller_epoch, CONTROLLER_EPOCH_MAX)
    return None


def sound_partition_state(path: str, data: bytes | None) -> PartitionStateZnode:
    """Raises DamagedZnode."""
    state = decode_partition_state(path, data)
    fault = state_fault(state) or _size_fault(data)
    if fault is not None:
        raise DamagedZnode(path, f"a partition's state ({fault})", data)
    return state


def state_faults(columns: PartitionStateColumns) -> dict[int, str]:
    """By row, what is wrong with the states of no sense; those that cannot be decoded are not among them."""
    faults: dict[int, str] = {}
    for row in np.flatnonzero(_unsound_sets(columns.isr, empty=False)).tolist():
        faults[row] = f"its ISR {list(_members(columns.isr[row]))} names a broker twice"
    for row in np.flatnonzero(columns.controller_epoch > CONTROLLER_EPOCH_MAX).tolist():
        faults[row] = _epoch_fault("controller", int(columns.controller_epoch[row]), CONTROLLER_EPOCH_MAX)
    for row in np.flatnonzero(columns.leader_epoch > LEADER_EPOCH_MAX).tolist():
        faults[row] = _epoch_fault("leader", int(columns.leader_epoch[row]), LEADER_EPOCH_MAX)
    for row, data in columns.extra.items():
        if (fault := _size_fault(data)) is not None:
            faults[row] = fault
    return faults


def sound_states(columns: PartitionStateColumns) -> tuple[PartitionStateColumns, dict[int, str]]:
    """The columns with the states of no sense as if they were absent, and by row what is wrong with each."""
    faults = state_faults(columns)
    if not faults:
        return columns, faults
    rows = list(faults)
    leader, isr, present = columns.leader.copy(), columns.isr.copy(), columns.present.copy()
    leader_epoch, controller_epoch = columns.leader_epoch.copy(), columns.controller_epoch.copy()
    leader[rows], isr[rows], present[rows] = -1, -1, False
    leader_epoch[rows], controller_epoch[rows] = 0, 0
    sound = replace(
        columns,
        leader=leader,
        leader_epoch=leader_epoch,
        controller_epoch=controller_epoch,
        isr=isr,
        present=present,
        extra={row: data for row, data in columns.extra.items() if row not in faults},
    )
    return sound, faults


def _epoch_fault(whose: str, epoch: int, most: int) -> str:
    return f"{whose} epoch {epoch}, expected {most} at most"


def _size_fault(data: bytes | None) -> str | None:
    size = len(data or b"")
    return f"it has {size} bytes, expected {STATE_BYTES_MAX} at most" if size > STATE_BYTES_MAX else None


# -- registrations


def registration_fault(registration: BrokerRegistration) -> str | None:
    """Return why the registration cannot be sent to other brokers, or None if it can."""
    if (fault := _text_fault("rack", registration.rack or "")) is not None:
        return fault
    for endpoint in registration.endpoints:
        if (fault := _text_fault("listener", endpoint.listener)) is not None:
            return fault
        if len(endpoint.host) > HOST_LENGTH_MAX:
            return f"its host has {len(endpoint.host)} characters, expected {HOST_LENGTH_MAX} at most"
        if endpoint.port > 65_535:
            return f"port {endpoint.port}, expected 65535 at most"
        if endpoint.security_protocol not in SECURITY_PROTOCOLS:
            named = endpoint.security_protocol[:50]
            return f"security protocol {named!r}, expected one of {', '.join(SECURITY_PROTOCOLS)}"
    return None


def _text_fault(name: str, text: str) -> str | None:
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        return f"its {name} is not Unicode text: {error.reason}"
    return f"its {name} has {size} bytes, expected {TEXT_BYTES_MAX} at most" if size > TEXT_BYTES_MAX else None


def sound_registration(path: str, data: bytes | None) -> BrokerRegistration:
    """Raises DamagedZnode."""
    registration = decode_broker_registration(path, data)
    if (fault := registration_fault(registration)) is not None:
        raise DamagedZnode(path, f"a broker registration ({fault})", data)
    return registration


# -- columns of sets


def _members(row: Int32s) -> tuple[int, ...]:
    return tuple(broker for broker in row.tolist() if broker >= 0)


def _unsound_sets(sets: Int32s, *, empty: bool) -> Bools:
    """Return as bool[n] the rows that name a broker twice or, if `empty`, no broker.

    The codec has already checked ids and lengths.
    """
    count, width = sets.shape
    unsound = np.zeros(count, dtype=np.bool_)
    if empty:
        unsound |= (sets < 0).all(axis=1)
    if width <= _PAIRWISE_WIDTH:
        for later in range(1, width):
            for earlier in range(later):
                unsound |= (sets[:, later] == sets[:, earlier]) & (sets[:, later] >= 0)
        return unsound
    wide = np.flatnonzero((sets[:, 2:] >= 0).any(axis=1) | (sets[:, 0] == sets[:, 1]))
    ordered = np.sort(sets[wide], axis=1)
    unsound[wide] |= ((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)).any(axis=1)
    return unsound
