// A window cut into sub-windows, each with a structure of its own: what PanJoin's stores have in common.
//
// Problem: a structure that serves whole windows must find each row again to delete it, and can never be laid out
// anew. Idea: rows go into the newest *sub-window* until it is closed; then the next one is opened, laid out by what
// was learnt from its predecessor. Nothing is ever deleted: a sub-window is dropped whole when its last row has
// expired, and in the oldest one expired rows are told by their row.
//
// A store does not know how long its window is, nor need that be a number of rows, so the length of a sub-window
// follows the rows that are live: 1 / (parts - 1) of them, but not fewer than `least`. Then `parts` sub-windows cover
// the window: the newest is being filled and of the oldest some rows have expired. As long as nothing expires the
// window is taken to grow, and a sub-window is laid out for up to twice as much. The newest is closed early when it
// was laid out for more than four times what is wanted now, so that memory follows the window down. The first
// sub-window has no predecessor to learn from and is short: it is the sample for the second.
//
// A Part is the structure of one sub-window. Inside it rows are numbered from 0 (*places*). It has
//   Part(options, rows, before)   laid out for `rows` rows; `before` is the predecessor, or null for the first
//   Options(settings)             what it reads from the settings of the store, which parameters() lists
//   Spot                          where a probe begins: plain data
//   locate(lo, hi, n, spots)      the Spots of n <= kGroup key ranges, empty ones too, with their memory on the way
//   approach(spots, n)            asks for the memory that could not be known before that of the Spots was there
//   collect(spot, wanted, out, f) writes what is wanted, unordered, from f behind the end of `out` on; tells how many
//   insert(keys, n)               the next n places; when memory runs out the first ones may be in, as rows() tells
//   take_back(key)                removes the newest row, whose key this is; never fails
//   rows(), capacity(), nbytes(), check(), describe(statistics)
//
// Cost: a probe looks into `parts` sub-windows, all of whose memory it asks for before it reads any, and batches look
// ahead over several probes; expire O(1) amortised. While a window stays as it is, the rows that are held though they
// have expired are at most 1 / (parts - 1) of the live ones: `parts` buys memory with time.
// Invariants: sub-windows are not empty, follow each other without a gap and end with the last row; the oldest holds a
// live row. Results come sub-window by sub-window, oldest first: sorted inside each, they ascend.
// Where it loses: windows of which a probe wants a row or two and the structure would have found it at once: `parts`
// searches instead of one.
// Unlike in the paper one thread serves all sub-windows; batches are not sorted by key but look ahead, and rows
// are bounded for each probe, so that batches do not change results.
#pragma once

#include <algorithm>

#include "row_log.hpp"
#include "row_sorter.hpp"
#include "search.hpp"
#include "store.hpp"

namespace dovetail {

// What a probe wants of one sub-window: keys in [lo, hi], places in [from, from + length). A place that matches is
// written as `shift` + place.
struct Wanted {
  uint64_t lo, hi;
  uint32_t from, length;
  int64_t shift;
};

template <typename Part>
class SubWindows final : public Store {
 public:
  static std::vector<Parameter> parameters() {
    std::vector<Parameter> all = Part::parameters();
    all.push_back({"parts", 2, 2, 1024, "sub-windows that cover the window; more: slower, less memory"});
    all.push_back({"least", 1024, 1, 1 << 30, "rows of the shortest sub-window"});
    return all;
  }
  explicit SubWindows(const Settings& settings)
      : parts_(settings.count("parts")), least_(settings.count("least")), options_(settings) {}

  void insert(const uint64_t* keys, const int64_t* rows, size_t n) override {
    if (n == 0) return;
    const int64_t begin = log_.end();
    log_.append(rows, n);
    try {
      for (int64_t at = begin; at < log_.end(); at = subs_.back().end()) {
        if (subs_.empty() || is_closed(subs_.back().part)) open(at);
        Part& newest = subs_.back().part;
        const size_t room = std::min(newest.capacity(), wanted_rows()) - newest.rows();
        newest.insert(keys + (at - begin), std::min(static_cast<size_t>(log_.end() - at), room));
      }
    } catch (...) {
      take_back(keys, begin);
      log_.take_back(n);
      throw;
    }
    if (rows[0] < bound_) drop_expired();
  }

