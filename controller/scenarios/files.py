"""Scenarios and plans as TOML files: reading checks everything.

A scenario's parameters are set as it is read. A plan that is written reads back as an equal plan. The key `plan`, whose
value is the format, distinguishes a plan file from a scenario file.
"""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec

from controller.scenarios.conditions import CONDITIONS, MILESTONES
from controller.scenarios.event_counters import EVENT_COUNTERS
from controller.scenarios.faults import NODE_FIELDS, BreakLogDirectory, CreateTopic, KillZooKeeper, Reassign, kind_of
from controller.scenarios.invariants import INVARIANTS
from controller.scenarios.language import (
    FORMAT,
    ClusterSpec,
    CreateTopics,
    Happening,
    HoldTransaction,
    Plan,
    Produce,
    Quiesce,
    ReleaseTransaction,
    Scenario,
    Wait,
)
from controller.scenarios.records.checks import GROUP_RECORD_CHECKS, RECORD_CHECKS, TRANSACTION_RECORD_CHECKS
from controller.scenarios.records.section import section_error, transactions_error
from controller.scenarios.records.workload import ACKS_ALL, ACKS_LEADER, ACKS_NONE

Parameter = str | int | float | bool

_REFERENCE = re.compile(r"\$\{([^}]*)\}")
_LIMITS = {"brokers": (1, 1000), "zookeeper_servers": (1, 3), "session_timeout_ms": (100, 600_000)}


FORMER_WORDS: Mapping[tuple[str, str], str] = {("do", "mend"): "heal-all", ("how", "nobody"): "no-broker"}
"""Words that older files have, by key and value, and what is read in their place."""


class ScenarioError(Exception):
    """A scenario or plan that can't be used; the message names the file and the place, and says what was expected."""


def built_in() -> dict[str, str]:
    """The built-in scenarios: name to TOML text, by name."""
    folder = resources.files("controller.scenarios") / "builtin"
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".toml")), key=lambda file: file.name)
    return {file.name.removesuffix(".toml"): file.read_text() for file in files}


def near_miss(word: str, names: Iterable[str]) -> str:
    """Return " (did you mean NAME?)" for the name that is most like the word, or "" where none is."""
    known = list(names)
    found = difflib.get_close_matches(word, known, n=1) or [name for name in known if len(word) > 2 and word in name]
    return f" (did you mean {found[0]}?)" if found else ""


def load_scenario(name_or_path: str, settings: Mapping[str, str] | None = None, others: Iterable[str] = ()) -> Scenario:
    """The scenario of that name, or in that file. `settings` are `--set` values by parameter name, as text. `others`
    are further names that the caller would have taken; an error lists them too.

    Raises ScenarioError, also for a parameter that the scenario does not have.
    """
    texts = built_in()
    if name_or_path in texts:
        return parse_scenario(texts[name_or_path], name_or_path, settings)
    path = Path(name_or_path)
    if not path.is_file():
        names = [*texts, *others]
        raise ScenarioError(
            f"{name_or_path}: expected a file, or one of {', '.join(names)}{near_miss(name_or_path, names)}"
        )
    return parse_scenario(_text(path), name_or_path, settings)


def parse_scenario(text: str, source: str, settings: Mapping[str, str] | None = None) -> Scenario:
    tree = _tree(text, source)
    parameters = _parameters(tree.get("parameters", {}), dict(settings or {}), source)
    body = {key: _substitute(value, parameters, source) for key, value in tree.items() if key != "parameters"}
    scenario: Scenario = _converted(body | {"parameters": parameters}, Scenario, source)
    _check(scenario, source)
    return scenario


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ScenarioError(f"{path}: {error}") from error


