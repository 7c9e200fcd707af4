// A join on PIM-Trees that several threads work on at once.
//
// Problem: one thread that stores and asks is one core; copies of an index on several cores store every row several
// times. Idea (*Parallel Index-based Stream Join on a Multicore CPU*, section 4): the tuples of a step stand in a queue,
// in their order; a thread takes some of them, a *task*, finds their partners, and then stores them in the tree of their
// own side, whose sub-indexes have a lock each. What makes this exact, however threads run:
//
// - The keys of a step are in the window's log before its first task begins. A side's *edge* is the first row that is
//   perhaps not in its tree: a task finds rows below the edge in the tree, and the others of its range in the log, one
//   after the other. So an answer depends on ranges of rows alone, as everywhere (see store.hpp).
// - The edge moves over tasks whose rows are all stored. Whoever has stored some tries to move it; one at a time does,
//   and looks again after it has let go, so that no task's end is overlooked.
// - Answers are put together in the order of tasks, whichever thread found them.
//
// A merge makes the search part and all sub-indexes one new search part. Who finds that the insertions have reached
// their limit makes it. *Not blocking*, in two phases: first the side is frozen, nothing is stored in its tree, and the
// new one is made from the old while others go on finding in that (and in the log, which grows longer meanwhile); then
// the trees are exchanged, and rows that were passed over are stored. *Blocking*: others wait for the whole of it.
//
// Threads may join and leave while it runs: the one that calls `advance` always works, and others take a task whenever
// they are there.
//
// Invariants: between two steps all rows of the logs are stored, and each once; rows of a task that met a frozen side
// stand in `passed_over` until the merge is over; a tree is replaced only by who has its gate alone, and read by who
// shares it.
// Cost: that of a PIM-Tree (pim_tree.hpp), a lock for each row that is stored and each sub-index that is asked, and a
// scan of the rows between edge and tuple: so many tasks as there are threads, unless a merge is going on.
// Where it loses: one thread alone has all of this for nothing; and long merges of small windows are mostly scans.
// Deviations from the paper: the parts of an index are found for a group of tuples at once; an edge moves by tasks, not by
// tuples; rows that a frozen side passed over have one owner, as they are handed over, so that none needs a claim; and
// memory is given back by `expire`, between steps, when no tuple can ask for it any more.
#pragma once

#include <atomic>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <thread>

#include "immutable_tree.hpp"
#include "insertion_tree.hpp"
#include "scan.hpp"

namespace dovetail {

// Held for some dozens of instructions at a time.
class SpinLock {
 public:
  void lock() {
    for (int tries = 0; held_.exchange(true, std::memory_order_acquire); ++tries) {
      while (held_.load(std::memory_order_relaxed)) {
        if (++tries > 64) std::this_thread::yield();  // who holds it was sent to sleep
      }
    }
  }
  bool try_lock() { return !held_.exchange(true, std::memory_order_acquire); }
  void unlock() { held_.store(false, std::memory_order_release); }

 private:
  std::atomic<bool> held_{false};
};

class SharedPim {
 public:
  struct Settings {
    double merge_ratio = 1.0 / 16;  // share of the live rows that insertions take before a merge
    size_t least = 1024;            // rows that they take at least
    size_t task = 256;              // tuples
    bool blocking = false;          // merges
    bool locks = true;              // without them only one thread may work
  };

  // New tuples of one role: what they look for, and where. Of `n` tuples, tuple i is the rank[i]-th of the step.
  struct Role {
    size_t target;       // the side that they ask
    int64_t stored;      // the side that stores them; -1: another role's tuples are the same rows
    Probes probes;
    const int64_t* rank;
    size_t n;
  };

  SharedPim(size_t sides, size_t threads, const Settings& settings) : settings_(settings) {
    demand(settings.locks || threads == 1, "several threads on one index need its locks");
    for (size_t i = 0; i < sides; ++i) sides_.push_back(std::make_unique<Side>());
    set_threads(threads);
  }

  ~SharedPim() {
    {
      const std::lock_guard<std::mutex> guard(pool_);
      leaving_ = true;
      wake_.notify_all();
    }
    for (std::thread& helper : helpers_) helper.join();
  }

