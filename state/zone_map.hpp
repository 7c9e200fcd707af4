// Several ranges at once: slides of rows sorted by one key, cut into runs that are sorted by another, each with the
// least and the greatest of all its keys.
//
// Problem: where each of several comparisons alone holds for many rows and all of them together for few, an index on
// one key finds all that hold for it, and intersecting what several find costs as much as what they find. Idea: rows
// that are neighbours in *all* keys stand together. The rows of a slide are sorted by the first key and cut into
// strips; each strip is sorted by the second key (and if there is a third, cut and sorted once more). What is cut last
// is a run. A probe looks at the ends of all runs of a slide, eight at a time, and passes over most of them. In a run
// that it meets, the rows in the range of the run's own key are next to each other; only where the run lies across the
// end of another range is each of these rows looked at.
//
// Rows arrive one after the other, so slides are built as a log is: the newest rows wait unsorted, and are scanned;
// when there are `seal` of them they become a slide; `fan` slides of about one size become one, as long as that is at
// most a quarter of the window. Each row is so sorted a few times, and a whole slide is dropped when its last row is.
//
// Invariants: slides and then the waiting rows hold the live positions without a gap, and nothing but the oldest slide
// holds expired ones; a run's ends are those of its keys; within a run the last key that is sorted by ascends.
// Cost: for a probe, two comparisons a run and key, two searches in each run that it meets, and what it finds, put into
// the order of rows if that is asked for; storing a row takes some 0.1 µs for each time that it is sorted. 8 bytes a row
// and key, and 4.
// Where it loses: against an index on one key, when that one narrows to a few rows by itself.
#pragma once

#include <algorithm>
#include <cmath>

#include "box_store.hpp"
#include "entry.hpp"
#include "row_log.hpp"
#include "row_sorter.hpp"
#include "scan.hpp"
#include "search.hpp"

namespace dovetail {

// The least and the greatest key of each kind in each run: arrays of whole registers.
struct Zones {
  static constexpr size_t kLanes = 8;

  size_t runs = 0, stride = 0;  // places of one array
  Array<uint64_t> least, greatest;

  Zones() = default;
  Zones(size_t keys, size_t count)
      : runs(count),
        stride((runs + kLanes - 1) / kLanes * kLanes),
        least(keys * stride),
        greatest(keys * stride) {}
  size_t nbytes() const { return least.nbytes() + greatest.nbytes(); }
};

// Writes the runs that a box meets, ascending, to `out`, which has room for all and one more; returns how many there are.
size_t met_runs(const Zones& zones, const Box& box, size_t keys, uint32_t* out);

class ZoneMapStore final : public BoxStore {
 public:
  static std::vector<Parameter> parameters() {
    return {{"seal", 1024, 1, 1 << 30, "rows that wait before they become a slide"},
            {"run", 1024, 1, 1 << 20, "rows of a run, about"},
            {"fan", 4, 2, 64, "slides of about one size that become one"}};
  }
  ZoneMapStore(const Settings& settings, size_t keys)
      : keys_(keys),
        seal_(settings.count("seal")),
        run_(settings.count("run")),
        fan_(settings.count("fan")),
        waiting_(keys) {}

  void insert(const uint64_t* const* keys, const int64_t* rows, size_t n) override {
    if (n == 0) return;
    demand(held() + n <= kMostRows, "zone_map: a window of more than 2^31 rows does not fit one store");
    rows_.append(rows, n);
    size_t grown = 0;
    try {
      for (; grown < keys_; ++grown) waiting_[grown].append(keys[grown], n);
      if (waiting() >= seal_) seal();
    } catch (...) {
      while (grown) waiting_[--grown].shrink(n);
      rows_.take_back(n);
      throw;
    }
    if (rows[0] < bound_) expire(bound_);
  }

