// Ranges: an immutable tree with a small growing one for what came last (IM-Tree).
//
// Problem: in a window every row is inserted into the index and deleted again, and in a tree each of these is a search
// of its own. Idea: new rows go into an insertion part (T_I), a B+-tree. When it has grown to a share m of the window,
// it is merged with the search part (T_S, see immutable_tree.hpp) into a new search part in one pass, which also drops
// what has expired. Nothing is ever deleted, and what is large is never changed. A probe looks into both parts and
// tells expired rows by their position (see positions.hpp). Rows that would bring the insertion part to its limit are
// sorted and merged at once instead of being inserted first, so large batches never see the insertion part.
//
// Invariants: each live row stands once, in one of the parts; rows of the insertion part are newer than those of the
// search part; after an expiry at most as many rows are dead as live, and twice `least`, unless there was no memory
// for a merge; see also the parts'.
// Cost, for w rows: insert O(log(m w)) and 1 / m entries of copying; probe two searches, O(log w + rows in the key
// range); expire O(1). Bytes a row: 12.5 in the search part, and up to 25 for a share m; at a merge the search part is
// there twice for a moment.
// Standard values: m = 1/16 measured best, or within the noise of it, for windows of 2^17 and 2^20 rows and batches of
// 64 and 32,768; a fan-out of 30, as 14 is a little faster here and a tenth slower with sub-indexes.
// Where it loses: keys that only ascend (a B-tree appends, while each merge copies the whole window: half to nine
// tenths of its speed), and single insertions: one in m w of them waits for a merge, 2 ns for each row of the window.
// Deviations from the paper: expired rows are told by position, in both parts, and not by a flag in the window; a
// store does not know w, so the live rows stand for it, with a least number of rows so that a small window does not
// merge at each insertion; leaves of the insertion part are not sorted (with sub-indexes of some 16 rows this is about
// a tenth faster in all, with one tree it is the same). The insertion part is an ordinary B+-tree, as the cost formula
// of the paper has it, not the kind that its text names.
#pragma once

#include <algorithm>

#include "immutable_tree.hpp"
#include "insertion_tree.hpp"

namespace dovetail {

// Where a group of keys is found in both parts.
struct Places {
  uint32_t leaf[kGroup];  // of the search part
  uint32_t part[kGroup];  // of the insertion part, if it has several
  uint32_t leaf_of_part[kGroup];
};

// What both merge trees are: the immutable part, an insertion part of some kind, and the merge of the two.
template <typename Insertions>
class MergeTree : public Store {
 public:
  static std::vector<Parameter> parameters() {
    std::vector<Parameter> all = {
        {"merge_ratio", 1.0 / 16, 1.0 / 1024, 1, "share of the live rows that the insertion part takes before a merge"},
        {"fanout", 30, InsertionTree::kLeastFanout, InsertionTree::kMostFanout,
         "entries of a node of the insertion part at most; 30 fill six cache lines"},
        {"least", 1024, 1, 1 << 30, "rows that the insertion part takes at least before a merge"},
    };
    for (const Parameter& parameter : Insertions::parameters()) all.push_back(parameter);
    return all;
  }

  explicit MergeTree(const Settings& settings)
      : merge_ratio_(settings["merge_ratio"]),
        least_(settings.count("least")),
        insertions_(settings) {}

  void insert(const uint64_t* keys, const int64_t* rows, size_t n) override {
    add(rows, n, [&](uint32_t position) {
      if (insertions_.size() + n >= merge_limit() && try_merge(keys, n)) return;
      try {
        insertions_.insert(search_, keys, position, n);
      } catch (...) {
        insertions_.take_back(position);
        throw;
      }
    });
  }

  void build(const uint64_t* keys, const int64_t* rows, size_t n) override {
    add(rows, n, [&](uint32_t) { merge(keys, n); });
  }

