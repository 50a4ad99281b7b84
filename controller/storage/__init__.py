"""Partition logs: segments, indexes, checkpoints and recovery, in Kafka's on-disk form.

Start with `LogDirectory` and `PartitionLog`. Nothing that is exported here imports `os`, so that the broker's core may
import it and a simulator can run it: the host makes the disk, `disk_files.FileDisk` or `MemoryDisk` of the simulator.
The exported part uses no protocol, no clock and no thread.
"""

from controller.lazy_names import lazy_names
from controller.storage.batches import BatchHeader as BatchHeader
from controller.storage.batches import headers_of as headers_of
from controller.storage.batches import whole_bytes as whole_bytes
from controller.storage.checkpoints import NO_TOPIC_ID as NO_TOPIC_ID
from controller.storage.checkpoints import EpochEnd as EpochEnd
from controller.storage.checkpoints import EpochStart as EpochStart
from controller.storage.checkpoints import TopicPartition as TopicPartition
from controller.storage.directory import LogDirectory as LogDirectory
from controller.storage.disk import Disk as Disk
from controller.storage.disk import File as File
from controller.storage.disk import FileRange as FileRange
from controller.storage.errors import AlreadyLocked as AlreadyLocked
from controller.storage.errors import BadBatches as BadBatches
from controller.storage.errors import BatchesTooLarge as BatchesTooLarge
from controller.storage.errors import BatchTooLarge as BatchTooLarge
from controller.storage.errors import CoordinatorFenced as CoordinatorFenced
from controller.storage.errors import CorruptBatch as CorruptBatch
from controller.storage.errors import CorruptLog as CorruptLog
from controller.storage.errors import DeviceUnavailable as DeviceUnavailable
from controller.storage.errors import DuplicateLogs as DuplicateLogs
from controller.storage.errors import InvalidBatch as InvalidBatch
from controller.storage.errors import InvalidTimestamp as InvalidTimestamp
from controller.storage.errors import InvalidTransactionState as InvalidTransactionState
from controller.storage.errors import LogOffline as LogOffline
from controller.storage.errors import OffsetOutOfRange as OffsetOutOfRange
from controller.storage.errors import OffsetsOutOfOrder as OffsetsOutOfOrder
from controller.storage.errors import OutOfResources as OutOfResources
from controller.storage.errors import ProducerFenced as ProducerFenced
from controller.storage.errors import SequenceOutOfOrder as SequenceOutOfOrder
from controller.storage.errors import StorageError as StorageError
from controller.storage.errors import UnsupportedCompression as UnsupportedCompression
from controller.storage.errors import UnsupportedMagic as UnsupportedMagic
from controller.storage.log import Appended as Appended
from controller.storage.log import PartitionLog as PartitionLog
from controller.storage.lookups import TimestampOffset as TimestampOffset
from controller.storage.recovery import LogCheckpoint as LogCheckpoint
from controller.storage.settings import LogSettings as LogSettings

__all__ = lazy_names(__name__)[2]
