"""What ZooKeeper says of one setting for many partitions: the topic's own config, else the dynamic config of the
controller's broker, else the cluster's, else the broker's setting, as a 2.8 controller reads them. Reads only, and at
the moment in which somebody has to know.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np

from controller.core.partition_table import Rows
from controller.core.term import Term
from controller.zookeeper import paths
from controller.zookeeper.operations import Row as Znode

T = TypeVar("T")


async def by_topic(
    term: Term, rows: Rows, said: Callable[[Term, Znode | None], T | None], fallback: T
) -> tuple[list[T], Rows]:
    """What holds for each topic that `rows` are of, and beside `rows` its place in that. `said` gives what one config
    says, None for nothing."""
    table = term.context.partitions
    numbers, places = np.unique(table.topic[rows], return_inverse=True)
    defaults = [paths.config_broker(term.broker_id), paths.CONFIG_BROKER_DEFAULT]
    names = [table.topics[number].name for number in numbers.tolist()]
    reading = await term.zookeeper.read([*defaults, *(paths.config_topic(name) for name in names)])
    own, cluster, *topics = (said(term, row) for row in reading.rows)
    default = next((one for one in (own, cluster) if one is not None), fallback)
    return [default if one is None else one for one in topics], places
