"""Settings under Kafka's names: defaults, what follows from what, and everything wrong told by its name."""

from __future__ import annotations

from dataclasses import fields

import pytest

from controller.broker.security.tls_settings import zookeeper_tls
from controller.broker.settings import (
    _SETTINGS,
    LONG_MAX,
    BadSettings,
    BrokerSettings,
    Listener,
    parse_properties,
    parse_settings,
)
from controller.storage.settings import LogSettings

LEAST = {"zookeeper.connect": "127.0.0.1:2181", "broker.id": "1"}


def parsed(**given: str) -> BrokerSettings:
    return parse_settings(LEAST | {name.replace("_", "."): value for name, value in given.items()})


def problems(given: dict[str, str]) -> tuple[str, ...]:
    with pytest.raises(BadSettings) as caught:
        parse_settings(LEAST | given)
    return caught.value.problems


def test_kafkas_defaults_hold() -> None:
    settings = parsed()
    assert settings.listeners == settings.advertised == (Listener("PLAINTEXT", "", 9092),)
    assert settings.zookeeper_session_timeout_ms == settings.zookeeper_connection_timeout_ms == 18_000
    assert settings.inter_broker_listener == "PLAINTEXT"
    assert settings.inter_broker_protocol == "2.8"
    assert (settings.controlled_shutdown_attempts, settings.controlled_shutdown_backoff_ms) == (3, 5_000)
    assert settings.controller_socket_timeout_ms == 30_000
    assert settings.socket_request_max_bytes == 104_857_600
    assert not settings.unclean_leader_election


def test_every_setting_has_its_field() -> None:
    grouped = {field for field, _, _ in _SETTINGS.values() if field.startswith(("tier_", "quota_"))}
    names = {field for field, _, _ in _SETTINGS.values()} - grouped | {
        "tiers",
        "quotas",
        "log",
        "cluster_id",
        "without_effect",
        "given",
    }
    assert names - {"log_dir", "inter_broker_security"} == {field.name for field in fields(BrokerSettings)}


def test_a_connection_has_its_own_timeout() -> None:
    assert parsed(zookeeper_connection_timeout_ms="6000").zookeeper_connection_timeout_ms == 6_000


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("broker.id", "x", "a whole number, -1 or more"),
        ("broker.id", "1001", "at most reserved.broker.max.id=1000"),
        ("broker.rack", "", "something"),
        ("listeners", "PLAINTEXT://:70000", "port up to 65535"),
        ("listeners", "PLAINTEXT", "NAME://HOST:PORT"),
        ("listeners", "", "at least one"),
        ("listeners", "PLAINTEXT://:1,PLAINTEXT://:2", "each listener's name once"),
        ("listeners", "PLAINTEXT://:1,SSL://:1", "each port once"),
        ("listeners", "MINE://:1", "MINE is not in listener.security.protocol.map"),
        ("listener.security.protocol.map", "PLAINTEXT:NONE", "NONE, which is unknown"),
        ("listener.security.protocol.map", "PLAINTEXT", "NAME:PROTOCOL"),
        ("advertised.listeners", "OTHER://h:1", "OTHER is not in listeners"),
        ("advertised.listeners", "PLAINTEXT://0.0.0.0:1", "can't be reached"),
        ("inter.broker.listener.name", "OTHER", "an advertised listener"),
        ("zookeeper.connect", "", "HOST:PORT"),
        ("zookeeper.connect", "/chroot", "HOST:PORT"),
        ("zookeeper.connect", "h:1/", "perhaps a /chroot"),
        ("zookeeper.connect", "h:port", "HOST:PORT"),
        ("zookeeper.session.timeout.ms", "0", "1 or more"),
        ("zookeeper.set.acl", "true", "camerlengo.zookeeper.digest"),
        ("camerlengo.zookeeper.digest", "user", "USER:PASSWORD"),
        ("inter.broker.protocol.version", "9.9", "2.8"),
        ("default.replication.factor", "40000", "from 1 to 32767"),
        ("unclean.leader.election.enable", "yes", "true or false"),
        ("fetch.max.bytes", "1000", "1024 or more"),
        ("log.segment.bytes", "1", "14 to 2147483647"),
        ("log.retention.ms", "week", "a whole number"),
        ("log.dirs", "/a,/b,/a", "each directory once"),
        ("queued.max.request.bytes", "5", "socket.request.max.bytes=104857600 or more"),
        ("replica.socket.timeout.ms", "400", "replica.fetch.wait.max.ms=500 or more"),
        ("replica.fetch.wait.max.ms", "30001", "at most"),
        ("log.flush.scheduler.interval.ms", "0", "1 or more"),
        ("camerlengo.address.map", "h:1", "HOST:PORT=HOST:PORT"),
        ("camerlengo.address.map", "h:1=h:2,h:1=h:3", "once"),
        ("brokr.rack", "r", "did you mean broker.rack?"),
        ("what.is.this", "1", "no setting"),
    ],
)
def test_a_bad_setting_is_named_with_what_was_expected(name: str, value: str, expected: str) -> None:
    told = problems({name: value})
    assert any(problem.startswith((name, "listeners")) and expected in problem for problem in told), told


