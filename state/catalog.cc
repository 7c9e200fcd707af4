#include "catalog.hpp"

#include "bi_sort.hpp"
#include "bplus.hpp"
#include "carousel.hpp"
#include "chained.hpp"
#include "hash.hpp"
#include "im_tree.hpp"
#include "llat.hpp"
#include "nested.hpp"
#include "pim_tree.hpp"
#include "po_join.hpp"
#include "rap_table.hpp"
#include "wib_tree.hpp"
#include "zone_map.hpp"

namespace dovetail {
namespace {

template <typename S>
Kind kind(const char* name, const char* summary, bool ranges = true) {
  return {name, summary, ranges, S::parameters(), [](const Settings& settings) -> std::unique_ptr<Store> {
            return std::make_unique<S>(settings);
          }};
}

template <typename S>
BoxKind box_kind(const char* name, const char* summary) {
  return {name, summary, S::parameters(), [](const Settings& settings, size_t keys) -> std::unique_ptr<BoxStore> {
            return std::make_unique<S>(settings, keys);
          }};
}

}  // namespace

const std::vector<Kind>& kinds() {
  static const std::vector<Kind> all = {
      kind<CarouselStore>("carousel", "ranges: rings of slots that forget what has expired, under a computed directory"),
      kind<NestedStore>("nested", "no index: every row of the range is looked at, eight at a time"),
      kind<HashStore>("hash", "equality: chains from the newest row to the oldest", false),
      kind<BiSortStore>("bi_sort", "ranges: PanJoin's sorted arrays with an index, for batches and wide ranges"),
      kind<LlatStore>("llat", "ranges: sub-windows cut into partitions of even width"),
      kind<RapTableStore>("rap_table", "ranges: sub-windows cut by splitters that adjust to the keys"),
      kind<WibTreeStore>("wib_tree", "ranges: sub-windows in trees with wide, unsorted leaves"),
      kind<BPlusStore>("bplus", "ranges: a B+-tree with an insertion and a deletion for each row"),
      kind<ChainedStore<BPlusTree>>("chained", "ranges: a chain of B+-trees, the oldest dropped whole"),
      kind<ChainedStore<ImmutableTree>>("ib_chained", "ranges: a chain of immutable trees and a B+-tree for new rows"),
      kind<ImTreeStore>("im_tree", "ranges: an immutable tree, and a growing one for the newest rows"),
      kind<PimTreeStore>("pim_tree", "ranges: an immutable tree with many growing ones for the newest rows"),
  };
  return all;
}

const std::vector<BoxKind>& box_kinds() {
  static const std::vector<BoxKind> all = {
      box_kind<ZoneMapStore>("zone_map", "several ranges: sorted slides cut into runs, whose ends tell which to look at"),
      box_kind<PoJoinStore>("po_join", "several ranges: SPO-Join's slides, sorted by each key and tied by a permutation"),
  };
  return all;
}

}  // namespace dovetail
