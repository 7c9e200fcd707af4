# distutils: language = c++
"""The native half of `state`: thin wrappers, one for each C++ header beside this file.

Rules: arrays in, arrays out; each function releases the GIL once for the whole batch; nothing here decides
anything that a header does not. `Index` checks the lengths of what it is given, as it can be reached from outside
(`state.make`); what only the join driver calls trusts it.
Allocation failure arrives as MemoryError, a broken invariant as RuntimeError with its sentence.
"""

import numpy as np

cimport numpy as cnp
from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t, uintptr_t
from libcpp cimport bool as cbool
from libcpp.memory cimport unique_ptr
from libcpp.pair cimport pair
from libcpp.string cimport string
from libcpp.vector cimport vector

cnp.import_array()


cdef extern from "memory.hpp" namespace "dovetail" nogil:
    void c_release "dovetail::release"(void* memory) noexcept
    size_t c_allocated_bytes "dovetail::allocated_bytes"()
    void c_fail_allocation "dovetail::fail_allocation"(int64_t after)


cdef extern from "row_vector.hpp" namespace "dovetail" nogil:
    cdef cppclass RowVector[T]:
        int64_t first_row()
        int64_t end_row()
        size_t size()
        size_t nbytes()
        const T* data()
        void append(const T* values, size_t n) except +
        void expire(int64_t row) except +
        void start_at(int64_t row) except +
        void check() except +
    cdef cppclass Growing[T]:
        size_t size()
        T* data()
        T* reserve(size_t n) except +
        void advance(size_t n)
        T* give_away()


cdef extern from "store.hpp" namespace "dovetail" nogil:
    cdef cppclass Pairs:
        Growing[int64_t] probe
        Growing[int64_t] row
        size_t size()
        void claim(int64_t p, size_t n) except +
    cdef cppclass Probes:
        const uint64_t* lo
        const uint64_t* hi
        const int64_t* row_lo
        const int64_t* row_hi
        cbool ordered
        cbool empty(size_t p)
    cdef cppclass CStore "dovetail::Store":
        void insert(const uint64_t* keys, const int64_t* rows, size_t n) except +
        void build(const uint64_t* keys, const int64_t* rows, size_t n) except +
        void restore(const uint64_t* keys, const int64_t* rows, size_t n) except +
        void restored() except +
        size_t probe(const Probes& probes, size_t begin, size_t end, size_t limit, Pairs& out) except +
        void expire(int64_t before_row) except +
        size_t size()
        size_t nbytes()
        vector[pair[string, double]] statistics() except +
        void check() except +
    cdef cppclass Parameter:
        const char* name
        double standard, least, most
        const char* meaning
    cdef cppclass Settings:
        Settings(vector[Parameter] parameters, const vector[pair[string, double]]& given)


cdef extern from "key_numbers.hpp" namespace "dovetail" nogil:
    cdef cppclass CKeyNumbers "dovetail::KeyNumbers":
        size_t size()
        size_t nbytes()
        size_t of_words(const uint8_t* keys, size_t n, size_t width, int64_t* out, int64_t* first) except +
        size_t of_strings[Offset](const Offset* offsets, const uint8_t* data, size_t n, int64_t* out,
                                  int64_t* first) except +


cdef extern from "folds.hpp" namespace "dovetail" nogil:
    void c_fold_counts "dovetail::fold_counts"(const int64_t* group, const uint8_t* valid, size_t n, int64_t* count)
    void c_fold_floats "dovetail::fold_floats"(const int64_t* group, const double* value, const uint8_t* valid,
                                               size_t n, double* sum)
    void c_fold_integers "dovetail::fold_integers"(const int64_t* group, const uint64_t* low, const int64_t* high,
                                                   cbool is_signed, const uint8_t* valid, size_t n, uint64_t* sum_low,
                                                   int64_t* sum_high)
    void c_fold_ends "dovetail::fold_ends"(const int64_t* group, const uint64_t* key, const uint64_t* below,
                                           const uint8_t* valid, cbool greatest, size_t n, uint64_t* end,
                                           uint64_t* end_below, uint8_t* some)


cdef extern from "cpu.hpp" namespace "dovetail" nogil:
    const char* c_instructions "dovetail::instructions"()
    cbool c_force_portable "dovetail::force_portable"(cbool portable)


cdef extern from "box_store.hpp" namespace "dovetail" nogil:
    const size_t kMostKeys
    cdef cppclass Boxes:
        size_t keys
        const uint64_t* const* lo
        const uint64_t* const* hi
        const int64_t* row_lo
        const int64_t* row_hi
        cbool ordered
    cdef cppclass CBoxStore "dovetail::BoxStore":
        void insert(const uint64_t* const* keys, const int64_t* rows, size_t n) except +
        size_t probe(const Boxes& probes, size_t begin, size_t end, size_t limit, Pairs& out) except +
        void expire(int64_t before_row) except +
        size_t size()
        size_t nbytes()
        vector[pair[string, double]] statistics() except +
        void check() except +


cdef extern from "catalog.hpp" namespace "dovetail" nogil:
    cdef cppclass Kind:
        const char* name
        const char* summary
        cbool ranges
        vector[Parameter] parameters
        unique_ptr[CStore] make(const Settings& settings) except +
    const vector[Kind]& c_kinds "dovetail::kinds"()
    cdef cppclass BoxKind:
        const char* name
        const char* summary
        vector[Parameter] parameters
        unique_ptr[CBoxStore] make(const Settings& settings, size_t keys) except +
    const vector[BoxKind]& c_box_kinds "dovetail::box_kinds"()


cdef extern from "shared_pim.hpp" namespace "dovetail" nogil:
    cdef cppclass SharedSettings "dovetail::SharedPim::Settings":
        double merge_ratio
        size_t least
        size_t task
        cbool blocking
        cbool locks
    cdef cppclass SharedRole "dovetail::SharedPim::Role":
        size_t target
        int64_t stored
        Probes probes
        const int64_t* rank
        size_t n
    cdef cppclass CSharedPim "dovetail::SharedPim":
        CSharedPim(size_t sides, size_t threads, const SharedSettings& settings) except +
        void set_threads(size_t threads) except +
        size_t threads()
        void start(const uint64_t* const* keys, const int64_t* first, const size_t* n, vector[SharedRole] roles,
                   size_t total) except +
        cbool done()
        void advance(size_t limit, vector[Pairs]& found, vector[size_t]& answered) except +
        void restore(size_t side, const uint64_t* keys, int64_t first, size_t n) except +
        void restored(size_t side) except +
        void expire(size_t side, int64_t before_row) except +
        size_t size(size_t side)
        size_t merges()
        size_t nbytes()
        void check() except +


