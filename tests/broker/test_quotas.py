"""Client quotas on a broker: set and described, followed in ZooKeeper, and enforced. In virtual time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from controller.broker.metrics import metrics_of, text_of
from controller.broker.quotas import clients
from controller.broker.quotas.clients import IDLE_MS, Charge, QuotaManager, QuotaType
from controller.broker.quotas.rules import DEFAULT, THROTTLE_MS_MAX, Window
from controller.broker.request_context import Throttled
from controller.broker.security.principal import Requester, parse_principal
from controller.protocol import fetch, produce, security
from controller.protocol.client import (
    CreatableTopic,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
    MetadataRequest,
)
from controller.protocol.codec import SUPPORTED, ApiKey, RequestHeader, decode_response, encode_request
from controller.protocol.errors import ErrorCode
from controller.protocol.framing import Part, joined
from controller.protocol.schema import RequestValue
from controller.protocol.security import QuotaAlteration, QuotaEntityPart, QuotaFilterComponent, QuotaOperation
from controller.zookeeper.codecs import ConfigChange, encode_config_change
from tests.broker.data_node import DataNode
from tests.storage.batches import batch

ALICE = Requester("PLAINTEXT", "10.0.0.1", parse_principal("User:alice"))
BOB = Requester("PLAINTEXT", "10.0.0.2", parse_principal("User:bob"))


class Answer:
    def __init__(self) -> None:
        self.parts: list[Sequence[Part] | None] = []

    @property
    def throttle_ms(self) -> int:
        (parts,) = self.parts
        return parts.throttle_ms if isinstance(parts, Throttled) else 0


def send(
    node: DataNode,
    client: Requester,
    key: ApiKey,
    value: RequestValue,
    version: int | None = None,
    client_id: str = "c",
) -> tuple[Any, int]:
    """The answer (None: a request without one), and for how long its connection is muted."""
    answer = Answer()
    version = SUPPORTED[key].last if version is None else version
    frame = encode_request(RequestHeader(key, version, 7, "c"), value)
    node.node.broker.receive(frame, answer.parts.append, client)
    node.until(lambda: bool(answer.parts))
    parts = answer.parts[0]
    return decode_response(key, version, joined(parts))[1] if parts else None, answer.throttle_ms


def entity(**names: str | None) -> tuple[QuotaEntityPart, ...]:
    return tuple(QuotaEntityPart(kind.replace("_", "-"), name) for kind, name in names.items())


def alter(node: DataNode, parts: tuple[QuotaEntityPart, ...], *, validate_only: bool = False, **values: Any) -> Any:
    """`values`: None removes."""
    ops = tuple(QuotaOperation(key, value or 0.0, value is None) for key, value in values.items())
    request = security.AlterClientQuotasRequest((QuotaAlteration(parts, ops),), validate_only)
    (result,) = send(node, ALICE, ApiKey.ALTER_CLIENT_QUOTAS, request)[0].entries
    node.settle()
    return result


def describe(node: DataNode, *components: QuotaFilterComponent, strict: bool = False) -> Any:
    request = security.DescribeClientQuotasRequest(components, strict)
    answer = send(node, ALICE, ApiKey.DESCRIBE_CLIENT_QUOTAS, request)[0]
    if answer.error_code:
        return answer.error_code
    return {
        tuple((part.entity_type, part.entity_name) for part in one.entity): {v.key: v.value for v in one.values}
        for one in answer.entries
    }


def a_produce(size: int, acks: int = 1) -> produce.ProduceRequest:
    records = batch(value=b"v" * size)
    return produce.ProduceRequest(acks, 1_000, (produce.ProduceTopic("t", (produce.ProducePartition(0, records),)),))


def a_fetch(offset: int = 0, session: int = 0, epoch: int = -1, max_bytes: int = 10**6) -> fetch.FetchRequest:
    topics = (fetch.FetchTopic("t", (fetch.FetchPartition(0, offset, max_bytes),)),) if epoch < 1 else ()
    return fetch.FetchRequest(0, 0, topics, max_bytes=max_bytes, session_id=session, session_epoch=epoch)


def replicate(node: DataNode, up_to: int) -> list[int]:
    """Both followers fetch from that offset, so that the high watermark moves there; for how long each is muted."""
    topics = (fetch.FetchTopic("t", (fetch.FetchPartition(0, up_to, 10**6),)),)
    asked = [fetch.FetchRequest(0, 0, topics, replica_id=follower) for follower in (2, 3)]
    return [send(node, ALICE, ApiKey.FETCH, one)[1] for one in asked]


def records_in(answer: Any) -> int:
    return sum(len(part.records or b"") for topic in answer.responses for part in topic.partitions)


@pytest.fixture
def node() -> DataNode:
    return DataNode("t")


# -- set, described, followed


def test_quotas_are_kept_as_kafka_keeps_them_and_described(node: DataNode) -> None:
    assert alter(node, entity(user="CN=a b"), producer_byte_rate=1024.0, request_percentage=12.5).error_code == 0
    assert alter(node, entity(user="alice", client_id=None), consumer_byte_rate=5.0).error_code == 0
    assert alter(node, entity(client_id=None), controller_mutation_rate=2.0).error_code == 0
    assert alter(node, entity(ip="10.0.0.9"), connection_creation_rate=3.0).error_code == 0
    assert node.data("/config/users/CN%3Da%20b") == (
        b'{"version":1,"config":{"producer_byte_rate":"1024","request_percentage":"12.5"}}'
    )
    assert node.data("/config/users/alice/clients/<default>") == b'{"version":1,"config":{"consumer_byte_rate":"5"}}'
    assert node.notices() == [
        b'{"version":2,"entity_path":"users/CN%3Da%20b"}',
        b'{"version":2,"entity_path":"users/alice/clients/<default>"}',
        b'{"version":2,"entity_path":"clients/<default>"}',
        b'{"version":2,"entity_path":"ips/10.0.0.9"}',
    ]
    of_user = (("user", "CN=a b"),), {"producer_byte_rate": 1024.0, "request_percentage": 12.5}
    of_both = (("user", "alice"), ("client-id", None)), {"consumer_byte_rate": 5.0}
    of_clients = (("client-id", None),), {"controller_mutation_rate": 2.0}
    of_ip = (("ip", "10.0.0.9"),), {"connection_creation_rate": 3.0}
    assert describe(node) == dict([of_user, of_both, of_clients, of_ip])
    exact, any_user = QuotaFilterComponent("user", 0, "CN=a b"), QuotaFilterComponent("user", 2)
    any_client, default_client = QuotaFilterComponent("client-id", 2), QuotaFilterComponent("client-id", 1)
    assert describe(node, exact) == dict([of_user])
    assert describe(node, any_user) == dict([of_user, of_both])
    assert describe(node, any_user, strict=True) == dict([of_user])
    assert describe(node, any_user, default_client, strict=True) == dict([of_both])
    assert describe(node, any_client) == dict([of_both, of_clients])
    assert describe(node, QuotaFilterComponent("ip", 0, "10.0.0.9")) == dict([of_ip])
    assert describe(node, strict=True) == {}
    assert alter(node, entity(user="CN=a b"), producer_byte_rate=None).error_code == 0
    assert describe(node, exact) == {of_user[0]: {"request_percentage": 12.5}}


def test_a_validated_quota_is_not_set(node: DataNode) -> None:
    assert alter(node, entity(user="alice"), producer_byte_rate=1.0, validate_only=True).error_code == 0
    assert node.row("/config/users/alice") is None
    assert alter(node, entity(user="alice"), validate_only=True, bogus=1.0).error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    ("parts", "values", "says"),
    [
        ((), {"producer_byte_rate": 1.0}, "empty client quota entity"),
        (entity(group="g"), {"producer_byte_rate": 1.0}, "Unhandled client quota entity type: group"),
        (entity(user=""), {"producer_byte_rate": 1.0}, "Empty user"),
        (entity(user=".."), {"producer_byte_rate": 1.0}, ".. user"),
        (entity(user="u", ip="1.2.3.4"), {"connection_creation_rate": 1.0}, "IP entity should not be used"),
        (entity(ip="no address"), {"connection_creation_rate": 1.0}, "not a valid IP"),
        (entity(ip="1.2.3.4"), {"producer_byte_rate": 1.0}, "Invalid configuration key producer_byte_rate"),
        (entity(user="u"), {"connection_creation_rate": 1.0}, "Invalid configuration key"),
        (entity(user="u"), {"producer_byte_rate": 1.5}, "producer_byte_rate must be a LONG value"),
        (entity(ip="::1"), {"connection_creation_rate": 3e9}, "must be a INT value"),
        (entity(user="u"), {"request_percentage": float("nan")}, "expected a number, 0 or more"),
        (entity(user="u"), {"request_percentage": -1.0}, "expected a number, 0 or more"),
    ],
)
def test_a_wrong_alteration_is_refused(
    node: DataNode, parts: tuple[QuotaEntityPart, ...], values: dict[str, Any], says: str
) -> None:
    result = alter(node, parts, validate_only=False, **values)
    assert (result.error_code, result.entity) == (ErrorCode.INVALID_REQUEST, parts)
    assert says in result.error_message
    assert node.notices() == []


@pytest.mark.parametrize(
    ("components", "error"),
    [
        ((QuotaFilterComponent("", 0, "x"),), ErrorCode.INVALID_REQUEST),
        ((QuotaFilterComponent("group", 0, "x"),), ErrorCode.UNSUPPORTED_VERSION),
        ((QuotaFilterComponent("user", 2), QuotaFilterComponent("user", 1)), ErrorCode.INVALID_REQUEST),
        ((QuotaFilterComponent("user", 2), QuotaFilterComponent("ip", 2)), ErrorCode.INVALID_REQUEST),
        ((QuotaFilterComponent("user", 9),), ErrorCode.INVALID_REQUEST),
        ((QuotaFilterComponent("user", 0, None),), ErrorCode.INVALID_REQUEST),
    ],
)
def test_a_wrong_filter_is_refused(
    node: DataNode, components: tuple[QuotaFilterComponent, ...], error: ErrorCode
) -> None:
    assert describe(node, *components) == error


def rate_of(node: DataNode, user: str = "alice", client_id: str = "c") -> float | None:
    found = node.node.access.quotas.produce.quota(user, client_id)
    return None if found is None else found[1]


def test_quotas_of_others_are_followed_from_a_start_on() -> None:
    node = DataNode("t")
    node.write("/config/users/alice", b'{"version":1,"config":{"producer_byte_rate":"100"}}')
    node.settle()
    assert rate_of(node) is None, "there was no notice yet"
    node.notify(encode_config_change(ConfigChange("users/alice")))
    node.settle()
    assert rate_of(node) == 100.0
    node.write("/config/users/alice/clients", b"")
    node.write("/config/users/alice/clients/c", b'{"version":1,"config":{"producer_byte_rate":"70"}}')
    node.notify(b'{"version":2,"entity_path":"users/alice/clients/c"}')
    node.settle()
    assert rate_of(node) == 70.0
    node.write("/config/users/alice/clients/c", b"{")
    node.notify(b'{"version":2,"entity_path":"users/alice/clients/c"}')
    node.settle()
    assert rate_of(node) == 70.0, "what can't be read stays as it was known"
    assert any("what was known of it stays" in line for line in node.trace.notes("error"))
    node.write("/config/users/alice/clients/c", b'{"version":1,"config":{"producer_byte_rate":"many"}}')
    node.notify(b'{"version":2,"entity_path":"users/alice/clients/c"}')
    node.settle()
    assert rate_of(node) == 100.0
    assert any("producer_byte_rate=many: expected a number" in line for line in node.trace.notes("warning"))


def test_quotas_are_read_in_a_new_session(node: DataNode) -> None:
    node.write("/config/clients/<default>", b'{"version":1,"config":{"producer_byte_rate":"9"}}')
    node.node.access.entity_configs.changed(None)  # as ConfigWatch in a new session
    node.settle()
    assert rate_of(node) == 9.0


# -- enforced


def test_without_a_quota_nothing_is_measured(node: DataNode) -> None:
    quotas = node.node.access.quotas
    active = [quotas.active]
    assert send(node, ALICE, ApiKey.PRODUCE, a_produce(100_000))[1] == 0
    alter(node, entity(user="bob"), producer_byte_rate=1.0)
    active.append(quotas.active)
    assert send(node, ALICE, ApiKey.PRODUCE, a_produce(100_000))[1] == 0, "it is of another user"
    assert len(quotas.produce) == 0
    alter(node, entity(user="bob"), producer_byte_rate=None)
    assert [*active, quotas.active] == [False, True, False]


def test_a_producer_over_its_quota_is_throttled_until_it_is_within(node: DataNode) -> None:
    alter(node, entity(user="alice"), producer_byte_rate=1_000.0)
    answer, muted_ms = send(node, ALICE, ApiKey.PRODUCE, a_produce(20_000))
    assert answer.responses[0].partition_responses[0].error_code == 0, "its records are appended all the same"
    assert answer.throttle_time_ms == muted_ms
    assert 10_000 < muted_ms < 10_500  # 20 kB in 10 s are 2 kB/s: as long again
    assert send(node, BOB, ApiKey.PRODUCE, a_produce(20_000))[1] == 0
    node.settle(muted_ms + 1_000)
    assert send(node, ALICE, ApiKey.PRODUCE, a_produce(100))[1] == 0


def test_a_produce_without_acks_mutes_without_an_answer(node: DataNode) -> None:
    alter(node, entity(user="alice"), producer_byte_rate=1_000.0, request_percentage=1e-9)
    answer, muted_ms = send(node, ALICE, ApiKey.PRODUCE, a_produce(20_000, acks=0))
    assert answer is None
    assert muted_ms > 10_000


def test_old_versions_are_muted_too(node: DataNode) -> None:
    """Version 0 of Metadata has no throttle time; its connection is muted all the same (KIP-219)."""
    alter(node, entity(user="alice"), request_percentage=1.0)
    slow(node, 250.0)
    answer, muted_ms = send(node, ALICE, ApiKey.METADATA, MetadataRequest(None), 0)
    assert (answer.throttle_time_ms, muted_ms) == (0, 1_000)


def slow(node: DataNode, each_ms: float) -> None:
    """Each request takes so long on the broker's thread."""
    broker = node.node.broker
    handler = broker._handlers[ApiKey.METADATA]

    def handle(exchange: Any, request: Any) -> Any:
        node.clock._now_ms += each_ms
        return handler(exchange, request)

    broker._handlers[ApiKey.METADATA] = handle