  size_t probe(const Boxes& probes, size_t begin, size_t end, size_t limit, Pairs& out) override {
    for (size_t p = begin; p < end; ++p) {
      if (probes.empty(p)) continue;
      const int64_t from = rows_.position_of(probes.row_lo[p]), to = rows_.position_of(probes.row_hi[p], from);
      if (from >= to) continue;
      const Box box(probes, p);
      meet(box, from, to);
      const size_t most = narrow(box);
      int64_t* const finds = out.row.reserve(most + Zones::kLanes);  // for all: nothing fails in between
      size_t found = 0;
      if (probes.ordered && most > kFew) {
        const int64_t first = slides_.front().first;
        bits_.begin(static_cast<uint64_t>(sealed_ - first), most);
        for (const Met& met : met_) {
          found += find_in(met, box, from, to, finds, [&](const uint32_t* offset, size_t n) {
            const auto base = static_cast<uint64_t>(met.slide->first - first);
            bits_.set(n, [&](size_t i) { return base + offset[i]; });
          }, [&](size_t n) { bits_.set(n, [&](size_t i) { return static_cast<uint64_t>(finds[i] - first); }); });
        }
        bits_.read(first, finds, found);
      } else {
        for (const Met& met : met_) {
          int64_t* const place = finds + found;
          found += find_in(met, box, from, to, place, [&](const uint32_t* offset, size_t n) {
            for (size_t i = 0; i < n; ++i) place[i] = met.slide->first + offset[i];
          }, [](size_t) {});
        }
        if (probes.ordered) sorter_.sort(out.row.data() + out.row.size(), found);
      }
      found = find_waiting(box, from, to, found, out.row);
      if (found == 0) continue;
      rows_.to_rows(out.row.data() + out.row.size(), found);
      out.claim(static_cast<int64_t>(p), found);
      if (out.size() >= limit) return p + 1;
    }
    return end;
  }

  void expire(int64_t before_row) override {
    bound_ = std::max(bound_, before_row);
    const int64_t begin = rows_.expire(bound_);
    size_t gone = 0;
    while (gone < slides_.size() && slides_[gone].end() <= begin) ++gone;
    slides_.erase(slides_.begin(), slides_.begin() + static_cast<std::ptrdiff_t>(gone));
    if (begin > sealed_) {
      for (auto& column : waiting_) column.drop_front(static_cast<size_t>(begin - sealed_));
      sealed_ = begin;
    }
  }

  size_t size() const override { return rows_.size(); }
  size_t nbytes() const override {
    size_t bytes = rows_.nbytes() + sorter_.nbytes() + bits_.nbytes() + slides_.capacity() * sizeof(Slide) +
                   waiting_.capacity() * sizeof(waiting_[0]) + runs_.capacity() * sizeof(runs_[0]) +
                   met_.capacity() * sizeof(Met);
    for (const auto& column : waiting_) bytes += column.nbytes();
    for (const Slide& slide : slides_) bytes += slide.nbytes();
    return bytes;
  }
  Statistics statistics() const override {
    size_t runs = 0;
    for (const Slide& slide : slides_) runs += slide.runs();
    return {{"slides", static_cast<double>(slides_.size())},
            {"runs", static_cast<double>(runs)},
            {"waiting", static_cast<double>(waiting())},
            {"sorted", static_cast<double>(sorted_)}};
  }

  void check() const override {
    rows_.check();
    bits_.check();
    int64_t at = slides_.empty() ? sealed_ : slides_.front().first;
    demand(at <= rows_.begin() || slides_.empty(), "zone_map: the oldest slide begins where the window does, or before");
    for (const Slide& slide : slides_) {
      demand(slide.first == at, "zone_map: slides follow each other");
      demand(slide.end() > rows_.begin(), "zone_map: a slide whose rows have all expired is dropped");
      slide.check(keys_);
      at = slide.end();
    }
    demand(at == sealed_, "zone_map: behind the slides stand the rows that wait");
    for (const auto& column : waiting_) {
      column.check();
      demand(sealed_ + static_cast<int64_t>(column.size()) == rows_.end(), "zone_map: a key for each row that waits");
    }
  }

 private:
  static constexpr size_t kMostRows = size_t{1} << 31;
  static constexpr size_t kFew = 64;        // finds that are sorted otherwise than as bits
  static constexpr size_t kSortedKeys = 3;  // of more than these only the ends are known

  struct Slide {
    int64_t first = 0;  // position of its oldest row
    size_t size = 0;
    Array<uint64_t> keys;    // of each kind, in the order of runs
    Array<uint32_t> offset;  // of each row's position, from `first`
    Array<uint32_t> starts;  // of runs, and the end
    Zones zones;

