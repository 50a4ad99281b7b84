"""What is fed with malformed inputs, and what may come of each: an outcome that is named, or the room's own refusal.

Anything else that is raised is a crash. A frame goes through a whole broker, a znode through decoder and encoder, a
reply through the request that asked for it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np

from controller.protocol import SUPPORTED, ApiKey, ProtocolError, decode_request, decode_response, encode_request
from controller.protocol.errors import MalformedFrame
from controller.protocol.framing import FrameBuffer, Part, framed
from controller.zookeeper import jute
from controller.zookeeper.codecs_columns import decode_partition_states, decode_topic_assignments
from controller.zookeeper.kazoo_session import KazooRequest, Parse, path_error
from controller.zookeeper.operations import Columns, DamagedZnode, ZooKeeperError
from tests.broker.harness import BrokerUnderTest, header
from tests.broker.test_requests import EXAMPLES
from tests.fuzz.content_targets import ContentTarget, sound_contents
from tests.fuzz.crash import Crash
from tests.fuzz.group_targets import GroupTarget, group_frames
from tests.fuzz.record_targets import BatchTarget, RecordTarget, record_frames, sound_batches
from tests.fuzz.security_targets import security_feeds
from tests.protocol.recording import recorded
from tests.zookeeper.test_codecs import codec_of, real_znodes

BROKER_LIFE = 500
"""Frames that one broker gets before another takes its place: what was well-formed enough to be obeyed is kept."""
KEY_AND_VERSION = struct.Struct(">hh")


@dataclass(frozen=True, slots=True)
class Target:
    """`sound`: inputs that are taken, to make malformed ones of. `feed` gives the outcome's name."""

    name: str
    sound: Sequence[bytes]
    feed: Callable[[bytes], str]


class BrokerTarget:
    """Request frames, as they come off a connection, into a broker that is not the controller or is."""

    def __init__(self) -> None:
        self._fed = 0
        self._broker = BrokerUnderTest()

    def feed(self, frame: bytes) -> str:
        if self._fed % BROKER_LIFE == 0:
            self._broker = BrokerUnderTest(controller=self._fed % (2 * BROKER_LIFE) == 0)
        self._fed += 1
        answers: list[Sequence[Part] | None] = []
        self._broker.broker.receive(frame, answers.append)
        records = self._broker.trace.recorder.records
        faults = self._broker.trace.notes("error") if records else []
        records.clear()
        if faults:
            raise Crash(faults[0])
        if len(answers) > 1:
            raise Crash(f"{len(answers)} answers")
        if not answers:
            return "answered later"
        return "connection closed" if answers[0] is None else "answered"


def feed_request(data: bytes) -> str:
    """Of any API, those that a broker does not serve among them."""
    try:
        decode_request(data, SUPPORTED)
    except ProtocolError:
        return "refused"
    return "taken"


def feed_response(data: bytes) -> str:
    """The first four bytes say which response it should be."""
    if len(data) < KEY_AND_VERSION.size:
        return "no frame"
    key, version = KEY_AND_VERSION.unpack_from(data)
    known = _VERSIONS[(key * 31 + version) % len(_VERSIONS)] if (key, version) not in _KNOWN else (key, version)
    try:
        decode_response(ApiKey(known[0]), known[1], data[KEY_AND_VERSION.size :])
    except MalformedFrame:
        return "refused"
    return "taken"


def feed_stream(data: bytes) -> str:
    """In pieces, as a socket gives them."""
    buffer = FrameBuffer(limit=1 << 20)
    frames = 0
    try:
        for start in range(0, len(data), 37):
            frames += len(buffer.feed(data[start : start + 37]))
    except MalformedFrame:
        return "refused"
    return "frames" if frames else "incomplete"


def feed_znode(path: str, data: bytes) -> str:
    """What is read must be written, and be read again as the same."""
    decode, encode = codec_of(path)
    try:
        value = decode(path, data)
    except DamagedZnode:
        return "damaged"
    if decode(path, encode(value)) != value:
        raise Crash(f"{path}: {value!r} is not what is read once it was written")
    return "taken"


GOOD_STATE = b'{"controller_epoch":3,"leader":2,"version":1,"leader_epoch":7,"isr":[2,3]}'
GOOD_TOPIC = b'{"partitions":{"0":[3,1]},"topic_id":"7J4s9cs7RkuJaV_xmswZqQ","adding_replicas":{},"removing_replicas":{},"version":3}'  # noqa: E501


def _columns(datas: Sequence[bytes]) -> Columns:
    return Columns.of(datas, np.zeros(len(datas), dtype=np.int32), np.zeros(len(datas), dtype=np.int64), 1)


def feed_states_column(data: bytes) -> str:
    """Between two sound rows, which it must not touch."""
    states = decode_partition_states(_columns([GOOD_STATE, data, GOOD_STATE]), 4)
    isrs = [[broker for broker in states.isr[row].tolist() if broker != -1] for row in (0, 2)]
    if states.leader[[0, 2]].tolist() != [2, 2] or isrs != [[2, 3]] * 2:
        raise Crash("a sound row was read wrong beside it")
    damaged = [index for index, _ in states.damaged]
    if not set(damaged) <= {1}:
        raise Crash(f"rows {damaged} are damaged")
    return "damaged" if damaged else "taken"


