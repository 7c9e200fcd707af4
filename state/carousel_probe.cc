// How a carousel is probed: places are computed and fetched a group ahead, then looked at. See carousel.hpp.
#include "carousel.hpp"
#include "lanes.hpp"

namespace dovetail {
namespace {

constexpr size_t kReserve = 1 << 20;  // pairs that room is made for at once

}  // namespace

struct CarouselStore::Staged {
  size_t p;
  size_t at;  // the segment of the lower end
  const Bucket *first, *last;
  uint16_t from, to;
  bool simple;  // buckets first to last of one segment are all there is
  bool sure;    // fractions tell all keys apart, also at both ends
  uint32_t start, count;  // positions
  int64_t position;       // `start` in full
};

struct CarouselStore::Finder {
  CarouselStore& store;
  const Probes& probes;
  Pairs& out;
  mutable size_t verified = 0;  // buckets of which keys had to be looked at

  // Computes where a probe must look, and fetches it; false if it can find nothing.
  DOVETAIL_INLINE bool stage(size_t p, Staged& staged) const {
    if (probes.empty(p)) return false;
    const int64_t begin = store.rows_.position_of(probes.row_lo[p]);
    const int64_t end = store.rows_.position_of(probes.row_hi[p], begin);
    if (begin >= end) return false;
    const Index& index = *store.index_;
    const uint64_t lo = probes.lo[p], hi = probes.hi[p];
    const size_t at = store.find(lo);
    const Segment& segment = *index.segments[at];
    const uint64_t from = segment.line(lo), to = segment.line(hi);
    staged.p = p;
    staged.at = at;
    staged.from = static_cast<uint16_t>(from);
    staged.to = static_cast<uint16_t>(to);
    staged.first = segment.buckets + (from >> 16);
    staged.last = segment.buckets + (to >> 16);
    staged.simple = segment.number && (at + 1 == index.segments.size() || hi < index.floors[at + 1]);
    const Line& line = segment.line;
    staged.sure = segment.tells_apart & (lo - line.base - 1 < line.span - 1) & (hi - line.base - 1 < line.span - 1);
    staged.position = begin;
    staged.start = static_cast<uint32_t>(begin);
    staged.count = static_cast<uint32_t>(end - begin);
    __builtin_prefetch(staged.first);
    __builtin_prefetch(reinterpret_cast<const char*>(staged.first) + 64);
    __builtin_prefetch(staged.last);
    __builtin_prefetch(reinterpret_cast<const char*>(staged.last) + 64);
    return true;
  }

  uint32_t* room(size_t n) const {
    Vector<uint32_t>& found = store.found_;
    if (found.size() < n + 64) found.resize((n + 64) * 2);
    return found.data();
  }

  // Of slots at an end of the range only the key tells.
  uint32_t checked(const Bucket& bucket, const Match& match, size_t p) const {
    uint32_t found = match.found;
    ++verified;
    for (uint32_t edge = match.edge; edge; edge &= edge - 1) {
      const int slot = __builtin_ctz(edge);
      const uint64_t key = store.keys_[store.whole(bucket.position[slot])];
      const uint32_t outside = (key < probes.lo[p]) | (key > probes.hi[p]);  // no branch: it would wait for the key
      found &= ~(outside << slot);
    }
    return found;
  }

  // Fetches the keys that will have to be looked at.
  template <typename Matcher>
  DOVETAIL_INLINE void fetch_edges(const Staged& staged) const {
    const auto fetch = [&](const Bucket& bucket, uint16_t from, uint16_t to) __attribute__((always_inline)) {
      uint32_t edge = Matcher::match(bucket, from, to, staged.start, staged.count).edge;
      for (; edge; edge &= edge - 1) {
        __builtin_prefetch(store.keys_.place(store.whole(bucket.position[__builtin_ctz(edge)])));
      }
    };
    const bool two = staged.first != staged.last;
    fetch(*staged.first, staged.from, two ? uint16_t{0xffff} : staged.to);
    if (two) fetch(*staged.last, 0, staged.to);
  }

  template <typename Matcher>
  DOVETAIL_INLINE size_t in_buckets(const Staged& staged, const Bucket* first,
                                                          const Bucket* last, uint16_t from, uint16_t to,
                                                          size_t n) const {
    for (const Bucket* b = first; b <= last; ++b) {
      if (b + 2 <= last) {
        __builtin_prefetch(b + 2);
        __builtin_prefetch(reinterpret_cast<const char*>(b + 2) + 64);
      }
      const auto low = b == first ? from : uint16_t{0}, high = b == last ? to : uint16_t{0xffff};
      for (const Bucket* bucket = b;; bucket = store.index_->pool.at(bucket->overflow)) {
        const Match match = Matcher::match(*bucket, low, high, staged.start, staged.count);
        const uint32_t slots = match.edge ? checked(*bucket, match, staged.p) : match.found;
        n += Matcher::store(*bucket, slots, staged.start, room(n) + n);
        if (!bucket->overflow) break;
      }
    }
    return n;
  }

