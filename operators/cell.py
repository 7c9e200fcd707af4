"""A cell of a join: the rows of both windows that are its own, and the work of finding pairs among them.

Problem: a join must be able to run on one core or on many, with the same results in the same order. Idea: a cell is
told everything that depends on the rest of the stream, as numbers (numbering.py), and which rows are its own, as a
share (layouts.py). It then

1. computes keys, and the ranges of keys that each new tuple looks for (`prepare`: this can fail, and changes nothing);
2. stores the new tuples of *both* sides that it keeps (`store`, stored.py; from here on only a user's function or a
   lack of memory can fail, and then the join cannot go on, as half of a step has been stored);
3. probes each side with the new tuples of the other, in as many turns as the step has, a slice at a time; further
   tests filter the pairs, and what is left of the predicate decides them as written (`answers`, probes.py);
4. gathers the columns that are asked for (`gather`);
5. forgets what no later tuple can reach (`expire`).

The batches themselves are kept whole by every cell: on one machine they are one copy in shared memory. A share decides
which rows stand in the index, so that a pair is found by the one cell that has the older of its rows there.
"""

__all__ = ["Answer", "Cell", "Prepared"]

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from ..batch import record_batch
from ..state import WindowLog, _native
from .access import SHARED_INDEX, SIDES, JoinSpec, output_fields
from .binding import Bound
from .choice import LOOKED_ROWS, Seen, Watch, look
from .evaluate import Columns, truth
from .layouts import Copies, Share
from .numbering import Numbered
from .predicate import RangeTest
from .probes import Probes
from .ranges import OTHER, Ends
from .stored import NO_KEYS, NewRows, SharedSide, StoredSide, joint, mirrored, same_storage


@dataclass(frozen=True, slots=True)
class Prepared:
    """A step before it is stored: what is computed of the new tuples of both sides."""

    rows: dict[str, int]
    columns: dict[str, Columns]
    new: dict[str, NewRows]
    ends: dict[str, dict[RangeTest, Ends]]


@dataclass(frozen=True, slots=True)
class Answer:
    """Some pairs, in order: their rows, and the rank of the later tuple of each. Before rank `upto` none is missing."""

    left: np.ndarray
    right: np.ndarray
    later: np.ndarray
    upto: int


