// Several inequalities as SPO-Join finds them: slides whose sorted keys are tied together by a permutation, behind a
// mutable part of one B+-tree for each key.
//
// Problem: each of two inequalities alone holds for many rows of a window. Idea: of a sealed slide every key's values
// stand sorted, the rows of the first key beside them, and for the second key a *permutation*: where the row of its
// j-th value stands among the values of the first. A probe finds both ranges by searching, sets a bit for each row of
// the second range at the place that the permutation names, and reads the bits of the first range: what is set lies in
// both. No row is looked up, and nothing is compared row by row but a third key and those behind it. The newest rows
// are in B+-trees, one for each key; there the finds of each are bits by row, and the words of all are ANDed (with
// `hash` = 1: a set of the rows of the first, in which those of the next are looked up, the paper's other way).
// When a slide's worth of rows is there, its arrays are read off the trees in one pass over each.
//
// Invariants: slides and then the mutable part hold the live positions without a gap; a slide's permutation names every
// place once, and the place's row is that of the value; all bits are zero between probes.
// Cost: for a probe two searches a slide and key, a scattered write for each row of the second range, a pass over the
// bits of the first, and what is found put into the order of rows. Storing: an insertion in each tree. 20 bytes a row
// for two keys; 8 more for each further one.
// Where it loses: ranges that are wide each, with little in both (anti-correlated keys): every row of the second range
// is a write. zone_map passes over such rows by the thousand.
//
// Deviations from the paper, which loses pairs as printed: positions in a slide come from searching *its own* sorted
// keys, first or last of equal ones as the operator asks; offset arrays, positions of the other stream's keys found by
// merging, would hold for one pair of slides that were sealed together, and are left out. Ids count from the slide's
// first row. Of few bits only those that were set are cleared. Rows are dropped by bounds on rows, whole slides when
// their last row is. A slide may be a part of the window's slide (`slides`), and
// probes may go over the slides with several threads (`threads`).
#pragma once

#include <algorithm>
#include <exception>
#include <thread>
#include <unordered_set>

#include "box_store.hpp"
#include "bplus.hpp"
#include "positions.hpp"
#include "sorted_keys.hpp"

namespace dovetail {

class PoJoinStore final : public BoxStore {
 public:
  static std::vector<Parameter> parameters() {
    return {{"slides", 10, 1, 1 << 20, "parts that a window is sealed in, about"},
            {"least", 1024, 1, kMostPositions, "rows of a slide, at least"},
            {"fanout", 64, BPlusTree::kLeastFanout, BPlusTree::kMostFanout, "entries of a node of the mutable part"},
            {"hash", 0, 0, 1, "1: intersect the mutable part by a set of rows instead of bits"},
            {"threads", 1, 1, 256, "threads that go over the slides"}};
  }
  PoJoinStore(const Settings& settings, size_t keys)
      : keys_(keys),
        slides_wanted_(settings.count("slides")),
        least_(settings.count("least")),
        fanout_(settings.count("fanout")),
        by_hash_(settings.count("hash") != 0),
        scratch_(settings.count("threads")) {
    renew_trees();
  }

  void insert(const uint64_t* const* keys, const int64_t* rows, size_t n) override {
    if (n == 0) return;
    const size_t expired = static_cast<size_t>(rows_.begin() - (slides_.empty() ? sealed_ : slides_[0].first));
    insert_positions(rows_, size() + expired, rows, n, [&](uint32_t position) {
      size_t grown = 0;
      try {
        for (; grown < keys_; ++grown) trees_[grown].insert(keys[grown], position, n);
        if (mutable_rows() >= std::max(least_, rows_.size() / slides_wanted_)) seal();
      } catch (...) {
        for (; grown; --grown) trees_[grown - 1].take_back(keys[grown - 1], n);
        throw;
      }
    });
    if (rows[0] < bound_) expire(bound_);
  }

  size_t probe(const Boxes& probes, size_t begin, size_t end, size_t limit, Pairs& out) override {
    const size_t threads = std::min(scratch_.size(), slides_.size());
    if (threads > 1 && end - begin > 1) return probe_with(threads, probes, begin, end, limit, out);
    for (size_t p = begin; p < end; ++p) {
      if (probes.empty(p)) continue;
      const Asked asked(probes, p, rows_);
      size_t found = 0;
      for (const Slide& slide : slides_) found = find_in(slide, asked, scratch_[0], found, out.row);
      found = find_mutable(asked, found, out.row);
      if (finish(static_cast<int64_t>(p), found, out) && out.size() >= limit) return p + 1;
    }
    return end;
  }

