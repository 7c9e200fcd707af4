// Joins on shared PIM-Trees against a loop over all pairs, with threads that come and go: to be built with
// ThreadSanitizer (tests/test_shared.py). Says what differs and ends with 1, or says how much it compared.

#include "shared_pim.hpp"

#include <random>

#include "seeds.hpp"

using dovetail::Pairs;
using dovetail::SharedPim;

namespace {

struct Row {
  uint64_t key;
  int64_t rank;
};

// New tuples of one role, as arrays.
struct Asked {
  std::vector<uint64_t> lo, hi;
  std::vector<int64_t> row_lo, row_hi, rank;

  SharedPim::Role role(size_t target, int64_t stored) const {
    return {target, stored, {lo.data(), hi.data(), row_lo.data(), row_hi.data()}, rank.data(), rank.size()};
  }
};

size_t compare(uint64_t seed) {
  std::mt19937_64 rng(seed);
  const auto below = [&](uint64_t n) { return rng() % n; };
  const bool itself = below(3) == 0;
  const size_t sides = itself ? 1 : 2;
  SharedPim::Settings settings;
  settings.merge_ratio = below(2) ? 1.0 / 16 : 1.0 / 2;
  settings.least = 8 << below(5);
  settings.task = 1 << below(7);
  settings.blocking = below(2);
  SharedPim join(sides, 1 + below(4), settings);

  const int64_t window = 50 + static_cast<int64_t>(below(3000));
  const uint64_t keys = below(2) ? 20 : 1 << 20;  // few keys: many rows in one sub-index
  const uint64_t width = keys == 20 ? below(2) : below(2000);
  std::vector<std::vector<uint64_t>> stored(sides);
  size_t pairs = 0;

  std::atomic<bool> over{false};
  std::thread changes([&] {  // threads join and leave
    std::mt19937_64 mine(seed + 1);
    while (!over) {
      join.set_threads(1 + mine() % 4);
      std::this_thread::yield();
    }
  });

  for (int step = 0; step < 12; ++step) {
    const size_t total = below(4) == 0 ? below(5) : below(3000);
    std::vector<std::vector<uint64_t>> fresh(sides);
    std::vector<Asked> roles(2);
    std::vector<int64_t> first;
    for (const auto& side : stored) first.push_back(static_cast<int64_t>(side.size()));
    for (size_t rank = 0; rank < total; ++rank) {
      const size_t side = itself ? 0 : below(2);
      const uint64_t key = below(50) == 0 ? (below(2) ? 0 : UINT64_MAX) : below(keys) + (step << 10);
      const int64_t mine = first[side] + static_cast<int64_t>(fresh[side].size());
      for (size_t role = 0; role < 2; ++role) {
        if (!itself && role != side) continue;
        Asked& asked = roles[role];
        const size_t target = itself ? 0 : 1 - side;
        const int64_t come = itself ? mine : first[target] + static_cast<int64_t>(fresh[target].size());
        asked.lo.push_back(key < width ? 0 : key - width);
        asked.hi.push_back(key > UINT64_MAX - width ? UINT64_MAX : key + width);
        asked.row_lo.push_back(std::max<int64_t>(0, come - window));
        asked.row_hi.push_back(come);
        asked.rank.push_back(static_cast<int64_t>(rank));
      }
      fresh[side].push_back(key);
    }
    std::vector<const uint64_t*> columns;
    std::vector<size_t> counts;
    for (size_t s = 0; s < sides; ++s) {
      columns.push_back(fresh[s].data());
      counts.push_back(fresh[s].size());
      stored[s].insert(stored[s].end(), fresh[s].begin(), fresh[s].end());
    }
    std::vector<SharedPim::Role> given = {roles[0].role(itself ? 0 : 1, 0), roles[1].role(0, itself ? -1 : 1)};
    join.start(columns.data(), first.data(), counts.data(), given, total);
    std::vector<std::vector<std::pair<int64_t, int64_t>>> found(2);
    while (!join.done()) {
      std::vector<Pairs> some;
      std::vector<size_t> answered;
      join.advance(below(2) ? 1 + below(500) : SIZE_MAX, some, answered);
      for (size_t r = 0; r < 2; ++r) {
        for (size_t i = 0; i < some[r].size(); ++i) {
          found[r].emplace_back(some[r].probe.data()[i], some[r].row.data()[i]);
        }
      }
    }
    for (size_t r = 0; r < 2; ++r) {
      const Asked& asked = roles[r];
      const std::vector<uint64_t>& side = stored[given[r].target];
      std::vector<std::pair<int64_t, int64_t>> expected;
      for (size_t p = 0; p < asked.lo.size(); ++p) {
        for (int64_t row = asked.row_lo[p]; row < asked.row_hi[p]; ++row) {
          const uint64_t key = side[static_cast<size_t>(row)];
          if (asked.lo[p] <= key && key <= asked.hi[p]) expected.emplace_back(static_cast<int64_t>(p), row);
        }
      }
      if (found[r] != expected) {
        std::printf("seed %llu, step %d, role %zu: %zu pairs and not %zu\n", static_cast<unsigned long long>(seed), step,
                    r, found[r].size(), expected.size());
        std::exit(1);
      }
      pairs += expected.size();
    }
    join.check();
    for (size_t s = 0; s < sides; ++s) {
      const auto end = static_cast<int64_t>(stored[s].size());
      if (below(3)) join.expire(s, std::max<int64_t>(0, end - window));
      join.check();
    }
  }
  over = true;
  changes.join();
  return pairs;
}

}  // namespace

int main(int, char** argv) { return run_seeds(argv, compare); }