class Cell:
    """A join of the rows that are its own. See the top of this file."""

    def __init__(
        self, spec: JoinSpec, columns: Sequence[str] | None = None, out_rows: int = 65_536, share: Share | None = None
    ) -> None:
        """`columns`: the output columns that are asked for (None: all); `share`: what is its own (None: all)."""
        self.spec, self.out_rows = spec, out_rows
        self.outputs = [f for f in output_fields(spec) if columns is None or f[2].name in set(columns)]
        self.schema = pa.schema([field for _, _, field in self.outputs])
        self.stored = {side: StoredSide(spec, side, share) for side in SIDES}
        self.logs = self._make_logs()
        keeps_all = share is None or isinstance(share, Copies)
        # Where several cells find rows of one tuple, their finds are merged, and have to be in order for that.
        self.ordered = spec.ordered or not keeps_all
        if keeps_all and spec.self_join and same_storage(self.stored["left"], self.stored["right"]):
            self.stored["right"].index, self.stored["right"].lender = None, self.stored["left"]
        self.shared: Any = self._make_shared() if spec.threads and spec.index == SHARED_INDEX else None
        self.watches = self._make_watches()
        self._columns = {side: {name: i for i, name in enumerate(self.logs[side].schema.names)} for side in SIDES}
        self._wanted = {side: [self._columns[side][c] for s, c, _ in self.outputs if s == side] for side in SIDES}
        self.load = 0  # rows of the last step that it stored, and that asked it

    def _make_logs(self) -> dict[str, WindowLog]:
        """Keep the columns that results or the remainder of the predicate ask for, and no others."""
        needed: dict[str, set[str]] = {side: {c for s, c, _ in self.outputs if s == side} for side in SIDES}
        for stored in self.stored.values():
            for conjunct in stored.remainder.conjuncts:
                for side, name in conjunct.columns():
                    needed[side].add(name)
        if self.spec.self_join:
            needed["left"] = needed["right"] = needed["left"] | needed["right"]
        logs = {}
        for side in SIDES:
            schema = self.spec.schemas[side]
            logs[side] = WindowLog(pa.schema([field for field in schema if field.name in needed[side]]))
        if self.spec.self_join:
            logs["right"] = logs["left"]
        return logs

    def _make_shared(self) -> Any:
        """Return what several threads work on, in place of an index for each side."""
        owners = [side for side in SIDES if self.stored[side].index is not None]
        shared = _native.SharedPim(len(owners), self.spec.threads)
        for number, side in enumerate(owners):
            self.stored[side].index = SharedSide(shared, number)
        return shared

    def _make_watches(self) -> list[tuple[tuple[str, ...], Watch]]:
        """Return what watches the sides that can be found in several ways; those that share an index go together."""
        if all(len(stored.ways) == 1 for stored in self.stored.values()):
            return []
        left, right = (self.stored[side] for side in SIDES)
        if right.lender is None:
            return [((s,), Watch([self.stored[s].ways])) for s in SIDES if len(self.stored[s].ways) > 1]
        both = [(a, b) for a in left.ways for b in right.ways if mirrored(a, b) and a.index != "nested"]
        left.ways, right.ways = [a for a, _ in both], [b for _, b in both]
        return [(SIDES, Watch([left.ways, right.ways]))] if len(both) > 1 else []

    @property
    def changes(self) -> int:
        """How many times another way to find rows was taken."""
        return sum(watch.changes for _, watch in self.watches)

    def found_by(self) -> dict[str, str]:
        """Say how the rows of each side were found, and are now."""
        told = {side: self.stored[side].ways[0].describe() for side in SIDES}
        for sides, watch in self.watches:
            for side, each in zip(sides, watch.ways, strict=True):
                told[side] += ", then by others" if watch.changes > len(watch.taken) else ""
                told[side] += "".join(f", from row {row:,} on {each[way].describe()}" for row, way in watch.taken)
        return told

    @property
    def nbytes(self) -> int:
        """Bytes that the windows hold: rows, keys and indexes."""
        logs = {id(log): log.nbytes for log in self.logs.values()}
        return sum(logs.values()) + sum(s.nbytes for s in self.stored.values())

    def check(self) -> None:
        """Assert the invariants."""
        for side in SIDES:
            self.logs[side].check()
            self.stored[side].check()

    def prepare(self, batches: dict[str, Sequence[pa.RecordBatch]], numbered: Numbered | None = None) -> Prepared:
        """Compute what is needed of new tuples; where it is known, only of those that are asked. Changes nothing."""
        rows = {side: sum(batch.num_rows for batch in batches[side]) for side in SIDES}
        columns = {side: _columns_of(batches[side]) for side in SIDES}
        new = {side: self.stored[side].prepare(columns[side], rows[side]) for side in SIDES}
        ends: dict[str, dict[RangeTest, Ends]] = {}
        for side in SIDES:
            tests, share = self.stored[OTHER[side]].tests, self.stored[side].share
            if isinstance(share, Copies) and numbered is not None:
                ends[side] = _ends_of_parts(tests, columns[side], _parts(share, side, numbered), rows[side])
            elif rows[side]:
                ends[side] = {test: test.ends(columns[side], rows[side]) for test in tests}
            else:
                ends[side] = dict.fromkeys(tests, (NO_KEYS, NO_KEYS))
        return Prepared(rows, columns, new, ends)

    def store(
        self, batches: dict[str, Sequence[pa.RecordBatch]], prepared: Prepared, numbered: Numbered
    ) -> Iterator[list[Probes]]:
        """Take new tuples in; return what is to be found for them, in turns, for each side.

        It is laid out turn by turn, as there may be many. `load` is known when all turns are over.
        """
        self.load = 0
        for side in SIDES:
            self.load += self.stored[side].store(prepared.new[side], numbered.halves[side].first, prepared.rows[side])
        for side in SIDES[:1] if self.spec.self_join else SIDES:
            log = self.logs[side]
            for batch in batches[side]:
                log.append(batch if batch.schema.names == log.schema.names else batch.select(log.schema.names))
        for sides, watch in self.watches:
            self._watch(sides, watch, prepared, numbered)
        return self._turns(prepared, numbered)

    def _turns(self, prepared: Prepared, numbered: Numbered) -> Iterator[list[Probes]]:
        share = self.stored["left"].share
        for turn in range(numbered.turns if isinstance(share, Copies) else 1):
            probes = []
            for side in SIDES:
                target = self.stored[OTHER[side]]
                share = target.share
                if isinstance(share, Copies):
                    share = share.at(turn, numbered.turns)
                with np.errstate(all="ignore"):
                    probes.append(Probes(
                        side, target, share, prepared.columns[side], prepared.ends[side], numbered.halves[side],
                        prepared.new[side].can, numbered.total,
                    ))  # fmt: skip
            self.load += sum(half.count for half in probes)
            if self.shared is not None and any(half.count for half in probes):
                self._start_shared(probes)
            yield probes

    def _start_shared(self, probes: list[Probes]) -> None:
        """Give the threads a step: what each tuple looks for, and where its own key is to be stored."""
        owners = [self.stored[side].index for side in SIDES if self.stored[side].index is not None]
        roles, total = [], 0
        for side, half in zip(SIDES, probes, strict=True):
            rank = half.asked_ranks
            total = max(total, int(rank[-1]) + 1 if len(rank) else 0)
            own = self.stored[side].index
            assert half.probe_ends is not None
            roles.append((
                half.index.number, -1 if own is None else own.number, *half.probe_ends, half.row_lo, half.row_hi, rank,
            ))  # fmt: skip
        self.shared.start([index.keys for index in owners], [index.first for index in owners], roles, total)

    def _find_shared(self, probes: list[Probes]) -> None:
        """Have the threads find the pairs of the next tuples of both sides."""
        for side, half, found in zip(SIDES, probes, self.shared.advance(self.out_rows), strict=True):
            half.took(*found)
            self._decide(side, half)

    def _watch(self, sides: tuple[str, ...], watch: Watch, prepared: Prepared, numbered: Numbered) -> None:
        """Look at what new tuples would find, if it is time to, and find rows in another way if that is cheaper."""
        come = min(numbered.halves[side].first + prepared.rows[side] for side in sides)
        if not watch.due(come):
            return
        seen = [self._look(side, prepared, numbered) for side in sides]
        if None not in seen and watch.looked(come, [each for each in seen if each]):
            for side, each in zip(sides, watch.ways, strict=True):
                self.stored[side].go_by(each[watch.now])

    def _look(self, side: str, prepared: Prepared, numbered: Numbered) -> Seen | None:
        """Hold some new tuples of the other side against some rows of this one; None if there are none."""
        stored, asking, half = self.stored[side], OTHER[side], numbered.halves[OTHER[side]]
        asked = slice(0, prepared.rows[asking])
        if isinstance(stored.share, Copies):  # of the others it was not computed what they look for
            asked = max(_parts(stored.share, asking, numbered), key=lambda part: part.stop - part.start)
        rows = stored.some_rows(LOOKED_ROWS)
        if asked.start >= asked.stop or not len(rows):
            return None
        ends = {test: (lo[asked], hi[asked]) for test, (lo, hi) in prepared.ends[asking].items()}
        keys = {test: stored.keys[test].at(rows) for test in stored.tests}
        window = self.spec.windows[side].rows or float(np.mean(half.row_hi[asked] - half.row_lo[asked]))
        newer = prepared.rows[side] / 4  # half of the step, which is passed over at half the price, about
        return look(keys, ends, window * stored.part_kept, newer * stored.part_kept, stored.ways)

    def rebuild(self, side: str, first: int, batches: Sequence[pa.RecordBatch]) -> None:
        """Take in rows that were stored before: nothing is looked for. In order; the first ones say where rows begin.

        Of a self-join there is only the left side. When all are there: `rebuilt`.
        """
        log = self.logs[side]
        if len(log) == 0:
            log.start_at(first)
        for batch in batches:
            log.append(batch if batch.schema.names == log.schema.names else batch.select(log.schema.names))
        rows = sum(batch.num_rows for batch in batches)
        columns = _columns_of(batches)
        for stored in self._stored_of(side):
            counted = stored.null_keys
            stored.start_at(first)
            with np.errstate(all="ignore"):
                stored.store(stored.prepare(columns, rows), first, rows, again=True)
            stored.null_keys = counted

    def rebuilt(self, side: str) -> None:
        """All rows of a side that were stored before are there again."""
        for stored in self._stored_of(side):
            stored.restored()

    def _stored_of(self, side: str) -> Iterable[StoredSide]:
        return self.stored.values() if self.spec.self_join else [self.stored[side]]

    def answers(self, turns: Iterable[list[Probes]]) -> Iterator[Answer]:
        """Find the pairs of the new tuples, in order, at most `out_rows` at a time."""
        for probes in turns:
            yield from self._answers(probes)

    def _answers(self, probes: list[Probes]) -> Iterator[Answer]:
        left, right = probes
        while not (left.done and right.done):
            if self.shared is not None:  # of both sides up to one tuple, so that nothing is left from before
                self._find_shared(probes)
            else:
                for side, half in zip(SIDES, probes, strict=True):
                    if len(half.row) == 0 and half.next < half.count:
                        half.find(self.out_rows, ordered=self.ordered)
                        self._decide(side, half)
            cut = min(left.frontier, right.frontier)
            left_probe, left_row = left.take(cut)
            right_probe, right_row = right.take(cut)
            if len(left_row) + len(right_row) == 0:
                continue
            left_rows, right_rows, later = _native.merge_halves(
                left_probe, left_row, left.rank, left.first, right_probe, right_row, right.rank, right.first
            )
            for at in range(0, len(later), self.out_rows):
                part = slice(at, at + self.out_rows)
                more = at + self.out_rows < len(later)
                upto = int(later[at + self.out_rows]) if more else cut
                yield Answer(left_rows[part], right_rows[part], later[part], upto)

    def gather(self, answer: Answer) -> Iterator[tuple[pa.RecordBatch, Answer]]:
        """Fetch the columns of some pairs: at once, or in parts where texts would be longer than Arrow allows."""
        try:
            columns = {
                side: self.logs[side].gather(self._wanted[side], rows)
                for side, rows in zip(SIDES, (answer.left, answer.right), strict=True)
            }
        except OverflowError:
            if len(answer.later) == 1:
                raise
            half = len(answer.later) // 2
            for part, upto in ((slice(None, half), int(answer.later[half])), (slice(half, None), answer.upto)):
                yield from self.gather(Answer(answer.left[part], answer.right[part], answer.later[part], upto))
            return
        arrays = [*columns["left"], *columns["right"]]
        yield record_batch(arrays, self.schema, len(answer.later)), answer

    def expire(self, bounds: dict[str, int]) -> None:
        """Forget rows of each side below a bound."""
        for side in SIDES:
            self.stored[side].expire(bounds[side])
            self.logs[side].expire(bounds[side])

    def take_over(self, share: Share) -> None:
        """Keep the rows of another share from now on."""
        for stored in self.stored.values():
            stored.take_over(share)

    def _decide(self, side: str, half: Probes) -> None:
        """Apply what is left of the predicate to the pairs that were found."""
        remainder = half.target.remainder
        if len(half.row) and remainder.always:
            mask = self._truth_of(remainder.always, side, half.probe, half.row, half.first)
            if not mask.all():
                half.keep(mask)
        if len(half.row) and remainder.unsure:
            unsure = half.unsure()
            if len(unsure):
                mask = np.ones(len(half.row), bool)
                mask[unsure] = self._truth_of(remainder.unsure, side, half.probe[unsure], half.row[unsure], half.first)
                half.keep(mask)

    def _truth_of(
        self, conjuncts: tuple[Bound, ...], side: str, probe: np.ndarray, row: np.ndarray, first: int
    ) -> np.ndarray:
        rows = {side: probe + first, OTHER[side]: row}
        columns = Columns(lambda which, name: self.logs[which].gather([self._columns[which][name]], rows[which])[0])
        mask: np.ndarray | None = None
        for conjunct in conjuncts:
            mask = joint(mask, truth(conjunct, columns, len(row)))
        assert mask is not None
        return mask