def _tree(text: str, source: str) -> dict[str, Any]:
    try:
        tree: dict[str, Any] = _with_current_words(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise ScenarioError(f"{source}: not TOML: {error}") from error
    return tree


def _with_current_words(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: FORMER_WORDS.get((key, item), item) if isinstance(item, str) else _with_current_words(item)
            for key, item in value.items()
        }
    return [_with_current_words(item) for item in value] if isinstance(value, list) else value


def _converted(tree: dict[str, Any], kind: type[Any], source: str) -> Any:
    try:
        return msgspec.convert(tree, kind)
    except msgspec.ValidationError as error:
        raise ScenarioError(f"{source}: {error}") from error


def _parameters(declared: Any, settings: dict[str, str], source: str) -> dict[str, Parameter]:
    if not isinstance(declared, dict):
        raise ScenarioError(f"{source}: parameters: expected a table, found {declared!r}")
    values: dict[str, Parameter] = {}
    for name, default in declared.items():
        if not isinstance(default, str | int | float | bool):
            raise ScenarioError(f"{source}: parameters.{name}: expected a string, number or boolean, found {default!r}")
        values[name] = _parse_like(default, settings.pop(name), name) if name in settings else default
    if settings:
        unknown = ", ".join(f"{name}{near_miss(name, values)}" for name in sorted(settings))
        raise ScenarioError(f"{source}: no parameter {unknown}; it has {', '.join(values) or 'none'}")
    return values


def _parse_like(default: Parameter, text: str, name: str) -> Parameter:
    """`text` as the type that the parameter's default has."""
    expected = type(default).__name__
    try:
        if isinstance(default, bool):
            return {"true": True, "false": False}[text.lower()]
        return type(default)(text)
    except (ValueError, KeyError):
        raise ScenarioError(f"--set {name}={text}: expected {expected}, as its default {default!r}") from None


def _substitute(value: Any, parameters: Mapping[str, Parameter], source: str) -> Any:
    if isinstance(value, dict):
        return {key: _substitute(item, parameters, source) for key, item in value.items()}
    if isinstance(value, list):
        return [_substitute(item, parameters, source) for item in value]
    if not isinstance(value, str):
        return value
    for name in _REFERENCE.findall(value):
        if name not in parameters:
            raise ScenarioError(
                f"{source}: ${{{name}}}: no such parameter; there are {', '.join(parameters) or 'none'}"
            )
    whole = _REFERENCE.fullmatch(value)
    if whole:
        return parameters[whole[1]]
    return _REFERENCE.sub(lambda match: str(parameters[match[1]]), value)


def _check(scenario: Scenario, source: str) -> None:
    """Check the rules that the types do not express."""
    for key, (low, high) in _LIMITS.items():
        value = getattr(scenario.cluster, key)
        if not low <= value <= high:
            raise ScenarioError(f"{source}: cluster.{key}: expected {low} to {high}, found {value}")
    if scenario.cluster.zookeeper_servers == 2:
        raise ScenarioError(f"{source}: cluster.zookeeper_servers: expected 1 or 3, found 2")
    for kind in scenario.expect.failovers:
        if kind not in ("broker", "controller"):
            raise ScenarioError(f"{source}: expect.failovers: expected broker or controller, found {kind!r}")
    for key, bounds in (("at_most", scenario.expect.at_most), ("at_least", scenario.expect.at_least)):
        for name in bounds:
            if name not in EVENT_COUNTERS:
                raise ScenarioError(f"{source}: expect.{key}: no {name!r}; there are {', '.join(EVENT_COUNTERS)}")
    for name in scenario.expect.invariants or ():
        if name not in (known_names := [*INVARIANTS, *RECORD_CHECKS, *GROUP_RECORD_CHECKS, *TRANSACTION_RECORD_CHECKS]):
            known = ", ".join(known_names)
            raise ScenarioError(f"{source}: expect.invariants: no {name!r}; there are {known}")
    for index, step in enumerate(scenario.steps):
        place = f"{source}: steps[{index}]"
        if isinstance(step, Wait) and step.until not in CONDITIONS:
            raise ScenarioError(f"{place}: until: no {step.until!r}; there are {', '.join(CONDITIONS)}")
        if isinstance(step, Wait) and step.after is not None and step.after not in MILESTONES:
            raise ScenarioError(f"{place}: after: no {step.after!r}; there are {', '.join(MILESTONES)}")
        if isinstance(step, Wait) and CONDITIONS[step.until].needs_node and step.node is None:
            raise ScenarioError(f"{place}: until = {step.until!r} needs a node")
        if isinstance(step, Wait) and CONDITIONS[step.until].needs_topic != (step.topic is not None):
            expected = "needs a topic" if step.topic is None else "takes no topic"
            raise ScenarioError(f"{place}: until = {step.until!r} {expected}")
        if isinstance(step, CreateTopics):
            _check_topics(step, scenario.cluster, place)
    _check_records(scenario, source)


def _check_records(scenario: Scenario, source: str) -> None:
    records, transactions = scenario.workload.records, scenario.workload.transactions
    steps = [type(step) for step in scenario.steps if isinstance(step, Produce | Quiesce)]
    if steps not in ([], [Produce], [Produce, Quiesce]):
        raise ScenarioError(f"{source}: steps: expected produce once, and quiesce once after it, if at all")
    if records is None and transactions is None:
        if steps:
            raise ScenarioError(f"{source}: steps: produce needs [workload.records] or [workload.transactions]")
        return
    error = None if records is None else section_error(records, scenario.expect.lost)
    if error is None and transactions is not None:
        error = transactions_error(transactions, records)
    if error is not None:
        raise ScenarioError(f"{source}: {error}")
    if not steps:
        raise ScenarioError(f"{source}: workload.records: no step produces them")
    for index, step in enumerate(scenario.steps):
        if isinstance(step, HoldTransaction | ReleaseTransaction) and transactions is None:
            raise ScenarioError(f"{source}: steps[{index}]: {kind_of(step)} needs [workload.transactions]")


def _check_topics(step: CreateTopics, cluster: ClusterSpec, place: str) -> None:
    if step.count < 1 or step.partitions < 1:
        raise ScenarioError(f"{place}: count and partitions: expected 1 or more")
    for replicas in step.assignment:
        if not replicas or len({*replicas}) != len(replicas) or not {*replicas} <= {*cluster.nodes}:
            raise ScenarioError(
                f"{place}: assignment: expected different brokers of 1 to {cluster.brokers}, found {list(replicas)}"
            )
    if not 1 <= step.replication_factor <= cluster.brokers:
        raise ScenarioError(
            f"{place}: replication_factor: expected 1 to {cluster.brokers} (the brokers),"
            f" found {step.replication_factor}"
        )


# -- plans


def is_plan(path: Path) -> bool:
    """Return True for a TOML file with a plan's key. An unreadable file is not a plan: its next reader reports why."""
    try:
        return "plan" in tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
        return False


def load_plan(path: Path) -> Plan:
    return parse_plan(_text(path), str(path))


def parse_plan(text: str, source: str) -> Plan:
    """Raise ScenarioError for what is not TOML, not a plan, or names brokers that there are not."""
    tree = _tree(text, source)
    untimed = [index for index, each in enumerate(tree.get("happenings", ())) if "at_ms" not in each]
    if untimed:
        raise ScenarioError(f"{source}: happenings[{untimed[0]}]: at_ms: expected a time")
    plan: Plan = _converted(tree, Plan, source)
    problem = plan_error(plan)
    if problem is not None:
        raise ScenarioError(f"{source}: {problem}")
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
    if plan.records is not None and plan.records.transform and not (plan.records.members and plan.records.ledger):
        return "records: transform: expected members, and a ledger to write to"
    if plan.records is not None and plan.records.acks not in (ACKS_ALL, ACKS_LEADER, ACKS_NONE):
        return f"records: acks: expected -1, 1 or 0, found {plan.records.acks}"
    for index, happening in enumerate(plan.happenings):
        error = _happening_error(plan, happening)
        if error is not None:
            return f"happenings[{index}] ({kind_of(happening)}): {error}"
    return None


def _happening_error(plan: Plan, happening: Happening) -> str | None:
    cluster = plan.cluster
    if not 0 <= happening.at_ms <= plan.calm_ms:
        return f"at_ms: expected 0 to calm_ms ({plan.calm_ms:g}), found {happening.at_ms:g}"
    for name in NODE_FIELDS:
        node = getattr(happening, name, None)
        if isinstance(node, int) and node not in cluster.nodes:
            return f"{name}: expected 1 to {cluster.brokers}, found {node}"
    match happening:
        case KillZooKeeper(server=int(server)) if not 1 <= server <= cluster.zookeeper_servers:
            return f"server: expected 1 to {cluster.zookeeper_servers}, found {server}"
        case CreateTopic() if happening.replication_factor > cluster.brokers:
            return f"replication_factor: expected 1 to {cluster.brokers} (the brokers)"
        case Reassign() if not _are_nodes(plan, happening.replicas):
            return f"replicas: expected brokers 1 to {cluster.brokers}, each once"
        case BreakLogDirectory() if happening.directory not in cluster.log_directories:
            return f"directory: expected one of {list(cluster.log_directories)}, found {happening.directory}"
    return None


def _are_nodes(plan: Plan, replicas: list[int]) -> bool:
    return len(set(replicas)) == len(replicas) and set(replicas) <= set(plan.cluster.nodes)


def plan_text(plan: Plan) -> str:
    """Return the plan as TOML."""
    fields = msgspec.to_builtins(plan)
    happenings, cluster, records = fields.pop("happenings"), fields.pop("cluster"), fields.pop("records")
    lines = [f"{key} = {_value(value)}" for key, value in fields.items()]
    lines += _table("[cluster]", cluster)
    if records is not None:
        lines += _table("[records]", records)
    for happening in happenings:
        lines += _table("[[happenings]]", happening)
    return "\n".join(lines) + "\n"


_UNLESS_SET = {
    "members": 0,
    "group_session_ms": 6_000,
    "static_members": False,
    "ledger": "",
    "writers": 0,
    "transform": False,
    "transaction_timeout_ms": 10_000,
    "when": True,
    "as": "",
    "other_than": (),
    "racks": (),
}
"""Fields that are written only with another value."""


def _table(head: str, fields: dict[str, Any]) -> list[str]:
    written = {key: value for key, value in fields.items() if key not in _UNLESS_SET or value != _UNLESS_SET[key]}
    return ["", head, *(f"{key} = {_value(value)}" for key, value in written.items())]


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
