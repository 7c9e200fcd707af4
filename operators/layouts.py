"""Layouts: which rows each cell of a parallel join stores, and which new tuples ask it.

Problem: a join shall run on several cells at once, whatever its predicate, and find each pair once. Idea: rows are
numbered before (numbering.py), so a cell is an ordinary join that leaves out the rows that are not its own, and the
new tuples whose rows cannot be there. A layout is no more than these two masks. For every pair of a stored row and a
new tuple that may match it there must be exactly one cell that keeps the row *and* is asked:

- `hash`: an equality key decides; a row is kept by one cell, and a tuple asks one.
- `range`: cells keep ranges of keys, between *splitters*; a tuple asks the cells that its range of keys meets. A key
  with more rows than a cell's share is kept by several cells, a part of its rows in each.
- `matrix` of m by n: left rows are dealt to m groups and right rows to n; cell (i, j) keeps, and is asked by, left
  group i and right group j. Serves any predicate; each row is kept n or m times (in one copy on one machine).
- `chain`: blocks of rows are kept by the cells in turn, and every tuple asks all of them.
- `copies`: every cell keeps all rows, and each new tuple asks one of them: the first tuples of a step the first cell,
  and so on; where tuples find many rows, in several turns. Storing a row costs little beside looking one up and writing
  results; so this trades memory and some work for results that need no merging, and no load is uneven, whatever the
  keys.

Which of them a join is given is decided in spread.py.

Splitters move when loads drift apart (`Balance`); they change between two steps, for all cells at once, so that what
is kept where is a function of the step's number alone.
"""

__all__ = ["LAYOUTS", "Balance", "Chain", "Copies", "Hash", "Layout", "Matrix", "Range", "Share"]

from collections import deque
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Protocol

import numpy as np

from .access import SIDES
from .numbering import Half
from .ranges import OTHER

LAYOUTS = ("auto", "hash", "range", "matrix", "chain", "copies", "shared")
"""`shared` is one cell in the process of the run, with several threads: no worker has a part of it."""

BLOCK = 256
"""Rows that go to the same group, or cell, before the next has its turn: enough for a mask to be cheap to make, few
beside any window that is worth several cells."""

_EMPTY = np.empty(0, np.uint64)
_GREATEST = 2**64 - 1


class Share(Protocol):
    """What is one cell's. None stands for all of them."""

    def keeps(self, side: str, first: int, keys: np.ndarray) -> np.ndarray | None:
        """Which of a side's rows, from `first` on, are stored here; `keys` are those of the index."""

    def asks(self, side: str, half: Half, total: int, lo: np.ndarray, hi: np.ndarray) -> np.ndarray | slice | None:
        """Which new tuples of a side, of so many of a step, look here for rows of the other with keys in [lo, hi]."""


@dataclass(frozen=True)
class Hash:
    """Cell `cell` of `cells`, by an equality key."""

    cell: int
    cells: int

    def keeps(self, side: str, first: int, keys: np.ndarray) -> np.ndarray:
        """Rows whose key leads here."""
        return self._mine(keys)

    def asks(self, side: str, half: Half, total: int, lo: np.ndarray, hi: np.ndarray) -> np.ndarray:
        """Tuples whose key leads here."""
        return self._mine(lo)

    def _mine(self, keys: np.ndarray) -> np.ndarray:
        mixed = keys * np.uint64(0x9E3779B97F4A7C15)  # neighbouring keys go to different cells
        mixed >>= np.uint64(40)
        mixed %= np.uint64(self.cells)
        return np.asarray(mixed == self.cell)


PARTS = 64
"""Rows of one key can be dealt to several cells in so many equal parts."""


@dataclass(frozen=True)
class Piece:
    """Keys from `low` to `high`, both included; of their rows those of the parts [begin, end)."""

    low: int
    high: int
    begin: int = 0
    end: int = PARTS


Pieces = tuple[Piece, ...]


@dataclass(frozen=True)
class Range:
    """The pieces of the key space of each side's rows that a cell keeps."""

    pieces: dict[str, Pieces]

    def keeps(self, side: str, first: int, keys: np.ndarray) -> np.ndarray:
        """Rows with a key in one of the pieces."""
        mask = np.zeros(len(keys), bool)
        for piece in self.pieces[side]:
            within = (keys >= np.uint64(piece.low)) & (keys <= np.uint64(piece.high))
            if piece.end - piece.begin < PARTS:
                part = np.arange(first, first + len(keys)) % PARTS
                within &= (part >= piece.begin) & (part < piece.end)
            mask |= within
        return mask

    def asks(self, side: str, half: Half, total: int, lo: np.ndarray, hi: np.ndarray) -> np.ndarray:
        """Tuples whose range of keys meets one of the pieces of the other side's rows."""
        mask = np.zeros(lo.shape, bool)
        for piece in self.pieces[OTHER[side]]:
            mask |= (lo <= np.uint64(piece.high)) & (hi >= np.uint64(piece.low))
        mask &= lo <= hi
        return np.asarray(mask.any(axis=0)) if mask.ndim == 2 else mask


