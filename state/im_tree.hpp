// Ranges: an immutable tree with a small growing one for what came last (IM-Tree).
//
// Problem: in a window every row is inserted into the index and deleted again, and in a tree each of these is a search
// of its own. Idea: new rows go into an insertion part (T_I), a B+-tree. When it has grown to a share m of the window,
// it is merged with the search part (T_S, see immutable_tree.hpp) into a new search part in one pass, which also drops
// what has expired. Nothing is ever deleted, and what is large is never changed. A probe looks into both parts and
// tells expired rows by their number. Rows that would bring the insertion part to its limit are sorted and merged at
// once instead of being inserted first, so large batches never see the insertion part.
//
// Invariants: each live row stands once, in one of the parts; rows of the insertion part are newer than those of the
// search part; after an expiry at most as many rows are dead as live, and twice `least`, unless there was no memory
// for a merge; see also the parts'.
// Cost, for w rows: insert O(log(m w)) and 1 / m entries of copying; probe two searches, O(log w + rows in the key
// range); expire O(1). Bytes a row: 16 and 1.1 of bounds in the search part, and up to 32 for a share m; at a merge
// the search part is there twice for a moment.
// Standard values: m = 1/16 measured best, or within the noise of it, for windows of 2^17 and 2^20 rows and batches of
// 64 and 32,768; a fan-out of 32, as 16 is a level more, no faster here and slower with sub-indexes.
// Where it loses: keys that only ascend (a B-tree appends, while each merge copies the whole window: half to four
// fifths of its speed), and single insertions: one in m w of them waits for a merge, 2 ns for each row of the window.
// Deviations from the paper: expired rows are told by row bounds, in both parts, and not by a flag in the window; a
// store does not know w, so the live rows stand for it, with a least number of rows so that a small window does not
// merge at each insertion; leaves of the insertion part are not sorted (with sub-indexes of some 16 rows this is about
// a tenth faster in all, with one tree it is the same). The insertion part is an ordinary B+-tree, as the cost formula
// of the paper has it, not the kind that its text names.
#pragma once

#include <algorithm>

#include "immutable_tree.hpp"
#include "row_log.hpp"
#include "store.hpp"

namespace dovetail {

// A B+-tree that only grows: an insertion part, or a sub-index of one. It shares nothing with others of its kind.
//
// A node is a head, fanout - 1 keys and as many values: rows in a leaf, children in an inner node, whose keys are the
// greatest of each child with +infinity for the last one and for the places after it. Nodes have numbers and stand in
// one array of the tree's own. A leaf is not sorted: an insertion is an append, a probe looks at all of its keys (a
// few lines anyway), and only a split or a merge puts them in order. A full node is split on the way down, so that a
// split finds room in the parent, and a tree is whole before and after each of them, whatever memory there is.
class alignas(64) InsertionTree {
 public:
  // A node of 4 would have room for 3, and half of that is 1: keys that ascend would leave inner nodes of one child
  // behind them, and a tree as high as it has leaves.
  static constexpr size_t kNarrowest = 8, kWidest = 256;

  explicit InsertionTree(size_t fanout) : fanout_(static_cast<uint32_t>(fanout)) {}

  size_t size() const { return size_; }
  size_t height() const { return height_; }
  size_t nbytes() const { return memory_.nbytes(); }
  uint32_t nodes() const { return used_; }  // while it stays the same, so does the leaf of each key

  void insert(uint64_t key, int64_t row) {
    if (used_ == 0) root_ = add_node(0);
    if (head(root_).count == room()) grow_root();
    uint32_t node = root_;
    for (uint32_t level = height_; level > 0; --level) {
      size_t at = child_of(keys(node), fanout_, key);
      if (head(child(node, at)).count == room()) {
        split(node, at, level == 1);
        at += keys(node)[at] < key;
      }
      node = child(node, at);
    }
    append(node, key, row);
  }

  // The leaf to which each of n keys belongs. Its head and keys are on their way, for a probe.
  void find(const uint64_t* wanted, size_t n, uint32_t* leaves) const {
    for (size_t i = 0; i < n; ++i) leaves[i] = root_;
    for (uint32_t level = height_; level > 0; --level) {
      for (size_t i = 0; i < n; ++i) {
        leaves[i] = child(leaves[i], child_of(keys(leaves[i]), fanout_, wanted[i]));
        prefetch_lines(at(leaves[i]), sizeof(Head) + room() * sizeof(uint64_t));
      }
    }
  }

