// How a carousel is built and rebuilt: what is live is collected, cut into pieces that a line fits, and made into
// segments. See carousel.hpp.
#include "carousel.hpp"
#include "lanes.hpp"

namespace dovetail {
namespace {

constexpr int kRows = 12;           // rows a bucket is given at most when it is built
constexpr int kMostRows = 60;       // and rows of one bucket that make its segment be cut
constexpr size_t kLeastRun = 24;    // ascending rows that are worth a run
constexpr uint32_t kCrowd = 2;      // floors in one cell that are few enough
constexpr int kMostOrder = BucketPool::kOrders - 1;
constexpr size_t kParts = 4096;              // by which all rows are dealt out: a cache line of each fits the second cache
constexpr size_t kRowsSorted = size_t{1} << 15;  // and at least so many of them are then sorted at a time

int bit_width(size_t value) {
  int width = 0;
  for (; value; value >>= 1) ++width;
  return width;
}

// Sorts by a value and then by row. Few entries are the rule; many come from a bucket with overflows.
template <typename Value>
void small_sort(Entry* begin, Entry* end, Value value) {
#ifdef DOVETAIL_AVX512
  if (use_avx512() && Avx512::sort_distinct(begin, static_cast<size_t>(end - begin), value)) return;
#endif
  const auto less = [&](const Entry& x, const Entry& y) {
    return value(x) < value(y) || (value(x) == value(y) && x.row < y.row);
  };
  if (end - begin > 32) {
    std::sort(begin, end, less);
    return;
  }
  for (Entry* i = begin + 1; i < end; ++i) {
    const Entry entry = *i;
    Entry* at = i;
    for (; at > begin && less(entry, at[-1]); --at) *at = at[-1];
    *at = entry;
  }
}

}  // namespace

Line Line::through(uint64_t first, uint64_t last, uint64_t cells) {
  Line line;
  line.base = first;
  line.span = last - first;
  if (line.span == 0 || cells <= 1) return line;
  line.shift = __builtin_clzll(line.span);
  // The greatest scale with (span << shift) * scale < cells << 64.
  __extension__ typedef unsigned __int128 Wide;
  line.scale = static_cast<uint64_t>(((static_cast<Wide>(cells) << 64) - 1) / (line.span << line.shift));
  return line;
}

// What a segment is built of: entries [begin, end), sorted by key.
struct CarouselStore::Piece {
  size_t begin, end;
  Line line;
  int order;
  bool run;
};

// Appends the live rows of a segment, sorted.
void CarouselStore::collect(const Segment& segment, Vector<Entry>& entries) const {
  const size_t begin = entries.size();
  const size_t buckets = segment.run ? 0 : size_t{1} << segment.order;
  const size_t most = segment.run ? segment.run->positions.size() - segment.run->head
                                  : (buckets + segment.overflows) * Bucket::kSlots;
  if (begin + most > entries.capacity()) entries.reserve((begin + most) * 5 / 4);
  entries.resize(begin + most);
  Entry* next = entries.data() + begin;
  const auto take = [&](uint32_t position) {  // without a branch, as half of the slots hold something
    next->row = whole(position);
    next += live(position);
  };
  uint16_t ends[1 << kMostOrder];
  if (segment.run) {
    const Vector<uint32_t>& positions = segment.run->positions;
    for (size_t i = segment.run->head; i < positions.size(); ++i) take(positions[i]);
  }
  for (size_t b = 0; b < buckets; ++b) {
    for (const Bucket* bucket = segment.buckets + b;; bucket = index_->pool.at(bucket->overflow)) {
      for (int i = 0; i < Bucket::kSlots; ++i) take(bucket->position[i]);
      if (!bucket->overflow) break;
    }
    ends[b] = static_cast<uint16_t>(next - entries.data() - static_cast<std::ptrdiff_t>(begin));
  }
  const auto n = static_cast<size_t>(next - entries.data());
  entries.resize(n);
  for (size_t i = begin; i < n; ++i) {
    if (i + 2 * kGroup < n) __builtin_prefetch(keys_.place(entries[i + 2 * kGroup].row));
    entries[i].key = keys_[entries[i].row];
  }
  Entry* from = entries.data() + begin;
  for (size_t b = 0; b < buckets; ++b) {
    Entry* const end = entries.data() + begin + ends[b];
    small_sort(from, end, [](const Entry& entry) { return entry.key; });
    from = end;
  }
}

size_t CarouselStore::live_rows(const Segment& segment) const {
  size_t count = 0;
  for (size_t b = 0; b < (segment.run ? 0 : size_t{1} << segment.order); ++b) {
    for (const Bucket* bucket = segment.buckets + b;; bucket = index_->pool.at(bucket->overflow)) {
      for (const uint32_t position : bucket->position) count += live(position);
      if (!bucket->overflow) break;
    }
  }
  return count;
}

// Cuts sorted entries into pieces that a line fits, or that are runs. `reach`: how the line of the first or the last
// piece goes on: -1 below the least key, 1 above the greatest, 0 neither.
void CarouselStore::cut(const Entry* entries, size_t n, int reach, Vector<Piece>& pieces) const {
  struct Task {
    size_t begin, end;
    int reach;
  };
  Vector<Task> tasks;
  if (n) tasks.push_back({0, n, reach});
  Vector<uint16_t> loads;
  while (!tasks.empty()) {
    const Task task = tasks.back();
    tasks.pop_back();
    const size_t begin = task.begin, end = task.end, rows = end - begin;
    const uint64_t least = entries[begin].key, most = entries[end - 1].key;
    // The boundary between keys that is nearest to a place; `begin` if there is none.
    const auto boundary = [&](size_t near) {
      const uint64_t key = entries[near].key;
      const auto less = [](const Entry& entry, uint64_t k) { return entry.key < k; };
      const auto greater = [](uint64_t k, const Entry& entry) { return k < entry.key; };
      const auto low = static_cast<size_t>(std::lower_bound(entries + begin, entries + near, key, less) - entries);
      const auto high = static_cast<size_t>(std::upper_bound(entries + near, entries + end, key, greater) - entries);
      if (low > begin && (high == end || near - low <= high - near)) return low;
      return high < end ? high : begin;
    };
    const auto split = [&](size_t at) {  // the upper part is done last
      tasks.push_back({at, end, task.reach > 0 ? 1 : 0});
      tasks.push_back({begin, at, task.reach < 0 ? -1 : 0});
    };
    bool ascends = rows >= kLeastRun;
    for (size_t i = begin + 1; ascends && i < end; ++i) ascends = entries[i - 1].row < entries[i].row;
    if (ascends) {
      const size_t at = rows > run_rows_ && least != most ? boundary(begin + run_rows_) : begin;
      if (at > begin) {
        split(at);
      } else {
        pieces.push_back({begin, end, Line(), 0, true});
      }
      continue;
    }
    // Where the line reaches out it has room for as many rows again.
    const size_t wanted = task.reach && segment_rows_ > 16 ? segment_rows_ / 2 : segment_rows_;
    if (rows > wanted + wanted / 5) {  // more than kRows a bucket
      const size_t parts = (rows + wanted / 2) / wanted;
      // Two thirds and one, where two halves would leave most of their buckets' slots empty: those come in powers of two.
      const size_t part = parts > 1 ? rows / parts : rows / 3;
      const size_t at = boundary(begin + (task.reach < 0 ? part : rows - part));
      if (at > begin) {
        split(at);
        continue;
      }
    }
    Piece piece{begin, end, Line(), 0, false};
    while (piece.order < kMostOrder && (rows + kRows - 1) / kRows > (size_t{1} << piece.order)) ++piece.order;
    const uint64_t span = most - least;
    uint64_t first = least, last = most;
    if (task.reach && piece.order < kMostOrder) {
      ++piece.order;
      if (task.reach > 0) last = most > UINT64_MAX - span ? UINT64_MAX : most + span;
      if (task.reach < 0) first = least < span ? 0 : least - span;
    }
    piece.line = Line::through(first, last, uint64_t{1} << (piece.order + 16));
    loads.assign(size_t{1} << piece.order, 0);
    for (size_t i = begin; i < end; ++i) ++loads[static_cast<size_t>(piece.line(entries[i].key) >> 16)];
    size_t fullest = 0, spilled = 0;
    for (const uint16_t load : loads) {
      fullest = std::max<size_t>(fullest, load);
      spilled += load > Bucket::kSlots ? load - Bucket::kSlots : 0;
    }
    const bool fits = fullest <= kMostRows && spilled * 8 <= rows;
    const size_t at = fits ? begin : boundary(begin + rows / 2);
    if (at > begin) {
      split(at);
    } else {
      pieces.push_back(piece);
    }
  }
}

// Makes a segment of entries scratch_[piece.begin, piece.end). Strong guarantee.
CarouselStore::Segment* CarouselStore::make(const Piece& piece, BucketPool& pool) const {
  const Entry* entries = scratch_.data();
  auto* segment = new (allocate(sizeof(Segment))) Segment;
  segment->line = piece.line;
  segment->tells_apart = piece.line.tells_apart();
  segment->order = static_cast<uint8_t>(piece.order);
  try {
    for (size_t i = piece.begin; i < piece.end; ++i) {
      const auto position = static_cast<uint32_t>(entries[i].row);
      if (i == piece.begin || static_cast<int32_t>(position - segment->newest) > 0) segment->newest = position;
    }
    if (piece.run) {
      segment->run = std::make_unique<Run>();
      segment->run->positions.reserve((piece.end - piece.begin) * 5 / 4);
      for (size_t i = piece.begin; i < piece.end; ++i) {
        segment->run->positions.push_back(static_cast<uint32_t>(entries[i].row));
      }
      segment->run->last = piece.end > piece.begin ? entries[piece.end - 1].key : 0;
      measure(*segment->run);
      return segment;
    }
    const size_t buckets = size_t{1} << piece.order;
    segment->number = pool.take(piece.order);
    segment->buckets = pool.at(segment->number);
    for (size_t b = 0; b < buckets; ++b) segment->buckets[b].clear(dead());
    Entry group[kMostRows + kLeastRun];
    for (size_t i = piece.begin; i < piece.end;) {
      size_t rows = 0;
      uint64_t code = piece.line(entries[i].key);
      const uint64_t b = code >> 16;
      while (code >> 16 == b) {
        demand(rows < kMostRows + kLeastRun, "carousel: a bucket is built of few rows");
        group[rows++] = {code, entries[i].row};
        if (++i == piece.end) break;
        code = piece.line(entries[i].key);
      }
      small_sort(group, group + rows, [](const Entry& entry) { return static_cast<uint64_t>(entry.row); });
      Bucket* bucket = segment->buckets + b;
      for (size_t g = 0; g < rows; ++g) {
        if (g && g % Bucket::kSlots == 0) {
          const uint32_t number = pool.take(0);
          pool.at(number)->clear(dead());
          bucket->overflow = number;
          bucket = pool.at(number);
          ++segment->overflows;
        }
        bucket->write(static_cast<uint16_t>(group[g].key), static_cast<uint32_t>(group[g].row));
      }
    }
    segment->allowed = static_cast<uint16_t>(segment->overflows + std::max<size_t>(2, buckets / 8));
  } catch (...) {
    discard(segment, pool);
    throw;
  }
  return segment;
}

void CarouselStore::discard(Segment* segment, BucketPool& pool) {
  if (segment->number) {
    for (size_t b = 0; b < size_t{1} << segment->order; ++b) {
      for (uint32_t number = segment->buckets[b].overflow; number;) {
        const uint32_t next = pool.at(number)->overflow;
        pool.give_back(number, 0);
        number = next;
      }
    }
    pool.give_back(segment->number, segment->order);
  }
  segment->~Segment();
  release(segment);
}

// Puts what is live in segments [at, at + count), and perhaps a new row, into new segments. Strong guarantee.
void CarouselStore::rebuild(size_t at, size_t count, uint64_t key, uint32_t position, bool with_new, int reach) {
  Index& index = *index_;
  scratch_.clear();
  for (size_t i = at; i < at + count; ++i) collect(*index.segments[i], scratch_);
  if (with_new) {
    const Entry entry{key, whole(position)};
    scratch_.insert(std::upper_bound(scratch_.begin(), scratch_.end(), entry), entry);
  }
  Vector<Piece> pieces;
  cut(scratch_.data(), scratch_.size(), reach, pieces);
  if (pieces.empty() && index.segments.size() == count) pieces.push_back({0, 0, Line(), 0, false});
  Vector<Segment*> made;
  made.reserve(pieces.size());
  try {
    for (const Piece& piece : pieces) made.push_back(make(piece, index.pool));
    index.floors.reserve(index.floors.size() + pieces.size());
    index.segments.reserve(index.segments.size() + pieces.size());
    const size_t cells = 4 * (index.segments.size() + pieces.size());
    if (cells > index.hints.capacity()) index.hints.reserve(cells * 3 / 2);
  } catch (...) {
    for (Segment* segment : made) discard(segment, index.pool);
    throw;
  }
  const uint64_t floor = index.floors[at];
  for (size_t i = at; i < at + count; ++i) discard(index.segments[i], index.pool);
  const auto place = [&](auto& list) { return list.begin() + static_cast<std::ptrdiff_t>(at); };
  const auto gone = static_cast<std::ptrdiff_t>(count);
  index.segments.erase(place(index.segments), place(index.segments) + gone);
  index.segments.insert(place(index.segments), made.begin(), made.end());
  index.floors.erase(place(index.floors), place(index.floors) + gone);
  Vector<uint64_t>& floors = index.floors;
  floors.insert(place(floors), made.size(), floor);
  for (size_t i = 1; i < made.size(); ++i) floors[at + i] = scratch_[pieces[i].begin].key;
  if (at == 0) floors[0] = 0;
  index.added += static_cast<uint32_t>(made.size());
  index.removed += static_cast<uint32_t>(count);
  if (index.added + index.removed > std::max<size_t>(8, index.segments.size() / 64)) {
    make_hints(index);
  } else {
    index.steps = std::min(bit_width(index.segments.size()), bit_width(index.crowd + index.added + index.removed));
  }
  ++rebuilds_;
  if (scratch_.capacity() > 16 * segment_rows_) scratch_ = Vector<Entry>();
}

// Finds the scale that tells floors apart best: through the outermost ones, or, if outliers lie there, through some
// that stand further in; of the keys or of their logarithms. Allocates nothing if the hints have room for four cells a
// segment.
void CarouselStore::make_hints(Index& index) {
  const Vector<uint64_t>& floors = index.floors;
  const size_t n = floors.size();
  const size_t cells = 4 * n;
  index.scale = Scale();
  index.crowd = static_cast<uint32_t>(n);
  for (const bool logarithmic : {false, true}) {
    for (const size_t margin : {size_t{0}, n / 64, n / 16, n / 4}) {
      if (n < 4 || index.crowd <= kCrowd) break;
      Scale scale{Line(), logarithmic, floors[1]};
      const auto place = [&](size_t at) {
        return logarithmic ? Scale::logarithm(floors[at] - floors[1]) : floors[at];
      };
      scale.line = Line::through(place(1 + margin), place(n - 1 - margin), cells);
      uint32_t crowd = 0, here = 0;
      uint64_t before = cells;
      for (size_t at = 0; at < n; ++at) {
        const uint64_t cell = scale(floors[at]);
        here = cell == before ? here + 1 : 1;
        before = cell;
        crowd = std::max(crowd, here);
      }
      if (crowd < index.crowd) {
        index.crowd = crowd;
        index.scale = scale;
      }
    }
  }
  index.hints.assign(cells, 0);
  for (size_t cell = 0, at = 0; cell < cells; ++cell) {
    index.hints[cell] = static_cast<uint32_t>(at ? at - 1 : 0);
    while (at < n && index.scale(floors[at]) == cell) ++at;
  }
  index.added = index.removed = 0;
  index.steps = bit_width(index.crowd);
}

// Builds everything from the keys of the live rows. Strong guarantee.
//
// Positions are dealt out by the leading bits of their keys, and then some parts at a time, so many as the second cache
// has room for, are sorted and made into segments: sorted as a whole, rows would wait for memory in each pass, and need
// three times as much of it, whose pages cost more to be had than the sorting.
void CarouselStore::rebuild_all() {
  const size_t n = rows_.size();
  auto index = std::make_unique<Index>();
  index->pool.expect(n / 8);
  const auto key = [&](size_t i) { return keys_[rows_.begin() + static_cast<int64_t>(i)]; };
  uint64_t least = n ? key(0) : 0, most = least;
  for (size_t i = 1; i < n; ++i) {
    const uint64_t k = key(i);
    least = std::min(least, k);
    most = std::max(most, k);
  }
  int shift = 0;  // 63 at most
  while ((most - least) >> shift >= std::min(kParts, n / 64 + 2)) ++shift;
  const auto part_of = [&](uint64_t k) { return static_cast<size_t>((k - least) >> shift); };
  const size_t parts = part_of(most) + 1;
  Array<uint32_t> ends = Array<uint32_t>::zeros(parts + 1), dealt(n);
  for (size_t i = 0; i < n; ++i) ++ends[part_of(key(i)) + 1];
  for (size_t p = 1; p <= parts; ++p) ends[p] += ends[p - 1];
  for (size_t i = 0; i < n; ++i) dealt[ends[part_of(key(i))]++] = static_cast<uint32_t>(i);  // now ends[p] is p's end

  Array<Entry> other;
  Vector<Piece> pieces;
  for (size_t p = 0, from = 0; p < parts; ++p) {
    const size_t to = ends[p], rows = to - from;
    if (rows == 0 || (rows < kRowsSorted && p + 1 < parts)) continue;
    scratch_.resize(rows);
    for (size_t i = 0; i < rows; ++i) {
      if (from + i + kGroup < to) __builtin_prefetch(keys_.place(rows_.begin() + dealt[from + i + kGroup]));
      scratch_[i] = {key(dealt[from + i]), rows_.begin() + dealt[from + i]};
    }
    if (other.size() < rows) other = Array<Entry>(std::max(rows, kRowsSorted * 2));
    sort_by_key(scratch_.data(), other.get(), rows);
    pieces.clear();
    cut(scratch_.data(), rows, 0, pieces);
    const size_t needed = index->segments.size() + pieces.size();
    if (needed > index->segments.capacity()) index->segments.reserve(needed * 2);
    for (const Piece& piece : pieces) {
      index->floors.push_back(index->floors.empty() ? 0 : scratch_[piece.begin].key);
      index->segments.push_back(make(piece, index->pool));
    }
    from = to;
  }
  if (index->segments.empty()) {
    index->floors.push_back(0);
    index->segments.reserve(1);
    index->segments.push_back(make({0, 0, Line(), 0, true}, index->pool));
  }
  make_hints(*index);
  index_ = std::move(index);
  renewed_at_ = rows_.begin();
  placed_ = rows_.end();
  peak_ = n;
  ++renewals_;
  scratch_ = Vector<Entry>();
}

// Begins a run behind a full one: nothing that stands already is touched.
void CarouselStore::add_run(size_t at, uint64_t key, uint32_t position) {
  Index& index = *index_;
  scratch_.clear();
  scratch_.push_back({key, whole(position)});
  const size_t n = index.segments.size() + 1;
  index.segments.reserve(n);
  index.floors.reserve(n);
  if (4 * n > index.hints.capacity()) index.hints.reserve(6 * n);
  Segment* segment = make({0, 1, Line(), 0, true}, index.pool);
  index.segments.insert(index.segments.begin() + static_cast<std::ptrdiff_t>(at) + 1, segment);
  index.floors.insert(index.floors.begin() + static_cast<std::ptrdiff_t>(at) + 1, key);
  make_hints(index);
  ++rebuilds_;
}

}  // namespace dovetail
