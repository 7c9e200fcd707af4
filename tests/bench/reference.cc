// The window join of the papers on ordinary trees, tuple by tuple, and on our stores in steps, all inside native calls:
// what `tests.bench.state` measures beside the Python-visible stores. Built for the benchmark only (it wants Abseil).
//
// Two streams come in an order that is given; what each tuple looks for, and the rows that it may meet, are given too.
// Each pair is written as (probe, row), 16 bytes.
#include <absl/container/btree_map.h>
#include <time.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "catalog.hpp"
#include "cpu.hpp"

extern "C" {

// Arrays by side: 0 left, 1 right. Rows [from, to) of the other side are what a tuple may meet; both have one element
// more than there are tuples, for those that are still to come.
struct Work {
  const uint64_t *keys[2], *lo[2], *hi[2];
  const int64_t *from[2], *to[2];
  const uint8_t* side;  // of each tuple, in the order of arrival
  int64_t self_join;    // all tuples are the left's, and meet earlier ones of their own

  int other(int mine) const { return self_join ? mine : 1 - mine; }
};

struct Outcome {
  double seconds, insert, probe, expire;
  int64_t pairs, checksum, bytes;
};

}  // extern "C"

namespace {

double cpu_seconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

struct Join {
  int64_t next[2] = {};  // tuples of each side that have come
  virtual ~Join() = default;
  // Takes `n` more tuples in, `step` at a time; without `join` it only fills the windows.
  virtual Outcome run(const Work& work, int64_t at, int64_t n, int64_t step, bool join) = 0;
};

void count(Outcome& outcome, const int64_t* probe, const int64_t* row, size_t n, int64_t first, int side) {
  outcome.pairs += static_cast<int64_t>(n);
  uint64_t sum = 0;
  for (size_t i = 0; i < n; ++i) {
    sum += static_cast<uint64_t>(probe[i] + first) * 2654435761u + static_cast<uint64_t>(row[i]) * 40503u +
           static_cast<uint64_t>(side);
  }
  outcome.checksum = static_cast<int64_t>(static_cast<uint64_t>(outcome.checksum) + sum);
}

// One insertion and one deletion a tuple, as the papers' baseline does.
template <typename Map>
struct Trees final : Join {
  Map trees[2];
  int64_t oldest[2] = {};

  Outcome run(const Work& work, int64_t at, int64_t n, int64_t, bool join) override {
    Outcome outcome{};
    std::vector<int64_t> probe[2], row[2];
    while (n > 0) {
      const int64_t some = std::min<int64_t>(n, 4096);
      for (int side = 0; side < 2; ++side) {
        probe[side].clear();
        row[side].clear();
      }
      const double start = cpu_seconds();
      for (int64_t i = at; i < at + some; ++i) {
        const int side = work.side[i], other = work.other(side);
        const int64_t mine = next[side]++;
        expire(work, other, work.from[side][mine]);
        if (join) {
          const uint64_t hi = work.hi[side][mine];
          for (auto it = trees[other].lower_bound(work.lo[side][mine]); it != trees[other].end() && it->first <= hi;
               ++it) {
            probe[side].push_back(mine);
            row[side].push_back(it->second);
          }
        }
        trees[side].emplace(work.keys[side][mine], mine);
      }
      outcome.seconds += cpu_seconds() - start;
      for (int side = 0; side < 2; ++side) count(outcome, probe[side].data(), row[side].data(), row[side].size(), 0, side);
      at += some;
      n -= some;
    }
    return outcome;
  }

  void expire(const Work& work, int side, int64_t before) {
    for (; oldest[side] < before && oldest[side] < next[side]; ++oldest[side]) {
      for (auto it = trees[side].lower_bound(work.keys[side][oldest[side]]);; ++it) {
        if (it->second == oldest[side]) {
          trees[side].erase(it);
          break;
        }
      }
    }
  }
};

struct Stores final : Join {
  std::unique_ptr<dovetail::Store> stores[2];
  std::vector<int64_t> rows;

