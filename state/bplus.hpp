// Ranges: a B+-tree into which each row is inserted and from which each is deleted, the baseline of the papers.
//
// Problem: rows of a key range should stand side by side, however keys come and go. Idea: entries ascend through
// linked leaves of up to `fanout` entries, and a tree of bounds above leads to the first leaf that can hold a key.
// A full node is split; one that holds too little takes from its neighbour or is merged with it. To delete a row one
// must know its key, so the keys are logged in the order of arrival.
//
// What makes it quick, other than being a B+-tree: nodes stand in one array and name each other by 32-bit numbers;
// a key's row is a 32-bit position in the row log, beside the keys and not between them; unused key slots hold the
// greatest key, so that a search in a node has no branch and always as many steps; and what one call brings is looked
// up in groups, level by level, so that the cache misses of a group overlap.
//
// Invariants of the tree: leaves and inner nodes look alike, `count` keys with a link each. In an inner node a link is
// a child and its key bounds the keys below it: each is <= the bound and >= the one before. A node's last bound is its
// own bound in its parent; the last one of a level is the greatest key there is. Every node but the root holds
// max(2, fanout / 4) entries at least. Equal keys stand in the order of their rows: an insertion goes behind them,
// so the oldest is the first, which is all that deletion needs to know.
// Invariants of the store: tree, row log and key log hold exactly the live rows.
//
// Cost: insert, probe, and expire of one row O(log n) each; some 35 bytes a row: 19 in nodes, which are two thirds
// full, 8 in the key log, and the room that both have to grow. Memory follows the window down: the nodes move into
// a smaller array when three in four are unused.
// Where it loses: deletion costs as much as insertion; keys that come sorted leave nodes that are soon deleted again;
// a key that many rows share, probed with narrow row bounds, is walked over from its oldest row.
//
// The papers delete by searching a row's key and then its row among equal keys; as rows expire in order, the first of
// the equal keys is always the one.
#pragma once

#include <algorithm>
#include <cassert>

#include "positions.hpp"

namespace dovetail {

// A B+-tree from keys to 32-bit positions. Positions are handed out in ascending order and may wrap around.
class BPlusTree {
 public:
  static constexpr size_t kLeastFanout = 4, kMostFanout = 1024;

  explicit BPlusTree(size_t fanout)
      : fanout_(fanout),
        least_(std::max<size_t>(2, fanout / 4)),
        stride_(whole_lines(sizeof(Head) + fanout * (sizeof(uint64_t) + sizeof(uint32_t)))) {}

  size_t size() const { return size_; }
  size_t nbytes() const { return pool_.nbytes(); }
  size_t depth() const { return root_ == kNone ? 0 : head(root_).level + 1; }
  size_t nodes() const { return used_; }
  uint64_t splits() const { return splits_; }
  uint64_t merges() const { return merges_; }
  double fill() const { return used_ ? static_cast<double>(size_) / static_cast<double>(leaves_ * fanout_) : 0; }

  // The n keys get the positions from `position` on. Strong guarantee: where memory ends, what came in goes out again.
  void insert(const uint64_t* keys, uint32_t position, size_t n) {
    size_t done = 0;
    try {
      if (n && root_ == kNone) plant();
      while (done < n) {
        const size_t group = std::min(kGroup, n - done);
        uint64_t above[kGroup];
        uint32_t leaves[kGroup];
        for (size_t g = 0; g < group; ++g) above[g] = keys[done + g] + (keys[done + g] != kGreatest);
        descend(above, group, leaves);
        const uint64_t shape = splits_;
        for (size_t g = 0; g < group; ++g, ++done) {
          const uint64_t key = keys[done];
          const bool stale = splits_ != shape || key == kGreatest;
          insert_into(stale ? leaf_behind(key) : leaves[g], key, position + static_cast<uint32_t>(done));
        }
      }
    } catch (...) {
      while (done) take_back(keys[--done]);
      throw;
    }
  }

  // Takes back the newest entry of each key, the last one first.
  void take_back(const uint64_t* keys, size_t n) noexcept {
    while (n) take_back(keys[--n]);
  }

