// Ranges: a chain of trees, each for a stretch of the window, dropped whole when its rows have expired.
//
// Problem: to delete a row from a tree costs as much as to insert it, although rows expire in the order in which they
// came. Idea: the window is cut by arrival into `length` parts with a tree each. Only the newest, the active one, takes
// insertions; when it holds its share of the window it is closed and another is begun. A part goes when its last row
// has expired. A probe looks into all parts, and tells the expired rows of the oldest one by their row.
// `chained` leaves a closed part as it is, a B+-tree; `ib_chained` makes it one that never changes, which is
// smaller and is looked into faster.
//
// The share: while the oldest part expires, the active one takes its place, so the length - 1 closed parts hold a
// window together, and a part is closed when it holds 1 / (length - 1) of the rows that are live. (With a length-th of
// the window, as the idea is often told, rows would be lost at each turn.) Nothing needs to know how long the window
// is. There are never more than `length` parts: while a window grows, two neighbours that are together no more than
// one share become one part, and until there are such, the active part takes what comes.
//
// Invariants: parts hold consecutive stretches of positions, the active one the newest, each position once; the oldest
// part holds a live row; closed parts are fewer than `length`. Where a window shrinks within its parts, so that fewer
// than one in four of the rows held are live, these are put into a part of their own.
// Cost: insert O(log of a part), probe O(length * log of a part), expire O(1); closing a part is free for `chained` and
// O(its rows) at once for `ib_chained`, some 2 ns a row. Bytes a row held: some 20 in a B+-tree, 12.5 in an immutable
// one; held are between one window and length / (length - 1) of them.
// Where it loses: every part adds a descent to every probe, so two or three parts are best; and the pause of closing
// is the longest where they are few.
//
// The paper closes a part at a size that it knows from the window's; here the size follows the live rows, as windows
// of time have no fixed length. A part is closed between two insertions only, so it can be too large by one batch.
#pragma once

#include <algorithm>
#include <type_traits>

#include "bplus.hpp"
#include "immutable_tree.hpp"

namespace dovetail {

template <typename ClosedTree>
class ChainedStore final : public Store {
 public:
  static std::vector<Parameter> parameters() {
    return {{"length", kImmutable ? 3.0 : 2.0, 2, kMostParts, "parts of the chain, the active one included"},
            {"fanout", 62, BPlusTree::kLeastFanout, BPlusTree::kMostFanout, "entries of a node of a B+-tree at most"},
            {"least", 1024, 1, 1 << 30, "rows below which no part is closed"}};
  }
  explicit ChainedStore(const Settings& settings)
      : length_(settings.count("length")),
        fanout_(settings.count("fanout")),
        least_(settings.count("least")),
        active_(fanout_) {}

  void insert(const uint64_t* keys, const int64_t* rows, size_t n) override {
    if (n == 0) return;
    insert_positions(rows_, held(), rows, n, [&](uint32_t position) { active_.insert(keys, position, n); });
    if (active_.size() >= share()) try_close();
    if (rows[0] < bound_) expire(bound_);
  }

  // As a window that has just been filled: length - 1 closed parts of the same size, each sorted by itself.
  void build(const uint64_t* keys, const int64_t* rows, size_t n) override {
    const size_t parts = std::min(length_ - 1, n / least_);
    if (parts == 0) return insert(keys, rows, n);
    insert_positions(rows_, 0, rows, n, [&](uint32_t position) {
      const int64_t end = rows_.end() - static_cast<int64_t>(n);
      Vector<Part> closed;
      closed.reserve(length_ - 1);
      Array<Entry> entries((n + parts - 1) / parts), scratch(entries.size());
      for (size_t i = 0, from = 0, to; i < parts; ++i, from = to) {
        to = n * (i + 1) / parts;
        for (size_t j = from; j < to; ++j) entries[j - from] = {keys[j], static_cast<int64_t>(position + j)};
        sort_by_key(entries.get(), scratch.get(), to - from);
        closed.push_back({closed_of(entries.get(), to - from), end + static_cast<int64_t>(to)});
      }
      closed_ = std::move(closed);
    });
    if (rows[0] < bound_) expire(bound_);
  }

  size_t probe(const Probes& probes, size_t begin, size_t end, size_t limit, Pairs& out) override {
    uint32_t leaves[kMostParts][kGroup];
    return probe_positions(
        rows_, sorter_, probes, begin, end, limit, out,
        [&](const uint64_t* lo, size_t n) {
          for (size_t i = 0; i < closed_.size(); ++i) closed_[i].tree.descend(lo, n, leaves[i]);
          active_.descend(lo, n, leaves[closed_.size()]);
        },
        [&](size_t g, uint64_t lo, uint64_t hi, PositionFilter& filter) {
          for (size_t i = 0; i < closed_.size(); ++i) closed_[i].tree.scan(leaves[i][g], lo, hi, filter);
          active_.scan(leaves[closed_.size()][g], lo, hi, filter);
        });
  }

  void expire(int64_t before_row) override {
    bound_ = std::max(bound_, before_row);
    rows_.expire(bound_);
    size_t gone = 0;
    while (gone < closed_.size() && closed_[gone].end <= rows_.begin()) ++gone;
    closed_.erase(closed_.begin(), closed_.begin() + static_cast<std::ptrdiff_t>(gone));
    if (size() == 0) {
      active_ = BPlusTree(fanout_);
    } else if (held() > 4 * (size() + least_)) {
      try_gather();
    }
  }

