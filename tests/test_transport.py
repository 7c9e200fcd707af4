"""Transport: what an arena owes to whom, and messages that are numbered, checked, and the same over every wire."""

import fcntl
import gc
import os
import struct
import zlib

import numpy as np
import pytest
import zmq
from dovetail import TransportError
from dovetail.disk import Place
from dovetail.transport import Arena, Channel, Reader, RunFolder, channel, sweep
from dovetail.transport.channel import Header, next_in_order
from dovetail.transport.ledger import ALIGNMENT, Ledger
from hypothesis import given
from hypothesis import strategies as st
from streams import examples


@examples(0.4)
@given(st.data())
def test_a_ledger_never_gives_a_byte_to_two(data):
    ledger, held = Ledger(data.draw(st.integers(1, 40)) * ALIGNMENT), {}
    for _ in range(data.draw(st.integers(1, 60))):
        if held and data.draw(st.booleans()):
            offset = data.draw(st.sampled_from(sorted(held)))
            held[offset][1] -= 1
            assert ledger.drop(offset) == (held[offset][1] == 0)
            if held[offset][1] == 0:
                del held[offset]
        else:
            size, holders = data.draw(st.integers(0, 600)), data.draw(st.integers(1, 3))
            offset = ledger.take(size, holders)
            if offset is None:
                longest = max((length for _, length in ledger.gaps), default=0)
                assert longest < max(size, 1)
                continue
            for other, (length, _) in held.items():
                assert offset + size <= other or other + length <= offset
            held[offset] = [size, holders]
        ledger.check()
    assert (ledger.held == 0) == (not held)


@pytest.fixture
def folder(tmp_path):
    with RunFolder(tmp_path) as run:
        yield run


def test_a_block_is_free_again_when_nothing_refers_to_it(folder):
    arena, reader = Arena(folder.path, "a", 1 << 20), Reader(folder.path, "a")
    block = arena.take(10_000, holders=1)
    arena.view(block)[:] = bytes(range(250)) * 40
    array = reader.read(block)
    part = array[100:104].view(np.uint32)
    assert part[0] == int.from_bytes(bytes(range(100, 104)), "little")
    del array
    gc.collect()
    assert not reader.finished  # a view of it still stands
    del part
    assert list(reader.finished) == [(block.segment, block.offset)]
    arena.drop(*reader.finished.popleft())
    arena.check()
    assert arena.held == 0


def test_an_arena_grows_to_its_limit_and_then_says_no(folder):
    arena = Arena(folder.path, "a", 100_000)
    blocks = [arena.take(30_000) for _ in range(3)]
    assert None not in blocks
    assert arena.take(30_000) is None
    arena.drop(blocks[1].segment, blocks[1].offset)
    assert arena.take(30_000) is not None
    assert arena.size <= 100_000


def test_shared_memory_that_is_full_is_an_answer_and_not_a_signal(folder, monkeypatch):
    def full(fd, offset, size):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    arena = Arena(folder.path, "a", 1 << 20)
    assert arena.take(5000) is None
    assert not list(folder.path.glob("a-*"))


def test_what_little_a_machine_has_is_used(folder, monkeypatch):
    """A container has 64 MB of shared memory, and some of it is in use: not room for a whole segment."""
    real, room = os.posix_fallocate, [1 << 20]

    def some(fd, offset, size):
        if size > room[0]:
            raise OSError(28, "No space left on device")
        room[0] -= size
        real(fd, offset, size)

    monkeypatch.setattr(os, "posix_fallocate", some)
    arena = Arena(folder.path, "a", 1 << 30)
    assert arena.take(500_000) is not None
    assert arena.size > 500_000 and not arena.refused
    assert arena.take(600_000) is None
    assert arena.refused
    arena.check()


def test_folders_of_runs_that_are_gone_are_swept_and_others_stay(tmp_path):
    with RunFolder(tmp_path) as lives:
        dead = tmp_path / "dead"
        dead.mkdir()
        (dead / "lock").touch()
        (dead / "head-0").write_bytes(b"x")
        assert sweep(tmp_path) == [dead]
        assert lives.path.exists()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_not_swept_while_it_is_made(tmp_path, monkeypatch):
    real = fcntl.flock

    def others_sweep_first(file, how):
        monkeypatch.setattr(fcntl, "flock", real)
        assert sweep(tmp_path) == []
        real(file, how)

    monkeypatch.setattr(fcntl, "flock", others_sweep_first)
    with RunFolder(tmp_path) as run:
        assert run.path.exists()
        assert sweep(tmp_path) == []


# Messages


@pytest.fixture(params=["inproc", "ipc", "tcp"])
def ends(request, folder):
    """Both ends of an edge, over each wire; those of one machine with arenas."""
    context = zmq.Context()
    sockets = [context.socket(zmq.DEALER) for _ in range(2)]
    address = {"inproc": "inproc://x", "ipc": f"ipc://{folder.path}/s", "tcp": "tcp://127.0.0.1:*"}[request.param]
    sockets[0].bind(address)
    sockets[1].connect(sockets[0].getsockopt(zmq.LAST_ENDPOINT).decode())
    arenas = [None, None] if request.param == "tcp" else [Arena(folder.path, name, 1 << 22) for name in "ab"]
    readers = [None, None] if request.param == "tcp" else [Reader(folder.path, name) for name in "ba"]
    channels = [
        Channel(socket, job=7, generation=2, edge=1, arena=arena, reader=reader)
        for socket, arena, reader in zip(sockets, arenas, readers, strict=True)
    ]
    channels[1].send(0, {})
    assert channels[0].receive(timeout=10.0).kind == 0  # and now somebody is at the other end
    yield channels
    context.destroy(linger=0)