  // Deletes the oldest entry of each key; there must be one.
  void erase(const uint64_t* keys, size_t n) noexcept {
    for (size_t done = 0; done < n;) {
      const size_t group = std::min(kGroup, n - done);
      uint32_t leaves[kGroup];
      descend(keys + done, group, leaves);
      const uint64_t shape = merges_;
      for (size_t g = 0; g < group; ++g, ++done) {
        uint32_t leaf = merges_ == shape ? leaves[g] : first_leaf(keys[done]);
        size_t at = below(keys_of(leaf), keys[done]);
        // A bound may be greater than all that is left below it.
        for (; at == head(leaf).count; at = 0) leaf = head(leaf).next;
        assert(keys_of(leaf)[at] == keys[done]);
        remove(leaf, at);
      }
    }
    trim();
  }

  // Sorted entries whose rows are positions, into an empty tree. Strong guarantee.
  void build(const Entry* entries, size_t n) {
    if (n == 0) return;
    BPlusTree tree(fanout_);
    const size_t fill = fanout_ * 3 / 4;
    size_t nodes = 0;
    for (size_t m = n; m != 1 || nodes == 0; nodes += m) m = (m + fill - 1) / fill;
    tree.reserve(nodes);
    tree.size_ = n;
    uint32_t first_child = 0, first = 0;
    size_t below = n;
    for (uint32_t level = 0;; ++level, first_child = first, first = static_cast<uint32_t>(tree.used_)) {
      const size_t width = (below + fill - 1) / fill;
      for (size_t i = 0, from = 0; i < width; ++i) {
        const uint32_t node = tree.take(level);
        const size_t to = below * (i + 1) / width;
        uint64_t* keys = tree.keys_of(node);
        uint32_t* links = tree.links(node);
        tree.head(node).count = static_cast<uint32_t>(to - from);
        for (size_t j = from; j < to; ++j) {
          const auto child = static_cast<uint32_t>(first_child + j);
          keys[j - from] = level == 0 ? entries[j].key : j + 1 == below ? kGreatest : tree.last_key(child);
          links[j - from] = level == 0 ? static_cast<uint32_t>(entries[j].row) : child;
          if (level) tree.head(child).parent = node;
        }
        if (level == 0 && i + 1 < width) tree.head(node).next = node + 1;
        tree.root_ = node;
        from = to;
      }
      if (width == 1) break;
      below = width;
    }
    *this = std::move(tree);
  }

  // For each key the leaf where entries not below it begin, fetched ahead.
  void descend(const uint64_t* keys, size_t n, uint32_t* leaves) const {
    std::fill(leaves, leaves + n, root_);
    if (root_ == kNone) return;
    for (uint32_t level = head(root_).level; level > 0; --level) {
      for (size_t g = 0; g < n; ++g) {
        leaves[g] = links(leaves[g])[first_not_below(keys_of(leaves[g]), fanout_, keys[g])];
        prefetch_lines(place(leaves[g]), stride_);
      }
    }
  }

  // Gives the filter the positions of all keys in [lo, hi]; `leaf` is what descend said of lo.
  void scan(uint32_t leaf, uint64_t lo, uint64_t hi, PositionFilter& filter) const {
    if (leaf == kNone) return;
    size_t at = below(keys_of(leaf), lo);
    while (filter.take_upto(keys_of(leaf) + at, links(leaf) + at, head(leaf).count - at, hi)) {
      leaf = head(leaf).next;
      if (leaf == kNone) return;
      at = 0;
    }
  }

  // Visits all (key, position), in the order of keys and then of age.
  template <typename Visit>
  void each(Visit visit) const {
    for (uint32_t leaf = root_ == kNone ? kNone : first_leaf(0); leaf != kNone; leaf = head(leaf).next) {
      for (size_t i = 0; i < head(leaf).count; ++i) visit(keys_of(leaf)[i], links(leaf)[i]);
    }
  }

