"""Incidents as golden logs: each plan's whole log is beside it, so that a change of behaviour is read as a diff.

`pytest tests/simulator/test_golden.py --rewrite-golden` writes them anew; look at the diff before keeping it. What must
be in each log, whatever else changes, is said here too.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from controller.scenarios.files import load_plan
from controller.simulator.columns import log_text
from controller.simulator.swarm import run_plan
from tests.simulator.golden_logs import hold

FOLDER = Path(__file__).parent / "golden"

SHOWN = {
    "s01-zombie-controller": ("** pause 3", "ELECTED, controller epoch 2", "RESIGNS epoch 1"),
    "s02-requests-of-an-epoch-that-is-over": (
        "-> 1 LeaderAndIsr #4",
        "** depose",
        "ELECTED, controller epoch 2",
        "refuses LeaderAndIsr: controller 3 has epoch 1, the latest seen is 2",
        "** resume 3",
        "RESIGNS epoch 1",
        "refuses UpdateMetadata: controller 3 has epoch 1, the latest seen is 2",
    ),
    "s03-controller-deleted": ("** delete-controller", "ELECTED, controller epoch 2", "RESIGNS epoch 1"),
    "s04-events-of-a-term-that-is-over": (
        "** depose",
        "ELECTED, controller epoch 2",
        "** expire 2",
        "[controller 1, epoch 2] brokers added (), dead (2,)",
        "[controller 1, epoch 2] 1 new topics: meanwhile-0",
        "** resume 3",
        "RESIGNS epoch 1",
    ),
    "s06-old-session-lingers": ("** kill 2", "/brokers/ids/2 gone", "new [2]"),
    "s08-won-and-not-told": ("** lose-reply node=3 applied=yes", "ELECTED, controller epoch 2"),
    "s09-zookeeper-away": ("RESIGNS epoch 1: the lease ran out", "ELECTED, controller epoch 2"),
    "s11-a-batch-that-is-dropped-with-its-term": (
        "** expire 2",
        "** delete-controller",
        "[controller 3, epoch 1] brokers added (), dead (2,)",
        "RESIGNS epoch 1: controller epoch 1 is over: /controller_epoch has left version 1; nothing was written",
        "[controller 3, epoch 3] failover took",
        "[controller 3, epoch 3] brokers added (), dead (1,)",
    ),
    "s12-cut-off-for-ever": ("RESIGNS epoch 1: the lease ran out", "ELECTED, controller epoch 2"),
    "s17-session-ends-while-leaders-go-back": (
        "1 partitions go back to their preferred leaders",
        "** expire 3",
        "ELECTED, controller epoch 2",
        "RESIGNS epoch 1",
    ),
    "s18-stopped-while-a-deletion-waits": (
        "deletion of 1 topics waits",
        "** stop 3",
        "session 0x100000000000003 is over",
        "ELECTED, controller epoch 2",
        "1 topics are deleted",
    ),
    "s20-shutdown-without-zookeeper": (
        "** kill-zookeeper",
        "** stop 1",
        "controlled shutdown, 3 of 3",
        "going all the same, as the attempts are used up",
        "session 0x100000000000004 is over",
        "** end kill-zookeeper",
    ),
    "s22-many-brokers-at-once": ("** expire 4", "sees brokers: dead [1 2 4]", "-> 3 LeaderAndIsr"),
    "s27-a-change-in-the-gap": (
        "** cut-zookeeper node=3",
        "** expire 2",
        "** end cut-zookeeper node=3",
        "sees brokers: bounced [2]",
    ),
    "s28-isrs-that-flap": (
        "** expire 2",
        "-> 3 UpdateMetadata #7 (4)",
        "asks for ISR [4 2] of t-0",
        "-> 3 UpdateMetadata #10 (2)",
        "** expire 2",
    ),
    "s29-bounce": ("bounced [2]",),
    "s33-a-request-without-an-answer": (
        "-> 1 UpdateMetadata #1",
        "-> 1 LeaderAndIsr #2",
        "** reset source=3 target=1",
        "<- 1 UpdateMetadata #1",
        "<- 1 LeaderAndIsr #2",
    ),
    "s34-zombie-that-fetches": (
        "** cut-zookeeper node=2",
        "ISR [1 3] v1 (replica offline)",
        "t-0 is not followed any more: leader epoch 0 is over, the next one is waited for",
        "leader 3 epoch 2",
        "leader 1 epoch 4",
        "** end cut-zookeeper node=2",
        "follower of t-0, leader 1 epoch 4",
        "ISR [1 3 2]",
    ),
    "s37-last-of-the-isr": ("leader -1 epoch 3 ISR [3]", "no leader elected (offline)"),
    "s38-controller-and-follower": ("** kill 3", "UpdateMetadata #0", "ISR [2 1] v1 (replica offline)"),
    "s39-in-sync-on-its-way-out": (
        "asks for ISR [1 3 2] of t-2 in epoch 1, now [1 3]",
        "** stop 2",
        "broker 2 may not go yet",
        "ISR changes refused for now, 1 of 1; t-2: INELIGIBLE_REPLICA",
        "going all the same",
        "sees brokers: new [2]",
        "leader 1 epoch 1 ISR [1 3 2] v2 (alter isr)",
    ),
    "s43-role-while-a-change-is-asked-for": (
        "** cut source=4 target=3",
        "asks for ISR [4 3 1 2] of t-0 in epoch 1",
        "leader 4 epoch 2 ISR [4 3] v2 (replica offline)",
        "asks for ISR [4 3 2] of t-0 in epoch 2",
        "** end cut source=4 target=3",
        "leader 4 epoch 2 ISR [4 3 2] v3 (alter isr)",
    ),
    "s46-controlled-shutdown": ("(controlled shutdown)", "-> 2 LeaderAndIsr"),
    "s47-leader-without-zookeeper": (
        "** cut-zookeeper node=2",
        "wrote t-0: leader 3 epoch 1 ISR [3 1] v1 (offline)",
        "** end cut-zookeeper node=2",
        "follower of t-0, leader 3 epoch 1",
        "ISR [3 1 2] v2 (alter isr)",
    ),
    "s49-target-and-controller-bounce": (
        "** reassign topic=t replicas=[1, 4]",
        "** kill 1",
        "** kill 3",
        "ELECTED, controller epoch 2",
        "sees brokers: new [1]",
        "the target of 1 partitions is in sync: t-0",
        "ISR [4 1] v9 (replica offline)",
    ),
    "s51-two-words-one-partition": (
        "replicas=[1, 4] znode=yes",
        "-> 1 LeaderAndIsr",
        "** reassign topic=t replicas=[2, 3]",
        "-> 1 StopReplica",
        "** delete-controller",
        "ELECTED, controller epoch 2",
        "the target of 1 partitions is in sync: t-0",
        "leader 3 epoch 6 ISR [3 2]",
    ),
    "s53-target-with-a-broken-directory": (
        "** break-log-directory node=1",
        "log directory /logs/a is offline",
        "ISR [4 3 2] v1 (replica offline)",
        "** reassign topic=t replicas=[1, 4]",
        "asks for ISR [3 4 1] of t-0",
        "leader 1 epoch 3 ISR [4 1]",
    ),
    "s54-removed-and-in-sync": (
        "** reassign topic=t replicas=[1, 4]",
        "leader 1 epoch 2 ISR [3 4 1] v3 (reassigned)",
        "leader 1 epoch 3 ISR [4 1] v4 (replica offline)",
        "-> 3 StopReplica",
    ),
    "s55-reassigned-away-while-dead": (
        "** kill 4",
        "** reassign topic=t replicas=[1, 3]",
        "sees brokers: new [4]",
        "** delete-topic",
        "1 topics are deleted",
        "** create-topic",
        "its files are set aside",
        "leader of t-0, leader 4 epoch 0",
    ),
    "s56a-deleted-without-a-state": (
        "** kill 3",
        "no leader yet: t-1, t-4",
        "** delete-topic",
        "deletion of 1 topics waits",
        "sees brokers: new [3]",
        "1 topics are deleted",
    ),
    "s56b-partitions-of-a-topic-that-goes": (
        "** delete-topic",
        "deletion of 1 topics waits",
        "** add-partitions topic=t partitions=3",
        "1 topics are deleted",
    ),
    "s56c-deletion-taken-up": ("** delete-topic topic=t", "** delete-controller", "ELECTED, controller epoch 3"),
    "s61-wall-clocks-that-are-set": (
        "** pause 1",
        "** step-wall node=2 by_ms=-3.6e+06",
        "** step-wall node=3 by_ms=3.6e+06",
        "asks for ISR [2 3] of t-0",
        "** end pause node=1",
        "asks for ISR [2 3 1] of t-0",
    ),
    "shutdown-held-back": (
        "** kill 3",
        "** stop 1",
        "broker 1 may not go yet: 2 partitions would be left under min.insync.replicas: t-0 (1 of 2), t-1 (1 of 2)",
        "controlled shutdown, 1 of 3: 2 partitions are still this broker's: t-0, t-1",
        "sees brokers: new [3]",
        "(alter isr)",
        "broker 1 is shutting down",
        "(replica offline)",
        "controlled shutdown: everything was moved",
    ),
}
"""By plan, in this order."""

NEVER = {
    "s04-events-of-a-term-that-is-over": (
        "[controller 3, epoch 1] brokers added (), dead",
        "[controller 3, epoch 1] 1 new topics: m",
    ),
    "s11-a-batch-that-is-dropped-with-its-term": ("batch is not empty",),
    "s61-wall-clocks-that-are-set": ("RESIGNS", "dead [1]"),
}
"""What must be nowhere in a log."""


def test_every_plan_has_a_log_and_says_what_it_shows() -> None:
    assert sorted(SHOWN) == sorted(path.stem for path in FOLDER.glob("*.toml"))
    assert sorted(SHOWN) == sorted(path.stem for path in FOLDER.glob("*.log"))


@pytest.mark.parametrize("name", sorted(SHOWN))
def test_the_log_is_the_one_expected(name: str, pytestconfig: pytest.Config) -> None:
    plan = load_plan(FOLDER / f"{name}.toml")
    run = run_plan(plan)
    assert run.violation is None, str(run.violation)
    log = log_text(run.records, plan.cluster.nodes)
    hold(log, FOLDER / f"{name}.log", SHOWN[name], rewrite=pytestconfig.getoption("--rewrite-golden"))
    assert [words for words in NEVER.get(name, ()) if words in log] == []