cdef extern from "keys.hpp" namespace "dovetail" nogil:
    uint64_t mix(uint64_t x)
    void keys_of_int64 "dovetail::keys_of<int64_t>"(const int64_t* values, size_t n, uint64_t* out)
    void keys_of_double "dovetail::keys_of<double>"(const double* values, size_t n, uint64_t* out)
    void hash_strings[Offset](const Offset* offsets, const uint8_t* bytes, size_t n, uint64_t* out)


cdef extern from "scan.hpp" namespace "dovetail" nogil:
    cdef cppclass KeyRange:
        const uint64_t* keys
        uint64_t lo
        uint64_t hi
    size_t scan(const KeyRange* ranges, size_t columns, size_t n, int64_t first, int64_t* out)


cdef extern from "sequence.hpp" namespace "dovetail" nogil:
    cpdef enum class WindowKind(int):
        kAll
        kCount
        kTime
    cdef cppclass CWindow "dovetail::Window":
        WindowKind kind
        int64_t size
        int64_t slide
    void c_row_bounds "dovetail::row_bounds"(
        const int64_t* own, size_t n, const int64_t* other, size_t m, int64_t other_first, cbool ties_before,
        const CWindow& window, const RowVector[int64_t]& retained, int64_t* row_lo, int64_t* row_hi)
    void c_own_bounds "dovetail::own_bounds"(
        const int64_t* own, size_t n, int64_t first, const CWindow& window, const RowVector[int64_t]& retained,
        int64_t* row_lo, int64_t* row_hi)
    int64_t c_expiry_bound "dovetail::expiry_bound"(
        const CWindow& window, int64_t rows, cbool has_time, int64_t time, const RowVector[int64_t]& times)
    void c_rows_at "dovetail::rows_at"(const RowVector[int64_t]& times, const int64_t* bounds, size_t n, int64_t* rows)
    size_t c_find_late "dovetail::find_late"(
        const int64_t* times, size_t n, uint64_t delay, cbool& any, int64_t& greatest, uint8_t* late, cbool& ascending)


cdef extern from "ends.hpp" namespace "dovetail" nogil:
    cdef cppclass ExactRange:
        cbool below, above, strict, is_unsigned, saturated
        int64_t coefficient, constant, by
    void c_exact_ends "dovetail::exact_ends"[T](
        const T* values, size_t n, const ExactRange& range, uint64_t* lo, uint64_t* hi)
    cdef cppclass Sums:
        const double* total
        const double* size
        size_t n
        double slack
    void c_moved_keys "dovetail::moved_keys"(const Sums& sums, cbool up, uint64_t* out)
    void c_rounded_ends "dovetail::rounded_ends"(
        const Sums& sums, cbool below, cbool sure, uint64_t* lo, uint64_t* hi)

cdef extern from "pairs.hpp" namespace "dovetail" nogil:
    size_t c_filter_pairs "dovetail::filter_pairs"(
        int64_t* probe, int64_t* row, size_t n, const RowVector[uint64_t]& keys, const uint64_t* lo,
        const uint64_t* hi, cbool negated)
    void c_mark_outside "dovetail::mark_outside"(
        const int64_t* probe, const int64_t* row, size_t n, const RowVector[uint64_t]& keys, const uint64_t* lo,
        const uint64_t* hi, uint8_t* mark)
    cdef cppclass Half:
        const int64_t* probe
        const int64_t* row
        size_t n
        const int64_t* rank
        int64_t first_row
    void c_merge_halves "dovetail::merge_halves"(
        const Half& left, const Half& right, int64_t* left_row, int64_t* right_row, int64_t* later)
    cdef cppclass OrderedRun:
        const int64_t* rank
        const int64_t* tie
        const int64_t* row
        size_t n
    void c_merge_runs "dovetail::merge_runs"(vector[OrderedRun]& runs, int64_t* row, int64_t* rank)


cdef extern from "gather.hpp" namespace "dovetail" nogil:
    cdef cppclass Part:
        const uint8_t* validity
        const uint8_t* values
        const uint8_t* bytes
        int64_t offset
    cdef cppclass Place:
        uint32_t chunk
        uint32_t at
    cdef cppclass CChunks "dovetail::Chunks":
        CChunks(vector[pair[int, int]] columns) except +
        size_t columns()
        size_t size()
        size_t nbytes()
        void add(int64_t first_row, int64_t rows, const Part* parts) except +
        void drop_front(size_t n) except +
        void drop_back(size_t n) except +
        void locate(const int64_t* rows, size_t n, Place* places) except +
        cbool has_nulls(size_t column)
        size_t gather_validity(size_t column, const Place* places, size_t n, uint8_t* out)
        void gather_fixed(size_t column, const Place* places, size_t n, uint8_t* out) except +
        void gather_bits(size_t column, const Place* places, size_t n, uint8_t* out)
        int64_t gather_offsets[Offset](size_t column, const Place* places, size_t n, Offset* out, int64_t limit)
        void gather_bytes[Offset](size_t column, const Place* places, size_t n, const Offset* starts, uint8_t* out)


# Arrays -------------------------------------------------------------------------------------------------------

cdef class _Memory:
    """Owns an array that C++ allocated; NumPy arrays over it keep this alive."""

    cdef int64_t* data

    def __cinit__(self):
        self.data = NULL

    def __dealloc__(self):
        c_release(self.data)


cdef cnp.ndarray _hand_over(Growing[int64_t]& values):
    """A NumPy array that owns what was grown; no copy."""
    cdef cnp.npy_intp n = <cnp.npy_intp>values.size()
    cdef _Memory memory = _Memory()
    cdef cnp.ndarray array
    if n == 0:
        return np.empty(0, np.int64)
    memory.data = values.give_away()
    array = cnp.PyArray_SimpleNewFromData(1, &n, cnp.NPY_INT64, memory.data)
    cnp.set_array_base(array, memory)
    return array


cdef inline const int64_t* _i64(const int64_t[::1] values) noexcept nogil:
    return &values[0] if values.shape[0] else NULL


cdef inline const uint64_t* _u64(const uint64_t[::1] values) noexcept nogil:
    return &values[0] if values.shape[0] else NULL