  void check() const {
    size_t seen = 0, leaves = 0, entries = 0, free = 0;
    uint32_t expected = root_ == kNone ? kNone : first_leaf(0);
    if (root_ != kNone) {
      demand(head(root_).parent == kNone, "b+-tree: the root has no parent");
      check_below(root_, 0, kGreatest, expected, seen, leaves, entries);
    }
    demand(expected == kNone, "b+-tree: the last leaf has no next one");
    demand(entries == size_, "b+-tree: it counts its entries");
    demand(seen == used_ && leaves == leaves_, "b+-tree: it counts its nodes");
    for (uint32_t node = free_; node != kNone; node = head(node).next) ++free;
    demand(used_ + free == fresh_ && fresh_ <= capacity_, "b+-tree: each node is in the tree, free, or was never used");
    bool first = true;
    uint64_t last_key = 0;
    uint32_t last_position = 0;
    each([&](uint64_t key, uint32_t position) {
      demand(first || last_key < key || (last_key == key && position - last_position < UINT32_MAX / 2),
             "b+-tree: entries ascend by key, then by age");
      first = false;
      last_key = key;
      last_position = position;
    });
  }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;

  struct Head {
    uint32_t count;
    uint32_t level;  // 0: a leaf, whose links are positions
    uint32_t parent;
    uint32_t next;  // of leaves and of free nodes
  };

  // A node in memory: its head, `fanout` keys, as many links; whole cache lines.
  unsigned char* place(uint32_t node) { return pool_.get() + node * stride_; }
  const unsigned char* place(uint32_t node) const { return pool_.get() + node * stride_; }
  Head& head(uint32_t node) { return *reinterpret_cast<Head*>(place(node)); }
  const Head& head(uint32_t node) const { return *reinterpret_cast<const Head*>(place(node)); }
  uint64_t* keys_of(uint32_t node) { return reinterpret_cast<uint64_t*>(place(node) + sizeof(Head)); }
  const uint64_t* keys_of(uint32_t node) const { return reinterpret_cast<const uint64_t*>(place(node) + sizeof(Head)); }
  uint32_t* links(uint32_t node) { return reinterpret_cast<uint32_t*>(keys_of(node) + fanout_); }
  const uint32_t* links(uint32_t node) const { return reinterpret_cast<const uint32_t*>(keys_of(node) + fanout_); }
  uint64_t last_key(uint32_t node) const { return keys_of(node)[head(node).count - 1]; }

  // How many of a node's keys are below `key`.
  size_t below(const uint64_t* keys, uint64_t key) const { return dovetail::below(keys, fanout_, key); }

  uint32_t first_leaf(uint64_t key) const {
    uint32_t leaf;
    descend(&key, 1, &leaf);
    return leaf;
  }

  // Where a new entry of this key goes: behind all that are equal.
  uint32_t leaf_behind(uint64_t key) const {
    if (key != kGreatest) return first_leaf(key + 1);
    uint32_t node = root_;
    while (head(node).level) node = links(node)[head(node).count - 1];
    return node;
  }
  size_t place_behind(uint32_t leaf, uint64_t key) const {
    return key == kGreatest ? head(leaf).count : below(keys_of(leaf), key + 1);
  }

  void insert_into(uint32_t leaf, uint64_t key, uint32_t position) {
    size_t at = place_behind(leaf, key);
    if (head(leaf).count == fanout_) {
      reserve(head(root_).level + 2);  // a new node on each level and a new root, before anything changes
      split(leaf, at);
      leaf = leaf_behind(key);
      at = place_behind(leaf, key);
    }
    open(leaf, at, key, position);
    ++size_;
  }

  // Takes back an insertion of this key: its newest entry goes.
  void take_back(uint64_t key) noexcept {
    uint32_t leaf = leaf_behind(key);
    size_t at = place_behind(leaf, key);
    if (at == 0) {
      leaf = leaf_before(leaf);
      at = head(leaf).count;
    }
    assert(keys_of(leaf)[at - 1] == key);
    remove(leaf, at - 1);
  }

