"""docs/events.md, made from the code: `python -m tests.core.event_table` prints it.

Which events there are and who handles them is the controller's own table. What a handler may do is read from its source
and from that of every function of the core's that it may reach: the states that it moves partitions and replicas to,
what it may send to brokers, and the znodes that it names. A path that is never taken counts: it says what may happen.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, get_type_hints

from controller.core import controller, events, loading
from controller.core.controller import HANDLERS, Controller
from controller.core.handlers.failover import WATCHED_NODES, WATCHED_PARENTS
from controller.core.request_batch import RequestBatch
from controller.core.state_changes import ElectionRule
from controller.zookeeper import paths
from controller.zookeeper.row_writes import StatePaths

CORE = "controller.core"
MOVES = {"PartitionState": "partitions", "ReplicaState": "replicas"}
SENT = {
    "update_metadata": ("UpdateMetadata",),
    "send_live_brokers": ("UpdateMetadata",),
    "leader_and_isr": ("LeaderAndIsr", "UpdateMetadata"),  # which goes with it
    "stop_replicas": ("StopReplica",),
}

KAFKAS: Mapping[str, str] = {
    "SessionExpired": "Expire",
    "Shutdown": "ShutdownEventThread",
    "UncleanLeaderElectionEnabled": "UncleanLeaderElectionEnable",
    "TopicConfigChange": "TopicUncleanLeaderElectionEnable",
    "AlterIsrRequested": "AlterIsrReceived",
    "ControlledShutdownRequested": "ControlledShutdown",
    "StopReplicaResponseReceived": "TopicDeletionStopReplicaResponseReceived",
    "ElectLeadersRequested": "ReplicaLeaderElection",
    "PreferredElectionAsked": "ReplicaLeaderElection",
    "AutoPreferredElection": "AutoPreferredReplicaLeaderElection",
    "ReassignmentAsked": "ZkPartitionReassignment",
    "ReassignmentIsrChange": "PartitionReassignmentIsrChange",
    "AlterReassignmentsRequested": "ApiPartitionReassignment",
    "ListReassignmentsRequested": "ListPartitionReassignments",
    "UpdateFeaturesRequested": "UpdateFeatures",
    "AllocateProducerIdsRequested": "AllocateProducerIds",
    "PauseChanged": "-",
    "CreateTopicsRequested": "-",
    "CreatePartitionsRequested": "-",
    "DeleteTopicsRequested": "-",
    "RetryDeletions": "-",
}
"""Where Kafka's event of the kind has another name; "-": Kafka has none."""
ALL_OF_KAFKAS = (
    "Startup",
    "ControllerChange",
    "Reelect",
    "RegisterBrokerAndReelect",
    "Expire",
    "ShutdownEventThread",
    "BrokerChange",
    "BrokerModifications",
    "ControlledShutdown",
    "TopicChange",
    "PartitionModifications",
    "TopicDeletion",
    "TopicDeletionStopReplicaResponseReceived",
    "ZkPartitionReassignment",
    "ApiPartitionReassignment",
    "PartitionReassignmentIsrChange",
    "ListPartitionReassignments",
    "AutoPreferredReplicaLeaderElection",
    "ReplicaLeaderElection",
    "UncleanLeaderElectionEnable",
    "TopicUncleanLeaderElectionEnable",
    "IsrChangeNotification",
    "AlterIsrReceived",
    "LeaderAndIsrResponseReceived",
    "UpdateMetadataResponseReceived",
    "LogDirEventNotification",
    "UpdateFeatures",
    "AllocateProducerIds",
)
"""Of 2.8 and later, without those that only wake its thread."""

OWN: Mapping[type, Callable[..., Any]] = {
    events.Startup: Controller._start,
    events.RegisterBrokerAndReelect: Controller._start,
    events.Reelect: Controller._stand,
    events.ControllerChange: Controller._controller_change,
    events.SessionExpired: Controller._session_expired,
    events.Shutdown: Controller._stop,
}
"""Which `Controller._dispatch` takes itself; a test holds this against its source."""


@dataclass(slots=True)
class Reach:
    """What may happen from one function on."""

    partitions: set[str] = field(default_factory=set)
    replicas: set[str] = field(default_factory=set)
    sent: set[str] = field(default_factory=set)
    znodes: set[str] = field(default_factory=set)
    calls: list[Any] = field(default_factory=list)


def reach_of(function: Callable[..., Any]) -> Reach:
    """Of a function and of all that it may call."""
    whole, seen, left = Reach(), set(), [function]
    while left:
        one = left.pop()
        if one in seen:
            continue
        seen.add(one)
        own = _own(one)
        whole.partitions |= own.partitions
        whole.replicas |= own.replicas
        whole.sent |= own.sent
        whole.znodes |= own.znodes
        left += own.calls
    return whole


@cache
def _own(function: Any) -> Reach:
    """Of a function alone, with the functions of the core's that it names."""
    reach = Reach()
    module = sys.modules[function.__module__]
    for node in ast.walk(_functions_of(module)[function.__qualname__]):
        if isinstance(node, ast.Call):
            _note_call(node, reach)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "paths":
            _note_path(node.attr, reach)
        reach.calls += _named(node, module)
    return reach


