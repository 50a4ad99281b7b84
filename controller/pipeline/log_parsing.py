"""Lines of Kafka's controller.log and state-change.log to events: Arrow arrays in, Arrow batches out; no file is read.

A text is found by a phrase that it has (`phrase`, looked for first, for that is cheap) and read by a pattern whose
named groups are columns of the event table. The patterns are written so that Python's `re` and RE2 read them alike.
Texts are those of Kafka 2.4 to 3.9 with ZooKeeper; where versions differ, one pattern has both spellings.

Lines are parsed a block at a time: the head of all lines is matched at once; each text's phrase then narrows the lines
to those that its pattern is tried on, and what one text took, no other one sees. Every line comes out as exactly one of
event, continuation, empty, or left over with a reason.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from controller.pipeline.event_table import COUNTS, EVENTS, FIELDS, LEFTOVERS

BEGINNING = r"^\[[0-9]{4}-[0-9]{2}-[0-9]{2} "
"""The beginning of a line in log4j's format (`[%d] %p %m (%c)`). A line with it that is incomplete was torn."""

CONTINUED = (
    r"^(?:\s+at |\s+\.\.\. [0-9]+ (?:more|common)|Caused by: |\s*Suppressed: |[a-zA-Z_][\w.$]*(?:Exception|Error)\b)"
)
"""A line of a stack trace, which belongs to the line above it."""

WHO_NODE = r"(?:\bid=|controllerId=|brokerId=|Manager )(?P<node>[0-9]+)"
WHO_EPOCH = r"\bepoch=(?P<controller_epoch>[0-9]+)"

_TP = r"(?P<topic>[A-Za-z0-9._-]+)-(?P<partition>[0-9]+)"
_STATE = (
    r"LeaderAndIsr\(leader=(?P<leader>-?[0-9]+), leaderEpoch=(?P<leader_epoch>[0-9]+), "
    r"isr(?:WithBrokerEpoch)?=(?:List|Vector|ArrayBuffer)?[(\[](?P<isr>[^\])]*(?:\)[^\])]*)*?)[)\]], "
    r"(?:leaderRecoveryState=[A-Z]+, )?(?:zkVersion|partitionEpoch)=(?P<zk_version>-?[0-9]+)\)"
)
_STATE_IN_SHORT = (
    r"\(Leader:(?P<leader>-?[0-9]+),ISR:(?P<isr>[0-9,]*),(?:LeaderRecoveryState:[A-Z]+,)?"
    r"LeaderEpoch:(?P<leader_epoch>[0-9]+),(?:ZkVersion:(?P<zk_version>-?[0-9]+),)?"
    r"ControllerEpoch:(?P<controller_epoch>[0-9]+)\)"
)
_ASSIGNMENT = (
    r"ReplicaAssignment\(replicas=(?P<assignment>[0-9,]*), addingReplicas=(?P<adding>[0-9,]*), "
    r"removingReplicas=(?P<removing>[0-9,]*)\)"
)
_ASKED = r"from controller (?P<controller>[0-9]+)(?: with correlation id (?P<sequence>[0-9]+))?"


@dataclass(frozen=True, slots=True)
class LogText:
    """One text. `constants` are columns that it does not spell."""

    event: str
    phrase: str
    pattern: str
    constants: Mapping[str, str] = field(default_factory=dict)

    @property
    def groups(self) -> tuple[str, ...]:
        return tuple(re.compile(self.pattern).groupindex)


def _phase(phrase: str, name: str) -> LogText:
    return LogText("FailoverPhase", phrase, f"^{re.escape(phrase)}", {"phase": name})


def _noted(phrase: str) -> LogText:
    return LogText("Noted", phrase, f"^(?P<message>{re.escape(phrase)}.*)$")