@dataclass(frozen=True)
class Matrix:
    """Cell (row, column) of a matrix with so many rows (of left groups) and columns (of right groups)."""

    row: int
    column: int
    rows: int
    columns: int

    def keeps(self, side: str, first: int, keys: np.ndarray) -> np.ndarray | None:
        """Rows of the cell's group."""
        return self._mine(side, first, len(keys))

    def asks(self, side: str, half: Half, total: int, lo: np.ndarray, hi: np.ndarray) -> np.ndarray | None:
        """Tuples of the cell's group."""
        return self._mine(side, half.first, lo.shape[-1])

    def _mine(self, side: str, first: int, n: int) -> np.ndarray | None:
        group, groups = (self.row, self.rows) if side == "left" else (self.column, self.columns)
        return _in_turn(first, n, group, groups)


@dataclass(frozen=True)
class Chain:
    """Cell `cell` of `cells`, which keep blocks of rows in turn."""

    cell: int
    cells: int

    def keeps(self, side: str, first: int, keys: np.ndarray) -> np.ndarray | None:
        """Rows of the cell's blocks."""
        return _in_turn(first, len(keys), self.cell, self.cells)

    def asks(self, side: str, half: Half, total: int, lo: np.ndarray, hi: np.ndarray) -> None:
        """Everybody."""
        return


@dataclass(frozen=True)
class Copies:
    """Cell `cell` of `cells`, each of which keeps everything; they are asked for parts of a step in turns."""

    cell: int
    cells: int
    turn: int = 0
    turns: int = 1

    def at(self, turn: int, turns: int) -> "Copies":
        """Return what is its own in one of so many turns."""
        return replace(self, turn=turn, turns=turns)

    def part(self, total: int) -> tuple[int, int]:
        """Return the ranks, of so many, that are its own in this turn: from one up to another."""
        at, parts = self.turn * self.cells + self.cell, self.turns * self.cells
        return total * at // parts, total * (at + 1) // parts

    def until(self, total: int) -> int:
        """Return the rank up to which nothing else is its own."""
        if self.turn + 1 == self.turns:
            return total
        return replace(self, turn=self.turn + 1).part(total)[0]

    def keeps(self, side: str, first: int, keys: np.ndarray) -> None:
        """All rows."""
        return

    def asks(self, side: str, half: Half, total: int, lo: np.ndarray, hi: np.ndarray) -> slice:
        """The cell's part of a step, by rank."""
        return slice(*np.searchsorted(half.rank, self.part(total)).tolist())


def _in_turn(first: int, n: int, group: int, groups: int) -> np.ndarray | None:
    if groups == 1:
        return None
    return np.arange(first, first + n) // BLOCK % groups == group