cdef _same_length(Py_ssize_t a, Py_ssize_t b, str what):
    if a != b:
        raise ValueError(f"{what}: lengths {a} and {b} differ")


cdef class RowKeys:
    """One uint64 key for each row of a window, by row number."""

    cdef RowVector[uint64_t] rows

    def append(self, const uint64_t[::1] keys):
        with nogil:
            self.rows.append(_u64(keys), keys.shape[0])

    def expire(self, int64_t before_row):
        self.rows.expire(before_row)

    def start_at(self, int64_t row):
        self.rows.start_at(row)

    def at(self, const int64_t[::1] rows):
        """The key of each of these rows, all of which are held."""
        cdef Py_ssize_t n = rows.shape[0], i
        cdef int64_t first = self.rows.first_row()
        cdef cnp.ndarray[uint64_t, ndim=1] out = np.empty(n, np.uint64)
        cdef uint64_t* place = <uint64_t*>cnp.PyArray_DATA(out)
        cdef const uint64_t* held = self.rows.data()
        with nogil:
            for i in range(n):
                place[i] = held[rows[i] - first]
        return out

    def check(self):
        self.rows.check()

    def __len__(self):
        return self.rows.size()

    @property
    def first_row(self):
        return self.rows.first_row()

    @property
    def end_row(self):
        return self.rows.end_row()

    @property
    def nbytes(self):
        return self.rows.nbytes()


cdef class RowTimes:
    """One int64 time for each row of a window, ascending."""

    cdef RowVector[int64_t] rows

    def append(self, const int64_t[::1] times):
        with nogil:
            self.rows.append(_i64(times), times.shape[0])

    def expire(self, int64_t before_row):
        self.rows.expire(before_row)

    def start_at(self, int64_t row):
        self.rows.start_at(row)

    def places_of(self, const int64_t[::1] times):
        """The first row at or after each of these times."""
        cdef Py_ssize_t n = times.shape[0]
        cdef cnp.ndarray[int64_t, ndim=1] out = np.empty(n, np.int64)
        cdef int64_t* place = <int64_t*>cnp.PyArray_DATA(out)
        with nogil:
            c_rows_at(self.rows, _i64(times), n, place)
        return out

    def at(self, const int64_t[::1] rows):
        """The time of each of these rows, all of which are held."""
        cdef Py_ssize_t n = rows.shape[0], i
        cdef int64_t first = self.rows.first_row()
        cdef cnp.ndarray[int64_t, ndim=1] out = np.empty(n, np.int64)
        cdef int64_t* place = <int64_t*>cnp.PyArray_DATA(out)
        cdef const int64_t* held = self.rows.data()
        with nogil:
            for i in range(n):
                place[i] = held[rows[i] - first]
        return out

    def check(self):
        self.rows.check()

    def __len__(self):
        return self.rows.size()

    @property
    def first_row(self):
        return self.rows.first_row()

    @property
    def end_row(self):
        return self.rows.end_row()

    @property
    def nbytes(self):
        return self.rows.nbytes()


# Keys ---------------------------------------------------------------------------------------------------------

def keys_of(values):
    """Map int64, uint64 or float64 values to uint64 keys in the same order (see keys.hpp)."""
    cdef cnp.ndarray[uint64_t, ndim=1] out
    cdef const int64_t[::1] signed
    cdef const double[::1] floats
    values = np.ascontiguousarray(values)
    if values.dtype == np.uint64:
        return values
    out = np.empty(len(values), np.uint64)
    cdef uint64_t* place = <uint64_t*>cnp.PyArray_DATA(out)
    if values.dtype == np.int64:
        signed = values
        with nogil:
            keys_of_int64(&signed[0] if signed.shape[0] else NULL, signed.shape[0], place)
    elif values.dtype == np.float64:
        floats = values
        with nogil:
            keys_of_double(&floats[0] if floats.shape[0] else NULL, floats.shape[0], place)
    else:
        raise TypeError(f"keys are int64, uint64 or float64, not {values.dtype}")
    return out


def exact_ends(values, str op, int64_t coefficient, int64_t constant, int64_t by, *, bint is_unsigned, bint saturated):
    """(lo, hi) of the keys k with `k * by op value * coefficient + constant` (see ends.hpp); `!=` as `==`."""
    cdef ExactRange wanted
    cdef const int64_t[::1] signed
    cdef const uint64_t[::1] unsigned
    cdef Py_ssize_t n = len(values)
    cdef cnp.ndarray[uint64_t, ndim=1] lo = np.empty(n, np.uint64)
    cdef cnp.ndarray[uint64_t, ndim=1] hi = np.empty(n, np.uint64)
    cdef uint64_t* low = <uint64_t*>cnp.PyArray_DATA(lo)
    cdef uint64_t* high = <uint64_t*>cnp.PyArray_DATA(hi)
    wanted.below, wanted.above = op in ("<", "<=", "==", "!="), op in (">", ">=", "==", "!=")
    wanted.strict = op in ("<", ">")
    wanted.coefficient, wanted.constant, wanted.by = coefficient, constant, by
    wanted.is_unsigned, wanted.saturated = is_unsigned, saturated
    if n == 0:
        return lo, hi
    if values.dtype == np.uint64:
        unsigned = values
        with nogil:
            c_exact_ends(&unsigned[0], n, wanted, low, high)
    else:
        signed = values
        with nogil:
            c_exact_ends(&signed[0], n, wanted, low, high)
    return lo, hi


cdef Sums _sums(const double[::1] total, const double[::1] size, double slack):
    cdef Sums sums
    _same_length(total.shape[0], size.shape[0], "sums")
    sums.n, sums.slack = total.shape[0], slack
    if sums.n:
        sums.total, sums.size = &total[0], &size[0]
    return sums


def moved_keys(const double[::1] total, const double[::1] size, double slack, bint up):
    """Keys of float sums, moved up or down past their rounding (see ends.hpp)."""
    cdef Sums sums = _sums(total, size, slack)
    cdef cnp.ndarray[uint64_t, ndim=1] out = np.empty(sums.n, np.uint64)
    cdef uint64_t* place = <uint64_t*>cnp.PyArray_DATA(out)
    with nogil:
        c_moved_keys(sums, up, place)
    return out


