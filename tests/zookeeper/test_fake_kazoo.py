"""kazoo's recipes on `fake_kazoo`, and its faults."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from typing import Any

import pytest
from kazoo.exceptions import (
    BadVersionError,
    ConnectionLoss,
    InvalidACLError,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    RolledBackError,
    RuntimeInconsistency,
)
from kazoo.protocol.states import EventType, KazooState
from kazoo.recipe.cache import TreeCache
from kazoo.recipe.watchers import PatientChildrenWatch
from kazoo.security import make_acl, make_digest_acl

from controller.zookeeper.fake_kazoo import FakeKazooClient, FakeZooKeeper, fake_kazoo

GUIDE = Path(__file__).parents[2] / "docs" / "fake-kazoo.md"
LIMIT_S = 20.0
"""How long a test waits for what must come."""


class Clients:
    """Starts clients of one server, and closes them at the end of the test."""

    def __init__(self) -> None:
        self.server = FakeZooKeeper()
        self._clients: list[FakeKazooClient] = []

    def __call__(self, **options: Any) -> FakeKazooClient:
        client = fake_kazoo(self.server, **options)
        self._clients.append(client)
        client.start()
        return client

    def close(self) -> None:
        for client in self._clients:
            client.stop()
            client.close()


@pytest.fixture
def clients() -> Iterator[Clients]:
    clients = Clients()
    yield clients
    clients.close()


@pytest.fixture
def client(clients: Clients) -> FakeKazooClient:
    return clients()


@pytest.fixture
def server(clients: Clients) -> FakeZooKeeper:
    return clients.server


def states_of(client: FakeKazooClient) -> Queue[str]:
    states: Queue[str] = Queue()
    client.add_listener(states.put)
    return states


def next_states(states: Queue[str], count: int) -> list[str]:
    return [states.get(timeout=LIMIT_S) for _ in range(count)]


def until(condition: Callable[[], object]) -> None:
    """Wait with kazoo's own helper: a condition, with a deadline."""
    expired = threading.Event()
    timer = threading.Timer(LIMIT_S, expired.set)
    timer.start()
    try:
        while not condition():
            assert not expired.wait(0.001), "not within the limit"
    finally:
        timer.cancel()


# Recipes.


def test_a_lock_has_one_holder_at_a_time(clients: Clients) -> None:
    first, second = clients().Lock("/lock", "first"), clients().Lock("/lock", "second")
    assert first.acquire()
    assert not second.acquire(blocking=False)
    assert first.contenders() == ["first"]
    first.release()
    assert second.acquire(timeout=LIMIT_S)
    second.release()


def test_an_expired_session_loses_its_lock_to_the_next_contender(clients: Clients, server: FakeZooKeeper) -> None:
    holder, other = clients(), clients()
    assert holder.Lock("/lock", "holder").acquire()
    states = states_of(holder)
    contender = other.Lock("/lock", "contender")
    with ThreadPoolExecutor(1) as pool:
        acquired = pool.submit(contender.acquire, timeout=LIMIT_S)
        until(lambda: len(other.get_children("/lock")) == 2)
        server.expire(holder)
        assert acquired.result(LIMIT_S)
    assert next_states(states, 3) == [KazooState.SUSPENDED, KazooState.LOST, KazooState.CONNECTED]
    assert contender.contenders() == ["contender"]


def test_readers_share_and_a_writer_excludes_them(clients: Clients) -> None:
    first, second, third = clients(), clients(), clients()
    reader, other_reader, writer = first.ReadLock("/lock"), second.ReadLock("/lock"), third.WriteLock("/lock")
    assert reader.acquire()
    assert other_reader.acquire(timeout=LIMIT_S)
    assert not writer.acquire(blocking=False)
    reader.release()
    other_reader.release()
    assert writer.acquire(timeout=LIMIT_S)
    assert not reader.acquire(blocking=False)


def test_a_semaphore_has_as_many_leases_as_it_says(clients: Clients) -> None:
    one, two, three = (clients().Semaphore("/semaphore", max_leases=2) for _ in range(3))
    assert one.acquire()
    assert two.acquire()
    assert not three.acquire(blocking=False)
    one.release()
    assert three.acquire(timeout=LIMIT_S)


