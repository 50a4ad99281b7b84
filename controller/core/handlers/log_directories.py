"""Log directories that fail on live brokers, and devices that answer again.

The notification in ZooKeeper names a broker and no directory. So the controller sends the broker its replicas' states
once more, and the response names the replicas that it can't serve, as any later response does. These replicas are lost
as if their broker had died, and elections pass over them until the broker answers otherwise or a new incarnation of it
registers (KIP-112, Kafka 2.8's processLeaderAndIsrResponseReceived). Partitions that waited for a replica which is
given back get a leader then.
"""

from __future__ import annotations

from controller.core import state_changes, topic_deletion
from controller.core.broker_bounces import restart_replicas
from controller.core.context import Key
from controller.core.events import LeaderAndIsrResponseReceived, LogDirEventNotification
from controller.core.handlers.broker_changes import on_replicas_lost
from controller.core.leadership import Term
from controller.core.request_batch import RequestBatch
from controller.core.znode_changes import delete_children, list_children
from controller.protocol.errors import ErrorCode
from controller.zookeeper import paths
from controller.zookeeper.codecs import decode_log_dir_event
from controller.zookeeper.operations import DamagedZnode


async def log_dir_event_notification(term: Term, event: LogDirEventNotification) -> None:
    """The children are listed here, not where the watch fired; one that is gone was another event's."""
    parent = paths.LOG_DIR_EVENT_NOTIFICATION
    names = await list_children(term, parent)
    if not names:
        return
    reading = await term.zookeeper.read([paths.child(parent, name) for name in names])
    named: set[int] = set()
    for found in reading.rows:
        if found is None:
            continue
        try:
            named.add(decode_log_dir_event(found.path, found.data).broker_id)
        except DamagedZnode as damaged:
            term.note("error", str(damaged))
    ask(term, sorted(named & set(term.context.broker_ids)))
    await delete_children(term, parent, names)


def ask(term: Term, brokers: list[int]) -> None:
    """Which of their replicas they can serve. Those that are known to have failed stay so until they answer."""
    if not brokers:
        return
    term.note("warning", f"a log directory failed, or is back, on brokers {brokers}")
    batch = RequestBatch(term)
    replicas = topic_deletion.not_deleted(term, term.context.replicas_on(brokers))
    state_changes.bring_replicas_online(term, replicas, batch)
    batch.send()


async def replicas_answered(term: Term, event: LeaderAndIsrResponseReceived) -> None:
    """Replicas that have failed since their broker last answered are lost. The answer of an earlier incarnation of the
    broker says nothing of its present directories."""
    broker = term.context.broker(event.broker)
    if broker is None or broker.epoch != event.broker_epoch:
        return
    failed = _partitions(term, event, ErrorCode.KAFKA_STORAGE_ERROR)
    # Only needed for a broker with failed replicas: most answers are long and have no error.
    before = term.context.failed.of(event.broker)
    sound = _partitions(term, event, ErrorCode.NONE) if before else ()
    new = term.context.failed.heard(event.broker, failed, sound)
    if back := before - term.context.failed.of(event.broker):
        term.note("info", f"broker {event.broker} has {len(back)} replicas again")
        replicas, batch = term.context.replicas(sorted(back), event.broker), RequestBatch(term)
        batch.update_metadata(replicas.rows)
        batch.send()
        await restart_replicas(term, replicas)  # they may have been stopped since they were asked for
        await topic_deletion.resume_for(term, {topic for topic, _ in back})
    if new:
        term.note("warning", f"broker {event.broker} has {len(new)} more replicas on failed log directories")
        await on_replicas_lost(term, term.context.replicas(sorted(new), event.broker))


def _partitions(term: Term, event: LeaderAndIsrResponseReceived, error: ErrorCode) -> list[Key]:
    """Those answered with this error. Topics that are gone by now have no name."""
    found = [
        (topic, one.partition_index)
        for topic in event.body.topics
        for one in topic.partition_errors
        if one.error_code == error
    ]
    if not found:
        return []
    names = {topic.id: topic.name for topic in term.context.partitions.topics}
    named = ((topic.topic_name or names.get(topic.topic_id), partition) for topic, partition in found)
    return [(name, partition) for name, partition in named if name is not None]
