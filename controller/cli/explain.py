"""`camerlengo explain`: why a partition, a topic or a broker is as it is. Reads only; the rules are the core's."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from controller.cli.main import COULD_NOT_RUN, UsageError
from controller.cli.state import CouldNotRead, add_source_options, print_text, read_source
from controller.core.explaining import Diagnosis, Kind, Subject, UnknownSubject, explain, subject_named, totals, view_of

FORMAT = 1
SHOWN = 40
"""The maximum number of findings in the text output; --json has them all."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Why a partition is offline, under-replicated, off its preferred leader, not moving or not deleted: the rule"
        " that decides, and what would change it. For any cluster that is kept in ZooKeeper; nothing is written."
    )
    parser.add_argument(
        "subject",
        metavar="PARTITION|TOPIC|BROKER|controller",
        nargs="?",
        help="TOPIC-N, a topic or a broker id, with the prefix partition:, topic: or broker: if it is ambiguous; or"
        " `controller`, to explain why there is none or what is wrong with its znodes (default: everything that is not"
        " in its normal state)",
    )
    add_source_options(parser)
    parser.add_argument("--json", action="store_true", help="print a JSON document (docs/explain.md)")


def run(arguments: argparse.Namespace) -> int:
    try:
        view = view_of(*read_source(arguments))
    except CouldNotRead as error:
        print(f"camerlengo explain: {error}", file=sys.stderr)
        return COULD_NOT_RUN
    try:
        subject = Subject(Kind.CLUSTER) if arguments.subject is None else subject_named(view, arguments.subject)
    except UnknownSubject as unknown:
        raise UsageError(str(unknown)) from unknown
    findings = explain(view, subject)
    if arguments.json:
        print_text(msgspec.json.format(msgspec.json.encode(_document(subject, findings)), indent=2).decode("utf-8"))
    else:
        print_text("\n".join(_lines(subject, findings)))
    return 0


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
