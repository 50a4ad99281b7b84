"""InitProducerId: ids for idempotent producers, from blocks that this broker reserves in ZooKeeper.

An id is assigned once, by one broker, over the cluster's lifetime. A new producer gets an id of its own with epoch 0;
no state is kept for it here. Transactions are not supported: a request with a transactional id is answered that there
is no coordinator. Runs on the broker's thread; the clock brings a block's arrival back to it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TypeAlias

from controller.clock import Clock
from controller.pending import Pending
from controller.protocol.errors import ErrorCode
from controller.protocol.produce_values import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from controller.trace import Noted, Trace
from controller.zookeeper.codecs import ProducerIdBlock
from controller.zookeeper.errors import DamagedZnode, ZooKeeperError

Answer: TypeAlias = Callable[[InitProducerIdResponse], None]
TakeBlock: TypeAlias = Callable[[], Pending[ProducerIdBlock]]
"""Takes the next block of all; may be answered on another thread."""


class ProducerIds:
    """One block is asked for at a time, and all who come meanwhile wait for it."""

    def __init__(self, take_block: TakeBlock, clock: Clock, trace: Trace) -> None:
        self._take_block = take_block
        self._clock = clock
        self._trace = trace
        self._next = 0
        self._end = -1
        self._waiting: deque[Answer] = deque()
        self._asking = False

    @property
    def left(self) -> int:
        """Ids that can be given without asking."""
        return self._end - self._next + 1

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def handle(self, request: InitProducerIdRequest, version: int, answer: Answer) -> None:
        error = _refusal(request)
        if error is not ErrorCode.NONE:
            answer(InitProducerIdResponse(error))
        elif self._waiting or not self.left:
            self._waiting.append(answer)
            self._ask()
        else:
            answer(self._given())

    def _given(self) -> InitProducerIdResponse:
        assert self.left > 0
        self._next += 1
        return InitProducerIdResponse(ErrorCode.NONE, self._next - 1, 0)

    def _ask(self) -> None:
        if self._asking:
            return
        self._asking = True
        block = self._take_block()
        block.on_done(lambda: self._hop(block))

    def _hop(self, block: Pending[ProducerIdBlock]) -> None:
        self._clock.call_later(0.0, lambda: self._arrived(block))

    def _arrived(self, block: Pending[ProducerIdBlock]) -> None:
        self._asking = False
        try:
            taken = block.result()
        except ZooKeeperError as error:
            self._trace.emit(Noted("warning", f"no block of producer ids: {error}"))
            self._refuse_all(error)
            return
        except Exception as error:
            self._refuse_all(error)  # who asked is answered, whatever is wrong with us
            raise
        self._next, self._end = taken.block_start, taken.block_end
        while self._waiting and self.left:
            self._waiting.popleft()(self._given())
        if self._waiting:
            self._ask()

    def _refuse_all(self, error: Exception) -> None:
        """Another attempt may find ZooKeeper again, but not whole what is damaged."""
        hopeless = isinstance(error, DamagedZnode) or not isinstance(error, ZooKeeperError)
        code = ErrorCode.UNKNOWN_SERVER_ERROR if hopeless else ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        waiting, self._waiting = self._waiting, deque()
        for answer in waiting:
            answer(InitProducerIdResponse(code))


def _refusal(request: InitProducerIdRequest) -> ErrorCode:
    """Kafka 2.8's KafkaApis and TransactionCoordinator, as far as they look at the request alone."""
    if (request.producer_id == NO_PRODUCER_ID) != (request.producer_epoch == NO_PRODUCER_EPOCH):
        return ErrorCode.INVALID_REQUEST  # an id without an epoch, or an epoch of none
    if request.transactional_id == "":
        return ErrorCode.INVALID_REQUEST
    return ErrorCode.NONE if request.transactional_id is None else ErrorCode.COORDINATOR_NOT_AVAILABLE