@cache
def _functions_of(module: ModuleType) -> dict[str, ast.AST]:
    """By qualified name, those in classes too."""
    found: dict[str, ast.AST] = {}

    def look(inside: ast.AST, prefix: str) -> None:
        for node in ast.iter_child_nodes(inside):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                found[prefix + node.name] = node
            elif isinstance(node, ast.ClassDef):
                look(node, f"{prefix}{node.name}.")

    assert module.__file__ is not None
    look(ast.parse(Path(module.__file__).read_text()), "")
    return found


def _note_call(call: ast.Call, reach: Reach) -> None:
    called = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if called in SENT and isinstance(call.func, ast.Attribute):
        reach.sent.update(SENT[called])
    if called == StatePaths.__name__:
        _note_path(paths.partition_state.__name__, reach)
    if not called.startswith("move"):
        return
    for argument in call.args:
        if isinstance(argument, ast.Attribute) and isinstance(argument.value, ast.Name) and argument.value.id in MOVES:
            getattr(reach, MOVES[argument.value.id]).add(argument.attr)


def _note_path(name: str, reach: Reach) -> None:
    spelled = getattr(paths, name, None)
    if isinstance(spelled, str):
        reach.znodes.add(spelled)
    elif callable(spelled) and not name.endswith("_of") and name != "child":
        example: Callable[..., Any] = spelled
        places = len(inspect.signature(example).parameters)
        found = example("N") if name in ("broker", "config_broker") else example(*("T", "P")[:places])
        reach.znodes.add(found if isinstance(found, str) else "/brokers/topics/T/partitions/P/state")


def _named(node: ast.AST, module: ModuleType) -> Iterator[Any]:
    found: Any = None
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        found = getattr(module, node.id, None)
    elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        owner = getattr(module, node.value.id, None)
        if isinstance(owner, ModuleType):
            found = getattr(owner, node.attr, None)
        elif node.value.id == "self" and module is controller:
            found = inspect.getattr_static(Controller, node.attr, None)
    elections = found.values() if isinstance(found, dict) else (found,)
    for one in (election.decide if isinstance(election, ElectionRule) else election for election in elections):
        batch = isinstance(one, FunctionType) and one.__module__ == RequestBatch.__module__
        if isinstance(one, FunctionType) and one.__module__.startswith(CORE) and not batch:
            yield one


def put_by() -> Mapping[str, str]:
    """Event to the znode whose watch puts it."""
    found = {type(event).__name__: f"children of `{path}`" for path, event in WATCHED_PARENTS}
    found |= {type(event).__name__: f"`{path}`" for path, event in WATCHED_NODES}
    for watched in (loading._broker_modified, loading._topic_modified):
        made = get_type_hints(watched)["return"].__name__
        found[made] = {"BrokerModifications": "`/brokers/ids/N`", "PartitionModifications": "`/brokers/topics/T`"}[made]
    found["ReassignmentIsrChange"] = "`/brokers/topics/T/partitions/P/state` of one that is being reassigned"
    found["ControllerChange"] = "`/controller`"
    found["AutoPreferredElection"] = found["RetryDeletions"] = "the clock"
    return found


def _source_of(event: type) -> str:
    name = event.__name__
    watched = put_by().get(name)
    if watched is not None:
        return watched
    if name.endswith("Requested"):
        value = str(event.__annotations__.get("value", ""))
        return "a request: " + (value.rpartition(".")[2].removesuffix("Request") or name.removesuffix("Requested"))
    if name.endswith("ResponseReceived"):
        return f"a broker's answer to {name.removesuffix('ResponseReceived')}"
    return "this process"


def rows() -> Iterator[tuple[str, ...]]:
    for event, handler in [*OWN.items(), *HANDLERS.items()]:
        reach = reach_of(handler)
        where = handler.__module__.removeprefix(f"{CORE}.")
        yield (
            event.__name__,
            KAFKAS.get(event.__name__, event.__name__),
            _source_of(event),
            f"`{where}.{handler.__name__}`",
            ", ".join(sorted(reach.partitions)) or "-",
            ", ".join(sorted(reach.replicas)) or "-",
            ", ".join(sorted(reach.sent)) or "-",
            " ".join(f"`{path}`" for path in sorted(reach.znodes)) or "-",
        )


HEAD = (
    "event",
    "Kafka's",
    "put by",
    "handler",
    "partitions moved to",
    "replicas moved to",
    "brokers notified by",
    "znodes that are named",
)
PREFACE = """# The controller's events

Made from the code by `python -m tests.core.event_table`; a test holds this page against it. An event says no more than
"look again", or carries a request; what a handler may do, with all that it calls in `controller/core`, is in its row: a
path that is seldom taken counts too. What the states are is in [state machines](state-machines.md).
"""


def page() -> str:
    lines = [PREFACE, f"| {' | '.join(HEAD)} |", f"|{' --- |' * len(HEAD)}"]
    table = list(rows())
    lines += [f"| {' | '.join(row)} |" for row in table]
    kafkas = {row[1] for row in table}
    left = [name for name in ALL_OF_KAFKAS if name not in kafkas]
    if left:
        lines += ["", f"Kafka's events without a handler here: {', '.join(left)}."]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(page(), end="")
