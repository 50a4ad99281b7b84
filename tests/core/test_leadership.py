"""The election, on the in-memory ZooKeeper: lost replies at every point, two contenders, sessions old and new."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest

from controller.clock import Future, VirtualClock, spawn
from controller.core import leadership
from controller.core.leadership import (
    EPOCH_STEP,
    HIGHEST_EPOCH,
    BrokerKnowledge,
    ElectionBlocked,
    ElectionOutcome,
    Lost,
    Reason,
    Won,
    elect,
)
from controller.zookeeper.client import Leadership, ZooKeeperClient
from controller.zookeeper.codecs import decode_controller, decode_controller_epoch
from controller.zookeeper.memory.server import InMemoryConnection, InMemoryZooKeeper
from controller.zookeeper.operations import (
    ANY_VERSION,
    ControllerMoved,
    Create,
    DamagedZnode,
    Delete,
    SessionGone,
    SetData,
)
from controller.zookeeper.paths import BROKER_TOPICS, CLUSTER_ID, CONTROLLER, CONTROLLER_EPOCH

TIMEOUT_MS = 2000
LONG_MS = 120_000.0


class NoEvents:
    def put(self, event: Any) -> None:
        pass


class Contender:
    """A broker's client, connected."""

    def __init__(self, cluster: Cluster, broker_id: int) -> None:
        self.cluster = cluster
        self.broker_id = broker_id
        self.connection: InMemoryConnection = cluster.server.connect(TIMEOUT_MS, latency=lambda: 1.0)
        self.client = ZooKeeperClient(self.connection, cluster.clock, NoEvents(), seed=broker_id)
        cluster.wait(self.client.start())

    def stand(self, known: BrokerKnowledge | None = None) -> Future[ElectionOutcome]:
        return spawn(elect(self.client, self.broker_id, self.cluster.clock, known))

    def elected(self) -> ElectionOutcome:
        outcome: ElectionOutcome = self.cluster.wait(self.stand())
        return outcome

    def term(self) -> Leadership:
        outcome = self.elected()
        assert isinstance(outcome, Won), outcome
        return outcome.leadership


class Cluster:
    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.server = InMemoryZooKeeper(self.clock)

    def wait(self, pending: Future[Any]) -> Any:
        assert self.clock.run_until(lambda: pending.done, self.clock.now_ms() + LONG_MS)
        return pending.result()

    def pass_ms(self, ms: float) -> None:
        self.clock.advance_to(self.clock.now_ms() + ms)

    def epoch(self) -> tuple[int, int]:
        row = self.server.row(CONTROLLER_EPOCH)
        assert row is not None
        return decode_controller_epoch(row.path, row.data), row.stat.version

    def controller(self) -> tuple[int, int]:
        """Whose id /controller holds, and whose session it is of."""
        row = self.server.row(CONTROLLER)
        assert row is not None
        return decode_controller(row.path, row.data).broker_id, row.stat.ephemeral_owner

    def assert_led_by(self, leader: Contender, term: Leadership) -> None:
        assert self.controller() == (leader.broker_id, term.session)
        assert self.epoch() == (term.epoch, term.epoch_zk_version)
        assert term.session == leader.client.session()


def test_the_first_term_is_epoch_1_at_version_1() -> None:
    cluster = Cluster()
    one = Contender(cluster, 1)
    term = one.term()
    assert (term.epoch, term.epoch_zk_version) == (1, 1)
    cluster.assert_led_by(one, term)
    row = cluster.server.row(CONTROLLER)
    assert row is not None
    assert row.data is not None
    assert row.data.startswith(b'{"version":1,"brokerid":1,"timestamp":"17')
    assert row.stat.ephemeral_owner == term.session


def test_who_comes_second_loses_to_the_first_and_raises_nothing() -> None:
    cluster = Cluster()
    one, two = Contender(cluster, 1), Contender(cluster, 2)
    term = one.term()
    assert two.elected() == Lost(1, term.session)
    cluster.assert_led_by(one, term)