def rounded_ends(const double[::1] total, const double[::1] size, double slack, bint below, bint sure):
    """(lo, hi) of the float keys that may be, or are for sure, below or above sums (see ends.hpp)."""
    cdef Sums sums = _sums(total, size, slack)
    cdef cnp.ndarray[uint64_t, ndim=1] lo = np.empty(sums.n, np.uint64)
    cdef cnp.ndarray[uint64_t, ndim=1] hi = np.empty(sums.n, np.uint64)
    cdef uint64_t* low = <uint64_t*>cnp.PyArray_DATA(lo)
    cdef uint64_t* high = <uint64_t*>cnp.PyArray_DATA(hi)
    with nogil:
        c_rounded_ends(sums, below, sure, low, high)
    return lo, hi


def hash_strings_at(uintptr_t offsets, uintptr_t data, Py_ssize_t first, Py_ssize_t n, bint wide):
    """Hash n strings of an Arrow array, given its buffers' addresses; `wide`: offsets of 64 bits."""
    cdef cnp.ndarray[uint64_t, ndim=1] out = np.empty(n, np.uint64)
    cdef uint64_t* place = <uint64_t*>cnp.PyArray_DATA(out)
    if n == 0:
        return out
    with nogil:
        if wide:
            hash_strings(<const int64_t*>offsets + first, <const uint8_t*>data, n, place)
        else:
            hash_strings(<const int*>offsets + first, <const uint8_t*>data, n, place)
    return out


def combine_keys(list columns):
    """One key out of several, for equality on all of them (a hash: equal keys have equal ones)."""
    cdef const uint64_t[::1] keys
    cdef cnp.ndarray[uint64_t, ndim=1] out = np.array(columns[0], np.uint64, copy=True)
    cdef uint64_t* place = <uint64_t*>cnp.PyArray_DATA(out)
    cdef Py_ssize_t i
    for column in columns[1:]:
        keys = column
        _same_length(len(out), keys.shape[0], "combine_keys")
        with nogil:
            for i in range(keys.shape[0]):
                place[i] = mix(place[i]) ^ keys[i]
    return out


# Order and windows --------------------------------------------------------------------------------------------

cdef class Window:
    """Which rows of the other stream a tuple may meet: `kind` 'all', 'count' or 'time', `size`, `slide` (0: none)."""

    cdef CWindow spec
    cdef readonly str kind

    def __init__(self, str kind, int64_t size=0, int64_t slide=0):
        self.kind = kind
        self.spec.kind = {"all": WindowKind.kAll, "count": WindowKind.kCount, "time": WindowKind.kTime}[kind]
        self.spec.size = size
        self.spec.slide = slide


def row_bounds(const int64_t[::1] own, const int64_t[::1] other, int64_t other_first, bint ties_before,
               Window window, RowTimes retained):
    """(row_lo, row_hi) into the other side's rows for each new tuple of one side. See sequence.hpp."""
    cdef Py_ssize_t n = own.shape[0]
    cdef cnp.ndarray[int64_t, ndim=1] lo = np.empty(n, np.int64), hi = np.empty(n, np.int64)
    cdef int64_t* lo_place = <int64_t*>cnp.PyArray_DATA(lo)
    cdef int64_t* hi_place = <int64_t*>cnp.PyArray_DATA(hi)
    with nogil:
        c_row_bounds(_i64(own), n, _i64(other), other.shape[0], other_first, ties_before, window.spec,
                     retained.rows, lo_place, hi_place)
    return lo, hi


def own_bounds(const int64_t[::1] own, int64_t first, Window window, RowTimes retained):
    """(row_lo, row_hi) into a stream's own rows, for a self-join."""
    cdef Py_ssize_t n = own.shape[0]
    cdef cnp.ndarray[int64_t, ndim=1] lo = np.empty(n, np.int64), hi = np.empty(n, np.int64)
    cdef int64_t* lo_place = <int64_t*>cnp.PyArray_DATA(lo)
    cdef int64_t* hi_place = <int64_t*>cnp.PyArray_DATA(hi)
    with nogil:
        c_own_bounds(_i64(own), n, first, window.spec, retained.rows, lo_place, hi_place)
    return lo, hi


def ranks_of(const int64_t[::1] row_hi, int64_t other_first):
    """The place of each new tuple of one side among all of its step: after the other's that came before it."""
    cdef Py_ssize_t n = row_hi.shape[0], i
    cdef cnp.ndarray[int64_t, ndim=1] ranks = np.empty(n, np.int64)
    cdef int64_t* place = <int64_t*>cnp.PyArray_DATA(ranks)
    with nogil:
        for i in range(n):
            place[i] = row_hi[i] - other_first + i
    return ranks


def expiry_bound(Window window, int64_t rows, last_time, RowTimes times):
    """The least row that any later tuple may meet; `last_time` is None when there is no time."""
    cdef bint has_time = last_time is not None
    cdef int64_t time = last_time if has_time else 0
    return c_expiry_bound(window.spec, rows, has_time, time, times.rows)


def find_late(const int64_t[::1] times, uint64_t delay, greatest):
    """(late mask or None, ascending, greatest time now): lateness of a source's next tuples, one by one."""
    cdef Py_ssize_t n = times.shape[0]
    cdef cnp.ndarray[uint8_t, ndim=1] late = np.empty(n, np.uint8)
    cdef uint8_t* place = <uint8_t*>cnp.PyArray_DATA(late)
    cdef cbool any_before = greatest is not None
    cdef int64_t most = greatest if any_before else 0
    cdef cbool ascending = True
    cdef size_t count
    with nogil:
        count = c_find_late(_i64(times), n, delay, any_before, most, place, ascending)
    return (late.view(np.bool_) if count else None), ascending, (most if any_before else None)


# Indexes and pairs --------------------------------------------------------------------------------------------

cdef list _parameters(const vector[Parameter]& parameters):
    cdef size_t p
    return [
        (parameters[p].name.decode(), parameters[p].standard, parameters[p].least, parameters[p].most,
         parameters[p].meaning.decode())
        for p in range(parameters.size())
    ]


def kinds():
    """(name, summary, whether it answers ranges, parameters as (name, standard, least, most, meaning)) of each store."""
    cdef size_t i
    return [
        (c_kinds()[i].name.decode(), c_kinds()[i].summary.decode(), c_kinds()[i].ranges, _parameters(c_kinds()[i].parameters))
        for i in range(c_kinds().size())
    ]


def box_kinds():
    """(name, summary, parameters) of each store that goes by several keys at once."""
    cdef size_t i
    return [
        (c_box_kinds()[i].name.decode(), c_box_kinds()[i].summary.decode(), _parameters(c_box_kinds()[i].parameters))
        for i in range(c_box_kinds().size())
    ]


