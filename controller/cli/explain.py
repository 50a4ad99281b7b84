"""`camerlengo explain`: why a partition, a topic or a broker is as it is. Reads only; the rules are the core's."""

from __future__ import annotations

import argparse
import os
import re
import sys
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any

import msgspec

from controller.broker.settings import Address, BadSettings, Unfit, address, address_text, parse_settings
from controller.broker.tier_settings import TIER_NAMES
from controller.cli.broker import settings_file
from controller.cli.main import COULD_NOT_RUN, UsageError
from controller.cli.state import CouldNotRead, add_source_options, print_text, read_source
from controller.core.explaining import (
    ClusterView,
    Diagnosis,
    Kind,
    Subject,
    UnknownSubject,
    explain,
    rows_of,
    subject_named,
    totals,
    view_of,
)
from controller.storage.disk_files import FileDisk
from controller.storage.errors import CorruptLog
from controller.storage.tiers import TIER_SUFFIX, SegmentPlace, TierCheckpoint, segment_places
from statemachines.log_segment import ON_SSD, SegmentState
from statemachines.tier_placement import Tier

FORMAT = 1
ON_HDD = (SegmentState.WithoutCache, SegmentState.ActiveOnHdd)
LATENCY = "latency"
METRICS_LIMIT_S = 5.0
_STAGE = re.compile(
    r'^kafka_network_requestmetrics_(\w+)timems\{request="Produce",quantile="0.99"\} (\S+)$', re.MULTILINE
)
STAGE_MEANINGS: Mapping[str, tuple[str, str, tuple[str, ...]]] = {
    "requestqueue": (
        "RequestQueueTimeMs",
        "the wait while the broker handles other requests",
        ("fewer and larger requests: linger.ms, batch.size", "leaders of busy partitions move to other brokers"),
    ),
    "local": (
        "LocalTimeMs",
        "the check of the records and the append to the leader's log",
        ("smaller requests", "a faster disk, if its operations wait (camerlengo_device_queued_jobs)"),
    ),
    "remote": (
        "RemoteTimeMs",
        "the wait until every in-sync replica has fetched the records, with acks=all",
        (
            "the followers' brokers get less work, or more fetchers: num.replica.fetchers",
            "acks=1, which may lose records",
        ),
    ),
    "responsequeue": (
        "ResponseQueueTimeMs",
        "the wait for responses to earlier requests of the connection",
        ("fewer requests in flight: max.in.flight.requests.per.connection",),
    ),
    "responsesend": (
        "ResponseSendTimeMs",
        "the time until the client's system has taken the response",
        ("the client, or the network to it, gets faster",),
    ),
}
"""Of each stage of a produce request: Kafka's name, what it is, what would shorten it."""
SHOWN = 40
"""The maximum number of findings in the text output; --json has them all."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Why a partition is offline, under-replicated, off its preferred leader, not moving or not deleted: the rule"
        " that decides, and what would change it. For any cluster that is kept in ZooKeeper; nothing is written."
    )
    parser.add_argument(
        "subject",
        metavar="PARTITION|TOPIC|BROKER|controller|latency",
        nargs="?",
        help="TOPIC-N, a topic or a broker id, with the prefix partition:, topic: or broker: if it is ambiguous; or"
        " `controller`, to explain why there is none or what is wrong with its znodes (default: everything that is not"
        " in its normal state)",
    )
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="server.properties of a broker on this machine with tiers: of a partition, also explain which of its"
        " segments are on which tier (docs/tiered-log.md)",
    )
    parser.add_argument(
        "topic",
        metavar="TOPIC",
        nargs="?",
        help="after `latency`: where requests of the topic's records spend their time",
    )
    parser.add_argument(
        "--metrics",
        type=_metrics_addresses,
        default={},
        metavar="ID=HOST:PORT,...",
        help="with `latency TOPIC`: camerlengo.metrics.address of the brokers that lead its partitions",
    )
    add_source_options(parser)
    parser.add_argument("--json", action="store_true", help="print a JSON document (docs/explain.md)")


def run(arguments: argparse.Namespace) -> int:
    try:
        view = view_of(*read_source(arguments))
    except CouldNotRead as error:
        print(f"camerlengo explain: {error}", file=sys.stderr)
        return COULD_NOT_RUN
    of_latency = arguments.topic is not None
    if of_latency and arguments.subject != LATENCY:
        raise UsageError(f"{arguments.subject} {arguments.topic}: expected one subject, or `{LATENCY} TOPIC`")
    name = f"{Kind.TOPIC.value}:{arguments.topic}" if of_latency else arguments.subject
    try:
        subject = Subject(Kind.CLUSTER) if name is None else subject_named(view, name)
    except UnknownSubject as unknown:
        raise UsageError(str(unknown)) from unknown
    findings = tuple(_latencies(view, subject.name, arguments.metrics)) if of_latency else explain(view, subject)
    if arguments.config is not None:
        findings += tuple(_tier_findings(arguments.config, subject))
    if arguments.json:
        print_text(msgspec.json.format(msgspec.json.encode(_document(subject, findings)), indent=2).decode("utf-8"))
    else:
        print_text("\n".join(_lines(subject, findings)))
    return 0


def _metrics_addresses(text: str) -> dict[int, Address]:
    found = {}
    for part in text.split(","):
        broker, equals, at = part.partition("=")
        try:
            if not (equals and broker.isdecimal()):
                raise Unfit("ID=HOST:PORT")
            found[int(broker)] = address(at)
        except Unfit as error:
            raise argparse.ArgumentTypeError(f"{part}: expected {error}") from None
    return found


def _latencies(view: ClusterView, topic: str, metrics: Mapping[int, Address]) -> Iterator[Diagnosis]:
    """Of each leader: which stage of its latest produce requests takes the longest, by its own metrics."""
    table = view.state.partitions
    led = Counter(int(table.partition(row).leader) for row in rows_of(view, topic))
    leaders = sorted(led.keys() & view.live)
    for broker in leaders:
        if broker not in metrics:
            raise UsageError(
                f"--metrics: broker {broker} leads {led[broker]} partitions of {topic}: expected {broker}=HOST:PORT"
            )
    for broker in leaders:
        try:
            url = f"http://{address_text(metrics[broker])}/metrics"
            with urllib.request.urlopen(url, timeout=METRICS_LIMIT_S) as response:
                yield slowest_stage(f"{topic} on broker {broker}", response.read().decode())
        except (OSError, HTTPException, ValueError) as error:
            yield Diagnosis(
                f"{topic} on broker {broker}",
                "of unknown latency",
                f"{url}: {error}",
                "camerlengo.metrics.address is where a broker shows its stages",
                (f"it is the address of broker {broker}",),
            )


def slowest_stage(subject: str, text: str) -> Diagnosis:
    """From a broker's metrics. A quantile is 0 if there was no request for five minutes."""
    found = {stage: float(value) for stage, value in _STAGE.findall(text) if stage in STAGE_MEANINGS}
    if not any(found.values()):
        return Diagnosis(subject, "idle", "no produce request in the last five minutes", "stages are of requests", ())
    slowest = max(found, key=lambda stage: found[stage])
    name, meaning, changes = STAGE_MEANINGS[slowest]
    shown = ", ".join(f"{STAGE_MEANINGS[stage][0]} {value:.1f}" for stage, value in found.items())
    return Diagnosis(
        subject,
        f"slowest in {name}",
        f"p99 of the broker's latest produce requests, of all topics, in ms: {shown}",
        f"{name} is {meaning}",
        changes,
    )