    int64_t end() const { return first + static_cast<int64_t>(size); }
    size_t runs() const { return starts.size() - 1; }
    const uint64_t* column(size_t k) const { return keys.get() + k * size; }
    uint64_t* column(size_t k) { return keys.get() + k * size; }
    size_t nbytes() const { return keys.nbytes() + offset.nbytes() + starts.nbytes() + zones.nbytes(); }

    void check(size_t kinds) const {
      Vector<uint8_t> seen(size, 0);
      for (size_t i = 0; i < size; ++i) {
        demand(offset[i] < size && !seen[offset[i]], "zone_map: a slide has each of its rows once");
        seen[offset[i]] = 1;
      }
      demand(starts[0] == 0 && starts[runs()] == size, "zone_map: runs are a whole slide");
      const size_t last = std::min(kinds, kSortedKeys) - 1;
      for (size_t r = 0; r < runs(); ++r) {
        demand(starts[r] < starts[r + 1], "zone_map: no run is empty");
        for (size_t k = 0; k < kinds; ++k) {
          const auto ends = std::minmax_element(column(k) + starts[r], column(k) + starts[r + 1]);
          demand(zones.least[k * zones.stride + r] == *ends.first && zones.greatest[k * zones.stride + r] == *ends.second,
                 "zone_map: a run's ends are those of its keys");
        }
        demand(std::is_sorted(column(last) + starts[r], column(last) + starts[r + 1]),
               "zone_map: a run is sorted by the last key that is");
      }
    }
  };

  size_t waiting() const { return waiting_[0].size(); }
  size_t held() const { return static_cast<size_t>(rows_.end() - (slides_.empty() ? sealed_ : slides_[0].first)); }

  // A run that a probe meets, and which of its rows are in the range of the key that it is sorted by.
  struct Met {
    const Slide* slide;
    uint32_t run, begin, end;

    const uint64_t* column(size_t k) const { return slide->column(k); }
    bool reaches_below(size_t k, uint64_t lo) const { return slide->zones.least[k * slide->zones.stride + run] < lo; }
    bool reaches_above(size_t k, uint64_t hi) const { return slide->zones.greatest[k * slide->zones.stride + run] > hi; }
  };

  // Lists the runs that a probe meets.
  void meet(const Box& box, int64_t from, int64_t to) {
    met_.clear();
    for (const Slide& slide : slides_) {
      if (slide.first >= to || slide.end() <= from) continue;
      if (runs_.size() <= slide.runs()) runs_.resize(slide.runs() + 1);
      const size_t n = met_runs(slide.zones, box, keys_, runs_.data());
      for (size_t i = 0; i < n; ++i) {
        met_.push_back({&slide, runs_[i], slide.starts[runs_[i]], slide.starts[runs_[i] + 1]});
      }
    }
  }

  // Narrows the runs to the range of the key that they are sorted by; returns how many rows that leaves.
  size_t narrow(const Box& box) {
    size_t most = 0;
    for (size_t begin = 0; begin < met_.size(); begin += kGroup) {
      Met* const group = met_.data() + begin;
      const size_t n = std::min(kGroup, met_.size() - begin);
      narrow(group, n, box);
      for (size_t i = 0; i < n; ++i) most += group[i].end - group[i].begin;
    }
    return most;
  }

  // The same for a few, side by side, as each search waits for memory.
  void narrow(Met* met, size_t n, const Box& box) const {
    const size_t last = std::min(keys_, kSortedKeys) - 1;
    const uint64_t* at[kGroup];
    size_t size[kGroup];
    Met* searched[kGroup];
    size_t some = 0;
    for (size_t i = 0; i < n; ++i) {
      if (!met[i].reaches_below(last, box.lo[last])) continue;
      at[some] = met[i].column(last) + met[i].begin;
      size[some] = met[i].end - met[i].begin;
      searched[some++] = met + i;
    }
    below_each(at, size, some, box.lo[last]);
    for (size_t i = 0; i < some; ++i) searched[i]->begin = static_cast<uint32_t>(at[i] - searched[i]->column(last));
    some = 0;
    for (size_t i = 0; i < n; ++i) {
      if (!met[i].reaches_above(last, box.hi[last])) continue;
      at[some] = met[i].column(last) + met[i].begin;
      size[some] = met[i].end - met[i].begin;
      searched[some++] = met + i;
    }
    below_each(at, size, some, box.hi[last] + 1);  // nothing reaches above the greatest key
    for (size_t i = 0; i < some; ++i) searched[i]->end = static_cast<uint32_t>(at[i] - searched[i]->column(last));
  }

