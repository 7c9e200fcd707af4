// Ranges, in batches: BI-Sort of PanJoin, a buffer that is merged into sorted arrays, which are probed in order.
//
// Problem: a range of keys is one piece of a sorted array, but a row costs a pass over the array to insert, and a
// binary search of a large array waits for memory at each step. Idea: the newest rows wait unsorted in a small buffer;
// a full buffer, or a batch that does not fit it, is sorted and merged into a *main array*. Every so many-th key of an
// array stands in its *index*, small enough for a cache: a probe finds its partition there, asks for that piece of
// memory, and searches it when it has come. Many probes of a call are first sorted by their lower bounds: then they go
// through index and array in one direction, a group at a time, from where the last group ended, in steps that double
// and then halve (rebounding search). What they find are places <start, end> in each array, whatever lies between;
// rows are copied out of it in a second pass, in the order of probes.
//
// Arrays (runs) follow one another in the order of arrival: each holds all rows of a piece of the stream, so a run
// expires whole once its last row does, and what runs bring one after the other is in the order of rows. From one run
// to the next rows become fewer by about the same factor, near `fan`: a buffer is merged into the last, smallest run,
// and that one, when it has grown too large, into the one before it. All merging is done in place from the end: a batch
// is merged at the speed of moving memory.
//
// Invariants: runs and then the buffer hold the positions [first, rows_.end()) without gaps, first <= rows_.begin(),
// and each run holds a position that is live; a run ascends by (key, position), and its index holds
// every partition_-th of its keys. Only the oldest run holds expired rows; it is rid of them in one pass when they
// have come to `waste` of the live ones.
//
// Cost, for w rows: insert O(log w + fan * log_fan(w / buffer)) moves of 12 bytes for each row, probe O(buffer + log w)
// and O(matches), as rows come out sorted: in batches of bands some 9 ns a match with 64 of them a probe and 7 from 256
// on, of one key about 4.
// 12 bytes a row and 8 for each partition, times 1.25 for room to grow and 1 + waste for what has expired: 15 to 22,
// and while probes come some 400 KB to sort them in.
// Where it loses: tuple by tuple on windows that fit a cache, where a tree is as fast; and a merge is a pause, of the
// whole window now and then. Wide ranges of keys asked for few rows: all rows of the keys are looked at.
//
// What differs from the paper, and the settings that give what it describes:
//  - sorted runs between buffer and main array. The paper merges each full buffer or batch into the main array, so
//    that small batches on large windows are hopeless; fan = 2^30 does that.
//  - one main array, and expired rows dropped from it in a pass now and then. The paper cuts the window into
//    sub-windows with a main array each, and drops the oldest whole; subwindows = k and waste = 1 do that. More arrays
//    cost less to merge into, and more to probe, which is most of the work.
//  - places in a main array never leave the store: they hold until the next merge only, say nothing of the rows in
//    the buffer, and include rows that have expired. So rows are copied, and told by position; a run that lies within
//    the rows of a probe is copied unseen.
//  - an upper bound is looked for from its own lower bound on. The paper has upper bounds ascend as lower ones do,
//    which they do not when the width of a band depends on the row.
//  - bounds are closed, as there is no key above the greatest; an index has a key for so many rows, not a number of
//    partitions that must divide the rows; a search that rebounds starts at the partition of the answer before, where
//    equal keys may go on, and does not step past the end. A batch carries its rows, so that cutting a stream into
//    batches changes no result.
#pragma once

#include <algorithm>
#include <cmath>

#include "entry.hpp"
#include "row_log.hpp"
#include "row_sorter.hpp"
#include "search.hpp"
#include "store.hpp"