def test_a_consumer_over_its_quota_is_answered_with_nothing_and_loses_nothing(node: DataNode) -> None:
    for _ in range(4):
        send(node, ALICE, ApiKey.PRODUCE, a_produce(4_000))
    replicate(node, 4)
    alter(node, entity(client_id=None), consumer_byte_rate=1_000.0)
    first, muted_ms = send(node, ALICE, ApiKey.FETCH, a_fetch(0, epoch=0))
    assert (records_in(first) // 4_000, muted_ms) == (2, 0), "at most what a whole window allows: 10 kB"
    assert first.session_id != 0
    throttled, muted_ms = send(node, ALICE, ApiKey.FETCH, a_fetch(2, first.session_id, 1))
    assert records_in(throttled) == 0
    assert throttled.session_id == first.session_id
    assert throttled.throttle_time_ms == muted_ms > 0
    node.settle(12_000)
    again, muted_ms = send(node, ALICE, ApiKey.FETCH, a_fetch(2, first.session_id, 2))
    assert (records_in(again) // 4_000, muted_ms) == (2, 0), "what was held back is sent"


def test_a_throttled_full_fetch_makes_no_session(node: DataNode) -> None:
    send(node, ALICE, ApiKey.PRODUCE, a_produce(4_000))
    replicate(node, 1)
    alter(node, entity(user="alice"), consumer_byte_rate=10.0)
    answer, muted_ms = send(node, ALICE, ApiKey.FETCH, a_fetch(0, epoch=0))
    assert (answer.session_id, records_in(answer)) == (0, 0)
    assert muted_ms > 10_000
    meter = node.node.access.quotas.fetch
    assert meter.record("alice", "c", 0.0, int(node.clock.now_ms())) == 0, "what was not sent does not count"


def test_followers_are_exempt(node: DataNode) -> None:
    alter(node, entity(user=None), consumer_byte_rate=1.0, request_percentage=1e-9)
    send(node, BOB, ApiKey.PRODUCE, a_produce(4_000))
    assert replicate(node, 0) == [0, 0]


def test_time_on_the_broker_s_thread_is_limited_for_each_request(node: DataNode) -> None:
    alter(node, entity(user="alice"), request_percentage=1.0)
    slow(node, 50.0)
    answer, muted_ms = send(node, ALICE, ApiKey.METADATA, MetadataRequest(()))
    assert 0 == answer.throttle_time_ms == muted_ms  # 50 ms in 10 s are 0.5 %
    times = [send(node, ALICE, ApiKey.METADATA, MetadataRequest(()))[1] for _ in range(3)]
    assert times[-1] == 1_000, "no longer than one sample of the window, as Kafka's"
    assert send(node, BOB, ApiKey.METADATA, MetadataRequest(()))[1] == 0


def test_the_request_quota_counts_slices_after_the_first(node: DataNode) -> None:
    node.node.access.quotas.set_quotas({QuotaType.REQUEST: {("alice", None): 0.1}})
    charge = node.node.access.quotas.charge(ALICE, RequestHeader(ApiKey.METADATA, 0, 1, "c"), 10)
    assert charge is not None

    def steps() -> Any:
        for _ in range(3):
            node.clock._now_ms += 40.0
            yield None
        return "end"

    def drive() -> Any:
        return (yield from charge.timed(steps()))

    charge.handled()
    assert list(drive()) == [None] * 3
    times: list[int] = []
    charge(times.append)
    node.settle()
    assert times == [1_000]


# -- creations and deletions of partitions


def create(node: DataNode, *topics: tuple[str, int], version: int = 7, validate_only: bool = False) -> Any:
    """By topic: the error; then the throttle time and for how long the client is muted."""
    wanted = tuple(CreatableTopic(name, count, 1) for name, count in topics)
    request = CreateTopicsRequest(wanted, 0, validate_only)
    answer, muted_ms = send(node, ALICE, ApiKey.CREATE_TOPICS, request, version)
    node.settle()
    return {one.name: one.error_code for one in answer.topics}, answer.throttle_time_ms, muted_ms


EXCEEDED = ErrorCode.THROTTLING_QUOTA_EXCEEDED


def test_a_strict_quota_of_mutations_refuses_topics_once_it_is_exhausted(node: DataNode) -> None:
    alter(node, entity(user="alice"), controller_mutation_rate=1.0)
    errors, throttle_ms, muted_ms = create(node, ("a", 15), ("b", 1), ("c", 1))
    assert errors["b"] == errors["c"] == EXCEEDED
    assert errors["a"] != EXCEEDED, "11 tokens are there, and the first that exceeds them is admitted"
    assert 3_000 < throttle_ms == muted_ms <= 4_000, "until the bucket holds no less than 0"
    topics = [one for one in node.zookeeper.rows() if one.path in ("/brokers/topics/a", "/brokers/topics/b")]
    assert [one.path for one in topics] == ["/brokers/topics/a"]
    node.settle(muted_ms)
    assert create(node, ("b", 1))[0]["b"] != EXCEEDED


def test_what_is_validated_or_known_to_fail_takes_no_token(node: DataNode) -> None:
    alter(node, entity(user="alice"), controller_mutation_rate=1.0)
    for _ in range(20):
        create(node, ("a", 10), validate_only=True)
        assert create(node, ("t", 10))[0] == {"t": ErrorCode.TOPIC_ALREADY_EXISTS}
    assert create(node, ("a", 1))[1:] == (0, 0)


def test_a_permissive_quota_of_mutations_throttles_old_clients(node: DataNode) -> None:
    alter(node, entity(user="alice"), controller_mutation_rate=1.0)
    errors, throttle_ms, muted_ms = create(node, ("a", 15), ("b", 1), version=5)
    assert EXCEEDED not in errors.values()
    assert 4_000 < throttle_ms == muted_ms <= 5_000


def test_deletions_and_new_partitions_are_counted(node: DataNode) -> None:
    node.node.access.quotas.set_quotas({QuotaType.CONTROLLER_MUTATION: {("alice", None): 0.01}})
    more = CreatePartitionsRequest((CreatePartitionsTopic("t", 3),), 0)
    answer, _ = send(node, ALICE, ApiKey.CREATE_PARTITIONS, more)
    assert [one.error_code for one in answer.results] != [EXCEEDED]
    answer, muted_ms = send(node, ALICE, ApiKey.DELETE_TOPICS, DeleteTopicsRequest((DeleteTopicState("t"),), 0))
    assert [(one.name, one.error_code) for one in answer.responses] == [("t", EXCEEDED)]
    assert muted_ms == answer.throttle_time_ms > 0
    answer, muted_ms = send(node, BOB, ApiKey.DELETE_TOPICS, DeleteTopicsRequest((DeleteTopicState("t"),), 0))
    assert answer.responses[0].error_code != EXCEEDED


# -- bounds


def manager(quota: float = 1.0) -> QuotaManager:
    made = QuotaManager(Window())
    made.set_quotas({(None, DEFAULT): quota})
    return made


def test_rates_are_bounded_in_number_and_by_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "RATES_MAX", 100)
    some = manager()
    for number in range(1_000):
        some.record("u", f"client-{number}", 1.0, 1_000 + number)
    assert len(some) == 100
    some.record("u", "late", 1.0, 1_999 + IDLE_MS + 1)
    assert len(some) == 1, "the others were idle for an hour"
    assert len(some._found) <= 100


def test_a_client_that_ignores_its_throttle_is_throttled_for_longer_and_longer() -> None:
    some = manager(1_000.0)
    times = [some.record("u", "c", 100_000.0, 1_000 + at) for at in range(50)]
    assert times == sorted(times)
    assert times[-1] > 49 * times[0]
    assert some.record("u", "c", 1e30, 2_000) == THROTTLE_MS_MAX


def test_the_default_of_the_settings_is_the_last() -> None:
    node = DataNode("t", quota_producer_default="1000")
    assert rate_of(node) == 1_000.0
    assert node.node.access.quotas.produce.quota("alice", "") is None
    alter(node, entity(client_id=None), producer_byte_rate=7.0)
    assert rate_of(node) == 7.0


FAULTS: dict[str, tuple[str, Callable[..., Any]]] = {
    "a throttled fetch is sent": ("fetched", lambda self, size_bytes: 0),
    "nothing is muted": ("_settled", lambda self: 0),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    monkeypatch.setattr(Charge, *FAULTS[fault])
    node = DataNode("t")
    test = {
        "a throttled fetch is sent": test_a_throttled_full_fetch_makes_no_session,
        "nothing is muted": test_a_producer_over_its_quota_is_throttled_until_it_is_within,
    }[fault]
    with pytest.raises(AssertionError):
        test(node)


def test_the_metrics_show_who_has_a_quota(node: DataNode) -> None:
    before = text_of(metrics_of(node.node, node.clock.now_ms()))
    assert "kafka_server_produce" not in before
    alter(node, entity(user="a b"), producer_byte_rate=1_000.0)
    client = Requester("PLAINTEXT", "10.0.0.1", parse_principal("User:a b"))
    muted_ms = send(node, client, ApiKey.PRODUCE, a_produce(20_000))[1]
    text = text_of(metrics_of(node.node, node.clock.now_ms()))
    (rate,) = (line for line in text.splitlines() if line.startswith("kafka_server_produce_byte_rate{"))
    assert rate.startswith('kafka_server_produce_byte_rate{client_id="",user="a%20b"} 2')
    assert f'kafka_server_produce_throttle_time{{client_id="",user="a%20b"}} {float(muted_ms)}' in text
