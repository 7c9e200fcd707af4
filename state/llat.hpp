// PanJoin's linked-list adaptive table: partitions by key range in chunks of one size, with chunks in reserve; and the
// store that it is by itself, with partitions of even width.
//
// Problem: the rows of a partition should stand together, so that a probe reads one stretch of memory, but who gets
// how many rows is only known afterwards. Idea: every partition has one chunk, for `sigma` times its share of the
// rows; one that gets more takes further chunks out of a common reserve and links them.
//
// A full chunk does not get a successor: its *content* moves into the chunk from the reserve, which is linked behind
// it, and the partition's own chunk is filled anew. So an insertion touches the partition's own chunk alone, however
// long its chain is: there is no list to go through and no tail to be kept elsewhere, and the newest rows stand where
// a probe begins. Chunks of the reserve are full; a move copies each row at most once.
// P partitions never need more than P chunks in reserve: a chunk holds ceil(sigma * rows / P), sigma >= 1, and every
// chunk in reserve is full. The reserve is allocated in slabs as it is needed, since even keys take a fifth of it.
//
// The store `llat` partitions by arithmetic: the range of the predecessor's keys is cut into P parts of equal width,
// once, with no adjustment afterwards; the first sub-window is one partition. That needs no table of splitters, and
// skew is left to the chunks.
//
// Cost: insert O(1); probe O(rows of the partitions that its range touches) in each sub-window; some 36 bytes a row.
// Invariants: a chunk holds at most `room` rows; a chunk with a successor is not empty, and what is behind the first
// one is full; places ascend in a chunk and those of a chunk are above those of its successor; a row's key maps to its
// partition, and the mapping never falls while keys rise.
// Where it loses: keys of which most share a small part of the range (one outlier suffices; floats that span many
// powers of two) make long partitions, and every probe of them reads all of it. Keys that only rise or fall end up in
// the last or first partition: `rap_table` repairs the former, `wib_tree` both.
// Repaired against the paper: a chunk's size is rounded up, since rounded down 2P chunks do not suffice; the list is
// not walked at each insertion; a chunk is taken at the insertion that needs it; nothing is deleted by partition,
// since rows of a partition need not expire in its order.
#pragma once

#include <algorithm>
#include <cmath>
#include <utility>

#include "sub_windows.hpp"

namespace dovetail {

constexpr uint32_t kNoChunk = UINT32_MAX;

// What a chunk begins with; the keys and the places of its rows follow. A chunk is what the paper calls an entry.
struct Chunk {
  uint32_t rows;
  uint32_t next;  // a chunk with older rows of the same partition, or kNoChunk

  uint64_t* keys() { return reinterpret_cast<uint64_t*>(this + 1); }
  const uint64_t* keys() const { return reinterpret_cast<const uint64_t*>(this + 1); }

  static constexpr size_t kRow = sizeof(uint64_t) + sizeof(uint32_t);
  static size_t nbytes(size_t room) { return (sizeof(Chunk) + room * kRow + 7) / 8 * 8; }
  static size_t room_in(size_t nbytes) { return (nbytes - sizeof(Chunk)) / kRow; }
};

// Chunks that are taken and given back, and the operations on a chain of them. A chain is known by its first chunk,
// which need not be one of these.
class Chunks {
 public:
  // `each` chunks, at least, are allocated at a time.
  Chunks(size_t room, size_t each)
      : room_(room), nbytes_(Chunk::nbytes(room)), prefetched_(std::min(nbytes_, kPrefetched)) {
    while ((size_t{1} << shift_) < each) ++shift_;
  }

  size_t room() const { return room_; }
  size_t taken() const { return taken_; }
  size_t nbytes() const { return slabs_.capacity() * sizeof(Slab) + (slabs_.size() << shift_) * nbytes_; }

  Chunk* at(uint32_t number) { return reinterpret_cast<Chunk*>(address(number)); }
  const Chunk* at(uint32_t number) const { return reinterpret_cast<const Chunk*>(address(number)); }
  uint32_t* places(Chunk* chunk) const { return reinterpret_cast<uint32_t*>(chunk->keys() + room_); }
  const uint32_t* places(const Chunk* chunk) const { return reinterpret_cast<const uint32_t*>(chunk->keys() + room_); }

  void prefetch(const Chunk* chunk) const {
    prefetch_lines(chunk, prefetched_);
  }

  void prefetch_behind(const Chunk* chunk) const {
    if (chunk->next != kNoChunk) prefetch(at(chunk->next));
  }

