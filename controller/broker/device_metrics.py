"""Metrics of the devices of log directories, in the form of `metrics.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from controller.storage.devices import DeviceStats

_DEVICE = "camerlengo_device"
_GAUGES: tuple[tuple[str, str, Callable[[DeviceStats], float]], ...] = (
    ("running_jobs", "Operations under way on the device", lambda one: one.running),
    ("queued_jobs", "Operations that wait for the device", lambda one: one.queued),
    ("queued_bytes", "Memory that operations of the device hold", lambda one: one.queued_bytes),
    ("hung", "1 while every thread of the device has an operation past its limit", lambda one: float(one.is_hung)),
)
_COUNTERS: tuple[tuple[str, str, Callable[[DeviceStats], float]], ...] = (
    ("jobs", "Operations that have ended", lambda one: one.done),
    ("expired_jobs", "Operations that were answered at their limit, or at the shutdown", lambda one: one.expired),
    ("refused_jobs", "Operations refused: too many waited, or the device did not answer", lambda one: one.refused),
    ("busy_seconds", "Time that operations took, added up", lambda one: one.busy_s),
)


def device_metrics(stats: Sequence[DeviceStats]) -> Iterator[Metric]:
    for name, about, value in _GAUGES:
        gauge = GaugeMetricFamily(f"{_DEVICE}_{name}", about, labels=["device"])
        for one in stats:
            gauge.add_metric([one.device.name], value(one))
        yield gauge
    for name, about, value in _COUNTERS:
        counter = CounterMetricFamily(f"{_DEVICE}_{name}", about, labels=["device"])
        for one in stats:
            counter.add_metric([one.device.name], value(one))
        yield counter
