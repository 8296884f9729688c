"""Deliberate errors in the simulator, each of which the fuzzer must find."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from estimator.allocator import blocks, caching, device, expandable, rules, streams

Allocator, Config = caching.Allocator, rules.AllocatorConfig


@dataclass(frozen=True)
class Mutation:
    """`wrong` takes the place of an attribute of `target`; `settings` are those under which it shows."""

    name: str
    target: Any
    attribute: str
    wrong: Callable[[Any], Any]
    settings: str = "default"

    @contextmanager
    def applied(self) -> Iterator[None]:
        right = self.target.__dict__[self.attribute]
        setattr(self.target, self.attribute, self.wrong(right))
        try:
            yield
        finally:
            setattr(self.target, self.attribute, right)


def _instead(value: Any) -> Callable[[Any], Any]:
    return lambda _: value


def _ignoring_max_split(right: Any) -> Any:
    def should_split(self: Any, size: int, rest: int, small: bool) -> bool:
        return rest >= 512 if small or self.expandable_segments else rest > rules.SMALL_SIZE

    return should_split


def _splitting_at_one_mib(right: Any) -> Any:
    return lambda self, size, rest, small: right(self, size, rest + 512 if not small else rest, small)


def _newest_first(right: Any) -> Any:
    return lambda self: -right(self)


def _young_first(right: Any) -> Any:
    return lambda self, block: -right(self, block)


def _one_page_more(right: Any) -> Any:
    return lambda self, address, size: right(self, address, size + 1)


def _no_merge_backwards(right: Any) -> Any:
    def complete_free(self: Any, handle: int) -> None:
        block = self.awaiting_free.get(handle)
        before = block.prev if block is not None else None
        if before is not None and before.free:
            before.free = False
            right(self, handle)
            before.free = True
        else:
            right(self, handle)

    return complete_free


def _last_place(right: Any) -> Any:
    return lambda self, size, wanted=None: right(self, size, None) + (2 << 20 if size == 20 << 20 else 0)


MUTATIONS = [
    Mutation("the small pool ends below 1 MiB", caching, "SMALL_SIZE", _instead(rules.SMALL_SIZE - 512)),
    Mutation("large requests begin at 12 MiB", rules, "MIN_LARGE_ALLOC", _instead(12 << 20)),
    Mutation("small segments of 4 MiB", rules, "SMALL_BUFFER", _instead(4 << 20)),
    Mutation("large segments rounded to 1 MiB", rules, "ROUND_LARGE", _instead(1 << 20)),
    Mutation("a rest of exactly 1 MiB is split off", Config, "should_split", _splitting_at_one_mib),
    Mutation("the newest segment first", Allocator, "_next_order", _newest_first),
    Mutation("no merge with the block before", Allocator, "complete_free", _no_merge_backwards),
    Mutation("nothing is freed on a retry", Allocator, "empty_cache", lambda right: lambda self: None),
    Mutation("the fraction is no limit", Config, "allowed_memory", lambda right: lambda self, total: None),
    Mutation("blocks above max_split_size are split", Config, "should_split", _ignoring_max_split, "max_split"),
    Mutation(
        "oversize blocks are not released on their own",
        Allocator, "_release_available_cached_blocks", lambda right: lambda self, pool, size: False, "max_split",
    ),
    Mutation("divisions are ignored", rules, "_next_division", lambda right: lambda size, n: -(-size // 512) * 512, "round"),
    Mutation("intervals of divisions are off by one", rules, "_interval", lambda right: lambda size: right(2 * size), "round"),
    Mutation("no garbage is collected", Allocator, "_garbage_collect_cached_blocks", lambda right: lambda self: None, "gc"),
    Mutation("the young garbage first", blocks.BlockPool, "age", _young_first, "gc"),
    Mutation("expandable segments map a page more", expandable.ExpandableSegment, "map", _one_page_more, "expandable"),
    Mutation("blocks that can grow count as they are", caching, "_can_become", lambda right: lambda block: block.size, "expandable"),
    Mutation("free blocks are not unmapped", Allocator, "_unmap_block", lambda right: lambda self, block: None, "expandable"),
    Mutation("unmapped blocks stay apart", caching, "_merge", lambda right: lambda block: block.mapped and right(block), "expandable"),
    Mutation("segments of 20 MiB lie one page further", device.AddressSpace, "place", _last_place),
    Mutation("record_stream is ignored", streams.StreamUses, "record_stream", lambda right: lambda self, handle, stream: None),
    Mutation("events are done at once", streams.StreamUses, "hold", lambda right: lambda self, stream: None),
    Mutation("private pools are not private", Allocator, "_owner_for", lambda right: lambda self, stream: self._default),
    Mutation("private pools are never freed", Allocator, "release_pool", lambda right: lambda self, pool: None),
]  # fmt: skip