  Outcome run(const Work& work, int64_t at, int64_t n, int64_t step, bool join) override {
    Outcome outcome{};
    rows.resize(static_cast<size_t>(step));
    const bool parts = step >= 64;
    while (n > 0) {
      // Results are handed over every so many tuples, whatever the step.
      const int64_t some = std::min(n, std::max<int64_t>(4096, step));
      dovetail::Pairs pairs[2];
      const int64_t base[2] = {next[0], next[1]};
      const double start = cpu_seconds();
      for (int64_t i = at; i < at + some; i += step) {
        const int64_t until = std::min(at + some, i + step), first[2] = {next[0], next[1]};
        for (int64_t t = i; t < until; ++t) ++next[work.side[t]];
        const double a = parts ? cpu_seconds() : 0;
        for (int side = 0; side < 2; ++side) {
          const int64_t fresh = next[side] - first[side];
          for (int64_t r = 0; r < fresh; ++r) rows[static_cast<size_t>(r)] = first[side] + r;
          stores[side]->insert(work.keys[side] + first[side], rows.data(), static_cast<size_t>(fresh));
        }
        const double b = parts ? cpu_seconds() : 0;
        if (join) {
          for (int side = 0; side < 2; ++side) {
            const int64_t from = base[side];
            const dovetail::Probes probes{work.lo[side] + from, work.hi[side] + from, work.from[side] + from,
                                          work.to[side] + from};
            if (next[side] == first[side]) continue;
            stores[work.other(side)]->probe(probes, static_cast<size_t>(first[side] - from),
                                    static_cast<size_t>(next[side] - from), SIZE_MAX, pairs[side]);
          }
        }
        const double c = parts ? cpu_seconds() : 0;
        for (int side = 0; side < (work.self_join ? 1 : 2); ++side) {
          const int asking = work.other(side);
          stores[side]->expire(work.from[asking][next[asking]]);
        }
        if (parts) {
          outcome.insert += b - a;
          outcome.probe += c - b;
          outcome.expire += cpu_seconds() - c;
        }
      }
      outcome.seconds += cpu_seconds() - start;
      for (int side = 0; side < 2; ++side) {
        count(outcome, pairs[side].probe.data(), pairs[side].row.data(), pairs[side].size(), base[side], side);
      }
      at += some;
      n -= some;
    }
    outcome.bytes = static_cast<int64_t>(stores[0]->nbytes() + stores[1]->nbytes());
    return outcome;
  }
};

// Abseil's tree alone, under the contract of a store.
struct TreeStore final : dovetail::Store {
  absl::btree_multimap<uint64_t, int64_t> tree;

  void insert(const uint64_t* keys, const int64_t* rows, size_t n) override {
    for (size_t i = 0; i < n; ++i) tree.emplace(keys[i], rows[i]);
  }
  size_t probe(const dovetail::Probes& probes, size_t begin, size_t end, size_t, dovetail::Pairs& out) override {
    for (size_t p = begin; p < end; ++p) {
      size_t found = 0;
      for (auto it = tree.lower_bound(probes.lo[p]); it != tree.end() && it->first <= probes.hi[p]; ++it) {
        out.row.reserve(found + 1)[found] = it->second;
        found += it->second >= probes.row_lo[p] && it->second < probes.row_hi[p];
      }
      out.claim(static_cast<int64_t>(p), found);
    }
    return end;
  }
  void expire(int64_t) override {}
  size_t size() const override { return tree.size(); }
  size_t nbytes() const override { return 0; }
  void check() const override {}
};

std::unique_ptr<dovetail::Store> make_store(const std::string& name, const char** keys, const double* values,
                                            size_t settings) {
  if (name == "absl") return std::make_unique<TreeStore>();
  std::vector<std::pair<std::string, double>> given;
  for (size_t i = 0; i < settings; ++i) given.emplace_back(keys[i], values[i]);
  for (const auto& kind : dovetail::kinds()) {
    if (name == kind.name) return kind.make(dovetail::Settings(kind.parameters, given));
  }
  return nullptr;
}

}  // namespace

