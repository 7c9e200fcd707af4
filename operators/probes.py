"""The new tuples of one side of a join, looking for rows of the other.

Problem: a step may find far more pairs than memory should hold, results leave in the order of the later tuple, and
both sides look at once. Idea: each side finds pairs for some of its tuples at a time, about as many as are handed out
at once, and says before which place in the order none is missing (`frontier`); what both have up to there can go.
"""

__all__ = ["UNION_PROBES", "Probes"]

from functools import partial

import numpy as np

from ..state import _native
from .access import Access
from .evaluate import Columns
from .layouts import Copies, Share
from .numbering import NO_TIMES, Half
from .predicate import RangeTest
from .ranges import Ends
from .stored import NO_KEYS, StoredSide, joint

UNION_PROBES = 4096
"""Rows that a union of bands is probed for at once: their ranges are laid out anew for each call."""


class Probes:
    """The new tuples of one side looking for rows of the other: pairs of a few at a time, in order."""

    def __init__(
        self, side: str, target: StoredSide, share: Share | None, columns: Columns, ends: dict[RangeTest, Ends],
        half: Half, can: np.ndarray | None, total: int,
    ) -> None:  # fmt: skip
        self.target, self.columns, self.ends = target, columns, ends
        self.rank, self.first = half.rank, half.first
        self.until = share.until(total) if isinstance(share, Copies) else total  # no rank from here on is looked at
        self.index = (target.lender or target).index
        self.probe = self.row = NO_TIMES
        mine: np.ndarray | slice | None = None
        part = slice(0, len(self.rank))  # of the tuples, those of which the index's ends are laid out
        if isinstance(share, Copies):
            part = mine = share.asks(side, half, total, NO_KEYS, NO_KEYS)
        probe_ends = self._index_ends(target.access, part)
        if share is not None and mine is None and len(self.rank):
            shared = probe_ends if target.access is target.ways[0] else self._index_ends(target.ways[0], part)
            lo, hi = shared or (np.empty(len(self.rank), np.uint64),) * 2
            mine = share.asks(side, half, total, lo, hi)
        # Only tuples that may find something here go on: `asked` says which (a slice, if they are next to each other),
        # and `next` counts among them.
        self.asked: np.ndarray | slice
        if isinstance(mine, slice):
            self.asked = mine if can is None else np.flatnonzero(can[mine]) + mine.start
        else:
            can = joint(can, mine)
            self.asked = slice(0, len(self.rank)) if can is None else np.flatnonzero(can)
        self.count = self.asked.stop - self.asked.start if isinstance(self.asked, slice) else len(self.asked)
        self.next = 0
        self.row_lo, self.row_hi = (target.places_of(self._asked(rows)) for rows in (half.row_lo, half.row_hi))
        self.probe_ends = probe_ends and self._both(probe_ends, part.start)
        self.scan_ends = [self._both(ends[test]) for test in target.scanned]
        self.box_ends = [_common([self._both(ends[test]) for test in tests]) for tests in target.boxed]

    def _asked(self, values: np.ndarray, first: int = 0) -> np.ndarray:
        """Return the values of the tuples that are asked; `first`: whose the first value is."""
        if isinstance(self.asked, slice):
            return np.ascontiguousarray(values[..., self.asked.start - first : self.asked.stop - first])
        return np.ascontiguousarray(np.take(values, self.asked - first, axis=-1))

    def _both(self, ends: Ends, first: int = 0) -> Ends:
        return self._asked(ends[0], first), self._asked(ends[1], first)

    @property
    def asked_ranks(self) -> np.ndarray:
        """The places in the order of the tuples that are asked."""
        return self._asked(self.rank)

    @property
    def frontier(self) -> int:
        """The rank below which every pair that is to be found here has been found."""
        if self.next >= self.count:
            return self.until
        at = self.next + self.asked.start if isinstance(self.asked, slice) else self.asked[self.next]
        return int(self.rank[at])

    @property
    def done(self) -> bool:
        """True when nothing is left to find or to hand out."""
        return self.next >= self.count and len(self.row) == 0

    def _index_ends(self, access: Access, part: slice) -> tuple[np.ndarray, np.ndarray] | None:
        """Return the ranges of the one key that an index goes by, of a part of the tuples; None if there is no one."""
        if access.index == "nested" or access.boxed:
            return None
        ends = [(lo[..., part], hi[..., part]) for lo, hi in (self.ends[test] for test in access.probe)]
        if len(ends) == 1:
            return ends[0]
        los, his = zip(*ends, strict=True)
        nothing = np.logical_or.reduce([lo > hi for lo, hi in zip(los, his, strict=True)])
        key = _native.combine_keys(list(los))
        low, high = key.copy(), key
        low[nothing], high[nothing] = 1, 0
        return low, high

    def find(self, limit: int, *, ordered: bool) -> None:
        """Find the pairs of the next probes, until there are about `limit` candidates: each one's in order, or not."""
        target, begin, count = self.target, self.next, self.count
        if self.box_ends:
            los, his = ([ends[i] for ends in self.box_ends] for i in (0, 1))
            found = self.index.probe(los, his, self.row_lo, self.row_hi, begin, count, limit, ordered)
        elif self.probe_ends is None:
            los, his = ([ends[i] for ends in self.scan_ends] for i in (0, 1))
            scanned = list(target.scanned.values())
            found = _native.scan_rows(scanned, los, his, self.row_lo, self.row_hi, begin, count, limit)
        elif self.probe_ends[0].ndim == 2:
            found = self._find_union(*self.probe_ends, limit)
        else:
            found = self.index.probe(*self.probe_ends, self.row_lo, self.row_hi, begin, count, limit, ordered)
        self.took(*found)

    def took(self, probe: np.ndarray, place: np.ndarray, upto: int) -> None:
        """Take pairs of those that are asked, up to one of them, with the places that were found for them."""
        target = self.target
        self.probe, self.row, self.next = probe, target.rows_at(place), upto
        if not isinstance(self.asked, slice):
            self.probe = np.take(self.asked, self.probe)
        elif self.asked.start:
            self.probe += self.asked.start
        for test in target.access.filters:
            lo, hi = self.ends[test]
            kept = _native.filter_pairs(self.probe, self.row, target.keys[test], lo, hi, test.negated)
            self.probe, self.row = self.probe[:kept], self.row[:kept]

    def _find_union(self, lo: np.ndarray, hi: np.ndarray, limit: int) -> tuple[np.ndarray, np.ndarray, int]:
        """Probe once for each band, some thousand rows at a time; bring each row's finds into order."""
        bands, until = len(lo), min(self.next + UNION_PROBES, self.count)
        mine = slice(self.next, until)
        low, high = (np.ascontiguousarray(x[:, mine].T).ravel() for x in (lo, hi))
        row_lo, row_hi = np.repeat(self.row_lo[mine], bands), np.repeat(self.row_hi[mine], bands)
        probe, row, upto = self.index.probe(low, high, row_lo, row_hi, 0, len(low), limit)
        answered = until - self.next if upto == len(low) else upto // bands
        if answered == 0:  # one row has more than `limit`: it is answered whole
            probe, row, upto = self.index.probe(low, high, row_lo, row_hi, 0, bands, 2**62)
            answered = 1
        probe = probe // bands + self.next
        whole = probe < self.next + answered
        probe, row = probe[whole], row[whole]
        order = np.lexsort((row, probe))
        return np.ascontiguousarray(probe[order]), np.ascontiguousarray(row[order]), self.next + answered

    def unsure(self) -> np.ndarray:
        """Return the places of the pairs that rounding may have let through."""
        mask = np.zeros(len(self.row), bool)
        for test in self.target.remainder.tests:
            assert test.sure is not None
            with np.errstate(all="ignore"):  # infinities and NaN are values here
                lo, hi = self.columns.once(test, partial(test.sure, self.columns, len(self.rank)))
            _native.mark_outside(self.probe, self.row, self.target.keys[test], lo, hi, mask)
        return np.flatnonzero(mask)

    def keep(self, mask: np.ndarray) -> None:
        """Keep the pairs that the remainder of the predicate allows."""
        self.probe, self.row = self.probe[mask], self.row[mask]

    def take(self, before_rank: int) -> tuple[np.ndarray, np.ndarray]:
        """Hand out the pairs whose probe stands before a place in the order."""
        if before_rank >= self.until:
            taken, self.probe, self.row = (self.probe, self.row), NO_TIMES, NO_TIMES
            return taken
        until = int(np.searchsorted(self.rank, before_rank))
        cut = int(np.searchsorted(self.probe, until))
        taken = self.probe[:cut], self.row[:cut]
        self.probe, self.row = self.probe[cut:], self.row[cut:]
        return taken


def _common(ends: list[Ends]) -> Ends:
    """Return what is in all of these ranges of one key."""
    lo, hi = ends[0]
    for low, high in ends[1:]:
        lo, hi = np.maximum(lo, low), np.minimum(hi, high)
    return lo, hi
