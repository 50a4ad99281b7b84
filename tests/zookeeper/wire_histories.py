"""Random histories of raw requests to a ZooKeeper server, each determined by its seed.

A history is a list of steps. A step is a burst of requests of one client, which are written before any reply is read,
or a new connection of a client. `TimedHistoryMaker` also draws what time decides: sessions that expire, containers and
TTL nodes that a server deletes.
"""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from controller.zookeeper.jute import END, INT, MULTI_HEADER, acl_entries, buffer, string, strings
from controller.zookeeper.memory.database import digest_id
from controller.zookeeper.operations import (
    ACL,
    OPEN_ACL,
    PERM_ADMIN,
    PERM_ALL,
    PERM_CREATE,
    PERM_DELETE,
    PERM_READ,
    PERM_WRITE,
)
from controller.zookeeper.server.wire import OpCode

CLIENTS = 3
STEPS = 30
"""Requests and connections of one history."""
UNKNOWN = 99
"""No request has this type."""
ENDING = frozenset((OpCode.CLOSE, OpCode.CHECK, UNKNOWN))
"""A server closes the connection after these. A check is known in a multi alone."""
LONG = struct.Struct("!q")

NAMES = ["", "/a", "/b", "/a/x", "/a/y", "/b/x", "/a/x/z", "/a/x/z"]
BAD_NAMES = ["/a//b", "/a/", "/a/../b", "/a/\u0001"]
OPEN_ACLS = 6
ACLS = [
    *[OPEN_ACL] * OPEN_ACLS,
    (ACL(PERM_READ, "world", "anyone"),),
    (ACL(PERM_READ | PERM_CREATE, "world", "anyone"), ACL(PERM_WRITE, "world", "anyone")),
    (ACL(PERM_ALL & ~PERM_DELETE, "world", "anyone"),),
    (ACL(PERM_ADMIN | PERM_READ, "world", "anyone"), ACL(PERM_ALL, "digest", digest_id("u1:p"))),
    (ACL(PERM_ALL, "auth", ""),),
    (ACL(PERM_ALL & ~PERM_READ, "world", "anyone"),),
    (ACL(PERM_ALL, "digest", digest_id("u1:p")), ACL(PERM_CREATE, "world", "anyone")),
    (ACL(PERM_ALL, "digest", digest_id("u0:p")), ACL(PERM_READ, "world", "anyone")),
    (ACL(PERM_ALL, "ip", "127.0.0.1"),),
    (ACL(PERM_ALL, "ip", "10.0.0.0/8"), ACL(PERM_READ, "ip", "127.0.0.0/8")),
    (ACL(PERM_ALL, "unknown", "x"),),
    (),
]
SHORT_TTL_MS, LONG_TTL_MS = 1, 1_000_000_000


class Connect(Enum):
    """How a client comes to a new connection in its session."""

    AFTER_CLOSING = "closes its connection and opens another"
    MOVE = "opens another connection, upon which the server closes the first"
    SILENCE = "is silent on a short session until the server closes the connection, then asks for the session"
    ABSENCE = "closes its connection, is away until its short session has expired, then asks for the session"


TIMED = frozenset((Connect.SILENCE, Connect.ABSENCE))


class Request(NamedTuple):
    """`since` is what a SetWatches' zxid lies before the last one seen, in transactions."""

    operation: int
    body: bytes
    since: int | None = None

    def __str__(self) -> str:
        name = OpCode(self.operation).name if self.operation in set(OpCode) else str(self.operation)
        return f"{name} {self.body!r}" if self.since is None else f"{name} ({self.since} ago) {self.body!r}"


@dataclass(frozen=True, slots=True)
class WireStep:
    """What one client does: requests written together, or a new connection."""

    client: int
    requests: tuple[Request, ...] = ()
    connect: Connect | None = None

    def __str__(self) -> str:
        if self.connect is not None:
            return f"client {self.client} {self.connect.value}"
        return f"client {self.client}: {'; '.join(map(str, self.requests))}"


@dataclass(slots=True)
class Remembered:
    """The watches that a client asked for since its session began, by vector of SetWatches2, and its credentials."""

    data: dict[str, None] = field(default_factory=dict)
    exists: dict[str, None] = field(default_factory=dict)
    children: dict[str, None] = field(default_factory=dict)
    persistent: dict[str, None] = field(default_factory=dict)
    recursive: dict[str, None] = field(default_factory=dict)
    credentials: dict[bytes, None] = field(default_factory=dict)

    def set_watches(self) -> bytes:
        vectors = (self.data, self.exists, self.children, self.persistent, self.recursive)
        return b"".join(strings(list(paths)) for paths in vectors)


