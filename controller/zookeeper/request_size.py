"""The size of a request to ZooKeeper in bytes, and its limit: a server's default jute.maxbuffer.

A server closes the connection of a client that sends more: the write has an unknown outcome, the same request is sent
again, and finally the session expires. So batches are split by bytes as well as by count, and a write that does not fit
into one request is refused before it is sent (`RequestTooLarge`). Replies are not limited: a server sends all that was
requested, and this project's connection reads it. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

from controller.zookeeper.errors import RequestTooLarge
from controller.zookeeper.operations import ACL, OPEN_ACL, Create, SetData, Write
from controller.zookeeper.state_sets import FencedSets, StatePaths, StateSets

REQUEST_BYTES_MAX = 0xFFFFF
"""The default of jute.maxbuffer. It counts the whole frame without its length field."""
REQUEST_HEAD_BYTES = 8
"""What precedes a request's body in the frame: its number and its kind."""
RESERVE_BYTES = 64 << 10
"""Room for what is not known here: the chroot before each path, an access list for each create, and the envelope in
which a server hands a transaction to the others."""
SENT_BYTES_MAX = REQUEST_BYTES_MAX - RESERVE_BYTES
BATCH_BYTES = 512 << 10
"""At most so many bytes of a batch whose rows are independent: far from the limit, and enough to gain from."""
ZNODE_BYTES_MAX = SENT_BYTES_MAX - (16 << 10)
"""The most that is written into one znode, alone in its request but for the fence and short operations."""

_OPERATION_HEAD, _INT = 9, 4
_END = 9
_LONGEST_PARTITION = len("/partitions/2147483647/state")

T = TypeVar("T")


def text_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def operation_bytes(operation: Write, default_acl: Sequence[ACL] = OPEN_ACL) -> int:
    """Exactly what the operation takes in a multi without a chroot."""
    size = _OPERATION_HEAD + _INT + text_bytes(operation.path) + _INT  # the last is a version, or a create's flags
    if isinstance(operation, SetData | Create):
        size += _INT + len(operation.data or b"")
    if isinstance(operation, Create):
        acl = default_acl if operation.acl is None else operation.acl
        size += _INT + sum(3 * _INT + text_bytes(one.scheme) + text_bytes(one.id) for one in acl)
    return size


def multi_bytes(operations: Sequence[Write], default_acl: Sequence[ACL] = OPEN_ACL) -> int:
    """The frame of a multi; of states in columns no less than it has."""
    if isinstance(operations, FencedSets):
        return multi_bytes(operations.sets) + operation_bytes(operations.fence)
    if isinstance(operations, StateSets):
        heads = sum(_state_head(name) * len(partitions) for name, partitions in operations.paths.topics)
        return REQUEST_HEAD_BYTES + _END + heads + sum(map(len, operations.data))
    return REQUEST_HEAD_BYTES + _END + sum(operation_bytes(operation, default_acl) for operation in operations)


def _state_head(topic: str) -> int:
    """Return the size of a state's write besides the data, or a few bytes more."""
    return _OPERATION_HEAD + 3 * _INT + len("/brokers/topics/") + text_bytes(topic) + _LONGEST_PARTITION


def _row_sizes(rows: Sequence[Write]) -> list[int]:
    if not isinstance(rows, StateSets):
        return [operation_bytes(row) for row in rows]
    heads = (head for name, numbers in rows.paths.topics for head in [_state_head(name)] * len(numbers))
    return [head + len(data) for head, data in zip(heads, rows.data, strict=True)]


def paths_bytes(paths: Sequence[str]) -> int:
    """The frame of a multi-read of these paths, or of watches on them, or somewhat more."""
    each = _OPERATION_HEAD + _INT + 1
    return REQUEST_HEAD_BYTES + _END + each * len(paths) + text_bytes("".join(paths))


def require_sendable(operations: Sequence[Write]) -> None:
    """RequestTooLarge for a multi that a server may refuse, and nothing was sent."""
    size = multi_bytes(operations)
    if size > SENT_BYTES_MAX:
        first = operations[0].path[:100] if len(operations) else "/"
        raise RequestTooLarge(
            f"a request of {len(operations)} operations has {size} bytes, expected {SENT_BYTES_MAX} at most"
            f" ({first} among them); nothing was sent"
        )


def spans(rows: Sequence[Write], most: int, most_bytes: int = BATCH_BYTES) -> Iterator[tuple[int, int]]:
    """[start, end) of each batch: at most `most` rows and, unless it is one row, at most `most_bytes` bytes."""
    if isinstance(rows, StateSets) and len(rows):
        widest = max(_state_head(name) for name, _ in rows.paths.topics) + max(map(len, rows.data))
        if widest * most <= most_bytes:  # as nearly all are
            yield from ((start, min(start + most, len(rows))) for start in range(0, len(rows), most))
            return
    sizes = _row_sizes(rows)
    start = total = 0
    for place, size in enumerate(sizes):
        if place > start and (place - start == most or total + size > most_bytes):
            yield start, place
            start, total = place, 0
        total += size
    if start < len(sizes):
        yield start, len(sizes)


def path_batches(paths: Sequence[str], most: int, most_bytes: int = BATCH_BYTES) -> Iterator[Sequence[str]]:
    """As `spans`, of paths to read or to watch."""
    for start in range(0, len(paths), most):
        yield from _halved(paths[start : start + most], most_bytes)


def _halved(paths: Sequence[str], most_bytes: int) -> Iterator[Sequence[str]]:
    if isinstance(paths, StatePaths) or len(paths) < 2 or paths_bytes(paths) <= most_bytes:
        yield paths  # topic names have 249 characters at most: the longest batch of states is below the limit
        return
    middle = len(paths) // 2
    yield from _halved(paths[:middle], most_bytes)
    yield from _halved(paths[middle:], most_bytes)