  uint32_t take() {
    uint32_t number = free_;
    if (number != kNoChunk) {
      free_ = at(number)->next;
    } else {
      if (fresh_ == slabs_.size() << shift_) slabs_.emplace_back(nbytes_ << shift_);
      number = static_cast<uint32_t>(fresh_++);
    }
    ++taken_;
    *at(number) = {0, kNoChunk};
    return number;
  }

  void give_back(uint32_t number) {
    at(number)->next = free_;
    free_ = number;
    --taken_;
  }

  // The caller has made sure that there is room.
  void append(Chunk* chunk, uint64_t key, uint32_t place) const {
    chunk->keys()[chunk->rows] = key;
    places(chunk)[chunk->rows] = place;
    ++chunk->rows;
  }

  // Makes room in the first chunk of a chain, which is full.
  void move_behind(Chunk* first) {
    const uint32_t number = take();
    std::memcpy(static_cast<void*>(at(number)), first, nbytes_);
    *first = {0, number};
  }

  // Removes the newest row of a chain.
  void pop(Chunk* first) {
    const uint32_t next = first->next;
    if (--first->rows > 0 || next == kNoChunk) return;
    std::memcpy(static_cast<void*>(first), at(next), nbytes_);
    give_back(next);
  }

  // Writes what is wanted of a chain from out[found] on, and returns the new `found`. With `any_key` all of its keys
  // are known to be in the range.
  size_t collect(const Chunk* chunk, bool any_key, const Wanted& wanted, Growing<int64_t>& out, size_t found) const {
    while (true) {
      const bool last = chunk->next == kNoChunk;
      const Chunk* next = last ? nullptr : at(chunk->next);
      __builtin_prefetch(next);
      const uint64_t width = any_key ? kGreatest : wanted.hi - wanted.lo;
      const uint64_t* key = chunk->keys();
      const uint32_t* place = places(chunk);
      int64_t* row = out.reserve(found + chunk->rows);
      for (size_t i = 0; i < chunk->rows; ++i) {
        row[found] = wanted.shift + place[i];
        found += (key[i] - wanted.lo <= width) & (place[i] - wanted.from < wanted.length);
      }
      if (last) return found;
      chunk = next;
    }
  }

  size_t rows_of(const Chunk* chunk) const {
    size_t rows = chunk->rows;
    while (chunk->next != kNoChunk) rows += (chunk = at(chunk->next))->rows;
    return rows;
  }

  // Calls visit(key, place) for all rows of a chain.
  template <typename Visit>
  void each(const Chunk* chunk, const Visit& visit) const {
    while (true) {
      for (size_t i = 0; i < chunk->rows; ++i) visit(chunk->keys()[i], places(chunk)[i]);
      if (chunk->next == kNoChunk) return;
      chunk = at(chunk->next);
    }
  }

  // Returns how many chunks stand behind the first.
  size_t check(const Chunk* chunk) const {
    size_t behind = 0;
    while (true) {
      demand(chunk->rows <= room_, "chunks: a chunk holds no more than it has room for");
      for (size_t i = 1; i < chunk->rows; ++i) {
        demand(places(chunk)[i - 1] < places(chunk)[i], "chunks: places ascend in a chunk");
      }
      if (chunk->next == kNoChunk) return behind;
      const Chunk* next = at(chunk->next);
      demand(chunk->rows > 0 && next->rows == room_, "chunks: not empty before a successor, full behind another");
      demand(places(chunk)[0] > places(next)[room_ - 1], "chunks: a successor's places are older");
      ++behind;
      demand(behind <= taken_, "chunks: a chain ends");
      chunk = next;
    }
  }

 private:
  using Slab = Array<unsigned char>;
  static constexpr size_t kPrefetched = 512;  // of what is longer the machine itself sees that it is read in order

  const unsigned char* address(uint32_t number) const {
    return slabs_[number >> shift_].get() + (number & ((size_t{1} << shift_) - 1)) * nbytes_;
  }
  unsigned char* address(uint32_t number) {
    return const_cast<unsigned char*>(std::as_const(*this).address(number));
  }

  size_t room_, nbytes_, prefetched_;
  size_t shift_ = 0;
  Vector<Slab> slabs_;
  size_t fresh_ = 0;  // chunks that were ever taken
  size_t taken_ = 0;  // and that are now
  uint32_t free_ = kNoChunk;
};

struct Extent {
  size_t rows = 0;
  uint64_t least = kGreatest, most = 0;
};

// A fixed number of partitions, each with a chunk of its own, and the reserve.
class Llat {
 public:
  Llat(size_t rows, size_t partitions, double sigma)
      : partitions_(partitions),
        reserve_(room_for(rows, partitions, sigma), std::max<size_t>(1, partitions / 4)),
        stride_(whole_lines(Chunk::nbytes(reserve_.room()))),
        own_(partitions * stride_) {
    for (size_t p = 0; p < partitions; ++p) *own(p) = {0, kNoChunk};
  }

