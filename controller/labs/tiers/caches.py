"""Models of the page cache and of a block cache in front of slower devices. Units are chunks of one size.

`BlockCache` serves the simulation and the FUSE file system of the physical runs.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum


class PageCache:
    """Linux's two LRU lists of chunks (mm/swap.c, mm/workingset.c), each with the time from which it can be read.

    A chunk enters the inactive list, and its second read moves it to the active one. Evictions are from the inactive
    list; while that is the shorter one, equal shares of both are scanned. A chunk that is read again soon after its
    eviction goes to the active list at once: soon is within as many evictions as the active list is long. A read that
    brings the chunk in is its first (`folio_mark_accessed` follows each read); what was written, or was read ahead,
    has not been read.

    `keeps` says whether a chunk that would be evicted must not be, since it is not on a device yet: it goes to the
    active list then, as in Linux (mm/vmscan.c), and another is evicted.
    """

    def __init__(self, capacity: int, keeps: Callable[[int], bool] = lambda chunk: False) -> None:
        if capacity < 1:
            raise ValueError(f"expected a capacity of at least 1, got {capacity}")
        self.capacity = capacity
        self.keeps = keeps
        self.evicted = 0
        self._inactive: OrderedDict[int, float] = OrderedDict()
        self._active: OrderedDict[int, float] = OrderedDict()
        self._read_once: set[int] = set()
        self._evictions: OrderedDict[int, int] = OrderedDict()
        self._is_inactive_low = False
        self._scanned = 0.0

    def __len__(self) -> int:
        return len(self._inactive) + len(self._active)

    def __contains__(self, chunk: int) -> bool:
        return chunk in self._inactive or chunk in self._active

    @property
    def inactive(self) -> int:
        """The length of the inactive list: after so many evictions what enters it now is evicted."""
        return len(self._inactive)

    def ready_at(self, chunk: int) -> float | None:
        """Return when the chunk is in memory, None if it is not cached. This is a read."""
        if (ready := self._active.get(chunk)) is not None:
            self._active.move_to_end(chunk)
        elif (ready := self._inactive.get(chunk)) is not None:
            if chunk in self._read_once:
                self._activate(chunk, self._inactive.pop(chunk))
            else:
                self._read_once.add(chunk)
        return ready

    def insert(self, chunk: int, ready: float, read: bool = False) -> None:
        """Add a chunk that was written or read ahead, or `read`, and evict the least recently used ones beyond the
        capacity."""
        evicted_at = self._evictions.pop(chunk, None)
        if chunk in self._active:
            self._active[chunk] = ready
        elif evicted_at is not None and self.evicted - evicted_at <= len(self._active):
            self._activate(chunk, ready)
        else:
            self._inactive[chunk] = ready
            self._inactive.move_to_end(chunk)
            if read:
                self._read_once.add(chunk)
        for _ in range(len(self)):
            if len(self) <= self.capacity:
                break
            self._evict()

    def read_in(self, chunk: int, ready: float) -> None:
        """A chunk that was added, and was not evicted, is there and was read for the first time."""
        (self._active if chunk in self._active else self._inactive)[chunk] = ready
        self.ready_at(chunk)

    def keep(self, chunk: int) -> None:
        """Make a chunk the newest of its list, as pages are that were locked in memory. It counts as read once then."""
        if chunk in self._inactive:
            self._read_once.add(chunk)
            self._inactive.move_to_end(chunk)
        elif chunk in self._active:
            self._active.move_to_end(chunk)

    def balance(self) -> None:
        """See how long the lists are, which counts until the next call."""
        self._is_inactive_low = len(self._active) > len(self._inactive)

    def _evict(self) -> None:
        """Scan both lists (`shrink_lruvec`)."""
        if self._is_inactive_low:
            self._scanned += len(self._active) / max(1, len(self._inactive))
        while self._scanned >= 1 and self._active:
            self._scanned -= 1
            demoted, its_ready = self._active.popitem(last=False)
            self._inactive[demoted] = its_ready
        victim, its_ready = (self._inactive or self._active).popitem(last=False)
        if self.keeps(victim):
            self._activate(victim, its_ready)
            return
        self._read_once.discard(victim)
        self.evicted += 1
        self._evictions[victim] = self.evicted
        if len(self._evictions) > self.capacity:
            self._evictions.popitem(last=False)

    def _activate(self, chunk: int, ready: float) -> None:
        self._read_once.discard(chunk)
        self._active[chunk] = ready


class WritePolicy(Enum):
    """Write to both devices; to the cache, and later to the disk; to the disk alone."""

    WriteThrough = "write-through"
    WriteBack = "write-back"
    WriteAround = "write-around"


@dataclass(slots=True)
class BlockWork:
    """What an access of a block cache does to the devices.

    `fast` and `slow`: whether the caller waits for the cache device and for the disk. `fill`: the block is then written
    to the cache device. `cleaned`: dirty blocks that are read from the cache device and written to the disk.
    """

    fast: bool = False
    slow: bool = False
    fill: bool = False
    cleaned: list[int] = field(default_factory=list)


class BlockCache:
    """A cache of blocks of one size on a fast device, as FlashCache and OpenCAS are: LRU, and every read fills it.

    A block may be read in parts. Then each part that was not there is read from the disk, and fills its place.

    `ways`: blocks of a set; a block may only be in the set of its number (FlashCache has sets of 512). None is one LRU.
    `dirty_share`: WriteBack cleans its oldest dirty blocks beyond this share of the capacity.
    """

    def __init__(self, capacity: int, policy: WritePolicy, ways: int | None = None, dirty_share: float = 0.2) -> None:
        if capacity < 1 or not 0 <= dirty_share <= 1 or (ways is not None and not 1 <= ways <= capacity):
            raise ValueError(f"capacity {capacity}, ways {ways}, dirty share {dirty_share}: out of range")
        self.policy = policy
        self._ways = capacity if ways is None else ways
        self._sets: list[OrderedDict[int, None]] = [OrderedDict() for _ in range(capacity // self._ways)]
        self.capacity = self._ways * len(self._sets)
        self._dirty: OrderedDict[int, None] = OrderedDict()
        self._filled: dict[int, int] = {}
        self._most_dirty = int(dirty_share * self.capacity)
        self.hits = self.misses = 0

    def __len__(self) -> int:
        return sum(map(len, self._sets))

    def __contains__(self, block: int) -> bool:
        return block in self._set(block)

    @property
    def dirty(self) -> int:
        return len(self._dirty)

    def _set(self, block: int) -> OrderedDict[int, None]:
        return self._sets[hash(block * 0x9E3779B1 >> 7) % len(self._sets)] if len(self._sets) > 1 else self._sets[0]

    def blocks(self) -> Iterator[int]:
        """Yield the blocks, by set, the least recently used first."""
        for each in self._sets:
            yield from each

    def dirty_blocks(self) -> Iterator[int]:
        yield from self._dirty

    def preload(self, blocks: Iterable[int], dirty: Iterable[int] = ()) -> None:
        """Fill the cache with blocks in the order of their last access, and mark some as dirty."""
        for block in blocks:
            self._enter(block)
        for block in dirty:
            if block in self:
                self._dirty[block] = None

    def read(self, block: int, part: int = 0, parts: int = 1) -> BlockWork:
        found = self._set(block)
        all_parts = (1 << parts) - 1
        filled = self._filled.get(block, all_parts) if block in found else 0
        if filled >> part & 1:
            found.move_to_end(block)
            self.hits += 1
            return BlockWork(fast=True)
        self.misses += 1
        cleaned = self._enter(block)
        if (filled := filled | 1 << part) != all_parts:
            self._filled[block] = filled
        return BlockWork(slow=True, fill=True, cleaned=cleaned)

    def write(self, block: int) -> BlockWork:
        if self.policy is WritePolicy.WriteAround:
            self._set(block).pop(block, None)
            self._filled.pop(block, None)
            return BlockWork(slow=True)
        cleaned = self._enter(block)
        if self.policy is WritePolicy.WriteThrough:
            return BlockWork(fast=True, slow=True, cleaned=cleaned)
        self._dirty[block] = None
        self._dirty.move_to_end(block)
        while len(self._dirty) > self._most_dirty:
            oldest, _ = self._dirty.popitem(last=False)
            cleaned.append(oldest)
        return BlockWork(fast=True, cleaned=cleaned)

    def _enter(self, block: int) -> list[int]:
        """Make a block the most recently used one; return the evicted block if it has to be written to the disk."""
        self._filled.pop(block, None)
        found = self._set(block)
        found[block] = None
        found.move_to_end(block)
        if len(found) <= self._ways:
            return []
        victim, _ = found.popitem(last=False)
        self._filled.pop(victim, None)
        return [victim] if self._dirty.pop(victim, self) is None else []
