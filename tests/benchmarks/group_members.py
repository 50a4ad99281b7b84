"""Members of consumer groups for `camerlengo bench groups`, a thousand of them in one process.

    python -m tests.benchmarks.group_members SERVER MEMBERS GROUPS

joins, and then does what each line of its standard input says: `heartbeats SECONDS RATE`, `rebalance HEARTBEAT_MS`,
`commits SECONDS`. It answers each with one JSON object. A member has a connection of its own to its coordinator, as a
Kafka consumer has, and one request at a time on it.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from controller.broker.settings import Address, address
from controller.protocol.client import FindCoordinatorRequest, FindCoordinatorResponse
from controller.protocol.codec import ApiKey, RequestHeader, decode_response, encode_request
from controller.protocol.errors import ErrorCode
from controller.protocol.framing import FrameBuffer, framed
from controller.protocol.groups import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupProtocol,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    LeavingMember,
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitTopic,
    SyncGroupAssignment,
    SyncGroupRequest,
    SyncGroupResponse,
)
from controller.protocol.schema import RequestValue, ResponseValue

FIND, JOIN, SYNC, HEARTBEAT, LEAVE, COMMIT = 3, 7, 5, 4, 4, 8
"""Versions of the requests."""
TOPIC = "bench"
SESSION_MS, REBALANCE_MS = 30_000, 60_000
SUBSCRIPTION = b"\x00\x01\x00\x00\x00\x01\x00\x05bench\xff\xff\xff\xff\x00\x00\x00\x00"
ASSIGNMENT = b"\x00\x00\x00\x00\x00\x01\x00\x05bench\x00\x00\x00\x01\x00\x00\x00\x00\xff\xff\xff\xff"
RETRY_S = 0.05
READ_BYTES = 16 * 1024
START_LIMIT_S = 120.0
AT_ONCE = 100
"""Connections that are opened at the same time."""
_AGAIN = (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR)

T = TypeVar("T", bound=ResponseValue)
V = TypeVar("V")


class MemberConnection(asyncio.BufferedProtocol):
    """One request at a time. Reads have a small buffer of their own: asyncio's streams allocate and free 256 KiB for
    each, and in the process of a cluster the brokers wait meanwhile."""

    def __init__(self, client: str) -> None:
        self._client = client
        self._transport: asyncio.Transport | None = None
        self._part = bytearray(READ_BYTES)

    async def open(self, at: Address) -> None:
        self._transport, _ = await asyncio.get_running_loop().create_connection(lambda: self, *at)
        self._transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    async def ask(self, key: ApiKey, version: int, request: RequestValue, kind: type[T]) -> T:
        assert self._transport is not None
        self._transport.write(framed(encode_request(RequestHeader(key, version, 1, self._client), request)))
        answer = await self._answers.get()
        if answer is None:
            raise ConnectionResetError(f"{key.name}: the broker closed the connection")
        response = decode_response(key, version, answer)[1]
        assert isinstance(response, kind)
        return response

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._frames = FrameBuffer()
        self._answers: asyncio.Queue[bytes | None] = asyncio.Queue()  # None: the connection is closed

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._part

    def buffer_updated(self, nbytes: int) -> None:
        for answer in self._frames.feed(bytes(self._part[:nbytes])):
            self._answers.put_nowait(answer)

    def connection_lost(self, exc: Exception | None) -> None:
        self._answers.put_nowait(None)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


class BenchMember:
    """Joins and takes part; the leader gives each member the same partition, as nothing is read."""

    def __init__(self, group: str, number: int, retry_s: float = RETRY_S) -> None:
        self.group = group
        self.retry_s = retry_s
        self.connection = MemberConnection(f"member-{number}")
        self.id = ""
        self.generation = -1
        self.size = 0
        """Members of the generation, known to its leader alone."""
        self.commits = 0

    async def join(self) -> None:
        """Until it has an assignment."""
        while True:
            protocols = (JoinGroupProtocol("range", SUBSCRIPTION),)
            request = JoinGroupRequest(self.group, SESSION_MS, self.id, "consumer", protocols, REBALANCE_MS)
            joined = await self.connection.ask(ApiKey.JOIN_GROUP, JOIN, request, JoinGroupResponse)
            error = ErrorCode(joined.error_code)
            if error is ErrorCode.MEMBER_ID_REQUIRED:
                self.id = joined.member_id
                continue
            if error is ErrorCode.UNKNOWN_MEMBER_ID:
                self.id = ""
                continue
            if error in _AGAIN:
                await asyncio.sleep(self.retry_s)
                continue
            _require(error, "JoinGroup")
            self.id, self.generation = joined.member_id, joined.generation_id
            self.size = len(joined.members)
            assignments = tuple(SyncGroupAssignment(one.member_id, ASSIGNMENT) for one in joined.members)
            sync = SyncGroupRequest(self.group, self.generation, self.id, assignments, None, "consumer", "range")
            synced = await self.connection.ask(ApiKey.SYNC_GROUP, SYNC, sync, SyncGroupResponse)
            if synced.error_code == ErrorCode.REBALANCE_IN_PROGRESS:
                continue
            _require(ErrorCode(synced.error_code), "SyncGroup")
            return

    async def heartbeat(self) -> ErrorCode:
        request = HeartbeatRequest(self.group, self.generation, self.id)
        answer = await self.connection.ask(ApiKey.HEARTBEAT, HEARTBEAT, request, HeartbeatResponse)
        return ErrorCode(answer.error_code)

    async def learn(self, heartbeat_s: float) -> None:
        """Heartbeat until that says that the group rebalances; join again."""
        while await self.heartbeat() is not ErrorCode.REBALANCE_IN_PROGRESS:  # noqa: ASYNC110 - over a network
            await asyncio.sleep(heartbeat_s)
        await self.join()

    async def leave(self) -> None:
        request = LeaveGroupRequest(self.group, (LeavingMember(self.id),))
        answer = await self.connection.ask(ApiKey.LEAVE_GROUP, LEAVE, request, LeaveGroupResponse)
        _require(ErrorCode(answer.members[0].error_code), "LeaveGroup")

    async def commit(self) -> None:
        self.commits += 1
        topics = (OffsetCommitTopic(TOPIC, (OffsetCommitPartition(0, self.commits, ""),)),)
        request = OffsetCommitRequest(self.group, topics, self.generation, self.id)
        answer = await self.connection.ask(ApiKey.OFFSET_COMMIT, COMMIT, request, OffsetCommitResponse)
        _require(ErrorCode(answer.topics[0].partitions[0].error_code), "OffsetCommit")


async def settled(group: Sequence[BenchMember], began_s: float, heartbeat_s: float, *, join: bool = True) -> float:
    """Join with each member, and again while heartbeats say so, until the group is stable with all of them. Returns the
    ms since `began_s`. A member that has joined heartbeats while others join: they may wait for it."""
    joining = set(group) if join else set()
    is_settled = asyncio.Event()
    settled_s = 0.0

    async def take_part(member: BenchMember) -> None:
        nonlocal settled_s
        while not is_settled.is_set():
            if member in joining:
                await member.join()
                joining.discard(member)
            elif await member.heartbeat() is not ErrorCode.NONE:
                joining.add(member)
            elif joining or len({one.generation for one in group}) > 1:
                with suppress(TimeoutError):
                    await asyncio.wait_for(is_settled.wait(), heartbeat_s)
            if not joining and len({one.generation for one in group}) == 1 and not is_settled.is_set():
                settled_s = time.perf_counter()
                is_settled.set()

    await gathered(map(take_part, group))
    return (settled_s - began_s) * 1e3


async def found_coordinator(
    servers: Sequence[Address], group: str, other_than: int = -1, retry_s: float = RETRY_S / 10
) -> tuple[int, Address]:
    """Ask the servers in turn, until one names a coordinator that is another broker than `other_than`."""
    until_s = time.monotonic() + START_LIMIT_S
    for server in itertools.cycle(servers):
        if time.monotonic() > until_s:
            raise RuntimeError(f"FindCoordinator {group}: none in {START_LIMIT_S:g} s")
        asker = MemberConnection("bench")
        try:
            await asker.open(server)
            found = await asker.ask(
                ApiKey.FIND_COORDINATOR, FIND, FindCoordinatorRequest(group, 0), FindCoordinatorResponse
            )
            if found.error_code == ErrorCode.NONE and found.node_id != other_than:
                return found.node_id, (found.host, found.port)
        except OSError:
            continue  # the broker is dead
        finally:
            asker.close()
        await asyncio.sleep(retry_s)
    raise RuntimeError("no server")


def _require(error: ErrorCode, what: str) -> None:
    if error is not ErrorCode.NONE:
        raise RuntimeError(f"{what}: {error.name}")


class Members:
    """All groups. What it measures is in ms unless named otherwise."""

    def __init__(self, server: Address, members: int, groups: int) -> None:
        self._server = server
        self._groups = [
            [BenchMember(f"group-{group}", number) for number in range(group, members, groups)]
            for group in range(groups)
        ]
        self._all = [member for group in self._groups for member in group]

    async def connect(self) -> None:
        """To the coordinators, which are there once the topic of committed offsets is."""
        gate = asyncio.Semaphore(AT_ONCE)

        async def open_to(member: BenchMember, at: Address) -> None:
            async with gate:
                await member.connection.open(at)

        for group in self._groups:
            _, at = await found_coordinator([self._server], group[0].group)
            await gathered(open_to(member, at) for member in group)

    async def join(self) -> dict[str, Any]:
        """All members at once, until every group has all of its members in one generation."""
        began_s = time.perf_counter()
        times = await gathered(settled(group, began_s, RETRY_S) for group in self._groups)
        return {"group_ms": times, "all_ms": max(times)}

    async def rebalance(self, heartbeat_ms: float) -> dict[str, Any]:
        """The leader of each group joins again. The others learn it from heartbeats, one each `heartbeat_ms`."""
        began_s = time.perf_counter()

        async def one(group: Sequence[BenchMember]) -> float:
            leader = next(member for member in group if member.size)
            await gathered(member.join() if member is leader else member.learn(heartbeat_ms / 1e3) for member in group)
            if len({member.generation for member in group}) != 1:
                raise RuntimeError(f"{leader.group}: members of several generations")
            return (time.perf_counter() - began_s) * 1e3

        times = await gathered(one(group) for group in self._groups)
        return {"group_ms": times, "all_ms": max(times)}

    def close(self) -> None:
        for member in self._all:
            member.connection.close()

    async def heartbeats(self, seconds: float, rate: float) -> dict[str, Any]:
        """`rate` of all members together, spread evenly; 0: none, the members are idle."""
        if not rate:
            await asyncio.sleep(seconds)
            return {"count": 0, "seconds": seconds}
        period_s = len(self._all) / rate
        began_s = time.perf_counter()
        latencies: list[float] = []

        async def beat(place: int, member: BenchMember) -> None:
            due_s = began_s + period_s * place / len(self._all)
            while due_s < began_s + seconds:
                await asyncio.sleep(max(due_s - time.perf_counter(), 0))
                asked_s = time.perf_counter()
                _require(await member.heartbeat(), "Heartbeat")
                latencies.append((time.perf_counter() - asked_s) * 1e3)
                due_s += period_s

        await gathered(beat(place, member) for place, member in enumerate(self._all))
        return {"count": len(latencies), "seconds": time.perf_counter() - began_s, "latency_ms": latencies}

    async def commits(self, seconds: float) -> dict[str, Any]:
        """Each member commits, and again when that is acknowledged."""
        began_s = time.perf_counter()
        latencies: list[float] = []

        async def commit(member: BenchMember) -> None:
            while (asked_s := time.perf_counter()) < began_s + seconds:
                await member.commit()
                latencies.append((time.perf_counter() - asked_s) * 1e3)

        await gathered(map(commit, self._all))
        return {"count": len(latencies), "seconds": time.perf_counter() - began_s, "latency_ms": latencies}


async def gathered(work: Iterable[Awaitable[V]]) -> list[V]:
    return list(await asyncio.gather(*work))


def main(words: list[str]) -> None:
    server, members, groups = words
    loop = asyncio.new_event_loop()
    all_members = Members(address(server), int(members), int(groups))
    steps: dict[str, Callable[..., Coroutine[Any, Any, dict[str, Any]]]] = {
        "join": all_members.join,
        "heartbeats": all_members.heartbeats,
        "rebalance": all_members.rebalance,
        "commits": all_members.commits,
    }
    loop.run_until_complete(all_members.connect())
    print(json.dumps({"connected": int(members)}), flush=True)
    for line in sys.stdin:
        name, *numbers = line.split()
        before_s = time.process_time()
        found = loop.run_until_complete(steps[name](*map(float, numbers)))
        print(json.dumps({**found, "client_cpu_s": time.process_time() - before_s}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
