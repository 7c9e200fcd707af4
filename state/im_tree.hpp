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
// Where it loses: keys that only ascend (a B-tree appends, while each merge copies the whole window: half to four
// fifths of its speed), and single insertions: one in m w of them waits for a merge, 2 ns for each row of the window.
// Deviations from the paper: expired rows are told by position, in both parts, and not by a flag in the window; a
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
// A node is a head, `fanout` keys and as many links: positions in a leaf, children in an inner node, whose keys are the
// greatest of each child, with the greatest there is for the last one and for the places behind it. Nodes have numbers
// and stand in one array of the tree's own. A leaf is not sorted: an insertion is an append, a probe looks at all of
// its keys (a few lines anyway), and only a split or a merge puts them in order. A full node is split on the way down,
// so that a split finds room in the parent, and a tree is whole before and after each of them, whatever memory there
// is.
class alignas(64) InsertionTree {
 public:
  // Half of a narrower node would be one child: keys that ascend would leave a tree as high as it has leaves.
  static constexpr size_t kLeastFanout = 4, kMostFanout = 256;

  explicit InsertionTree(size_t fanout)
      : fanout_(fanout), stride_((sizeof(Head) + fanout * (sizeof(uint64_t) + sizeof(uint32_t)) + 63) / 64 * 64) {}

  size_t size() const { return size_; }
  size_t height() const { return height_; }  // levels above the leaves
  size_t nbytes() const { return memory_.nbytes(); }
  uint32_t nodes() const { return used_; }  // while it stays the same, so does the leaf of each key

  void insert(uint64_t key, uint32_t position) {
    if (used_ == 0) root_ = add_node(0);
    if (head(root_).count == fanout_) grow_root();
    uint32_t node = root_;
    for (uint32_t level = height_; level > 0; --level) {
      size_t at = first_not_below(keys_of(node), fanout_, key);
      if (head(links(node)[at]).count == fanout_) {
        split(node, at, level == 1);
        at += keys_of(node)[at] < key;
      }
      node = links(node)[at];
    }
    append(node, key, position);
  }

  // The leaf to which each of n keys belongs. Its head and keys are on their way, for a probe.
  void find(const uint64_t* wanted, size_t n, uint32_t* leaves) const {
    for (size_t i = 0; i < n; ++i) leaves[i] = root_;
    for (uint32_t level = height_; level > 0; --level) {
      for (size_t i = 0; i < n; ++i) {
        leaves[i] = links(leaves[i])[first_not_below(keys_of(leaves[i]), fanout_, wanted[i])];
        prefetch_lines(place(leaves[i]), sizeof(Head) + fanout_ * sizeof(uint64_t));
      }
    }
  }

  uint32_t first_leaf() const {
    uint32_t leaf = root_;
    for (uint32_t level = height_; level > 0; --level) leaf = links(leaf)[0];
    return leaf;
  }

  // While a tree is one leaf, what a probe will read of it, and what the next insertion will write.
  void prefetch_to_probe() const {
    if (size_ < fanout_) prefetch_lines(memory_.get(), sizeof(Head) + size_ * sizeof(uint64_t));
  }
  void prefetch_to_insert() const {
    if (used_ == 0 || size_ >= fanout_) return;
    __builtin_prefetch(&head(0), 1);
    __builtin_prefetch(keys_of(0) + size_, 1);
    __builtin_prefetch(links(0) + size_, 1);
  }

  // Inserts where `find` has led, unless that leaf is full.
  bool insert_at(uint32_t leaf, uint64_t key, uint32_t position) {
    if (used_ == 0 || head(leaf).count == fanout_) return false;
    append(leaf, key, position);
    return true;
  }

  // Gives the filter the entries from the leaf of the range's low end on.
  void scan(uint32_t leaf, uint64_t lo, uint64_t hi, PositionFilter& filter) const {
    if (size_ == 0) return;
    for (;;) {
      const Head& at = head(leaf);
      filter.take(keys_of(leaf), links(leaf), at.count, lo, hi);
      // Equal keys may stand on both sides of a split, so a bound that is reached does not end the search.
      if (hi < at.bound || at.next == kNone) return;
      leaf = at.next;
    }
  }

  // All entries in the order of keys, with positions for rows; returns the end.
  Entry* drain(Entry* to) const {
    for_each_leaf([&](uint32_t leaf) { to = sorted(leaf, to); });
    return to;
  }

  // Forgets the positions from one on, for an insertion that cannot be completed. Splits remain.
  void take_back(uint32_t from) {
    for_each_leaf([&](uint32_t leaf) {
      size_t kept = 0;
      for (size_t i = 0; i < head(leaf).count; ++i) {
        const uint32_t position = links(leaf)[i];
        keys_of(leaf)[kept] = keys_of(leaf)[i];
        links(leaf)[kept] = position;
        kept += from - position - 1 < kMostPositions;
      }
      size_ -= head(leaf).count - kept;
      head(leaf).count = static_cast<uint32_t>(kept);
    });
  }

