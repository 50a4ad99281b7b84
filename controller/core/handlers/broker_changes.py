"""Brokers that register, fail, or bounce: register again before the controller noticed that they had failed."""

from __future__ import annotations

from collections.abc import Sequence

from controller.core import state_changes, topic_deletion
from controller.core.broker_bounces import restart_replicas
from controller.core.context import LiveBroker, Replicas, Rows
from controller.core.events import BrokerChange, BrokerModifications
from controller.core.handlers import reassignment
from controller.core.leadership import Term
from controller.core.loading import live_broker, read_brokers, watch_brokers
from controller.core.request_batch import RequestBatch
from controller.trace import BrokersChanged
from controller.zookeeper import paths
from statemachines.partition import PartitionState


async def broker_change(term: Term, event: BrokerChange) -> None:
    """Compare the registrations with the context, and handle failed, bounced and started brokers.

    Another czxid is another broker incarnation: a failure, then a start (KAFKA-7235). Failures are handled first, so
    that no replica on a dead broker is elected.
    """
    context = term.context
    brokers, since_zxid = await read_brokers(term)
    found = {broker.id: broker for broker in brokers}
    known = {broker.id: broker for broker in context.brokers}
    added = tuple(broker for broker in found if broker not in known)
    dead = tuple(broker for broker in known if broker not in found)
    bounced = tuple(broker for broker in found if broker in known and found[broker].epoch != known[broker].epoch)
    live = tuple(found)
    term.note("info", f"brokers added {added}, dead {dead}, bounced {bounced}, live {live}")
    term.trace.emit(BrokersChanged(term.epoch, added, dead, bounced, live))
    started = tuple(sorted(added + bounced))
    gone = tuple(sorted(dead + bounced))
    if not started and not gone:
        return
    await watch_brokers(term, [found[broker] for broker in started], since_zxid)
    term.zookeeper.unwatch([paths.broker(broker) for broker in dead])
    for broker in gone:
        term.requests.forget(broker)
    term.channels.announce([broker.endpoint for broker in found.values()])
    if gone:
        context.remove_brokers(gone)
        await on_broker_failure(term, gone)
    if started:
        context.put_brokers([found[broker] for broker in started])
        await on_broker_startup(term, started)


async def on_broker_failure(term: Term, gone: Sequence[int]) -> None:
    """Handle the failure of brokers that the context has already removed."""
    await on_replicas_lost(term, term.context.replicas_on(gone))


async def on_replicas_lost(term: Term, replicas: Replicas) -> None:
    """Handle replicas that are lost with their broker or log directory; the context already has them as lost.

    Leaders are elected and written before ISRs shrink. A replica that was to be deleted can't be deleted now.
    """
    deleting = term.context.deleting(replicas.rows)
    not_deleting = state_changes.pick_replicas(replicas, ~deleting)
    led = await elect_for_lost_leaders(term)
    batch = RequestBatch(term)
    changed = await state_changes.take_replicas_offline(term, not_deleting, batch)
    if len(changed):  # possibly by a leader that added a live replica to the ISR while it lost its session
        offline = term.context.partitions.partition_state[changed] == PartitionState.Offline
        await state_changes.bring_partitions_online(term, changed[offline], batch)
    batch.send()
    await topic_deletion.replicas_failed(term, state_changes.pick_replicas(replicas, deleting))
    if not len(not_deleting) and not len(led):
        send_live_brokers(term)


async def elect_for_lost_leaders(term: Term) -> Rows:
    """Move all partitions whose leader is lost to Offline and, where a replica can be elected, to Online."""
    rows = term.context.rows_without_eligible_leader()
    state_changes.move_partitions(term, rows, PartitionState.Offline)
    batch = RequestBatch(term)
    led = await state_changes.bring_partitions_online(term, rows, batch)
    batch.send()
    return led


async def on_broker_startup(term: Term, started: Sequence[int]) -> None:
    """Handle started brokers, which the context already has.

    First the other brokers are notified of them. Then the started brokers are sent all metadata, and the states of
    their own replicas. Then leaders are elected for partitions that wait for one, and reassignments and deletions that
    waited for these brokers continue.
    """
    context = term.context
    replicas = context.replicas_on(started)
    deleting = context.deleting(replicas.rows)
    topics = context.partitions.names_of_topics(replicas.rows[deleting])
    none = context.rows_with_state()[:0]
    batch = RequestBatch(term)
    batch.update_metadata(none, [broker for broker in context.broker_ids if broker not in started])
    batch.send()
    batch = RequestBatch(term)
    batch.update_metadata(context.partitions.all_rows(), started)
    batch.name_all_topics()
    batch.send()
    topic_deletion.record_forget_requests(term, started)
    await restart_replicas(term, replicas)
    await reassignment.restart_for(term, started)
    await topic_deletion.resume_for(term, topics)


async def broker_modifications(term: Term, event: BrokerModifications) -> None:
    """Handle a rewritten registration: if the same incarnation has other endpoints now, notify all brokers.

    A new incarnation, or a deleted registration, is handled by the change of /brokers/ids that comes with it.
    """
    known = term.context.broker(event.broker)
    row = (await term.zookeeper.read([paths.broker(event.broker)])).rows[0]
    now = live_broker(term, row)
    if known is None and now is not None:
        await broker_change(term, BrokerChange())  # its registration could not be used, and has been repaired
    if known is None or now is None or now.epoch != known.epoch or now == known:
        return
    term.note("info", f"broker {event.broker} is now at {now.advertised.endpoints}")
    term.context.put_brokers([now])
    _announce(term, known, now)
    send_live_brokers(term)


def _announce(term: Term, known: LiveBroker, now: LiveBroker) -> None:
    if known.endpoint != now.endpoint:
        term.channels.announce([broker.endpoint for broker in term.context.brokers])


def send_live_brokers(term: Term) -> None:
    """Send UpdateMetadata without partitions to all brokers."""
    batch = RequestBatch(term)
    batch.send_live_brokers()
    batch.send()