  size_t partitions() const { return partitions_; }
  size_t in_reserve() const { return reserve_.taken(); }
  size_t nbytes() const { return own_.nbytes() + reserve_.nbytes(); }

  void prefetch(size_t partition) const { reserve_.prefetch(own(partition)); }

  void prefetch_behind(size_t partition) const { reserve_.prefetch_behind(own(partition)); }

  // Strong guarantee.
  void add(size_t partition, uint64_t key, uint32_t place) {
    Chunk* chunk = own(partition);
    if (chunk->rows == reserve_.room()) reserve_.move_behind(chunk);
    reserve_.append(chunk, key, place);
  }

  void take_back(size_t partition) { reserve_.pop(own(partition)); }

  // All rows that are wanted of the partitions first … last, where those of the range's ends are. Only those two can
  // hold keys outside of the range.
  size_t collect(size_t first, size_t last, const Wanted& wanted, Growing<int64_t>& out, size_t found) const {
    const size_t before = found;
    for (size_t p = first; p <= last; ++p) {
      found = reserve_.collect(own(p), p != first && p != last, wanted, out, found);
    }
    return found - before;
  }

  // How many rows a partition has, and their least and greatest key.
  Extent extent(size_t partition) const {
    Extent extent;
    each(partition, [&](uint64_t key, uint32_t) {
      extent.least = std::min(extent.least, key);
      extent.most = std::max(extent.most, key);
      ++extent.rows;
    });
    return extent;
  }

  template <typename Visit>
  void each(size_t partition, const Visit& visit) const {
    reserve_.each(own(partition), visit);
  }

  // How far the partitions are from being equally long: the mean of |rows - share|, by the share; 0 is even, 2 is all
  // in one. Uniform keys give 0.20 for a share of 16.
  double imbalance(size_t rows) const {
    const double share = static_cast<double>(rows) / static_cast<double>(partitions_);
    double off = 0;
    for (size_t p = 0; p < partitions_; ++p) off += std::abs(static_cast<double>(reserve_.rows_of(own(p))) - share);
    return off / static_cast<double>(rows);
  }

  void describe(size_t rows, Statistics& all) const {
    all.emplace_back("partitions", static_cast<double>(partitions_));
    all.emplace_back("chunks_in_reserve", static_cast<double>(in_reserve()));
    all.emplace_back("imbalance", imbalance(rows));
  }

  // `partition_of` tells where a key belongs.
  template <typename PartitionOf>
  void check(size_t rows, const PartitionOf& partition_of) const {
    size_t behind = 0, held = 0;
    Vector<char> seen(rows);
    for (size_t p = 0; p < partitions_; ++p) {
      behind += reserve_.check(own(p));
      each(p, [&](uint64_t key, uint32_t place) {
        demand(partition_of(key) == p, "llat: a key stands in its partition");
        demand(place < rows && !seen[place], "llat: each place once");
        seen[place] = 1;
        ++held;
      });
    }
    demand(held == rows, "llat: every row stands in a partition");
    demand(behind == in_reserve(), "llat: a chunk of the reserve is linked to one partition");
    demand(behind <= partitions_, "llat: 2P chunks suffice");
  }

 private:
  // At least sigma times the share, and what is left of the last cache line.
  static size_t room_for(size_t rows, size_t partitions, double sigma) {
    const double room = std::ceil(sigma * static_cast<double>(rows) / static_cast<double>(partitions));
    return Chunk::room_in(whole_lines(Chunk::nbytes(static_cast<size_t>(room))));
  }

  const Chunk* own(size_t p) const { return reinterpret_cast<const Chunk*>(own_.get() + p * stride_); }
  Chunk* own(size_t p) { return reinterpret_cast<Chunk*>(own_.get() + p * stride_); }

  size_t partitions_;
  Chunks reserve_;
  size_t stride_;
  Array<unsigned char> own_;
};

// A sub-window that is an LLAT. Cut is how keys map to partitions: Cut(partitions), Cut(partitions, before) with a
// predecessor's part, partition_of(key), locate(lo, hi) and nbytes(), check().
template <typename Cut>
class LlatPart {
 public:
  struct Options {
    explicit Options(const Settings& settings) : partitions(settings.count("partitions")), sigma(settings["sigma"]) {}
    size_t partitions;
    double sigma;
  };
  static std::vector<Parameter> parameters() {
    return {{"partitions", 0, 0, 1 << 24, "partitions of a sub-window, at most one a row; 0: one for every 16 rows"},
            {"sigma", 1.25, 1, 16, "rows that a chunk has room for, by a partition's share"}};
  }