  uint32_t leaf_before(uint32_t node) const {
    while (index_of(node) == 0) node = head(node).parent;
    node = links(head(node).parent)[index_of(node) - 1];
    while (head(node).level) node = links(node)[head(node).count - 1];
    return node;
  }

  size_t index_of(uint32_t node) const {
    const uint32_t* children = links(head(node).parent);
    return static_cast<size_t>(std::find(children, children + fanout_, node) - children);
  }

  void open(uint32_t node, size_t at, uint64_t key, uint32_t link) {
    shift(node, at, at + 1, head(node).count - at);
    keys_of(node)[at] = key;
    links(node)[at] = link;
    ++head(node).count;
  }

  void close(uint32_t node, size_t at, size_t n) {
    const size_t count = head(node).count;
    shift(node, at + n, at, count - at - n);
    std::fill(keys_of(node) + count - n, keys_of(node) + count, kGreatest);
    head(node).count -= static_cast<uint32_t>(n);
  }

  void shift(uint32_t node, size_t from, size_t to, size_t n) {
    std::memmove(keys_of(node) + to, keys_of(node) + from, n * sizeof(uint64_t));
    std::memmove(links(node) + to, links(node) + from, n * sizeof(uint32_t));
  }

  // Copies entries from one node into the gap of another, and tells children who their parent is.
  void copy(uint32_t from, size_t begin, size_t n, uint32_t to, size_t at) {
    std::memcpy(keys_of(to) + at, keys_of(from) + begin, n * sizeof(uint64_t));
    std::memcpy(links(to) + at, links(from) + begin, n * sizeof(uint32_t));
    if (head(to).level == 0) return;
    for (size_t i = 0; i < n; ++i) head(links(to)[at + i]).parent = to;
  }

  // Makes two of a full node, into which an entry is to go at `at`. Where keys come in order, at an end, most entries
  // stay on the other side: those nodes will see no more of them.
  void split(uint32_t node, size_t at) {
    if (node == root_) {
      const uint32_t root = take(head(node).level + 1);
      root_ = head(node).parent = root;
      open(root, 0, kGreatest, node);
    }
    if (head(head(node).parent).count == fanout_) split(head(node).parent, index_of(node) + 1);
    const uint32_t parent = head(node).parent, right = take(head(node).level);
    const size_t count = head(node).count, i = index_of(node);
    const size_t keep = at == count ? count - least_ : at == 0 ? least_ : count / 2;
    copy(node, keep, count - keep, right, 0);
    head(right).count = static_cast<uint32_t>(count - keep);
    head(right).parent = parent;
    head(right).next = head(node).next;
    head(node).next = right;
    close(node, keep, count - keep);
    open(parent, i + 1, keys_of(parent)[i], right);
    keys_of(parent)[i] = last_key(node);
    ++splits_;
  }

  void remove(uint32_t node, size_t at) {
    close(node, at, 1);
    --size_;
    while (node != root_ && head(node).count < least_) {
      const uint32_t parent = head(node).parent;
      const size_t i = index_of(node) - (index_of(node) > 0);
      const uint32_t left = links(parent)[i], right = links(parent)[i + 1];
      ++merges_;
      if (head(left).count + head(right).count > fanout_ * 3 / 4) {  // merged, they would soon be split again
        share(left, right);
        keys_of(parent)[i] = last_key(left);
        return;
      }
      copy(right, 0, head(right).count, left, head(left).count);
      head(left).count += head(right).count;
      head(left).next = head(right).next;
      keys_of(parent)[i] = keys_of(parent)[i + 1];
      close(parent, i + 1, 1);
      give_back(right);
      node = parent;
    }
    if (head(root_).level && head(root_).count == 1) {
      const uint32_t child = links(root_)[0];
      give_back(root_);
      root_ = child;
      head(root_).parent = kNone;
    }
  }