  // One bucket or two, as nearly always; false if it is not so simple after all. A ring is in the order of rows.
  template <typename Matcher>
  DOVETAIL_INLINE bool in_few(const Staged& staged) const {
    const Bucket &a = *staged.first, &b = *staged.last;
    if (&b - &a > 1 || a.overflow || b.overflow) return false;
    const bool two = &a != &b;
    const Match match = Matcher::match(a, staged.from, two ? uint16_t{0xffff} : staged.to, staged.start, staged.count);
    const uint32_t slots = match.edge && !staged.sure ? checked(a, match, staged.p) : match.found;
    uint32_t others = 0;
    if (two) {
      const Match more = Matcher::match(b, 0, staged.to, staged.start, staged.count);
      others = more.edge && !staged.sure ? checked(b, more, staged.p) : more.found;
    }
    if (Matcher::count(slots) + Matcher::count(others) > (two ? 8 : 16)) return false;
    const int64_t row = store.rows_.row_at(staged.position), p = static_cast<int64_t>(staged.p);
    int64_t *rows = out.row.reserve(16 + kWaiting), *probe = out.probe.reserve(16 + kWaiting);
    const size_t n = two ? Matcher::give_two(a, slots, b, others, staged.start, row, p, rows, probe)
                         : Matcher::give(a, slots, staged.start, row, p, rows, probe);
    size_t all = n;
    if (staged.position + staged.count > store.placed_) {
      waiting(staged, [&](uint32_t behind) {
        rows[all] = row + behind;
        probe[all++] = p;
      });
    }
    out.row.advance(all);
    out.probe.advance(all);
    return true;
  }

  // The newest rows may not be placed yet: they are looked through.
  template <typename Take>
  void waiting(const Staged& staged, Take take) const {
    const int64_t end = staged.position + staged.count;
    for (int64_t position = std::max(staged.position, store.placed_); position < end; ++position) {
      const uint64_t key = store.keys_[position];
      if (key < probes.lo[staged.p] || key > probes.hi[staged.p]) continue;
      take(static_cast<uint32_t>(position - staged.position));
    }
  }

  // Rows and keys of a run ascend, so each end of a range of rows and keys is guessed, as if they were evenly spaced,
  // and then looked for from there.
  size_t in_run(const Staged& staged, const Run& run, size_t n) const {
    const uint32_t* positions = run.positions.data();
    const size_t head = run.head, end = run.positions.size();
    if (head == end) return n;
    const auto begin = static_cast<uint32_t>(store.rows_.begin());
    // All that are looked at are live, or older than all live ones.
    const auto age = [&](size_t i) { return static_cast<int32_t>(positions[i] - begin); };
    const auto key = [&](size_t i) { return store.keys_[store.whole(positions[i])]; };
    const auto first = static_cast<int32_t>(staged.start - begin);
    const auto last = static_cast<int32_t>(staged.start + staged.count - begin);
    const auto near = [&](int32_t wanted) {
      const int64_t ahead = int64_t{wanted} - age(head);
      return ahead > 0 ? head + static_cast<size_t>(ahead) : head;
    };
    const size_t from = first_not(head, end, near(first), [&](size_t i) { return age(i) < first; });
    const size_t to = first_not(from, end, near(last), [&](size_t i) { return age(i) < last; });
    if (from == to) return n;
    const uint64_t lo = probes.lo[staged.p], hi = probes.hi[staged.p];
    const size_t begins = first_not(from, to, run.guess(lo), [&](size_t i) { return key(i) < lo; });
    const size_t ends = first_not(begins, to, run.guess(hi), [&](size_t i) { return key(i) <= hi; });
    uint32_t* place = room(n + ends - begins) + n;
    for (size_t i = begins; i < ends; ++i) *place++ = positions[i] - staged.start;
    return n + ends - begins;
  }

  // The first i in [lo, hi) that is not `before`; hi if all are. It is near `guess`, or the steps grow.
  template <typename Before>
  static size_t first_not(size_t lo, size_t hi, size_t guess, Before before) {
    if (lo >= hi) return lo;
    guess = std::min(std::max(guess, lo), hi - 1);
    size_t step = 1;
    if (before(guess)) {
      for (lo = guess + 1; lo < hi && before(std::min(hi - 1, lo + step)); step *= 2) lo = std::min(hi, lo + step + 1);
      hi = std::min(hi, lo + step);
    } else {
      for (hi = guess; lo < hi && !before(hi - std::min(hi - lo, step)); step *= 2) hi -= std::min(hi - lo, step);
      lo = std::max(lo, hi - std::min(hi, step));
    }
    while (lo < hi) {
      const size_t middle = lo + (hi - lo) / 2;
      if (before(middle)) {
        lo = middle + 1;
      } else {
        hi = middle;
      }
    }
    return lo;
  }