namespace dovetail {

class BiSortStore final : public Store {
 public:
  static std::vector<Parameter> parameters() {
    return {{"buffer", 64, 1, 1 << 24, "rows that wait unsorted, and are looked through by every probe"},
            {"fan", 32, 2, 1 << 30, "how many times as many rows each sorted array may hold as the one before it"},
            {"subwindows", 0, 0, 1024, "main arrays for the live rows, dropped whole; 0: one array for all of them"},
            {"waste", 0.25, 0.01, 1000, "expired rows for each live one, before an array is rid of them"},
            {"partition", 32, 2, 1 << 20, "rows of a sorted array for each key of its index"},
            {"presort", 512, 1, 1 << 30, "probes of a call from which on they are sorted before they are looked up"}};
  }
  explicit BiSortStore(const Settings& settings)
      : most_buffered_(settings.count("buffer")),
        subwindows_(settings.count("subwindows")),
        fan_(settings["fan"]),
        waste_(settings["waste"]),
        partition_(settings.count("partition")),
        presort_(settings.count("presort")) {}

  void insert(const uint64_t* keys, const int64_t* rows, size_t n) override {
    if (n == 0) return;
    rows_.append(rows, n);
    try {
      if (buffer_.size() + n <= most_buffered_) {
        buffer_.append(keys, n);
      } else {
        merge(sorted(keys, n));
      }
    } catch (...) {
      rows_.take_back(n);
      throw;
    }
    if (rows[0] < bound_) expire(bound_);
  }

  size_t probe(const Probes& probes, size_t begin, size_t end, size_t limit, Pairs& out) override {
    while (begin < end) {
      // Ranges are looked up for as many probes as will probably be answered before the limit is reached.
      const double wanted = static_cast<double>(limit - std::min(limit, out.size())) / (matches_ + 0.01) + 16;
      const size_t n = std::min({end - begin, kBlock, wanted < 1e9 ? static_cast<size_t>(wanted) : kBlock});
      const size_t in_range = std::min({locate(probes, begin, n), limit, kReserve});
      out.row.reserve(in_range);
      out.probe.reserve(in_range);
      const size_t before = out.size();
      const size_t upto = emit(probes, begin, begin + n, limit, out);
      matches_ = static_cast<double>(out.size() - before) / static_cast<double>(upto - begin);
      if (upto < begin + n || (out.size() >= limit && out.size() > before)) return upto;
      begin = upto;
    }
    return end;
  }

  void expire(int64_t before_row) override {
    bound_ = std::max(bound_, before_row);
    const int64_t begin = rows_.expire(bound_);
    buffer_.expire(begin);
    size_t gone = 0;
    while (gone < runs_.size() && runs_[gone].end <= begin) ++gone;
    if (gone) runs_.erase(runs_.begin(), runs_.begin() + static_cast<std::ptrdiff_t>(gone));
    const auto expired = static_cast<double>(runs_.empty() ? 0 : begin - runs_[0].first);
    if (expired > waste_ * static_cast<double>(size()) + 4 * static_cast<double>(most_buffered_)) {
      drop_expired(runs_[0], begin);
    }
    if (order_.nbytes() + ranges_.nbytes() > size() * sizeof(Entry) + kLeastScratch) {
      order_ = Array<Entry>();
      ranges_ = Array<Range>();
    }
  }

  size_t size() const override { return rows_.size(); }

  size_t nbytes() const override {
    size_t bytes = rows_.nbytes() + buffer_.nbytes() + sorter_.nbytes() + runs_.capacity() * sizeof(Run);
    for (const Run& run : runs_) bytes += run.nbytes();
    return bytes + order_.nbytes() + ranges_.nbytes() + cursors_.nbytes();
  }

  Statistics statistics() const override {
    size_t sorted = 0;
    for (const Run& run : runs_) sorted += run.size;
    return {{"merges", static_cast<double>(merges_)},
            {"rows_moved", static_cast<double>(moved_)},
            {"arrays", static_cast<double>(runs_.size())},
            {"sorted_rows", static_cast<double>(sorted)},
            {"buffered_rows", static_cast<double>(buffer_.size())},
            {"expired_rows", static_cast<double>(sorted + buffer_.size() - size())}};
  }