  size_t probe(const Probes& probes, size_t begin, size_t end, size_t limit, Pairs& out) override {
    Places places;
    return probe_positions(
        rows_, sorter_, probes, begin, end, limit, out,
        [&](const uint64_t* lo, size_t n) { insertions_.find(search_, lo, n, places); },
        [&](size_t g, uint64_t lo, uint64_t hi, PositionFilter& filter) {
          insertions_.scan(search_, places, g, lo, hi, filter);
          search_.scan(places.leaf[g], lo, hi, filter);
        });
  }

  void expire(int64_t before_row) override {
    bound_ = std::max(bound_, before_row);
    rows_.expire(bound_);
    if (held() > 2 * (rows_.size() + least_)) try_merge(nullptr, 0);
  }

  size_t size() const override { return rows_.size(); }
  size_t nbytes() const override {
    return search_.nbytes() + insertions_.nbytes() + rows_.nbytes() + sorter_.nbytes();
  }

  Statistics statistics() const override {
    Statistics all = {{"merges", static_cast<double>(merges_)},
                      {"merges_put_off", static_cast<double>(merges_put_off_)},
                      {"inserted", static_cast<double>(insertions_.size())},
                      {"expired", static_cast<double>(held() - rows_.size())},
                      {"depth", static_cast<double>(search_.depth())}};
    for (const auto& one : insertions_.statistics()) all.push_back(one);
    return all;
  }

  void check() const override {
    rows_.check();
    search_.check();
    insertions_.check(search_);
    Vector<bool> seen(rows_.size());
    size_t live = 0;
    const auto see = [&](uint64_t, uint32_t position) {
      const uint32_t at = position - static_cast<uint32_t>(rows_.begin());
      if (at >= seen.size()) return;
      demand(!seen[at], "merge tree: each live row stands once");
      seen[at] = true;
      ++live;
    };
    search_.each(see);
    Array<Entry> inserted(insertions_.size());
    insertions_.drain(inserted.get());
    for (size_t i = 0; i < inserted.size(); ++i) see(inserted[i].key, static_cast<uint32_t>(inserted[i].row));
    demand(live == rows_.size(), "merge tree: both parts together hold as many rows as are live");
  }

 private:
  // Rows of both parts, expired ones included.
  size_t held() const { return search_.size() + insertions_.size(); }

  template <typename IntoParts>
  void add(const int64_t* rows, size_t n, IntoParts into_parts) {
    if (n == 0) return;
    insert_positions(rows_, held(), rows, n, into_parts);
    if (rows[0] < bound_) expire(bound_);
  }

  size_t merge_limit() const {
    return std::max({least_, static_cast<size_t>(merge_ratio_ * static_cast<double>(rows_.size())), put_off_to_});
  }

  // A merge needs memory for a new search part. When there is none it is put off until the insertion part has grown
  // by half, as the attempt costs time too, and insertions go on.
  bool try_merge(const uint64_t* keys, size_t n) {
    try {
      merge(keys, n);
      return true;
    } catch (const std::bad_alloc&) {
      ++merges_put_off_;
      put_off_to_ = (insertions_.size() + n) * 3 / 2;
      return false;
    }
  }

  // Both parts and the newest n rows become one search part, without what has expired. Strong guarantee.
  void merge(const uint64_t* keys, size_t n) {
    const size_t inserted = insertions_.size();
    Array<Entry> fresh(inserted + n), scratch(inserted + n);
    Entry* batch = fresh.get() + inserted;
    const int64_t position = rows_.end() - static_cast<int64_t>(n);
    for (size_t i = 0; i < n; ++i) batch[i] = {keys[i], position + static_cast<int64_t>(i)};
    sort_by_key(batch, scratch.get(), n);
    insertions_.drain(fresh.get());
    if (inserted > 0 && n > 0) {
      std::merge(fresh.get(), batch, batch, batch + n, scratch.get(),
                 [](const Entry& a, const Entry& b) { return a.key < b.key; });
      fresh = std::move(scratch);
    }
    ImmutableTree search(rows_.size(), [&](uint64_t* to_keys, uint32_t* to_positions) {
      copy_live(fresh, to_keys, to_positions);
    });
    insertions_.restart(search);
    search_ = std::move(search);
    put_off_to_ = 0;
    ++merges_;
  }

