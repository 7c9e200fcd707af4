// All stores, by name.
#pragma once

#include <memory>

#include "store.hpp"

namespace dovetail {

struct Kind {
  const char* name;
  const char* summary;
  bool ranges;  // false: a probe is one key, lo == hi
  std::vector<Parameter> parameters;
  std::unique_ptr<Store> (*make)(const Settings&);
};

const std::vector<Kind>& kinds();

}  // namespace dovetail
