// The contract of every window index: keys with their rows in, pairs of (probe, row) out.
//
//   insert   keys with ascending rows, each above every row that was inserted before
//   probe    for each probe a closed range of keys and a half-open range of rows; the pairs come with probes
//            ascending, and rows ascending within a probe. An empty range (lo > hi) matches nothing. Returns the
//            first probe that was not answered: probing ends after the probe that brings the pairs to `limit`.
//   expire   rows below the bound never match again; the bound never falls. Memory is given back in time.
//
// What a probe may rely on: its answer depends on what was inserted and on its own ranges alone, not on how the
// rows were cut into insertions, nor on when expire was called (as long as row_lo is not below that bound).
// Allocation failure is std::bad_alloc and leaves the store as it was before the call.
#pragma once

#include "row_vector.hpp"

namespace dovetail {

struct Pairs {
  Growing<int64_t> probe;
  Growing<int64_t> row;

  size_t size() const { return row.size(); }

  // `n` rows were written behind the last one of `row`: they belong to probe p.
  void claim(int64_t p, size_t n) {
    int64_t* place = probe.reserve(n);
    for (size_t i = 0; i < n; ++i) place[i] = p;
    probe.advance(n);
    row.advance(n);
  }
};

struct Probes {
  const uint64_t* lo;
  const uint64_t* hi;
  const int64_t* row_lo;
  const int64_t* row_hi;

  bool empty(size_t p) const { return lo[p] > hi[p] || row_lo[p] >= row_hi[p]; }
};

class Store {
 public:
  virtual ~Store() = default;
  virtual void insert(const uint64_t* keys, const int64_t* rows, size_t n) = 0;
  virtual size_t probe(const Probes& probes, size_t begin, size_t end, size_t limit, Pairs& out) = 0;
  virtual void expire(int64_t before_row) = 0;
  virtual size_t size() const = 0;
  virtual size_t nbytes() const = 0;
  virtual void check() const = 0;
};

}  // namespace dovetail