STATE_CHANGES = (
    LogText("PartitionStateWritten", "with state LeaderAndIsr(",
            rf"^Changed partition {_TP} from (?P<source>\w+) to (?P<target>\w+) with state {_STATE}"),
    LogText("PartitionStateWritten", "state changed to (Leader:",
            rf"^Partition {_TP} state changed to {_STATE_IN_SHORT} after removing replica (?P<replica>[0-9]+)",
            {"why": "replica offline"}),
    LogText("ReplicaRoleApplied", "Follower ",
            rf"^Follower {_TP} starts at leader epoch (?P<leader_epoch>[0-9]+) from offset (?P<log_offset>[0-9]+)"
            r"(?:.*Current leader is (?P<leader>-?[0-9]+))?", {"role": "follower"}),
    LogText("ReplicaRoleApplied", "Leader ",
            rf"^Leader {_TP} (?:with topic id \S+ )?starts at leader epoch (?P<leader_epoch>[0-9]+) from offset "
            r"(?P<log_offset>[0-9]+) with .*?ISR \[(?P<isr>[0-9, ]*)\]", {"role": "leader"}),
    LogText("RequestIgnored", "since its associated leader epoch",
            rf"^Ignoring (?P<api>\w+) request (?:\([^)]*\) )?{_ASKED} epoch (?P<controller_epoch>[0-9]+) for partition "
            rf"{_TP} since (?P<reason>.*?)\.?$"),
    LogText("MetadataApplied", "from metadata cache in response to",
            r"^Add (?P<partitions>[0-9]+) partitions and deleted (?P<deleted>[0-9]+) partitions from metadata cache in "
            r"response to UpdateMetadata request sent by controller (?P<controller>[0-9]+) epoch "
            r"(?P<controller_epoch>[0-9]+) with correlation id (?P<sequence>[0-9]+)"),
    LogText("ElectionFailed", "failed to change state for partition",
            rf"^Controller [0-9]+ epoch (?P<controller_epoch>[0-9]+) failed to change state for partition {_TP} from "
            r"(?P<source>\w+) to (?P<target>\w+)"),
    LogText("RequestSent", "Sending LeaderAndIsr request to broker",
            r"^Sending (?P<api>LeaderAndIsr) request to broker (?P<to_broker>[0-9]+) with (?P<leaders>[0-9]+) "
            r"become-leader and (?P<followers>[0-9]+) become-follower partitions"),
    LogText("RequestHandled", "Finished LeaderAndIsr request in",
            r"^Finished (?P<api>LeaderAndIsr) request in (?P<duration_ms>[0-9]+)ms correlationId (?P<sequence>[0-9]+) "
            r"from controller (?P<controller>[0-9]+) for (?P<partitions>[0-9]+) partitions"),
    LogText("RequestReceived", "request correlationId",
            r"^Handling (?P<api>\w+) request correlationId (?P<sequence>[0-9]+) from controller (?P<controller>[0-9]+) "
            r"for (?P<partitions>[0-9]+) partitions"),
    LogText("RequestSent", "Sending UpdateMetadata request to brokers",
            r"^Sending (?P<api>UpdateMetadata) request to brokers \w+\((?P<to_brokers>[0-9, ]*)\) for "
            r"(?P<partitions>[0-9]+) partitions"),
    LogText("RequestSent", "Sending StopReplica request",
            r"^Sending (?P<api>StopReplica) request for (?P<partitions>[0-9]+) replicas to broker "
            r"(?P<to_broker>[0-9]+)"),
    LogText("RequestIgnored", "Skipped the become-",
            rf"^Skipped the become-(?P<role>\w+) state change after marking its partition as \w+ with correlation id "
            rf"(?P<sequence>[0-9]+) from controller (?P<controller>[0-9]+) epoch (?P<controller_epoch>[0-9]+) for "
            rf"partition {_TP} .*since (?P<reason>.*?)\.?$", {"api": "LeaderAndIsr"}),
    LogText("RequestIgnored", "but cannot become follower",
            r"^Received LeaderAndIsrRequest with correlation id (?P<sequence>[0-9]+) from controller "
            rf"(?P<controller>[0-9]+) epoch (?P<controller_epoch>[0-9]+) for partition {_TP} .*but "
            r"(?P<reason>cannot become follower.*?)\.?$", {"api": "LeaderAndIsr"}),
    LogText("PartitionMoved", "with assigned replicas",
            rf"^Changed partition {_TP} state from (?P<source>\w+) to (?P<target>\w+) with assigned replicas "
            r"(?P<assignment>[0-9,]*)"),
    LogText("PartitionMoved", "Changed state of replica",
            rf"^Changed state of replica (?P<replica>[0-9]+) for partition {_TP} from (?P<source>\w+) to "
            r"(?P<target>\w+)"),
    LogText("PartitionMoved", "Changed partition ",
            rf"^Changed partition {_TP} state from (?P<source>\w+) to (?P<target>\w+)$"),
    LogText("PartitionStateWritten", "for partition being reassigned",
            rf"^Sent LeaderAndIsr request {_STATE_IN_SHORT} with new replica assignment {_ASSIGNMENT} to leader "
            rf"[0-9]+ for partition being reassigned {_TP}", {"why": "reassigned"}),
    LogText("RequestRefused", "controller epoch",
            rf"^Ignoring (?P<api>\w+) request {_ASKED} since its controller epoch (?P<controller_epoch>[0-9]+) is old"
            r".*epoch is (?P<known_epoch>[0-9]+)", {"reason": "stale controller epoch"}),
    LogText("RequestRefused", "from an old controller",
            r"^Received (?:update metadata|UpdateMetadata) request with correlation id (?P<sequence>[0-9]+) from an "
            r"old controller (?P<controller>[0-9]+) with epoch (?P<controller_epoch>[0-9]+).*epoch is "
            r"(?P<known_epoch>[0-9]+)", {"api": "UpdateMetadata", "reason": "stale controller epoch"}),
    # Below INFO, the level that many log4j configurations set for these logs, one line for each partition repeats what
    # the other lines report.
    *map(_noted, (
        "Stopped fetchers as part of", "Cached leader info ", "Deleted partition ", "Received LeaderAndIsr request ",
        "Received StopReplica request ", "Received response ", "Sending become-leader LeaderAndIsr request ",
        "Sending become-follower LeaderAndIsr request ", "Completed LeaderAndIsr request ",
        "Truncated logs and checkpointed recovery boundaries ", "The stop replica request ", "Mark replicas ",
        "Error while processing LeaderAndIsr request ", "Skipped the become-",
    )),
)  # fmt: skip

