"""A fetcher's connection to its leader: to where the metadata has it, opened when something is asked, one question at a
time."""

from __future__ import annotations

from functools import lru_cache

from controller.broker.configs.settings import BrokerSettings
from controller.broker.metadata.metadata_cache import MetadataCache
from controller.broker.ports import Peers
from controller.core.ports import PeerConnection, PeerUnreachable
from controller.pending import Pending
from controller.protocol.api_keys import ApiKey
from controller.protocol.codec import decode_response_body, encode_request_body
from controller.protocol.control_values import UpdateMetadataEndpoint
from controller.protocol.messages import RequestValue, ResponseValue


class LeaderLink:
    """`number` tells apart the fetchers to one leader."""

    __slots__ = ("_connection", "_endpoint", "_in_vain", "_metadata", "_peers", "_settings", "leader", "number")

    def __init__(
        self, leader: int, number: int, settings: BrokerSettings, metadata: MetadataCache, peers: Peers
    ) -> None:
        self.leader = leader
        self.number = number
        self._settings = settings
        self._metadata = metadata
        self._peers = peers
        self._connection: PeerConnection | None = None
        self._endpoint: UpdateMetadataEndpoint | None = None
        self._in_vain: tuple[RequestValue | None, bytes] | None = None
        """What was asked last, once a connection was given up without an answer: the same is asked again."""

    async def ask(self, api_key: ApiKey, version: int, request: RequestValue) -> ResponseValue:
        """PeerError or MalformedFrame, after which `close` is due."""
        return decode_response_body(api_key, version, await self.sent(api_key, version, request))

    def sent(self, api_key: ApiKey, version: int, request: RequestValue) -> Pending[bytes]:
        """The body of its answer. PeerError, as its answer too, after which `close` is due."""
        body = self._encoded(api_key, version, request)
        return self._connected().request(api_key, version, body, self._settings.replica_socket_timeout_ms)

    def _encoded(self, api_key: ApiKey, version: int, request: RequestValue) -> bytes:
        """Once for all attempts at a leader that is gone. While one answers nothing is held for that."""
        if self._in_vain is not None and self._in_vain[0] == request:
            return self._in_vain[1]
        body = encode_request_body(api_key, version, request)
        if self._in_vain is not None:
            self._in_vain = (request, body)
        return body

    def answered(self) -> None:
        """The leader is there: what is asked next is something else."""
        self._in_vain = None

    def moved(self) -> bool:
        """Whether the metadata has the leader at another address than where it was last looked for. Where it has none
        any more, what is open stays."""
        endpoint = self._known()
        return endpoint is not None and endpoint != self._endpoint

    def close(self) -> bool:
        """False if nothing was open. The next question opens another."""
        connection, self._connection = self._connection, None
        if connection is None:
            return False
        self._in_vain = self._in_vain or _NOTHING
        connection.close()
        return True

    def _connected(self) -> PeerConnection:
        if self._connection is None:
            self._endpoint = endpoint = self._known()
            if endpoint is None:
                raise PeerUnreachable(f"broker {self.leader} has no address here")
            client_id = _client_id(self._settings.broker_id, self.number)
            self._connection = self._peers.connect(endpoint.host, endpoint.port, client_id)
        return self._connection

    def _known(self) -> UpdateMetadataEndpoint | None:
        return self._metadata.snapshot.endpoint(self.leader, self._settings.inter_broker_listener)


_NOTHING = (None, b"")


@lru_cache(maxsize=1_024)
def _client_id(broker: int, number: int) -> str:
    return f"broker-{broker}-fetcher-{number}"