class HistoryMaker:
    """Draws the steps of one history. Its znodes are below `root`, which exists already.

    Every fourth history is about access: few nodes are open to all, and clients prove who they are more often.
    """

    longest_burst = 4

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.root = f"/h{seed}"
        self.access = seed % 4 == 0
        self.memory = [Remembered() for _ in range(CLIENTS)]

    def steps(self) -> list[WireStep]:
        found: list[WireStep] = []
        left = STEPS
        while left > 0:
            drawn = self.step(left)
            found += drawn
            left -= sum(max(1, len(step.requests)) for step in drawn)
        return found

    def path(self) -> str:
        if self.draw.random() < 0.02:
            return self.root + self.draw.choice(BAD_NAMES)
        return self.root + self.draw.choice(NAMES)

    def paths(self) -> list[str]:
        return [self.path() for _ in range(self.draw.randrange(3))]

    def data(self) -> bytes:
        return buffer(self.draw.choice([None, b"", b"1", b"two"]))

    def version(self) -> bytes:
        return INT.pack(self.draw.choice([-1, -1, 0, 0, 1, 2]))

    def acl(self) -> bytes:
        return acl_entries(self.draw.choice(ACLS[OPEN_ACLS:] if self.access else ACLS))

    def flag(self) -> bytes:
        return bytes([self.draw.random() < 0.5])

    def ttl_ms(self) -> int:
        return self.draw.choice([100_000, 1_000_000, 0, 1 << 50])

    def write(self) -> tuple[int, bytes]:
        operation = self.draw.choice(
            [OpCode.CREATE] * 4
            + [OpCode.CREATE2, OpCode.CREATE_CONTAINER, OpCode.CREATE_TTL]
            + [OpCode.DELETE, OpCode.DELETE, OpCode.SET_DATA, OpCode.SET_DATA, OpCode.CHECK]
        )
        path = string(self.path())
        if operation == OpCode.DELETE or operation == OpCode.CHECK:
            return operation, path + self.version()
        if operation == OpCode.SET_DATA:
            return operation, path + self.data() + self.version()
        flags_of: dict[int, list[int]] = {OpCode.CREATE_CONTAINER: [4], OpCode.CREATE_TTL: [5, 5, 6, 0]}
        flags = flags_of.get(operation, [0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 3, 4, 5, 7])
        body = path + self.data() + self.acl() + INT.pack(self.draw.choice(flags))
        if operation == OpCode.CREATE_TTL:
            body += LONG.pack(self.ttl_ms())
        return operation, body

    def multi(self) -> bytes:
        rows = [self.write() for _ in range(self.draw.randrange(5))]
        return b"".join(MULTI_HEADER.pack(kind, 0, -1) + body for kind, body in rows) + END

    def request(self, client: int) -> Request:
        draw, memory = self.draw, self.memory[client]
        apart = {OpCode.CLOSE, OpCode.PING, OpCode.CHECK, OpCode.AUTH, OpCode.SASL}  # the last overtakes others
        operation: int = draw.choice(sorted(set(OpCode) - apart))
        if operation in (OpCode.CREATE, OpCode.CREATE2, OpCode.DELETE, OpCode.SET_DATA) or draw.random() < 0.3:
            operation, body = self.write()
            return Request(operation, body) if operation != OpCode.CHECK else Request(OpCode.SYNC, string(self.path()))
        name = self.path()
        path = string(name)
        if operation in (OpCode.SET_WATCHES, OpCode.SET_WATCHES2):
            vectors = 3 if operation == OpCode.SET_WATCHES else 5
            return Request(operation, b"".join(strings(self.paths()) for _ in range(vectors)), draw.randrange(6))
        if operation in (OpCode.CREATE_CONTAINER, OpCode.CREATE_TTL):
            return Request(OpCode.GET_ACL, path)
        if operation == OpCode.MULTI:
            return Request(operation, self.multi())
        if operation == OpCode.MULTI_READ:
            kinds = [OpCode.GET_DATA, OpCode.GET_CHILDREN]
            heads = [MULTI_HEADER.pack(draw.choice(kinds), 0, -1) for _ in range(3)]
            return Request(operation, b"".join(head + string(self.path()) + self.flag() for head in heads) + END)
        if operation == OpCode.SET_ACL:
            return Request(operation, path + self.acl() + self.version())
        if operation == OpCode.ADD_WATCH:
            mode = draw.choice([0, 1])
            (memory.recursive if mode else memory.persistent)[name] = None
            return Request(operation, path + INT.pack(mode))
        if operation in (OpCode.CHECK_WATCHES, OpCode.REMOVE_WATCHES):
            return Request(operation, path + INT.pack(draw.choice([1, 2, 3, 4, 5])))
        if operation == OpCode.RECONFIG:
            return Request(operation, string("") + string("") + string("") + LONG.pack(-1))
        if operation in (OpCode.EXISTS, OpCode.GET_DATA, OpCode.GET_CHILDREN, OpCode.GET_CHILDREN2):
            watch = self.flag()
            if watch == b"\1":
                vectors_of = {OpCode.EXISTS: memory.exists, OpCode.GET_DATA: memory.data}
                vectors_of.get(OpCode(operation), memory.children)[name] = None
            return Request(operation, path + watch)
        return Request(operation, path)

    def authentication(self, client: int) -> Request:
        scheme, credential = self.draw.choice([("digest", f"u{self.draw.randrange(2)}:p")] * 8 + [("unknown", "x")])
        body = INT.pack(0) + string(scheme) + buffer(credential.encode())
        if scheme == "digest":
            self.memory[client].credentials[body] = None
        return Request(OpCode.AUTH, body)

    def connection(self, client: int, how: Connect) -> list[WireStep]:
        """Return the steps of a new connection, upon which two clients of three restore what the server forgot."""
        found = [WireStep(client, connect=how)]
        memory = self.memory[client]
        if how in TIMED:
            self.memory[client] = Remembered()
        elif self.draw.random() < 0.67:
            found += [WireStep(client, (Request(OpCode.AUTH, body),)) for body in memory.credentials]
            found.append(
                WireStep(client, (Request(OpCode.SET_WATCHES2, memory.set_watches(), self.draw.randrange(4)),))
            )
        return found

    def step(self, left: int) -> list[WireStep]:
        draw, client = self.draw, self.draw.randrange(CLIENTS)
        chance = draw.random()
        if chance < 0.06:
            return self.connection(client, draw.choice([Connect.AFTER_CLOSING, Connect.MOVE]))
        if self.access and draw.random() < 0.2:
            asked = [self.authentication(client), Request(OpCode.WHO_AM_I, b"")]
            return [WireStep(client, (draw.choice(asked),))]
        if chance < 0.10:
            return [WireStep(client, (self.authentication(client),))]
        requests = [self.request(client)]
        for _ in range(draw.randrange(min(left, self.longest_burst))):
            if requests[-1].operation == OpCode.SET_ACL:
                break  # ZooKeeper checks what follows in a burst against the ACL before, if it is quick enough
            requests.append(self.request(client))
        if chance < 0.15:
            requests[-1] = Request(OpCode.CLOSE, b"")
            self.memory[client] = Remembered()
        elif chance < 0.16:  # alone: a server refuses it before it answers what was sent before
            requests = [Request(draw.choice([UNKNOWN, OpCode.CHECK]), string(self.root) + INT.pack(0))]
        elif chance < 0.18:
            last = requests[-1]
            if last.operation in (OpCode.EXISTS, OpCode.GET_DATA, OpCode.CREATE, OpCode.SET_DATA):
                requests[-1] = Request(last.operation, last.body[: draw.randrange(4)])
        return [WireStep(client, tuple(requests))]