  void expire(int64_t before_row) override {
    bound_ = std::max(bound_, before_row);
    const int64_t begin = rows_.expire(bound_);
    size_t gone = 0;
    while (gone < slides_.size() && slides_[gone].end() <= begin) ++gone;
    slides_.erase(slides_.begin(), slides_.begin() + static_cast<std::ptrdiff_t>(gone));
    if (begin <= sealed_) return;
    // Trees are not told of rows that expire: when most of them have, they are built anew.
    const size_t live = static_cast<size_t>(rows_.end() - begin);
    if (static_cast<size_t>(begin - sealed_) < live + least_ && live > 0) return;
    try {
      drop_expired();
    } catch (const std::bad_alloc&) {
      // To build them takes memory before it gives any back; there is none, so these stay.
    }
  }

  size_t size() const override { return rows_.size(); }
  size_t nbytes() const override {
    size_t bytes = rows_.nbytes() + found_.capacity() * sizeof(found_[0]) + scratch_.capacity() * sizeof(Scratch) +
                   slides_.capacity() * sizeof(Slide) + trees_.capacity() * sizeof(BPlusTree) + finds_.nbytes();
    for (const Scratch& scratch : scratch_) bytes += scratch.nbytes();
    for (const BPlusTree& tree : trees_) bytes += tree.nbytes();
    for (const Slide& slide : slides_) bytes += slide.nbytes();
    for (const Found& found : found_) bytes += found.rows.nbytes();
    return bytes;
  }
  Statistics statistics() const override {
    return {{"slides", static_cast<double>(slides_.size())},
            {"mutable", static_cast<double>(mutable_rows())},
            {"seals", static_cast<double>(seals_)}};
  }

  void check() const override {
    rows_.check();
    int64_t at = slides_.empty() ? sealed_ : slides_.front().first;
    for (const Slide& slide : slides_) {
      demand(slide.first == at, "po_join: slides follow each other");
      demand(slide.end() > rows_.begin(), "po_join: a slide whose rows have all expired is dropped");
      slide.check(keys_);
      at = slide.end();
    }
    demand(at == sealed_, "po_join: behind the slides stands the mutable part");
    for (const BPlusTree& tree : trees_) {
      tree.check();
      demand(tree.size() == mutable_rows(), "po_join: every key of each row that is not sealed is in its tree");
    }
    for (const Scratch& scratch : scratch_) {
      for (const auto* bits : {&scratch.bits, &scratch.all}) {
        demand(std::all_of(bits->begin(), bits->end(), [](uint64_t word) { return word == 0; }),
               "po_join: no bit is left set");
      }
    }
  }

 private:
  static constexpr size_t kAhead = 64;   // probes that threads answer before their finds are put together
  static constexpr size_t kMargin = 16;  // places behind what is found that vector code may write to

  struct Slide {
    int64_t first = 0;  // position of its oldest row
    size_t size = 0;
    SortedKeys lead{0};            // the first key's values
    Array<uint32_t> id;            // of the row of each, counted from the slide's first
    SortedKeys second{0};          // the second key's values
    Array<uint32_t> permutation;   // where the row of each stands in `lead`
    Array<uint64_t> further;       // of each further key the values by id

    int64_t end() const { return first + static_cast<int64_t>(size); }
    size_t nbytes() const {
      return lead.nbytes() + id.nbytes() + second.nbytes() + permutation.nbytes() + further.nbytes();
    }
    void check(size_t kinds) const {
      lead.check();
      Vector<uint8_t> seen(size, 0);
      for (size_t i = 0; i < size; ++i) {
        demand(id[i] < size && !seen[id[i]], "po_join: a slide has each of its rows once");
        seen[id[i]] = 1;
      }
      if (kinds == 1) return;
      second.check();
      std::fill(seen.begin(), seen.end(), 0);
      for (size_t j = 0; j < size; ++j) {
        demand(permutation[j] < size && !seen[permutation[j]], "po_join: a permutation names each place once");
        seen[permutation[j]] = 1;
      }
    }
  };

