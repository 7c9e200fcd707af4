// The carousel: an index whose leaves are rings that forget by themselves, under a directory that is computed.
//
// Problem. A window index inserts, expires and looks up each tuple once. In a tree every one of these searches a key,
// and deleting a row costs as much as adding one; trees that are rebuilt instead stop for it, and hold rows twice.
//
// Idea 1, *rings*. Rows expire in the order in which they came. Look at the rows of one narrow range of keys: they
// also leave in the order in which they came. So a leaf (a `Bucket` of two cache lines) is a ring of slots: the one
// under its cursor holds the oldest row, and if that row has expired, the new row is written over it. Expiry is one
// number that moves; nothing is deleted, merged or moved, and there are no pauses.
//
// Idea 2, *positions*. Rows are numbered in the order in which they were stored. "Neither expired, nor too new for this
// probe" is one unsigned comparison of a 32-bit position, the same that a probe's window needs anyway.
//
// Idea 3, *fractions*. Where a key lies in its bucket's range is kept as 16 bits, so that a slot takes 6 bytes and a
// bucket of 20 slots is compared in a few instructions. Only a slot whose fraction equals that of an end of the
// probe's range is checked against the key itself (key_log.hpp); of uniform keys that is one in 5,000. Where ends of
// ranges are stored keys, as prices in cents are, it would be most: but there the fractions often tell all keys of the
// segment apart, so that none need be checked; and where not, the keys are fetched for a group of probes beforehand.
//
// Idea 4, *lines instead of search*. A segment is a range of keys with up to 256 buckets; a linear function of the key,
// one multiplication, gives bucket and fraction at once. A segment is as wide as a line fits its keys: some 2,500 rows
// where they lie evenly, fewer where they do not. The directory finds the segment by a line through the segments'
// lower ends, or their logarithms, and a binary search of the few that the line cannot tell apart.
//
// Idea 5, *look ahead*. The limit of a large index is the latency of memory. In a batch the places of the next 16
// keys are computed and fetched while the last 16 are worked on, in the order of arrival. Single rows wait, up to two
// of them, while their memory comes; probes look through those that wait.
//
// What keeps it right where keys are not even:
//
// - A bucket that is full of live rows gets an overflow bucket. When that happens too often in a segment, or three
//   times in one bucket, the segment is built anew from its live rows: with a line that fits what there is now, and
//   in pieces that are halved until lines fit. At the ends of the key space the line reaches beyond the greatest key
//   (or the least), by as much as the segment is wide, so that keys which drift are expected.
// - Rows of one key, or of keys that ascend with their rows, need no slots: such a segment is a *run*, a list of
//   positions, searched by row and key alike. So heavy keys cost 4 bytes a row, do not get in the way of their
//   neighbours, and sorted streams are appended.
// - A segment whose rows have all expired is removed, and neighbours that have become nearly empty are joined: one is
//   looked at now and then, in turn, once round for each window of insertions. When most of the memory holds nothing
//   any more (a time window after a burst), everything is built anew; but not between batches that are longer than the
//   window, of which the next one needs it again.
// - Positions are 32 bits: before they come round (after 2^31 rows), everything is built anew.
//
// Invariants. floors_ ascends from 0; a key belongs to the last segment whose floor is not above it. Each live row from
// before placed_ stands in exactly one slot or run: in a slot of the bucket that the segment's line names, or of that
// one's overflow buckets, with the fraction that the line gives. In a bucket the positions of live slots ascend from
// the cursor on. In a run keys and positions both ascend. No slot holds a position that could be taken for a live one.
//
// Cost. Insert and probe O(1) for keys of any smooth density, one or two buckets; O(log(segments)) for the directory at
// worst; a row is moved when its segment is built anew, O(1) times in its life, about log(rows) times where keys
// pile up. Expire O(1). Some 22 bytes a row: 8 for the key, 12.8 for slots that are half full.
//
// Where it loses: single tuples on a window far larger than the caches wait for memory like everything else; ranges
// that hold much of the window must be put in the order of rows.
#pragma once