def test_an_election_elects_another_when_the_leader_expires(clients: Clients, server: FakeZooKeeper) -> None:
    elected: Queue[str] = Queue()
    over = threading.Event()

    def lead(name: str) -> None:
        elected.put(name)
        over.wait(LIMIT_S)

    leader, follower = clients(), clients()
    with ThreadPoolExecutor(2) as pool:
        runs = [pool.submit(leader.Election("/election", "leader").run, lead, "leader")]
        assert elected.get(timeout=LIMIT_S) == "leader"
        runs.append(pool.submit(follower.Election("/election", "follower").run, lead, "follower"))
        until(lambda: len(follower.get_children("/election")) == 2)
        server.expire(leader)
        assert elected.get(timeout=LIMIT_S) == "follower"
        over.set()
    assert [run.exception() for run in runs[1:]] == [None]


def test_a_party_lists_its_members(clients: Clients, server: FakeZooKeeper) -> None:
    first, second = clients(), clients()
    party = first.Party("/party", "first")
    party.join()
    second.Party("/party", "second").join()
    assert sorted(party) == ["first", "second"]
    server.expire(second)
    assert list(party) == ["first"]


def test_a_queue_keeps_order_and_a_locking_queue_gives_an_entry_once(clients: Clients) -> None:
    first, second = clients(), clients()
    queue = first.Queue("/queue")
    for entry in (b"1", b"2"):
        queue.put(entry)
    assert [second.Queue("/queue").get(), queue.get(), queue.get()] == [b"1", b"2", None]
    locking, other = first.LockingQueue("/locking"), second.LockingQueue("/locking")
    locking.put_all([b"a", b"b"])
    assert (locking.get(LIMIT_S), other.get(LIMIT_S)) == (b"a", b"b")
    assert locking.consume()
    assert other.consume()
    assert len(locking) == 0


def test_barriers_open_for_all_at_once(clients: Clients) -> None:
    first, second = clients(), clients()
    barrier = first.Barrier("/barrier")
    barrier.create()
    assert not second.Barrier("/barrier").wait(0.01)
    with ThreadPoolExecutor(2) as pool:
        waiting = pool.submit(second.Barrier("/barrier").wait, LIMIT_S)
        barrier.remove()
        assert waiting.result(LIMIT_S)
        doubles = [each.DoubleBarrier("/double", 2) for each in (first, second)]
        for entered in [pool.submit(double.enter) for double in doubles]:
            entered.result(LIMIT_S)
        assert all(double.participating for double in doubles)
        for left in [pool.submit(double.leave) for double in doubles]:
            left.result(LIMIT_S)


def test_a_counter_loses_no_increment(clients: Clients) -> None:
    def add(client: FakeKazooClient) -> None:
        counter = client.Counter("/counter")
        for _ in range(10):
            counter += 1

    made = [clients() for _ in range(3)]
    with ThreadPoolExecutor(3) as pool:
        for added in [pool.submit(add, each) for each in made]:
            added.result(LIMIT_S)
    assert made[0].Counter("/counter").value == 30


def test_watches_report_every_state_in_which_the_znode_stays(clients: Clients, server: FakeZooKeeper) -> None:
    watching, writing = clients(), clients()
    writing.create("/watched", b"1")
    seen: Queue[bytes | None] = Queue()
    children: Queue[list[str]] = Queue()
    watching.DataWatch("/watched", lambda data, _stat: seen.put(data))
    watching.ChildrenWatch("/watched", children.put)
    assert (seen.get(timeout=LIMIT_S), children.get(timeout=LIMIT_S)) == (b"1", [])
    writing.set("/watched", b"2")
    writing.create("/watched/child")
    assert (seen.get(timeout=LIMIT_S), children.get(timeout=LIMIT_S)) == (b"2", ["child"])
    server.drop_connection(watching)
    writing.set("/watched", b"3")  # whichever comes first: kazoo's watches read again when they are connected
    while seen.get(timeout=LIMIT_S) != b"3":
        pass