CONTROLLER = (
    LogText("ControllerElected", "successfully elected as the controller",
            r"^[0-9]+ successfully elected as the controller\. Epoch incremented to (?P<controller_epoch>[0-9]+) and "
            r"epoch zk version is now (?P<epoch_zk_version>[0-9]+)"),
    LogText("FailoverCompleted", "Ready to serve as the new controller",
            r"^Ready to serve as the new controller with epoch (?P<controller_epoch>[0-9]+)"),
    LogText("ControllerResigned", "Resigned", r"^(?P<reason>Resigned)$"),
    LogText("BrokersChanged", "Newly added brokers:",
            r"^Newly added brokers: (?P<added>[0-9,]*), deleted brokers: (?P<dead>[0-9,]*), bounced brokers: "
            r"(?P<bounced>[0-9,]*), all live brokers: (?P<live>[0-9,]*)$"),
    LogText("ControlledShutdown", "Shutting down broker", r"^Shutting down broker (?P<broker>[0-9]+)$"),
    LogText("ElectionStarted", "Starting replica leader election",
            r"^Starting replica leader election \((?P<why>\w+)\) for partitions (?P<message>.*) triggered by "
            r"(?P<reason>\w+)"),
    LogText("AssignmentChanged", "updated assignment of partition",
            rf"^Successfully updated assignment of partition {_TP} to {_ASSIGNMENT}"),
    LogText("ReassignmentStep", "being reassigned",
            rf"^Leader (?P<leader>[0-9]+) for partition {_TP} being reassigned, (?P<message>.*)$"),
    LogText("ReassignmentStep", "have all caught up",
            rf"^(?P<message>Target replicas .* have all caught up with the leader for reassigning partition {_TP})$"),
    LogText("LeaderEpochRaised", "Updated leader epoch for partition",
            rf"^Updated leader epoch for partition {_TP} to (?P<leader_epoch>[0-9]+), "
            r"(?:zkVersion|partitionEpoch)=(?P<zk_version>[0-9]+)"),
    LogText("TopicsChanged", "deleted topics:",
            r"^New topics: \[\w+\((?P<added_topics>[^)]*)\)\], deleted topics: \[\w+\((?P<deleted_topics>[^)]*)\)\]"),
    LogText("PartitionsAdded", "New partitions to be added", r"^New partitions to be added (?P<message>.*)$"),
    LogText("TopicDeletion", "opic deletion", r"^(?P<message>Starting topic deletion for topics .*)$"),
    LogText("TopicDeletion", "eletion ", r"^(?P<message>(?:Handling deletion for topics|Deletion of topic) .*)$"),
    LogText("RequestFailed", "fails to send request",
            r"^Controller [0-9]+ epoch (?P<controller_epoch>[0-9]+) fails to send request \(type="
            r"(?P<api>\w+?)(?:Request)?[,:].* to broker \S+ \(id: (?P<to_broker>[0-9]+)"),
    LogText("ConnectionFailed", "connection to broker",
            r"^Controller [0-9]+'s connection to broker \S+ \(id: (?P<to_broker>[0-9]+)"),
    LogText("ConnectionMade", "for sending state change requests",
            r"^Controller [0-9]+ connected to \S+ \(id: (?P<to_broker>[0-9]+)"),
    _phase("Registering handlers", "register handlers"),
    _phase("Deleting log dir event notifications", "delete log dir notifications"),
    _phase("Deleting isr change notifications", "delete ISR notifications"),
    _phase("Initializing controller context", "load context"),
    _phase("Fetching topic deletions in progress", "fetch deletions"),
    _phase("Initializing topic deletion manager", "start deletions"),
    _phase("Sending update metadata request", "send metadata"),
    _phase("Initializing replica state", "load replica states"),
    _phase("Triggering online replica state changes", "replicas online"),
    _phase("Triggering offline replica state changes", "replicas offline"),
    _phase("Initializing partition state", "load partition states"),
    _phase("Triggering online partition state changes", "partitions online"),
    *map(_noted, (
        "Creating FeatureZNode at path", "Updating FeatureZNode at path", "Initialized broker epochs cache",
        "Updated broker epochs cache", "Currently active brokers in the cluster",
        "Currently shutting brokers in the cluster", "Current list of topics in the cluster",
        "List of topics to be deleted", "List of topics ineligible for deletion",
        "Initializing manager with initial deletions", "Partitions undergoing preferred replica election",
        "Partitions that completed preferred replica election", "Skipping preferred replica election for partitions",
        "Resuming preferred replica election for partitions", "Starting the controller scheduler",
        "Processing automatic preferred replica leader election", "New broker startup callback for",
        "New partition creation callback for", "Broker failure callback for", "Removing partitions ",
        "No more partitions need to be reassigned", "All shutting down brokers", "Live brokers:", "Removed ",
        "Stopped partition state machine", "Stopped replica state machine", "Broker update callback for",
        "New controller epoch", "Epoch incremented", "Resigning", "Rejecting ", "Broker ", "Partition ",
        "Mark replicas ",
        "Checking need to trigger auto leader balancing", "Preferred replicas by broker ",
        "Topics not in preferred replica for broker ", "Leader imbalance ratio for broker ", "De-registering ",
    )),
    LogText("ControllerThread", "Starting", r"^(?P<message>Starting)$"),
    LogText("ControllerThread", "Shut", r"^(?P<message>Shutting down|Shutdown completed)$"),
    LogText("ControllerThread", "Stopped", r"^(?P<message>Stopped)$"),
)  # fmt: skip

