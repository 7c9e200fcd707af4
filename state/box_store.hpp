// The contract of the indexes that go by several keys at once: a row has a key of each kind, a probe a range of each.
//
// It is that of store.hpp, but for this: keys come as one array for each kind, a probe is a box, and a row is found if
// every key of it is inside. A probe with one empty range matches nothing.
#pragma once

#include "store.hpp"

namespace dovetail {

constexpr size_t kMostKeys = 16;  // of a row

struct Boxes {
  size_t keys;
  const uint64_t* const* lo;  // of each key, for all probes
  const uint64_t* const* hi;
  const int64_t* row_lo;
  const int64_t* row_hi;
  bool ordered = true;  // rows ascend within a probe

  bool empty(size_t p) const {
    bool found = row_lo[p] >= row_hi[p];
    for (size_t k = 0; k < keys; ++k) found |= lo[k][p] > hi[k][p];
    return found;
  }
};

// The ranges of one probe.
struct Box {
  uint64_t lo[kMostKeys], hi[kMostKeys];

  Box(const Boxes& boxes, size_t p) {
    for (size_t k = 0; k < boxes.keys; ++k) {
      lo[k] = boxes.lo[k][p];
      hi[k] = boxes.hi[k][p];
    }
  }
};

class BoxStore {
 public:
  virtual ~BoxStore() = default;
  virtual void insert(const uint64_t* const* keys, const int64_t* rows, size_t n) = 0;
  virtual size_t probe(const Boxes& probes, size_t begin, size_t end, size_t limit, Pairs& out) = 0;
  virtual void expire(int64_t before_row) = 0;
  virtual size_t size() const = 0;
  virtual size_t nbytes() const = 0;
  virtual Statistics statistics() const { return {}; }
  virtual void check() const = 0;
};

}  // namespace dovetail