def test_the_next_term_grows_and_the_former_is_fenced() -> None:
    cluster = Cluster()
    one, two = Contender(cluster, 1), Contender(cluster, 2)
    first = one.term()
    cluster.wait(one.client.close())
    second = two.term()
    assert (second.epoch, second.epoch_zk_version) == (2, 2)
    with pytest.raises(SessionGone):
        cluster.wait(one.client.commit(first, [Create("/stale", b"")]))


def old_session_scenario() -> None:
    """S07 (CURATOR-696): broker 1 comes back on a new session and finds its own id in /controller."""
    cluster = Cluster()
    old_life = Contender(cluster, 1)
    old_term = old_life.term()
    old_life.connection.kill()
    new_life = Contender(cluster, 1)
    assert new_life.elected() == Lost(1, old_term.session)
    cluster.pass_ms(2 * TIMEOUT_MS)
    term = new_life.term()
    assert term.epoch == 2
    cluster.assert_led_by(new_life, term)


def test_an_older_session_of_its_own_is_no_victory() -> None:
    old_session_scenario()


def test_the_owner_check_is_what_makes_that_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted fault: whoever finds its id in /controller thinks that it leads."""
    monkeypatch.setattr(leadership, "_is_owned_by", lambda controller, session: True)
    with pytest.raises(AssertionError):
        old_session_scenario()


def test_resigned_inside_a_session_that_lives_on_it_stands_again_and_its_old_term_is_void() -> None:
    cluster = Cluster()
    one, two = Contender(cluster, 1), Contender(cluster, 2)
    first = one.term()
    again = one.elected()
    assert isinstance(again, Won)
    assert again.taken_over
    assert again.leadership == Leadership(first.session, 2, 2)
    cluster.assert_led_by(one, again.leadership)
    with pytest.raises(ControllerMoved):
        cluster.wait(one.client.commit(first, [Create("/stale", b"")]))
    cluster.wait(one.client.commit(again.leadership, [Create("/fresh", b"")]))
    assert two.elected() == Lost(1, first.session)


@pytest.mark.parametrize("applied", [True, False])
@pytest.mark.parametrize("which", ["epoch's creation", "first term", "taken over"])
def test_a_lost_reply_is_settled_by_looking_again(applied: bool, which: str) -> None:
    """S08 (KafkaZkClient.checkControllerAndEpoch): a won election is neither given up nor raised twice."""
    cluster = Cluster()
    one = Contender(cluster, 1)
    expected = 1
    if which != "epoch's creation":
        cluster.wait(one.client.commit_election([Create(CONTROLLER_EPOCH, b"0")]))
    if which == "taken over":
        one.term()
        expected = 2
    one.connection.lose_reply(applied=applied)
    term = one.term()
    assert (term.epoch, term.epoch_zk_version) == (expected, expected)
    cluster.assert_led_by(one, term)


def unsettled_foreign_scenario() -> None:
    """The multi never arrived, and while its sender was away an older session of its own id took /controller: same
    id, same epoch as attempted."""
    cluster = Cluster()
    twin, one = Contender(cluster, 1), Contender(cluster, 1)
    cluster.wait(twin.client.commit_election([Create(CONTROLLER_EPOCH, b"0")]))
    one.connection.lose_reply(applied=False)
    standing = one.stand()
    assert cluster.clock.run_until(lambda: not one.connection._connected, LONG_MS)
    term = twin.term()
    assert term.epoch == 1
    assert cluster.wait(standing) == Lost(1, term.session)


def test_an_unanswered_attempt_is_not_won_by_another_session_of_the_same_id() -> None:
    unsettled_foreign_scenario()


def test_the_owner_check_matters_there_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leadership, "_is_owned_by", lambda controller, session: True)
    with pytest.raises(AssertionError):
        unsettled_foreign_scenario()


Fault = Callable[[Cluster, Contender], None]


def outcome_with_fault_at(step: int, fault: Fault, prepared: bool) -> tuple[Cluster, Contender, Any] | None:
    """Stands, with `fault` after `step` of the clock's steps. None when the election was over before."""
    cluster = Cluster()
    one = Contender(cluster, 1)
    if prepared:
        one.term()
    standing = one.stand()
    for _ in range(step):
        if standing.done:
            return None
        cluster.clock.step()
    fault(cluster, one)
    try:
        return cluster, one, cluster.wait(standing)
    except SessionGone as gone:
        return cluster, one, gone


