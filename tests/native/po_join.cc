// Joins on `po_join` with several threads over its slides against a loop over all rows: to be built with ThreadSanitizer
// (tests/test_shared.py). Says what differs and ends with 1, or says how much it compared.

#include "po_join.hpp"

#include <random>

#include "seeds.hpp"

using dovetail::Boxes;
using dovetail::Pairs;
using dovetail::PoJoinStore;
using dovetail::Settings;

namespace {

using Columns = std::vector<std::vector<uint64_t>>;

std::vector<const uint64_t*> places(const Columns& columns) {
  std::vector<const uint64_t*> found;
  for (const auto& column : columns) found.push_back(column.data());
  return found;
}

size_t compare(uint64_t seed) {
  std::mt19937_64 rng(seed);
  const auto below = [&](uint64_t n) { return rng() % n; };
  const size_t kinds = 1 + below(3);
  const auto any = [&](uint64_t n) { return static_cast<double>(n); };
  PoJoinStore store(Settings(PoJoinStore::parameters(), {{"slides", any(1 + below(8))}, {"least", any(16 << below(4))},
                                                         {"hash", any(below(2))}, {"threads", any(2 + below(3))}}),
                    kinds);
  const int64_t window = 50 + static_cast<int64_t>(below(3000));
  const uint64_t keys = below(2) ? 20 : 1 << 20;
  Columns held(kinds);
  std::vector<int64_t> rows;
  int64_t next = 0, gone = 0;
  size_t pairs = 0;
  for (int step = 0; step < 12; ++step) {
    const size_t n = below(4) == 0 ? below(5) : below(800);
    Columns fresh(kinds);
    std::vector<int64_t> numbers;
    for (size_t i = 0; i < n; ++i) {
      for (auto& column : fresh) column.push_back(below(50) == 0 ? (below(2) ? 0 : UINT64_MAX) : below(keys));
      numbers.push_back(next += 1 + static_cast<int64_t>(below(20) == 0));
    }
    store.insert(places(fresh).data(), numbers.data(), n);
    for (size_t k = 0; k < kinds; ++k) held[k].insert(held[k].end(), fresh[k].begin(), fresh[k].end());
    rows.insert(rows.end(), numbers.begin(), numbers.end());

    const size_t count = below(200);
    Columns lo(kinds), hi(kinds);
    std::vector<int64_t> row_lo, row_hi;
    for (size_t p = 0; p < count; ++p) {
      for (size_t k = 0; k < kinds; ++k) {
        uint64_t ends[2] = {below(8) ? below(keys) : 0, below(8) ? below(keys) : UINT64_MAX};
        if (below(10)) std::sort(ends, ends + 2);  // else it may be empty
        lo[k].push_back(ends[0]);
        hi[k].push_back(ends[1]);
      }
      row_lo.push_back(std::max(gone, next - window + static_cast<int64_t>(below(100))));
      row_hi.push_back(next + 1 - static_cast<int64_t>(below(100)));
    }
    const auto low = places(lo), high = places(hi);
    const Boxes asked{kinds, low.data(), high.data(), row_lo.data(), row_hi.data()};
    std::vector<std::pair<int64_t, int64_t>> found, expected;
    for (size_t at = 0; at < count;) {
      Pairs some;
      at = store.probe(asked, at, count, below(2) ? 1 + below(500) : SIZE_MAX, some);
      for (size_t i = 0; i < some.size(); ++i) found.emplace_back(some.probe.data()[i], some.row.data()[i]);
    }
    for (size_t p = 0; p < count; ++p) {
      for (size_t i = 0; i < rows.size(); ++i) {
        bool inside = row_lo[p] <= rows[i] && rows[i] < row_hi[p];
        for (size_t k = 0; k < kinds; ++k) inside &= lo[k][p] <= held[k][i] && held[k][i] <= hi[k][p];
        if (inside) expected.emplace_back(static_cast<int64_t>(p), rows[i]);
      }
    }
    if (found != expected) {
      std::printf("seed %llu, step %d: %zu pairs and not %zu\n", static_cast<unsigned long long>(seed), step,
                  found.size(), expected.size());
      std::exit(1);
    }
    pairs += expected.size();
    store.check();
    if (below(3)) store.expire(gone = std::max(gone, next - window));
  }
  return pairs;
}

}  // namespace

int main(int, char** argv) { return run_seeds(argv, compare); }