  struct Spot {
    uint32_t first, last;
  };

  LlatPart(const Options& options, size_t rows, const LlatPart* before)
      : cut_(before ? Cut(partitions_for(options, rows), *before) : Cut()),
        table_(rows, before ? partitions_for(options, rows) : 1, options.sigma),
        capacity_(rows) {}

  size_t rows() const { return rows_; }
  size_t capacity() const { return capacity_; }
  size_t nbytes() const { return cut_.nbytes() + table_.nbytes(); }
  const Llat& table() const { return table_; }

  void locate(const uint64_t* lo, const uint64_t* hi, size_t n, Spot* spots) const {
    uint32_t first[kGroup];
    cut_.partitions_of(lo, n, first);
    for (size_t i = 0; i < n; ++i) {
      spots[i] = {first[i], static_cast<uint32_t>(cut_.partition_from(first[i], hi[i]))};
      table_.prefetch(first[i]);
      if (spots[i].last > first[i]) table_.prefetch(first[i] + 1);
    }
  }

  void approach(const Spot* spots, size_t n) const {
    for (size_t i = 0; i < n; ++i) table_.prefetch_behind(spots[i].first);
  }

  size_t collect(const Spot& spot, const Wanted& wanted, Growing<int64_t>& out, size_t found) const {
    return table_.collect(spot.first, spot.last, wanted, out, found);
  }

  void insert(const uint64_t* keys, size_t n) {
    uint32_t now[kGroup], next[kGroup];
    look(keys, std::min(n, kGroup), now);
    for (size_t at = 0; at < n; at += kGroup) {
      const size_t end = std::min(at + kGroup, n);
      look(keys + end, std::min(n - end, kGroup), next);
      for (size_t i = at; i < end; ++i, ++rows_) table_.add(now[i - at], keys[i], static_cast<uint32_t>(rows_));
      std::copy(next, next + kGroup, now);
    }
  }

  void take_back(uint64_t key) {
    table_.take_back(cut_.partition_of(key));
    --rows_;
  }

  void describe(Statistics& all) const { table_.describe(rows_, all); }

  void check() const {
    cut_.check();
    table_.check(rows_, [&](uint64_t key) { return cut_.partition_of(key); });
  }

 private:
  static constexpr size_t kShare = 16;  // rows of a partition: with sigma = 1.25 a chunk is then four cache lines

  void look(const uint64_t* keys, size_t n, uint32_t* partitions) const {
    cut_.partitions_of(keys, n, partitions);
    for (size_t i = 0; i < n; ++i) table_.prefetch(partitions[i]);
  }

  static size_t partitions_for(const Options& options, size_t rows) {
    return options.partitions ? std::min(options.partitions, rows) : (rows + kShare - 1) / kShare;
  }

  Cut cut_;
  Llat table_;
  size_t capacity_;
  size_t rows_ = 0;
};

// Partitions of even width between the least and the greatest key of the predecessor. Going through double keeps
// the order: a rounded difference, a rounded product and its integer part all rise with the key.
class EvenCut {
 public:
  EvenCut() = default;
  EvenCut(size_t partitions, const LlatPart<EvenCut>& before) : last_(partitions - 1), least_(kGreatest) {
    uint64_t most = 0;
    for (size_t p = 0; p < before.table().partitions(); ++p) {
      const Extent extent = before.table().extent(p);
      least_ = std::min(least_, extent.least);
      most = std::max(most, extent.most);
    }
    scale_ = static_cast<double>(partitions) / (static_cast<double>(most - least_) + 1);
  }

  size_t partition_of(uint64_t key) const {
    if (key <= least_) return 0;
    const double at = static_cast<double>(key - least_) * scale_;
    return at < static_cast<double>(last_) ? static_cast<size_t>(at) : last_;
  }
  void partitions_of(const uint64_t* keys, size_t n, uint32_t* partitions) const {
    for (size_t i = 0; i < n; ++i) partitions[i] = static_cast<uint32_t>(partition_of(keys[i]));
  }
  size_t partition_from(size_t, uint64_t key) const { return partition_of(key); }

  size_t nbytes() const { return 0; }
  void check() const { demand(scale_ > 0, "llat: partitions have a width"); }

 private:
  size_t last_ = 0;
  uint64_t least_ = 0;
  double scale_ = 1;
};

using LlatStore = SubWindows<LlatPart<EvenCut>>;

}  // namespace dovetail
