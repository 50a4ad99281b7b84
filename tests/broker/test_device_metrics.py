"""The metrics of devices, as Prometheus reads them."""

from __future__ import annotations

from controller.broker.device_metrics import device_metrics
from controller.broker.metrics import text_of
from controller.storage.devices import DeviceStats
from controller.storage.disk import Device


def test_each_device_has_its_state_and_its_counts() -> None:
    stats = [
        DeviceStats(Device("8:1"), 4, 7, 1_000, 20, 3, 2, 1.5, is_hung=True),
        DeviceStats(Device("8:2"), 0, 0, 0, 5, 0, 0, 0.25, is_hung=False),
    ]
    lines = [line for line in text_of(device_metrics(stats)).splitlines() if not line.startswith("#")]
    found = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if "_created" not in line}
    assert {name: value for name, value in found.items() if "8:1" in name} == {
        'camerlengo_device_running_jobs{device="8:1"}': 4,
        'camerlengo_device_queued_jobs{device="8:1"}': 7,
        'camerlengo_device_queued_bytes{device="8:1"}': 1_000,
        'camerlengo_device_hung{device="8:1"}': 1,
        'camerlengo_device_jobs_total{device="8:1"}': 20,
        'camerlengo_device_expired_jobs_total{device="8:1"}': 3,
        'camerlengo_device_refused_jobs_total{device="8:1"}': 2,
        'camerlengo_device_busy_seconds_total{device="8:1"}': 1.5,
    }
    assert found['camerlengo_device_hung{device="8:2"}'] == 0