  // What is live of the search part and of fresh entries, in the order of keys. Old entries go before fresh ones of the
  // same key. Each run of them is copied without a branch on what has expired.
  void copy_live(const Array<Entry>& fresh, uint64_t* to_keys, uint32_t* to_positions) const {
    const uint64_t* old_keys = search_.keys().data();
    const uint32_t* old_positions = search_.positions();
    const auto first = static_cast<uint32_t>(rows_.begin());
    const size_t live = rows_.size();
    size_t old = 0, to = 0;
    const auto copy = [&](uint64_t key, uint32_t position) {
      to_keys[to] = key;
      to_positions[to] = position;
      to += position - first < live;
    };
    for (const Entry* entry = fresh.get(); entry < fresh.get() + fresh.size(); ++entry) {
      for (; old < search_.size() && old_keys[old] <= entry->key; ++old) copy(old_keys[old], old_positions[old]);
      copy(entry->key, static_cast<uint32_t>(entry->row));
    }
    for (; old < search_.size(); ++old) copy(old_keys[old], old_positions[old]);
    demand(to == live, "merge tree: a merge finds each live row once");
  }

  const double merge_ratio_;
  const size_t least_;
  ImmutableTree search_;
  Insertions insertions_;
  RowLog rows_;
  RowSorter sorter_;
  int64_t bound_ = INT64_MIN;
  size_t merges_ = 0;
  size_t merges_put_off_ = 0;
  size_t put_off_to_ = 0;  // rows of the insertion part at which the next merge is tried, after one without memory
};

// The insertion part of an IM-Tree: one tree. Where a key is in the search part does not matter to it.
class OneInsertionTree {
 public:
  static std::vector<Parameter> parameters() { return {}; }
  explicit OneInsertionTree(const Settings& settings) : tree_(settings.count("fanout")) {}

  size_t size() const { return tree_.size(); }
  size_t nbytes() const { return tree_.nbytes(); }
  Statistics statistics() const { return {{"insertion_height", static_cast<double>(tree_.height())}}; }

  // In groups: the leaves of all are on their way before the first is filled, and a split calls them off.
  void insert(const ImmutableTree&, const uint64_t* keys, uint32_t position, size_t n) {
    uint32_t leaves[kGroup];
    for (size_t first = 0; first < n; first += kGroup) {
      const size_t group = std::min(kGroup, n - first);
      tree_.find(keys + first, group, leaves);
      const uint32_t nodes = tree_.nodes();
      for (size_t i = 0; i < group; ++i) {
        const uint64_t key = keys[first + i];
        const auto mine = position + static_cast<uint32_t>(first + i);
        if (tree_.nodes() == nodes && tree_.insert_at(leaves[i], key, mine)) continue;
        tree_.insert(key, mine);
      }
    }
  }
  void take_back(uint32_t from) { tree_.take_back(from); }

  void find(const ImmutableTree& search, const uint64_t* keys, size_t n, Places& places) const {
    tree_.find(keys, n, places.leaf_of_part);
    search.descend(keys, n, places.leaf);
  }
  void scan(const ImmutableTree&, const Places& places, size_t g, uint64_t lo, uint64_t hi,
            PositionFilter& filter) const {
    tree_.scan(places.leaf_of_part[g], lo, hi, filter);
  }

  void drain(Entry* to) const { tree_.drain(to); }
  void restart(const ImmutableTree&) { tree_.clear(); }
  void check(const ImmutableTree&) const { tree_.check(); }

 private:
  InsertionTree tree_;
};

using ImTreeStore = MergeTree<OneInsertionTree>;

}  // namespace dovetail
