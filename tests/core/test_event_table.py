"""docs/events.md is what the code says, and what the code says is read rightly."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import msgspec
import pytest

from controller.core import events
from controller.core.controller import HANDLERS, Controller
from controller.core.handlers import elections, isr_changes, pause
from tests.core import event_table
from tests.core.event_table import OWN, page, reach_of, rows

PAGE = Path(__file__).parents[2] / "docs" / "events.md"


def test_the_page_is_current() -> None:
    assert PAGE.read_text() == page(), "python -m tests.core.event_table > docs/events.md"


def test_every_event_is_in_it_once() -> None:
    named = [row[0] for row in rows()]
    assert len(set(named)) == len(named)
    assert set(HANDLERS) | set(OWN) >= {
        event
        for module in [events]
        for event in vars(module).values()
        if isinstance(event, type)
        and issubclass(event, msgspec.Struct)
        and event not in (events.AnsweredOnce, events.ElectionOutcome)
        and event.__module__ == module.__name__
    }


def test_what_the_controller_takes_itself_is_what_its_source_says() -> None:
    source = ast.parse(inspect.getsource(Controller._dispatch).replace("    async def", "async def", 1).strip())
    named = {
        node.attr
        for node in ast.walk(source)
        if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "events"
    }
    assert named == {event.__name__ for event in OWN}


def test_what_a_handler_may_do_is_found() -> None:
    preferred = reach_of(elections.preferred_election_asked)
    assert (set(preferred.partitions), set(preferred.replicas)) == ({"Online", "Offline"}, set())
    assert set(preferred.sent) == {"LeaderAndIsr", "UpdateMetadata"}
    assert "/admin/preferred_replica_election" in preferred.znodes
    assert "/config/topics/T" in preferred.znodes, "for the unclean election that one kind of election allows"
    assert set(reach_of(pause.pause_changed).znodes) == {"/admin/camerlengo_pause"}
    assert set(reach_of(Controller._stop).sent) == set()
    assert "UpdateMetadata" in reach_of(isr_changes.alter_isr).sent


def test_a_handler_that_changes_changes_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: another handler for an event, an event of nobody's, a znode that is watched no more."""
    before = page()
    handlers = dict(HANDLERS)
    monkeypatch.setattr(event_table, "HANDLERS", {**handlers, events.TopicDeletion: handlers[events.TopicChange]})
    assert page() != before
    del handlers[events.TopicDeletion]
    monkeypatch.setattr(event_table, "HANDLERS", handlers)
    assert "without a handler here: TopicDeletion." in page()
    monkeypatch.undo()
    monkeypatch.setattr(event_table, "WATCHED_PARENTS", ())
    assert page() != before
    monkeypatch.undo()
    assert page() == before
