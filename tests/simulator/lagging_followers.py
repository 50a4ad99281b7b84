"""The swarm with ZooKeeper followers that lag, and with our calls of `sync` left out: how many seeds until one of them
finds it.

    python -m tests.simulator.lagging_followers --seeds 0..14 --lag-ms 400                      # must find nothing
    python -m tests.simulator.lagging_followers --seeds 0..14 --lag-ms 400 --without broker-looks

Each broker is at a follower of its own, which applies a transaction up to `--lag-ms` later than the leader.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from controller.clock import Future
from controller.simulator.plan_generator import draw_plan
from controller.simulator.swarm import PlanRun, run_plan
from controller.zookeeper.client import ZooKeeperClient

CALLERS = {
    "broker-looks": "_look_at",  # broker_writes.py
    "election-looks": "_look",  # leadership.py
    "isr-changes": "_catch_up",  # isr_changes.py
    "unknown-outcomes": "_settle",  # row_writes.py
}
"""Where our code calls `sync`: the function that does."""


@contextmanager
def without_sync(place: str) -> Iterator[None]:
    """Make the calls of `sync` from one place do nothing."""
    sync, caller = ZooKeeperClient.sync, CALLERS[place]

    def skipped(self: ZooKeeperClient, path: str) -> Future[None]:
        return Future.resolved(None) if sys._getframe(1).f_code.co_name == caller else sync(self, path)

    ZooKeeperClient.sync = skipped  # type: ignore[method-assign]
    try:
        yield
    finally:
        ZooKeeperClient.sync = sync  # type: ignore[method-assign]


def run(seed: int, lag_ms: float, without: str | None = None) -> PlanRun:
    """Run one seed of the swarm with lagging followers."""
    if without is None:
        return run_plan(draw_plan(seed), lag_ms)
    with without_sync(without):
        return run_plan(draw_plan(seed), lag_ms)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0..14", metavar="FIRST..LAST")
    parser.add_argument("--lag-ms", type=float, default=400.0)
    parser.add_argument("--without", choices=CALLERS, help="where sync is not called")
    options = parser.parse_args()
    first, last = map(int, options.seeds.split(".."))
    for seed in range(first, last + 1):
        violation = run(seed, options.lag_ms, options.without).violation
        if violation is not None:
            print(f"seed {seed}: {violation}")
            return 1
    print(f"seeds {first} to {last}: no violation")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