STATE_CHANGE_LOGGER = "state.change.logger"
BROKER_STATE = r"BrokerState\(brokerId=([0-9]+), brokerEpoch=-?[0-9]+\)"
"""The notation of an ISR member in Kafka 3.5 and later."""


TORN = "torn"
UNKNOWN_FORM = "in no known form"
UNKNOWN_TEXT = "a text that is not known"
NO_SUCH_TIME = "no such time"
EVENT, CONTINUATION, EMPTY = "event", "stack trace", "empty"

_NUMBERS = re.compile(r"-?[0-9]+")
_FRACTION = re.compile(r",[0-9]{3}")


@dataclass(frozen=True, slots=True)
class LogFile:
    """Where lines come from. `node` is whose they are, should a line not say so itself; -1: not known."""

    run: str
    path: str
    node: int


@dataclass(frozen=True, slots=True, eq=False)
class Parsed:
    """Batches of EVENTS and of LEFTOVERS; how many lines were of which kind."""

    events: tuple[pa.RecordBatch, ...]
    leftovers: tuple[pa.RecordBatch, ...]
    kinds: Mapping[str, int]

    def counts(self, file: LogFile) -> pa.RecordBatch:
        rows = [{"run": file.run, "file": file.path, "kind": kind, "lines": n} for kind, n in self.kinds.items()]
        return pa.RecordBatch.from_pylist(rows, schema=COUNTS)


