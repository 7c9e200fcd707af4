// Ranges: a sorted array, with a small sorted buffer for what came last.
//
// Problem: a range of keys is contiguous in a sorted array and found by two binary searches, but inserting into it
// moves half of it. Idea: new rows are merged into a small sorted buffer; when that has grown to about the square
// root of the array, the two are merged in one pass, which also drops what has expired. A probe looks into both.
//
// Cost, for n rows: insert O(sqrt(n)) amortised, probe O(log n + rows in the key range), expire O(1) (expired rows
// stay until the next merge and are told by their row); 16 bytes a row.
// Invariants: main_ and buffer_ ascend by (key, row); together they hold each live row once; expired rows among
// them are dropped when they outnumber the live ones.
// Where it loses: ranges that hold much of the window, whose rows must be put back in order (a bitmap does that).
#pragma once

#include <algorithm>
#include <cmath>

#include "entry.hpp"
#include "store.hpp"

namespace dovetail {

class SortedStore final : public Store {
 public:
  static std::vector<Parameter> parameters() {
    return {{"buffer", 1024, 1, 1 << 30, "rows that the buffer holds at least before it is merged"}};
  }
  explicit SortedStore(const Settings& settings) : least_buffer_(settings.count("buffer")) {}

  void insert(const uint64_t* keys, const int64_t* rows, size_t n) override {
    if (n == 0) return;
    Vector<Entry> merged;
    merged.reserve(buffer_.size() + n);
    Vector<Entry> fresh(n);
    for (size_t i = 0; i < n; ++i) fresh[i] = {keys[i], rows[i]};
    std::sort(fresh.begin(), fresh.end());
    std::merge(buffer_.begin(), buffer_.end(), fresh.begin(), fresh.end(), std::back_inserter(merged));
    rows_.append(rows, n);
    buffer_.swap(merged);
    if (buffer_.size() > buffer_limit()) try_merge();
  }

  size_t probe(const Probes& probes, size_t begin, size_t end, size_t limit, Pairs& out) override {
    for (size_t p = begin; p < end; ++p) {
      if (probes.empty(p)) continue;
      const int64_t row_lo = std::max(probes.row_lo[p], bound_);
      size_t found = 0;
      found = collect(main_, probes.lo[p], probes.hi[p], row_lo, probes.row_hi[p], found, out);
      found = collect(buffer_, probes.lo[p], probes.hi[p], row_lo, probes.row_hi[p], found, out);
      if (found == 0) continue;
      sorter_.sort(out.row.data() + out.row.size(), found);
      out.claim(static_cast<int64_t>(p), found);
      if (out.size() >= limit) return p + 1;
    }
    return end;
  }

  void expire(int64_t before_row) override {
    if (before_row <= bound_) return;
    bound_ = before_row;
    const int64_t* rows = rows_.data();
    rows_.drop_front(static_cast<size_t>(std::lower_bound(rows, rows + rows_.size(), before_row) - rows));
    const size_t held = main_.size() + buffer_.size();
    if (held > 2 * (rows_.size() + least_buffer_)) try_merge();
  }

  size_t size() const override { return rows_.size(); }
  size_t nbytes() const override {
    return (main_.capacity() + buffer_.capacity()) * sizeof(Entry) + rows_.nbytes() + sorter_.nbytes();
  }

  void check() const override {
    demand(std::is_sorted(main_.begin(), main_.end()), "sorted: the array ascends");
    demand(std::is_sorted(buffer_.begin(), buffer_.end()), "sorted: the buffer ascends");
    size_t live = 0;
    for (const auto* part : {&main_, &buffer_}) {
      for (const Entry& entry : *part) live += entry.row >= bound_;
    }
    demand(live == rows_.size(), "sorted: each live row stands once in the array or the buffer");
  }

 private:
  size_t buffer_limit() const {
    return std::max(least_buffer_, static_cast<size_t>(4 * std::sqrt(static_cast<double>(main_.size()))));
  }

  // Merging needs a second array for a moment. Without memory for it the buffer grows on and expired rows stay,
  // unseen: slower, but nothing is wrong.
  void try_merge() {
    try {
      merge_buffer();
    } catch (const std::bad_alloc&) {
    }
  }

  void merge_buffer() {
    Vector<Entry> merged;
    merged.reserve(rows_.size());
    auto a = main_.begin(), b = buffer_.begin();
    while (a != main_.end() || b != buffer_.end()) {
      const bool from_main = b == buffer_.end() || (a != main_.end() && *a < *b);
      const Entry& entry = from_main ? *a++ : *b++;
      if (entry.row >= bound_) merged.push_back(entry);
    }
    main_.swap(merged);
    Vector<Entry>().swap(buffer_);
  }

  static size_t collect(const Vector<Entry>& part, uint64_t lo, uint64_t hi, int64_t row_lo, int64_t row_hi,
                        size_t found, Pairs& out) {
    auto at = std::lower_bound(part.begin(), part.end(), lo,
                               [](const Entry& entry, uint64_t key) { return entry.key < key; });
    const auto end = std::upper_bound(at, part.end(), hi,
                                      [](uint64_t key, const Entry& entry) { return key < entry.key; });
    int64_t* place = out.row.reserve(found + static_cast<size_t>(end - at) + 1);
    for (; at != end; ++at) {
      place[found] = at->row;
      found += (at->row >= row_lo) & (at->row < row_hi);
    }
    return found;
  }

  const size_t least_buffer_;
  Vector<Entry> main_;
  Vector<Entry> buffer_;
  RowVector<int64_t> rows_;  // the live rows, ascending: how many there are is known without a merge
  RowSorter sorter_;
  int64_t bound_ = INT64_MIN;
};

}  // namespace dovetail
