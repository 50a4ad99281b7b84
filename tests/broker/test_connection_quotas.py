"""Limits on connections: the rules, in times that are given, and their settings."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.broker.quotas import connections
from controller.broker.quotas.connections import ConnectionQuotas, ConnectionSettings, TooFast, TooMany
from controller.broker.quotas.rules import Window
from controller.broker.settings import BadSettings, parse_settings
from controller.protocol.admin import RESOURCE_BROKER
from controller.protocol.errors import ErrorCode
from tests.broker.data_node import DataNode
from tests.broker.test_configs import altered, described, set_to


def parsed(**given_texts: str) -> ConnectionSettings:
    names = {"broker.id": "1", "zookeeper.connect": "h:1", "listeners": "CLIENTS://:9092,BROKERS://:9093"}
    protocols = {"listener.security.protocol.map": "CLIENTS:PLAINTEXT,BROKERS:PLAINTEXT"}
    brokers = {"inter.broker.listener.name": "BROKERS"}
    texts = {name.replace("_", "."): text for name, text in given_texts.items()}
    return parse_settings(names | protocols | brokers | texts).quotas.connections


def test_the_settings_are_kafka_s() -> None:
    assert parsed() == ConnectionSettings(protected="BROKERS")
    some = parsed(
        max_connections="100",
        max_connections_per_ip="5",
        max_connections_per_ip_overrides="10.0.0.1:7, ::1:2",
        max_connection_creation_rate="50",
        listener_name_clients_max_connections="60",
        listener_name_clients_max_connection_creation_rate="20",
        quota_window_num="3",
    )
    assert some == ConnectionSettings(
        100, {"CLIENTS": 60}, 5, {"10.0.0.1": 7, "::1": 2}, 50, {"CLIENTS": 20}, "BROKERS", Window(3)
    )


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("max_connections_per_ip", "0", "max.connections.per.ip=0: expected max.connections.per.ip.overrides"),
        ("max_connections_per_ip_overrides", "host:3", "expected ADDRESS:NUMBER"),
        ("max_connections_per_ip_overrides", "10.0.0.1:-1", "expected a number from 0 on"),
        ("listener_name_clients_max_connections", "0", "expected a whole number, 1 or more"),
        ("max_connection_creation_rate", "-1", "max.connection.creation.rate=-1: expected"),
    ],
)
def test_wrong_limits_are_refused(name: str, text: str, says: str) -> None:
    with pytest.raises(BadSettings, match=says.replace(".", r"\.")):
        parsed(**{name: text})


class Model:
    """Connections as a list, and the limits as sums over it."""

    def __init__(self, settings: ConnectionSettings) -> None:
        self.settings = settings
        self.open: list[tuple[str, str]] = []

    def has_place(self, listener: str) -> bool:
        of_listener = sum(one == listener for one, _ in self.open)
        if of_listener >= self.settings.most_of.get(listener, 10**9):
            return False
        return listener == "BROKERS" or len(self.open) < self.settings.most

    def may(self, host: str) -> bool:
        return sum(one == host for _, one in self.open) < self.settings.per_ip_overrides.get(host, self.settings.per_ip)


LIMITS = ConnectionSettings(6, {"CLIENTS": 4}, 3, {"b": 1}, protected="BROKERS")
COMINGS = st.lists(st.tuples(st.sampled_from(["CLIENTS", "OTHERS", "BROKERS"]), st.sampled_from("abc"), st.booleans()))


def check_places(comings: list[tuple[str, str, bool]]) -> None:
    quotas, model = ConnectionQuotas(LIMITS), Model(LIMITS)
    for listener, host, leaves in comings:
        if leaves and model.open:
            quotas.closed(*model.open.pop(0))
        assert quotas.has_place(listener) is model.has_place(listener)
        if not model.has_place(listener):
            continue
        if model.may(host):
            quotas.open(listener, host, 0)
            model.open.append((listener, host))
        else:
            with pytest.raises(TooMany):
                quotas.open(listener, host, 0)
        assert (quotas.total, quotas.excess) == (len(model.open), max(len(model.open) - LIMITS.most, 0))
    for one in model.open:
        quotas.closed(*one)
    assert (quotas.total, quotas._of_ip, quotas._of_listener) == (0, {}, {})


@given(COMINGS)
def test_places_are_those_that_are_not_taken(comings: list[tuple[str, str, bool]]) -> None:
    check_places(comings)


def test_a_rate_makes_connections_wait_no_longer_than_a_sample() -> None:
    quotas = ConnectionQuotas(ConnectionSettings(rate=10, rate_of={"CLIENTS": 5}, protected="BROKERS"))
    waits = [quotas.wait_ms("CLIENTS", 1_000) for _ in range(60)]
    assert waits[:50] == [0] * 50, "five a second are fifty in the window of ten seconds"
    assert waits[50:] == [min(200 * at, 1_000) for at in range(1, 11)]
    waits = [quotas.wait_ms("OTHERS", 1_000) for _ in range(60)]
    assert waits[39:41] == [0, 100], "a hundred of the broker, sixty of which were of the other listener"
    assert [quotas.wait_ms("BROKERS", 1_000) for _ in range(300)] == [0] * 300
    assert quotas.wait_ms("CLIENTS", 20_000) == 0


def test_a_connection_of_a_throttled_address_counts_for_nothing() -> None:
    quotas = ConnectionQuotas(ConnectionSettings(rate=1))
    quotas.ip_rates = {"a": 1, None: 2}
    for _ in range(10):
        assert quotas.wait_ms("CLIENTS", 1_000) == 0
        quotas.open("CLIENTS", "a", 1_000)
    for _ in range(50):
        quotas.wait_ms("CLIENTS", 1_000)
        with pytest.raises(TooFast) as refused:
            quotas.open("CLIENTS", "a", 1_000)
        assert refused.value.throttle_ms == 1_000
    assert quotas.total == 10
    assert quotas._rate.measure(Window(), 1_000).per_s == 1.0
    for _ in range(20):
        quotas.open("CLIENTS", "b", 1_000)  # of the default
    with pytest.raises(TooFast):
        quotas.open("CLIENTS", "b", 1_000)


def test_rates_of_addresses_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "ADDRESSES_MAX", 50)
    quotas = ConnectionQuotas(ConnectionSettings())
    quotas.ip_rates = {None: 1}
    for number in range(500):
        quotas.open("CLIENTS", f"10.0.0.{number}", 1_000)
    assert len(quotas._rate_of_ip) == 50


def test_rates_of_addresses_are_followed() -> None:
    node, quotas = DataNode("t"), ConnectionQuotas(ConnectionSettings())
    node.node.access.quota_store.limit(quotas)
    node.write("/config/ips/10.0.0.1", b'{"version":1,"config":{"connection_creation_rate":"3"}}')
    node.write("/config/ips/<default>", b'{"version":1,"config":{"connection_creation_rate":"9"}}')
    node.notify(b'{"version":2,"entity_path":"ips/10.0.0.1"}')
    node.notify(b'{"version":2,"entity_path":"ips/<default>"}')
    node.settle()
    assert quotas.ip_rates == {"10.0.0.1": 3, None: 9}


def test_limits_are_altered_for_a_broker_and_for_all_and_described() -> None:
    node = DataNode("t")
    static = ConnectionSettings(100, {"CLIENTS": 60}, 5, {"10.0.0.1": 7}, 50, {"CLIENTS": 20}, "BROKERS", Window(3))
    quotas = ConnectionQuotas(static)
    node.node.access.quota_store.limit(quotas)

    def alter(broker: str, **limits: str) -> None:
        changes = [set_to(name.replace("_", "."), text) for name, text in limits.items()]
        assert altered(node, RESOURCE_BROKER, broker, *changes).error_code == ErrorCode.NONE

    alter("", max_connections="9", listener_name_clients_max_connections="8")
    assert quotas.settings == replace(static, most=9, most_of={"CLIENTS": 8})
    alter("1", max_connections="4", max_connections_per_ip="3", max_connections_per_ip_overrides="::1:1")
    alter("1", max_connection_creation_rate="2", listener_name_others_max_connection_creation_rate="6")
    rates = {"CLIENTS": 20, "OTHERS": 6}
    assert quotas.settings == ConnectionSettings(4, {"CLIENTS": 8}, 3, {"::1": 1}, 2, rates, "BROKERS", Window(3))
    shown = {one.name: (one.value, one.read_only) for one in described(node, RESOURCE_BROKER, "1").configs}
    assert shown["max.connections"] == ("4", False)
    assert shown["listener.name.clients.max.connections"] == ("8", False)
    assert shown["listener.name.others.max.connection.creation.rate"] == ("6", False)
    of_all = {one.name: one.value for one in described(node, RESOURCE_BROKER, "").configs}
    assert of_all == {"max.connections": "9", "listener.name.clients.max.connections": "8"}
    wrong = {"max.connections": "many", "max.connections.per.ip": "0", "listener.name.x.max.connections": "0"}
    node.write_config("/config/brokers/1", wrong)
    node.notify(b'{"version":2,"entity_path":"brokers/1"}')
    assert quotas.settings == replace(static, most=9, most_of={"CLIENTS": 8}), "what is wrong is passed over"
    assert sum("dynamic configs of brokers: passed over" in line for line in node.trace.notes("warning")) == 3
    node.write_config("/config/brokers/<default>", {})
    node.notify(b'{"version":2,"entity_path":"brokers/<default>"}')
    assert quotas.settings == static


FAULTS: dict[str, Any] = {
    "places are never taken": ("has_place", lambda self, listener: True),
    "nothing is given back": ("closed", lambda self, listener, host: None),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    monkeypatch.setattr(ConnectionQuotas, *FAULTS[fault])
    with pytest.raises(AssertionError):
        check_places([("CLIENTS", "abc"[at % 3], False) for at in range(9)])
