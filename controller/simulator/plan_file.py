"""Plans as TOML files: reading checks everything, and what is written reads back as an equal plan.

The key `plan`, whose value is the format, distinguishes a plan file from a scenario file.
"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import msgspec

from controller.scenarios.faults import HOSTILE_RATE_MAX, spoil_trouble
from controller.scenarios.records.workload import ACKS_ALL, ACKS_LEADER, ACKS_NONE
from controller.simulator.plan import (
    FORMAT,
    AddPartitions,
    AskIsr,
    BreakLogDirectory,
    CreateTopic,
    ElectLeaders,
    Happening,
    HostileClient,
    KillZooKeeper,
    Operation,
    Plan,
    Reassign,
    SpoilZnode,
    kind_of,
)

"""Of a hostile client's actions in a second."""


class PlanError(Exception):
    """A plan that can't be used; the message says where, and what was expected."""


def is_plan(path: Path) -> bool:
    """Return True for a TOML file with a plan's key. An unreadable file is not a plan: its next reader reports why."""
    try:
        return "plan" in tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
        return False


def load_plan(path: Path) -> Plan:
    try:
        return parse_plan(path.read_text(), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise PlanError(f"{path}: {error}") from error


def parse_plan(text: str, source: str) -> Plan:
    """PlanError for what is not TOML, not a plan, or speaks of nodes that there are not."""
    try:
        plan = msgspec.convert(tomllib.loads(text), Plan)
    except tomllib.TOMLDecodeError as error:
        raise PlanError(f"{source}: not TOML: {error}") from error
    except msgspec.ValidationError as error:
        raise PlanError(f"{source}: {error}") from error
    problem = plan_error(plan)
    if problem is not None:
        raise PlanError(f"{source}: {problem}")
    return plan


def plan_error(plan: Plan) -> str | None:
    """What the types alone do not say; None if all is well."""
    nodes = plan.cluster.nodes
    if plan.plan != FORMAT:
        return f"plan: expected format {FORMAT}, found {plan.plan}"
    if not nodes or plan.cluster.zookeeper_servers < 1:
        return "cluster: expected 1 or more brokers and ZooKeeper servers"
    if not plan.core or not set(plan.core) <= set(nodes):
        return f"core: expected some of {list(nodes)}, found {list(plan.core)}"
    if plan.records is not None and (plan.records.rate_per_s <= 0 or plan.records.in_flight < 1):
        return "records: expected a rate above 0 and 1 or more in flight"
    if plan.records is not None and plan.records.acks not in (ACKS_ALL, ACKS_LEADER, ACKS_NONE):
        return f"records: acks: expected -1, 1 or 0, found {plan.records.acks}"
    for index, happening in enumerate(plan.happenings):
        error = _happening_error(plan, happening)
        if error is not None:
            return f"happenings[{index}] ({kind_of(happening)}): {error}"
    return None


def _happening_error(plan: Plan, happening: Happening) -> str | None:
    if not 0 <= happening.at_ms <= plan.calm_ms:
        return f"at_ms: expected 0 to calm_ms ({plan.calm_ms:g}), found {happening.at_ms:g}"
    for name in ("node", "source", "target"):
        node = getattr(happening, name, None)
        if node is not None and node not in plan.cluster.nodes:
            return f"{name}: expected 1 to {plan.cluster.brokers}, found {node}"
    if isinstance(happening, KillZooKeeper) and not 1 <= happening.server <= plan.cluster.zookeeper_servers:
        return f"server: expected 1 to {plan.cluster.zookeeper_servers}, found {happening.server}"
    if isinstance(happening, CreateTopic | AddPartitions) and happening.partitions < 1:
        return "partitions: expected 1 or more"
    if isinstance(happening, CreateTopic) and not 1 <= happening.replication_factor <= plan.cluster.brokers:
        return f"replication_factor: expected 1 to {plan.cluster.brokers} (the brokers)"
    if isinstance(happening, Reassign) and not (happening.partition >= 0 and _are_nodes(plan, happening.replicas)):
        return f"partition and replicas: expected 0 or more, and brokers 1 to {plan.cluster.brokers}, each once"
    if isinstance(happening, Reassign) and happening.znode and not happening.replicas:
        return "replicas: expected some, as the znode has no way back"
    if isinstance(happening, ElectLeaders) and (happening.partition < 0 or (happening.unclean and happening.znode)):
        return "partition: expected 0 or more; unclean, or by the znode, not both"
    if isinstance(happening, AskIsr) and happening.partition < 0:
        return f"partition: expected 0 or more, found {happening.partition}"
    if isinstance(happening, SpoilZnode) and (error := spoil_trouble(happening.what, happening.topic)):
        return error
    if isinstance(happening, HostileClient) and not 0 < happening.rate <= HOSTILE_RATE_MAX:
        return f"rate: expected more than 0 and at most {HOSTILE_RATE_MAX:g} a second, found {happening.rate:g}"
    if isinstance(happening, BreakLogDirectory) and happening.directory not in plan.cluster.log_directories:
        return f"directory: expected one of {list(plan.cluster.log_directories)}, found {happening.directory}"
    if isinstance(happening, Operation) and not happening.topic:
        return "topic: expected a name"
    return None


def _are_nodes(plan: Plan, replicas: list[int]) -> bool:
    return len(set(replicas)) == len(replicas) and set(replicas) <= set(plan.cluster.nodes)


def plan_text(plan: Plan) -> str:
    """The plan as TOML."""
    fields = msgspec.to_builtins(plan)
    happenings, cluster, records = fields.pop("happenings"), fields.pop("cluster"), fields.pop("records")
    lines = [f"{key} = {_value(value)}" for key, value in fields.items()]
    lines += ["", "[cluster]", *(f"{key} = {_value(value)}" for key, value in cluster.items())]
    if records is not None:
        lines += ["", "[records]", *(f"{key} = {_value(value)}" for key, value in records.items())]
    for happening in happenings:
        lines += ["", "[[happenings]]", *(f"{key} = {_value(value)}" for key, value in happening.items())]
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value)  # TOML's basic strings escape as JSON's do
    if isinstance(value, float | int):
        return repr(value)
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(key)} = {_value(item)}" for key, item in value.items()) + " }"
    return "[" + ", ".join(_value(item) for item in value) + "]"
