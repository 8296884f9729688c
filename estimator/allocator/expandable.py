"""Expandable segments: address space for more than the device holds, to which memory is mapped as needed."""

from __future__ import annotations

from estimator.allocator.device import Device


class ExpandableSegment:
    """Addresses of one stream and pool, backed by pages of `page` bytes: 2 MiB if small, 20 MiB if large."""

    __slots__ = ("_device", "address", "order", "page", "size")

    def __init__(self, device: Device, page: int, order: int, address: int | None = None) -> None:
        """Reserves addresses for 1 1/8 of the device: room to go on where pages between are still in use."""
        self._device = device
        self.page = page
        self.order = order
        self.size = max(-(-(device.total + device.total // 8) // page), 1) * page
        self.address = device.virtual.place(self.size, address)

    def map(self, address: int, size: int) -> int:
        """Maps whole pages from `address` on; how many bytes of them, 0 if the device has no more."""
        pages = -(-(address - self.address + size) // self.page) - (address - self.address) // self.page
        for mapped in range(pages):
            if not self._device.take(self.page):
                self._device.give_back(mapped * self.page)
                return 0
        return pages * self.page

    def unmap(self, address: int, size: int) -> tuple[int, int]:
        """Unmaps the pages that lie wholly in the range; (first address, bytes) of them."""
        begin = -(-(address - self.address) // self.page)
        end = (address + size - self.address) // self.page
        if begin >= end:
            return address, 0
        self._device.give_back((end - begin) * self.page)
        return self.address + begin * self.page, (end - begin) * self.page

    def release(self) -> None:
        """Gives the addresses back; nothing is mapped any more."""
        self._device.virtual.remove(self.address, self.size)
