"""A cluster as columns for asking what the loss of brokers would do to it. From a tree's value to arrays; no I/O.

What may be lost are the brokers that are registered. What a topic asks for (`min.insync.replicas`,
`unclean.leader.election.enable`) is its own setting, else the cluster's dynamic default, else what the caller says:
a broker's server.properties are not in ZooKeeper.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from controller.zookeeper import codecs, paths
from controller.zookeeper.cluster_state import ClusterState
from controller.zookeeper.errors import DamagedZnode
from controller.zookeeper.tree import Tree
from statemachines.leader_election_columns import Ids, Mask, elect_offline_columns, live_mask

MIN_IN_SYNC = "min.insync.replicas"
UNCLEAN = "unclean.leader.election.enable"
NOBODY = -1


@dataclass(frozen=True, slots=True)
class TopicDefaults:
    """What holds for a topic that sets nothing itself, in a cluster that sets no dynamic default (Kafka's own are 1
    and False)."""

    min_in_sync: int = 1
    unclean: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class ClusterColumns:
    """n partitions, a row each, as they stand once everything that can be led is led.

    `brokers`: the registered ones' ids, ascending; `racks` by broker, "" for none. `assignment` and `isr` are padded
    with -1; `isr` has live members only, `leader` is -1 where no replica can lead. `live` is bool beside `assignment`.
    """

    brokers: tuple[int, ...]
    racks: Mapping[int, str]
    topics: tuple[str, ...]
    topic_index: Ids
    partition: Ids
    assignment: Ids
    isr: Ids
    leader: Ids
    live: Mask
    min_in_sync: Ids
    unclean: Mask

    def __len__(self) -> int:
        return len(self.leader)

    def name(self, row: int) -> str:
        return f"{self.topics[self.topic_index[row]]}-{self.partition[row]}"


def columns_of(state: ClusterState, tree: Tree, defaults: TopicDefaults) -> ClusterColumns:
    """`state` is what `tree` says of its cluster. A setting that can't be read counts as not set."""
    table = state.partitions
    held, states = table.assignments, table.states
    asked = [_asked_of(tree, name, defaults) for name in held.names]
    min_in_sync = np.array([one.min_in_sync for one in asked], dtype=np.int32)[held.topic_index]
    unclean = np.array([one.unclean for one in asked], dtype=np.bool_)[held.topic_index]
    racks = {
        broker.broker_id: (broker.registration.rack if broker.registration else None) or "" for broker in state.brokers
    }
    return settled(
        racks, held.names, held.topic_index, held.partition, held.assignment, states.isr, states.leader,
        min_in_sync, unclean,
    )  # fmt: skip


def settled(
    racks: Mapping[int, str],
    topics: tuple[str, ...],
    topic_index: Ids,
    partition: Ids,
    assignment: Ids,
    isr: Ids,
    leader: Ids,
    min_in_sync: Ids,
    unclean: Mask,
) -> ClusterColumns:
    """Return the cluster with the live brokers `racks`, after the controller has elected all electable leaders: a
    leader that is not live is replaced, and dead members leave the ISR."""
    brokers = tuple(sorted(racks))
    live = live_mask(assignment, brokers)
    led = live_mask(leader, brokers)
    elected = elect_offline_columns(assignment, isr, live, unclean)
    in_sync = np.full((len(leader), max(isr.shape[1], elected.isr.shape[1])), NOBODY, dtype=np.int32)
    in_sync[:, : isr.shape[1]] = isr
    in_sync[~led, : elected.isr.shape[1]] = elected.isr[~led]
    return ClusterColumns(
        brokers=brokers,
        racks=racks,
        topics=topics,
        topic_index=topic_index,
        partition=partition,
        assignment=assignment,
        isr=np.where(live_mask(in_sync, brokers), in_sync, NOBODY).astype(np.int32),
        leader=np.where(led, leader, elected.leader).astype(np.int32),
        live=live,
        min_in_sync=min_in_sync,
        unclean=unclean,
    )


def _asked_of(tree: Tree, topic: str, defaults: TopicDefaults) -> TopicDefaults:
    own, dynamic = _config(tree, paths.config_topic(topic)), _config(tree, paths.CONFIG_BROKER_DEFAULT)
    asked = {**dynamic, **own}
    words = asked.get(MIN_IN_SYNC, "")
    return TopicDefaults(
        min_in_sync=int(words) if words.isdigit() else defaults.min_in_sync,
        unclean=asked[UNCLEAN].lower() == "true" if UNCLEAN in asked else defaults.unclean,
    )


def _config(tree: Tree, path: str) -> Mapping[str, str]:
    row = tree.get(path)
    if row is None:
        return {}
    try:
        return codecs.decode_config(path, row.data).config
    except DamagedZnode:
        return {}


def replicas_of(columns: ClusterColumns, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
    """[n, width]: of each of the partitions `rows` the live brokers whose loss can matter to it, -1 after them: its
    replicas, and members of its ISR and its leader, should they be no replicas. As places in `columns.brokers`,
    ascending."""
    parts = (columns.assignment[rows], columns.isr[rows], columns.leader[rows][:, None])
    everyone = np.concatenate(parts, axis=1)
    brokers = np.array(columns.brokers, dtype=np.int32)
    places = np.searchsorted(brokers, everyone).astype(np.int32)
    there = live_mask(everyone, columns.brokers)
    far = np.int32(len(brokers))
    places = np.sort(np.where(there, places, far), axis=1)
    places[:, 1:][places[:, 1:] == places[:, :-1]] = far
    places = np.sort(places, axis=1)
    width = max(1, int((places < far).sum(axis=1).max(initial=1)))
    packed: npt.NDArray[np.int32] = np.where(places < far, places, NOBODY)[:, :width]
    return packed