def feed_topics_column(data: bytes) -> str:
    topics = decode_topic_assignments(_columns([GOOD_TOPIC, data, GOOD_TOPIC]), ["a", "b", "c"])
    damaged = [index for index, _ in topics.damaged]
    if not set(damaged) <= {1}:
        raise Crash(f"rows {damaged} are damaged")
    return "damaged" if damaged else "taken"


class _Owner:
    """A connection, as far as reading a reply needs one."""

    def sent(self, request: KazooRequest) -> None: ...

    def reply_zxid(self) -> int:
        return 1

    def answered(self, request: KazooRequest) -> None: ...

    def failed(self, request: KazooRequest) -> None: ...


PATHS = ("/a", "/b", "/c")


def _parse_rows(message: bytes, offset: int, _zxid: int) -> object:
    return jute.read_rows(message, offset, PATHS, path_error)


def _parse_columns(message: bytes, offset: int, zxid: int) -> object:
    return jute.read_columns(message, offset, PATHS, zxid, path_error)


def _parse_listings(message: bytes, offset: int, _zxid: int) -> object:
    return jute.read_listings(message, offset, PATHS, path_error)


def _parse_multi(message: bytes, offset: int, _zxid: int) -> object:
    return jute.read_multi(message, offset, len(PATHS))


def feed_reply(parse: Parse, message: bytes) -> str:
    request = KazooRequest(_Owner(), jute.MULTI_READ, b"", parse, path="/a", session=1)
    request.deserialize(message, 0)
    if request.error is None:
        return "taken"
    if not isinstance(request.error, ZooKeeperError):
        raise Crash(f"{request.error!r}")
    return "refused"


def _replies() -> Mapping[str, tuple[Parse, list[bytes]]]:
    head = struct.Struct(">i?i")
    stat = struct.pack(">qqqqiiiqiiq", 1, 2, 3, 4, 5, 6, 7, 0, 2, 0, 9)
    end, missing = head.pack(-1, True, -1), head.pack(-1, False, -101) + struct.pack(">i", -101)
    row = head.pack(4, False, 0) + struct.pack(">i", 2) + b"{}" + stat
    names = head.pack(8, False, 0) + struct.pack(">ii", 2, 1) + b"x" + struct.pack(">i", 2) + b"yy"
    created = head.pack(1, False, 0) + struct.pack(">i", 2) + b"/a"
    return {
        "rows": (_parse_rows, [row * 3 + end, row + missing + row + end]),
        "columns": (_parse_columns, [row * 3 + end, row + missing + row + end]),
        "children": (_parse_listings, [names * 3 + end, missing + names * 2 + end]),
        "writes": (_parse_multi, [created + head.pack(5, False, 0) + stat + head.pack(13, False, 0) + end]),
    }


_EXCHANGES = [exchange for exchange in recorded() if exchange.response is not None]
_VERSIONS = sorted({(int(exchange.api_key), exchange.version) for exchange in _EXCHANGES})
_KNOWN = frozenset(_VERSIONS)


def targets() -> list[Target]:
    """Afresh: a target may keep a broker."""
    responses = [
        KEY_AND_VERSION.pack(exchange.api_key, exchange.version) + (exchange.response or b"") for exchange in _EXCHANGES
    ]
    requests = [exchange.request for exchange in recorded() if exchange.api_key in EXAMPLES]
    examples = [
        encode_request(header(key, version), value)
        for key, value in EXAMPLES.items()
        for version in range(SUPPORTED[key].first, SUPPORTED[key].last + 1)
    ]
    found = [
        Target("recorded request to a broker", requests, BrokerTarget().feed),
        Target("request to a broker", examples, BrokerTarget().feed),
        Target("requests to another broker", examples + requests, BrokerTarget().feed),
        Target("request about records", record_frames(), RecordTarget().feed),
        Target("any request to a broker with logs", record_frames() + examples + requests, RecordTarget().feed),
        Target("request about groups", group_frames(), GroupTarget().feed),
        Target("record batch", sound_batches(), BatchTarget().feed),
        Target("contents of a batch", sound_contents(), ContentTarget().feed),
        Target("request", [exchange.request for exchange in recorded()], feed_request),
        Target("response", responses, feed_response),
        Target("stream of frames", [framed(one) + framed(two) for one, two in pairwise(requests)], feed_stream),
        Target("column of states", [GOOD_STATE], feed_states_column),
        Target("column of topics", [GOOD_TOPIC], feed_topics_column),
    ]
    kinds: dict[object, tuple[str, list[bytes]]] = {}
    for path, data in real_znodes():
        kinds.setdefault(codec_of(path), (path, []))[1].append(data)
    found += [Target(f"znode {path}", sound, partial(feed_znode, path)) for path, sound in kinds.values()]
    found += [
        Target(f"reply of {kind}", sound, partial(feed_reply, parse)) for kind, (parse, sound) in _replies().items()
    ]
    return found + [Target(name, sound, feed) for name, sound, feed in security_feeds()]