  uint32_t first_leaf() const {
    uint32_t leaf = root_;
    for (uint32_t level = height_; level > 0; --level) leaf = child(leaf, 0);
    return leaf;
  }

  // While a tree is one leaf, what a probe will read of it, and what the next insertion will write.
  void prefetch_to_probe() const {
    if (size_ < room()) prefetch_lines(memory_.get(), sizeof(Head) + size_ * sizeof(uint64_t));
  }
  void prefetch_to_insert() const {
    if (used_ == 0 || size_ >= room()) return;
    __builtin_prefetch(&head(0), 1);
    __builtin_prefetch(keys(0) + size_, 1);
    __builtin_prefetch(values(0) + size_, 1);
  }

  // Inserts where `find` has led, unless that leaf is full.
  bool insert_at(uint32_t leaf, uint64_t key, int64_t row) {
    if (used_ == 0 || head(leaf).count == room()) return false;
    append(leaf, key, row);
    return true;
  }

  // Writes the rows of a range of keys and of rows, from the leaf of its low end on, behind `found` others.
  size_t collect(uint32_t leaf, uint64_t lo, uint64_t hi, int64_t row_lo, int64_t row_hi, size_t found,
                 Growing<int64_t>& out) const {
    if (size_ == 0) return found;
    for (;;) {
      const Head& at = head(leaf);
      const uint64_t* key = keys(leaf);
      const int64_t* row = values(leaf);
      int64_t* place = out.reserve(found + fanout_);
      for (size_t i = 0; i < at.count; ++i) {
        if (key[i] - lo <= hi - lo) {
          place[found] = row[i];
          found += (row[i] >= row_lo) & (row[i] < row_hi);
        }
      }
      // Equal keys may stand on both sides of a split, so a bound that is reached does not end the search.
      if (hi < at.bound || at.next == kNone) return found;
      leaf = at.next;
    }
  }

  // All entries in the order of keys; returns the end.
  Entry* drain(Entry* to) const {
    for_each_leaf([&](uint32_t leaf) { to = sorted(leaf, to); });
    return to;
  }

  // Forgets the rows at and above one. For an insertion that cannot be completed: splits remain.
  void take_back(int64_t from_row) {
    for_each_leaf([&](uint32_t leaf) {
      size_t kept = 0;
      for (size_t i = 0; i < head(leaf).count; ++i) {
        keys(leaf)[kept] = keys(leaf)[i];
        values(leaf)[kept] = values(leaf)[i];
        kept += values(leaf)[i] < from_row;
      }
      size_ -= head(leaf).count - kept;
      head(leaf).count = static_cast<uint32_t>(kept);
    });
  }

  // Empty again, with the memory of one leaf at most.
  void clear() {
    if (memory_.nbytes() > node_bytes()) memory_ = Array<char>();
    used_ = root_ = height_ = 0;
    size_ = 0;
  }

  void check() const {
    demand(used_ * node_bytes() <= memory_.nbytes(), "insertion tree: nodes stand in its memory");
    if (used_ == 0) {
      demand(size_ == 0 && height_ == 0, "insertion tree: without a node it is empty");
      return;
    }
    uint32_t next_leaf = first_leaf(), nodes = 0;
    size_t entries = 0;
    check(root_, height_, 0, UINT64_MAX, next_leaf, nodes, entries);
    demand(next_leaf == kNone, "insertion tree: the chain of leaves ends with the last");
    demand(nodes == used_, "insertion tree: each node has one parent");
    demand(entries == size_, "insertion tree: it counts its entries");
  }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;

  struct Head {
    uint32_t count;
    uint32_t next;   // of a leaf: the next one
    uint64_t bound;  // of a leaf: no key is above it, and none of the next leaf below
  };

  template <typename Visit>
  void for_each_leaf(Visit visit) const {
    if (used_ == 0) return;
    for (uint32_t leaf = first_leaf(); leaf != kNone; leaf = head(leaf).next) visit(leaf);
  }

