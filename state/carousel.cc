// How a carousel takes rows in, lets them expire, and is tidied up meanwhile. See carousel.hpp.
#include "carousel.hpp"

namespace dovetail {
namespace {

constexpr int kMostOverflows = 2;   // buckets in a chain besides the first
constexpr size_t kLookAfter = 256;  // rows inserted before segments are looked at

}  // namespace

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

// Inserting --------------------------------------------------------------------------------------------------------

// Takes rows in, which wait to be placed. Strong guarantee.
void CarouselStore::append(const uint64_t* keys, const int64_t* rows, size_t n) {
  rows_.append(rows, n);
  try {
    keys_.append(keys, n);
  } catch (...) {
    rows_.take_back(n);
    throw;
  }
}

void CarouselStore::insert(const uint64_t* keys, const int64_t* rows, size_t n) {
  demand(!restoring_, "carousel: nothing is inserted in the midst of a restore");
  if (n == 0) return;
  if (rows_.end() - renewed_at_ + static_cast<int64_t>(n) > renewal_) {
    demand(static_cast<int64_t>(size() + n) <= renewal_,
           "carousel: a window of more than 2^31 rows does not fit one store");
    rebuild_all();
  }
  const bool at_once = n > 4 * size() + 256 && size() + n > peak_;
  coming_ = n;
  append(keys, rows, n);
  try {
    if (at_once) {
      rebuild_all();
    } else if (n == 1) {
      place_alone(*keys);
    } else {
      place_all();
    }
  } catch (...) {
    take_back(n);
    throw;
  }
  if (rows[0] < bound_) expire(bound_);
  peak_ = std::max(peak_, size());
  if (static_cast<size_t>(placed_ - looked_at_) >= kLookAfter) look_around();
}

void CarouselStore::build(const uint64_t* keys, const int64_t* rows, size_t n) { insert(keys, rows, n); }

void CarouselStore::restore(const uint64_t* keys, const int64_t* rows, size_t n) {
  demand(static_cast<int64_t>(size() + n) <= renewal_, "carousel: a window of more than 2^31 rows does not fit one store");
  append(keys, rows, n);
  restoring_ = true;
}

void CarouselStore::restored() {
  if (!restoring_) return;
  rebuild_all();
  restoring_ = false;
  expire(bound_);
}

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
  bound_ = std::max(bound_, before_row);
  const int64_t before = rows_.begin(), begin = rows_.expire(bound_);
  if (begin == before) return;
  keys_.expire(begin);
  placed_ = std::max(placed_, begin);
  // Batches that are longer than the window make it grow and shrink each time: its memory is kept for the next one.
  const size_t soon = size() + coming_;
  coming_ /= 2;
  if (soon < peak_ / 4 && peak_ > 256) {
    try {
      rebuild_all();
    } catch (const std::bad_alloc&) {
      // Returning memory needs some first. There is none: keep what we have, nothing is wrong.
    }
  }
}

// Tidying up ----------------------------------------------------------------------------------------------------------

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
