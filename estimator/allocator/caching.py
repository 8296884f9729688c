"""The caching allocator of one device (`DeviceCachingAllocator`)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from estimator.allocator.blocks import Block, BlockPool, PoolOwner
from estimator.allocator.device import Device
from estimator.allocator.expandable import ExpandableSegment
from estimator.allocator.history import ReplayError
from estimator.allocator.rules import (
    DEFAULT_CONFIG,
    MIN_BLOCK_SIZE,
    NO_DIVISIONS,
    SMALL_BUFFER,
    SMALL_SIZE,
    UNLIMITED,
    AllocatorConfig,
)
from estimator.held import HeldSegment, State


class OutOfMemoryError(Exception):
    """A segment was refused although everything cached had been given back."""


class Allocator:
    """The caching allocator on one device. The caller names each allocation by a `handle` of its choice.

    Counters as in `torch.cuda.memory_stats`: bytes `allocated`, `active` (allocated, or freed and waiting for
    another stream), `requested` (of the active ones, before rounding), `reserved`, and their peaks;
    `retries` (`num_alloc_retries`), `ooms`, `device_allocs`, `device_frees`, and `syncs`, how often all
    streams were waited for (`num_sync_all_streams`).

    `is_undefined` tells that PyTorch would have corrupted its own state by now. It counts what a private pool
    took from the device by requests, and what it gives back by ranges of pages. Under expandable segments the
    two part: a pool is destroyed while blocks of it are there (PyTorch 2.14 fails with a segmentation fault,
    sooner or later), or is asked for more than it has (an internal assertion).
    """

    def __init__(
        self, capacity: int = UNLIMITED, config: AllocatorConfig = DEFAULT_CONFIG, total: int | None = None
    ) -> None:
        """`capacity`: bytes that all segments together may have; `total`: of the whole device, if more."""
        self.capacity = capacity
        self.device = Device(capacity, total)
        self.allocated = self.allocated_peak = 0
        self.active = self.active_peak = 0
        self.requested = self.requested_peak = 0
        self.reserved = self.reserved_peak = 0
        self.segments = 0
        self.retries = self.ooms = 0
        self.device_allocs = self.device_frees = 0
        self.syncs = 0
        self.live: dict[int, Block] = {}  # by handle
        self.awaiting_free: dict[int, Block] = {}  # by handle; freed, but in use on another stream
        self.obtained: list[int] = []  # bytes of each segment (or mapped range), since the caller cleared it
        self._whole = 0  # bytes of free blocks that are whole segments
        self._orders = 0
        self._default = PoolOwner()
        self._private: dict[int, PoolOwner] = {}
        self._freeable: dict[int, PoolOwner] = {}
        self.is_undefined = False
        self._underway: list[tuple[PoolOwner, int | None]] = []
        self._captures: list[int] = []  # private pools
        self._expandable_segments: list[ExpandableSegment] = []
        self.configure(config)

    def configure(self, config: AllocatorConfig) -> None:
        """Changes the settings; blocks stay as they are."""
        self.config = config
        self._allowed = config.allowed_memory(self.device.total)
        self._collects = self._allowed is not None and config.garbage_collection_threshold > 0
        self._rounds_plainly = config.roundup_power2_divisions == NO_DIVISIONS
        self._takes_best_fit = not (
            config.expandable_segments or self._collects or config.max_split_size != UNLIMITED
        )

    def set_memory_fraction(self, fraction: float) -> None:
        """`torch.cuda.set_per_process_memory_fraction`: of the device's total memory."""
        self.configure(replace(self.config, memory_fraction=fraction))

    # allocating and freeing

    def malloc(self, handle: int, size: int, stream: int = 0, segment_address: int | None = None) -> Block:
        """Allocates `size` bytes for `stream`; a new segment is put at `segment_address` if that is free.

        Raises:
            OutOfMemoryError: as PyTorch would, after freeing all cached segments and trying again.
        """
        requested = size
        size = (size + 511) & -512 or MIN_BLOCK_SIZE if self._rounds_plainly else self.config.round_size(size)
        is_small = size <= SMALL_SIZE
        owner = self._owner_for(stream) if self._underway else self._default
        pool = owner.pools.get((stream, is_small)) or owner.pool(stream, is_small)
        block: Block | None = None
        if self._takes_best_fit:
            blocks = pool.blocks
            at = bisect_left(blocks, (size,))
            if at < len(blocks):
                block = blocks.pop(at)[3]
                block.free = False
        else:
            block = self._get_free_block(pool, size)
        if block is None:
            block = self._get_new_block(pool, size, segment_address)
        elif block.prev is None and block.next is None:
            self._whole -= block.size

        rest = block.size - size
        if rest and self.config.should_split(size, rest, is_small):
            self._split(block, size)
        else:
            size = block.size
        block.requested = requested
        block.handle = handle
        self.live[handle] = block
        self.requested += requested
        self.allocated = allocated = self.allocated + size
        self.active = active = self.active + size
        if allocated > self.allocated_peak:
            self.allocated_peak = allocated
        if active > self.active_peak:
            self.active_peak = active
        if self.requested > self.requested_peak:
            self.requested_peak = self.requested
        return block

    def free(self, handle: int) -> Block:
        """Frees an allocation; its block can be used again once `complete_free` says so."""
        block = self.live.pop(handle)
        self.allocated -= block.size
        self.awaiting_free[handle] = block
        return block

    def complete_free(self, handle: int) -> None:
        """All streams are done with a freed block. No effect if a lack of memory forced that earlier."""
        block = self.awaiting_free.pop(handle, None)
        if block is None:
            return
        # `free_block`
        size = block.size
        self.active -= size
        self.requested -= block.requested
        pool = block.pool
        before, after = block.prev, block.next
        if before is not None and before.free:
            pool.erase(before)
            block.address = before.address
            size += before.size
            block.prev = before = before.prev
            if before is not None:
                before.next = block
        if after is not None and after.free:
            pool.erase(after)
            size += after.size
            block.next = after = after.next
            if after is not None:
                after.prev = block
        block.size = size
        if before is None and after is None:
            self._whole += size
        pool.insert(block)

    def empty_cache(self) -> None:
        """Gives all segments back that are not in use (`torch.cuda.empty_cache`, `release_cached_blocks`)."""
        if not self._captures:
            self.syncs += 1
            for handle in list(self.awaiting_free):
                self.complete_free(handle)
            self._release_blocks(self._default)
        for owner in list(self._freeable.values()):
            self._release_blocks(owner)
            if owner.segments == 0 and owner.id is not None:
                self.is_undefined |= self._has_blocks(owner)
                del self._private[owner.id]
                del self._freeable[owner.id]

    # private pools

    def begin_allocate_to_pool(self, pool: int, stream: int | None = None, is_capture: bool = False) -> None:
        """From now on, allocations (of `stream`, None: of all) come from private pool `pool`.

        A CUDA graph's capture and `torch.cuda.use_mem_pool` begin like that. Until the end of a capture no
        cached memory is freed, whatever happens.
        """
        owner = self._private.get(pool)
        if owner is None:
            owner = self._private[pool] = PoolOwner(pool)
        owner.uses += 1
        self._underway.append((owner, stream))
        if is_capture or self.config.any_pool_is_a_capture:
            self._captures.append(pool)

    def end_allocate_to_pool(self, pool: int) -> None:
        """Ends what `begin_allocate_to_pool` began."""
        self._underway = [entry for entry in self._underway if entry[0].id != pool]
        self._captures = [capture for capture in self._captures if capture != pool]

    def release_pool(self, pool: int) -> None:
        """One use less, for each that began; after the last one, unused segments can be freed."""
        owner = self._private[pool]
        owner.uses -= 1
        if owner.uses == 0:
            self._freeable[pool] = owner

    @property
    def is_capturing(self) -> bool:
        """Whether a CUDA graph is captured, so that nothing may be waited for."""
        return bool(self._captures)

    def _has_blocks(self, owner: PoolOwner) -> bool:
        if any(pool.blocks for pool in owner.pools.values()):
            return True
        return any(
            block.pool.owner is owner for used in (self.live, self.awaiting_free) for block in used.values()
        )

    # what there is

    def adopt(self, segment: HeldSegment) -> None:
        """Takes a segment over with its blocks; those in use get their address as handle.

        What is adopted is older than all that follows, in the order in which it is adopted.

        Raises:
            OutOfMemoryError: there is no room for it.
            ReplayError: another segment lies there.
        """
        address = self.device.malloc(segment.size, segment.address)
        if address is None:
            raise OutOfMemoryError
        if address != segment.address:
            raise ReplayError("two segments lie at one address")
        owner = self._owner(segment.pool)
        pool = owner.pool(segment.stream, segment.is_small)
        order = self._next_order()
        owner.segments += 1
        self.segments += 1
        self.reserved += segment.size
        self._adopt_blocks(segment, pool, order)
        self._whole += sum(
            block.size for block in segment.blocks if block.state is State.FREE and block.size == segment.size
        )
        self._note_peaks()

    def adopt_expandable(self, base: int, ranges: Sequence[HeldSegment]) -> None:
        """Takes the mapped ranges of one expandable segment over, ordered by address; it begins at `base`.

        Addresses move as a whole: those of the recording device may lie too close together for this one.

        Raises:
            OutOfMemoryError: there is no room for it.
            ReplayError: ranges overlap, or do not consist of pages.
        """
        first = ranges[0]
        owner = self._owner(first.pool)
        pool = owner.pool(first.stream, first.is_small)
        segment = ExpandableSegment(self.device, self._page(first.is_small), self._next_order())
        self._expandable_segments.append(segment)
        before: Block | None = None
        at, moved = base, segment.address - base
        for part in (*ranges, None):
            end = segment.address + segment.size - moved if part is None else part.address
            if end < at or (part is not None and ((end - base) % segment.page or part.size % segment.page)):
                raise ReplayError("the parts of an expandable segment do not fit together")
            if end > at:
                unmapped = Block(at + moved, end - at, segment.order, pool, segment)
                unmapped.mapped = False
                pool.insert_unmapped(unmapped)
                if before is not None:
                    unmapped.insert_after(before)
                before = unmapped
            if part is None:
                break
            if not self.device.take(part.size):
                raise OutOfMemoryError
            owner.segments += 1
            self.reserved += part.size
            before = self._adopt_blocks(part, pool, segment.order, segment, moved, before)
            at = part.address + part.size
        self._note_peaks()

    def _adopt_blocks(
        self,
        held_segment: HeldSegment,
        pool: BlockPool,
        order: int,
        segment: ExpandableSegment | None = None,
        moved: int = 0,
        before: Block | None = None,
    ) -> Block | None:
        """The last of the blocks, which are linked behind `before`."""
        for held in held_segment.blocks:
            block = Block(held.address + moved, held.size, order, pool, segment)
            if before is not None:
                block.insert_after(before)
            before = block
            if held.state is State.FREE:
                pool.insert(block)
                continue
            block.handle, block.requested = held.address, held.requested
            self.active += held.size
            self.requested += held.requested
            if held.state is State.ALLOCATED:
                self.allocated += held.size
                self.live[held.address] = block
            else:
                self.awaiting_free[held.address] = block
        return before

    def _note_peaks(self) -> None:
        self.allocated_peak = max(self.allocated_peak, self.allocated)
        self.active_peak = max(self.active_peak, self.active)
        self.requested_peak = max(self.requested_peak, self.requested)
        self.reserved_peak = max(self.reserved_peak, self.reserved)

    def _owner(self, pool: int) -> PoolOwner:
        """Of a private pool, or of the default ones (0)."""
        if pool == 0:
            return self._default
        owner = self._private.get(pool)
        if owner is None:
            owner = self._private[pool] = PoolOwner(pool)
        return owner

    def owners(self) -> Iterator[PoolOwner]:
        """The default pools and the private ones."""
        yield self._default
        yield from self._private.values()

    def pools(self) -> list[BlockPool]:
        """The pools of free blocks, one for each owner, stream and size class that was used."""
        return [pool for owner in self.owners() for pool in owner.pools.values()]

    @property
    def inactive_split(self) -> int:
        """Bytes of free blocks whose segments cannot be freed; 0 in expandable segments."""
        return 0 if self.config.expandable_segments else self.reserved - self.active - self._whole

    @property
    def inactive_splits(self) -> int:
        """How many such blocks there are (`inactive_split`)."""
        if self.config.expandable_segments:
            return 0
        splits = 0
        for pool in self.pools():
            for *_, block in pool.blocks:
                splits += block.prev is not None or block.next is not None
        return splits

    # finding a block

    def _owner_for(self, stream: int) -> PoolOwner:
        for owner, only in reversed(self._underway):
            if only is None or only == stream:
                return owner
        return self._default

    def _get_free_block(self, pool: BlockPool, size: int) -> Block | None:
        """The best fit, unless an option forbids to use it (`get_free_block`)."""
        if self._collects:
            pool.owner.searches[pool.is_small] += 1
        blocks = pool.blocks
        at = bisect_left(blocks, (size,))
        if at == len(blocks):
            return None
        if self.config.expandable_segments:
            # a block that can grow counts as large as it can become
            while at + 1 < len(blocks) and _can_become(blocks[at + 1][3]) < _can_become(blocks[at][3]):
                at += 1
        block = blocks[at][3]
        oversize = self.config.max_split_size
        if size < oversize <= block.size:
            return None
        if size >= oversize and block.size >= size + self.config.max_non_split_rounding_size:
            return None
        del blocks[at]
        block.free = False
        return block

    def _get_new_block(self, pool: BlockPool, size: int, segment_address: int | None) -> Block:
        """A block of at least `size` bytes from the device; cached segments are freed for it if need be."""
        if self._collects:
            self._garbage_collect_cached_blocks()
        block = self._alloc_block(pool, size, segment_address)
        if block is None and self._release_available_cached_blocks(pool, size):
            block = self._alloc_block(pool, size, segment_address)
        if block is None and not self._captures:
            self.empty_cache()
            self.retries += 1
            block = self._alloc_block(pool, size, segment_address)
        if block is None:
            self.ooms += 1
            raise OutOfMemoryError
        return block

    def _alloc_block(self, pool: BlockPool, size: int, segment_address: int | None) -> Block | None:
        """A block from the device, or None where there is no room (`alloc_block`)."""
        segment_size = self.config.allocation_size(size)
        if self._allowed is not None and self.reserved + segment_size > self._allowed:
            return None
        if self.config.expandable_segments:
            expanded = self._try_allocate_expandable_block(pool, size)
            pool.owner.segments += expanded is not None
            return expanded
        address = self.device.malloc(segment_size, segment_address)
        if address is None:
            return None
        block = Block(address, segment_size, self._next_order(), pool)
        pool.owner.segments += 1
        self.segments += 1
        self._reserve(segment_size)
        return block

    def _next_order(self) -> int:
        self._orders += 1
        return self._orders if self.config.oldest_segment_first else 0

    def _reserve(self, size: int) -> None:
        self.reserved += size
        self.reserved_peak = max(self.reserved_peak, self.reserved)
        self.device_allocs += 1
        self.obtained.append(size)

    def _split(self, block: Block, size: int) -> None:
        rest = Block(block.address + size, block.size - size, block.order, block.pool, block.segment)
        rest.prev, rest.next = block, block.next
        if rest.next is not None:
            rest.next.prev = rest
        block.next = rest
        block.size = size
        block.pool.insert(rest)

    # freeing cached segments

    def _release_blocks(self, owner: PoolOwner) -> None:
        for pool in owner.pools.values():
            if self._expandable_segments:
                for block in [block for block in pool if block.segment is not None]:
                    self._unmap_block(block)
            self._release([block for block in pool if not block.is_split])

    def _release(self, blocks: Iterable[Block]) -> None:
        """Gives whole segments back to the device (`release_block`)."""
        for block in blocks:
            block.pool.erase(block)
            block.pool.owner.segments -= 1
            self.device.free(block.address, block.size)
            self.segments -= 1
            self.reserved -= block.size
            self._whole -= block.size
            self.device_frees += 1

    def _release_available_cached_blocks(self, pool: BlockPool, size: int) -> bool:
        """Frees oversize blocks, only as many as are needed; whether that may have been enough."""
        oversize = self.config.max_split_size
        if oversize == UNLIMITED:
            return False
        size = max(size, oversize)
        at = bisect_left(pool.blocks, (size,))
        if at < len(pool.blocks) and pool.blocks[at][3].segment is None:
            self._release([pool.blocks[at][3]])
            return True
        released = 0
        while at > 0 and released < size and pool.blocks[at - 1][0] >= oversize:
            at -= 1
            block = pool.blocks[at][3]
            if block.segment is None:
                released += block.size
                self._release([block])
        return released >= size

    def _garbage_collect_cached_blocks(self) -> None:
        """Above the threshold, frees the large segments that were not used for longest."""
        assert self._allowed is not None  # noqa: S101
        threshold = int(self.config.garbage_collection_threshold * self._allowed)
        wanted = self.reserved - threshold
        pools = [pool for pool in self._default.pools.values() if not pool.is_small]
        freeable = [block for pool in pools for block in pool if not block.is_split]
        while wanted > 0 and freeable:
            oldest = sum(block.pool.age(block) for block in freeable) / len(freeable)
            old = [block for block in freeable if block.pool.age(block) >= oldest]
            freeable = [block for block in freeable if block.free and block.pool.age(block) < oldest]
            wanted -= sum(block.size for block in old)
            self._release(old)

    # expandable segments

    def _try_allocate_expandable_block(self, pool: BlockPool, size: int) -> Block | None:
        """A block where segments can grow to hold it; what was mapped before a failure stays cached."""
        block = self._find_expandable_block(pool, size)
        if not block.mapped and not self._map_block(block, min(block.size, size)):
            return None
        while block.size < size:
            following = block.next
            assert following is not None  # noqa: S101
            if not self._map_block(following, min(size - block.size, following.size)):
                return None
            block = following
        pool.erase(block)
        return block

    def _find_expandable_block(self, pool: BlockPool, size: int) -> Block:
        """The lowest address where `size` bytes are free or unmapped; of a new segment if there is none."""
        for _, block in pool.unmapped:
            first = block.prev if block.prev is not None and block.prev.free else block
            room = 0
            candidate: Block | None = first
            while room < size and candidate is not None and (candidate.free or not candidate.mapped):
                room += candidate.size
                candidate = candidate.next
            if room >= size:
                return first
        segment = ExpandableSegment(self.device, self._page(pool.is_small), self._next_order())
        self._expandable_segments.append(segment)
        block = Block(segment.address, segment.size, segment.order, pool, segment)
        block.mapped = False
        pool.insert_unmapped(block)
        return block

    def _page(self, is_small: bool) -> int:
        return SMALL_BUFFER if is_small else self.config.large_segment_size

    def _map_block(self, block: Block, size: int) -> bool:
        """Maps memory to the beginning of an unmapped block, which joins the free blocks beside it."""
        segment, pool = block.segment, block.pool
        assert segment is not None  # noqa: S101
        mapped = segment.map(block.address, size)
        if mapped == 0:
            return False
        pool.erase_unmapped(block)
        block.mapped = True
        if mapped < block.size:
            rest = Block(block.address + mapped, block.size - mapped, block.order, pool, segment)
            rest.mapped = False
            rest.insert_after(block)
            pool.insert_unmapped(rest)
            block.size = mapped
        _merge(block)
        pool.insert(block)
        self._reserve(mapped)
        return True

    def _unmap_block(self, block: Block) -> None:
        """Gives the pages back that lie wholly in a free block; the addresses stay."""
        segment, pool = block.segment, block.pool
        assert segment is not None  # noqa: S101
        address, size = segment.unmap(block.address, block.size)
        if size == 0:
            return
        pool.erase(block)
        before_size, end = address - block.address, block.address + block.size
        if before_size:
            before = Block(block.address, before_size, block.order, pool, segment)
            if block.prev is not None:
                before.insert_after(block.prev)
            before.next, block.prev = block, before
            pool.insert(before)
        if end > address + size:
            after = Block(address + size, end - address - size, block.order, pool, segment)
            after.insert_after(block)
            pool.insert(after)
        block.address, block.size, block.mapped = address, size, False
        _merge(block)
        pool.insert_unmapped(block)
        pool.owner.segments -= 1
        self.is_undefined |= pool.owner.segments < 0 and pool.owner.id is not None
        self.reserved -= size
        self.device_frees += 1
        if not block.is_split:  # `release_expandable_segment`
            pool.erase_unmapped(block)
            self._expandable_segments.remove(segment)
            segment.release()


def _can_become(block: Block) -> int:
    """The size of a block, and of the address space behind it that it can grow into."""
    following = block.next
    return block.size + (following.size if following is not None and not following.mapped else 0)


def _merge(block: Block) -> None:
    """Joins a block that is in no pool with neighbours of its kind: free ones, or unmapped ones."""
    before, after = block.prev, block.next
    for neighbour in (before, after):
        if (
            neighbour is None
            or neighbour.mapped != block.mapped
            or not (neighbour.free or not neighbour.mapped)
        ):
            continue
        if neighbour.mapped:
            block.pool.erase(neighbour)
        else:
            block.pool.erase_unmapped(neighbour)
        block.size += neighbour.size
        if neighbour is before:
            block.address = neighbour.address
            block.prev = neighbour.prev
            if block.prev is not None:
                block.prev.next = block
        else:
            block.next = neighbour.next
            if block.next is not None:
                block.next.prev = block
