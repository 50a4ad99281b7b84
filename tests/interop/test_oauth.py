"""OAUTHBEARER between Kafka 2.8 and this project: its Java client here, and brokers of both kinds among each other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from controller.broker.security.sasl_settings import ALLOW_UNSECURED
from controller.hosts.secured import CLIENT
from tests.clients.test_secured import TOPIC, UNSECURED, Secured, secured
from tests.interop.kafka import Kafka
from tests.interop.mixed import Kind, MixedCluster
from tests.interop.workload import Writer, judge
from tests.processes import eventually

__all__ = ["secured"]
MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
"""Its tokens have no signature; Kafka 2.8 checks none without a class of the operator's."""


@pytest.mark.parametrize(
    ("claims", "says", "log"),
    [
        ('unsecuredLoginStringClaim_sub="alice"', "", ""),
        (
            'unsecuredLoginStringClaim_sub="eve"',
            "TopicAuthorizationException",
            "Principal = User:eve is Denied Operation = Describe",
        ),
        (
            'unsecuredLoginStringClaim_name="alice" unsecuredLoginPrincipalClaimName="name"',
            "Authentication failed: the token names no principal",
            "listener UNSECURED failed: OAUTHBEARER: the token names no principal",
        ),
    ],
    ids=["allowed", "denied", "refused"],
)
def test_kafkas_own_client_shows_a_token(
    kafka: Kafka, secured: Secured, tmp_path: Path, claims: str, says: str, log: str
) -> None:
    config = tmp_path / "client.properties"
    options = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.jaas.config": f"{MODULE} {claims};",
        "max.block.ms": "10000",
    }
    config.write_text("".join(f"{name}={value}\n" for name, value in options.items()))
    words = ("--bootstrap-server", f"127.0.0.1:{secured.ports[UNSECURED]}", "--topic", TOPIC)
    output = kafka.run("kafka.tools.ConsoleProducer", *words, "--producer.config", str(config), given=f"{claims}\n")
    if not says:
        assert "ERROR" not in output.err + output.out, output
    assert says in output.err + output.out
    eventually(lambda: log in secured.log(), log)


class TokenCluster(MixedCluster):
    def options(self, user: str = CLIENT) -> dict[str, Any]:
        return {
            "bootstrap.servers": self.servers,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            "enable.sasl.oauthbearer.unsecure.jwt": "true",
            "sasl.oauthbearer.config": f"principal={user}",
        }


@pytest.fixture
def mixed(kafka: Kafka, tmp_path: Path) -> Iterator[TokenCluster]:
    settings = {
        "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "sasl.mechanism.inter.broker.protocol": "OAUTHBEARER",
        "listener.name.plaintext.oauthbearer.sasl.jaas.config": f'{MODULE} unsecuredLoginStringClaim_sub="broker";',
        "connections.max.reauth.ms": "3000",
    }
    ours = {Kind.OURS: {ALLOW_UNSECURED: "true"}}
    with TokenCluster(kafka, tmp_path, settings, ours, kinds={1: Kind.OURS, 2: Kind.KAFKAS}) as cluster:
        cluster.start(Kind.OURS)
        yield cluster


@pytest.mark.timeout(400)
def test_brokers_of_both_kinds_log_in_to_each_other_by_tokens(mixed: TokenCluster) -> None:
    """Also again, when their sessions end; under a controller of either kind."""
    mixed.create("tokens", [[1, 2], [2, 1]], min_insync_replicas="2")
    writer = Writer(mixed, "tokens")
    writer.advances(500)
    mixed.move_controller(Kind.KAFKAS)
    writer.advances(2_000)
    mixed.await_healed("tokens")
    writer.stop()
    judge(mixed, writer)
    logs = {number: broker.log_file.read_text(errors="replace") for number, broker in mixed.brokers.items()}
    assert "authentication of" not in logs[1]
    assert "Failed authentication" not in logs[2]
