"""Sockets that listen, limits on the connections that they accept, and what of the system's descriptors is kept for
other things."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from controller.broker.quotas.connections import ConnectionQuotas, ConnectionSettings, TooFast, TooMany
from controller.broker.security.principal import Requester
from controller.broker.settings import Listener
from controller.hosts.network import NetworkThread
from controller.system import allow_reuse

THROTTLED_MAX = 100
"""Connections that are closed later, for coming too fast; beyond, they are closed at once."""
RESERVE_MAX = 4_096


def reserved_descriptors(limit: int) -> int:
    """Return how many of `limit` file descriptors (RLIMIT_NOFILE) are reserved for logs, for ZooKeeper and for
    connections to other brokers, and not used for clients."""
    return min(max(limit // 4, 32), RESERVE_MAX)


class CannotListen(OSError):
    """A listener's address can't be had; names both."""


def bound_socket(listener: Listener) -> socket.socket:
    """Bound, not listening. An empty host is every address, IPv6's too where the machine has them."""
    if not listener.host and socket.has_dualstack_ipv6():
        family, host = socket.AF_INET6, "::"
    else:
        found = socket.getaddrinfo(listener.host or "0.0.0.0", listener.port, type=socket.SOCK_STREAM)
        family, host = found[0][0], str(found[0][4][0])
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        allow_reuse(made)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if host == "::" and not listener.host else 1)
        made.bind((host, listener.port))
    except OSError:
        made.close()
        raise
    return made


def host_of(address: tuple[str, int] | tuple[str, int, int, int]) -> str:
    """The client's address as text; IPv4's where a dual-stack socket shows it as IPv6."""
    return address[0].removeprefix("::ffff:")


class ConnectionGate:
    """Lets connections in as their limits allow. `log_refused`: writes a line now and then. `on_excess`: called when
    there are more connections than there may be. Used on the network's loop."""

    def __init__(
        self,
        settings: ConnectionSettings,
        network: NetworkThread,
        log_refused: Callable[[str], None],
        on_excess: Callable[[], None],
    ) -> None:
        self.quotas = ConnectionQuotas(settings)
        self.quotas.changed = self._changed
        self._network = network
        self._log_refused = log_refused
        self._on_excess = on_excess
        self._freed = asyncio.Event()
        """Set when a connection ends."""
        self._throttled: dict[socket.socket, None] = {}
        """Those of addresses that connect too fast, until they are closed."""

    async def wait(self, client: Requester) -> None:
        """Until the connection may be accepted; no other of its listener is meanwhile."""
        wait_ms = self.quotas.wait_ms(client.listener, self._now_ms())
        if wait_ms:
            self._log_refused(f"connections wait: they come too fast on listener {client.listener}")
            await asyncio.sleep(wait_ms / 1_000.0)
        while not self.quotas.has_place(client.listener):
            self._log_refused(
                f"connections wait on listener {client.listener}: there are {self.quotas.total} in all, and as many as"
                " there may be"
            )
            self._freed.clear()
            await self._freed.wait()

    def admit(self, accepted: socket.socket, client: Requester) -> bool:
        """Whether its address may have the connection; it is closed if not, at once or after its throttle time. One
        that is admitted is counted until `freed`."""
        try:
            self.quotas.open(client.listener, client.host, self._now_ms())
        except TooMany as refused:
            accepted.close()
            self._log_refused(str(refused))
            return False
        except TooFast as refused:
            self._log_refused(str(refused))
            if len(self._throttled) >= THROTTLED_MAX:
                accepted.close()
                return False
            self._throttled[accepted] = None
            self._network.clock.call_later(refused.throttle_ms, lambda: self._close_throttled(accepted))
            return False
        if self.quotas.excess:
            self._on_excess()
        return True

    def _changed(self) -> None:
        self._freed.set()
        if self.quotas.excess:
            self._on_excess()

    def freed(self, client: Requester) -> None:
        """A connection that was admitted has ended."""
        self.quotas.closed(client.listener, client.host)
        self._freed.set()

    def close(self) -> None:
        for accepted in list(self._throttled):
            self._close_throttled(accepted)

    def _close_throttled(self, accepted: socket.socket) -> None:
        self._throttled.pop(accepted, None)
        accepted.close()

    def _now_ms(self) -> int:
        return int(self._network.loop.time() * 1_000.0)