  // A node whose keys are from `least` to `bound`, and all below it, in the order of keys.
  void check(uint32_t node, uint32_t level, uint64_t least, uint64_t bound, uint32_t& next_leaf, uint32_t& nodes,
             size_t& entries) const {
    const size_t count = head(node).count;
    ++nodes;
    demand(count <= room(), "insertion tree: a node has no more entries than places");
    if (level == 0) {
      demand(node == next_leaf, "insertion tree: leaves are chained in the order of keys");
      demand(head(node).bound == bound, "insertion tree: a leaf knows its bound");
      for (size_t i = 0; i < count; ++i) {
        demand(least <= keys(node)[i] && keys(node)[i] <= bound, "insertion tree: a leaf's keys are within its bounds");
      }
      next_leaf = head(node).next;
      entries += count;
      return;
    }
    demand(count > 0, "insertion tree: an inner node has children");
    for (size_t i = count - 1; i < room(); ++i) {
      demand(keys(node)[i] == UINT64_MAX, "insertion tree: the last child has no bound of its own");
    }
    for (size_t i = 0; i < count; ++i) {
      const uint64_t upto = i + 1 < count ? keys(node)[i] : bound;
      demand(least <= upto && upto <= bound, "insertion tree: bounds ascend");
      check(child(node, i), level - 1, least, upto, next_leaf, nodes, entries);
      least = upto;
    }
  }

  size_t room() const { return fanout_ - 1; }
  size_t node_bytes() const { return sizeof(Head) + 2 * sizeof(uint64_t) * room(); }
  // Of a constant tree as well: those who only read share these accessors.
  char* at(uint32_t node) const { return const_cast<char*>(memory_.get()) + node * node_bytes(); }
  Head& head(uint32_t node) const { return *reinterpret_cast<Head*>(at(node)); }
  uint64_t* keys(uint32_t node) const { return reinterpret_cast<uint64_t*>(at(node) + sizeof(Head)); }
  int64_t* values(uint32_t node) const { return reinterpret_cast<int64_t*>(keys(node) + room()); }
  uint32_t child(uint32_t node, size_t i) const { return static_cast<uint32_t>(values(node)[i]); }

  void append(uint32_t leaf, uint64_t key, int64_t row) {
    const uint32_t i = head(leaf).count++;
    keys(leaf)[i] = key;
    values(leaf)[i] = row;
    ++size_;
  }

  uint32_t add_node(uint32_t count) {
    if ((used_ + 1) * node_bytes() > memory_.nbytes()) {
      Array<char> wider(node_bytes() * (size_t{used_} + used_ / 2 + 1));
      if (used_) std::memcpy(wider.get(), memory_.get(), used_ * node_bytes());
      memory_ = std::move(wider);
    }
    head(used_) = {count, kNone, UINT64_MAX};
    return used_++;
  }

  void grow_root() {
    const uint32_t root = add_node(1);
    std::fill_n(keys(root), room(), UINT64_MAX);
    values(root)[0] = root_;
    root_ = root;
    ++height_;
  }

  // Moves the upper half of a parent's child i, which is full, into a new node behind it.
  void split(uint32_t parent, size_t i, bool leaf) {
    const uint32_t right = add_node(0), left = child(parent, i);
    const size_t kept = room() / 2, moved = room() - kept;
    uint64_t bound;
    if (leaf) {
      Entry entries[kWidest];
      sorted(left, entries);
      for (size_t e = 0; e < room(); ++e) {
        const uint32_t to = e < kept ? left : right;
        const size_t place = e < kept ? e : e - kept;
        keys(to)[place] = entries[e].key;
        values(to)[place] = entries[e].row;
      }
      head(right) = {0, head(left).next, head(left).bound};
      head(left).next = right;
      head(left).bound = bound = entries[kept - 1].key;
    } else {
      std::fill_n(keys(right), room(), UINT64_MAX);
      std::copy_n(keys(left) + kept, moved, keys(right));
      std::copy_n(values(left) + kept, moved, values(right));
      bound = keys(left)[kept - 1];
      std::fill_n(keys(left) + kept - 1, moved + 1, UINT64_MAX);
    }
    head(left).count = static_cast<uint32_t>(kept);
    head(right).count = static_cast<uint32_t>(moved);
    const size_t count = head(parent).count++;
    std::copy_backward(keys(parent) + i, keys(parent) + count, keys(parent) + count + 1);
    std::copy_backward(values(parent) + i + 1, values(parent) + count, values(parent) + count + 1);
    keys(parent)[i] = bound;
    values(parent)[i + 1] = right;
  }

  Entry* sorted(uint32_t leaf, Entry* to) const {
    const size_t count = head(leaf).count;
    for (size_t i = 0; i < count; ++i) to[i] = {keys(leaf)[i], values(leaf)[i]};
    std::sort(to, to + count);
    return to + count;
  }