  // A range that does not lie in the buckets of one segment.
  template <typename Matcher>
  size_t in_segments(const Staged& staged) const {
    const Index& index = *store.index_;
    size_t n = 0;
    for (size_t at = staged.at; at < index.segments.size() && index.floors[at] <= probes.hi[staged.p]; ++at) {
      const Segment& segment = *index.segments[at];
      if (segment.run) {
        n = in_run(staged, *segment.run, n);
        continue;
      }
      const uint64_t from = segment.line(probes.lo[staged.p]), to = segment.line(probes.hi[staged.p]);
      n = in_buckets<Matcher>(staged, segment.buckets + (from >> 16), segment.buckets + (to >> 16),
                              static_cast<uint16_t>(from), static_cast<uint16_t>(to), n);
    }
    uint32_t* place = room(n + kWaiting);
    waiting(staged, [&](uint32_t behind) { place[n++] = behind; });
    return n;
  }

  template <typename Matcher>
  DOVETAIL_INLINE void give(const Staged& staged, size_t n) const {
    uint32_t* found = store.found_.data();
    int64_t* place = out.row.reserve(n);
    if (n <= 32) {
      Matcher::sort(found, n);
      for (size_t i = 0; i < n; ++i) place[i] = store.rows_.row_at(staged.position + found[i]);
    } else {
      for (size_t i = 0; i < n; ++i) place[i] = store.rows_.row_at(staged.position + found[i]);
      if (probes.ordered) store.sorter_.sort(place, n);
    }
    out.claim(static_cast<int64_t>(staged.p), n);
  }

  template <typename Matcher>
  DOVETAIL_INLINE void answer(const Staged& probe) const {
    if (probe.simple && store.rows_.consecutive() && in_few<Matcher>(probe)) return;
    const size_t n = in_segments<Matcher>(probe);
    if (n) give<Matcher>(probe, n);
  }

  template <typename Matcher>
  DOVETAIL_INLINE void run_one(size_t p) const {
    Staged probe;
    if (stage(p, probe)) answer<Matcher>(probe);
  }

  template <typename Matcher>
  DOVETAIL_INLINE size_t run(size_t begin, size_t end, size_t limit) const {
    Staged staged[2][kGroup];
    size_t counts[2] = {};
    const auto look = [&](size_t from, size_t turn) __attribute__((always_inline)) {
      counts[turn] = 0;
      const size_t until = std::min(end, from + kGroup);
      for (size_t p = from; p < until; ++p) counts[turn] += stage(p, staged[turn][counts[turn]]);
    };
    room(0);
    look(begin, 0);
    for (size_t from = begin, turn = 0; from < end; from += kGroup, turn ^= 1) {
      if (from + kGroup < end) look(from + kGroup, turn ^ 1);
      if (verified > kGroup / 4) {  // ends of ranges are often stored keys
        for (size_t i = 0; i < counts[turn]; ++i) {
          if (staged[turn][i].simple) fetch_edges<Matcher>(staged[turn][i]);
        }
      }
      verified = 0;
      for (size_t i = 0; i < counts[turn]; ++i) {
        answer<Matcher>(staged[turn][i]);
        if (out.size() >= limit) return staged[turn][i].p + 1;
      }
    }
    return end;
  }

#ifdef DOVETAIL_AVX512
  DOVETAIL_TARGET void run_one_avx512(size_t p) const { run_one<Avx512>(p); }
  DOVETAIL_TARGET size_t run_avx512(size_t begin, size_t end, size_t limit) const {
    return run<Avx512>(begin, end, limit);
  }
#endif
};

size_t CarouselStore::probe(const Probes& probes, size_t begin, size_t end, size_t limit, Pairs& out) {
  demand(!restoring_, "carousel: nothing is looked up in the midst of a restore");
  if (size() == 0) return end;
  const Finder finder{*this, probes, out};
  if (end - begin == 1) {
#ifdef DOVETAIL_AVX512
    if (use_avx512()) {
      finder.run_one_avx512(begin);
      return end;
    }
#endif
    finder.run_one<Portable>(begin);
    return end;
  }
  // As many pairs a probe as last time, so that results are seldom moved.
  const size_t before = out.size();
  const size_t room = std::min({limit - std::min(limit, before), (end - begin) * matches_, kReserve}) + 64;
  out.row.reserve(room);
  out.probe.reserve(room);
#ifdef DOVETAIL_AVX512
  const size_t answered = use_avx512() ? finder.run_avx512(begin, end, limit) : finder.run<Portable>(begin, end, limit);
#else
  const size_t answered = finder.run<Portable>(begin, end, limit);
#endif
  matches_ = (out.size() - before) / (answered - begin + 1) + 1;
  return answered;
}

}  // namespace dovetail