  // Empty again, with the memory of one leaf at most.
  void clear() {
    if (memory_.nbytes() > stride_) memory_ = Array<unsigned char>();
    used_ = root_ = height_ = 0;
    size_ = 0;
  }

  void check() const {
    demand(used_ * stride_ <= memory_.nbytes(), "insertion tree: nodes stand in its memory");
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
    demand(count <= fanout_, "insertion tree: a node has no more entries than places");
    if (level == 0) {
      demand(node == next_leaf, "insertion tree: leaves are chained in the order of keys");
      demand(head(node).bound == bound, "insertion tree: a leaf knows its bound");
      for (size_t i = 0; i < count; ++i) {
        const uint64_t key = keys_of(node)[i];
        demand(least <= key && key <= bound, "insertion tree: a leaf's keys are within its bounds");
      }
      next_leaf = head(node).next;
      entries += count;
      return;
    }
    demand(count > 0, "insertion tree: an inner node has children");
    for (size_t i = count - 1; i < fanout_; ++i) {
      demand(keys_of(node)[i] == UINT64_MAX, "insertion tree: the last child has no bound of its own");
    }
    for (size_t i = 0; i < count; ++i) {
      const uint64_t upto = i + 1 < count ? keys_of(node)[i] : bound;
      demand(least <= upto && upto <= bound, "insertion tree: bounds ascend");
      check(links(node)[i], level - 1, least, upto, next_leaf, nodes, entries);
      least = upto;
    }
  }

  // A node in memory: its head, `fanout` keys, as many links. Of a constant tree as well: those who only read share
  // these accessors.
  unsigned char* place(uint32_t node) const { return const_cast<unsigned char*>(memory_.get()) + node * stride_; }
  Head& head(uint32_t node) const { return *reinterpret_cast<Head*>(place(node)); }
  uint64_t* keys_of(uint32_t node) const { return reinterpret_cast<uint64_t*>(place(node) + sizeof(Head)); }
  uint32_t* links(uint32_t node) const { return reinterpret_cast<uint32_t*>(keys_of(node) + fanout_); }

  void append(uint32_t leaf, uint64_t key, uint32_t position) {
    const uint32_t i = head(leaf).count++;
    keys_of(leaf)[i] = key;
    links(leaf)[i] = position;
    ++size_;
  }

  uint32_t add_node(uint32_t count) {
    if ((used_ + 1) * stride_ > memory_.nbytes()) {
      Array<unsigned char> wider(stride_ * (size_t{used_} + used_ / 2 + 1));
      if (used_) std::memcpy(wider.get(), memory_.get(), used_ * stride_);
      memory_ = std::move(wider);
    }
    head(used_) = {count, kNone, UINT64_MAX};
    return used_++;
  }

  void grow_root() {
    const uint32_t root = add_node(1);
    std::fill_n(keys_of(root), fanout_, UINT64_MAX);
    links(root)[0] = root_;
    root_ = root;
    ++height_;
  }

  // Moves the upper half of a parent's child i, which is full, into a new node behind it.
  void split(uint32_t parent, size_t i, bool leaf) {
    const uint32_t right = add_node(0), left = links(parent)[i];
    const size_t kept = fanout_ / 2, moved = fanout_ - kept;
    if (leaf) {
      Entry entries[kMostFanout];
      sorted(left, entries);
      write(entries, kept, left);
      write(entries + kept, moved, right);
      head(right) = {0, head(left).next, head(left).bound};
      head(left).next = right;
      head(left).bound = entries[kept - 1].key;
    } else {
      std::fill_n(keys_of(right), fanout_, UINT64_MAX);
      std::copy_n(keys_of(left) + kept, moved, keys_of(right));
      std::copy_n(links(left) + kept, moved, links(right));
    }
    const uint64_t bound = keys_of(left)[kept - 1];
    if (!leaf) std::fill_n(keys_of(left) + kept - 1, moved + 1, UINT64_MAX);
    head(left).count = static_cast<uint32_t>(kept);
    head(right).count = static_cast<uint32_t>(moved);
    const size_t count = head(parent).count++;
    std::copy_backward(keys_of(parent) + i, keys_of(parent) + count, keys_of(parent) + count + 1);
    std::copy_backward(links(parent) + i + 1, links(parent) + count, links(parent) + count + 1);
    keys_of(parent)[i] = bound;
    links(parent)[i + 1] = right;
  }

  void write(const Entry* entries, size_t n, uint32_t leaf) {
    for (size_t i = 0; i < n; ++i) {
      keys_of(leaf)[i] = entries[i].key;
      links(leaf)[i] = static_cast<uint32_t>(entries[i].row);
    }
  }

  Entry* sorted(uint32_t leaf, Entry* to) const {
    const size_t count = head(leaf).count;
    for (size_t i = 0; i < count; ++i) to[i] = {keys_of(leaf)[i], links(leaf)[i]};
    std::sort(to, to + count);
    return to + count;
  }

  size_t fanout_, stride_;
  Array<unsigned char> memory_;
  uint32_t used_ = 0;
  uint32_t root_ = 0;
  uint32_t height_ = 0;
  size_t size_ = 0;
};

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
