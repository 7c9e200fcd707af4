// Rows out of a log of batches, without joining the batches first.
//
// Problem: results name rows by number, in any order, and the rows stand in many immutable Arrow batches. Copying
// the batches into one array costs the whole window at each step. Idea: find each row's batch and place once
// (a table of hints makes that O(1)), then copy column by column straight out of the batches' own buffers.
//
// The log owns the Arrow batches and keeps them alive; a Chunks only refers to their buffers. Buffers are laid out
// as Arrow's specification says: a validity bitmap or none, then values; or offsets, then bytes.
#pragma once

#include <vector>

#include "row_vector.hpp"

namespace dovetail {

enum class Layout : int { kFixed = 0, kBits = 1, kBytes32 = 2, kBytes64 = 3, kOther = 4 };

struct Part {  // one column of one batch
  const uint8_t* validity;  // null: all values are valid
  const uint8_t* values;    // or offsets
  const uint8_t* bytes;     // of strings
  int64_t offset;           // of the first row, in values
};

struct Place {
  uint32_t chunk;
  uint32_t at;
};

inline bool bit(const uint8_t* bits, int64_t i) { return (bits[i >> 3] >> (i & 7)) & 1; }

class Chunks {
 public:
  explicit Chunks(std::vector<std::pair<int, int>> columns) : columns_(std::move(columns)), with_nulls_(columns_.size()) {}

  size_t columns() const { return columns_.size(); }
  size_t size() const { return first_.size(); }
  size_t nbytes() const {
    return first_.capacity() * 8 + hints_.capacity() * 4 + parts_.capacity() * sizeof(Part);
  }

  // `parts` has one entry a column. Rows of a chunk follow the last one's.
  void add(int64_t first_row, int64_t rows, const Part* parts) {
    demand(first_.empty() || first_row == end_, "a batch of a log follows the one before it");
    make_room(first_, 1);  // so that nothing below can fail
    make_room(parts_, columns_.size());
    first_.push_back(first_row);
    parts_.insert(parts_.end(), parts, parts + columns_.size());
    for (size_t i = 0; i < columns_.size(); ++i) with_nulls_[i] += parts[i].validity != nullptr;
    end_ = first_row + rows;
    hints_.clear();
  }

  void drop_front(size_t n) {
    forget_nulls(0, n);
    first_.erase(first_.begin(), first_.begin() + static_cast<std::ptrdiff_t>(n));
    parts_.erase(parts_.begin(), parts_.begin() + static_cast<std::ptrdiff_t>(n * columns_.size()));
    if (first_.capacity() > 4 * first_.size() + 64) {
      first_.shrink_to_fit();
      parts_.shrink_to_fit();
    }
    hints_.clear();
  }

  void drop_back(size_t n) {
    if (n) end_ = first_[first_.size() - n];
    forget_nulls(first_.size() - n, first_.size());
    first_.resize(first_.size() - n);
    parts_.resize(parts_.size() - n * columns_.size());
    hints_.clear();
  }

  void locate(const int64_t* rows, size_t n, Place* places) {
    if (n == 0) return;
    demand(!first_.empty(), "rows were asked for of an empty log");
    const int64_t begin = first_.front();
    const auto held = static_cast<uint64_t>(end_ - begin);
    uint64_t outside = 0;
    for (size_t i = 0; i < n; ++i) outside |= static_cast<uint64_t>(rows[i]) - static_cast<uint64_t>(begin) >= held;
    demand(!outside, "a row was asked for that the log does not hold");
    if (hints_.empty()) make_hints();
    if (crowd_ <= 1) {  // whether a chunk ends before a row of its stretch cannot be guessed, so no branch asks
      const uint32_t last = static_cast<uint32_t>(size()) - 1;
      for (size_t i = 0; i < n; ++i) {
        uint32_t chunk = hints_[static_cast<size_t>(rows[i] - begin) >> shift_];
        const uint32_t next = std::min(chunk + 1, last);
        chunk += (chunk < last) & (first_[next] <= rows[i]);
        places[i] = {chunk, static_cast<uint32_t>(rows[i] - first_[chunk])};
      }
      return;
    }
    for (size_t i = 0; i < n; ++i) {
      uint32_t chunk = hints_[static_cast<size_t>(rows[i] - begin) >> shift_];
      while (chunk + 1 < first_.size() && first_[chunk + 1] <= rows[i]) ++chunk;
      places[i] = {chunk, static_cast<uint32_t>(rows[i] - first_[chunk])};
    }
  }

  bool has_nulls(size_t column) const { return with_nulls_[column] != 0; }

  // Writes a validity bitmap of n bits (a whole number of bytes, cleared before); returns how many are null.
  size_t gather_validity(size_t column, const Place* places, size_t n, uint8_t* out) const {
    size_t nulls = 0;
    for (size_t i = 0; i < n; ++i) {
      const Part& from = part(places[i].chunk, column);
      const bool valid = !from.validity || bit(from.validity, from.offset + places[i].at);
      out[i >> 3] = static_cast<uint8_t>(out[i >> 3] | (valid << (i & 7)));
      nulls += !valid;
    }
    return nulls;
  }