@dataclass(frozen=True)
class Layout:
    """How a join is spread over cells."""

    name: str
    why: str
    cells: int
    rows: int = 1  # of a matrix
    columns: int = 1

    def describe(self) -> str:
        """Say it in a few words."""
        shape = f" {self.rows} × {self.columns}" if self.name == "matrix" else ""
        return f"{self.name}{shape} on {self.cells} cells"

    def shares(self, splitters: dict[str, list[Pieces]] | None = None) -> list[Share]:
        """Return the share of each cell; `splitters`: of `range`, the pieces of each side in the order of cells."""
        if self.name == "hash":
            return [Hash(i, self.cells) for i in range(self.cells)]
        if self.name == "chain":
            return [Chain(i, self.cells) for i in range(self.cells)]
        if self.name == "copies":
            return [Copies(i, self.cells) for i in range(self.cells)]
        if self.name == "matrix":
            return [Matrix(i // self.columns, i % self.columns, self.rows, self.columns) for i in range(self.cells)]
        if splitters is None:
            splitters = dict.fromkeys(SIDES, even_pieces(self.cells))
        return [Range({side: splitters[side][i] for side in SIDES}) for i in range(self.cells)]


# Splitters --------------------------------------------------------------------------------------------------------


def even_pieces(cells: int) -> list[Pieces]:
    """Cut the key space into pieces of one width, before anything is known of the keys."""
    width = 2**64 // cells
    lows = [i * width for i in range(cells)]
    return [(Piece(low, high),) for low, high in zip(lows, [*(low - 1 for low in lows[1:]), _GREATEST], strict=True)]


def fitted_pieces(sample: np.ndarray, cells: int) -> list[Pieces]:
    """Cut the key space so that each cell has about as many of the sampled keys.

    The keys in order are cut into equal parts. A cut that falls into the rows of a heavy key divides them: the cells on
    both sides of it (and those between, if there are more cuts in it) keep a part each. Light keys are left whole.

    >>> [pieces[0].high for pieces in fitted_pieces(np.arange(100, dtype=np.uint64), 2)][0]
    49
    >>> for pieces in fitted_pieces(np.array([5] * 80 + list(range(10, 30)), np.uint64), 2):
    ...     print([(p.low, p.high, p.begin, p.end) for p in pieces][:2])
    [(0, 4, 0, 64), (5, 5, 0, 40)]
    [(5, 5, 40, 64), (6, 18446744073709551615, 0, 64)]
    """
    values, counts = np.unique(sample, return_counts=True)
    ends, share = np.cumsum(counts), len(sample) / cells
    cuts = [(0, 0)]  # (key, part) at which a cell begins
    for cell in range(1, cells):
        at = min(int(np.searchsorted(ends, cell * share, side="right")), len(values) - 1)
        key, count = int(values[at]), int(counts[at])
        part = round((cell * share - (int(ends[at]) - count)) / count * PARTS)
        if count < share / 8:
            part = PARTS if part * 2 >= PARTS else 0
        cut = (key + 1, 0) if part >= PARTS else (key, part)
        cuts.append(max(cut, cuts[-1]))
    cuts.append((_GREATEST + 1, 0))
    return [_between(begin, end) for begin, end in pairwise(cuts)]


def _between(begin: tuple[int, int], end: tuple[int, int]) -> Pieces:
    """Return the pieces from one cut up to another."""
    (low, first), (high, last) = begin, end
    if low == high:
        return (Piece(low, low, first, last),) if first < last else ()
    found = []
    if first:
        found.append(Piece(low, low, first, PARTS))
        low += 1
    if low < high:
        found.append(Piece(low, high - 1))
    if last:
        found.append(Piece(high, high, 0, last))
    return tuple(found)


class Balance:
    """Watches the loads of the cells of a `range` layout, and says when splitters should move. A pure machine.

    `observe` is told, after a step, how many rows each cell stored and was asked for, and a sample of the keys of both
    sides' rows. When, over the last `memory` rows, the fullest cell had more than `tolerance` times the mean, new
    pieces are cut from the sample; then nothing moves until as many rows have passed again, so that a move can show
    its worth.
    """

    def __init__(self, cells: int, *, memory: int = 1 << 16, tolerance: float = 1.15) -> None:
        self.cells, self.memory, self.tolerance = cells, memory, tolerance
        self.loads: deque[np.ndarray] = deque()
        self.samples: dict[str, deque[np.ndarray]] = {side: deque() for side in SIDES}
        self.seen = 0
        self.moves = 0
        self.fitted: dict[str, np.ndarray] | None = None  # the keys by which pieces were cut last

    def observe(self, loads: np.ndarray, sample: dict[str, np.ndarray]) -> dict[str, list[Pieces]] | None:
        """Take a step's loads in; return new pieces for both sides if it is time to move."""
        self.loads.append(loads)
        self.seen += int(loads.sum())
        for side in SIDES:
            self.samples[side].append(sample.get(side, _EMPTY))
        while len(self.loads) > 1 and self.seen - int(self.loads[0].sum()) >= self.memory:
            self.seen -= int(self.loads.popleft().sum())
            for side in SIDES:
                self.samples[side].popleft()
        enough = self.seen >= (self.memory if self.fitted is not None else self.memory // 16)
        if not enough or self.imbalance() <= self.tolerance:
            return None
        pieces = self.fit({side: np.concatenate(list(self.samples[side])) for side in SIDES})
        self.loads.clear()
        self.seen = 0
        for side in SIDES:
            self.samples[side].clear()
        self.moves += 1
        return pieces

    def fit(self, sample: dict[str, np.ndarray]) -> dict[str, list[Pieces]]:
        """Cut pieces from sampled keys: of the last rows, or of those before a restore, for any number of cells."""
        self.fitted = sample
        return {
            side: fitted_pieces(keys, self.cells) if len(keys) >= self.cells else even_pieces(self.cells)
            for side, keys in sample.items()
        }

    def imbalance(self) -> float:
        """Return the load of the fullest cell over the mean."""
        total = np.sum(list(self.loads), axis=0)
        return float(total.max() / total.mean()) if total.sum() else 1.0
