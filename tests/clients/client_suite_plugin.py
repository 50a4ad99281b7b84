"""A pytest plugin for the integration tests of client libraries: they get a broker that runs already.

`tests.clients.client_suites` loads it into the process that runs one file of such tests. It replaces the fixtures that
start Kafka, leaves out the tests that use none of them, and records of each test its outcome and what it needed.

`needs_of` is the one rule of what a test needs: it looks at the requests that the client sends, or would send if the
broker offered them. A test that uses a port or a file for TLS or SASL is skipped, and needs security.
"""

from __future__ import annotations

import json
import os
import sys
import unittest
from collections.abc import Callable, Generator, Mapping
from functools import wraps
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Final, NoReturn

import pytest

from controller.protocol.codec import ApiKey

LIBRARY: Final = "CAMERLENGO_CLIENT_SUITE_LIBRARY"
SERVER: Final = "CAMERLENGO_CLIENT_SUITE_SERVER"
RECORD: Final = "CAMERLENGO_CLIENT_SUITE_RECORD"
"""The file that gets a line of JSON for each test that was collected, and one for each that has ended."""

MISSING: Final = "brokers of this project have no "
SECURITY: Final = "security"

OF_SECURITY: Final = frozenset(
    {
        ApiKey.SASL_HANDSHAKE,
        ApiKey.SASL_AUTHENTICATE,
        ApiKey.DESCRIBE_ACLS,
        ApiKey.CREATE_ACLS,
        ApiKey.DELETE_ACLS,
        ApiKey.CREATE_DELEGATION_TOKEN,
        ApiKey.RENEW_DELEGATION_TOKEN,
        ApiKey.EXPIRE_DELEGATION_TOKEN,
        ApiKey.DESCRIBE_DELEGATION_TOKEN,
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
    }
)


def needs_of(key: int) -> str | None:
    """Return what a broker must have to answer a request with this API key, of what this project's brokers have not, or
    None."""
    return SECURITY if key in OF_SECURITY else None


class Run:
    """What the tests of this process needed, and how they ended."""

    def __init__(self, record: Path) -> None:
        self._record = record
        self._needs: set[str] = set()
        self._outcome = "passed"
        self._reason = ""

    def write(self, **line: object) -> None:
        with self._record.open("a") as record:
            record.write(json.dumps(line) + "\n")

    def needed(self, what: str | None) -> None:
        if what is not None:
            self._needs.add(what)

    def asked(self, request: Any) -> None:
        """A client is about to send `request`, an object or a class of kafka-python's or of aiokafka's."""

        self.needed(needs_of(request.API_KEY))

    def without(self, what: str) -> NoReturn:
        """End the test that runs: the broker has no such thing."""
        self.needed(what)
        raise unittest.SkipTest(MISSING + what)

    def begin(self) -> None:
        self._needs, self._outcome, self._reason = set(), "passed", ""

    def saw(self, report: pytest.TestReport) -> None:
        if report.skipped and self._outcome == "passed":
            self._outcome = "skipped"
            self._reason = str(report.longrepr[2]) if isinstance(report.longrepr, tuple) else ""
            _, _, missing = self._reason.partition(MISSING)
            self.needed(missing or None)  # a fixture of several tests is skipped once, with this reason in all of them
        elif report.failed and self._outcome != "failed":
            self._outcome, self._reason = "failed", _reason_of(report)

    def end(self, test: str) -> None:
        self.write(test=test, outcome=self._outcome, needs=sorted(self._needs), reason=self._reason)


