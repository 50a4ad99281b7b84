"""Metrics as text, in the form that Prometheus reads (0.0.4). Pure: values in, text out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum


class MetricKind(Enum):
    GAUGE = "gauge"
    COUNTER = "counter"
    SUMMARY = "summary"


@dataclass(frozen=True, slots=True)
class Sample:
    """`suffix`: what follows the metric's name (a summary's `_count` and `_sum`)."""

    value: float
    labels: Mapping[str, str] = field(default_factory=dict)
    suffix: str = ""


@dataclass(frozen=True, slots=True)
class Metric:
    name: str
    kind: MetricKind
    about: str
    samples: tuple[Sample, ...]


def text_of(metrics: Iterable[Metric]) -> str:
    return "\n".join(line for metric in metrics for line in _lines(metric)) + "\n"


def _lines(metric: Metric) -> Iterator[str]:
    yield f"# HELP {metric.name} {metric.about}"
    yield f"# TYPE {metric.name} {metric.kind.value}"
    for sample in metric.samples:
        labels = ",".join(f'{name}="{_escaped(value)}"' for name, value in sample.labels.items())
        yield f"{metric.name}{sample.suffix}{f'{{{labels}}}' if labels else ''} {_number(sample.value)}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)