def test_messages_arrive_as_they_were_sent(ends):
    one, two = ends
    rng = np.random.default_rng(1)
    for number in range(30):
        parts = [rng.integers(0, 256, size, dtype=np.uint8) for size in rng.choice([0, 1, 100, 5000, 200_000], 3)]
        one.send(3, {"n": number, "wide": 2**70}, [one.store(part, 1) for part in parts])
        message = two.receive(timeout=10.0)
        assert (message.kind, message.meta["n"], message.meta["wide"]) == (3, number, 2**70)
        assert all(np.array_equal(a, b) for a, b in zip(message.parts, parts, strict=True))
        assert all(part.ctypes.data % 8 == 0 for part in message.parts)  # so that numbers may be read from them
        del message
        two.send(4, {})
        assert one.receive(timeout=10.0).kind == 4
        if one.arena is not None:
            assert one.arena.held == 0  # what was read came back with the answer
    assert two.receive() is None


def test_what_stands_in_a_file_is_read_there(ends, tmp_path):
    one, two = ends
    if two.reader is None:
        pytest.skip("the other end may be on another machine, and is never told of files")
    (tmp_path / "file").write_bytes(bytes(range(256)) * 64)
    place = Place(str(tmp_path / "file"), 4096, 8192)
    one.send(3, {}, [place, one.store(np.arange(9000, dtype=np.uint8), 1), place])
    first, block, second = two.receive(timeout=10.0).parts
    assert bytes(first) == bytes(second) == bytes(range(256)) * 32
    assert np.shares_memory(first, second)  # the file is mapped once
    (tmp_path / "file").unlink()  # a later checkpoint does not need it
    assert first[-1] == 255
    del first, second, block
    gc.collect()
    assert len(two.reader.finished) == 1  # only the block is anybody's to be given back
    assert not two.reader.files  # and nothing holds the file any more
    one.send(3, {}, [place])
    with pytest.raises(TransportError, match="file' cannot be read by another process: .*leave the files"):
        two.receive(timeout=10.0)


def frames(socket, header, text):
    socket.send(header.pack() + text)


def test_a_message_that_is_missing_or_damaged_is_told(ends):
    one, two = ends
    frames(one.socket, Header(3, 7, 2, 1, 5), b"{}")
    with pytest.raises(
        TransportError, match="message 5 of generation 2 came where 0 of generation 2 was due; one was lost"
    ):
        two.receive(timeout=10.0)
    frames(one.socket, Header(3, 7, 2, 1, 0, crc=99), b"{}")
    with pytest.raises(TransportError, match="edge 1: message 0 came damaged"):
        two.receive(timeout=10.0)
    frames(one.socket, Header(3, 7, 2, 1, 0, zlib.crc32(b"{}"), text=3), b"{}")
    with pytest.raises(TransportError, match="edge 1: message 0 has no valid length"):
        two.receive(timeout=10.0)
    one.socket.send(b"GET / HTTP/1.1")
    with pytest.raises(TransportError, match="not one of Dovetail's"):
        two.receive(timeout=10.0)


def test_nobody_at_the_other_end_is_told_and_not_waited_for(ends):
    one, two = ends
    two.socket.close()
    while one.socket.poll(10, zmq.POLLOUT):
        pass
    with pytest.raises(TransportError, match="edge 1: nobody is there to take message 0; the other end is gone"):
        one.send(3, {})


def test_a_message_that_is_too_long_is_not_sent(ends, monkeypatch):
    one, two = ends
    monkeypatch.setattr(channel, "MOST_BYTES", 1000)
    with pytest.raises(TransportError, match=r"a message of 1,0\d\d bytes is longer than the 1,000 .*\(batch_rows=…"):
        one.send(3, {}, [bytes(1000)])
    one.send(3, {}, [bytes(900)])
    assert len(two.receive(timeout=10.0).parts[0]) == 900


def test_what_belongs_to_the_past_is_passed_over():
    assert next_in_order(Header(0, 7, 2, 1, 4), 7, 2, 1, 4)
    assert not next_in_order(Header(0, 7, 1, 1, 4), 7, 2, 1, 4)  # of an older generation
    assert not next_in_order(Header(0, 8, 2, 1, 4), 7, 2, 1, 4)  # of another job
    with pytest.raises(TransportError, match="generation 3"):
        next_in_order(Header(0, 7, 3, 1, 0), 7, 2, 1, 4)


def test_another_format_is_told_apart():
    data = bytearray(Header(0, 7, 2, 1, 4).pack())
    struct.pack_into("<H", data, 4, 9)
    with pytest.raises(TransportError, match="format 9.*reads 1"):
        Header.unpack(bytes(data))
