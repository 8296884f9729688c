"""The device as the allocator sees it: how much memory it has, and where segments lie."""

from __future__ import annotations

from bisect import bisect_right, insort

from estimator.allocator.rules import MIB, UNLIMITED

END = 2**16 * UNLIMITED  # of the addresses: each stream may reserve as much as the device has, and more
PAGE = 2 * MIB  # physical memory is handed out in pages of this (CUDA on Pascal and newer)


class AddressSpace:
    """Hands out ranges, first fit. The order of addresses decides between free blocks of one size."""

    def __init__(self, base: int) -> None:
        """`base`: the lowest address to choose where none is wanted."""
        self._base = base
        self._holes: list[tuple[int, int]] = [(0, END)]  # (first address, end), ordered

    def place(self, size: int, wanted: int | None = None) -> int:
        """A range of `size` bytes: at the wanted address if nothing lies there, else in the first hole."""
        holes = self._holes
        if wanted is not None:
            at = bisect_right(holes, (wanted, END)) - 1
            if at >= 0 and wanted + size <= holes[at][1]:
                self._cut(at, wanted, size)
                return wanted
        at = max(bisect_right(holes, (self._base, END)) - 1, 0)
        while True:
            start = max(holes[at][0], self._base)
            if holes[at][1] - start >= size:
                self._cut(at, start, size)
                return start
            at += 1

    def remove(self, address: int, size: int) -> None:
        """Gives a range back."""
        holes = self._holes
        at = bisect_right(holes, (address,))
        end = address + size
        if at < len(holes) and holes[at][0] == end:
            end = holes.pop(at)[1]
        if at and holes[at - 1][1] == address:
            at -= 1
            address = holes.pop(at)[0]
        insort(holes, (address, end))

    def _cut(self, at: int, address: int, size: int) -> None:
        begin, end = self._holes[at]
        rests = [(begin, address), (address + size, end)]
        self._holes[at : at + 1] = [rest for rest in rests if rest[0] < rest[1]]


class Device:
    """Memory that is taken in pages, and addresses for it.

    `capacity`: bytes that the allocator may take. `total`: bytes of the whole device, of which PyTorch's
    memory fraction is a part.
    """

    # any two regions that do not meet: segments of `cudaMalloc` below, expandable segments above
    SEGMENTS = 0x7F00_0000_0000
    EXPANDABLE = 1 << 60

    def __init__(self, capacity: int, total: int | None = None) -> None:
        self.capacity = capacity
        self.total = capacity if total is None else total
        self.used = 0
        self.segments = AddressSpace(self.SEGMENTS)
        self.virtual = AddressSpace(self.EXPANDABLE)

    def malloc(self, size: int, wanted: int | None = None) -> int | None:
        """The address of a new segment (`cudaMalloc`), the wanted one if it is free; None: no room."""
        if not self.take(size):
            return None
        return self.segments.place(_whole_pages(size), wanted)

    def free(self, address: int, size: int) -> None:
        """Gives a segment back (`cudaFree`)."""
        self.segments.remove(address, _whole_pages(size))
        self.give_back(size)

    def take(self, size: int) -> bool:
        """Whether there was room for `size` bytes; they are taken then."""
        size = _whole_pages(size)
        if self.used + size > self.capacity:
            return False
        self.used += size
        return True

    def give_back(self, size: int) -> None:
        """Frees what `take` took."""
        self.used -= _whole_pages(size)


def _whole_pages(size: int) -> int:
    return -(-size // PAGE) * PAGE