  void gather_fixed(size_t column, const Place* places, size_t n, uint8_t* out) const {
    const int width = columns_[column].second;
    switch (width) {
      case 1:
        return copy<uint8_t>(column, places, n, out);
      case 2:
        return copy<uint16_t>(column, places, n, out);
      case 4:
        return copy<uint32_t>(column, places, n, out);
      case 8:
        return copy<uint64_t>(column, places, n, out);
      case 16:
        return copy<Sixteen>(column, places, n, out);
      default:
        for (size_t i = 0; i < n; ++i) {
          const Part& from = part(places[i].chunk, column);
          std::memcpy(out + i * width, from.values + (from.offset + places[i].at) * width, width);
        }
    }
  }

  void gather_bits(size_t column, const Place* places, size_t n, uint8_t* out) const {
    for (size_t i = 0; i < n; ++i) {
      const Part& from = part(places[i].chunk, column);
      const bool set = bit(from.values, from.offset + places[i].at);
      out[i >> 3] = static_cast<uint8_t>(out[i >> 3] | (set << (i & 7)));
    }
  }

  // Offsets first (n + 1 of them), so that the caller can allocate the bytes; returns how many bytes there are.
  template <typename Offset>
  int64_t gather_offsets(size_t column, const Place* places, size_t n, Offset* out, int64_t limit) const {
    int64_t total = 0;
    out[0] = 0;
    for (size_t i = 0; i < n; ++i) {
      const Part& from = part(places[i].chunk, column);
      Offset ends[2];
      std::memcpy(ends, from.values + (from.offset + places[i].at) * sizeof(Offset), sizeof ends);
      total += static_cast<int64_t>(ends[1] - ends[0]);
      if (total > limit) return -1;
      out[i + 1] = static_cast<Offset>(total);
    }
    return total;
  }

  template <typename Offset>
  void gather_bytes(size_t column, const Place* places, size_t n, const Offset* starts, uint8_t* out) const {
    for (size_t i = 0; i < n; ++i) {
      const Part& from = part(places[i].chunk, column);
      Offset ends[2];
      std::memcpy(ends, from.values + (from.offset + places[i].at) * sizeof(Offset), sizeof ends);
      const auto length = static_cast<size_t>(ends[1] - ends[0]);
      if (length) std::memcpy(out + starts[i], from.bytes + ends[0], length);
    }
  }

 private:
  struct Sixteen {
    uint64_t words[2];
  };

  // Growing by a factor, as reserve() alone would move everything each time.
  template <typename T>
  static void make_room(std::vector<T>& values, size_t more) {
    if (values.size() + more > values.capacity()) values.reserve((values.size() + more) * 2);
  }

  const Part& part(size_t chunk, size_t column) const { return parts_[chunk * columns_.size() + column]; }

  template <typename T>
  void copy(size_t column, const Place* places, size_t n, uint8_t* out) const {
    std::vector<const uint8_t*> bases(size());
    for (size_t c = 0; c < size(); ++c) {
      bases[c] = part(c, column).values + part(c, column).offset * static_cast<int64_t>(sizeof(T));
    }
    // memcpy, as a buffer that came over a wire need not be aligned; it compiles to one load and one store.
    for (size_t i = 0; i < n; ++i) {
      std::memcpy(out + i * sizeof(T), bases[places[i].chunk] + places[i].at * sizeof(T), sizeof(T));
    }
  }

  void forget_nulls(size_t begin, size_t end) {
    for (size_t c = begin; c < end; ++c) {
      for (size_t i = 0; i < columns_.size(); ++i) with_nulls_[i] -= part(c, i).validity != nullptr;
    }
  }

  // hints_[d >> shift_] is the chunk that holds the first row of that stretch; some four stretches a chunk. No stretch
  // has more than crowd_ ends of chunks in it.
  void make_hints() {
    const auto span = static_cast<size_t>(end_ - first_.front());
    shift_ = 0;
    while ((span >> shift_) > 4 * first_.size() + 16) ++shift_;
    hints_.resize((span >> shift_) + 1);
    uint32_t chunk = 0;
    for (size_t h = 0; h < hints_.size(); ++h) {
      const int64_t row = first_.front() + static_cast<int64_t>(h << shift_);
      while (chunk + 1 < first_.size() && first_[chunk + 1] <= row) ++chunk;
      hints_[h] = chunk;
    }
    crowd_ = static_cast<uint32_t>(size()) - 1 - hints_.back();
    for (size_t h = 1; h < hints_.size(); ++h) crowd_ = std::max(crowd_, hints_[h] - hints_[h - 1]);
  }

  std::vector<std::pair<int, int>> columns_;  // (layout, bytes a value)
  std::vector<size_t> with_nulls_;            // how many chunks of a column have a validity bitmap
  std::vector<int64_t> first_;
  std::vector<Part> parts_;
  std::vector<uint32_t> hints_;
  uint32_t crowd_ = 0;
  size_t shift_ = 0;
  int64_t end_ = 0;
};

}  // namespace dovetail