def allocated_bytes():
    """Bytes that the allocator gave to all stores of this process (see memory.hpp)."""
    return c_allocated_bytes()


def fail_allocation(int64_t after):
    """Let the allocation after so many fail, once; -1: none. For tests."""
    c_fail_allocation(after)


cdef class Index:
    """A window index over uint64 keys: the contract of store.hpp. `state.make` wraps it for typed keys."""

    cdef unique_ptr[CStore] store
    cdef readonly str name

    def __init__(self, str name, dict settings=None):
        """`settings`: values of the parameters that `kinds()` tells; the others have their standard values."""
        cdef vector[pair[string, double]] given
        cdef const Kind* kind = NULL
        cdef size_t i
        self.name = name
        for i in range(c_kinds().size()):
            if c_kinds()[i].name.decode() == name:
                kind = &c_kinds()[i]
        if kind == NULL:
            raise ValueError(f"there is no index named {name!r}")
        for key, value in (settings or {}).items():
            given.push_back(pair[string, double](key.encode(), value))
        self.store = kind.make(Settings(kind.parameters, given))

    def build(self, const uint64_t[::1] keys, const int64_t[::1] rows):
        _same_length(keys.shape[0], rows.shape[0], "build")
        with nogil:
            self.store.get().build(_u64(keys), _i64(rows), keys.shape[0])

    def statistics(self):
        """What the store tells of itself, by name."""
        return {name.decode(): value for name, value in self.store.get().statistics()}

    def insert(self, const uint64_t[::1] keys, const int64_t[::1] rows):
        _same_length(keys.shape[0], rows.shape[0], "insert")
        with nogil:
            self.store.get().insert(_u64(keys), _i64(rows), keys.shape[0])

    def restore(self, const uint64_t[::1] keys, const int64_t[::1] rows):
        _same_length(keys.shape[0], rows.shape[0], "restore")
        with nogil:
            self.store.get().restore(_u64(keys), _i64(rows), keys.shape[0])

    def restored(self):
        with nogil:
            self.store.get().restored()

    def probe(self, const uint64_t[::1] lo, const uint64_t[::1] hi, const int64_t[::1] row_lo,
              const int64_t[::1] row_hi, size_t begin, size_t end, size_t limit, bint ordered=True):
        """(probe, row, next): pairs of the probes in [begin, end), and the first one not answered.

        `ordered`: rows ascend within a probe; where they need not, an index may be faster.
        """
        _same_length(lo.shape[0], hi.shape[0], "probe")
        _same_length(lo.shape[0], row_lo.shape[0], "probe")
        _same_length(lo.shape[0], row_hi.shape[0], "probe")
        cdef Probes probes
        cdef Pairs pairs
        cdef size_t upto
        if end > <size_t>lo.shape[0]:
            raise ValueError(f"probe {end} of {lo.shape[0]}")
        probes.lo, probes.hi = _u64(lo), _u64(hi)
        probes.row_lo, probes.row_hi = _i64(row_lo), _i64(row_hi)
        probes.ordered = ordered
        with nogil:
            upto = self.store.get().probe(probes, begin, end, limit, pairs)
        return _hand_over(pairs.probe), _hand_over(pairs.row), upto

    def expire(self, int64_t before_row):
        with nogil:
            self.store.get().expire(before_row)

    def check(self):
        self.store.get().check()

    def __len__(self):
        return self.store.get().size()

    @property
    def nbytes(self):
        return self.store.get().nbytes()


cdef class SharedPim:
    """PIM-Trees that several threads work on at once (see shared_pim.hpp): a step is started, and then advanced."""

    cdef unique_ptr[CSharedPim] join
    cdef readonly size_t sides
    cdef list held  # what the step refers to

    def __init__(self, size_t sides, size_t threads, *, double merge_ratio=0.0625, size_t least=1024, size_t task=256,
                 bint blocking=False, bint locks=True):
        cdef SharedSettings settings
        settings.merge_ratio, settings.least, settings.task = merge_ratio, least, task
        settings.blocking, settings.locks = blocking, locks
        self.sides, self.held = sides, []
        self.join.reset(new CSharedPim(sides, threads, settings))

    def set_threads(self, size_t threads):
        """So many from now on; any thread may say so at any time."""
        with nogil:
            self.join.get().set_threads(threads)

    @property
    def threads(self):
        return self.join.get().threads()

    def start(self, list keys, list first, list roles, size_t total):
        """Begin a step of `total` tuples with the new keys of each side, and the first row of these.

        A role is (target side, side that stores it or -1, lo, hi, row_lo, row_hi, rank).
        """
        cdef vector[const uint64_t*] columns
        cdef vector[int64_t] firsts
        cdef vector[size_t] counts
        cdef vector[SharedRole] asked
        cdef SharedRole role
        cdef const uint64_t[::1] view, lo, hi
        cdef const int64_t[::1] row_lo, row_hi, rank
        for each, row in zip(keys, first, strict=True):
            view = each
            columns.push_back(_u64(view))
            counts.push_back(view.shape[0])
            firsts.push_back(row)
        _same_length(counts.size(), self.sides, "start")
        for target, stored, lo, hi, row_lo, row_hi, rank in roles:
            for length in (lo.shape[0], hi.shape[0], row_lo.shape[0], row_hi.shape[0]):
                _same_length(length, rank.shape[0], "start")
            if stored >= 0:
                _same_length(counts[<size_t>stored], rank.shape[0], "start")
            role.target, role.stored, role.n = target, stored, rank.shape[0]
            role.probes.lo, role.probes.hi = _u64(lo), _u64(hi)
            role.probes.row_lo, role.probes.row_hi, role.rank = _i64(row_lo), _i64(row_hi), _i64(rank)
            asked.push_back(role)
        self.held = [keys, roles]
        with nogil:
            self.join.get().start(columns.data(), firsts.data(), counts.data(), asked, total)

    def advance(self, size_t limit):
        """For each role (probe, row, how many of its tuples were answered), after some `limit` pairs more."""
        cdef vector[Pairs] found
        cdef vector[size_t] answered
        cdef size_t i
        with nogil:
            self.join.get().advance(limit, found, answered)
        if self.join.get().done():
            self.held = []
        return [(_hand_over(found[i].probe), _hand_over(found[i].row), answered[i]) for i in range(found.size())]

    def restore(self, size_t side, const uint64_t[::1] keys, int64_t first):
        with nogil:
            self.join.get().restore(side, _u64(keys), first, keys.shape[0])

    def restored(self, size_t side):
        with nogil:
            self.join.get().restored(side)

    def expire(self, size_t side, int64_t before_row):
        with nogil:
            self.join.get().expire(side, before_row)

    def check(self):
        self.join.get().check()

    def size(self, size_t side):
        return self.join.get().size(side)

    @property
    def merges(self):
        return self.join.get().merges()

    @property
    def nbytes(self):
        return self.join.get().nbytes()