def _document(subject: Subject, findings: Sequence[Diagnosis]) -> dict[str, Any]:
    named: dict[str, Any] = {"kind": subject.kind.value}
    if subject.name:
        named["name"] = subject.name
    if subject.kind is Kind.PARTITION:
        named["partition"] = subject.partition
    return {
        "format": FORMAT,
        "subject": named,
        "findings": [
            {
                "subject": finding.subject,
                "what": finding.what,
                "why": finding.why,
                "rule": finding.rule,
                "changes": list(finding.changes),
            }
            for finding in findings
        ],
    }


def _lines(subject: Subject, findings: tuple[Diagnosis, ...]) -> Iterator[str]:
    if not findings:
        yield f"{subject}: ok"
        return
    if len(findings) > 1:
        yield f"{subject}: " + ", ".join(f"{count} {what}" for what, count in totals(findings).items())
        yield ""
    for finding in findings[:SHOWN]:
        yield f"{finding.subject} is {finding.what}"
        yield f"  why    {finding.why}"
        yield f"  rule   {finding.rule}"
        for number, change in enumerate(finding.changes):
            yield f"  {'change' if number == 0 else 'or    '} {change}"
    if len(findings) > SHOWN:
        yield f"... and {len(findings) - SHOWN} more (--json has them all)"


def _tier_findings(config: Path, subject: Subject) -> Iterator[Diagnosis]:
    """Explain where this machine's broker keeps the partition's segments, from the names and sizes of its files."""
    try:
        settings = parse_settings(settings_file(config))
    except BadSettings as error:
        raise UsageError("\n  ".join((f"--config {config}:", *error.problems))) from error
    tiers = settings.tiers.tiers
    if subject.kind is not Kind.PARTITION or not tiers:
        raise UsageError(f"--config {config}: expected a partition to explain, and {TIER_NAMES} in the file")
    name = f"{subject.name}-{subject.partition}"
    by_tier = {tier: [path for path, its in zip(settings.log_dirs, tiers, strict=True) if its is tier] for tier in Tier}
    homes = {path: _files(f"{path}/{name}", path) for path in by_tier[Tier.SSD]}
    on_hdds = {path: _files(f"{path}/{name}{TIER_SUFFIX}", path) for path in by_tier[Tier.HDD]}
    home = next((path for path, files in homes.items() if files), None)
    if home is None:
        yield from _without_home(name, homes, on_hdds)
        return
    try:
        checkpoint = TierCheckpoint(FileDisk(), f"{home}/{name}")
    except (CorruptLog, OSError) as error:
        yield Diagnosis(name, "damaged", str(error), "a start reads the home's tier-checkpoint", ("it is restored",))
        return
    places = segment_places(homes[home] or {}, on_hdds, checkpoint)
    yield from _lost(name, places, on_hdds)
    yield from _copies(name, places)
    yield _on_tiers(name, places, home)