  Array<char> memory_;
  uint32_t fanout_;
  uint32_t used_ = 0;
  uint32_t root_ = 0;
  uint32_t height_ = 0;
  size_t size_ = 0;
};

// Where a group of keys is found in both parts.
struct Places {
  size_t block[kGroup];
  size_t part[kGroup];
  uint32_t leaf[kGroup];

  void start_at_the_roots(size_t n) {
    std::fill_n(block, n, 0);
    std::fill_n(part, n, 0);
    std::fill_n(leaf, n, 0);
  }
};

// What both merge trees are: the immutable part, an insertion part of some kind, and the merge of the two.
template <typename Insertions>
class MergeTree : public Store {
 public:
  static std::vector<Parameter> parameters() {
    std::vector<Parameter> all = {
        {"merge_ratio", 1.0 / 16, 1.0 / 1024, 1, "share of the live rows that the insertion part takes before a merge"},
        {"fanout", 32, InsertionTree::kNarrowest, InsertionTree::kWidest,
         "children of a node, in both parts; rounded down to a power of two"},
        {"least", 1024, 1, 1 << 30, "rows that the insertion part takes at least before a merge"},
    };
    for (const Parameter& parameter : Insertions::parameters()) all.push_back(parameter);
    return all;
  }

  explicit MergeTree(const Settings& settings)
      : merge_ratio_(settings["merge_ratio"]),
        least_(settings.count("least")),
        search_(power_of_two(settings.count("fanout"))),
        insertions_(settings, power_of_two(settings.count("fanout"))) {}

  void insert(const uint64_t* keys, const int64_t* rows, size_t n) override {
    if (n == 0) return;
    rows_.append(rows, n);
    if (insertions_.size() + n >= merge_limit() && try_merge(keys, rows, n)) return;
    try {
      insertions_.insert(search_, keys, rows, n);
    } catch (const std::bad_alloc&) {
      insertions_.take_back(rows[0]);
      rows_.take_back(n);
      throw;
    }
  }

  void build(const uint64_t* keys, const int64_t* rows, size_t n) override {
    rows_.append(rows, n);
    try {
      merge(keys, rows, n);
    } catch (const std::bad_alloc&) {
      rows_.take_back(n);
      throw;
    }
  }

  size_t probe(const Probes& probes, size_t begin, size_t end, size_t limit, Pairs& out) override {
    Places places;
    for (size_t first = begin; first < end; first += kGroup) {
      const size_t n = std::min(kGroup, end - first);
      places.start_at_the_roots(n);
      insertions_.find(search_, probes.lo + first, n, places);
      for (size_t i = 0; i < n; ++i) {
        const size_t p = first + i;
        if (probes.empty(p)) continue;
        const uint64_t lo = probes.lo[p], hi = probes.hi[p];
        const int64_t row_lo = std::max(probes.row_lo[p], bound_), row_hi = probes.row_hi[p];
        size_t found = search_.collect(places.block[i], lo, hi, row_lo, row_hi, 0, out.row);
        found = insertions_.collect(search_, places.part[i], places.leaf[i], lo, hi, row_lo, row_hi, found, out.row);
        if (found == 0) continue;
        sorter_.sort(out.row.data() + out.row.size(), found);
        out.claim(static_cast<int64_t>(p), found);
        if (out.size() >= limit) return p + 1;
      }
    }
    return end;
  }

  void expire(int64_t before_row) override {
    if (before_row <= bound_) return;
    bound_ = before_row;
    rows_.expire(before_row);
    if (search_.size() + insertions_.size() > 2 * (rows_.size() + least_)) try_merge(nullptr, nullptr, 0);
  }

  size_t size() const override { return rows_.size(); }
  size_t nbytes() const override {
    return search_.nbytes() + insertions_.nbytes() + rows_.nbytes() + sorter_.nbytes();
  }

  Statistics statistics() const override {
    Statistics all = {{"merges", static_cast<double>(merges_)},
                      {"merges_put_off", static_cast<double>(merges_put_off_)},
                      {"inserted", static_cast<double>(insertions_.size())},
                      {"expired", static_cast<double>(search_.size() + insertions_.size() - rows_.size())},
                      {"depth", static_cast<double>(search_.depth())}};
    for (const auto& one : insertions_.statistics()) all.push_back(one);
    return all;
  }