MOST_KEYS = kMostKeys


cdef class BoxIndex:
    """A window index over several uint64 keys: the contract of box_store.hpp."""

    cdef unique_ptr[CBoxStore] store
    cdef readonly str name
    cdef readonly size_t keys

    def __init__(self, str name, size_t keys, dict settings=None):
        cdef vector[pair[string, double]] given
        cdef const BoxKind* kind = NULL
        cdef size_t i
        if not 1 <= keys <= kMostKeys:
            raise ValueError(f"{name}: {keys} keys; from 1 to {kMostKeys} can be searched for at once")
        self.name, self.keys = name, keys
        for i in range(c_box_kinds().size()):
            if c_box_kinds()[i].name.decode() == name:
                kind = &c_box_kinds()[i]
        if kind == NULL:
            raise ValueError(f"there is no index of several keys named {name!r}")
        for key, value in (settings or {}).items():
            given.push_back(pair[string, double](key.encode(), value))
        self.store = kind.make(Settings(kind.parameters, given), keys)

    cdef vector[const uint64_t*] _columns(self, list columns, Py_ssize_t n, str what) except *:
        cdef vector[const uint64_t*] found
        cdef const uint64_t[::1] view
        _same_length(len(columns), self.keys, what)
        for column in columns:
            view = column
            _same_length(view.shape[0], n, what)
            found.push_back(_u64(view))
        return found

    def statistics(self):
        """What the store tells of itself, by name."""
        return {name.decode(): value for name, value in self.store.get().statistics()}

    def insert(self, list keys, const int64_t[::1] rows):
        cdef vector[const uint64_t*] columns = self._columns(keys, rows.shape[0], "insert")
        with nogil:
            self.store.get().insert(columns.data(), _i64(rows), rows.shape[0])

    build = restore = insert

    def restored(self):
        """Nothing was put off."""

    def probe(self, list lo, list hi, const int64_t[::1] row_lo, const int64_t[::1] row_hi, size_t begin, size_t end,
              size_t limit, bint ordered=True):
        """(probe, row, next): as `Index.probe`."""
        _same_length(row_hi.shape[0], row_lo.shape[0], "probe")
        cdef vector[const uint64_t*] los = self._columns(lo, row_lo.shape[0], "probe")
        cdef vector[const uint64_t*] his = self._columns(hi, row_lo.shape[0], "probe")
        cdef Boxes boxes
        cdef Pairs pairs
        cdef size_t upto
        if end > <size_t>row_lo.shape[0]:
            raise ValueError(f"probe {end} of {row_lo.shape[0]}")
        boxes.keys, boxes.lo, boxes.hi = self.keys, los.data(), his.data()
        boxes.row_lo, boxes.row_hi = _i64(row_lo), _i64(row_hi)
        boxes.ordered = ordered
        with nogil:
            upto = self.store.get().probe(boxes, begin, end, limit, pairs)
        return _hand_over(pairs.probe), _hand_over(pairs.row), upto

    def expire(self, int64_t before_row):
        with nogil:
            self.store.get().expire(before_row)

    def check(self):
        self.store.get().check()

    def __len__(self):
        return self.store.get().size()

    @property
    def nbytes(self):
        return self.store.get().nbytes()


def scan_rows(list keys, list lo, list hi, const int64_t[::1] row_lo, const int64_t[::1] row_hi, size_t begin,
              size_t end, size_t limit):
    """As `Index.probe`, but over rows in order and with a range for each of several keys at once.

    `keys` are RowKeys of the same rows; without any, every row of the row range matches.
    """
    cdef vector[const uint64_t*] columns
    cdef vector[const uint64_t*] los
    cdef vector[const uint64_t*] his
    cdef vector[KeyRange] ranges
    cdef const uint64_t[::1] view
    cdef RowKeys column
    cdef int64_t first = 0
    cdef Pairs pairs
    cdef size_t p, c, upto, count = len(keys), found, n
    cdef int64_t from_row
    cdef int64_t* place
    cdef cbool empty
    for key, low, high in zip(keys, lo, hi, strict=True):
        column = key
        first = column.rows.first_row()
        columns.push_back(column.rows.data())
        view = low
        _same_length(view.shape[0], row_lo.shape[0], "scan_rows")
        los.push_back(_u64(view))
        view = high
        _same_length(view.shape[0], row_lo.shape[0], "scan_rows")
        his.push_back(_u64(view))
    ranges.resize(count)
    with nogil:
        upto = end
        for p in range(begin, end):
            if row_lo[p] >= row_hi[p]:
                continue
            from_row = row_lo[p]
            n = <size_t>(row_hi[p] - from_row)
            empty = False
            for c in range(count):
                ranges[c].keys = columns[c] + (from_row - first)
                ranges[c].lo = los[c][p]
                ranges[c].hi = his[c][p]
                if los[c][p] > his[c][p]:
                    empty = True
            if empty:
                continue
            place = pairs.row.reserve(n + 8)
            if count:
                found = scan(ranges.data(), count, n, from_row, place)
            else:
                found = n
                for c in range(n):
                    place[c] = from_row + <int64_t>c
            pairs.claim(<int64_t>p, found)
            if pairs.size() >= limit:
                upto = p + 1
                break
    return _hand_over(pairs.probe), _hand_over(pairs.row), upto


def filter_pairs(int64_t[::1] probe, int64_t[::1] row, RowKeys keys, const uint64_t[::1] lo,
                 const uint64_t[::1] hi, bint negated):
    """Keep, in place, the pairs whose row's key is inside its probe's range; return how many."""
    cdef size_t kept
    if probe.shape[0] == 0:
        return 0
    with nogil:
        kept = c_filter_pairs(&probe[0], &row[0], probe.shape[0], keys.rows, _u64(lo), _u64(hi), negated)
    return kept