def _reason_of(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    words = report.longreprtext.strip().splitlines()[-1:] if crash is None else crash.message.strip().splitlines()[:1]
    return f"{report.when}: {' '.join(words)}" if report.when != "call" else " ".join(words)


class Unavailable:
    """A port, a folder of certificates or a tool that this project's brokers have not: its use skips the test."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def __getattr__(self, _name: str) -> NoReturn:
        self._run.without(SECURITY)

    def __truediv__(self, _name: object) -> NoReturn:
        self._run.without(SECURITY)

    def __str__(self) -> str:
        self._run.without(SECURITY)

    def __format__(self, _spec: str) -> str:
        self._run.without(SECURITY)


class KafkaPython:
    """kafka-python's tests, in its folder `test`. Their `KafkaFixture` can use a broker that runs."""

    conftest = "test.integration.conftest"
    fixtures = frozenset({"kafka_broker", "kafka_broker_factory", "sasl_kafka", "ssl_kafka"})

    def __init__(self, run: Run, server: str) -> None:
        self._run = run
        service: Any = ModuleType("test.service")  # the distribution has no such file
        service.ExternalService = service.SpawnedService = lambda *_: None
        sys.modules["test.service"] = service
        self._host, _, port = server.rpartition(":")
        self._port = int(port)

    def listen(self) -> None:
        """Record what clients send."""
        repeat_metadata_requests()
        from kafka.errors import IncompatibleBrokerVersion
        from kafka.net.connection import KafkaConnection
        from kafka.protocol.broker_version_data import BrokerVersionData

        connection: Any = KafkaConnection
        connection._send_request = _before(connection._send_request, self._run.asked)
        versions: Any = BrokerVersionData
        choose = versions.api_version

        @wraps(choose)
        def chosen(data: Any, operation: Any, *arguments: Any, **options: Any) -> Any:
            try:
                return choose(data, operation, *arguments, **options)
            except IncompatibleBrokerVersion:
                if hasattr(operation, "API_KEY"):
                    self._run.asked(operation)
                raise

        versions.api_version = chosen

    def replace(self, conftest: Any) -> None:
        """Let their `KafkaFixture` name the broker that runs."""
        fixture = conftest.KafkaFixture

        def instance(broker_id: int, *, transport: str = "PLAINTEXT", partitions: int = 4, **_rest: Any) -> Any:
            if transport.upper() != "PLAINTEXT":
                self._run.without(SECURITY)
            return fixture(self._host, self._port, broker_id, partitions=partitions, external=True)

        fixture.instance = instance


def repeat_metadata_requests() -> None:
    """Repeat a Metadata request that was under way when a consumer subscribed: kafka-python 3.0.12 forgets then that
    it needs another, for `metadata_max_age_ms`, and the consumer gets no records (its `set_topics` says so)."""
    from kafka.cluster import ClusterMetadata

    metadata: Any = ClusterMetadata
    set_topics = metadata.set_topics

    @wraps(set_topics)
    def set_and_ask(cluster: Any, topics: Any) -> Any:
        under_way, told = cluster._refresh_future, set_topics(cluster, topics)
        if under_way is not None:
            under_way.add_both(lambda _: cluster.request_update())
        return told

    metadata.set_topics = set_and_ask


class Aiokafka:
    """aiokafka's tests, in its folder `tests`. Their fixtures start Kafka in a container."""

    conftest = "aiokafka_tests.conftest"
    fixtures = frozenset({"kafka_server", "setup_test_class"})

    def __init__(self, run: Run, server: str) -> None:
        self._run = run
        docker: Any = ModuleType("docker")
        docker.models = SimpleNamespace(containers=SimpleNamespace(Container=object))
        sys.modules["docker"] = docker
        self._host, _, port = server.rpartition(":")
        self._port = int(port)

    def listen(self) -> None:
        """Record what clients send."""
        from aiokafka.conn import AIOKafkaConnection

        connection: Any = AIOKafkaConnection
        connection.send = _before(connection.send, self._run.asked)

    def replace(self, conftest: Any) -> None:
        """Let their fixtures name the broker that runs."""
        unavailable: Any = Unavailable(self._run)
        server = conftest.KafkaServer(self._host, self._port, unavailable, unavailable, unavailable, None)
        conftest.kafka_server = pytest.fixture(scope="session")(lambda: server)
        for name in ("ssl_folder", "acl_manager", "kafka_config", "kerberos_utils"):
            setattr(conftest, name, pytest.fixture(name=name, scope="session")(lambda: unavailable))


SUITES: Final[Mapping[str, type[KafkaPython | Aiokafka]]] = {"kafka-python": KafkaPython, "aiokafka": Aiokafka}


def _before(method: Callable[..., Any], hook: Callable[[Any], None]) -> Callable[..., Any]:
    @wraps(method)
    def called(self: Any, request: Any, *arguments: Any, **options: Any) -> Any:
        hook(request)
        return method(self, request, *arguments, **options)

    return called


class Plugin:
    """The hooks of the process that runs one file."""

    def __init__(self, suite: KafkaPython | Aiokafka, run: Run) -> None:
        self._suite = suite
        self._run = run

    @pytest.hookimpl(tryfirst=True)
    def pytest_plugin_registered(self, plugin: object) -> None:
        """Called for each conftest.py before pytest looks for the fixtures in it."""
        if isinstance(plugin, ModuleType) and plugin.__name__ == self._suite.conftest:
            self._suite.replace(plugin)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Leave out the tests that use no broker."""
        chosen = [item for item in items if self._suite.fixtures & set(getattr(item, "fixturenames", ()))]
        config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
        items[:] = chosen
        for item in chosen:
            self._run.write(collected=item.nodeid)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self._run.begin()
        answer = yield
        self._run.end(item.nodeid)
        return answer

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._run.saw(report)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """In the process that runs one file (`-p tests.clients.client_suite_plugin`), before its conftest.py is loaded."""
    run = Run(Path(os.environ[RECORD]))
    suite = SUITES[os.environ[LIBRARY]](run, os.environ[SERVER])
    suite.listen()
    early_config.pluginmanager.register(Plugin(suite, run), "client-suite")