#include <memory>

#include "buckets.hpp"
#include "entry.hpp"
#include "key_log.hpp"
#include "row_log.hpp"
#include "row_sorter.hpp"
#include "store.hpp"

namespace dovetail {

// A line from keys to [0, cells << bits): monotone, and constant beyond both ends.
struct Line {
  uint64_t base = 0;   // keys up to here are at 0
  uint64_t span = 0;   // how far from base the line goes on
  uint64_t scale = 0;  // 0: all keys are at 0
  int shift = 0;

  // Whether keys between the ends are each at a place of their own.
  bool tells_apart() const { return shift && scale >> (64 - shift); }

  static Line through(uint64_t first, uint64_t last, uint64_t cells);
  DOVETAIL_INLINE uint64_t operator()(uint64_t key) const {
    const uint64_t distance = key < base ? 0 : key - base;
    const uint64_t within = distance < span ? distance : span;
    __extension__ typedef unsigned __int128 Wide;
    return static_cast<uint64_t>((static_cast<Wide>(within << shift) * scale) >> 64);
  }
};

// A line from keys to cells, or from their logarithms: some keys lie evenly, others (counts, amounts) by magnitude.
struct Scale {
  Line line;
  bool logarithmic = false;
  uint64_t origin = 0;  // of the logarithm

  // The number of the distance's leading bit, and the bits behind it: rises with it, and evenly with its magnitude.
  static uint64_t logarithm(uint64_t distance) {
    const auto leading = static_cast<unsigned>(__builtin_clzll(distance | 1));
    return static_cast<uint64_t>(63 - leading) << 58 | (distance << leading) << 1 >> 6;
  }
  DOVETAIL_INLINE uint64_t operator()(uint64_t key) const {
    return line(logarithmic ? logarithm(key < origin ? 0 : key - origin) : key);
  }
};

class CarouselStore final : public Store {
 public:
  static std::vector<Parameter> parameters();
  explicit CarouselStore(const Settings& settings);

  void insert(const uint64_t* keys, const int64_t* rows, size_t n) override;
  void build(const uint64_t* keys, const int64_t* rows, size_t n) override;
  void restore(const uint64_t* keys, const int64_t* rows, size_t n) override;
  void restored() override;
  size_t probe(const Probes& probes, size_t begin, size_t end, size_t limit, Pairs& out) override;
  void expire(int64_t before_row) override;
  size_t size() const override { return rows_.size(); }
  size_t nbytes() const override;
  Statistics statistics() const override;
  void check() const override;

 private:
  static constexpr size_t kGroup = 16;  // places computed ahead: enough misses in flight to hide one of them

  // Positions of rows whose keys ascend as well.
  struct Run {
    Vector<uint32_t> positions;  // from `head` on they may be live
    size_t head = 0;
    uint64_t last = 0;  // the greatest key
    // About where a key stands.
    size_t guess_index = 0;
    uint64_t guess_key = 0;
    double rows_per_key = 0;
    size_t guess(uint64_t key) const {
      const double rows = rows_per_key * static_cast<double>(key > guess_key ? key - guess_key : 0);
      return guess_index + static_cast<size_t>(std::min(rows, 1e9));
    }
  };

  struct Segment {
    Line line;
    Bucket* buckets = nullptr;
    uint32_t number = 0;  // of the first bucket in the pool; 0: a run
    uint32_t newest = 0;  // the position that was inserted last
    uint16_t overflows = 0;
    uint16_t allowed = 0;  // so many overflows are no reason to build it anew
    uint8_t order = 0;     // 2^order buckets
    bool tells_apart = false;  // as the line does
    std::unique_ptr<Run> run;
  };

  // What can be replaced as a whole.
  struct Index {
    BucketPool pool;
    Vector<uint64_t> floors;  // the least key of each segment
    Vector<Segment*> segments;
    Vector<uint32_t> hints;  // by cell of `scale`: the segment at which a search begins
    Scale scale;
    uint32_t removed = 0;     // segments removed since the hints were made: a search begins so much earlier
    uint32_t added = 0;       // and segments added: it goes on so much longer
    uint32_t crowd = 0;       // most floors in one cell
    int steps = 0;
    ~Index();
    Index() = default;
    Index(Index&&) = delete;
  };