  void check() const override {
    rows_.check();
    buffer_.check();
    int64_t next = runs_.empty() ? rows_.begin() : runs_[0].first;
    demand(next <= rows_.begin(), "bi_sort: no live row is missing from the oldest array");
    demand(runs_.empty() || runs_[0].end > rows_.begin(), "bi_sort: an array without live rows is dropped");
    for (const Run& run : runs_) {
      demand(run.first == next, "bi_sort: each array holds the positions after those of the one before");
      next = run.end;
      run.check(partition_);
    }
    demand(buffer_.size() <= most_buffered_, "bi_sort: the buffer is not overfull");
    demand(buffer_.size() == 0 || buffer_.first_row() == next, "bi_sort: the buffer goes on where the arrays end");
    demand(next + static_cast<int64_t>(buffer_.size()) == rows_.end(), "bi_sort: each live row stands somewhere");
  }

 private:
  // A sorted array of the rows at positions [first, end), with every so many-th of its keys in an index.
  struct Run {
    Array<uint64_t> keys;
    Array<uint32_t> offsets;  // position less `first`
    Array<uint64_t> index;
    size_t size = 0;
    int64_t first = 0, end = 0;

    size_t nbytes() const { return keys.nbytes() + offsets.nbytes() + index.nbytes(); }

    void resize(size_t rows, size_t partition) {
      Array<uint64_t> other_keys(rows);
      Array<uint32_t> other_offsets(rows);
      Array<uint64_t> other_index((rows + partition - 1) / partition);
      if (size) {
        std::memcpy(other_keys.get(), keys.get(), size * sizeof(uint64_t));
        std::memcpy(other_offsets.get(), offsets.get(), size * sizeof(uint32_t));
        std::memcpy(other_index.get(), index.get(), (size + partition - 1) / partition * sizeof(uint64_t));
      }
      keys = std::move(other_keys);
      offsets = std::move(other_offsets);
      index = std::move(other_index);
    }

    void make_index(size_t partition) {
      for (size_t at = 0, i = 0; at < size; at += partition) index[i++] = keys[at];
    }

    void check(size_t partition) const {
      demand(size <= keys.size() && size <= offsets.size(), "bi_sort: an array does not reach past its memory");
      demand(static_cast<int64_t>(size) == end - first, "bi_sort: an array holds each of its positions");
      Vector<bool> seen(size);
      for (size_t i = 0; i < size; ++i) {
        demand(offsets[i] < size && !seen[offsets[i]], "bi_sort: an array holds each of its positions once");
        seen[offsets[i]] = true;
        if (i % partition == 0) demand(index[i / partition] == keys[i], "bi_sort: the index holds keys of its array");
        if (i == 0) continue;
        demand(keys[i - 1] < keys[i] || (keys[i - 1] == keys[i] && offsets[i - 1] < offsets[i]),
               "bi_sort: an array ascends by key, then by row");
      }
    }
  };

  struct Range {
    uint32_t start, end;
  };

  static constexpr size_t kBlock = 8192;      // probes that are looked up together: more gain little
  static constexpr size_t kMostFetched = 64;  // keys of a partition that are asked for
  static constexpr size_t kAhead = 12;        // probes between asking for the rows of a range and reading them
  static constexpr size_t kReserve = 1 << 20;       // pairs that room is made for at once, as some may not come
  static constexpr size_t kLeastScratch = 1 << 16;  // bytes that are not worth giving back

  // ---- insertion ----

  // The buffered rows and n more, as a run of their own.
  Run sorted(const uint64_t* keys, size_t n) const {
    const size_t buffered = buffer_.size(), total = buffered + n;
    Array<Entry> entries(total), scratch(total);
    for (size_t i = 0; i < buffered; ++i) entries[i] = {buffer_[i], static_cast<int64_t>(i)};
    for (size_t i = 0; i < n; ++i) entries[buffered + i] = {keys[i], static_cast<int64_t>(buffered + i)};
    sort_by_key(entries.get(), scratch.get(), total);
    Run run;
    run.resize(total, partition_);
    for (size_t i = 0; i < total; ++i) {
      run.keys[i] = entries[i].key;
      run.offsets[i] = static_cast<uint32_t>(entries[i].row);
    }
    run.size = total;
    run.end = rows_.end();
    run.first = run.end - static_cast<int64_t>(total);
    return run;
  }

