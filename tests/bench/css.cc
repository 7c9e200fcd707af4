// What SPO-Join's paper compares itself with, for `tests.bench.choice` alone: slides whose keys stand each in a CSS-tree,
// sorted arrays under a directory of cache lines, and whose finds are intersected as bits or as a set of rows. The
// newest rows are in B+-trees, as po_join has them.
#include <time.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <numeric>
#include <unordered_set>
#include <vector>

#include "po_join.hpp"

namespace {

using namespace dovetail;

constexpr size_t kLine = 8;  // keys

class CssTree {
 public:
  explicit CssTree(const std::vector<uint64_t>& keys) : ids_(keys.size()) {
    std::iota(ids_.begin(), ids_.end(), 0);
    std::stable_sort(ids_.begin(), ids_.end(), [&](uint32_t a, uint32_t b) { return keys[a] < keys[b]; });
    levels_.emplace_back();
    for (const uint32_t id : ids_) levels_[0].push_back(keys[id]);
    while (levels_.back().size() > kLine) {  // above each line stands its greatest key
      const std::vector<uint64_t>& below = levels_.back();
      std::vector<uint64_t> above;
      for (size_t at = 0; at < below.size(); at += kLine) above.push_back(below[std::min(at + kLine, below.size()) - 1]);
      levels_.push_back(std::move(above));
    }
  }

  // How many keys are below one.
  size_t below(uint64_t key) const {
    size_t at = 0;
    for (size_t level = levels_.size(); level-- > 0;) {
      const std::vector<uint64_t>& keys = levels_[level];
      size_t i = at * kLine;
      const size_t end = level + 1 == levels_.size() ? keys.size() : std::min(i + kLine, keys.size());
      while (i < end && keys[i] < key) ++i;
      if (i == keys.size()) return ids_.size();
      at = i;
    }
    return at;
  }

  size_t upto(uint64_t key) const { return key == ~uint64_t{0} ? ids_.size() : below(key + 1); }
  const std::vector<uint32_t>& ids() const { return ids_; }

 private:
  std::vector<uint32_t> ids_;  // of rows, by key
  std::vector<std::vector<uint64_t>> levels_;
};

struct Slide {
  int64_t first;
  size_t size;
  CssTree trees[2];
};

class CssJoin {
 public:
  CssJoin(bool by_hash, size_t slide) : by_hash_(by_hash), slide_(slide) { renew(); }

  void insert(const uint64_t* const* keys, const int64_t* rows, size_t n) {
    for (size_t at = 0; at < n;) {
      const size_t some = std::min(n - at, slide_ - keys_[0].size());
      const uint64_t* mine[2] = {keys[0] + at, keys[1] + at};
      if (keys_[0].empty()) first_ = rows[at];
      for (size_t k = 0; k < 2; ++k) keys_[k].insert(keys_[k].end(), mine[k], mine[k] + some);
      newest_->insert(mine, rows + at, some);
      at += some;
      if (keys_[0].size() < slide_) continue;
      slides_.push_back({first_, slide_, {CssTree(keys_[0]), CssTree(keys_[1])}});
      renew();
    }
  }

  void expire(int64_t before) {
    while (!slides_.empty() && slides_.front().first + static_cast<int64_t>(slide_) <= before) slides_.pop_front();
  }

  size_t find(const Boxes& boxes, size_t p, Pairs& out) {
    rows_.clear();
    for (const Slide& slide : slides_) find_in(slide, boxes, p);
    newest_->probe(boxes, p, p + 1, ~size_t{0} >> 1, out);
    return rows_.size();
  }

  const std::vector<int64_t>& rows() const { return rows_; }

 private:
  void renew() {
    const Settings settings(PoJoinStore::parameters(), {{"least", 1u << 31}, {"hash", by_hash_ ? 1 : 0}});
    newest_ = std::make_unique<PoJoinStore>(settings, 2);
    for (auto& keys : keys_) keys.clear();
  }