  size_t size() const override { return rows_.size(); }
  size_t nbytes() const override {
    size_t bytes = active_.nbytes() + rows_.nbytes() + sorter_.nbytes() + closed_.capacity() * sizeof(Part);
    for (const Part& part : closed_) bytes += part.tree.nbytes();
    return bytes;
  }
  Statistics statistics() const override {
    return {{"parts", static_cast<double>(closed_.size() + 1)},
            {"active", static_cast<double>(active_.size())},
            {"held", static_cast<double>(held())},
            {"depth", static_cast<double>(active_.depth())},
            {"closed", static_cast<double>(closings_)}};
  }

  void check() const override {
    rows_.check();
    active_.check();
    demand(closed_.size() < length_, "chained: no more parts than its length");
    Vector<bool> seen(held());
    const int64_t first = rows_.end() - static_cast<int64_t>(held());
    int64_t end = first;
    const auto see = [&](int64_t from, int64_t to) {
      return [&seen, first, from, to](uint64_t, uint32_t position) {
        const int64_t at = first + static_cast<uint32_t>(position - static_cast<uint32_t>(first));
        demand(at >= from && at < to && !seen[static_cast<size_t>(at - first)],
               "chained: a part holds each position of its stretch once");
        seen[static_cast<size_t>(at - first)] = true;
      };
    };
    for (const Part& part : closed_) {
      part.tree.check();
      part.tree.each(see(end, part.end));
      end += static_cast<int64_t>(part.tree.size());
      demand(end == part.end && end > rows_.begin(), "chained: parts follow one another, and each holds a live row");
    }
    active_.each(see(end, rows_.end()));
  }

 private:
  static constexpr bool kImmutable = std::is_same_v<ClosedTree, ImmutableTree>;
  static constexpr size_t kMostParts = 64;

  struct Part {
    ClosedTree tree;
    int64_t end;  // one past its last position
  };

  // Rows in all trees, expired ones of the oldest included.
  size_t held() const {
    size_t rows = active_.size();
    for (const Part& part : closed_) rows += part.tree.size();
    return rows;
  }

  size_t share() const { return std::max(least_, size() / (length_ - 1)); }

  // Where there is no place or no memory for another closed part, the active one takes more rows: nothing is wrong.
  void try_close() noexcept {
    try {
      closed_.reserve(length_ - 1);
      if (closed_.size() + 1 == length_) make_place();
      if (closed_.size() + 1 == length_) return;
      closed_.push_back({closed_of(std::move(active_)), rows_.end()});
      active_ = BPlusTree(fanout_);
      ++closings_;
    } catch (const std::bad_alloc&) {
    }
  }

  // When a window has grown, two neighbours that hold no more than one part should become one. In a window that does
  // not grow there are none such: the oldest part expires in time.
  void make_place() {
    for (size_t i = 0; i + 1 < closed_.size(); ++i) {
      const ClosedTree &older = closed_[i].tree, &newer = closed_[i + 1].tree;
      if (older.size() + newer.size() > share()) continue;
      Array<Entry> entries(older.size() + newer.size()), merged(entries.size());
      Entry* const middle = copy(older, entries.get());
      Entry* const end = copy(newer, middle);
      std::merge(entries.get(), middle, middle, end, merged.get(),
                 [](const Entry& a, const Entry& b) { return a.key < b.key; });
      closed_[i + 1].tree = closed_of(merged.get(), merged.size());
      closed_.erase(closed_.begin() + static_cast<std::ptrdiff_t>(i));
      return;
    }
  }

  // Puts what is live into one active tree, when a window has shrunk within its parts.
  void try_gather() noexcept {
    try {
      Array<Entry> entries(held()), scratch(held());
      Entry* end = entries.get();
      for (const Part& part : closed_) end = copy(part.tree, end);
      end = copy(active_, end);
      const auto first = static_cast<uint32_t>(rows_.begin());
      const size_t live = size();
      end = std::remove_if(entries.get(), end, [&](const Entry& entry) {
        return static_cast<uint32_t>(entry.row) - first >= live;
      });
      sort_by_key(entries.get(), scratch.get(), live);
      BPlusTree tree(fanout_);
      tree.build(entries.get(), live);
      active_ = std::move(tree);
      closed_.clear();
    } catch (const std::bad_alloc&) {
    }
  }

  // Entries of a tree, whose rows are positions; returns where they end.
  template <typename Tree>
  static Entry* copy(const Tree& tree, Entry* to) {
    tree.each([&](uint64_t key, uint32_t position) { *to++ = {key, position}; });
    return to;
  }

  ClosedTree closed_of(const Entry* entries, size_t n) const {
    if constexpr (kImmutable) {
      return ClosedTree(n, [&](uint64_t* keys, uint32_t* positions) {
        for (size_t i = 0; i < n; ++i) {
          keys[i] = entries[i].key;
          positions[i] = static_cast<uint32_t>(entries[i].row);
        }
      });
    } else {
      ClosedTree tree(fanout_);
      tree.build(entries, n);
      return tree;
    }
  }

  ClosedTree closed_of(BPlusTree&& tree) const {
    if constexpr (kImmutable) {
      return ClosedTree(tree.size(), [&](uint64_t* keys, uint32_t* positions) {
        tree.each([&](uint64_t key, uint32_t position) {
          *keys++ = key;
          *positions++ = position;
        });
      });
    } else {
      return std::move(tree);
    }
  }

  const size_t length_, fanout_, least_;
  Vector<Part> closed_;  // the oldest first
  BPlusTree active_;
  RowLog rows_;
  RowSorter sorter_;
  int64_t bound_ = INT64_MIN;
  uint64_t closings_ = 0;
};

}  // namespace dovetail
