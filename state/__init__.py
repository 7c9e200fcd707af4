"""What a window holds, and how rows are found in it.

A window is a log of immutable batches (`log`), with, for each comparison of the predicate, one 64-bit key a row
(`RowKeys`) and, if the predicate allows, an index over one or some of them (`make`, `names`). An index is a cache over
the log: it finds candidates, and can always be built again.

The one idea here is the *row-bounded probe*. A tuple's window is a half-open range of the other stream's row
numbers, found when the tuple is put in order (`sequence.hpp`); a probe is a range of keys and that range of rows.
So both sides of a step can be inserted first and probed after; rows that came later than the tuple are simply not
in its range. Expiry is a bound on rows as well, and no key is ever searched to be deleted.

Native code is plain C++17 in the headers here, without Python in it; `_native.pyx` wraps it thinly, arrays in and
arrays out, and releases the GIL once a call.
"""

__all__ = ["MOST_KEYS", "OF_SEVERAL_KEYS", "Store", "WindowLog", "make", "names", "parameters"]

from .log import WindowLog
from .stores import MOST_KEYS, OF_SEVERAL_KEYS, Store, make, names, parameters