  void find_in(const Slide& slide, const Boxes& boxes, size_t p) {
    size_t begin[2], end[2];
    for (size_t k = 0; k < 2; ++k) {
      begin[k] = slide.trees[k].below(boxes.lo[k][p]);
      end[k] = slide.trees[k].upto(boxes.hi[k][p]);
      if (begin[k] >= end[k]) return;
    }
    const auto keep = [&](size_t id) {
      const int64_t row = slide.first + static_cast<int64_t>(id);
      if (row >= boxes.row_lo[p] && row < boxes.row_hi[p]) rows_.push_back(row);
    };
    const std::vector<uint32_t>&one = slide.trees[0].ids(), &two = slide.trees[1].ids();
    if (by_hash_) {
      const size_t before = rows_.size();
      const std::unordered_set<uint32_t> set(one.begin() + static_cast<std::ptrdiff_t>(begin[0]),
                                             one.begin() + static_cast<std::ptrdiff_t>(end[0]));
      for (size_t j = begin[1]; j < end[1]; ++j) {
        if (set.count(two[j])) keep(two[j]);
      }
      std::sort(rows_.begin() + static_cast<std::ptrdiff_t>(before), rows_.end());
      return;
    }
    for (auto& bits : bits_) bits.assign(slide.size / 64 + 1, 0);
    for (size_t i = begin[0]; i < end[0]; ++i) bits_[0][one[i] / 64] |= uint64_t{1} << (one[i] % 64);
    for (size_t j = begin[1]; j < end[1]; ++j) bits_[1][two[j] / 64] |= uint64_t{1} << (two[j] % 64);
    for (size_t word = 0; word < bits_[0].size(); ++word) {
      for (uint64_t set = bits_[0][word] & bits_[1][word]; set; set &= set - 1) {
        keep(word * 64 + static_cast<size_t>(__builtin_ctzll(set)));
      }
    }
  }

  const bool by_hash_;
  const size_t slide_;
  std::deque<Slide> slides_;
  std::unique_ptr<PoJoinStore> newest_;
  std::vector<uint64_t> keys_[2];  // of the newest rows
  int64_t first_ = 0;
  std::vector<int64_t> rows_;
  std::vector<uint64_t> bits_[2];
};

}  // namespace

extern "C" {

void* css_open(int by_hash, int64_t slide) { return new CssJoin(by_hash != 0, static_cast<size_t>(slide)); }
void css_close(void* join) { delete static_cast<CssJoin*>(join); }

// Stores n rows and forgets those before `before`. Returns seconds of CPU.
double css_insert(void* join, const uint64_t* one, const uint64_t* two, const int64_t* rows, int64_t n, int64_t before) {
  timespec start, end;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &start);
  const uint64_t* keys[2] = {one, two};
  static_cast<CssJoin*>(join)->insert(keys, rows, static_cast<size_t>(n));
  static_cast<CssJoin*>(join)->expire(before);
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &end);
  return static_cast<double>(end.tv_sec - start.tv_sec) + 1e-9 * static_cast<double>(end.tv_nsec - start.tv_nsec);
}

// Asks n times; `found`: how many pairs, and the sum of their rows. Returns seconds of CPU.
double css_probe(void* join, const uint64_t* const* lo, const uint64_t* const* hi, const int64_t* row_lo,
                 const int64_t* row_hi, int64_t n, int64_t* found) {
  timespec start, end;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &start);
  const Boxes boxes{2, lo, hi, row_lo, row_hi};
  Pairs out;
  for (size_t p = 0; p < static_cast<size_t>(n); ++p) {
    out.row.clear();
    out.probe.clear();
    found[0] += static_cast<int64_t>(static_cast<CssJoin*>(join)->find(boxes, p, out));
    for (const int64_t row : static_cast<CssJoin*>(join)->rows()) found[1] += row;
    found[0] += static_cast<int64_t>(out.size());
    for (size_t i = 0; i < out.size(); ++i) found[1] += out.row.data()[i];
  }
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &end);
  return static_cast<double>(end.tv_sec - start.tv_sec) + 1e-9 * static_cast<double>(end.tv_nsec - start.tv_nsec);
}

}  // extern "C"
