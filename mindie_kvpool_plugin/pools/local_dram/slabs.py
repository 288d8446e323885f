"""Memory for values of few different sizes: slabs cut into slots of one size each.

Taking and giving a slot allocates nothing once a slab is there, and a slot that was used before has its
pages already: the first write of a page costs several times the copy.  A slab whose slots are all free
may be cut anew for another size.  Not safe for threads: the caller holds its lock.
"""

from __future__ import annotations

import ctypes
import mmap
from dataclasses import dataclass

SLAB_BYTES = 64 << 20  # 32 huge pages: few slabs, and little is lost when sizes change


class Slab:
    """One piece of memory.

    Attributes:
        slot_bytes: size of a slot.
        num_slots: how many it has.
        free: addresses of those nobody has.
    """

    def __init__(self, slot_bytes: int, num_slots: int, huge_pages: bool) -> None:
        self.slot_bytes = slot_bytes
        self.num_slots = num_slots
        # private and touched on first use; a slab that is let go returns to the system with its last reference
        self._memory = mmap.mmap(-1, slot_bytes * num_slots, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if huge_pages and hasattr(mmap, "MADV_HUGEPAGE"):
            self._memory.madvise(mmap.MADV_HUGEPAGE)
        first = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self.free = list(range(first + slot_bytes * (num_slots - 1), first - 1, -slot_bytes))


@dataclass(frozen=True, slots=True)
class Slot:
    """A part of a slab that one value has to itself."""

    slab: Slab
    address: int


class Slabs:
    """Slabs up to a number of bytes."""

    def __init__(self, capacity_bytes: int, huge_pages: bool) -> None:
        self._capacity_bytes = capacity_bytes
        self._huge_pages = huge_pages
        self._reserved_bytes = 0
        self._open: dict[int, list[Slab]] = {}
        """Slabs with free slots, by size of the slot."""

    def take(self, size: int) -> Slot | None:
        """A slot of that size, or None: somebody must give one back first."""
        slabs = self._open.setdefault(size, [])
        if not slabs:
            slab = self._cut(size)
            if slab is None:
                return None
            slabs.append(slab)
        slab = slabs[-1]
        address = slab.free.pop()
        if not slab.free:
            slabs.pop()
        return Slot(slab, address)

    def give(self, slot: Slot) -> None:
        """Nobody uses the slot any more."""
        slot.slab.free.append(slot.address)
        if len(slot.slab.free) == 1:
            self._open[slot.slab.slot_bytes].append(slot.slab)

    def _cut(self, size: int) -> Slab | None:
        if self._capacity_bytes - self._reserved_bytes < size:
            self._let_go_of_empty()
        room = self._capacity_bytes - self._reserved_bytes
        num_slots = min(room, max(size, SLAB_BYTES)) // size
        if num_slots == 0:
            return None
        self._reserved_bytes += num_slots * size
        return Slab(size, num_slots, self._huge_pages)

    def _let_go_of_empty(self) -> None:
        for size, slabs in self._open.items():
            kept = [slab for slab in slabs if len(slab.free) < slab.num_slots]
            self._reserved_bytes -= sum(slab.num_slots * size for slab in slabs) - sum(
                slab.num_slots * size for slab in kept
            )
            slabs[:] = kept
