// What happens to pairs between the index and the result: filtered by further keys, put into the order of results.
#pragma once

#include "row_vector.hpp"

namespace dovetail {

// Keeps the pairs whose row's key is (or, negated, is not) inside its probe's range. Returns how many remain.
inline size_t filter_pairs(int64_t* probe, int64_t* row, size_t n, const RowVector<uint64_t>& keys, const uint64_t* lo,
                           const uint64_t* hi, bool negated) {
  const uint64_t* data = keys.data();
  const int64_t first = keys.first_row();
  size_t kept = 0;
  for (size_t i = 0; i < n; ++i) {
    const int64_t p = probe[i], r = row[i];
    const uint64_t key = data[r - first];
    const bool inside = (key >= lo[p]) & (key <= hi[p]);
    probe[kept] = p;
    row[kept] = r;
    kept += inside != negated;
  }
  return kept;
}

// Marks the pairs whose row's key is outside of its probe's range.
inline void mark_outside(const int64_t* probe, const int64_t* row, size_t n, const RowVector<uint64_t>& keys,
                         const uint64_t* lo, const uint64_t* hi, uint8_t* mark) {
  const uint64_t* data = keys.data();
  const int64_t first = keys.first_row();
  for (size_t i = 0; i < n; ++i) {
    const int64_t p = probe[i];
    const uint64_t key = data[row[i] - first];
    mark[i] |= static_cast<uint8_t>((key < lo[p]) | (key > hi[p]));
  }
}

// Half of the pairs of a step: found by the new tuples of one side, `probe` ascending, rows ascending within.
// rank[probe] is the tuple's place in the total order of the step.
struct Half {
  const int64_t* probe;
  const int64_t* row;
  size_t n;
  const int64_t* rank;
  int64_t first_row;  // row number of tuple 0
};

// Merges both halves into the order of results: by the later tuple, then by the older one's row, then (a self-join:
// equal in both) the pair in which the later tuple is left. `later` is the rank of the later tuple.
inline void merge_halves(const Half& left, const Half& right, int64_t* left_row, int64_t* right_row, int64_t* later) {
  size_t i = 0, j = 0, out = 0;
  while (i < left.n && j < right.n) {
    const int64_t a = left.rank[left.probe[i]], b = right.rank[right.probe[j]];
    const bool take_left = a != b ? a < b : left.row[i] <= right.row[j];
    if (take_left) {
      left_row[out] = left.first_row + left.probe[i];
      right_row[out] = left.row[i++];
      later[out++] = a;
    } else {
      left_row[out] = right.row[j];
      right_row[out] = right.first_row + right.probe[j++];
      later[out++] = b;
    }
  }
  for (; i < left.n; ++i, ++out) {
    left_row[out] = left.first_row + left.probe[i];
    right_row[out] = left.row[i];
    later[out] = left.rank[left.probe[i]];
  }
  for (; j < right.n; ++j, ++out) {
    left_row[out] = right.row[j];
    right_row[out] = right.first_row + right.probe[j];
    later[out] = right.rank[right.probe[j]];
  }
}

// Results of one cell, in the order of (rank, tie), and the row at which each is held.
struct OrderedRun {
  const int64_t* rank;
  const int64_t* tie;
  const int64_t* row;
  size_t n;
};

// Merges the results of some cells, which are few, into one order. No two results are equal in rank and tie.
inline void merge_runs(std::vector<OrderedRun>& runs, int64_t* row, int64_t* rank) {
  runs.erase(std::remove_if(runs.begin(), runs.end(), [](const OrderedRun& run) { return run.n == 0; }), runs.end());
  while (!runs.empty()) {
    size_t least = 0;
    for (size_t i = 1; i < runs.size(); ++i) {
      const int64_t a = *runs[i].rank, b = *runs[least].rank;
      if (a < b || (a == b && *runs[i].tie < *runs[least].tie)) least = i;
    }
    OrderedRun& run = runs[least];
    *row++ = *run.row++;
    *rank++ = *run.rank++;
    ++run.tie;
    if (--run.n == 0) runs.erase(runs.begin() + static_cast<std::ptrdiff_t>(least));
  }
}

}  // namespace dovetail