@pytest.mark.parametrize("recreated", [False, True])
def test_a_persistent_controller_in_the_place_of_its_own_is_no_victory_at_any_point(recreated: bool) -> None:
    """It has the version that its own had, so that no write of the election fails by it; but for a child, where the
    election deletes /controller, too."""
    ends = []
    for step in range(20):
        cluster = Cluster()
        one, administrator = Contender(cluster, 1), Contender(cluster, 2)
        one.term()
        children = [Create(f"{CONTROLLER}/child", b"")] * recreated
        if recreated:
            cluster.wait(administrator.connection.multi([SetData(CONTROLLER_EPOCH, b"2147483647", ANY_VERSION)]))
        standing = one.stand()
        for _ in range(step):
            cluster.clock.step()
        edited = administrator.client.commit_election(
            [Delete(CONTROLLER, ANY_VERSION), Create(CONTROLLER, b""), *children]
        )
        try:
            outcome: ElectionOutcome | None = cluster.wait(standing)
        except ElectionBlocked:
            outcome = None
        ends.append(outcome is not None)
        assert not edited.done or outcome is None, "won before, or not at all"
        cluster.wait(edited)
    assert ends == sorted(ends), "late edits find a controller that is elected"
    assert {*ends} == {False, True}


@pytest.mark.parametrize("prepared", [False, True])
def test_a_connection_broken_at_any_point_costs_no_term_and_no_epoch(prepared: bool) -> None:
    ran = 0
    for step in itertools.count():
        result = outcome_with_fault_at(step, lambda _, one: one.connection.reset(), prepared)
        if result is None:
            break
        ran += 1
        cluster, one, outcome = result
        assert isinstance(outcome, Won), (step, outcome)
        assert outcome.leadership.epoch == (2 if prepared else 1), step
        cluster.assert_led_by(one, outcome.leadership)
    assert ran >= 6


@pytest.mark.parametrize("prepared", [False, True])
def test_a_session_that_ends_at_any_point_is_told_and_its_successor_wins(prepared: bool) -> None:
    """Also when the connection comes back on a new session meanwhile: nothing is written in that one unasked."""
    ran = told = 0
    for step in itertools.count():
        result = outcome_with_fault_at(step, lambda c, one: c.server.expire(one.client.session()), prepared)
        if result is None:
            break
        ran += 1
        cluster, one, outcome = result
        told += isinstance(outcome, SessionGone)
        assert cluster.server.row(CONTROLLER) is None, step
        cluster.pass_ms(1000)
        term = one.term()
        cluster.assert_led_by(one, term)
    assert ran >= 6
    assert told >= ran - 2


class Stepper:
    """A coroutine resumed by hand: at each await it stays until told to go on."""

    def __init__(self, cluster: Cluster, contender: Contender) -> None:
        self.cluster = cluster
        self.task = elect(contender.client, contender.broker_id, cluster.clock)
        self.waiting: Future[Any] | None = None
        self.outcome: ElectionOutcome | None = None
        self.contender = contender

    def go_on(self) -> None:
        """To the next await, or to the end."""
        if self.outcome is not None:
            return
        if self.waiting is not None and not self.waiting.done:
            waiting = self.waiting
            assert self.cluster.clock.run_until(lambda: waiting.done, LONG_MS)
        try:
            self.waiting = self.task.send(None)
        except StopIteration as ended:
            self.outcome = ended.value