  // The first of the runs that so many newest rows are merged with: those that fit the greatest size of a level go into
  // it, if all of them together still do, and else on into the next; the main array takes what comes.
  size_t merged_from(size_t rows) const {
    const size_t open = subwindows_ ? size() / subwindows_ : SIZE_MAX;  // rows of a main array that takes more
    const double grows = static_cast<double>(std::min(size(), open) + 1) / static_cast<double>(most_buffered_);
    const auto levels = std::max(1L, std::lround(std::log(grows) / std::log(fan_)));
    const double ratio = std::pow(grows, 1.0 / static_cast<double>(levels));
    size_t from = runs_.size();
    double most = static_cast<double>(most_buffered_);
    for (long level = 1;; ++level) {
      most *= ratio;
      const size_t rows_of_level = level < levels ? static_cast<size_t>(most) : open;
      while (from > 0 && runs_[from - 1].size <= rows_of_level) rows += runs_[--from].size;
      if (level == levels || rows <= rows_of_level) return from;
    }
  }

  // Puts a run of the newest rows behind the others, merged with those that it has outgrown.
  void merge(Run&& fresh) {
    const size_t from = merged_from(fresh.size);
    const int64_t first = from < runs_.size() ? runs_[from].first : fresh.first;
    demand(rows_.end() - first < int64_t{UINT32_MAX}, "bi_sort: a sorted array holds less than 2^32 rows");
    runs_.reserve(runs_.size() + 1);
    size_t needed = fresh.size;
    for (size_t r = runs_.size(); r-- > from;) {
      needed += runs_[r].size;
      if (needed > runs_[r].keys.size()) runs_[r].resize(needed + needed / 4, partition_);
    }
    // From here on nothing fails.
    for (; runs_.size() > from; runs_.pop_back()) {
      absorb(runs_.back(), fresh);
      std::swap(runs_.back(), fresh);
    }
    fresh.make_index(partition_);
    runs_.push_back(std::move(fresh));
    buffer_.expire(rows_.end());
  }

  // Merges the newer run into the memory of the older one, from the end, so that no row is written over before it was
  // moved. Rows of equal keys stay in order: the newer ones go behind.
  void absorb(Run& older, const Run& newer) {
    uint64_t* keys = older.keys.get();
    uint32_t* offsets = older.offsets.get();
    const auto further = static_cast<uint32_t>(newer.first - older.first);
    size_t left = older.size;
    for (size_t at = newer.size; at-- > 0;) {
      const uint64_t key = newer.keys[at];
      const size_t by = at + 1;
      while (left >= 8 && keys[left - 8] > key) {
        left -= 8;
        uint64_t eight_keys[8];
        uint32_t eight_offsets[8];
        std::memcpy(eight_keys, keys + left, sizeof eight_keys);
        std::memcpy(eight_offsets, offsets + left, sizeof eight_offsets);
        std::memcpy(keys + left + by, eight_keys, sizeof eight_keys);
        std::memcpy(offsets + left + by, eight_offsets, sizeof eight_offsets);
      }
      for (; left > 0 && keys[left - 1] > key; --left) {
        keys[left - 1 + by] = keys[left - 1];
        offsets[left - 1 + by] = offsets[left - 1];
      }
      keys[left + at] = key;
      offsets[left + at] = newer.offsets[at] + further;
    }
    ++merges_;
    moved_ += older.size - left + newer.size;
    older.size += newer.size;
    older.end = newer.end;
  }

  void drop_expired(Run& run, int64_t begin) {
    const auto expired = static_cast<uint32_t>(begin - run.first);
    size_t kept = 0;
    for (size_t i = 0; i < run.size; ++i) {
      const uint32_t offset = run.offsets[i];
      run.keys[kept] = run.keys[i];
      run.offsets[kept] = offset - expired;
      kept += offset >= expired;
    }
    run.size = kept;
    run.first = begin;
    run.make_index(partition_);
    if (run.keys.size() <= 2 * kept) return;
    try {
      run.resize(kept, partition_);
    } catch (const std::bad_alloc&) {
      // Returning memory needs a little of it first. There is none: keep what we have, nothing is wrong.
    }
  }