  // How many threads work from now on, the caller of `advance` included. May be called at any time, by any thread.
  void set_threads(size_t threads) {
    const std::lock_guard<std::mutex> guard(pool_);
    demand(settings_.locks || threads == 1, "several threads on one index need its locks");
    wanted_ = std::max<size_t>(1, threads);
    while (helpers_.size() + 1 < wanted_) {
      const size_t number = helpers_.size() + 1;
      helpers_.emplace_back([this, number] { help(number); });
    }
    wake_.notify_all();
  }
  size_t threads() const { return wanted_; }

  // Begins a step: `keys[s]` are those of n[s] new rows of side s, whose first is first[s]. The arrays of the roles must
  // live until the step is over.
  void start(const uint64_t* const* keys, const int64_t* first, const size_t* n, std::vector<Role> roles, size_t total) {
    demand(done(), "shared: the step before is not over");
    for (size_t s = 0; s < sides_.size(); ++s) append(*sides_[s], keys[s], first[s], n[s]);
    roles_ = std::move(roles);
    const size_t tasks = (total + settings_.task - 1) / settings_.task;
    results_ = std::vector<std::vector<Pairs>>(tasks);
    ends_.assign(roles_.size(), std::vector<size_t>(tasks + 1, 0));
    for (size_t r = 0; r < roles_.size(); ++r) {
      const Role& role = roles_[r];
      for (size_t t = 0; t <= tasks; ++t) {
        const auto rank = static_cast<int64_t>(t * settings_.task);
        ends_[r][t] = static_cast<size_t>(std::lower_bound(role.rank, role.rank + role.n, rank) - role.rank);
      }
    }
    for (size_t r = 0; r < roles_.size(); ++r) {
      if (roles_[r].stored < 0) continue;
      Side& side = *sides_[static_cast<size_t>(roles_[r].stored)];
      side.role = r;
      side.stored = std::vector<std::atomic<bool>>(tasks);
      side.edge_task = 0;
      move_edge(side);
    }
    next_ = 0;
    handed_out_ = 0;
  }

  bool done() const { return handed_out_ == results_.size(); }

  // Works until there are some `limit` pairs more or the step is over; appends what each role's tuples have found, in
  // order, and says how many of each were answered. Rethrows what a thread has thrown: then the join cannot go on.
  void advance(size_t limit, std::vector<Pairs>& found, std::vector<size_t>& answered) {
    {
      const std::lock_guard<std::mutex> guard(pool_);
      limit_ = limit;
      found_ = 0;
      working_ = 1;
      ++round_;
      open_ = true;
      wake_.notify_all();
    }
    work(0);
    {
      std::unique_lock<std::mutex> guard(pool_);
      open_ = false;
      --working_;
      idle_.wait(guard, [this] { return working_ == 0; });
      if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
    }
    const size_t upto = std::min(next_.load(), results_.size());
    found = std::vector<Pairs>(roles_.size());
    answered.assign(roles_.size(), 0);
    for (size_t r = 0; r < roles_.size(); ++r) {
      size_t n = 0;
      for (size_t t = handed_out_; t < upto; ++t) n += results_[t][r].size();
      int64_t* probe = found[r].probe.reserve(n);
      int64_t* row = found[r].row.reserve(n);
      for (size_t t = handed_out_; t < upto; ++t) {
        probe = std::copy_n(results_[t][r].probe.data(), results_[t][r].size(), probe);
        row = std::copy_n(results_[t][r].row.data(), results_[t][r].size(), row);
      }
      found[r].probe.advance(n);
      found[r].row.advance(n);
      answered[r] = ends_[r][upto];
    }
    for (size_t t = handed_out_; t < upto; ++t) results_[t] = std::vector<Pairs>();
    handed_out_ = upto;
    next_ = upto;
  }

  // Rows of a window that comes back, when nothing is there yet.
  void restore(size_t s, const uint64_t* keys, int64_t first, size_t n) { append(*sides_[s], keys, first, n); }
  void restored(size_t s) { replace(*sides_[s]); }

