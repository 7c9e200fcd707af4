// The band join of the papers, tuple by tuple, on ordinary trees and on our stores: what `tests.bench.state` measures
// beside the Python-visible stores. Built for the benchmark only, as it wants Abseil's B-tree.
//
// Two streams in strict alternation, count windows: tuple i of the left meets right rows [i - w, i), tuple i of the
// right meets left rows [i + 1 - w, i + 1). Each pair is written as (probe, row), 16 bytes.
#include <absl/container/btree_map.h>
#include <time.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "catalog.hpp"

namespace {

double cpu_seconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

}  // namespace

extern "C" {

struct Work {
  const uint64_t *keys[2], *lo[2], *hi[2];  // of each stream: what is stored, and what each tuple looks for
  int64_t n, warm, w;                       // tuples a stream; how many of them only fill the windows; rows a window
};

struct Outcome {
  double seconds;
  int64_t pairs, checksum, bytes;
};

}  // extern "C"

namespace {

void count(Outcome& outcome, const int64_t* probe, const int64_t* row, size_t n, int64_t side) {
  outcome.pairs += static_cast<int64_t>(n);
  uint64_t sum = 0;
  for (size_t i = 0; i < n; ++i) sum += static_cast<uint64_t>(probe[i] * 2654435761 + row[i] * 40503 + side);
  outcome.checksum = static_cast<int64_t>(static_cast<uint64_t>(outcome.checksum) + sum);
}

template <typename Map>
Outcome run_tree(const Work& work) {
  Map trees[2];
  std::vector<int64_t> probe, row;
  Outcome outcome{};
  double spent = 0;
  for (int64_t begin = 0; begin < work.n; begin += 4096) {
    const int64_t end = std::min(work.n, begin + 4096);
    probe.clear();
    row.clear();
    const double start = cpu_seconds();
    for (int64_t i = begin; i < end; ++i) {
      for (int side = 0; side < 2; ++side) {
        Map &mine = trees[side], &other = trees[1 - side];
        if (i >= work.warm) {
          const uint64_t hi = work.hi[side][i];
          for (auto it = other.lower_bound(work.lo[side][i]); it != other.end() && it->first <= hi; ++it) {
            probe.push_back(i);
            row.push_back(it->second);
          }
        }
        if (i >= work.w) {
          const int64_t gone = i - work.w;
          for (auto it = mine.lower_bound(work.keys[side][gone]);; ++it) {
            if (it->second == gone) {
              mine.erase(it);
              break;
            }
          }
        }
        mine.emplace(work.keys[side][i], i);
      }
    }
    spent += begin >= work.warm ? cpu_seconds() - start : 0;
    count(outcome, probe.data(), row.data(), probe.size(), 0);
  }
  outcome.seconds = spent;
  return outcome;
}

}  // namespace

extern "C" {

Outcome run_absl(const Work* work) { return run_tree<absl::btree_multimap<uint64_t, int64_t>>(*work); }
Outcome run_multimap(const Work* work) { return run_tree<std::multimap<uint64_t, int64_t>>(*work); }

// Our store by name, `step` tuples of each stream at a time, all inside this one call. `parts`, if given, gets the
// seconds of insert, probe and expire.
Outcome run_store(const char* name, const char** keys, const double* values, size_t settings, const Work* work,
                  int64_t step, double* parts) {
  std::vector<std::pair<std::string, double>> given;
  for (size_t i = 0; i < settings; ++i) given.emplace_back(keys[i], values[i]);
  const dovetail::Kind* kind = nullptr;
  for (const auto& one : dovetail::kinds()) {
    if (std::string(name) == one.name) kind = &one;
  }
  std::unique_ptr<dovetail::Store> stores[2];
  for (auto& store : stores) store = kind->make(dovetail::Settings(kind->parameters, given));
  Outcome outcome{};
  std::vector<int64_t> rows(static_cast<size_t>(work->n)), from[2], to[2];
  for (int side = 0; side < 2; ++side) {
    from[side].resize(rows.size());
    to[side].resize(rows.size());
  }
  for (int64_t i = 0; i < work->n; ++i) {
    rows[i] = i;
    for (int side = 0; side < 2; ++side) {
      to[side][i] = i + side;
      from[side][i] = std::max<int64_t>(0, i + side - work->w);
    }
  }
  const auto insert = [&](int64_t begin, int64_t end) {
    for (int side = 0; side < 2; ++side) {
      stores[side]->insert(work->keys[side] + begin, rows.data() + begin, static_cast<size_t>(end - begin));
    }
  };
  for (int64_t begin = 0; begin < work->warm; begin += 32768) insert(begin, std::min(work->warm, begin + 32768));
  for (int64_t begin = work->warm; begin < work->n; begin += 4096) {
    const int64_t until = std::min(work->n, begin + std::max<int64_t>(4096, step));
    dovetail::Pairs pairs[2];
    const double start = cpu_seconds();
    for (int64_t i = begin; i < until; i += step) {
      const int64_t end = std::min(until, i + step);
      const double a = parts ? cpu_seconds() : 0;
      insert(i, end);
      const double b = parts ? cpu_seconds() : 0;
      for (int side = 0; side < 2; ++side) {
        const dovetail::Probes probes{work->lo[side] + begin, work->hi[side] + begin, from[side].data() + begin,
                                      to[side].data() + begin};
        stores[1 - side]->probe(probes, static_cast<size_t>(i - begin), static_cast<size_t>(end - begin),
                                SIZE_MAX, pairs[side]);
      }
      const double c = parts ? cpu_seconds() : 0;
      for (auto& store : stores) store->expire(end - work->w);
      if (parts) {
        parts[0] += b - a;
        parts[1] += c - b;
        parts[2] += cpu_seconds() - c;
      }
    }
    outcome.seconds += cpu_seconds() - start;
    for (int side = 0; side < 2; ++side) {
      int64_t* probe = pairs[side].probe.data();
      for (size_t i = 0; i < pairs[side].size(); ++i) probe[i] += begin;
      count(outcome, probe, pairs[side].row.data(), pairs[side].size(), 0);
    }
    begin = until - 4096;
  }
  outcome.bytes = static_cast<int64_t>(stores[0]->nbytes() + stores[1]->nbytes());
  return outcome;
}

}  // extern "C"
