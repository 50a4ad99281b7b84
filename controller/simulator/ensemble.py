"""The ensemble that the in-memory ZooKeeper stands for: which of its servers run, who leads, what a death costs.

Its servers share one database (for followers that lag, see `InMemoryZooKeeper.add_follower`, which these faults do not
concern). What a client of a real ensemble notices is simulated: connections that break, perhaps with an answer in them,
and a time without service until the others have elected, or for as long as they are too few. Data and sessions are
kept, and each session has its whole timeout again when service is back, as a new leader grants it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from controller.clock import Clock, Future
from controller.scenarios.faults import HostFailure
from controller.zookeeper.memory.server import InMemoryConnection, InMemoryZooKeeper

ELECTION_MS = (150.0, 2_500.0)
"""How long the servers left are without a leader."""
JOIN_MS = (100.0, 600.0)
"""How long a server takes to start and to catch up."""


class Ensemble:
    """`clients` gives the connections that servers share out among themselves; any other is never on a server that
    dies, which sees only a time without service."""

    def __init__(
        self,
        zookeeper: InMemoryZooKeeper,
        servers: int,
        clock: Clock,
        rng: Random,
        clients: Callable[[], Sequence[InMemoryConnection]],
    ) -> None:
        self._zookeeper = zookeeper
        self._servers = servers
        self._clock = clock
        self._rng = rng
        self._clients = clients
        self._running = set(range(1, servers + 1))
        self._leader: int | None = rng.randint(1, servers)
        self._elections = 0

    @property
    def leader(self) -> int | None:
        return self._leader

    @property
    def servers(self) -> int:
        """How many there are, running or not."""
        return self._servers

    @property
    def running(self) -> tuple[int, ...]:
        return tuple(sorted(self._running))

    def kill(self, server: int) -> None:
        """HostFailure if it does not run."""
        if server not in self._running:
            raise HostFailure(f"ZooKeeper server {server} is not running")
        self._running.remove(server)
        without_service = server == self._leader or not self._has_quorum()
        for connection in self._clients():
            # Its own clients lose what was under way; those of the others only if there is no leader to ask.
            if self._rng.randrange(self._servers) == 0:
                connection.reset()
        if without_service:
            self._without_leader()

    def elect_again(self) -> None:
        """The leader loses its followers, and they elect, it or another. Nothing happens if none leads."""
        if self._leader is not None:
            self._without_leader()

    def _without_leader(self) -> None:
        self._leader = None
        self._zookeeper.stop()
        self._elect()

    def start(self, server: int) -> Future[None]:
        """Answered when it serves. HostFailure if it runs already."""
        if server in self._running:
            raise HostFailure(f"ZooKeeper server {server} is running already")
        self._running.add(server)
        if self._leader is None:
            self._elect()
        serves: Future[None] = Future()
        self._clock.call_later(self._rng.uniform(*JOIN_MS), lambda: self._joined(serves))
        return serves

    def _joined(self, serves: Future[None]) -> None:
        if self._leader is not None or not self._has_quorum():
            serves.resolve(None)
        else:
            self._clock.call_later(JOIN_MS[0], lambda: self._joined(serves))

    def _has_quorum(self) -> bool:
        return 2 * len(self._running) > self._servers

    def _elect(self) -> None:
        self._elections += 1
        number = self._elections
        if self._has_quorum():
            self._clock.call_later(self._rng.uniform(*ELECTION_MS), lambda: self._elected(number))

    def _elected(self, number: int) -> None:
        """Of no interest if a server died, or came, meanwhile: another election was begun then."""
        if number == self._elections and self._has_quorum():
            self._leader = self._rng.choice(self.running)
            self._zookeeper.start()
