"""A fetcher's connection to its leader: to where the metadata has it, opened when something is asked, one question at a
time."""

from __future__ import annotations

from controller.broker.metadata_cache import MetadataCache
from controller.broker.ports import PeerConnection, Peers, PeerUnreachable
from controller.broker.settings import BrokerSettings
from controller.protocol.api_keys import ApiKey
from controller.protocol.codec import decode_response_body, encode_request_body
from controller.protocol.control_values import UpdateMetadataEndpoint
from controller.protocol.messages import RequestValue, ResponseValue


class LeaderLink:
    """`number` tells apart the fetchers to one leader."""

    def __init__(
        self, leader: int, number: int, settings: BrokerSettings, metadata: MetadataCache, peers: Peers
    ) -> None:
        self._leader = leader
        self._client_id = f"broker-{settings.broker_id}-fetcher-{number}"
        self._listener = settings.inter_broker_listener
        self._timeout_ms = settings.replica_socket_timeout_ms
        self._metadata = metadata
        self._peers = peers
        self._connection: PeerConnection | None = None
        self._endpoint: UpdateMetadataEndpoint | None = None

    async def ask(self, api_key: ApiKey, version: int, request: RequestValue) -> ResponseValue:
        """PeerError or MalformedFrame, after which `close` is due."""
        body = encode_request_body(api_key, version, request)
        answer = await self._connected().request(api_key, version, body, self._timeout_ms)
        return decode_response_body(api_key, version, answer)

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
        connection.close()
        return True

    def _connected(self) -> PeerConnection:
        if self._connection is None:
            self._endpoint = endpoint = self._known()
            if endpoint is None:
                raise PeerUnreachable(f"broker {self._leader} has no address here")
            self._connection = self._peers.connect(endpoint.host, endpoint.port, self._client_id)
        return self._connection

    def _known(self) -> UpdateMetadataEndpoint | None:
        return self._metadata.snapshot.endpoint(self._leader, self._listener)