@pytest.mark.parametrize("prepared", [False, True])
def test_two_contenders_racing_at_every_await_make_one_controller(prepared: bool) -> None:
    """Every order of their first twelve moves."""
    winners = set()
    for first_movers in itertools.combinations(range(10), 5):
        cluster = Cluster()
        contenders = [Contender(cluster, 1), Contender(cluster, 2)]
        if prepared:
            cluster.wait(contenders[0].client.commit_election([Create(CONTROLLER_EPOCH, b"7")]))
        steppers = [Stepper(cluster, contender) for contender in contenders]
        for move in range(10):
            steppers[0 if move in first_movers else 1].go_on()
        while any(stepper.outcome is None for stepper in steppers):
            for stepper in steppers:
                stepper.go_on()
        won = [stepper for stepper in steppers if isinstance(stepper.outcome, Won)]
        assert len(won) == 1, first_movers
        term = won[0].outcome
        assert isinstance(term, Won)
        assert term.leadership.epoch == (8 if prepared else 1)
        cluster.assert_led_by(won[0].contender, term.leadership)
        lost = next(stepper for stepper in steppers if stepper is not won[0])
        assert lost.outcome == Lost(won[0].contender.broker_id, term.leadership.session)
        winners.add(won[0].contender.broker_id)
    assert winners == {1, 2}


def test_the_same_race_with_a_deletion_in_it_never_gives_two_valid_terms() -> None:
    """/controller deleted by hand while its owner stands again: whoever wins, one term is left standing."""
    for before in range(8):
        cluster = Cluster()
        one, two = Contender(cluster, 1), Contender(cluster, 2)
        one.term()
        steppers = [Stepper(cluster, one), Stepper(cluster, two)]
        for _ in range(before):
            steppers[0].go_on()
        cluster.wait(two.connection.multi([Delete(CONTROLLER, ANY_VERSION)]))
        while any(stepper.outcome is None for stepper in steppers):
            for stepper in reversed(steppers):
                stepper.go_on()
        standing = 0
        for stepper in steppers:
            if not isinstance(stepper.outcome, Won):
                continue
            try:
                cluster.wait(stepper.contender.client.commit(stepper.outcome.leadership, []))
                standing += 1
            except ControllerMoved:
                pass
        assert standing == 1, before


@pytest.mark.parametrize(("path", "data"), [(CONTROLLER_EPOCH, b"seven"), (CONTROLLER, b"{}")])
def test_a_damaged_znode_is_named(path: str, data: bytes) -> None:
    cluster = Cluster()
    one, two = Contender(cluster, 1), Contender(cluster, 2)
    two.term()
    if path == CONTROLLER_EPOCH:
        cluster.wait(two.connection.multi([Delete(CONTROLLER, ANY_VERSION)]))
    cluster.wait(two.connection.multi([SetData(path, data, ANY_VERSION)]))
    with pytest.raises(DamagedZnode, match=path):
        one.elected()


def test_an_epoch_that_is_created_anew_does_not_revive_an_earlier_terms_fence() -> None:
    """Both znodes are deleted by hand while the controller stands still: its version of /controller_epoch must not come
    again."""
    cluster = Cluster()
    one, two = Contender(cluster, 1), Contender(cluster, 2)
    first = one.term()
    assert first.epoch_zk_version == 1
    cluster.wait(two.connection.multi([Delete(CONTROLLER, ANY_VERSION), Delete(CONTROLLER_EPOCH, ANY_VERSION)]))
    second = two.stand(BrokerKnowledge(epoch=first.epoch))
    outcome = cluster.wait(second)
    assert outcome.leadership.epoch > first.epoch + 1
    assert "was missing" in outcome.corrected
    with pytest.raises(ControllerMoved):
        cluster.wait(one.client.commit(first, [Create("/stale", b"")]))