  void expire(size_t s, int64_t before_row) {
    Side& side = *sides_[s];
    side.rows.expire(before_row);
    side.keys.drop_front(static_cast<size_t>(side.rows.begin() - side.keys.first_row()));
    const size_t held = side.tree->search.size() + side.inserted;
    if (held > 2 * (side.rows.size() + settings_.least)) replace(side);
  }

  size_t size(size_t s) const { return sides_[s]->rows.size(); }
  size_t merges() const {
    size_t merges = 0;
    for (const auto& side : sides_) merges += side->merges;
    return merges;
  }
  size_t nbytes() const {
    size_t bytes = 0;
    for (const auto& side : sides_) bytes += side->keys.nbytes() + side->rows.nbytes() + side->tree->nbytes();
    return bytes;
  }

  // Between steps.
  void check() const {
    for (const auto& side : sides_) side->check();
  }

 private:
  // A sub-index on cache lines of its own.
  struct Part {
    Part() : tree(kFanout) {}
    Part(Part&& other) noexcept : tree(std::move(other.tree)) {}
    SpinLock lock;
    InsertionTree tree;
  };
  static constexpr size_t kFanout = 30;

  struct Tree {
    ImmutableTree search;
    size_t depth = 0;
    Vector<Part> parts;

    explicit Tree(ImmutableTree from) : search(std::move(from)) {
      depth = search.depth() == 0 ? 0 : search.depth() - 1;
      parts.reserve(search.keys().nodes(depth));
      while (parts.size() < parts.capacity()) parts.emplace_back();
    }
    size_t nbytes() const {
      size_t bytes = search.nbytes() + parts.capacity() * sizeof(Part);
      for (const Part& part : parts) bytes += part.tree.nbytes();
      return bytes;
    }
    void find_parts(const uint64_t* keys, size_t n, uint32_t* found) const {
      std::fill_n(found, n, 0);
      search.keys().descend(keys, n, 0, depth, found);
      for (size_t i = 0; i < n; ++i) __builtin_prefetch(&parts[found[i]]);
    }
  };

  struct Side {
    RowLog rows;
    RowVector<uint64_t> keys;  // by position
    std::unique_ptr<Tree> tree = std::make_unique<Tree>(ImmutableTree());
    std::shared_mutex gate;    // to the tree: shared by those that use it, alone for who exchanges it
    bool frozen = false;       // nothing is stored; changed by who has the gate alone
    std::atomic<bool> merging{false};
    std::atomic<size_t> inserted{0};  // rows in sub-indexes
    size_t merges = 0;

    // Of the step that is under way.
    size_t role = 0;  // whose tuples are its rows
    std::vector<std::atomic<bool>> stored;  // the rows of each task
    std::atomic<int64_t> edge{0};           // a position
    size_t edge_task = 0;                   // the first that is not stored, as far as is known
    SpinLock edge_lock;
    std::mutex passing;
    std::vector<size_t> passed_over;  // tasks whose rows met a frozen side

    void check() const {
      rows.check();
      demand(rows.consecutive(), "shared: rows are consecutive");
      demand(keys.first_row() == rows.begin() && keys.end_row() == rows.end(), "shared: a key for each row");
      demand(passed_over.empty() && !frozen, "shared: between steps nothing waits");
      demand(stored.empty() || edge == rows.end(), "shared: the edge has come to the end of the step");
      tree->search.check();
      std::vector<bool> seen(rows.size());
      size_t live = 0;
      const auto see = [&](uint64_t key, uint32_t position) {
        const uint32_t at = position - static_cast<uint32_t>(rows.begin());
        if (at >= seen.size()) return;
        demand(!seen[at], "shared: each row stands once");
        demand(keys[at] == key, "shared: under its key");
        seen[at] = true;
        ++live;
      };
      tree->search.each(see);
      for (size_t p = 0; p < tree->parts.size(); ++p) {
        const InsertionTree& part = tree->parts[p].tree;
        part.check();
        std::vector<Entry> held(part.size());
        part.drain(held.data());
        for (const Entry& entry : held) {
          demand(entry.key <= tree->search.keys().bound(tree->depth, p), "shared: no key is above its part's bound");
          see(entry.key, static_cast<uint32_t>(entry.row));
        }
      }
      demand(live == rows.size(), "shared: all rows are stored");
    }
  };