def parse_lines(lines: pa.Array, places: pa.Array, file: LogFile) -> Parsed:
    """`lines` are strings without their newlines, `places` int64, the byte at which each begins."""
    kinds: Counter[str] = Counter()
    leftovers: list[pa.RecordBatch] = []

    def leave(mask: pa.Array, why: str) -> None:
        kept = pc.filter(lines, mask)
        if len(kept):
            kinds[why] += len(kept)
            leftovers.append(_filled(LEFTOVERS, len(kept), {"run": file.run, "file": file.path, "why": why},
                                     {"place": pc.filter(places, mask), "text": kept}))  # fmt: skip

    begun = pc.match_substring_regex(lines, BEGINNING)
    continued = pc.and_(pc.invert(begun), pc.match_substring_regex(lines, CONTINUED))
    empty = pc.match_substring_regex(lines, r"^\s*$")
    kinds[CONTINUATION] += _count(continued)
    kinds[EMPTY] += _count(empty)
    leave(pc.invert(pc.or_(begun, pc.or_(continued, empty))), UNKNOWN_FORM)

    rows = pc.indices_nonzero(begun).cast(pa.int64())
    parts = _parts(lines.take(rows))
    timed = pc.and_(parts.whole, parts.at.is_valid())
    leave(_at(rows.filter(pc.invert(parts.whole)), len(lines)), TORN)
    leave(_at(rows.filter(pc.and_(parts.whole, pc.is_null(parts.at))), len(lines)), NO_SUCH_TIME)
    rows, parts = rows.filter(timed), parts.take(pc.indices_nonzero(timed))
    known = _Heads(rows, parts, _error_below(lines, continued, rows), file)
    events, unknown = _events(known, places)
    kinds[EVENT] += sum(len(batch) for batch in events)
    leave(_at(pa.array(unknown), len(lines)), UNKNOWN_TEXT)
    return Parsed(tuple(events), tuple(leftovers), {kind: n for kind, n in kinds.items() if n})


@dataclass(frozen=True, slots=True, eq=False)
class _Parts:
    """Of each line that begins with a time, its head: `whole` says of which ones the rest means anything."""

    whole: pa.Array
    at: pa.Array
    level: pa.Array
    who: pa.Array
    text: pa.Array
    logger: pa.Array

    def take(self, rows: pa.Array) -> _Parts:
        columns = (self.whole, self.at, self.level, self.who, self.text, self.logger)
        return _Parts(*(column.take(rows) for column in columns))