  // ---- probing ----

  // The end of the keys up to `hi`, from the first of them on: the next few are counted, as most ranges are short.
  static size_t end_of(const uint64_t* keys, size_t n, uint64_t hi, size_t start) {
    if (n - start >= 4) {
      const uint64_t* next = keys + start;
      const size_t counted = size_t{next[0] <= hi} + (next[1] <= hi) + (next[2] <= hi) + (next[3] <= hi);
      if (counted < 4) return start + counted;
      start += 4;
    }
    // Keys up to `hi` are those below the next one; behind the greatest key there is nothing.
    return hi == kGreatest ? n : below_from(keys, n, hi + 1, start);
  }

  template <typename T>
  static T* room(Array<T>& scratch, size_t n) {
    if (scratch.size() < n) scratch = Array<T>(n);
    return scratch.get();
  }

  // Some probes that are looked up together: each by its number in the block, and the low end of its keys.
  struct Group {
    size_t members = 0;
    size_t number[kGroup];
    uint64_t lo[kGroup];
  };

  // Finds for n probes from `begin` on the range of places in each run that their keys bound; returns how many places.
  size_t locate(const Probes& probes, size_t begin, size_t n) {
    const size_t runs = runs_.size();
    Range* ranges = room(ranges_, n * runs);
    const bool in_order = n >= presort_;
    Entry* order = in_order ? room(order_, 2 * n) : nullptr;
    if (in_order) {
      for (size_t i = 0; i < n; ++i) order[i] = {probes.lo[begin + i], static_cast<int64_t>(i)};
      sort_by_key(order, order + n, n);
    }
    size_t* partitions = room(cursors_, runs * (kGroup + 1));
    size_t* cursors = partitions + runs * kGroup;
    std::fill(cursors, cursors + runs, 0);
    size_t in_range = 0;
    for (size_t first = 0; first < n; first += kGroup) {
      Group group;
      for (size_t i = first; i < n && group.members < kGroup; ++i, ++group.members) {
        group.number[group.members] = in_order ? static_cast<size_t>(order[i].row) : i;
        group.lo[group.members] = in_order ? order[i].key : probes.lo[begin + i];
      }
      for (size_t r = 0; r < runs; ++r) {
        find_partitions(runs_[r], group, in_order ? &cursors[r] : nullptr, partitions + r * kGroup);
      }
      for (size_t r = 0; r < runs; ++r) {
        in_range += find_ranges(runs_[r], group, partitions + r * kGroup, probes.hi + begin, ranges + r);
      }
    }
    return in_range;
  }

  // How many keys of a run's index are below each of a group, whose partitions are on their way then. With a cursor
  // the group ascends, from the answer for the last one before it, which the cursor tells, on.
  void find_partitions(const Run& run, const Group& group, size_t* cursor, size_t* partitions) const {
    const size_t indexed = (run.size + partition_ - 1) / partition_;
    const size_t near = cursor ? *cursor : 0;
    if (cursor) *cursor = below_from(run.index.get(), indexed, group.lo[group.members - 1], near);
    const size_t apart = (cursor ? *cursor : indexed) - near;
    for (size_t i = 0; i < group.members; ++i) {
      const size_t at = near + below(run.index.get() + near, apart, group.lo[i]);
      partitions[i] = at;
      const uint64_t* keys = run.keys.get() + (at ? (at - 1) * partition_ : 0);
      prefetch_lines(keys, std::min(partition_, kMostFetched) * sizeof(uint64_t));
    }
  }

