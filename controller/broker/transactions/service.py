"""Transactions of one broker, put together: their coordinator, its topic, the markers, and the handlers of requests."""

from __future__ import annotations

from collections.abc import Callable

from controller.broker.groups.coordinator import GroupCoordinator
from controller.broker.metadata import MetadataCache
from controller.broker.ports import Peers
from controller.broker.records.writes import ProduceHandler
from controller.broker.request_context import Drive
from controller.broker.settings import BrokerSettings
from controller.broker.transactions.coordinator import TakeId, TransactionCoordinator
from controller.broker.transactions.handlers import MarkerHandler, TransactionHandlers
from controller.broker.transactions.markers import MarkerChannels
from controller.broker.transactions.store import TransactionStore
from controller.clock import Clock


class Transactions:
    """`take_id` answers with a producer id that was never given before."""

    def __init__(
        self,
        settings: BrokerSettings,
        metadata: MetadataCache,
        produce: ProduceHandler,
        groups: GroupCoordinator,
        peers: Peers,
        take_id: TakeId,
        clock: Clock,
        drive: Drive,
        note: Callable[[str, str], None],
    ) -> None:
        store = TransactionStore(settings, metadata, produce, clock, drive, note)
        writing = MarkerHandler(settings, produce, groups, clock, drive)
        self.topic = store.topic
        self.markers = MarkerChannels(settings, metadata, peers, clock, writing.write, note)
        self.coordinator = TransactionCoordinator(settings, store, self.markers, take_id, clock, note)
        self.handlers = TransactionHandlers(self.coordinator, groups, writing, metadata, take_id, clock).handlers

    def metadata_changed(self) -> None:
        self.topic.metadata_changed()
        self.markers.metadata_changed()

    def close(self) -> None:
        """Close the connections to other brokers, at the end of a shutdown."""
        self.markers.close()
