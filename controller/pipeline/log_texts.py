"""The texts of Kafka's controller.log and state-change.log, and the events that they are: one table, and nothing else.

A text is found by a phrase that it has (`phrase`, looked for first, for that is cheap) and read by a pattern whose
named groups are columns of the event table. The patterns are written so that Python's `re` and RE2 read them alike.
Texts are those of Kafka 2.4 to 3.9 with ZooKeeper; where versions differ, one pattern has both spellings.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

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
LIST_SEPARATOR = ","
BROKER_STATE = r"BrokerState\(brokerId=([0-9]+), brokerEpoch=-?[0-9]+\)"
"""The notation of an ISR member in Kafka 3.5 and later."""