  struct Staged;
  struct Finder;

  DOVETAIL_INLINE size_t find(uint64_t key) const {
    const Index& index = *index_;
    const uint32_t hint = index.hints[static_cast<size_t>(index.scale(key))];
    size_t at = hint < index.removed ? 0 : hint - index.removed;
    const uint64_t* floors = index.floors.data();
    const size_t last = index.segments.size() - 1;
    for (int step = index.steps; step-- > 0;) {
      const size_t further = std::min(at + (size_t{1} << step), last);
      at = floors[further] <= key ? further : at;
    }
    return at;
  }

  bool live(uint32_t position) const {
    return position - static_cast<uint32_t>(rows_.begin()) < static_cast<uint32_t>(rows_.end() - rows_.begin());
  }
  int64_t whole(uint32_t position) const {  // a live position in full
    return rows_.begin() + (position - static_cast<uint32_t>(rows_.begin()));
  }
  uint32_t dead() const { return static_cast<uint32_t>(rows_.begin()) - 1; }

  // Where a row is to be placed, fetched ahead.
  struct Place {
    size_t at;
    Segment* segment;
    Bucket* bucket;  // nullptr: a run
    uint64_t key;
    uint64_t known;  // rebuilds_ when this was computed: it holds as long as they are equal
    uint16_t fraction;
  };
  static constexpr int64_t kWaiting = 2;  // rows that came alone and wait to be placed, at most

  Place look_up(uint64_t key) const;
  void place(const Place& found);
  void place_alone(uint64_t key);
  void place_all();
  void place_all_avx512();
  void place_ahead();
  void place_hard(size_t at, uint64_t key, uint32_t position);
  void place_in_run(size_t at, uint64_t key, uint32_t position);
  void add_run(size_t at, uint64_t key, uint32_t position);
  void drop_dead(Segment& segment, Bucket& first);
  void append(const uint64_t* keys, const int64_t* rows, size_t n);
  void take_back(size_t n);
  void trim(Run& run);
  void measure(Run& run) const;

  void collect(const Segment& segment, Vector<Entry>& entries) const;
  size_t live_rows(const Segment& segment) const;
  void rebuild(size_t at, size_t count, uint64_t key, uint32_t position, bool with_new, int reach);
  void rebuild_all();
  struct Piece;
  void cut(const Entry* entries, size_t n, int reach, Vector<Piece>& pieces) const;
  Segment* make(const Piece& piece, BucketPool& pool) const;
  static void discard(Segment* segment, BucketPool& pool);
  static void make_hints(Index& index);
  void look_around();

  const size_t segment_rows_;
  const size_t run_rows_;
  const int64_t renewal_;
  RowLog rows_;
  KeyLog keys_;
  std::unique_ptr<Index> index_;
  int64_t placed_ = 0;      // rows from here on wait to be placed
  bool restoring_ = false;  // all of them, until `restored`
  Place waiting_[kWaiting];  // of position p at p % kWaiting
  int64_t renewed_at_ = 0;  // slots hold positions from here on
  int64_t bound_ = INT64_MIN;  // rows below it have expired, also those that are yet to come
  size_t peak_ = 0;         // most rows since everything was built
  size_t coming_ = 0;       // rows that may come next: as many as the last time, and fewer the longer that is ago
  size_t since_hints_ = 0;  // rows inserted since hints were made
  size_t turn_ = 0;         // the segment that is looked at next
  int64_t looked_at_ = 0;   // where insertion stood when segments were looked at
  double credit_ = 0;
  size_t matches_ = 1;  // pairs a probe, in the last call
  RowSorter sorter_;
  Vector<uint32_t> found_;
  Vector<Entry> scratch_;
  size_t rebuilds_ = 0, renewals_ = 0, joins_ = 0;
};

}  // namespace dovetail