def _parts(share: Copies, side: str, numbered: Numbered) -> list[slice]:
    """Return the new tuples of a side that a cell is asked for in each turn."""
    half, turns = numbered.halves[side], [share.at(turn, numbered.turns) for turn in range(numbered.turns)]
    return [each.asks(side, half, numbered.total, NO_KEYS, NO_KEYS) for each in turns]


def _ends_of_parts(
    tests: tuple[RangeTest, ...], columns: Columns, parts: list[slice], rows: int
) -> dict[RangeTest, Ends]:
    """Return what parts of some tuples look for, at their places; anything for the others."""
    found: dict[RangeTest, Ends] = {}
    for part in parts:
        if part.start >= part.stop:
            continue
        mine = Columns(partial(_cut, columns, part))
        for test in tests:
            ends = test.ends(mine, part.stop - part.start)
            if test not in found:
                low, high = (np.empty((*end.shape[:-1], rows), np.uint64) for end in ends)
                found[test] = low, high
            for all_of_them, end in zip(found[test], ends, strict=True):
                all_of_them[..., part] = end
    return found or {test: (np.empty(rows, np.uint64), np.empty(rows, np.uint64)) for test in tests}


def _cut(columns: Columns, part: slice, side: str, name: str) -> pa.Array:
    return columns.array(side, name).slice(part.start, part.stop - part.start)


def _columns_of(batches: Sequence[pa.RecordBatch]) -> Columns:
    def load(_side: str, name: str) -> pa.Array:
        if len(batches) == 1:
            return batches[0].column(name)
        return pa.concat_arrays([batch.column(name) for batch in batches])

    return Columns(load)
