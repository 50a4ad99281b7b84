"""From a scenario file, or the name of a built-in one, to a `Scenario`: parameters set, everything checked."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec

from controller.scenarios.conditions import CONDITIONS, MILESTONES
from controller.scenarios.event_counters import EVENT_COUNTERS
from controller.scenarios.faults import InjectedFault, fault_error
from controller.scenarios.invariants import INVARIANTS
from controller.scenarios.language import Cluster, CreateTopics, Produce, Quiesce, Restart, Scenario, Wait
from controller.scenarios.records.checks import RECORD_CHECKS
from controller.scenarios.records.section import section_error

Parameter = str | int | float | bool

_REFERENCE = re.compile(r"\$\{([^}]*)\}")
_LIMITS = {"brokers": (1, 1000), "zookeeper_servers": (1, 3), "session_timeout_ms": (100, 600_000)}


class ScenarioError(Exception):
    """A scenario that can't be used; the message names the file and the place, and says what was expected."""


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
    try:
        return parse_scenario(path.read_text(), name_or_path, settings)
    except (OSError, UnicodeDecodeError) as error:
        raise ScenarioError(f"{name_or_path}: {error}") from error


def parse_scenario(text: str, source: str, settings: Mapping[str, str] | None = None) -> Scenario:
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ScenarioError(f"{source}: not TOML: {error}") from error
    parameters = _parameters(tree.get("parameters", {}), dict(settings or {}), source)
    body = {key: _substitute(value, parameters, source) for key, value in tree.items() if key != "parameters"}
    try:
        scenario = msgspec.convert(body | {"parameters": parameters}, Scenario)
    except msgspec.ValidationError as error:
        raise ScenarioError(f"{source}: {error}") from error
    _check(scenario, source)
    return scenario


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
        if name not in INVARIANTS and name not in RECORD_CHECKS:
            known = ", ".join([*INVARIANTS, *RECORD_CHECKS])
            raise ScenarioError(f"{source}: expect.invariants: no {name!r}; there are {known}")
    for index, step in enumerate(scenario.steps):
        place = f"{source}: steps[{index}]"
        if isinstance(step, Wait) and step.until not in CONDITIONS:
            raise ScenarioError(f"{place}: until: no {step.until!r}; there are {', '.join(CONDITIONS)}")
        if isinstance(step, Wait) and step.after is not None and step.after not in MILESTONES:
            raise ScenarioError(f"{place}: after: no {step.after!r}; there are {', '.join(MILESTONES)}")
        if isinstance(step, Wait) and CONDITIONS[step.until].needs_node and step.node is None:
            raise ScenarioError(f"{place}: until = {step.until!r} needs a node")
        if isinstance(step, Restart) and step.how not in ("clean", "hard"):
            raise ScenarioError(f"{place}: how: expected clean or hard, found {step.how!r}")
        if isinstance(step, InjectedFault) and (error := fault_error(step)) is not None:
            raise ScenarioError(f"{place}: {error}")
        if isinstance(step, CreateTopics):
            _check_topics(step, scenario.cluster, place)
    _check_records(scenario, source)


def _check_records(scenario: Scenario, source: str) -> None:
    records = scenario.workload.records
    steps = [type(step) for step in scenario.steps if isinstance(step, Produce | Quiesce)]
    if steps not in ([], [Produce], [Produce, Quiesce]):
        raise ScenarioError(f"{source}: steps: expected produce once, and quiesce once after it, if at all")
    if records is None:
        if steps:
            raise ScenarioError(f"{source}: steps: produce needs [workload.records]")
        return
    error = section_error(records, scenario.expect.lost)
    if error is not None:
        raise ScenarioError(f"{source}: {error}")
    if not steps:
        raise ScenarioError(f"{source}: workload.records: no step produces them")


def _check_topics(step: CreateTopics, cluster: Cluster, place: str) -> None:
    if step.count < 1 or step.partitions < 1:
        raise ScenarioError(f"{place}: count and partitions: expected 1 or more")
    if not 1 <= step.replication_factor <= cluster.brokers:
        raise ScenarioError(
            f"{place}: replication_factor: expected 1 to {cluster.brokers} (the brokers),"
            f" found {step.replication_factor}"
        )