extern "C" {

// "absl", "multimap", or the name of a store.
void* open_join(const char* name, const char** keys, const double* values, size_t settings) {
  if (std::string(name) == "absl") return new Trees<absl::btree_multimap<uint64_t, int64_t>>;
  if (std::string(name) == "multimap") return new Trees<std::multimap<uint64_t, int64_t>>;
  auto* join = new Stores;
  for (auto& store : join->stores) store = make_store(name, keys, values, settings);
  return join;
}

Outcome run_join(void* running, const Work* work, int64_t at, int64_t n, int64_t step, int join) {
  return static_cast<Join*>(running)->run(*work, at, n, step, join != 0);
}

void close_join(void* running) { delete static_cast<Join*>(running); }

// A store alone: "absl", or the name of a store. Times are CPU seconds.
void* open_store(const char* name, const char** keys, const double* values, size_t settings) {
  return make_store(name, keys, values, settings).release();
}

void close_store(void* store) { delete static_cast<dovetail::Store*>(store); }

// Rows `first` and on, in calls of `step`; with a step of 0 all are built at once.
double insert_rows(void* store, const uint64_t* keys, int64_t first, int64_t n, int64_t step) {
  auto* to = static_cast<dovetail::Store*>(store);
  std::vector<int64_t> rows(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) rows[static_cast<size_t>(i)] = first + i;
  const double start = cpu_seconds();
  if (step == 0) to->build(keys, rows.data(), static_cast<size_t>(n));
  for (int64_t i = 0; step > 0 && i < n; i += step) {
    to->insert(keys + i, rows.data() + i, static_cast<size_t>(std::min(step, n - i)));
  }
  return cpu_seconds() - start;
}

// Probes for rows [from, to), in calls of `step`; results are kept for 4,096 probes, or for one call of more.
Outcome probe_rows(void* store, const uint64_t* lo, const uint64_t* hi, int64_t from, int64_t to, int64_t n,
                   int64_t step) {
  Outcome outcome{};
  const std::vector<int64_t> row_lo(static_cast<size_t>(n), from), row_hi(static_cast<size_t>(n), to);
  const int64_t kept = std::max<int64_t>(4096 / step, 1) * step;
  for (int64_t first = 0; first < n; first += kept) {
    const int64_t until = std::min(n, first + kept);
    dovetail::Pairs pairs;
    const double start = cpu_seconds();
    for (int64_t i = first; i < until; i += step) {
      static_cast<dovetail::Store*>(store)->probe({lo, hi, row_lo.data(), row_hi.data()}, static_cast<size_t>(i),
                                                  static_cast<size_t>(std::min(until, i + step)), SIZE_MAX, pairs);
    }
    outcome.seconds += cpu_seconds() - start;
    count(outcome, pairs.probe.data(), pairs.row.data(), pairs.size(), 0, 0);
  }
  return outcome;
}

// Rows below `before`, `step` more at each call.
double expire_rows(void* store, int64_t from, int64_t before, int64_t step) {
  const double start = cpu_seconds();
  for (int64_t row = from; row < before; row += step) {
    static_cast<dovetail::Store*>(store)->expire(std::min(before, row + step));
  }
  return cpu_seconds() - start;
}

// "bytes", or one of the store's statistics.
double look_up(void* store, const char* name) {
  if (std::string(name) == "bytes") return static_cast<double>(static_cast<dovetail::Store*>(store)->nbytes());
  for (const auto& [key, value] : static_cast<dovetail::Store*>(store)->statistics()) {
    if (key == name) return value;
  }
  return -1;
}

// "bytes", or a statistic, of the left's window of a join.
double look_up_left(void* running, const char* name) {
  return look_up(static_cast<Stores*>(running)->stores[0].get(), name);
}

void force_portable(int portable) { dovetail::force_portable(portable != 0); }

}  // extern "C"