  size_t probe(const Probes& probes, size_t begin, size_t end, size_t limit, Pairs& out) override {
    if (subs_.empty() || begin == end) return end;
    if (spots_.size() < 2 * kGroup * subs_.size()) spots_.resize(2 * kGroup * subs_.size());
    Group groups[2];
    Group *now = &groups[0], *next = &groups[1];
    now->spots = spots_.data();
    next->spots = spots_.data() + kGroup * subs_.size();
    look(probes, begin, end, *now);
    while (now->begin < end) {
      look(probes, now->end, end, *next);
      for (size_t s = now->subs_begin; s < now->subs_end; ++s) {
        subs_[s].part.approach(now->spots + s * kGroup, now->end - now->begin);
      }
      for (size_t p = now->begin; p < now->end; ++p) {
        if (answer(probes, p, *now, out) && out.size() >= limit) return p + 1;
      }
      std::swap(now, next);
    }
    return end;
  }

  void expire(int64_t before_row) override {
    if (before_row <= bound_) return;
    bound_ = before_row;
    drop_expired();
  }

  size_t size() const override { return log_.size(); }

  size_t nbytes() const override {
    size_t bytes = log_.nbytes() + sorter_.nbytes() + subs_.capacity() * sizeof(Sub) +
                   spots_.capacity() * sizeof(Spot);
    for (const Sub& sub : subs_) bytes += sub.part.nbytes();
    return bytes;
  }

  // The structure is described by the newest sub-window that is closed, as the one that is filled is incomplete.
  Statistics statistics() const override {
    Statistics all = {{"sub_windows", static_cast<double>(subs_.size())},
                      {"opened", static_cast<double>(opened_)}};
    if (!subs_.empty()) subs_[subs_.size() - (subs_.size() > 1 ? 2 : 1)].part.describe(all);
    return all;
  }

  void check() const override {
    log_.check();
    int64_t at = subs_.empty() ? log_.end() : subs_.front().first;
    demand(at <= log_.begin(), "sub-windows: the first live row is in one");
    for (const Sub& sub : subs_) {
      demand(sub.part.rows() > 0 && sub.part.rows() <= sub.part.capacity(), "sub-windows: not empty, not overfull");
      demand(sub.first == at, "sub-windows: one begins where the one before ends");
      sub.part.check();
      at = sub.end();
    }
    demand(at == log_.end(), "sub-windows: the last row is in the newest");
    demand(subs_.empty() || subs_.front().end() > log_.begin(), "sub-windows: the oldest holds a live row");
  }

 private:
  static constexpr size_t kSample = 1024;  // rows of the first sub-window, whatever is wanted
  static constexpr size_t kMostRows = size_t{1} << 29;  // places are 32 bits, as are the numbers of chunks

  using Spot = typename Part::Spot;

  struct Sub {
    int64_t first;  // position of its place 0 in the log
    Part part;
    int64_t end() const { return first + static_cast<int64_t>(part.rows()); }
  };
  struct Group {  // some probes that are answered together
    size_t begin, end;
    size_t subs_begin, subs_end;         // the sub-windows that they meet
    int64_t from[kGroup], to[kGroup];    // the positions that each wants
    Spot* spots;                         // where each begins: kGroup spots for each sub-window
  };

  size_t wanted_rows() const { return std::clamp(log_.size() / (parts_ - 1), least_, kMostRows); }

  bool is_closed(const Part& newest) const {
    const size_t wanted = wanted_rows();
    return newest.rows() >= std::min(newest.capacity(), wanted) || newest.capacity() / 4 > wanted;
  }