  // Leaves two neighbours with half of what they hold together.
  void share(uint32_t left, uint32_t right) {
    const size_t total = head(left).count + head(right).count, half = total / 2;
    if (head(left).count < half) {
      const size_t n = half - head(left).count;
      copy(right, 0, n, left, head(left).count);
      head(left).count += static_cast<uint32_t>(n);
      close(right, 0, n);
    } else {
      const size_t n = head(left).count - half;
      shift(right, 0, n, head(right).count);
      copy(left, half, n, right, 0);
      head(right).count += static_cast<uint32_t>(n);
      close(left, half, n);
    }
  }

  void plant() {
    reserve(1);
    root_ = take(0);
  }

  // Makes sure that n nodes can be taken.
  void reserve(size_t n) {
    if (capacity_ - used_ >= n) return;
    const size_t capacity = std::max(used_ + n, used_ + used_ / 4 + 2);
    demand(capacity < kNone, "b+-tree: more nodes than 32 bits can name");
    Array<unsigned char> wider(capacity * stride_);
    if (fresh_) std::memcpy(wider.get(), pool_.get(), fresh_ * stride_);
    pool_ = std::move(wider);
    capacity_ = capacity;
  }

  uint32_t take(uint32_t level) {
    uint32_t node = free_;
    if (node != kNone) {
      free_ = head(node).next;
    } else {
      node = static_cast<uint32_t>(fresh_++);
    }
    assert(fresh_ <= capacity_);
    ++used_;
    leaves_ += level == 0;
    head(node) = {0, level, kNone, kNone};
    std::fill(keys_of(node), keys_of(node) + fanout_, kGreatest);
    std::fill(links(node), links(node) + fanout_, kNone);
    return node;
  }

  void give_back(uint32_t node) {
    --used_;
    leaves_ -= head(node).level == 0;
    head(node).next = free_;
    free_ = node;
  }

  // Gives memory back when three nodes in four are unused.
  void trim() noexcept {
    if (size_ != 0 && capacity_ <= 4 * used_ + 8) return;
    try {
      BPlusTree slim(fanout_);
      Array<Entry> entries(size_);
      size_t n = 0;
      each([&](uint64_t key, uint32_t position) { entries[n++] = {key, position}; });
      slim.build(entries.get(), n);
      slim.splits_ = splits_;
      slim.merges_ = merges_;
      *this = std::move(slim);
    } catch (const std::bad_alloc&) {
      // A smaller array needs memory before the larger one is given back; there is none, so it stays.
    }
  }

  void check_below(uint32_t node, uint64_t least, uint64_t most, uint32_t& expected_leaf, size_t& nodes,
                   size_t& leaves, size_t& entries) const {
    const Head& mine = head(node);
    const uint64_t* keys = keys_of(node);
    ++nodes;
    demand(mine.count <= fanout_, "b+-tree: no node holds more than its fan-out");
    demand(node == root_ || mine.count >= least_, "b+-tree: every node but the root is filled to a quarter");
    for (size_t i = mine.count; i < fanout_; ++i) demand(keys[i] == kGreatest, "b+-tree: unused slots are greatest");
    for (size_t i = 0; i < mine.count; ++i) {
      demand(keys[i] >= (i ? keys[i - 1] : least) && keys[i] <= most, "b+-tree: keys keep to the bounds above them");
    }
    if (mine.level == 0) {
      demand(node == expected_leaf, "b+-tree: leaves are linked in their order");
      expected_leaf = mine.next;
      ++leaves;
      entries += mine.count;
      return;
    }
    demand(node != root_ || mine.count > 1, "b+-tree: an inner root has two children at least");
    demand(keys[mine.count - 1] == most, "b+-tree: the last bound of a node is its own");
    for (size_t i = 0; i < mine.count; ++i) {
      const uint32_t child = links(node)[i];
      demand(head(child).parent == node, "b+-tree: a child knows its parent");
      demand(head(child).level + 1 == mine.level, "b+-tree: all leaves are equally deep");
      check_below(child, i ? keys[i - 1] : least, keys[i], expected_leaf, nodes, leaves, entries);
    }
  }

