"""Scenarios of the simulator's own tests: faults that the built-in ones do not have."""

from __future__ import annotations

from controller.scenarios.files import parse_scenario
from controller.scenarios.language import Scenario

_CLUSTER = """
name = "{name}"
[cluster]
brokers = 3
session_timeout_ms = 2000
[[steps]]
do = "start"
[[steps]]
do = "wait"
until = "registered"
[[steps]]
do = "wait"
until = "controller"
[[steps]]
do = "create-topics"
count = 2
partitions = 5
replication_factor = 3
[[steps]]
do = "wait"
until = "metadata"
"""

_END = """
[[steps]]
do = "wait"
until = "registered"
[[steps]]
do = "wait"
until = "metadata"
[[steps]]
do = "wait"
until = "leaders"
[expect]
all_registered = true
"""

# The controller stands still until another is elected, and for a moment more, and goes on as a zombie (S01, KAFKA-532).
PAUSED_CONTROLLER = """
[[steps]]
do = "pause"
node = "controller"
as = "zombie"
[[steps]]
do = "wait"
until = "controller"
other_than = ["zombie"]
[[steps]]
do = "let-run"
ms = 5
[[steps]]
do = "resume"
node = "zombie"
[[steps]]
do = "let-run"
ms = 1000
"""

# The controller is cut off from ZooKeeper for longer than its lease, and back before its session ends (the 4% in which
# nobody would ever stand again), then for longer than its session lasts (S12).
CUT_CONTROLLER = """
[[steps]]
do = "cut"
source = 1
target = "zookeeper"
[[steps]]
do = "cut"
source = 2
target = "zookeeper"
[[steps]]
do = "cut"
source = 3
target = "zookeeper"
[[steps]]
do = "let-run"
ms = 1600
[[steps]]
do = "heal"
source = 1
target = "zookeeper"
[[steps]]
do = "heal"
source = 2
target = "zookeeper"
[[steps]]
do = "heal"
source = 3
target = "zookeeper"
[[steps]]
do = "let-run"
ms = 1500
[[steps]]
do = "cut"
source = 1
target = "zookeeper"
[[steps]]
do = "let-run"
ms = 3500
[[steps]]
do = "heal"
source = 1
target = "zookeeper"
[[steps]]
do = "let-run"
ms = 1500
"""

EXPIRED_CONTROLLER = """
[[steps]]
do = "expire"
node = "controller"
as = "first"
[[steps]]
do = "let-run"
ms = 700
[[steps]]
do = "expire"
node = "not-controller"
[[steps]]
do = "let-run"
ms = 700
"""

# Nothing of the controller's reaches one broker while another dies; it gets it all when the link is healed.
CUT_CHANNEL = """
[[steps]]
do = "cut"
source = 1
target = 2
[[steps]]
do = "cut"
source = 2
target = 3
[[steps]]
do = "cut"
source = 3
target = 1
[[steps]]
do = "kill"
node = "not-controller"
as = "victim"
[[steps]]
do = "wait"
until = "gone"
node = "victim"
[[steps]]
do = "let-run"
ms = 500
[[steps]]
do = "heal"
source = 1
target = 2
[[steps]]
do = "heal"
source = 2
target = 3
[[steps]]
do = "heal"
source = 3
target = 1
[[steps]]
do = "wait"
until = "metadata"
[[steps]]
do = "start"
nodes = ["victim"]
"""

STOPPED_CONTROLLER = """
[[steps]]
do = "stop"
node = "controller"
as = "first"
[[steps]]
do = "wait"
until = "gone"
node = "first"
[[steps]]
do = "wait"
until = "metadata"
[[steps]]
do = "start"
nodes = ["first"]
"""

# Every broker loses its connection and comes back to the same session; then the controller dies. Who did not set its
# watch on /controller again hears nothing of that (S27).
KILLED_AFTER_RECONNECTION = (
    CUT_CONTROLLER.rpartition('[[steps]]\ndo = "cut"')[0]
    + """
[[steps]]
do = "kill"
node = "controller"
as = "victim"
[[steps]]
do = "wait"
until = "gone"
node = "victim"
[[steps]]
do = "wait"
until = "controller"
other_than = ["victim"]
[[steps]]
do = "wait"
until = "metadata"
[[steps]]
do = "start"
nodes = ["victim"]
"""
)

FAULTS = {
    "paused-controller": PAUSED_CONTROLLER,
    "cut-controller": CUT_CONTROLLER,
    "killed-after-reconnection": KILLED_AFTER_RECONNECTION,
    "expired-controller": EXPIRED_CONTROLLER,
    "cut-channel": CUT_CHANNEL,
    "stopped-controller": STOPPED_CONTROLLER,
}


def scenario(name: str) -> Scenario:
    return parse_scenario(_CLUSTER.format(name=name) + FAULTS[name] + _END, name)