  // One probe, its rows as positions.
  struct Asked {
    Box box;
    int64_t row_lo, row_hi, from, to;
    bool ordered;
    Asked(const Boxes& probes, size_t p, const RowLog& rows)
        : box(probes, p),
          row_lo(probes.row_lo[p]),
          row_hi(probes.row_hi[p]),
          from(rows.position_of(row_lo)),
          to(rows.position_of(row_hi, from)),
          ordered(probes.ordered) {}
  };

  // What a thread needs to look through a slide.
  struct Scratch {
    Vector<uint64_t> bits, all;
    RowSorter sorter;
    size_t nbytes() const { return (bits.capacity() + all.capacity()) * sizeof(uint64_t) + sorter.nbytes(); }
  };

  // Leaves none of n bits set, whatever happens.
  struct Cleared {
    Scratch& scratch;
    size_t n;
    ~Cleared() {
      for (auto* bits : {&scratch.all, &scratch.bits}) {
        std::fill_n(bits->begin(), std::min(bits->size(), n / 64 + 1), 0);
      }
    }
  };

  // What was found in one slide for some probes, one after the other.
  struct Found {
    Growing<int64_t> rows;
    size_t upto[kAhead];  // where the finds of each probe end
  };

  size_t mutable_rows() const { return static_cast<size_t>(rows_.end() - sealed_); }

  void renew_trees() {
    Vector<BPlusTree> trees;
    trees.reserve(keys_);
    for (size_t k = 0; k < keys_; ++k) trees.emplace_back(fanout_);
    trees_ = std::move(trees);
  }

  static std::pair<size_t, size_t> places(const SortedKeys& keys, uint64_t lo, uint64_t hi) {
    const uint64_t ends[2] = {lo, hi + 1};
    uint32_t found[2] = {0, static_cast<uint32_t>(keys.size())};
    keys.find(ends, hi == kGreatest ? 1 : 2, found);
    return {found[0], found[1]};
  }

  static void room(Vector<uint64_t>& bits, size_t n) {
    if (bits.size() < n / 64 + 1) bits.resize(n / 64 + 1, 0);
  }

  // Finds the rows of one slide, as positions behind `found` others; returns how many they are then.
  size_t find_in(const Slide& slide, const Asked& asked, Scratch& scratch, size_t found, Growing<int64_t>& out) const {
    if (slide.first >= asked.to || slide.end() <= asked.from) return found;
    const Box& box = asked.box;
    const auto [begin, end] = places(slide.lead, box.lo[0], box.hi[0]);
    if (begin >= end) return found;
    const size_t before = found;
    if (keys_ == 1) {
      int64_t* place = out.reserve(found + (end - begin) + kMargin);
      for (size_t i = begin; i < end; ++i) place[found++] = slide.first + slide.id[i];
    } else {
      const auto [from, to] = places(slide.second, box.lo[1], box.hi[1]);
      if (from >= to) return found;
      const size_t most = std::min(end - begin, to - from) + kMargin;
      int64_t* place = out.reserve(found + most);
      room(scratch.bits, slide.size);
      uint64_t* const bits = scratch.bits.data();
      const uint32_t* const permutation = slide.permutation.get();
      for (size_t j = from; j < to; ++j) bits[permutation[j] / 64] |= uint64_t{1} << (permutation[j] % 64);
      const size_t word = begin / 64, last = (end - 1) / 64;
      bits[word] &= ~uint64_t{0} << (begin % 64);
      bits[last] &= ~uint64_t{0} >> (63 - (end - 1) % 64);
      const auto lead = static_cast<int64_t>(word * 64);
      const size_t inside = take_bits(bits + word, nullptr, last - word + 1, lead, place + found, most);
      for (size_t i = found; i < found + inside; ++i) place[i] = slide.first + slide.id[static_cast<size_t>(place[i])];
      found += inside;
      // Where many are set it is quicker to clear all there are.
      if (to - from > slide.size / 16) {
        std::fill(bits, bits + slide.size / 64 + 1, 0);
      } else {
        for (size_t j = from; j < to; ++j) bits[permutation[j] / 64] = 0;
      }
    }
    int64_t* const mine = out.data() + out.size();
    const bool whole = asked.from <= slide.first && slide.end() <= asked.to;
    if (keys_ > 2 || !whole) {
      size_t kept = before;
      for (size_t i = before; i < found; ++i) {
        const int64_t position = mine[i];
        bool inside = position >= asked.from && position < asked.to;
        for (size_t k = 2; k < keys_; ++k) {
          const uint64_t key = slide.further[(k - 2) * slide.size + static_cast<size_t>(position - slide.first)];
          inside &= key >= box.lo[k] && key <= box.hi[k];
        }
        mine[kept] = position;
        kept += inside;
      }
      found = kept;
    }
    if (asked.ordered) scratch.sorter.sort(mine + before, found - before);
    return found;
  }

