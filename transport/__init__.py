"""Bytes between processes: shared memory, and messages that say where in it something stands. Knows no batch.

- `ledger` decides who holds which bytes of an arena; `arena` is the memory itself, and what its readers see.
- `channel` carries numbered, checked messages over ZeroMQ, with large parts in the arena.
- `rundir` is the folder of a run, which goes with the run, also when that was killed.
"""

from .arena import Arena, Block, Reader
from .channel import INLINE, Channel, Message
from .rundir import RunFolder, free_bytes, remove_segment, reserve, sweep

__all__ = [
    "INLINE", "Arena", "Block", "Channel", "Message", "Reader", "RunFolder", "free_bytes", "remove_segment", "reserve",
    "sweep",
]  # fmt: skip