  // Finds the places of each of a group, and writes them where the ranges of its probe begin.
  size_t find_ranges(const Run& run, const Group& group, const size_t* partitions, const uint64_t* hi,
                     Range* ranges) const {
    size_t in_range = 0;
    for (size_t i = 0; i < group.members; ++i) {
      size_t start = 0;
      if (partitions[i] > 0) {
        start = (partitions[i] - 1) * partition_;
        start += below(run.keys.get() + start, std::min(partition_, run.size - start), group.lo[i]);
      }
      const size_t end = end_of(run.keys.get(), run.size, hi[group.number[i]], start);
      __builtin_prefetch(run.offsets.get() + start);
      ranges[group.number[i] * runs_.size()] = {static_cast<uint32_t>(start), static_cast<uint32_t>(end)};
      in_range += end - start;
    }
    return in_range;
  }

  // Writes the pairs of probes [begin, end), whose ranges have been found.
  size_t emit(const Probes& probes, size_t begin, size_t end, size_t limit, Pairs& out) {
    const size_t runs = runs_.size();
    int64_t near_row = INT64_MIN, near = rows_.begin();
    for (size_t p = begin; p < end; ++p) {
      const Range* ranges = ranges_.get() + (p - begin) * runs;
      if (p + kAhead < end) {
        for (size_t r = 0; r < runs; ++r) __builtin_prefetch(runs_[r].offsets.get() + ranges[kAhead * runs + r].start);
      }
      if (probes.empty(p)) continue;
      near = rows_.position_of(probes.row_lo[p], probes.row_lo[p] >= near_row ? near : rows_.begin());
      near_row = probes.row_lo[p];
      const int64_t from = near, to = rows_.position_of(probes.row_hi[p], from);
      size_t most = buffer_.size();
      for (size_t r = 0; r < runs; ++r) most += ranges[r].end - ranges[r].start;
      if (most == 0) continue;
      int64_t* rows = out.row.reserve(most);
      size_t found = 0;
      for (size_t r = 0; r < runs; ++r) {
        if (ranges[r].end > ranges[r].start) found += copy(runs_[r], ranges[r], from, to, rows + found);
      }
      found += scan(probes.lo[p], probes.hi[p], from, to, rows + found);
      if (found == 0) continue;
      for (size_t i = 0; i < found; ++i) rows[i] = rows_.row_at(rows[i]);
      out.claim(static_cast<int64_t>(p), found);
      if (out.size() >= limit) return p + 1;
    }
    return end;
  }

  // The positions in a range of a run, ascending, of those in [from, to).
  size_t copy(const Run& run, Range range, int64_t from, int64_t to, int64_t* place) {
    const uint32_t* offsets = run.offsets.get();
    size_t found = 0;
    if (run.first >= from && run.end <= to) {
      for (size_t i = range.start; i < range.end; ++i) place[found++] = run.first + offsets[i];
    } else {
      const auto width = static_cast<uint64_t>(std::max(from, to) - from);
      for (size_t i = range.start; i < range.end; ++i) {
        const int64_t position = run.first + offsets[i];
        place[found] = position;
        found += static_cast<uint64_t>(position - from) < width;
      }
    }
    sorter_.sort(place, found);
    return found;
  }

  size_t scan(uint64_t lo, uint64_t hi, int64_t from, int64_t to, int64_t* place) const {
    const int64_t first = buffer_.first_row();
    const int64_t last = std::min(to, buffer_.end_row());
    size_t found = 0;
    for (int64_t position = std::max(from, first); position < last; ++position) {
      place[found] = position;
      found += buffer_[static_cast<size_t>(position - first)] - lo <= hi - lo;
    }
    return found;
  }

  const size_t most_buffered_, subwindows_;
  const double fan_, waste_;
  const size_t partition_, presort_;
  RowLog rows_;
  int64_t bound_ = INT64_MIN;
  Vector<Run> runs_;  // the oldest first
  RowVector<uint64_t> buffer_;  // by position
  Array<Entry> order_;
  Array<Range> ranges_;
  Array<size_t> cursors_;
  RowSorter sorter_;
  double matches_ = 1;  // a probe, as of late
  uint64_t merges_ = 0, moved_ = 0;
};

}  // namespace dovetail
