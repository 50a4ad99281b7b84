"""Reads what a Kafka cluster keeps of its state from ZooKeeper, gently: one batch at a time, with a pause after each.

For looking at a cluster that has work to do: nothing is written, no watch is set, and the pauses leave the server to
its clients. What is read is not of one moment. Secrets (/config/users) and what is not Kafka's are left alone. A
coroutine over ports: knows no thread and no clock but the one it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from controller.clock import Clock
from controller.zookeeper import codecs, paths
from controller.zookeeper.client import ZooKeeperClient
from controller.zookeeper.cluster_state import state_paths_of
from controller.zookeeper.connection import BATCH
from controller.zookeeper.operations import Columns, Znode
from controller.zookeeper.tree import Tree

PAUSE_MS = 10.0
_ALONE = (
    paths.CLUSTER_ID,
    paths.CONTROLLER,
    paths.CONTROLLER_EPOCH,
    paths.FEATURE,
    paths.REASSIGN_PARTITIONS,
    paths.PREFERRED_ELECTION,
    paths.CONTROLLER_PAUSE,
    paths.CONFIG_BROKER_DEFAULT,
)
_PARENTS = (
    paths.BROKER_IDS,
    paths.BROKER_TOPICS,
    paths.DELETE_TOPICS,
    paths.ISR_CHANGE_NOTIFICATION,
    paths.LOG_DIR_EVENT_NOTIFICATION,
    paths.CONFIG_TOPICS,
)


async def read_cluster_tree(
    client: ZooKeeperClient,
    clock: Clock,
    pause_ms: float = PAUSE_MS,
    progress: Callable[[int], None] = lambda _count: None,
) -> Tree:
    """Read the znodes that `cluster_state` uses, and the topics' settings, of the cluster at the connection's chroot.

    Returns an empty tree where there are none. A znode that is created or deleted meanwhile may or may not be read.
    `progress` is called with the number of znodes of each answered batch. Raises SessionGone, or ZooKeeper's error
    (NoAuth).
    """
    reader = _PacedReader(client, clock, pause_ms, progress)
    await reader.read([*_ALONE, *_PARENTS])
    for parent in _PARENTS:
        names = (await client.children([parent])).children[0] or ()
        await reader.read([paths.child(parent, name) for name in names])
    topics = [row for path, row in reader.rows.items() if paths.topic_of(path)]
    await reader.read(_state_paths(topics))
    return Tree.of(reader.rows.values())


def _state_paths(topics: Sequence[Znode]) -> list[str]:
    """Return the paths of the topics' states; none for a damaged topic, whose partitions are not known."""
    names = [row.path.rpartition("/")[2] for row in topics]
    return state_paths_of(codecs.decode_topic_assignments(Columns.of_rows(topics, 0), names))


class _PacedReader:
    def __init__(self, client: ZooKeeperClient, clock: Clock, pause_ms: float, progress: Callable[[int], None]) -> None:
        self.rows: dict[str, Znode] = {}
        self._client = client
        self._clock = clock
        self._pause_ms = pause_ms
        self._progress = progress

    async def read(self, wanted: Sequence[str]) -> None:
        for start in range(0, len(wanted), BATCH):
            reading = await self._client.read(wanted[start : start + BATCH])
            self.rows.update((row.path, row) for row in reading.rows if row is not None)
            self._progress(len(reading.rows))
            await self._clock.sleep(self._pause_ms)