  void check() const override {
    rows_.check();
    search_.check();
    insertions_.check(search_);
    std::vector<int64_t> live;
    const auto count = [&](const Entry& entry) {
      if (entry.row >= bound_) live.push_back(entry.row);
    };
    std::for_each(search_.begin(), search_.end(), count);
    std::vector<Entry> inserted(insertions_.size());
    insertions_.drain(inserted.data());
    std::for_each(inserted.begin(), inserted.end(), count);
    std::sort(live.begin(), live.end());
    demand(live.size() == rows_.size(), "merge tree: both parts together hold as many rows as are live");
    for (size_t i = 0; i < live.size(); ++i) {
      demand(live[i] == rows_.row_at(rows_.begin() + static_cast<int64_t>(i)), "merge tree: each live row stands once");
    }
  }

 private:
  static size_t power_of_two(size_t n) {
    size_t power = 1;
    while (power <= n / 2) power *= 2;
    return power;
  }

  size_t merge_limit() const {
    return std::max({least_, static_cast<size_t>(merge_ratio_ * static_cast<double>(rows_.size())), put_off_to_});
  }

  // A merge needs memory for a new search part. When there is none it is put off until the insertion part has grown
  // by half, as the attempt costs time too, and insertions go on.
  bool try_merge(const uint64_t* keys, const int64_t* rows, size_t n) {
    try {
      merge(keys, rows, n);
      return true;
    } catch (const std::bad_alloc&) {
      ++merges_put_off_;
      put_off_to_ = (insertions_.size() + n) * 3 / 2;
      return false;
    }
  }

  // Both parts and new rows become one search part, without what has expired. Strong guarantee.
  void merge(const uint64_t* keys, const int64_t* rows, size_t n) {
    const size_t inserted = insertions_.size(), count = inserted + n;
    Array<Entry> fresh(count), scratch(count);
    Entry* batch = fresh.get() + inserted;
    for (size_t i = 0; i < n; ++i) batch[i] = {keys[i], rows[i]};
    sort_by_key(batch, scratch.get(), n);
    insertions_.drain(fresh.get());
    if (inserted > 0 && n > 0) {
      std::merge(fresh.get(), batch, batch, batch + n, scratch.get(),
                 [](const Entry& a, const Entry& b) { return a.key < b.key; });
      fresh = std::move(scratch);
    }
    ImmutableTree search(search_, fresh.get(), count, bound_, rows_.size());
    insertions_.restart(search);
    search_ = std::move(search);
    put_off_to_ = 0;
    ++merges_;
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
  OneInsertionTree(const Settings&, size_t fanout) : tree_(fanout) {}

  size_t size() const { return tree_.size(); }
  size_t nbytes() const { return tree_.nbytes(); }
  Statistics statistics() const { return {{"insertion_height", static_cast<double>(tree_.height())}}; }

  // In groups: the leaves of all are on their way before the first is filled, and a split calls them off.
  void insert(const ImmutableTree&, const uint64_t* keys, const int64_t* rows, size_t n) {
    uint32_t leaves[kGroup];
    for (size_t first = 0; first < n; first += kGroup) {
      const size_t group = std::min(kGroup, n - first);
      tree_.find(keys + first, group, leaves);
      const uint32_t nodes = tree_.nodes();
      for (size_t i = 0; i < group; ++i) {
        const size_t at = first + i;
        if (tree_.nodes() == nodes && tree_.insert_at(leaves[i], keys[at], rows[at])) continue;
        tree_.insert(keys[at], rows[at]);
      }
    }
  }
  void take_back(int64_t from_row) { tree_.take_back(from_row); }

  void find(const ImmutableTree& search, const uint64_t* keys, size_t n, Places& places) const {
    tree_.find(keys, n, places.leaf);
    search.descend(keys, n, 0, search.depth(), places.block);
  }
  size_t collect(const ImmutableTree&, size_t, uint32_t leaf, uint64_t lo, uint64_t hi, int64_t row_lo, int64_t row_hi,
                 size_t found, Growing<int64_t>& out) const {
    return tree_.collect(leaf, lo, hi, row_lo, row_hi, found, out);
  }

  void drain(Entry* to) const { tree_.drain(to); }
  void restart(const ImmutableTree&) { tree_.clear(); }
  void check(const ImmutableTree&) const { tree_.check(); }

 private:
  InsertionTree tree_;
};

using ImTreeStore = MergeTree<OneInsertionTree>;

}  // namespace dovetail