def test_everything_wrong_is_told_at_once() -> None:
    with pytest.raises(BadSettings) as caught:
        parse_settings({"broker.id": "x", "num.partitions": "0", "unknown": "1"})
    told = "\n".join(caught.value.problems)
    for name in ("broker.id", "num.partitions", "unknown", "zookeeper.connect is required"):
        assert name in told


def test_an_id_is_needed_where_none_is_generated() -> None:
    given = {"broker.id.generation.enable": "false", "broker.id": "-1"}
    assert problems(given) == ("broker.id=-1: expected 0 or more, as none is generated",)
    assert parse_settings(LEAST | given | {"broker.id": "5000"}).broker_id == 5_000


def test_listeners_with_names_of_their_own() -> None:
    settings = parsed(
        listeners="IN://127.0.0.1:0,OUT://[::1]:9093",
        listener_security_protocol_map="IN:PLAINTEXT, OUT:PLAINTEXT",
        inter_broker_listener_name="in",
        advertised_listeners="IN://:0,OUT://example.org:19093",
    )
    assert settings.listeners == (Listener("IN", "127.0.0.1", 0), Listener("OUT", "::1", 9093))
    assert settings.protocol("OUT") == "PLAINTEXT"
    assert settings.inter_broker_listener == "IN"
    bound = settings.with_bound_ports({"IN": 40_001, "OUT": 9093}, "me")
    assert [str(listener) for listener in bound.advertised] == ["IN://me:40001", "OUT://example.org:19093"]


def test_an_authorizer_and_its_super_users() -> None:
    settings = parsed(
        authorizer_class_name="kafka.security.authorizer.AclAuthorizer", super_users="User:CN=a,O=b; User:c"
    )
    assert [str(one) for one in settings.super_users] == ["User:CN=a,O=b", "User:c"]
    assert parsed(authorizer_class_name="my.module:Rules").authorizer_class == "my.module:Rules"
    (wrong,) = problems(LEAST | {"authorizer.class.name": "org.acme.Authorizer"})
    assert "expected kafka.security.authorizer.AclAuthorizer, or MODULE:CLASS" in wrong
    (wrong,) = problems(LEAST | {"super.users": "User:a"})
    assert "expected authorizer.class.name" in wrong
    (wrong,) = problems(LEAST | {"super.users": "admin"})
    assert "TYPE:NAME" in wrong


def test_a_listener_for_the_controller_alone() -> None:
    names = {"listeners": "IN://:1,CONTROL://:2", "listener.security.protocol.map": "IN:PLAINTEXT,CONTROL:PLAINTEXT"}
    given = LEAST | names | {"inter.broker.listener.name": "IN"}
    assert parse_settings(given | {"control.plane.listener.name": "control"}).control_plane_listener == "CONTROL"
    assert parse_settings(given).control_plane_listener is None
    assert problems(given | {"control.plane.listener.name": "in"}) == (
        "control.plane.listener.name=IN: expected another than the inter-broker listener",
    )
    assert problems(given | {"control.plane.listener.name": "out"}) == (
        "control.plane.listener.name=OUT: expected an advertised listener",
    )


def test_the_listener_between_brokers_by_its_protocol() -> None:
    assert parsed(security_inter_broker_protocol="plaintext").inter_broker_listener == "PLAINTEXT"
    both = {"security.inter.broker.protocol": "PLAINTEXT", "inter.broker.listener.name": "PLAINTEXT"}
    assert "not both" in problems(both)[0]


def test_an_address_is_dialled_as_the_map_says() -> None:
    settings = parsed(camerlengo_address_map="127.0.0.1:1=127.0.0.1:11, [::1]:2=h:12")
    assert settings.dial("127.0.0.1", 1) == ("127.0.0.1", 11)
    assert settings.dial("::1", 2) == ("h", 12)
    assert settings.dial("127.0.0.1", 3) == ("127.0.0.1", 3)


def test_kafkas_own_file_is_accepted_and_what_has_no_effect_is_told() -> None:
    given = parse_properties(
        """
        # a broker of a running cluster
        broker.id=1
        listeners = PLAINTEXT://127.0.0.1:9092
        num.network.threads:3
        log.retention.hours=24
        log.cleaner.enable=true
        log.dirs=/var/kafka, \\
                 /var/kafka2
        zookeeper.connect=z1:2181,z2:2181/kafka\\u002d1
        """
    )
    settings = parse_settings(given)
    assert settings.without_effect == ("num.network.threads",)
    assert settings.log.retention_ms == 24 * 3_600_000
    assert settings.log_dirs == ("/var/kafka", "/var/kafka2")
    assert settings.zookeeper_connect == "z1:2181,z2:2181/kafka-1"