def mark_outside(const int64_t[::1] probe, const int64_t[::1] row, RowKeys keys, const uint64_t[::1] lo,
                 const uint64_t[::1] hi, cnp.ndarray mark):
    """Mark, in booleans, the pairs whose row's key is outside of its probe's range."""
    cdef uint8_t* place = <uint8_t*>cnp.PyArray_DATA(mark)
    if probe.shape[0] == 0:
        return
    with nogil:
        c_mark_outside(&probe[0], &row[0], probe.shape[0], keys.rows, _u64(lo), _u64(hi), place)


def merge_halves(const int64_t[::1] left_probe, const int64_t[::1] left_row, const int64_t[::1] left_rank,
                 int64_t left_first, const int64_t[::1] right_probe, const int64_t[::1] right_row,
                 const int64_t[::1] right_rank, int64_t right_first):
    """(left_row, right_row, rank of the later tuple) of both halves, in the order of results."""
    cdef Py_ssize_t n = left_probe.shape[0] + right_probe.shape[0]
    cdef cnp.ndarray[int64_t, ndim=1] out_left = np.empty(n, np.int64)
    cdef cnp.ndarray[int64_t, ndim=1] out_right = np.empty(n, np.int64)
    cdef cnp.ndarray[int64_t, ndim=1] later = np.empty(n, np.int64)
    cdef int64_t* left_place = <int64_t*>cnp.PyArray_DATA(out_left)
    cdef int64_t* right_place = <int64_t*>cnp.PyArray_DATA(out_right)
    cdef int64_t* later_place = <int64_t*>cnp.PyArray_DATA(later)
    cdef Half left, right
    left.probe, left.row, left.n = _i64(left_probe), _i64(left_row), left_probe.shape[0]
    left.rank, left.first_row = _i64(left_rank), left_first
    right.probe, right.row, right.n = _i64(right_probe), _i64(right_row), right_probe.shape[0]
    right.rank, right.first_row = _i64(right_rank), right_first
    with nogil:
        c_merge_halves(left, right, left_place, right_place, later_place)
    return out_left, out_right, later


def keep_rows(const uint64_t[::1] keys, mask, int64_t first):
    """(keys, rows) where the mask is true, of rows from `first` on. Without a branch: what is kept cannot be guessed."""
    _same_length(keys.shape[0], len(mask), "keep_rows")
    cdef const uint8_t[::1] kept = np.ascontiguousarray(mask).view(np.uint8)
    cdef Py_ssize_t n = keys.shape[0], i, out = 0
    cdef cnp.ndarray[uint64_t, ndim=1] out_keys = np.empty(n + 1, np.uint64)
    cdef cnp.ndarray[int64_t, ndim=1] out_rows = np.empty(n + 1, np.int64)
    cdef uint64_t* key_place = <uint64_t*>cnp.PyArray_DATA(out_keys)
    cdef int64_t* row_place = <int64_t*>cnp.PyArray_DATA(out_rows)
    with nogil:
        for i in range(n):
            key_place[out] = keys[i]
            row_place[out] = first + i
            out += kept[i]
    return out_keys[:out], out_rows[:out]


def merge_runs(list runs):
    """(row, rank) of some runs (rank, tie, row), each in the order of (rank, tie), in that order."""
    cdef vector[OrderedRun] parts
    cdef OrderedRun part
    cdef const int64_t[::1] rank, tie, row
    cdef Py_ssize_t n = 0
    for rank, tie, row in runs:
        _same_length(rank.shape[0], tie.shape[0], "merge_runs")
        _same_length(rank.shape[0], row.shape[0], "merge_runs")
        part.rank, part.tie, part.row, part.n = _i64(rank), _i64(tie), _i64(row), rank.shape[0]
        parts.push_back(part)
        n += rank.shape[0]
    cdef cnp.ndarray[int64_t, ndim=1] out_row = np.empty(n, np.int64), out_rank = np.empty(n, np.int64)
    cdef int64_t* row_place = <int64_t*>cnp.PyArray_DATA(out_row)
    cdef int64_t* rank_place = <int64_t*>cnp.PyArray_DATA(out_rank)
    with nogil:
        c_merge_runs(parts, row_place, rank_place)
    return out_row, out_rank


# Groups -------------------------------------------------------------------------------------------------------

cdef class KeyNumbers:
    """Dense numbers for keys, in the order in which they came first (see key_numbers.hpp).

    Both methods return (the number of each key, the places of those that are new).
    """

    cdef CKeyNumbers numbers

    def of_words(self, const uint64_t[:, ::1] words):
        """Of keys that are a row of words each."""
        cdef Py_ssize_t n = words.shape[0], width = words.shape[1] * 8
        cdef cnp.ndarray[int64_t, ndim=1] out = np.empty(n, np.int64), first = np.empty(n + 1, np.int64)
        cdef int64_t* place = <int64_t*>cnp.PyArray_DATA(out)
        cdef int64_t* fresh = <int64_t*>cnp.PyArray_DATA(first)
        cdef const uint8_t* keys = <const uint8_t*>&words[0, 0] if n and width else NULL
        cdef size_t found
        with nogil:
            found = self.numbers.of_words(keys, n, width, place, fresh)
        return out, first[:found].copy()

    def of_strings_at(self, uintptr_t offsets, uintptr_t data, Py_ssize_t first_row, Py_ssize_t n, bint wide):
        """Of n strings of an Arrow array, given its buffers' addresses; `wide`: offsets of 64 bits."""
        cdef cnp.ndarray[int64_t, ndim=1] out = np.empty(n, np.int64), first = np.empty(n + 1, np.int64)
        cdef int64_t* place = <int64_t*>cnp.PyArray_DATA(out)
        cdef int64_t* fresh = <int64_t*>cnp.PyArray_DATA(first)
        cdef size_t found = 0
        if n:
            with nogil:
                if wide:
                    found = self.numbers.of_strings(<const int64_t*>offsets + first_row, <const uint8_t*>data, n,
                                                    place, fresh)
                else:
                    found = self.numbers.of_strings(<const int*>offsets + first_row, <const uint8_t*>data, n,
                                                    place, fresh)
        return out, first[:found].copy()

    def __len__(self):
        return self.numbers.size()

    @property
    def nbytes(self):
        return self.numbers.nbytes()


cdef const uint8_t* _valid(valid, Py_ssize_t n):
    """The address of a mask that its caller keeps; NULL without one."""
    if valid is None:
        return NULL
    _same_length(len(valid), n, "a fold's mask")
    return <const uint8_t*>cnp.PyArray_DATA(valid)