  void open(int64_t at) {
    const bool first = subs_.empty();
    const bool growing = !first && subs_.front().first >= log_.begin();
    size_t rows = first ? std::min(least_, kSample) : wanted_rows();
    if (growing) rows = std::clamp(log_.size(), rows, 2 * rows);
    subs_.reserve(subs_.size() + 1);
    subs_.push_back(Sub{at, Part(options_, rows, first ? nullptr : &subs_.back().part)});
    ++opened_;
  }

  // Undoes an insertion of which some places are in: `keys` are those of the positions from `begin` on.
  void take_back(const uint64_t* keys, int64_t begin) {
    while (!subs_.empty()) {
      Sub& newest = subs_.back();
      while (newest.part.rows() > 0 && newest.end() > begin) newest.part.take_back(keys[newest.end() - 1 - begin]);
      if (newest.part.rows() > 0) return;
      subs_.pop_back();
      --opened_;
    }
  }

  void drop_expired() {
    const int64_t begin = log_.expire(bound_);
    size_t n = 0;
    while (n < subs_.size() && subs_[n].end() <= begin) ++n;
    if (n) subs_.erase(subs_.begin(), subs_.begin() + static_cast<std::ptrdiff_t>(n));
  }

  void look(const Probes& probes, size_t begin, size_t end, Group& group) const {
    group.begin = begin;
    group.end = std::min(begin + kGroup, end);
    if (begin == end) return;
    int64_t least = INT64_MAX, most = INT64_MIN;
    for (size_t p = begin; p < group.end; ++p) {
      int64_t& from = group.from[p - begin];
      int64_t& to = group.to[p - begin];
      from = to = 0;
      if (probes.empty(p)) continue;
      from = log_.position_of(probes.row_lo[p]);
      to = log_.position_of(probes.row_hi[p], from);
      least = std::min(least, from);
      most = std::max(most, to);
    }
    group.subs_begin = 0;
    group.subs_end = subs_.size();
    while (group.subs_begin < group.subs_end && subs_[group.subs_begin].end() <= least) ++group.subs_begin;
    while (group.subs_begin < group.subs_end && subs_[group.subs_end - 1].first >= most) --group.subs_end;
    for (size_t s = group.subs_begin; s < group.subs_end; ++s) {
      subs_[s].part.locate(probes.lo + begin, probes.hi + begin, group.end - begin, group.spots + s * kGroup);
    }
  }

  size_t answer(const Probes& probes, size_t p, const Group& group, Pairs& out) {
    const size_t at = p - group.begin;
    size_t found = 0;
    for (size_t s = group.subs_begin; s < group.subs_end; ++s) {
      const Sub& sub = subs_[s];
      const int64_t from = std::max(group.from[at], sub.first), to = std::min(group.to[at], sub.end());
      if (from >= to) continue;
      const Wanted wanted{probes.lo[p], probes.hi[p], static_cast<uint32_t>(from - sub.first),
                          static_cast<uint32_t>(to - from), log_.consecutive() ? log_.row_at(sub.first) : sub.first};
      const size_t more = sub.part.collect(group.spots[s * kGroup + at], wanted, out.row, found);
      if (more > 1) sorter_.sort(out.row.data() + out.row.size() + found, more);
      found += more;
    }
    if (found == 0) return 0;
    if (!log_.consecutive()) {
      int64_t* rows = out.row.data() + out.row.size();
      for (size_t i = 0; i < found; ++i) rows[i] = log_.row_at(rows[i]);
    }
    out.claim(static_cast<int64_t>(p), found);
    return found;
  }

  const size_t parts_, least_;
  const typename Part::Options options_;
  Vector<Sub> subs_;
  RowLog log_;
  int64_t bound_ = INT64_MIN;
  size_t opened_ = 0;
  Vector<Spot> spots_;  // of two groups of probes; kept from one call to the next
  RowSorter sorter_;
};

}  // namespace dovetail