  void append(Side& side, const uint64_t* keys, int64_t first, size_t n) {
    if (n == 0) return;
    demand(side.rows.size() + n <= kMostPositions, "a window of more than 2^31 rows does not fit one store");
    demand(side.rows.size() == 0 || side.rows.last_row() + 1 == first, "shared: rows are consecutive");
    side.keys.append(keys, n);
    side.rows.extend(first, n);
  }

  int64_t position_of_task(const Side& side, size_t task) const {
    const size_t n = roles_[side.role].n;
    return side.rows.end() - static_cast<int64_t>(n - ends_[side.role][task]);
  }

  // Over the tasks whose rows are stored. Who finds another at it leaves it to that one, which looks again.
  void move_edge(Side& side) {
    for (;;) {
      if (!side.edge_lock.try_lock()) return;
      while (side.edge_task < side.stored.size() && side.stored[side.edge_task].load(std::memory_order_acquire)) {
        ++side.edge_task;
      }
      const size_t at = side.edge_task;
      side.edge.store(position_of_task(side, at), std::memory_order_release);
      side.edge_lock.unlock();
      if (at >= side.stored.size() || !side.stored[at].load(std::memory_order_acquire)) return;
    }
  }

  void help(size_t number) {
    size_t seen = 0;
    std::unique_lock<std::mutex> guard(pool_);
    for (;;) {
      wake_.wait(guard, [&] { return leaving_ || (open_ && round_ != seen && number < wanted_); });
      if (leaving_) return;
      seen = round_;
      ++working_;
      guard.unlock();
      work(number);
      guard.lock();
      if (--working_ == 0) idle_.notify_all();
    }
  }

  // Takes tasks until there are enough pairs or no more tasks, or this thread is not wanted any more.
  void work(size_t number) {
    RowSorter sorter;
    try {
      while (found_.load(std::memory_order_relaxed) < limit_ && (number == 0 || number < wanted_)) {
        const size_t task = next_.fetch_add(1);
        if (task >= results_.size()) break;
        answer(task, sorter);
        for (const auto& side : sides_) {
          if (side->inserted.load(std::memory_order_relaxed) >= merge_limit(*side)) merge(*side);
        }
      }
    } catch (...) {
      const std::lock_guard<std::mutex> guard(pool_);
      if (!error_) error_ = std::current_exception();
      limit_ = 0;
    }
  }

  void answer(size_t task, RowSorter& sorter) {
    std::vector<Pairs>& out = results_[task];
    out = std::vector<Pairs>(roles_.size());
    size_t pairs = 0;
    for (size_t r = 0; r < roles_.size(); ++r) {
      find(roles_[r], ends_[r][task], ends_[r][task + 1], out[r], sorter);
      pairs += out[r].size();
    }
    for (const auto& side : sides_) store(*side, task);
    found_.fetch_add(pairs, std::memory_order_relaxed);
  }

  class Shared {  // the gate, unless there is one thread alone
   public:
    Shared(std::shared_mutex& gate, bool locks) : gate_(locks ? &gate : nullptr) {
      if (gate_) gate_->lock_shared();
    }
    ~Shared() {
      if (gate_) gate_->unlock_shared();
    }
    Shared(const Shared&) = delete;

   private:
    std::shared_mutex* gate_;
  };

