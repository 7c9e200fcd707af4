"""Who holds which bytes of an arena. A pure machine: it decides, and touches no memory.

Problem: blocks of any size are written once, read by several processes, and free again when the last of them says so.
Idea: only the process that writes into an arena allocates in it, so that no lock is needed; readers send back what they
have finished with. Free space is a list of gaps in the order of addresses; neighbours are joined when a block comes
back, and a block goes into the first gap that is long enough, which keeps the end of the arena free for long ones.

Invariants (`check`): gaps and held blocks tile the arena; no two gaps touch; a held block has at least one holder.
Cost: O(gaps) to allocate, O(log gaps) to give back; once a batch, not once a row.
"""

__all__ = ["ALIGNMENT", "Ledger"]

from bisect import bisect_left, insort

ALIGNMENT = 64
"""Bytes: a cache line, and what Arrow recommends for buffers."""


class Ledger:
    """The blocks of `size` bytes.

    >>> ledger = Ledger(256)
    >>> a, b = ledger.take(100, holders=2), ledger.take(64)
    >>> a, b, ledger.take(128), ledger.held
    (0, 128, None, 192)
    >>> ledger.drop(a), ledger.drop(a), ledger.take(128)
    (False, True, 0)
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.gaps = [(0, size)] if size else []  # (offset, bytes)
        self.blocks: dict[int, list[int]] = {}  # offset: [bytes, holders]

    @property
    def held(self) -> int:
        """Bytes that are not free."""
        return self.size - sum(length for _, length in self.gaps)

    def take(self, size: int, holders: int = 1) -> int | None:
        """Return where `size` bytes are free, now held by so many; None if there is no such place."""
        length = max(ALIGNMENT, -(-size // ALIGNMENT) * ALIGNMENT)
        for i, (offset, gap) in enumerate(self.gaps):
            if gap >= length:
                if gap == length:
                    del self.gaps[i]
                else:
                    self.gaps[i] = (offset + length, gap - length)
                self.blocks[offset] = [length, holders]
                return offset
        return None

    def drop(self, offset: int) -> bool:
        """One holder has finished with a block; return whether it was the last."""
        block = self.blocks[offset]
        block[1] -= 1
        if block[1]:
            return False
        del self.blocks[offset]
        start, length = offset, block[0]
        i = bisect_left(self.gaps, (offset, 0))
        if i < len(self.gaps) and self.gaps[i][0] == start + length:
            length += self.gaps.pop(i)[1]
        if i and sum(self.gaps[i - 1]) == start:
            i -= 1
            start, before = self.gaps.pop(i)
            length += before
        insort(self.gaps, (start, length))
        return True

    def check(self) -> None:
        """Assert the invariants."""
        parts = sorted([*self.gaps, *((offset, size) for offset, (size, _) in self.blocks.items())])
        at = 0
        for offset, length in parts:
            assert offset == at, "gaps and blocks tile the arena"
            at += length
        assert at == self.size, "gaps and blocks tile the arena"
        assert all(a + n < b for (a, n), (b, _) in zip(self.gaps, self.gaps[1:])), "no two gaps touch"
        assert all(holders > 0 for _, holders in self.blocks.values()), "a held block has a holder"