def test_a_patient_watch_waits_until_the_children_stay_the_same(clients: Clients) -> None:
    client = clients()
    client.create("/children/one", makepath=True)
    assert PatientChildrenWatch(client, "/children", time_boundary=0.01).start().get(timeout=LIMIT_S)[0] == ["one"]


def test_a_tree_cache_follows_a_subtree(clients: Clients) -> None:
    caching, writing = clients(), clients()
    writing.create("/tree/one", b"1", makepath=True)
    cache = TreeCache(caching, "/tree")
    cache.start()
    until(lambda: cache.get_data("/tree/one") is not None)
    writing.create("/tree/two", b"2")
    until(lambda: cache.get_children("/tree") == {"one", "two"})
    writing.delete("/tree/one")
    until(lambda: cache.get_data("/tree/one") is None)
    cache.close()


def test_a_transaction_is_all_or_nothing(client: FakeKazooClient) -> None:
    transaction = client.transaction()
    transaction.create("/one", b"1")
    transaction.check("/one", 0)
    transaction.set_data("/one", b"2")
    made = transaction.commit()
    assert (made[0], made[1], made[2].version) == ("/one", True, 1)
    transaction = client.transaction()
    transaction.create("/two")
    transaction.check("/one", 7)
    transaction.delete("/one")
    assert [type(result) for result in transaction.commit()] == [RolledBackError, BadVersionError, RuntimeInconsistency]
    assert client.exists("/two") is None


# Requests.


def test_errors_are_the_servers(client: FakeKazooClient) -> None:
    client.create("/one")
    with pytest.raises(NodeExistsError):
        client.create("/one")
    with pytest.raises(NoNodeError):
        client.get("/none")
    with pytest.raises(BadVersionError):
        client.set("/one", b"", version=3)
    with pytest.raises(BadVersionError):
        client.delete("/one", version=3)


def test_a_watch_fires_before_the_reply_that_shows_the_change(client: FakeKazooClient) -> None:
    events: Queue[tuple[str, str]] = Queue()

    def note(event: Any) -> None:
        events.put((event.type, event.path))

    assert client.exists("/node", watch=note) is None
    client.create("/node")
    client.get("/node", watch=note)
    client.get_children("/node", watch=note)
    client.create("/node/child")
    client.set("/node", b"new")
    assert [events.get(timeout=LIMIT_S) for _ in range(3)] == [
        (EventType.CREATED, "/node"),
        (EventType.CHILD, "/node"),
        (EventType.CHANGED, "/node"),
    ]


def test_the_four_letter_words_are_answered(client: FakeKazooClient) -> None:
    client.create("/ephemeral", ephemeral=True)
    assert client.command(b"ruok") == "imok"
    assert "zk_ephemerals_count\t1\n" in client.command(b"mntr")
    assert f"0x{client.client_id[0]:x}:\n\t/ephemeral" in client.command(b"dump")


def test_access_lists_and_credentials(clients: Clients) -> None:
    owner, stranger = clients(), clients()
    owner.add_auth("digest", "me:secret")
    acl = make_digest_acl("me", "secret", all=True)
    owner.create("/private", b"data", acl=[acl])
    with pytest.raises(NoAuthError):
        stranger.get("/private")
    with pytest.raises(InvalidACLError):
        stranger.create("/bad", acl=[make_acl("auth", "", all=True)])
    entries, stat = owner.get_acls("/private")
    assert (entries, stat.aversion) == ([acl], 0)
    everyone = make_acl("world", "anyone", read=True)
    assert owner.set_acls("/private", [acl, everyone]).aversion == 1
    assert stranger.get("/private")[0] == b"data"
    with pytest.raises(BadVersionError):
        owner.set_acls("/private", [acl], version=0)


def test_a_chroot_hides_the_rest_and_hosts_are_not_looked_up(clients: Clients) -> None:
    root = clients()
    root.create("/app")
    inside = clients(hosts="zk-1.invalid:2181,zk-2.invalid:2181/app")
    assert inside.create("/node", sequence=True) == "/node0000000000"
    assert clients.server.paths() == ("/app", "/app/node0000000000")
    assert inside.server_version() == (3, 9, 5)


# Faults.