  void find(const Role& role, size_t begin, size_t end, Pairs& out, RowSorter& sorter) {
    Side& side = *sides_[role.target];
    const Probes& probes = role.probes;
    const Shared shared(side.gate, settings_.locks);
    Tree& tree = *side.tree;
    for (size_t p = begin; p < end;) {
      size_t asked[kGroup];
      uint64_t lo[kGroup];
      uint32_t part[kGroup], leaf[kGroup];
      size_t group = 0;
      for (; p < end && group < kGroup; ++p) {
        if (probes.empty(p)) continue;
        asked[group] = p;
        lo[group++] = probes.lo[p];
      }
      // An old edge is as good: what was stored since is found in the log.
      const int64_t edge = side.rows.row_at(side.edge.load(std::memory_order_acquire));
      tree.find_parts(lo, group, part);
      std::copy_n(part, group, leaf);
      tree.search.descend_from(tree.depth, lo, group, leaf);
      for (size_t g = 0; g < group; ++g) {
        const int64_t row_lo = probes.row_lo[asked[g]], row_hi = probes.row_hi[asked[g]];
        const uint64_t hi = probes.hi[asked[g]];
        PositionFilter filter(side.rows, row_lo, std::max(row_lo, std::min(row_hi, edge)), out.row);
        if (row_lo < edge) {
          scan_parts(tree, part[g], lo[g], hi, filter);
          tree.search.scan(leaf[g], lo[g], hi, filter);
          filter.finish(sorter);
        }
        size_t found = filter.found();
        const int64_t from = side.rows.position_of(std::max(edge, row_lo)), to = side.rows.position_of(row_hi);
        if (from < to) {
          const KeyRange range = {side.keys.data() + (from - side.keys.first_row()), lo[g], hi};
          const auto n = static_cast<size_t>(to - from);
          found += scan(&range, 1, n, side.rows.row_at(from), out.row.reserve(found + n + 8) + found);
        }
        if (found) out.claim(static_cast<int64_t>(asked[g]), found);
      }
    }
  }

  void scan_parts(Tree& tree, uint32_t part, uint64_t lo, uint64_t hi, PositionFilter& filter) {
    for (;; ++part) {
      Part& at = tree.parts[part];
      if (settings_.locks) at.lock.lock();
      if (at.tree.size()) {
        uint32_t leaf;
        at.tree.find(&lo, 1, &leaf);
        try {
          at.tree.scan(leaf, lo, hi, filter);
        } catch (...) {
          if (settings_.locks) at.lock.unlock();
          throw;
        }
      }
      if (settings_.locks) at.lock.unlock();
      // Equal keys go left, so nothing beyond a bound equals it; and the last bound is the greatest key there is.
      if (hi <= tree.search.keys().bound(tree.depth, part)) return;
    }
  }

  // Stores the rows of a task in their side's tree, or leaves them to who is about to exchange it.
  void store(Side& side, size_t task) {
    const int64_t begin = position_of_task(side, task), end = position_of_task(side, task + 1);
    {
      const Shared shared(side.gate, settings_.locks);
      if (side.frozen) {
        const std::lock_guard<std::mutex> guard(side.passing);
        side.passed_over.push_back(task);
        return;
      }
      Tree& tree = *side.tree;
      const uint64_t* keys = side.keys.data() + (begin - side.keys.first_row());
      const auto n = static_cast<size_t>(end - begin);
      uint32_t part[kGroup];
      for (size_t first = 0; first < n; first += kGroup) {
        const size_t group = std::min(kGroup, n - first);
        tree.find_parts(keys + first, group, part);
        for (size_t i = 0; i < group; ++i) {
          Part& at = tree.parts[part[i]];
          const std::unique_lock<SpinLock> lock =
              settings_.locks ? std::unique_lock<SpinLock>(at.lock) : std::unique_lock<SpinLock>();
          at.tree.insert(keys[first + i], static_cast<uint32_t>(begin) + static_cast<uint32_t>(first + i));
        }
      }
      side.inserted.fetch_add(n, std::memory_order_relaxed);
    }
    side.stored[task].store(true, std::memory_order_release);
    move_edge(side);
  }

  size_t merge_limit(const Side& side) const {
    return std::max(settings_.least, static_cast<size_t>(settings_.merge_ratio * static_cast<double>(side.rows.size())));
  }

