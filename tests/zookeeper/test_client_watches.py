"""Standing watches: no change goes untold, over firings, broken connections and ended sessions, and nothing stays
watched that is wanted no more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from controller.zookeeper.client import SET_WATCHES_PATHS, StandingWatches, ZooKeeperClient
from controller.zookeeper.operations import ANY_VERSION, Create, Delete, SessionState, WatchEvent
from tests.zookeeper.client_bench import Bench, Node, state_event


@pytest.fixture
def bench() -> Bench:
    bench = Bench()
    bench.create("/a", "/b", "/parent")
    return bench


def watch_a_node(node: Node) -> None:
    node.bench.wait(node.client.watch_node("/a", "a"))


def changes(bench: Bench) -> list[Callable[[], object]]:
    return [
        lambda: bench.set("/a"),
        lambda: bench.change(Delete("/a", ANY_VERSION)),
        lambda: bench.create("/a"),
        lambda: bench.set("/a"),
    ]


def check_each_change_is_told(bench: Bench, node: Node) -> None:
    """The check of the tests below, planted faults included: one event for each change, read behind each."""
    watch_a_node(node)
    for number, change in enumerate(changes(bench)):
        change()
        assert node.events.take() == ["a"], f"change {number}"


def test_each_change_of_a_watched_node_puts_its_event(bench: Bench) -> None:
    check_each_change_is_told(bench, bench.node())


class NotSetAgain(StandingWatches):
    """Planted fault: a watch that has fired is not set again."""

    def fired(self, event: WatchEvent) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(self, "arm", lambda nodes, children: None)
            super().fired(event)


class NotSetAgainOnReconnect(StandingWatches):
    """Planted fault: after a reconnection nothing is armed, though the events are put."""

    def connected(self, same_session: bool) -> None:
        nodes, self._nodes = self._nodes, {}
        super().connected(same_session)
        self._nodes = nodes
        self._put(nodes, list(nodes))


def with_watches(watches: type[StandingWatches]) -> type[ZooKeeperClient]:
    class Planted(ZooKeeperClient):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            self._watches = watches(self._connection, self._events)

    return Planted


def test_a_watch_that_is_not_set_again_is_caught(bench: Bench) -> None:
    with pytest.raises(AssertionError, match="change 1"):
        check_each_change_is_told(bench, bench.node(with_watches(NotSetAgain)))


def check_told_after_a_reconnection(bench: Bench, node: Node) -> None:
    watch_a_node(node)
    node.connection.reset()
    bench.until(lambda: (SessionState.CONNECTED, node.client.session()) in node.events.put_)
    bench.settle()
    assert node.events.take()[-1] == "a", "put with the reconnection"
    bench.set("/a")
    assert node.events.take() == ["a"], "told after the reconnection"


def test_a_reconnection_puts_the_event_and_sets_the_watch_again(bench: Bench) -> None:
    check_told_after_a_reconnection(bench, bench.node())


def test_a_watch_that_a_reconnection_does_not_set_again_is_caught(bench: Bench) -> None:
    with pytest.raises(AssertionError, match="told after"):
        check_told_after_a_reconnection(bench, bench.node(with_watches(NotSetAgainOnReconnect)))


def test_a_change_between_the_event_and_the_handlers_read_is_told_again(bench: Bench) -> None:
    """The watch is armed before the event is put, so a read made for the event is behind it."""
    node = bench.node()
    watch_a_node(node)
    bench.wait(bench.other.multi([Delete("/a", ANY_VERSION)]))
    bench.until(lambda: node.events.put_)
    seen = node.client.read(["/a"])
    bench.wait(bench.other.multi([Create("/a", b"new")]))
    bench.settle()
    assert bench.wait(seen).rows == (None,)
    assert node.events.take() == ["a", "a"]


@pytest.mark.parametrize("kind", ["node", "children", "kept children", "many"])
@pytest.mark.parametrize("why", ["it fired", "reconnection", "new session"])
def test_a_watch_is_armed_before_its_event_is_put(bench: Bench, kind: str, why: str) -> None:
    """On a real host another thread takes the event at once and reads: the read must be behind the armed watch."""
    node = bench.node()
    watches: dict[str, Callable[[], Any]] = {
        "node": lambda: node.client.watch_node("/a", "event"),
        "children": lambda: node.client.watch_children("/parent", "event"),
        "kept children": lambda: node.client.keep_watching_children("/parent", "event"),
        "many": lambda: node.client.watch_many(["/a"], lambda _path: "event", bench.server.zxid),
    }
    bench.wait(watches[kind]())
    path = "/a" if kind in ("node", "many") else "/parent"
    order: list[str] = []
    put, connection = node.events.put, node.connection

    def noted_put(event: Any) -> None:
        order.append("put") if event == "event" else None
        put(event)

    def arming(name: str) -> None:
        request = getattr(connection, name)

        def noted(*arguments: Any) -> Any:
            order.append("armed") if any(path in paths for paths in arguments if not isinstance(paths, int)) else None
            return request(*arguments)

        setattr(connection, name, noted)

    arming("watch")
    arming("set_watches")
    node.events.put = noted_put  # type: ignore[method-assign]
    if why == "it fired":
        bench.set(path) if path == "/a" else bench.create("/parent/x")
    elif why == "reconnection":
        connection.reset()
        bench.set("/a")
    else:
        bench.server.expire(node.client.session())
    bench.until(lambda: "put" in order)
    bench.settle()
    for place in range(1, len(order) + 1):
        assert order[:place].count("put") <= order[:place].count("armed"), order


def test_children_watch_tells_of_each_child_and_of_the_parents_end(bench: Bench) -> None:
    node = bench.node()
    bench.wait(node.client.watch_children("/parent", "children"))
    bench.create("/parent/x")
    bench.change(Delete("/parent/x", ANY_VERSION))
    bench.change(Delete("/parent", ANY_VERSION))
    assert node.events.take() == ["children"] * 3


def test_a_deletion_puts_the_events_of_both_kinds(bench: Bench) -> None:
    node = bench.node()
    bench.wait(node.client.watch_node("/parent", "node"))
    bench.wait(node.client.watch_children("/parent", "children"))
    bench.change(Delete("/parent", ANY_VERSION))
    assert set(node.events.take()) == {"node", "children"}


def test_a_path_and_kind_has_one_event_value(bench: Bench) -> None:
    node = bench.node()
    watch_a_node(node)
    bench.wait(node.client.watch_node("/a", "another"))
    bench.set("/a")
    assert node.events.take() == ["another"]


def test_what_is_unwatched_puts_nothing_though_its_watch_still_fires(bench: Bench) -> None:
    node = bench.node()
    watch_a_node(node)
    bench.wait(node.client.watch_children("/parent", "children"))
    node.client.unwatch(["/a", "/parent"])
    assert node.client.watched() == frozenset()
    bench.set("/a")
    bench.create("/parent/x")
    assert node.events.take() == []


def test_many_watches_are_set_in_few_requests_and_each_puts_its_own_event(bench: Bench) -> None:
    node = bench.node()
    paths = [f"/many-{number}" for number in range(SET_WATCHES_PATHS + 1)]
    for start in range(0, len(paths), 500):
        bench.create(*paths[start : start + 500])
    bench.wait(node.client.watch_many(paths, lambda path: ("changed", path), bench.server.zxid))
    assert node.events.take() == []
    bench.set(paths[0])
    bench.set(paths[-1])
    bench.change(Delete(paths[7], ANY_VERSION))
    assert node.events.take() == [("changed", paths[index]) for index in (0, -1, 7)]
    bench.create(paths[7])
    assert node.events.take() == [("changed", paths[7])]


def test_what_changed_between_the_first_read_and_its_bulk_watch_fires_at_once(bench: Bench) -> None:
    node = bench.node()
    zxid = bench.wait(node.client.read(["/a", "/b"])).zxid
    bench.set("/b")
    bench.wait(node.client.watch_many(["/a", "/b"], lambda path: path, zxid))
    bench.settle()
    assert node.events.take() == ["/b"]


def test_a_bulk_watch_whose_request_was_cut_off_is_set_with_its_own_zxid(bench: Bench) -> None:
    """A reconnection arms with the zxid seen at the break, which would miss what changed before it."""
    node = bench.node(latency=lambda: 5.0)
    zxid = bench.wait(node.client.read(["/a"])).zxid
    bench.set("/a")
    bench.wait(node.client.read(["/b"]))
    assert node.connection.last_zxid() > zxid
    armed = node.client.watch_many(["/a"], lambda path: path, zxid)
    node.connection.reset()
    bench.wait(armed)
    bench.settle(50.0)
    assert "/a" in node.events.take()


def test_after_a_reconnection_bulk_watches_tell_only_what_changed_meanwhile(bench: Bench) -> None:
    node = bench.node()
    bench.wait(node.client.watch_many(["/a", "/b"], lambda path: path, bench.server.zxid))
    node.connection.cut()
    node.connection.reset()
    bench.set("/b")
    node.connection.heal()
    bench.until(lambda: (SessionState.CONNECTED, node.client.session()) in node.events.put_)
    bench.settle()
    assert [event for event in node.events.take() if isinstance(event, str)] == ["/b"]
    bench.set("/a")
    assert node.events.take() == ["/a"]


def test_a_second_break_before_the_watches_were_set_again_loses_nothing(bench: Bench) -> None:
    node = bench.node(latency=lambda: 5.0)
    bench.wait(node.client.watch_many(["/a"], lambda path: path, bench.server.zxid))
    node.connection.reset()
    bench.set("/a")
    bench.until(lambda: (SessionState.CONNECTED, node.client.session()) in node.events.put_)
    # Arming is on its way; its connection breaks too, after a reply with a newer zxid than the change's.
    node.connection.reset()
    node.events.take()
    bench.until(lambda: "/a" in node.events.put_)


def test_a_new_session_arms_everything_afresh_and_puts_it(bench: Bench) -> None:
    """S25: what was created while there was no session is looked for again."""
    node = bench.node()
    watch_a_node(node)
    bench.wait(node.client.watch_children("/parent", "children"))
    bench.wait(node.client.watch_many(["/b"], lambda path: path, bench.server.zxid))
    old = node.client.session()
    bench.server.expire(old)
    bench.until(lambda: node.client.session() not in (0, old))
    bench.settle()
    events = node.events.take()
    assert [event for event in events if event in ("a", "children", "/b")] == ["a", "/b", "children"]
    assert node.client.former_sessions() == (old,)
    bench.create("/parent/x")
    bench.set("/a")
    bench.set("/b")
    assert node.events.take() == ["children", "a", "/b"]


@pytest.mark.parametrize("fault", ["reconnection", "new session"])
def test_the_server_holds_the_watches_that_stand_and_no_others(bench: Bench, fault: str) -> None:
    """Invariant 6."""
    node = bench.node()
    watch_a_node(node)
    bench.wait(node.client.watch_node("/not-there", "not there"))
    bench.wait(node.client.watch_children("/parent", "children"))
    bench.wait(node.client.watch_many(["/b"], lambda path: path, bench.server.zxid))
    node.client.unwatch(["/a"])
    old = node.client.session()
    if fault == "reconnection":
        node.connection.reset()
    else:
        bench.server.expire(old)
    bench.until(lambda: node.events.put_ and node.events.put_[-1] == "children")
    bench.settle(10.0)
    assert node.client.watched() == {("node", "/not-there"), ("children", "/parent"), ("node", "/b")}
    assert bench.server.watched(node.client.session()) == node.client.watched()


def test_session_events_come_with_the_session_they_speak_of(bench: Bench) -> None:
    node = bench.node()
    old = node.client.session()
    node.connection.reset()
    bench.until(lambda: len(node.events.put_) == 2)
    assert node.events.take() == [state_event(SessionState.SUSPENDED, old), state_event(SessionState.CONNECTED, old)]
    bench.server.expire(old)
    bench.until(lambda: len(node.events.put_) == 3)
    new = node.client.session()
    assert new != old
    assert node.events.take() == [
        state_event(SessionState.SUSPENDED, old),
        state_event(SessionState.EXPIRED, old),
        state_event(SessionState.CONNECTED, new),
    ]
    bench.wait(node.client.close())
    assert node.events.take() == [state_event(SessionState.CLOSED, new)]


def test_a_second_party_keeps_its_watch_on_children_whatever_the_first_does(bench: Bench) -> None:
    node = bench.node()
    bench.wait(node.client.keep_watching_children("/parent", "kept"))
    bench.wait(node.client.watch_children("/parent", "first"))
    bench.create("/parent/a")
    assert node.events.take() == ["first", "kept"]
    node.client.unwatch(["/parent"])
    assert node.client.watched() == frozenset()
    bench.create("/parent/b")
    assert node.events.take() == ["kept"]
    bench.create("/parent/c")
    assert node.events.take() == ["kept"]


def test_a_kept_watch_stands_over_reconnections_and_sessions(bench: Bench) -> None:
    node = bench.node()
    bench.wait(node.client.keep_watching_children("/parent", "kept"))
    for end in (node.connection.reset, lambda: bench.server.expire(node.client.session())):
        end()
        bench.until(lambda: "kept" in node.events.put_)
        bench.settle()
        node.events.take()
        bench.create(f"/parent/{bench.server.zxid}")
        assert node.events.take() == ["kept"]