class TimedHistoryMaker(HistoryMaker):
    """Draws sessions that expire too, and TTL nodes that a server deletes at once when they have no children.

    No request follows another in a burst: the server may delete between them.
    """

    longest_burst = 1

    def ttl_ms(self) -> int:
        return self.draw.choice([SHORT_TTL_MS, SHORT_TTL_MS, SHORT_TTL_MS, LONG_TTL_MS])

    def step(self, left: int) -> list[WireStep]:
        draw = self.draw
        chance = draw.random()
        if chance < 0.03:
            return self.connection(draw.randrange(CLIENTS), draw.choice([Connect.SILENCE, Connect.ABSENCE]))
        if chance < 0.15:
            return self.abandoned(draw.randrange(CLIENTS))
        return super().step(left)

    def abandoned(self, client: int) -> list[WireStep]:
        """Return the creation of a node that a server may delete later, and of a child that keeps it from that.

        They come in one multi, or the child is created and deleted by requests of their own.
        """
        draw = self.draw
        parent, child = draw.choice([("/a", "/a/x"), ("/b", "/b/x"), ("/a/x", "/a/x/z")])
        rest = self.data() + acl_entries(OPEN_ACL)
        container = string(self.root + parent) + rest + INT.pack(4)
        ttl = string(self.root + parent) + rest + INT.pack(5) + LONG.pack(SHORT_TTL_MS)
        kept = string(self.root + child) + rest + INT.pack(draw.choice([0, 0, 1]))
        if draw.random() < 0.6:
            first = draw.choice([(OpCode.CREATE_CONTAINER, container), (OpCode.CREATE_TTL, ttl)])
            rows = [first, (OpCode.CREATE, kept)]
            body = b"".join(MULTI_HEADER.pack(kind, 0, -1) + row for kind, row in rows) + END
            return [WireStep(client, (Request(OpCode.MULTI, body),))]
        requests = [
            Request(draw.choice([OpCode.CREATE_CONTAINER, OpCode.CREATE2]), container),
            Request(OpCode.CREATE, kept),
            Request(OpCode.DELETE, string(self.root + child) + INT.pack(-1)),
        ]
        return [WireStep(client, (request,)) for request in requests]