@pytest.mark.parametrize(
    ("held", "known", "expected"),
    [
        (b"7", BrokerKnowledge(), 8),
        (b"7", BrokerKnowledge(epoch=7), 8),
        (b"7", BrokerKnowledge(epoch=50), 50 + EPOCH_STEP + 1),
        (b"7", BrokerKnowledge(refused=7), 7 + EPOCH_STEP + 1),
        (b"7", BrokerKnowledge(refused=6), 8),
        (b"%d" % HIGHEST_EPOCH, BrokerKnowledge(epoch=50), 50 + EPOCH_STEP + 1),
        (b"2147483645", BrokerKnowledge(epoch=50), 50 + EPOCH_STEP + 1),
        (b"2147483646", BrokerKnowledge(epoch=50), 50 + EPOCH_STEP + 1),
        (b"2147483647", BrokerKnowledge(epoch=50), 50 + EPOCH_STEP + 1),
        (b"%d" % (HIGHEST_EPOCH - 1), BrokerKnowledge(), HIGHEST_EPOCH),
    ],
)
def test_the_next_epoch_is_above_all_that_are_known(held: bytes, known: BrokerKnowledge, expected: int) -> None:
    cluster = Cluster()
    one = Contender(cluster, 1)
    cluster.wait(one.connection.multi([Create(CONTROLLER_EPOCH, held)]))
    outcome = cluster.wait(one.stand(known))
    assert outcome.leadership.epoch == expected
    assert bool(outcome.corrected) == (expected != int(held) + 1)


@pytest.mark.parametrize(
    ("held", "known"),
    [
        (b"7", BrokerKnowledge(epoch=HIGHEST_EPOCH)),
        (b"2147483647", BrokerKnowledge(epoch=HIGHEST_EPOCH - 1)),
        (b"7", BrokerKnowledge(refused=7, step=2**31)),
    ],
)
def test_an_epoch_at_the_end_of_its_range_is_reported(held: bytes, known: BrokerKnowledge) -> None:
    cluster = Cluster()
    one = Contender(cluster, 1)
    cluster.wait(one.connection.multi([Create(CONTROLLER_EPOCH, held)]))
    with pytest.raises(ElectionBlocked, match="stop every broker") as blocked:
        cluster.wait(one.stand(known))
    assert blocked.value.obstacle.reason is Reason.EPOCH_EXHAUSTED


def test_without_a_session_nobody_stands() -> None:
    cluster = Cluster()
    one = Contender(cluster, 1)
    cluster.wait(one.client.close())
    with pytest.raises(SessionGone):
        one.elected()


@pytest.mark.parametrize("terms", range(5))
@pytest.mark.parametrize("created", [0, 3])
def test_an_epoch_that_is_created_anew_is_above_as_many_terms_as_znodes_were_deleted(terms: int, created: int) -> None:
    """Nobody knows of the earlier terms. Every session that led has deleted one child of the root, and the two that are
    deleted here count too."""
    cluster = Cluster()
    for _ in range(terms):
        one = Contender(cluster, 1)
        one.term()
        cluster.wait(one.client.close())
    two = Contender(cluster, 2)
    children = [Create(f"/other-{number}", b"") for number in range(created)]
    cluster.wait(two.connection.multi([*children, *(Delete(CONTROLLER_EPOCH, ANY_VERSION) for _ in range(terms > 0))]))
    outcome = two.elected()
    assert isinstance(outcome, Won)
    if not terms:
        assert (outcome.leadership.epoch, cluster.epoch(), outcome.corrected) == (1, (1, 1), "")
        return
    deletions = terms + 1
    anew = deletions * 1_000 + 1_000
    versions = 100 + 100 * deletions
    assert cluster.epoch() == (anew + 1, versions + 1)
    assert outcome.leadership.epoch == anew + 1
    assert outcome.corrected == (
        f"/controller_epoch was missing and is created anew with {anew}; the highest known was 0"
    )


@pytest.mark.parametrize(
    ("highest", "deletions", "anew"),
    [
        (0, 0, 0),
        (1, 0, 1_001),
        (0, 1, 2_000),
        (999, 1, 2_000),
        (1_001, 1, 2_001),
        (0, 500_000, 500_001_000),
        (0, 500_001, 500_001_000),
    ],
)
def test_an_epoch_anew_is_a_step_above_what_may_have_been(highest: int, deletions: int, anew: int) -> None:
    assert leadership._epoch_anew(highest, deletions) == anew