  // Finds the rows that are not sealed.
  size_t find_mutable(const Asked& asked, size_t found, Growing<int64_t>& out) {
    if (sealed_ >= asked.to || rows_.end() <= asked.from || trees_[0].size() == 0) return found;
    const size_t n = mutable_rows();
    // A filter gives rows, if these follow each other, and else positions: as numbers from 0 on they are the same.
    const int64_t zero = rows_.consecutive() ? rows_.row_at(sealed_) : sealed_;
    Scratch& scratch = scratch_[0];
    const Cleared cleared{scratch, n};
    std::unordered_set<int64_t, std::hash<int64_t>, std::equal_to<int64_t>, Allocator<int64_t>> set;
    for (size_t k = 0; k < keys_; ++k) {
      uint32_t leaf;
      trees_[k].descend(&asked.box.lo[k], 1, &leaf);
      PositionFilter filter(rows_, asked.row_lo, asked.row_hi, finds_);
      trees_[k].scan(leaf, asked.box.lo[k], asked.box.hi[k], filter);
      const int64_t* finds = finds_.data();
      if (by_hash_) {
        decltype(set) both;
        for (size_t i = 0; i < filter.found(); ++i) {
          if (k == 0 || set.count(finds[i] - zero)) both.insert(finds[i] - zero);
        }
        set.swap(both);
        if (set.empty()) return found;
        continue;
      }
      Vector<uint64_t>& bits = k == 0 ? scratch.all : scratch.bits;
      room(scratch.all, n);
      room(scratch.bits, n);
      for (size_t i = 0; i < filter.found(); ++i) {
        const auto at = static_cast<uint64_t>(finds[i] - zero);
        bits[at / 64] |= uint64_t{1} << (at % 64);
      }
      if (k == 0) continue;
      for (size_t word = 0; word <= n / 64; ++word) scratch.all[word] &= std::exchange(scratch.bits[word], 0);
    }
    const size_t before = found;
    if (by_hash_) {
      int64_t* place = out.reserve(found + set.size() + kMargin);
      for (const int64_t at : set) place[found++] = sealed_ + at;
      if (asked.ordered) scratch.sorter.sort(place + before, found - before);
      return found;
    }
    int64_t* place = out.reserve(found + n + kMargin) + found;
    return found + take_bits(scratch.all.data(), nullptr, n / 64 + 1, sealed_, place, n + kMargin);
  }

  // Makes rows of the positions that one probe has found, and claims them.
  bool finish(int64_t p, size_t found, Pairs& out) const {
    if (found == 0) return false;
    rows_.to_rows(out.row.data() + out.row.size(), found);
    out.claim(p, found);
    return true;
  }

  // The same with threads, of which each goes over some of the slides for some probes at a time: as many as should find
  // what is still asked for, by what the last ones have found, as what is found beyond that is found in vain.
  size_t probe_with(size_t threads, const Boxes& probes, size_t begin, size_t end, size_t limit, Pairs& out) {
    if (found_.size() < slides_.size()) found_.resize(slides_.size());
    for (size_t at = begin, upto; at < end; at = upto) {
      const size_t wanted = std::max<size_t>(1, (limit - std::min(limit, out.size())) / each_found_);
      upto = at + std::min({kAhead, end - at, wanted});
      Vector<std::exception_ptr> failed(threads);
      const auto look = [&](size_t thread) {
        try {
          for (size_t s = thread; s < slides_.size(); s += threads) {
            found_[s].rows.clear();
            for (size_t p = at; p < upto; ++p) {
              if (!probes.empty(p)) {
                found_[s].rows.advance(
                    find_in(slides_[s], Asked(probes, p, rows_), scratch_[thread], 0, found_[s].rows));
              }
              found_[s].upto[p - at] = found_[s].rows.size();
            }
          }
        } catch (...) {
          failed[thread] = std::current_exception();
        }
      };
      {
        Team team(threads - 1, look);
        look(0);
      }
      for (const auto& failure : failed) {
        if (failure) std::rethrow_exception(failure);
      }
      for (size_t p = at; p < upto; ++p) {
        if (probes.empty(p)) continue;
        size_t found = 0;
        for (size_t s = 0; s < slides_.size(); ++s) {
          const size_t from = p == at ? 0 : found_[s].upto[p - at - 1], n = found_[s].upto[p - at] - from;
          std::copy_n(found_[s].rows.data() + from, n, out.row.reserve(found + n + kMargin) + found);
          found += n;
        }
        found = find_mutable(Asked(probes, p, rows_), found, out.row);
        each_found_ = std::max<size_t>(1, each_found_ - each_found_ / 8 + found / 8);
        if (finish(static_cast<int64_t>(p), found, out) && out.size() >= limit) return p + 1;
      }
    }
    return end;
  }

