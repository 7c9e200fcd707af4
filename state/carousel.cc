#include "carousel.hpp"

#include "lanes.hpp"

namespace dovetail {
namespace {

constexpr size_t kGroup = 16;      // places computed ahead: enough misses in flight to hide one of them
constexpr int kRows = 12;          // rows a bucket is given at most when it is built
constexpr int kMostRows = 60;      // and rows of one bucket that make its segment be cut
constexpr int kMostOverflows = 2;  // buckets in a chain besides the first
constexpr size_t kLookAfter = 256;  // rows inserted before segments are looked at
constexpr size_t kLeastRun = 24;   // ascending rows that are worth a run
constexpr size_t kReserve = 1 << 20;  // pairs that room is made for at once
constexpr uint32_t kCrowd = 2;  // floors in one cell that are few enough
constexpr int kMostOrder = BucketPool::kOrders - 1;

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

CarouselStore::Index::~Index() {
  for (Segment* segment : segments) {
    segment->~Segment();
    release(segment);
  }
}

std::vector<Parameter> CarouselStore::parameters() {
  return {{"segment", 2560, 8, 2560, "rows a segment is built with"},
          {"run", 65536, 8, 1 << 30, "rows of a run of ascending keys, after which another begins"},
          {"renewal", 2147483648.0, 65536, 2147483648.0, "rows after which everything is built anew"}};
}

CarouselStore::CarouselStore(const Settings& settings)
    : segment_rows_(settings.count("segment")),
      run_rows_(settings.count("run")),
      renewal_(static_cast<int64_t>(settings["renewal"])) {
  rebuild_all();
}

// Building ---------------------------------------------------------------------------------------------------------

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
    if (rows > wanted + wanted / 2) {
      const size_t parts = (rows + wanted / 2) / wanted;
      const size_t at = boundary(begin + (task.reach < 0 ? rows / parts : rows - rows / parts));
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

// Finds the scale that tells floors apart best: through the outermost ones, or, if outliers lie there, through some that
// stand further in; of the keys or of their logarithms. Allocates nothing if the hints have room for four cells a segment.
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
      const auto at_margin = [&](size_t at) { return logarithmic ? Scale::logarithm(floors[at] - floors[1]) : floors[at]; };
      scale.line = Line::through(at_margin(1 + margin), at_margin(n - 1 - margin), cells);
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
void CarouselStore::rebuild_all() {
  const size_t n = rows_.size();
  auto index = std::make_unique<Index>();
  index->pool.expect(n / 8);
  scratch_ = Vector<Entry>();
  scratch_.resize(n);
  for (size_t i = 0; i < n; ++i) {
    const int64_t position = rows_.begin() + static_cast<int64_t>(i);
    scratch_[i] = {keys_[position], position};
  }
  {
    Array<Entry> other(n);
    sort_by_key(scratch_.data(), other.get(), n);
  }
  Vector<Piece> pieces;
  cut(scratch_.data(), n, 0, pieces);
  if (pieces.empty()) pieces.push_back({0, 0, Line(), 0, true});
  index->segments.reserve(pieces.size());
  index->floors.reserve(pieces.size());
  for (const Piece& piece : pieces) {
    index->segments.push_back(make(piece, index->pool));
    index->floors.push_back(index->floors.empty() ? 0 : scratch_[piece.begin].key);
  }
  make_hints(*index);
  index_ = std::move(index);
  renewed_at_ = rows_.begin();
  placed_ = rows_.end();
  peak_ = n;
  ++renewals_;
  scratch_ = Vector<Entry>();
}

// Looks at some segments in turn: removes those that are dead, joins neighbours that are nearly empty. How often, is
// such that all have their turn while a window is replaced.
void CarouselStore::look_around() {
  const auto inserted = static_cast<size_t>(placed_ - looked_at_);
  looked_at_ = placed_;
  Index& index = *index_;
  if (index.added + index.removed && (since_hints_ += inserted) > 8 * index.segments.size()) {
    make_hints(index);  // there is room: each change made sure of it
    since_hints_ = 0;
  }
  const double segments = static_cast<double>(index.segments.size());
  credit_ += static_cast<double>(inserted) * segments / static_cast<double>(size() + 1);
  credit_ = std::min(credit_, segments);
  try {
    for (; credit_ >= 1; credit_ -= 1) {
      if (index.segments.size() == 1) return;
      if (turn_ >= index.segments.size()) turn_ = 0;
      Segment& segment = *index.segments[turn_];
      if (!live(segment.newest)) {
        rebuild(turn_, 1, 0, 0, false, 0);
        continue;
      }
      if (segment.run) {
        trim(*segment.run);
      } else if (turn_ + 1 < index.segments.size() && !index.segments[turn_ + 1]->run) {
        Segment& next = *index.segments[turn_ + 1];
        const size_t slots = ((size_t{1} << segment.order) + (size_t{1} << next.order)) * Bucket::kSlots;
        if (slots > 8 * Bucket::kSlots) {
          const size_t rows = live_rows(segment) + live_rows(next);
          if (rows * 5 < slots && rows * 2 < segment_rows_) {
            rebuild(turn_, 2, 0, 0, false, 0);
            ++joins_;
          }
        }
      }
      ++turn_;
    }
    if (index.pool.held() > 4 * index.pool.used() + (size_t{1} << BucketPool::kChunkBits)) rebuild_all();
  } catch (const std::bad_alloc&) {
    // Tidying up can wait.
  }
}

// Finds out how keys lie in a run.
void CarouselStore::measure(Run& run) const {
  while (run.head < run.positions.size() && !live(run.positions[run.head])) ++run.head;
  run.guess_index = run.head;
  run.guess_key = run.head < run.positions.size() ? keys_[whole(run.positions[run.head])] : 0;
  const auto span = static_cast<double>(run.last - run.guess_key);
  run.rows_per_key = span > 0 ? static_cast<double>(run.positions.size() - run.head - 1) / span : 0;
}

void CarouselStore::trim(Run& run) {
  while (run.head < run.positions.size() && !live(run.positions[run.head])) ++run.head;
  if (run.head * 2 > run.positions.size() + 64) {
    Vector<uint32_t> left(run.positions.begin() + static_cast<std::ptrdiff_t>(run.head), run.positions.end());
    run.positions.swap(left);
    run.head = 0;
  }
  measure(run);
}

// Inserting --------------------------------------------------------------------------------------------------------

void CarouselStore::insert(const uint64_t* keys, const int64_t* rows, size_t n) {
  if (n == 0) return;
  if (rows_.end() - renewed_at_ + static_cast<int64_t>(n) > renewal_) {
    demand(static_cast<int64_t>(size() + n) <= renewal_, "carousel: a window of more than 2^31 rows does not fit one store");
    rebuild_all();
  }
  const bool at_once = n > 4 * size() + 256;
  rows_.append(rows, n);
  try {
    keys_.append(keys, n);
  } catch (...) {
    rows_.take_back(n);
    throw;
  }
  try {
    if (at_once) {
      rebuild_all();
      return;
    }
    if (n == 1) {
      place_alone(*keys);
    } else {
      place_all();
    }
  } catch (...) {
    take_back(n);
    throw;
  }
  peak_ = std::max(peak_, size());
  if (static_cast<size_t>(placed_ - looked_at_) >= kLookAfter) look_around();
}

void CarouselStore::build(const uint64_t* keys, const int64_t* rows, size_t n) { insert(keys, rows, n); }

// Computes where a row is to be placed, and asks for that memory.
DOVETAIL_INLINE CarouselStore::Place CarouselStore::look_up(uint64_t key) const {
  const size_t at = find(key);
  Segment* segment = index_->segments[at];
  const uint64_t code = segment->line(key);
  Bucket* bucket = segment->run ? nullptr : segment->buckets + (code >> 16);
  __builtin_prefetch(bucket, 1);
  __builtin_prefetch(reinterpret_cast<char*>(bucket) + 64, 1);
  return {at, segment, bucket, key, rebuilds_, static_cast<uint16_t>(code)};
}

// Places the oldest row that waits.
DOVETAIL_INLINE void CarouselStore::place(const Place& found) {
  const auto position = static_cast<uint32_t>(placed_);
  const bool known = found.known == rebuilds_;
  Bucket* bucket = found.bucket;
  if (known && bucket && !bucket->overflow && !live(bucket->position[bucket->cursor])) {
    bucket->write(found.fraction, position);
    found.segment->newest = position;
  } else {
    place_hard(known ? found.at : find(found.key), found.key, position);
  }
  ++placed_;
}

// Lets a single row wait until its memory has come, and places one that has waited.
void CarouselStore::place_alone(uint64_t key) {
  if (rows_.end() - placed_ > kWaiting) place(waiting_[placed_ % kWaiting]);
  waiting_[(rows_.end() - 1) % kWaiting] = look_up(key);
}

// Places all rows that wait, in the order of arrival, with a look ahead. What fails leaves those behind it waiting.
DOVETAIL_INLINE void CarouselStore::place_ahead() {
  Place places[2][kGroup];
  const int64_t end = rows_.end();
  const auto group = static_cast<int64_t>(kGroup);
  const auto look = [&](int64_t from, Place* to) __attribute__((always_inline)) {
    const int64_t until = std::min(end, from + group);
    for (int64_t position = from; position < until; ++position) *to++ = look_up(keys_[position]);
  };
  look(placed_, places[0]);
  for (size_t turn = 0; placed_ < end; turn ^= 1) {
    if (placed_ + group < end) look(placed_ + group, places[turn ^ 1]);
    const Place* next = places[turn];
    for (const int64_t until = std::min(end, placed_ + group); placed_ < until; ++next) place(*next);
  }
}

void CarouselStore::place_all() {
#ifdef DOVETAIL_AVX512
  if (use_avx512()) return place_all_avx512();
#endif
  place_ahead();
}

#ifdef DOVETAIL_AVX512
DOVETAIL_TARGET void CarouselStore::place_all_avx512() { place_ahead(); }
#endif

void CarouselStore::place_hard(size_t at, uint64_t key, uint32_t position) {
  Index& index = *index_;
  Segment& segment = *index.segments[at];
  if (segment.run) {
    place_in_run(at, key, position);
    return;
  }
  const uint64_t code = segment.line(key);
  const auto fraction = static_cast<uint16_t>(code);
  const auto number = static_cast<size_t>(code >> 16);
  Bucket* bucket = segment.buckets + number;
  __builtin_prefetch(reinterpret_cast<char*>(bucket) + 64, 1);
  if (bucket->cursor == 0 && bucket->overflow) drop_dead(segment, *bucket);
  int depth = 0;
  for (;; bucket = index.pool.at(bucket->overflow), ++depth) {
    if (!live(bucket->position[bucket->cursor])) {
      bucket->write(fraction, position);
      segment.newest = position;
      return;
    }
    if (!bucket->overflow) break;
  }
  if (depth >= kMostOverflows || segment.overflows >= segment.allowed) {
    const bool top = number + 1 == size_t{1} << segment.order, bottom = number == 0;
    const bool upper = key - segment.line.base > segment.line.span / 2 && key >= segment.line.base;
    int reach = 0;
    if (at + 1 == index.segments.size() && top && (upper || !bottom)) reach = 1;
    if (at == 0 && bottom && reach == 0) reach = -1;
    rebuild(at, 1, key, position, true, reach);
    return;
  }
  const uint32_t more = index.pool.take(0);
  index.pool.at(more)->clear(dead());
  index.pool.at(more)->write(fraction, position);
  bucket->overflow = more;
  segment.newest = position;
  ++segment.overflows;
}

// Gives back overflow buckets in which nothing is live. (The newest slot alone does not tell: it may be one of a row
// that was taken back.)
void CarouselStore::drop_dead(Segment& segment, Bucket& first) {
  for (Bucket* bucket = &first; bucket->overflow;) {
    Bucket* next = index_->pool.at(bucket->overflow);
    if (std::any_of(next->position, next->position + Bucket::kSlots, [&](uint32_t row) { return live(row); })) {
      bucket = next;
      continue;
    }
    const uint32_t number = bucket->overflow;
    bucket->overflow = next->overflow;
    index_->pool.give_back(number, 0);
    --segment.overflows;
  }
}

void CarouselStore::place_in_run(size_t at, uint64_t key, uint32_t position) {
  Segment& segment = *index_->segments[at];
  Run& run = *segment.run;
  const bool empty = run.positions.empty() || !live(run.positions.back());
  if (!empty && (key < run.last || (key > run.last && run.positions.size() - run.head >= run_rows_))) {
    // The new row begins another run, or does not belong into one: either way the pieces are cut anew.
    if (key < run.last) {
      rebuild(at, 1, key, position, true, at + 1 == index_->segments.size() ? 1 : at == 0 ? -1 : 0);
    } else {
      add_run(at, key, position);
    }
    return;
  }
  if (run.positions.size() == run.positions.capacity()) trim(run);
  run.positions.push_back(position);
  run.last = key;
  if (run.positions.size() % 256 == 0) measure(run);
  segment.newest = position;
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

// Unmakes an insertion that cannot be completed: the slots of its rows die, which only costs their places.
void CarouselStore::take_back(size_t n) {
  const int64_t first = rows_.end() - static_cast<int64_t>(n);
  for (; placed_ > first; --placed_) {
    const int64_t position = placed_ - 1;
    const uint64_t key = keys_[position];
    Segment& segment = *index_->segments[find(key)];
    if (segment.run) {
      const Vector<uint32_t>& left = segment.run->positions;
      segment.run->positions.pop_back();
      if (!left.empty() && live(left.back())) segment.run->last = keys_[whole(left.back())];
      continue;
    }
    for (Bucket* bucket = segment.buckets + (segment.line(key) >> 16);; bucket = index_->pool.at(bucket->overflow)) {
      uint32_t* const end = bucket->position + Bucket::kSlots;
      uint32_t* const slot = std::find(bucket->position, end, static_cast<uint32_t>(position));
      if (slot != end) {
        *slot = dead();
        break;
      }
      if (!bucket->overflow) break;
    }
  }
  rows_.take_back(n);
  keys_.take_back(n);
}

void CarouselStore::expire(int64_t before_row) {
  const int64_t before = rows_.begin(), begin = rows_.expire(before_row);
  if (begin == before) return;
  keys_.expire(begin);
  placed_ = std::max(placed_, begin);
  if (size() < peak_ / 4 && peak_ > 256) {
    try {
      rebuild_all();
    } catch (const std::bad_alloc&) {
      // Returning memory needs some first. There is none: keep what we have, nothing is wrong.
    }
  }
}

// Probing ----------------------------------------------------------------------------------------------------------

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
      if (key >= probes.lo[staged.p] && key <= probes.hi[staged.p]) take(static_cast<uint32_t>(position - staged.position));
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
      store.sorter_.sort(place, n);
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

// Looking at it ----------------------------------------------------------------------------------------------------

size_t CarouselStore::nbytes() const {
  const Index& index = *index_;
  size_t bytes = rows_.nbytes() + keys_.nbytes() + index.pool.nbytes() + sorter_.nbytes();
  bytes += found_.capacity() * sizeof(uint32_t) + scratch_.capacity() * sizeof(Entry);
  bytes += index.floors.capacity() * 8 + index.segments.capacity() * (8 + sizeof(Segment)) + index.hints.capacity() * 4;
  for (const Segment* segment : index.segments) {
    if (segment->run) bytes += segment->run->positions.capacity() * sizeof(uint32_t);
  }
  return bytes;
}

Statistics CarouselStore::statistics() const {
  const Index& index = *index_;
  size_t runs = 0, overflows = 0;
  for (const Segment* segment : index.segments) {
    runs += segment->run != nullptr;
    overflows += segment->overflows;
  }
  const double slots = static_cast<double>(index.pool.used() * Bucket::kSlots);
  return {{"segments", static_cast<double>(index.segments.size())},
          {"runs", static_cast<double>(runs)},
          {"buckets", static_cast<double>(index.pool.used())},
          {"overflow_buckets", static_cast<double>(overflows)},
          {"fill", slots > 0 ? static_cast<double>(size()) / slots : 0},
          {"directory_steps", static_cast<double>(index.steps)},
          {"rebuilt_segments", static_cast<double>(rebuilds_)},
          {"joined_segments", static_cast<double>(joins_)},
          {"renewals", static_cast<double>(renewals_)}};
}

void CarouselStore::check() const {
  const Index& index = *index_;
  rows_.check();
  demand(index.floors.size() == index.segments.size() && index.floors[0] == 0, "carousel: a floor for each segment");
  demand(rows_.end() - renewed_at_ <= renewal_, "carousel: positions do not come round");
  Vector<uint8_t> seen(size(), 0);
  const auto see = [&](uint32_t position) {
    uint8_t& mark = seen[static_cast<size_t>(whole(position) - rows_.begin())];
    demand(!mark, "carousel: a live row stands in one place only");
    mark = 1;
  };
  for (size_t at = 0; at < index.segments.size(); ++at) {
    const Segment& segment = *index.segments[at];
    demand(at == 0 || index.floors[at - 1] < index.floors[at], "carousel: floors ascend");
    if (segment.run) {
      const Run& run = *segment.run;
      int64_t before = -1;
      uint64_t last = 0;
      for (size_t i = 0; i < run.positions.size(); ++i) {
        if (!live(run.positions[i])) continue;
        demand(i >= run.head, "carousel: what a run has trimmed is dead");
        see(run.positions[i]);
        const int64_t position = whole(run.positions[i]);
        demand(position > before && keys_[position] >= last, "carousel: rows and keys of a run ascend");
        demand(find(keys_[position]) == at, "carousel: a key belongs to the segment that holds it");
        before = position;
        last = keys_[position];
      }
      demand(before < 0 || run.last == last, "carousel: a run knows its greatest key");
      continue;
    }
    size_t overflows = 0;
    for (size_t b = 0; b < size_t{1} << segment.order; ++b) {
      for (const Bucket* bucket = segment.buckets + b;; bucket = index.pool.at(bucket->overflow)) {
        int64_t before = -1;
        for (int i = 0; i < Bucket::kSlots; ++i) {
          const int slot = (bucket->cursor + i) % Bucket::kSlots;
          if (!live(bucket->position[slot])) continue;
          const int64_t position = whole(bucket->position[slot]);
          see(bucket->position[slot]);
          demand(position > before, "carousel: a ring is in the order of arrival");
          before = position;
          const uint64_t key = keys_[position];
          demand(find(key) == at, "carousel: a key belongs to the segment that holds it");
          demand(segment.line(key) == (b << 16 | bucket->fraction[slot]), "carousel: a slot is where the line says");
        }
        if (!bucket->overflow) break;
        ++overflows;
      }
    }
    demand(overflows == segment.overflows, "carousel: overflow buckets are counted");
  }
  demand(placed_ >= rows_.begin() && placed_ <= rows_.end(), "carousel: rows that wait are the newest");
  const auto placed = seen.begin() + (placed_ - rows_.begin());
  demand(std::find(seen.begin(), placed, 0) == placed, "carousel: each placed row stands somewhere");
  demand(std::find(placed, seen.end(), 1) == seen.end(), "carousel: a row that waits stands nowhere");
}

}  // namespace dovetail
