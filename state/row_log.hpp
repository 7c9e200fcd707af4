// The rows that a store holds, in the order of arrival: how many are live, and which row stands at which position.
//
// Problem: rows come in ascending order but need not be consecutive (a cell of a parallel join gets some of them),
// and a store wants dense numbers. Idea: a row's *position* counts the rows that were stored, from 0. As long as rows
// are consecutive a position is the row less a constant and nothing is kept; from the first gap on there is an array.
//
// Invariants: positions [begin(), end()) are live; row_at ascends; position_of(row) is the first live position whose
// row is not below it.
// Cost: O(1) in the consecutive case, else a binary search, starting near the last answer; 0 or 8 bytes a row.
#pragma once

#include <algorithm>

#include "row_vector.hpp"

namespace dovetail {

class RowLog {
 public:
  int64_t begin() const { return begin_; }
  int64_t end() const { return end_; }
  size_t size() const { return static_cast<size_t>(end_ - begin_); }
  size_t nbytes() const { return rows_.nbytes(); }
  bool consecutive() const { return consecutive_; }
  int64_t last_row() const { return row_at(end_ - 1); }

  // Strong guarantee.
  void append(const int64_t* rows, size_t n) {
    if (n == 0) return;
    if (size() == 0 && consecutive_) offset_ = rows[0] - end_;
    if (consecutive_ && rows[0] == offset_ + end_ && rows[n - 1] - rows[0] == static_cast<int64_t>(n) - 1) {
      end_ += static_cast<int64_t>(n);
      return;
    }
    if (consecutive_) {
      RowVector<int64_t> held;
      held.start_at(begin_);
      int64_t* place = held.grow(size() + n);
      for (int64_t at = begin_; at < end_; ++at) place[at - begin_] = offset_ + at;
      std::copy(rows, rows + n, place + size());
      rows_ = std::move(held);
      consecutive_ = false;
    } else {
      rows_.append(rows, n);
    }
    end_ += static_cast<int64_t>(n);
  }

  // The same of n rows from `first` on, which follow those that are here; all of them are consecutive.
  void extend(int64_t first, size_t n) {
    if (size() == 0) offset_ = first - end_;
    end_ += static_cast<int64_t>(n);
  }

  // Takes back the last n, for an insertion that cannot be completed.
  void take_back(size_t n) {
    if (!consecutive_) rows_.shrink(n);
    end_ -= static_cast<int64_t>(n);
  }

  // Drops rows below a bound; returns the new begin().
  int64_t expire(int64_t before_row) {
    begin_ = position_of(before_row);
    if (!consecutive_) rows_.expire(begin_);
    return begin_;
  }

  int64_t row_at(int64_t position) const {
    return consecutive_ ? position + offset_ : rows_.data()[position - rows_.first_row()];
  }

  // Makes rows of positions, in place.
  void to_rows(int64_t* positions, size_t n) const {
    if (consecutive_) {
      if (offset_ == 0) return;  // as in most joins
      for (size_t i = 0; i < n; ++i) positions[i] += offset_;
    } else {
      for (size_t i = 0; i < n; ++i) positions[i] = row_at(positions[i]);
    }
  }

  int64_t position_of(int64_t row) const { return position_of(row, begin_); }

  // `near` is a position at or below the answer, such as the answer to a lower row.
  int64_t position_of(int64_t row, int64_t near) const {
    // Clamped, then subtracted: a row may be any number.
    if (consecutive_) return std::min(std::max(row, begin_ + offset_), end_ + offset_) - offset_;
    int64_t step = 1, lo = std::max(near, begin_), hi = lo;
    while (hi < end_ && row_at(hi) < row) {
      lo = hi + 1;
      hi = std::min(end_, hi + step);
      step *= 2;
    }
    while (lo < hi) {
      const int64_t middle = lo + (hi - lo) / 2;
      if (row_at(middle) < row) {
        lo = middle + 1;
      } else {
        hi = middle;
      }
    }
    return lo;
  }

  void check() const {
    demand(begin_ <= end_, "row log: it begins before it ends");
    if (consecutive_) return;
    rows_.check();
    demand(rows_.first_row() == begin_ && rows_.end_row() == end_, "row log: a row for each position");
    for (int64_t at = begin_ + 1; at < end_; ++at) demand(row_at(at - 1) < row_at(at), "row log: rows ascend");
  }

 private:
  int64_t begin_ = 0;
  int64_t end_ = 0;
  int64_t offset_ = 0;
  bool consecutive_ = true;
  RowVector<int64_t> rows_;
};

}  // namespace dovetail