  // Finds the rows of a narrowed run; returns how many. Where all of them are found, their offsets are given to `all`;
  // else their positions are written to `place`, and then `some` is told how many there are.
  template <typename All, typename Some>
  size_t find_in(const Met& met, const Box& box, int64_t from, int64_t to, int64_t* place, All all, Some some) const {
    const Slide& slide = *met.slide;
    const size_t last = std::min(keys_, kSortedKeys) - 1;
    size_t n = met.end - met.begin;
    if (n == 0) return 0;
    KeyRange ranges[kMostKeys];
    size_t looked_at = 0;
    for (size_t k = 0; k < keys_; ++k) {
      if (k == last || (!met.reaches_below(k, box.lo[k]) && !met.reaches_above(k, box.hi[k]))) continue;
      ranges[looked_at++] = {slide.column(k) + met.begin, box.lo[k], box.hi[k]};
    }
    const bool cut = slide.first < from || slide.end() > to;
    if (looked_at == 0 && !cut) {
      all(slide.offset.get() + met.begin, n);
      return n;
    }
    if (looked_at) {
      n = scan(ranges, looked_at, n, met.begin, place);
      for (size_t i = 0; i < n; ++i) place[i] = slide.first + slide.offset[static_cast<size_t>(place[i])];
    } else {
      for (size_t i = 0; i < n; ++i) place[i] = slide.first + slide.offset[met.begin + i];
    }
    if (cut) {
      size_t kept = 0;
      for (size_t i = 0; i < n; ++i) {
        const int64_t position = place[i];
        place[kept] = position;
        kept += position >= from && position < to;
      }
      n = kept;
    }
    some(n);
    return n;
  }

  size_t find_waiting(const Box& box, int64_t from, int64_t to, size_t found, Growing<int64_t>& out) const {
    from = std::max(from, sealed_);
    if (from >= to) return found;
    KeyRange ranges[kMostKeys];
    for (size_t k = 0; k < keys_; ++k) {
      ranges[k] = {waiting_[k].data() + (from - sealed_), box.lo[k], box.hi[k]};
    }
    const auto n = static_cast<size_t>(to - from);
    return found + scan(ranges, keys_, n, from, out.reserve(found + n + Zones::kLanes) + found);
  }

  // Makes a slide of the waiting rows, and one of several where they have become many. Strong guarantee.
  void seal() {
    const size_t n = waiting();
    Slide slide;
    const uint64_t* columns[kMostKeys];
    for (size_t k = 0; k < keys_; ++k) columns[k] = waiting_[k].data();
    build(slide, columns, nullptr, sealed_, n);
    if (slides_.size() == slides_.capacity()) slides_.reserve(slides_.size() * 2 + 4);
    slides_.push_back(std::move(slide));
    for (auto& column : waiting_) column.drop_front(n);
    sealed_ += static_cast<int64_t>(n);
    try {
      while (merge()) {
      }
    } catch (const std::bad_alloc&) {
      // To have fewer slides is faster, and these are right as they are.
    }
  }

  // Makes one of the newest slides, if enough of them are of about one size.
  bool merge() {
    const size_t most = std::max(fan_ * seal_, rows_.size() / 4);
    size_t count = 0, sum = 0;
    const size_t newest = slides_.back().size;
    while (count < slides_.size()) {
      const size_t next = slides_[slides_.size() - 1 - count].size;
      if (next >= newest * fan_ || sum + next > most) break;
      sum += next;
      ++count;
    }
    if (count < fan_) return false;
    const size_t first = slides_.size() - count;
    // Rows that have expired stay behind, if they are the oldest.
    const int64_t from = std::max(slides_[first].first, rows_.begin());
    const auto live = static_cast<size_t>(sealed_ - from);
    Array<uint64_t> keys(keys_ * live);
    Array<uint32_t> offset(live);
    const uint64_t* columns[kMostKeys];
    size_t at = 0;
    for (size_t s = first; s < slides_.size(); ++s) {
      const Slide& slide = slides_[s];
      for (size_t i = 0; i < slide.size; ++i) {
        const int64_t position = slide.first + slide.offset[i];
        if (position < from) continue;
        for (size_t k = 0; k < keys_; ++k) keys[k * live + at] = slide.column(k)[i];
        offset[at++] = static_cast<uint32_t>(position - from);
      }
    }
    for (size_t k = 0; k < keys_; ++k) columns[k] = keys.get() + k * live;
    Slide merged;
    build(merged, columns, offset.get(), from, live);
    slides_.erase(slides_.begin() + static_cast<std::ptrdiff_t>(first) + 1, slides_.end());
    slides_[first] = std::move(merged);
    return true;
  }