  // Threads that run to their end before whoever started them goes on, whatever happens.
  class Team {
   public:
    template <typename Work>
    Team(size_t others, const Work& work) {
      try {
        for (size_t t = 1; t <= others; ++t) threads_.emplace_back(work, t);
      } catch (...) {
        join();
        throw;
      }
    }
    ~Team() { join(); }
    Team(const Team&) = delete;

   private:
    void join() {
      for (auto& thread : threads_) thread.join();
      threads_.clear();
    }
    std::vector<std::thread> threads_;
  };

  // Makes a slide of the mutable part: one pass over each tree. Strong guarantee.
  void seal() {
    Slide slide;
    slide.first = std::max(sealed_, rows_.begin());
    const auto n = static_cast<size_t>(rows_.end() - slide.first);
    const auto first = static_cast<uint32_t>(slide.first);
    slide.size = n;
    slide.lead = SortedKeys(n);
    slide.id = Array<uint32_t>(n);
    Array<uint32_t> rank(n);
    size_t at = 0;
    // What is below the first has expired: as a distance it is more than there are.
    trees_[0].each([&](uint64_t key, uint32_t position) {
      const uint32_t id = position - first;
      if (id >= n) return;
      slide.lead.data()[at] = key;
      slide.id[at] = id;
      rank[id] = static_cast<uint32_t>(at++);
    });
    slide.lead.complete();
    if (keys_ > 1) {
      slide.second = SortedKeys(n);
      slide.permutation = Array<uint32_t>(n);
      at = 0;
      trees_[1].each([&](uint64_t key, uint32_t position) {
        const uint32_t id = position - first;
        if (id >= n) return;
        slide.second.data()[at] = key;
        slide.permutation[at++] = rank[id];
      });
      slide.second.complete();
    }
    if (keys_ > 2) slide.further = Array<uint64_t>((keys_ - 2) * n);
    for (size_t k = 2; k < keys_; ++k) {
      trees_[k].each([&](uint64_t key, uint32_t position) {
        const uint32_t id = position - first;
        if (id < n) slide.further[(k - 2) * n + id] = key;
      });
    }
    if (slides_.size() == slides_.capacity()) slides_.reserve(slides_.size() * 2 + 4);
    renew_trees();
    slides_.push_back(std::move(slide));
    sealed_ = rows_.end();
    ++seals_;
  }

  // Builds the trees anew, of the live rows. Strong guarantee.
  void drop_expired() {
    const int64_t begin = rows_.begin();
    const auto n = static_cast<size_t>(rows_.end() - begin);
    const auto first = static_cast<uint32_t>(begin);
    Vector<BPlusTree> trees;
    trees.reserve(keys_);
    Array<Entry> entries(n);
    for (size_t k = 0; k < keys_; ++k) {
      size_t at = 0;
      trees_[k].each([&](uint64_t key, uint32_t position) {
        if (position - first < n) entries[at++] = {key, static_cast<int64_t>(position)};
      });
      trees.emplace_back(fanout_);
      trees.back().build(entries.get(), n);
    }
    trees_ = std::move(trees);
    sealed_ = begin;
  }

  const size_t keys_, slides_wanted_, least_, fanout_;
  const bool by_hash_;
  RowLog rows_;
  Vector<Slide> slides_;
  Vector<BPlusTree> trees_;  // of each key, of the rows from position sealed_ on
  int64_t sealed_ = 0;
  int64_t bound_ = INT64_MIN;
  uint64_t seals_ = 0;
  Vector<Scratch> scratch_;  // of each thread
  Vector<Found> found_;      // of each slide, with threads
  size_t each_found_ = 1;    // by a probe, about: of the last ones more than of those before
  Growing<int64_t> finds_;
};

}  // namespace dovetail