  size_t fanout_, least_, stride_;
  Array<unsigned char> pool_;
  size_t capacity_ = 0;  // nodes that the pool has room for
  size_t fresh_ = 0;     // nodes that were ever used: the free ones are among these
  size_t used_ = 0;
  size_t leaves_ = 0;
  size_t size_ = 0;
  uint32_t free_ = kNone;
  uint32_t root_ = kNone;
  uint64_t splits_ = 0, merges_ = 0;  // these two also tell whether a leaf that was looked up is still the one
};

class BPlusStore final : public Store {
 public:
  static std::vector<Parameter> parameters() {
    return {{"fanout", 62, BPlusTree::kLeastFanout, BPlusTree::kMostFanout,
             "entries of a node at most; 62 fill twelve cache lines"}};
  }
  explicit BPlusStore(const Settings& settings) : tree_(settings.count("fanout")) {}

  void insert(const uint64_t* keys, const int64_t* rows, size_t n) override {
    add(rows, keys, n, [&](uint32_t position) { tree_.insert(keys, position, n); });
  }

  void build(const uint64_t* keys, const int64_t* rows, size_t n) override {
    add(rows, keys, n, [&](uint32_t position) {
      Array<Entry> entries(n), scratch(n);
      for (size_t i = 0; i < n; ++i) entries[i] = {keys[i], static_cast<int64_t>(position + i)};
      sort_by_key(entries.get(), scratch.get(), n);
      tree_.build(entries.get(), n);
    });
  }

  size_t probe(const Probes& probes, size_t begin, size_t end, size_t limit, Pairs& out) override {
    uint32_t leaves[kGroup];
    return probe_positions(
        rows_, sorter_, probes, begin, end, limit, out,
        [&](const uint64_t* lo, size_t n) { tree_.descend(lo, n, leaves); },
        [&](size_t g, uint64_t lo, uint64_t hi, PositionFilter& filter) { tree_.scan(leaves[g], lo, hi, filter); });
  }

  void expire(int64_t before_row) override {
    bound_ = std::max(bound_, before_row);
    const int64_t first = rows_.begin();
    const auto gone = static_cast<size_t>(rows_.expire(bound_) - first);
    tree_.erase(keys_.data(), gone);
    keys_.drop_front(gone);
  }

  size_t size() const override { return rows_.size(); }
  size_t nbytes() const override { return tree_.nbytes() + keys_.nbytes() + rows_.nbytes() + sorter_.nbytes(); }
  Statistics statistics() const override {
    return {{"depth", static_cast<double>(tree_.depth())},   {"nodes", static_cast<double>(tree_.nodes())},
            {"splits", static_cast<double>(tree_.splits())}, {"merges", static_cast<double>(tree_.merges())},
            {"fill", tree_.fill()}};
  }

  void check() const override {
    tree_.check();
    rows_.check();
    keys_.check();
    demand(tree_.size() == rows_.size() && keys_.size() == rows_.size(), "bplus: tree and logs hold as many rows");
    Vector<bool> seen(rows_.size());
    tree_.each([&](uint64_t key, uint32_t position) {
      const uint32_t at = position - static_cast<uint32_t>(rows_.begin());
      demand(at < seen.size() && !seen[at], "bplus: the tree holds each live row once");
      demand(keys_[at] == key, "bplus: a row stands in the tree under its key");
      seen[at] = true;
    });
  }

 private:
  // The logs first, as they can be taken back.
  template <typename IntoTree>
  void add(const int64_t* rows, const uint64_t* keys, size_t n, IntoTree into_tree) {
    if (n == 0) return;
    insert_positions(rows_, size(), rows, n, [&](uint32_t position) {
      keys_.append(keys, n);
      try {
        into_tree(position);
      } catch (...) {
        keys_.shrink(n);
        throw;
      }
    });
    if (rows[0] < bound_) expire(bound_);
  }

  BPlusTree tree_;
  RowLog rows_;
  RowVector<uint64_t> keys_;  // in the order of arrival: which key the oldest row has
  int64_t bound_ = INT64_MIN;
  RowSorter sorter_;
};

}  // namespace dovetail