def test_the_data_planes_defaults_are_kafkas() -> None:
    settings = parsed()
    assert settings.log == LogSettings()
    assert settings.log_dirs == ()
    assert settings.fetch_max_bytes == 57_671_680
    assert (settings.replica_lag_time_max_ms, settings.replica_fetch_wait_max_ms) == (30_000, 500)
    assert settings.log_flush_scheduler_interval_ms == LONG_MAX
    assert settings.connections_max_idle_ms == 600_000


def test_log_dir_stands_in_where_no_log_dirs_are_given() -> None:
    assert parsed(log_dir="/a").log_dirs == ("/a",)
    assert parsed(log_dir="/a", log_dirs="/b,/c").log_dirs == ("/b", "/c")
    assert parsed(log_dir="/a", log_dirs="").log_dirs == ()


def test_a_scheduled_look_at_what_is_to_be_flushed_flushes_it_unless_told_otherwise() -> None:
    assert parsed(log_flush_scheduler_interval_ms="1000").log.flush_ms == 1_000
    both = {"log.flush.scheduler.interval.ms": "1000", "log.flush.interval.ms": "5000"}
    assert parse_settings(LEAST | both).log.flush_ms == 5_000


def test_all_that_is_wrong_of_the_logs_is_told_at_once() -> None:
    told = problems({"log.segment.bytes": "1", "message.max.bytes": "much", "log.roll.hours": "0"})
    assert [problem.split("=")[0] for problem in told] == ["log.segment.bytes", "message.max.bytes", "log.roll.ms"]


def test_a_file_that_can_not_be_read_is_told() -> None:
    with pytest.raises(BadSettings, match="properties file"):
        parse_properties("a=\\uXYZ")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("zookeeper.ssl.crl.enable", "true"),
        ("queued.max.requests", "50"),
        ("zookeeper.ssl.cipher.suites", "TLS_AES_128_GCM_SHA256"),
        ("client.quota.callback.class", "a.Callback"),
        ("delegation.token.master.key", "hidden"),
        ("password.encoder.secret", "hidden"),
        ("create.topic.policy.class.name", "a.Policy"),
        ("alter.config.policy.class.name", "a.Policy"),
        ("principal.builder.class", "a.Builder"),
        ("security.providers", "a.Provider"),
    ],
)
def test_what_promises_security_or_a_limit_is_refused(name: str, value: str) -> None:
    with pytest.raises(BadSettings) as refused:
        parse_settings({"broker.id": "1", "zookeeper.connect": "h:1", name: value})
    (problem,) = refused.value.problems
    assert problem.startswith(f"{name}=")
    assert "not supported" in problem
    assert "hidden" not in problem


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("zookeeper.ssl.crl.enable", "false"),
        ("queued.max.requests", "500"),
        ("replication.quota.window.num", "11"),
        ("num.io.threads", "8"),
    ],
)
def test_what_asks_for_nothing_is_accepted(name: str, value: str) -> None:
    assert parse_settings({"broker.id": "1", "zookeeper.connect": "h:1", name: value}).without_effect == (name,)


def test_the_connection_to_zookeeper_is_encrypted_as_its_settings_say() -> None:
    given = {
        "zookeeper.ssl.client.enable": "true",
        "zookeeper.ssl.truststore.location": "/a/authority.crt",
        "zookeeper.ssl.truststore.type": "PEM",
        "ssl.keystore.location": "/not/of/zookeeper.jks",
    }
    settings, problems = zookeeper_tls(given)
    assert settings is not None, problems
    assert (settings.truststore, settings.keystore) == ("/a/authority.crt", "")
    assert (settings.protocols, settings.check_hostname) == (("TLSv1.2",), True)
    assert zookeeper_tls({**given, "zookeeper.ssl.client.enable": "false"}) == (None, [])


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("zookeeper.ssl.truststore.type", "JKS", "expected PEM"),
        ("zookeeper.ssl.truststore.location", "", "expected a PEM file with whom to trust"),
        ("zookeeper.ssl.enabled.protocols", "SSLv3", "expected TLSv1.2 or TLSv1.3"),
        ("zookeeper.ssl.client.enable", "yes", "expected true or false"),
    ],
)
def test_a_wrong_setting_of_the_connection_to_zookeeper_is_named(name: str, value: str, expected: str) -> None:
    given = {
        "broker.id": "1",
        "zookeeper.connect": "h:1",
        "zookeeper.ssl.client.enable": "true",
        "zookeeper.ssl.truststore.location": "/a/authority.crt",
        "zookeeper.ssl.truststore.type": "PEM",
    }
    with pytest.raises(BadSettings) as refused:
        parse_settings({**given, name: value})
    assert all(problem.startswith("zookeeper.ssl.") for problem in refused.value.problems)
    assert any(problem.startswith(name) and expected in problem for problem in refused.value.problems)
