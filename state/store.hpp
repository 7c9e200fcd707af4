// The contract of every window index: keys with their rows in, pairs of (probe, row) out.
//
//   insert      keys with ascending rows, each above every row that was inserted before; rows need not be consecutive
//   build       the same into an empty store, when all rows are there at once: never slower than insert
//   restore     the same, of a window that comes back bit by bit: until `restored` nothing else is asked of the store,
//               so that it may put off its work until then
//   probe       for each probe a closed range of keys and a half-open range of rows; the pairs come with probes
//               ascending, and rows ascending within a probe, or, where `ordered` is false, as they are found. An
//               empty range (lo > hi) matches nothing. Returns the first probe that was not answered: probing ends
//               after the probe that brings the pairs to `limit`.
//   expire      rows below the bound never match again; the bound never falls. Memory is given back in time.
//   size        how many rows at or above the bound are held
//   nbytes      what the store holds, within a tenth of what the allocator gave for it
//   statistics  counts that tell how the structure fares, under names of its own
//   check       throws std::logic_error with the sentence of an invariant that does not hold
//
// What a probe may rely on: its answer depends on what was inserted and on its own ranges alone, not on how the
// rows were cut into insertions, nor on when expire was called (as long as row_lo is not below that bound).
// Allocation failure is std::bad_alloc and leaves the store as it was before the call; expire never fails.
// All memory comes from memory.hpp, so that both can be tested.
#pragma once

#include <initializer_list>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

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
  bool ordered = true;  // rows ascend within a probe

  bool empty(size_t p) const { return lo[p] > hi[p] || row_lo[p] >= row_hi[p]; }
};

using Statistics = std::vector<std::pair<std::string, double>>;

class Store {
 public:
  virtual ~Store() = default;
  virtual void insert(const uint64_t* keys, const int64_t* rows, size_t n) = 0;
  virtual void build(const uint64_t* keys, const int64_t* rows, size_t n) { insert(keys, rows, n); }
  virtual void restore(const uint64_t* keys, const int64_t* rows, size_t n) { insert(keys, rows, n); }
  virtual void restored() {}
  virtual size_t probe(const Probes& probes, size_t begin, size_t end, size_t limit, Pairs& out) = 0;
  virtual void expire(int64_t before_row) = 0;
  virtual size_t size() const = 0;
  virtual size_t nbytes() const = 0;
  virtual Statistics statistics() const { return {}; }
  virtual void check() const = 0;
};

// One thing that a store lets its user choose.
struct Parameter {
  const char* name;
  double standard, least, most;
  const char* meaning;
};

// The values of a store's parameters, as its constructor reads them.
class Settings {
 public:
  Settings(std::vector<Parameter> parameters, const std::vector<std::pair<std::string, double>>& given)
      : parameters_(std::move(parameters)), given_(given) {}

  double operator[](const std::string& name) const {
    for (const auto& [key, value] : given_) {
      if (key == name) return value;
    }
    for (const Parameter& parameter : parameters_) {
      if (name == parameter.name) return parameter.standard;
    }
    throw std::logic_error("a store reads a parameter that it does not have: " + name);
  }
  size_t count(const std::string& name) const { return static_cast<size_t>((*this)[name]); }

 private:
  std::vector<Parameter> parameters_;
  std::vector<std::pair<std::string, double>> given_;
};

}  // namespace dovetail
