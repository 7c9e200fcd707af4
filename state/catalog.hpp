// All stores, by name.
#pragma once

#include <memory>

#include "box_store.hpp"

namespace dovetail {

struct Kind {
  const char* name;
  const char* summary;
  bool ranges;  // false: a probe is one key, lo == hi
  std::vector<Parameter> parameters;
  std::unique_ptr<Store> (*make)(const Settings&);
};

const std::vector<Kind>& kinds();

struct BoxKind {
  const char* name;
  const char* summary;
  std::vector<Parameter> parameters;
  std::unique_ptr<BoxStore> (*make)(const Settings&, size_t keys);
};

const std::vector<BoxKind>& box_kinds();

}  // namespace dovetail