def _files(directory: str, log_directory: str) -> dict[str, int] | None:
    """Return names and sizes of the files in a log's directory, none if it has none; None if it can't be read."""
    found: dict[str, int] = {}
    try:
        os.listdir(log_directory)
        for entry in os.scandir(directory) if os.path.isdir(directory) else ():
            with suppress(FileNotFoundError):  # a running broker removes and renames files
                found[entry.name] = entry.stat().st_size
    except OSError:
        return None
    return found


def _without_home(
    name: str, homes: Mapping[str, object], on_hdds: Mapping[str, dict[str, int] | None]
) -> Iterator[Diagnosis]:
    lost = [path for path, files in homes.items() if files is None]
    left = [path for path, files in on_hdds.items() if files]
    if lost:
        why = f"the SSD {' or '.join(lost)} can't be read" + (f"; {' and '.join(left)} has copies" if left else "")
        rule = "a log's home is on an SSD: nothing of it is served without, also not what HDDs have"
        yield Diagnosis(name, "offline on this broker", why, rule, ("the SSD comes back and the broker is restarted",))
    else:
        where = ", ".join(homes)
        yield Diagnosis(name, "not on this broker's SSDs", f"no directory in {where}", "a log's home is on an SSD", ())


def _lost(
    name: str, places: Sequence[SegmentPlace], on_hdds: Mapping[str, dict[str, int] | None]
) -> Iterator[Diagnosis]:
    lost = [at for at, place in enumerate(places) if place.state is SegmentState.Lost]
    if not lost:
        return
    paths = dict.fromkeys(places[at].hdd or "" for at in lost)
    shown = " and ".join(f"{path}, which {_what_is_wrong(on_hdds.get(path))}" for path in paths)
    end = f"offset {places[lost[-1] + 1].base_offset}" if lost[-1] + 1 < len(places) else "the log's end"
    why = f"{_segments([places[at] for at in lost])}, up to {end}, lost: on {shown}"
    change = "the HDD comes back and the broker is restarted"
    if lost == [*range(len(lost))] and len(lost) < len(places):
        rule = "reads of these offsets answer KAFKA_STORAGE_ERROR, the rest is served; the log start offset stays"
        yield Diagnosis(name, "without its oldest records on this broker", why, rule, (change,))
    else:
        rule = "a log whose middle or end is on a lost HDD is offline as a whole"
        yield Diagnosis(name, "offline on this broker", why, rule, (change,))


def _what_is_wrong(files: dict[str, int] | None) -> str:
    return "can't be read" if files is None else "does not have them"


def _copies(name: str, places: Sequence[SegmentPlace]) -> Iterator[Diagnosis]:
    waiting = [place for place in places if place.state is SegmentState.OnlyCache]
    under_way = [place for place in places if place.state is SegmentState.Copying]
    if not waiting and not under_way:
        return
    parts = [
        f"{one.copied_bytes:,} of {one.size_bytes:,} bytes of {one.base_offset} are on {one.hdd}" for one in under_way
    ]
    if waiting:
        size = sum(one.size_bytes for one in waiting)
        parts.append(f"waiting: {_segments(waiting)}, {size:,} bytes")
    rule = "the segment of all logs that was sealed first is copied next, at the rate of camerlengo.tier.copy.*"
    yield Diagnosis(name, "being copied", "; ".join(parts), rule, ("the copies' rate is raised",) if waiting else ())


def _on_tiers(name: str, places: Sequence[SegmentPlace], home: str) -> Diagnosis:
    hot = [one for one in places if one.state in ON_SSD]
    both = [one for one in hot if one.state is SegmentState.Cached]
    parts = [f"{home} has {_segments(hot)}, {sum(one.size_bytes for one in hot):,} bytes"] if hot else []
    if both:
        parts.append(f"also on {' and '.join(sorted({one.hdd or '' for one in both}))}: {_segments(both)}")
    for path in sorted({one.hdd or "" for one in places if one.state in ON_HDD}):
        cold = [one for one in places if one.state in ON_HDD and one.hdd == path]
        parts.append(f"{path} alone has {_segments(cold)}, {sum(one.size_bytes for one in cold):,} bytes")
    rule = "sealed segments are copied to an HDD; the oldest copied ones leave an SSD that fills up"
    return Diagnosis(name, "on two tiers", "; ".join(parts) or "it has no records", rule, ())


def _segments(places: Sequence[SegmentPlace]) -> str:
    first, last = places[0].base_offset, places[-1].base_offset
    return f"segment {first}" if len(places) == 1 else f"{len(places)} segments ({first} to {last})"