  void merge(Side& side) {
    if (side.merging.exchange(true)) return;  // somebody else is at it
    if (settings_.blocking || !settings_.locks) {
      const std::lock_guard<std::shared_mutex> alone(side.gate);
      exchange(side, merged(side));
    } else {
      {
        const std::lock_guard<std::shared_mutex> alone(side.gate);
        side.frozen = true;
      }
      std::unique_ptr<Tree> next;
      try {
        next = merged(side);
      } catch (...) {
        const std::lock_guard<std::shared_mutex> alone(side.gate);
        side.frozen = false;
        throw;
      }
      const std::lock_guard<std::shared_mutex> alone(side.gate);
      exchange(side, std::move(next));
      side.frozen = false;
    }
    side.merging = false;
    std::vector<size_t> left;
    {
      const std::lock_guard<std::mutex> guard(side.passing);
      left.swap(side.passed_over);
    }
    for (const size_t task : left) store(side, task);
    // They may have met the next merge; and who makes that one stores them.
  }

  void exchange(Side& side, std::unique_ptr<Tree> next) {
    side.tree.swap(next);
    side.inserted = 0;
    ++side.merges;
  }

  // Search part and insertions as one, without what has expired. Nobody stores meanwhile.
  static std::unique_ptr<Tree> merged(const Side& side) {
    size_t inserted = 0;
    for (const Part& part : side.tree->parts) inserted += part.tree.size();
    Array<Entry> fresh(inserted);
    Entry* to = fresh.get();
    for (const Part& part : side.tree->parts) to = part.tree.drain(to);
    const ImmutableTree& old = side.tree->search;
    const auto first = static_cast<uint32_t>(side.rows.begin());
    const size_t most = side.rows.size();
    const auto lives = [&](uint32_t position) { return position - first < most; };
    size_t live = 0;
    for (size_t i = 0; i < old.size(); ++i) live += lives(old.positions()[i]);
    for (const Entry* entry = fresh.get(); entry < to; ++entry) live += lives(static_cast<uint32_t>(entry->row));
    return std::make_unique<Tree>(ImmutableTree(live, [&](uint64_t* keys, uint32_t* positions) {
      const uint64_t* old_keys = old.keys().data();
      size_t at = 0, next = 0;
      const auto copy = [&](uint64_t key, uint32_t position) {
        keys[at] = key;
        positions[at] = position;
        at += lives(position);
      };
      for (const Entry* entry = fresh.get(); entry < to; ++entry) {
        for (; next < old.size() && old_keys[next] <= entry->key; ++next) copy(old_keys[next], old.positions()[next]);
        copy(entry->key, static_cast<uint32_t>(entry->row));
      }
      for (; next < old.size(); ++next) copy(old_keys[next], old.positions()[next]);
    }));
  }

  // A tree of all rows of the log. Between steps.
  void replace(Side& side) {
    Array<Entry> entries(side.rows.size()), scratch(side.rows.size());
    for (size_t i = 0; i < entries.size(); ++i) {
      entries[i] = {side.keys[i], side.rows.begin() + static_cast<int64_t>(i)};
    }
    sort_by_key(entries.get(), scratch.get(), entries.size());
    exchange(side, std::make_unique<Tree>(ImmutableTree(entries.size(), [&](uint64_t* keys, uint32_t* positions) {
               for (size_t i = 0; i < entries.size(); ++i) {
                 keys[i] = entries[i].key;
                 positions[i] = static_cast<uint32_t>(entries[i].row);
               }
             })));
  }

  const Settings settings_;
  std::vector<std::unique_ptr<Side>> sides_;

  // The step that is under way.
  std::vector<Role> roles_;
  std::vector<std::vector<size_t>> ends_;  // of each role: where each task begins
  std::vector<std::vector<Pairs>> results_;  // of each task, by role
  std::atomic<size_t> next_{0};  // task
  size_t handed_out_ = 0;        // tasks whose pairs were handed out

  // The threads.
  std::mutex pool_;
  std::condition_variable wake_, idle_;
  std::vector<std::thread> helpers_;
  std::atomic<size_t> wanted_{1}, found_{0}, limit_{0};
  size_t working_ = 0, round_ = 0;
  bool open_ = false, leaving_ = false;
  std::exception_ptr error_;
};

}  // namespace dovetail