def fold_counts(const int64_t[::1] group, valid, int64_t[::1] count):
    """Count the rows of each group, or those that are valid."""
    cdef const uint8_t* mask = _valid(valid, group.shape[0])
    if group.shape[0]:
        with nogil:
            c_fold_counts(&group[0], mask, group.shape[0], &count[0])


def fold_floats(const int64_t[::1] group, const double[::1] values, valid, double[::1] total):
    """Add floats to their groups, in the order of rows."""
    cdef const uint8_t* mask = _valid(valid, group.shape[0])
    _same_length(group.shape[0], values.shape[0], "fold_floats")
    if group.shape[0]:
        with nogil:
            c_fold_floats(&group[0], &values[0], mask, group.shape[0], &total[0])


def fold_integers(const int64_t[::1] group, const uint64_t[::1] low, high, bint is_signed, valid,
                  uint64_t[::1] total_low, int64_t[::1] total_high):
    """Add integers of 64 bits (`high` is None) or 128 to their groups' sums of 128 bits."""
    cdef const uint8_t* mask = _valid(valid, group.shape[0])
    cdef const int64_t[::1] upper
    cdef const int64_t* above = NULL
    _same_length(group.shape[0], low.shape[0], "fold_integers")
    if high is not None:
        upper = high
        _same_length(group.shape[0], upper.shape[0], "fold_integers")
        above = _i64(upper)
    if group.shape[0]:
        with nogil:
            c_fold_integers(&group[0], &low[0], above, is_signed, mask, group.shape[0], &total_low[0], &total_high[0])


def fold_ends(const int64_t[::1] group, const uint64_t[::1] keys, below, valid, bint greatest, uint64_t[::1] end,
              uint64_t[::1] end_below, uint8_t[::1] some):
    """Keep the least key of each group, or the greatest, and whether there was one. `below`: of keys of 128 bits."""
    cdef const uint8_t* mask = _valid(valid, group.shape[0])
    cdef const uint64_t[::1] lower
    cdef const uint64_t* low = NULL
    _same_length(group.shape[0], keys.shape[0], "fold_ends")
    if below is not None:
        lower = below
        _same_length(group.shape[0], lower.shape[0], "fold_ends")
        low = _u64(lower)
    if group.shape[0]:
        with nogil:
            c_fold_ends(&group[0], &keys[0], low, mask, greatest, group.shape[0], &end[0], &end_below[0], &some[0])


def instructions():
    """'avx512' or 'portable': what the scan runs on here."""
    return c_instructions().decode()


def force_portable(bint portable):
    """Use the portable scan (to test and to measure it); return what was forced before."""
    return c_force_portable(portable)


# Rows out of batches ------------------------------------------------------------------------------------------

cdef class Places:
    """Where rows stand: the batch and the place in it, found once for all columns."""

    cdef vector[Place] places

    def __len__(self):
        return self.places.size()

    def numpy(self):
        """(chunk, place in it) as two arrays, for columns that are gathered elsewhere."""
        cdef Py_ssize_t n = self.places.size(), i
        cdef cnp.ndarray[int64_t, ndim=1] chunk = np.empty(n, np.int64), at = np.empty(n, np.int64)
        for i in range(n):
            chunk[i] = self.places[i].chunk
            at[i] = self.places[i].at
        return chunk, at


cdef class Chunks:
    """The buffers of a log's batches, by address. The log keeps the batches themselves alive."""

    cdef unique_ptr[CChunks] chunks

    def __init__(self, list columns):
        """`columns`: (layout, bytes a value) of each."""
        cdef vector[pair[int, int]] layouts
        for layout, width in columns:
            layouts.push_back(pair[int, int](layout, width))
        self.chunks.reset(new CChunks(layouts))

    def add(self, int64_t first_row, int64_t rows, list parts):
        """`parts`: (validity, values, bytes, offset) of each column; addresses, 0 for none."""
        cdef vector[Part] native
        cdef Part part
        cdef uintptr_t validity, values, data
        for validity, values, data, offset in parts:
            part.validity = <const uint8_t*>validity
            part.values = <const uint8_t*>values
            part.bytes = <const uint8_t*>data
            part.offset = offset
            native.push_back(part)
        _same_length(native.size(), self.chunks.get().columns(), "add")
        self.chunks.get().add(first_row, rows, native.data())

    def drop_front(self, size_t n):
        self.chunks.get().drop_front(n)

    def drop_back(self, size_t n):
        self.chunks.get().drop_back(n)

    def __len__(self):
        return self.chunks.get().size()

    @property
    def nbytes(self):
        return self.chunks.get().nbytes()

    def locate(self, const int64_t[::1] rows):
        cdef Places places = Places()
        places.places.resize(rows.shape[0])
        with nogil:
            self.chunks.get().locate(_i64(rows), rows.shape[0], places.places.data())
        return places

    def has_nulls(self, size_t column):
        return self.chunks.get().has_nulls(column)

    def gather_validity(self, size_t column, Places places, uintptr_t out):
        """Fill a cleared bitmap; return the number of nulls."""
        cdef size_t nulls
        with nogil:
            nulls = self.chunks.get().gather_validity(
                column, places.places.data(), places.places.size(), <uint8_t*>out)
        return nulls

    def gather_fixed(self, size_t column, Places places, uintptr_t out):
        with nogil:
            self.chunks.get().gather_fixed(column, places.places.data(), places.places.size(), <uint8_t*>out)

    def gather_bits(self, size_t column, Places places, uintptr_t out):
        with nogil:
            self.chunks.get().gather_bits(column, places.places.data(), places.places.size(), <uint8_t*>out)

    def gather_offsets(self, size_t column, Places places, uintptr_t out, bint wide, int64_t limit):
        """Fill n + 1 offsets; return the number of bytes, or -1 if they pass `limit`."""
        cdef int64_t total
        with nogil:
            if wide:
                total = self.chunks.get().gather_offsets(
                    column, places.places.data(), places.places.size(), <int64_t*>out, limit)
            else:
                total = self.chunks.get().gather_offsets(
                    column, places.places.data(), places.places.size(), <int*>out, limit)
        return total

    def gather_bytes(self, size_t column, Places places, uintptr_t offsets, bint wide, uintptr_t out):
        with nogil:
            if wide:
                self.chunks.get().gather_bytes(
                    column, places.places.data(), places.places.size(), <const int64_t*>offsets, <uint8_t*>out)
            else:
                self.chunks.get().gather_bytes(
                    column, places.places.data(), places.places.size(), <const int*>offsets, <uint8_t*>out)