@pytest.mark.parametrize("seed", range(60))
def test_epochs_go_up_whatever_is_forgotten_and_changed_by_hand(seed: int) -> None:
    """Terms won in one session or in several, by brokers that know the latest epoch or none; between them the epoch is
    deleted, made too high, or refused by a broker."""
    rng = random.Random(seed)
    cluster = Cluster()
    one = Contender(cluster, 1)
    highest = one.term().epoch
    for _ in range(12):
        knows = BrokerKnowledge(epoch=highest if rng.random() < 0.5 else 0)
        change = rng.choice(["deleted", "too high", "refused", "none"])
        if rng.random() < 0.3:
            cluster.wait(one.client.close())
            one = Contender(cluster, 1)
        if change == "deleted":
            cluster.wait(one.connection.multi([Delete(CONTROLLER_EPOCH, ANY_VERSION)]))
        elif change == "too high":
            cluster.wait(one.connection.multi([SetData(CONTROLLER_EPOCH, b"2147483647", ANY_VERSION)]))
        elif change == "refused":
            knows = BrokerKnowledge(refused=highest, step=EPOCH_STEP * 4 ** rng.randrange(3))
        outcome = cluster.wait(one.stand(knows))
        assert isinstance(outcome, Won)
        assert outcome.leadership.epoch > highest, (change, knows)
        cluster.assert_led_by(one, outcome.leadership)
        highest = outcome.leadership.epoch


@pytest.mark.parametrize(("past_ms", "reason"), [(-0.5, None), (0.0, "ran out 0 ms ago"), (7.0, "ran out 7 ms ago")])
def test_a_term_is_void_from_the_end_of_its_lease_on(past_ms: float, reason: str | None) -> None:
    cluster = Cluster()
    one = Contender(cluster, 1)
    term = one.term()
    found = leadership.void_reason(term, one.client, one.client.lease_until_ms() + past_ms)
    assert found is None if reason is None else found is not None and reason in found
    cluster.wait(one.client.close())
    ended = leadership.void_reason(term, one.client, 0.0)
    assert ended is not None
    assert ended == f"session 0x{term.session:x} has ended"


@pytest.mark.parametrize(
    ("there", "reason"),
    [
        ((), Reason.ZOOKEEPER_WIPED),
        ((CONTROLLER_EPOCH,), None),
        ((BROKER_TOPICS,), None),
        ((CONTROLLER_EPOCH, BROKER_TOPICS), None),
    ],
)
def test_a_cluster_without_its_id_is_lost_if_nothing_else_of_it_is_there(
    there: tuple[str, ...], reason: Reason | None
) -> None:
    cluster = Cluster()
    one = Contender(cluster, 1)
    paths_there = sorted({path[: path.index("/", 1)] for path in there if path.count("/") > 1} | set(there))
    cluster.wait(one.connection.multi([Create(path, b"7") for path in paths_there]))
    pending = one.stand(BrokerKnowledge(cluster_id="known"))
    if reason is None:
        assert isinstance(cluster.wait(pending), Won)
    else:
        with pytest.raises(ElectionBlocked) as blocked:
            cluster.wait(pending)
        assert blocked.value.obstacle.reason is reason


def test_another_cluster_is_named_with_both_ids() -> None:
    cluster = Cluster()
    one = Contender(cluster, 1)
    cluster.wait(one.connection.multi([Create("/cluster", b""), Create(CLUSTER_ID, b'{"version":"1","id":"found"}')]))
    said = "ZooKeeper holds cluster found, and this broker belongs to cluster known"
    with pytest.raises(ElectionBlocked, match=said) as blocked:
        cluster.wait(one.stand(BrokerKnowledge(cluster_id="known")))
    assert blocked.value.obstacle.reason is Reason.ANOTHER_CLUSTER
    assert isinstance(cluster.wait(one.stand(BrokerKnowledge(cluster_id="found"))), Won)