def _parts(lines: pa.Array) -> _Parts:
    """`[%d] %p [who] %m (%c)`, cut at fixed places and at separators: an expression that says the same as one takes
    four times as long. log4j's time has 23 characters; `who` may be missing."""
    before, logger = _cut(pc.ascii_rtrim(lines, "\r"), " (", reverse=True)
    stamp = pc.utf8_slice_codeunits(lines, 1, 24)
    level, said = _cut(pc.utf8_slice_codeunits(before, 26), " ")
    said = pc.fill_null(said, "")
    inside, after = _cut(said, "]")
    bracket = pc.and_(pc.starts_with(said, "["), after.is_valid())
    who = pc.if_else(bracket, pc.ascii_ltrim(inside, "["), "")
    text = pc.if_else(bracket, pc.ascii_ltrim(pc.fill_null(after, ""), ": "), said)
    whole = pc.fill_null(pc.ends_with(logger, ")"), False)
    whole = pc.and_(whole, pc.equal(pc.utf8_slice_codeunits(lines, 24, 26), "] "))
    whole = pc.and_(whole, pc.match_substring_regex(level, "^[A-Z]+$"))
    return _Parts(whole, _times(stamp, whole), level, who, text, pc.utf8_rtrim(logger, ")"))


def _cut(words: pa.Array, at: str, *, reverse: bool = False) -> tuple[pa.Array, pa.Array]:
    """What stands before and after the first (last) `at`; null after where there is none."""
    split = pc.split_pattern(words, at, max_splits=1, reverse=reverse)
    starts = split.offsets.to_numpy()
    first, second = starts[:-1], starts[:-1] + 1
    return split.values.take(pa.array(first)), split.values.take(pa.array(second, mask=second >= starts[1:]))


@dataclass(frozen=True, slots=True, eq=False)
class _Heads:
    """The complete lines: their numbers in the block, their parts, and the error printed below each, if any."""

    rows: pa.Array
    parts: _Parts
    error: pa.Array
    file: LogFile


def _events(known: _Heads, places: pa.Array) -> tuple[list[pa.RecordBatch], np.ndarray[Any, Any]]:
    """The events, and the rows of the block with texts that no pattern reads."""
    text, who = known.parts.text, known.parts.who
    node, epoch = _who(who, known.file.node)
    of_state = pc.equal(known.parts.logger, STATE_CHANGE_LOGGER).to_numpy(zero_copy_only=False)
    batches: list[pa.RecordBatch] = []
    unread = np.ones(len(text), dtype=np.bool_)
    for texts, left in ((STATE_CHANGES, np.flatnonzero(of_state)), (CONTROLLER, np.flatnonzero(~of_state))):
        for one, taken, fields in _read(texts, text, left):
            rows = pa.array(taken)
            columns = {
                "at": known.parts.at.take(rows),
                "node": node.take(rows),
                "place": places.take(known.rows.take(rows)),
                "error": known.error.take(rows),
                "level": known.parts.level.take(rows),
                "who": who.take(rows),
                "controller_epoch": epoch.take(rows),
                **fields,
            }
            constants = {"run": known.file.run, "file": known.file.path, "origin": "log", "event": one.event}
            batches.append(_filled(EVENTS, len(taken), {**constants, **one.constants}, columns))
            unread[taken] = False
    return batches, known.rows.to_numpy()[unread]


def _read(
    texts: tuple[LogText, ...], text: pa.Array, left: np.ndarray[Any, Any]
) -> Iterator[tuple[LogText, np.ndarray[Any, Any], dict[str, pa.Array]]]:
    """Each text with the rows of `text` that it reads, and the columns that it spells."""
    rows, mine = left, text.take(pa.array(left))
    for one in texts:
        hits = np.flatnonzero(pc.match_substring(mine, one.phrase).to_numpy(zero_copy_only=False))
        if not len(hits):
            continue
        groups = pc.extract_regex(mine.take(pa.array(hits)), _renamed(one))
        fits = groups.is_valid().to_numpy(zero_copy_only=False)
        if not fits.any():
            continue
        read = groups.filter(pa.array(fits))
        yield one, rows[hits[fits]], {name: _typed(name, read.field(f"g_{name}")) for name in one.groups}
        open_rows = np.ones(len(rows), dtype=np.bool_)
        open_rows[hits[fits]] = False
        rows, mine = rows[open_rows], mine.filter(pa.array(open_rows))
        if not len(rows):
            return


def _renamed(one: LogText) -> str:
    """Arrow wants at least one group, and group names that are nothing else's: an empty group for texts without."""
    pattern = one.pattern.replace("(?P<", "(?P<g_")
    return pattern if one.groups else pattern.replace("^", "^(?P<g_none>)", 1)