def test_a_dropped_connection_keeps_the_session(client: FakeKazooClient, server: FakeZooKeeper) -> None:
    session = client.client_id
    client.create("/ephemeral", ephemeral=True)
    states = states_of(client)
    server.drop_connection(client)
    assert next_states(states, 2) == [KazooState.SUSPENDED, KazooState.CONNECTED]
    assert client.client_id == session
    assert client.exists("/ephemeral")


def test_a_suspended_client_loses_its_session_at_its_timeout(clients: Clients, server: FakeZooKeeper) -> None:
    client, other = clients(timeout=0.3), clients()
    client.create("/ephemeral", ephemeral=True)
    states = states_of(client)
    server.suspend(client)
    until(lambda: other.exists("/ephemeral") is None)  # `other` drives the server's clock meanwhile
    assert list(states.queue) == [KazooState.SUSPENDED]
    server.resume(client)
    assert next_states(states, 3)[1:] == [KazooState.LOST, KazooState.CONNECTED]


def test_an_expired_session_ends_while_its_client_is_suspended(client: FakeKazooClient, server: FakeZooKeeper) -> None:
    states = states_of(client)
    server.suspend(client)
    server.expire(client)
    assert server.sessions() == ()
    server.resume(client)
    assert next_states(states, 3) == [KazooState.SUSPENDED, KazooState.LOST, KazooState.CONNECTED]


@pytest.mark.parametrize("applied", [True, False])
def test_a_lost_reply_leaves_the_outcome_unknown(client: FakeKazooClient, server: FakeZooKeeper, applied: bool) -> None:
    server.lose_reply(client, applied=applied)
    with pytest.raises(ConnectionLoss):
        client.create("/node")
    assert bool(client.retry(client.exists, "/node")) == applied
    client.retry(client.create, "/other")


def test_a_cut_network_is_noticed_by_an_unanswered_ping(clients: Clients, server: FakeZooKeeper) -> None:
    client = clients(timeout=1.0)
    states = states_of(client)
    server.cut(client)
    written = client.create_async("/late")
    assert next_states(states, 1) == [KazooState.SUSPENDED]
    with pytest.raises(ConnectionLoss):
        written.get(timeout=LIMIT_S)
    assert server.paths() == ()
    server.heal(client)
    assert server.paths() == ("/late",)  # what was under way arrives, although its client has given it up
    while states.get(timeout=LIMIT_S) != KazooState.CONNECTED:
        pass


def test_a_server_that_stops_keeps_data_and_sessions(client: FakeKazooClient, server: FakeZooKeeper) -> None:
    client.create("/ephemeral", ephemeral=True)
    states = states_of(client)
    server.stop()
    assert next_states(states, 1) == [KazooState.SUSPENDED]
    server.start()
    assert next_states(states, 1) == [KazooState.CONNECTED]
    assert client.exists("/ephemeral")


def test_a_longer_request_than_the_server_takes_breaks_the_connection(client: FakeKazooClient) -> None:
    with pytest.raises(ConnectionLoss):
        client.create("/long", b"x" * 1_100_000)


def test_nothing_runs_after_the_last_client_has_stopped() -> None:
    before = threading.active_count()
    client = fake_kazoo()
    client.start()
    client.create("/ephemeral", ephemeral=True)
    client.stop()
    assert client.zookeeper.sessions() == ()
    client.start()
    assert client.zookeeper.paths() == ()
    client.stop()
    client.close()
    assert threading.active_count() == before


def test_misuse_is_refused(client: FakeKazooClient) -> None:
    with pytest.raises(ValueError, match="brings its own handler"):
        fake_kazoo(handler=object())
    with pytest.raises(ValueError, match="expected a client that fake_kazoo made"):
        FakeZooKeeper().expire(client)
    fresh = fake_kazoo()
    with pytest.raises(ValueError, match="has no session"):
        fresh.zookeeper.expire(fresh)


def test_the_package_loads_kazoo_only_with_the_fake() -> None:
    code = "import sys, controller.zookeeper; sys.exit('kazoo' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_examples_of_the_guide_run() -> None:
    examples = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    for example in examples:
        names: dict[str, Any] = {"__name__": "example"}
        exec(compile(example, str(GUIDE), "exec"), names)
        for name, test in list(names.items()):
            if name.startswith("test_"):
                test()
