"""A run's timeline from its trace alone: lanes, controller terms, faults, elections, offline partitions, the client.

Pure, one pass over the records. The values are those of `timeline_model.py`; `timeline_svg.py` draws them.
"""

from __future__ import annotations

from collections.abc import Sequence

from controller.scenarios.host_stalls import host_stalls_of
from controller.scenarios.timeline_cluster import Client, Elections, Offline, Terms, disputed_epochs
from controller.scenarios.timeline_lanes import Lanes
from controller.scenarios.timeline_model import Timeline
from controller.trace_records import TraceRecord


def timeline_of(records: Sequence[TraceRecord]) -> Timeline:
    """The timeline of `records`, which are by time."""
    lanes, terms, elections, offline, client = Lanes(), Terms(), Elections(), Offline(), Client()
    takers = (lanes.take, terms.take, elections.take, offline.take, client.take)
    for record in records:
        for take in takers:
            take(record)
    end_ms = max((record.at_ms for record in records), default=0.0)
    all_terms, holders = terms.finish(end_ms)
    return Timeline(
        duration_ms=end_ms,
        lanes=lanes.finish(end_ms),
        terms=all_terms,
        disputed_epochs=disputed_epochs(all_terms),
        holders=holders,
        faults=tuple(lanes.faults),
        errors=tuple(lanes.errors),
        elections=elections.finish(),
        offline=tuple(offline.points),
        client=client.finish(end_ms),
        standstills=host_stalls_of(records),
    )