def _typed(name: str, words: pa.Array) -> pa.Array:
    kind = FIELDS[name]
    if pa.types.is_list(kind):
        return _lists(words)
    if kind == pa.string():
        return words
    # A group that took no part in the match is an empty word.
    return pc.cast(pc.if_else(pc.equal(words, ""), pa.scalar(None, pa.string()), words), kind)


def _lists(words: pa.Array) -> pa.Array:
    """Ids in a row, each distinct spelling read once: there are few of them."""
    spelled = words.dictionary_encode()
    rows = [
        None if word is None else [int(number) for number in _NUMBERS.findall(re.sub(BROKER_STATE, r"\1", word))]
        for word in spelled.dictionary.to_pylist()
    ]
    return pa.array(rows, pa.list_(pa.int64())).take(spelled.indices)


def _who(who: pa.Array, otherwise: int) -> tuple[pa.Array, pa.Array]:
    """Node (int32) and controller epoch (int64, null where not said) from "Controller id=3 epoch=2" and the like."""
    spelled = pc.fill_null(who, "").dictionary_encode()
    nodes, epochs = [], []
    for words in spelled.dictionary.to_pylist():
        node, epoch = re.search(WHO_NODE, words), re.search(WHO_EPOCH, words)
        nodes.append(int(node["node"]) if node else otherwise)
        epochs.append(int(epoch["controller_epoch"]) if epoch else None)
    return pa.array(nodes, pa.int32()).take(spelled.indices), pa.array(epochs, pa.int64()).take(spelled.indices)


def _times(stamp: pa.Array, whole: pa.Array) -> pa.Array:
    """UTC by the line's own clock ("2026-11-21 08:05:18,123"); null for lines that are not whole, and for a time that
    no calendar has. Each distinct second is read once."""
    stamp = pc.if_else(whole, stamp, pa.scalar(None, stamp.type))
    seconds = pc.utf8_slice_codeunits(stamp, 0, 19).dictionary_encode()
    read = pa.array([_microseconds(word) for word in seconds.dictionary.to_pylist()], pa.int64())
    fraction = pc.utf8_slice_codeunits(stamp, 19, 23).dictionary_encode()
    ms = [int(word[1:]) if _FRACTION.fullmatch(word) else None for word in fraction.dictionary.to_pylist()]
    at = pc.add(read.take(seconds.indices), pc.multiply(pa.array(ms, pa.int64()).take(fraction.indices), 1000))
    return pc.cast(at, pa.timestamp("us"))


def _microseconds(second: str) -> int | None:
    try:
        at = datetime.strptime(second, "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC)
    except ValueError:
        return None
    return int(at.timestamp()) * 1_000_000


def _error_below(lines: pa.Array, continued: pa.Array, rows: pa.Array) -> pa.Array:
    """Return for each row the line below it, if that line begins a stack trace."""
    if not len(lines):
        return pa.array([], pa.string())
    below = pa.concat_arrays([lines.slice(1), pa.array([""], lines.type)])
    is_below = pa.concat_arrays([continued.slice(1), pa.array([False])])
    return pc.if_else(is_below, below, pa.scalar(None, lines.type)).take(rows)


def _filled(schema: pa.Schema, rows: int, constants: Mapping[str, str], columns: Mapping[str, pa.Array]) -> Any:
    """A batch with all of the schema's columns: given, constant, or null."""
    arrays = []
    for column in schema:
        given = columns.get(column.name)
        if given is not None:
            arrays.append(given if given.type == column.type else given.cast(column.type))
        elif column.name in constants:
            arrays.append(pa.repeat(pa.scalar(constants[column.name], column.type), rows))
        else:
            arrays.append(pa.nulls(rows, column.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _at(rows: pa.Array, length: int) -> pa.Array:
    """The mask that is true at these rows."""
    mask = np.zeros(length, dtype=np.bool_)
    mask[rows.to_numpy()] = True
    return pa.array(mask)


def _count(mask: pa.Array) -> int:
    return int(pc.sum(mask).as_py() or 0)
