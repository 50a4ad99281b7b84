"""Reads of one setting for many partitions.

The topic's own config has precedence, then the dynamic config of the controller's broker, then the cluster's, then the
broker's setting, as in a 2.8 controller. Reads only, and only when a decision needs the value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np

from controller.core.partition_table import Rows
from controller.core.term import Term
from controller.zookeeper import paths
from controller.zookeeper.operations import Znode

T = TypeVar("T")


async def by_topic(
    term: Term, rows: Rows, said: Callable[[Term, Znode | None], T | None], fallback: T
) -> tuple[list[T], Rows]:
    """Return the value for each topic of `rows`, and for each row its place in that.

    `said` returns the value in one config, None if it has none.
    """
    table = term.context.partitions
    numbers, places = np.unique(table.topic[rows], return_inverse=True)
    defaults = [paths.config_broker(term.broker_id), paths.CONFIG_BROKER_DEFAULT]
    names = [table.topics[number].name for number in numbers.tolist()]
    reading = await term.zookeeper.read([*defaults, *(paths.config_topic(name) for name in names)])
    own, cluster, *topics = (said(term, row) for row in reading.rows)
    default = next((one for one in (own, cluster) if one is not None), fallback)
    return [default if one is None else one for one in topics], places