  // Builds a slide of n rows; `offset` says how far each lies behind `first`; without, they stand in their order.
  void build(Slide& slide, const uint64_t* const* columns, const uint32_t* offset, int64_t first, size_t n) {
    const size_t sorted_keys = std::min(keys_, kSortedKeys);
    Array<Entry> entries(n), scratch(n);
    Vector<uint32_t> cuts = {0, static_cast<uint32_t>(n)};
    for (size_t i = 0; i < n; ++i) entries[i].row = static_cast<int64_t>(i);
    for (size_t k = 0; k < sorted_keys; ++k) {
      Vector<uint32_t> finer = {0};
      for (size_t c = 0; c + 1 < cuts.size(); ++c) {
        const size_t begin = cuts[c], size = cuts[c + 1] - begin;
        for (size_t i = begin; i < begin + size; ++i) entries[i].key = columns[k][entries[i].row];
        sort_by_key(entries.get() + begin, scratch.get() + begin, size);
        const size_t parts = k + 1 < sorted_keys ? parts_of(size, sorted_keys - k - 1) : sorted_keys == 1 ? runs_of(size) : 1;
        for (size_t part = 1; part <= parts; ++part) finer.push_back(static_cast<uint32_t>(begin + size * part / parts));
      }
      cuts = std::move(finer);
    }
    slide.first = first;
    slide.size = n;
    slide.keys = Array<uint64_t>(keys_ * n);
    slide.offset = Array<uint32_t>(n);
    slide.starts = Array<uint32_t>(cuts.size());
    std::copy(cuts.begin(), cuts.end(), slide.starts.get());
    slide.zones = Zones(keys_, slide.runs());
    for (size_t i = 0; i < n; ++i) {
      const auto from = static_cast<size_t>(entries[i].row);
      slide.offset[i] = offset ? offset[from] : static_cast<uint32_t>(from);
    }
    for (size_t k = 0; k < keys_; ++k) {
      uint64_t* column = slide.column(k);
      for (size_t i = 0; i < n; ++i) column[i] = columns[k][entries[i].row];
      for (size_t r = 0; r < slide.runs(); ++r) {
        uint64_t least = kGreatest, greatest = 0;
        for (size_t i = slide.starts[r]; i < slide.starts[r + 1]; ++i) {
          least = std::min(least, column[i]);
          greatest = std::max(greatest, column[i]);
        }
        slide.zones.least[k * slide.zones.stride + r] = least;
        slide.zones.greatest[k * slide.zones.stride + r] = greatest;
      }
    }
    sorted_ += n;
  }

  size_t runs_of(size_t rows) const { return std::max<size_t>(1, (rows + run_ / 2) / run_); }
  // In how many parts rows are cut by one key, when so many more keys are sorted by afterwards.
  size_t parts_of(size_t rows, size_t more) const {
    const auto runs = static_cast<double>(runs_of(rows));
    return std::max<size_t>(1, static_cast<size_t>(std::lround(std::pow(runs, 1.0 / static_cast<double>(more)))));
  }

  const size_t keys_, seal_, run_, fan_;
  RowLog rows_;
  Vector<Slide> slides_;
  Vector<RowVector<uint64_t>> waiting_;  // of each kind, from position sealed_ on
  int64_t sealed_ = 0;
  int64_t bound_ = INT64_MIN;
  uint64_t sorted_ = 0;  // rows, each time that they were
  RowSorter sorter_;
  RowBits bits_;
  Vector<uint32_t> runs_;  // of one slide, and
  Vector<Met> met_;        // of all, that a probe meets
};

}  // namespace dovetail
