"""The worker's side: host one object, answer calls one at a time, and die rather than harm anybody.

Started as a program of its own, never forked: pylance and its threads do not survive a fork.
"""

from __future__ import annotations

import gc
import importlib
import mmap
import os
import resource
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pyarrow as pa

from headwater.workers.channel import (
    BrokenChannelError,
    Channel,
    Chunk,
    called_by,
    failure,
    reader_of_chunks,
    size_of,
    speaking,
    stream_chunks,
)

MIB = 1 << 20
SHORT, AHEAD = 1 << 18, 3
"""First chunks that are fewer and have fewer bytes may be the whole answer."""
MIN_WORK = 0.02
"""Seconds of processor time and MiB read or written between two beats: less is only waiting."""


def main() -> None:
    """`python -m headwater.workers.child SOCKET LIFELINE`: the numbers of two inherited descriptors."""
    channel = Channel(socket.socket(fileno=int(sys.argv[1])))
    threading.Thread(target=_die_with_the_caller, args=(int(sys.argv[2]),), daemon=True).start()
    first = channel.receive()
    memory = channel.receive_file()
    channel.share(memory)
    os.close(memory)
    _volunteer_for_the_oom_killer()
    try:
        hosted = find(first["function"])(*first["arguments"])
    except Exception as error:
        channel.send({"error": failure(error)})
        return
    gc.freeze()  # what is there stays: no collection of garbage walks it again
    limit = MemoryLimit(first["most_memory"])
    limit.set(first["memory"])
    channel.send({"ok": os.getpid()})
    with suppress(BrokenChannelError):
        while True:
            call = channel.receive()
            limit.set(call["memory"])
            answer(channel, hosted, call)


def find(name: str) -> Any:
    """Return the function `module:name`."""
    module, _, function = name.partition(":")
    return getattr(importlib.import_module(module), function)


class MemoryLimit:
    """A limit of `most` bytes beyond those of the worker when it was ready. Mapped files do not count."""

    def __init__(self, most: int) -> None:
        self._had = _data_bytes()
        self._most = most
        self._now = 0
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    def set(self, size: int) -> None:
        if size == self._now:
            return
        self._now = size
        with suppress(ValueError, OSError):  # a system that has no such limit, or a lower one
            resource.setrlimit(resource.RLIMIT_DATA, (self._had + size, self._had + max(size, self._most)))


def _data_bytes() -> int:
    with suppress(OSError), open("/proc/self/status") as status:
        for line in status:
            if line.startswith("VmData:"):
                return int(line.split()[1]) * 1024
    return 1 << 30


def _volunteer_for_the_oom_killer() -> None:
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
        score.write("1000")


def _die_with_the_caller(lifeline: int) -> None:
    """The other end is held by the caller and nobody else: it ends when the caller does, however that ended."""
    with suppress(OSError):
        os.read(lifeline, 1)
    os._exit(0)


def answer(channel: Channel, hosted: object, call: dict[str, Any]) -> None:
    """One call: its body, its answer, and the stream that follows it if there is one."""
    chunks = channel.receive_chunks() if call["body"] == "stream" else iter(())
    try:
        body = _body(channel, call["body"], chunks)
        method = call["method"]
        if method.startswith("_"):
            raise ValueError(f"{method!r} is not for callers")
        with called_by(channel), _progress(channel, call["beat"]):
            found = getattr(hosted, method)(call["arguments"], body)
            stream = _stream(found)
            begun, is_whole = _begin(stream) if stream is not None else ([], False)
    except Exception as error:
        _discard(chunks)
        channel.send({"error": failure(error)})
        return
    _discard(chunks)
    if stream is None:
        channel.send({"ok": found})
    elif is_whole:
        channel.send({"ok": None, "whole": True}, begun)
    else:
        _send_stream(channel, begun, stream)


def _begin(stream: Iterator[Chunk]) -> tuple[list[Chunk], bool]:
    """Make the first chunks, and return True beside them if there are no others: a short answer is sent whole."""
    begun: list[Chunk] = []
    while len(begun) < AHEAD and sum(map(size_of, begun)) < SHORT:
        chunk = next(stream, None)
        if chunk is None:
            return begun, True
        begun.append(chunk)
    return begun, False


@contextmanager
def _progress(channel: Channel, beat: float | None) -> Iterator[None]:
    """Tell the caller every `beat` seconds that the work goes on, as long as it does."""
    if beat is None:
        yield
        return
    ended = threading.Event()

    def tell() -> None:
        told = 0.0
        while not ended.wait(beat):
            done = sum(os.times()[:2]) + _moved_bytes() / MIB
            if done - told < MIN_WORK:
                continue
            told = done
            with speaking, suppress(BrokenChannelError, OSError):
                if not ended.is_set():
                    channel.send({"progress": done})

    teller = threading.Thread(target=tell, name="headwater-progress", daemon=True)
    teller.start()
    try:
        yield
    finally:
        ended.set()
        teller.join()


def _moved_bytes() -> int:
    """Return the bytes that this process has read and written."""
    with suppress(OSError), open("/proc/self/io") as counts:
        return sum(int(line.split()[1]) for line in counts if line.startswith(("rchar:", "wchar:")))
    return 0


def _discard(chunks: Iterator[bytes]) -> None:
    """Read and drop the remaining rows of a call, so that the channel is ready for the next."""
    for _ in chunks:
        pass


def _send_stream(channel: Channel, begun: list[Chunk], rest: Iterator[Chunk]) -> None:
    """The chunks, then how it went: an error in the middle of the rows is told too."""
    problem: list[BaseException] = []

    def chunks() -> Iterator[Chunk]:
        try:
            yield from begun
            yield from rest
        except Exception as error:
            problem.append(error)

    channel.send({"ok": None, "stream": True})
    channel.send_chunks(chunks(), shared=True)
    channel.send({"error": failure(problem[0])} if problem else {"ok": None})


def _body(channel: Channel, kind: str | None, chunks: Iterator[bytes]) -> object:
    if kind == "file":
        file = channel.receive_file()
        try:
            return pa.py_buffer(mmap.mmap(file, 0, access=mmap.ACCESS_READ))
        finally:
            os.close(file)
    if kind == "bytes":
        return pa.py_buffer(b"".join(channel.receive_chunks()))
    return reader_of_chunks(chunks) if kind == "stream" else None


def _stream(found: object) -> Iterator[Chunk] | None:
    if isinstance(found, pa.RecordBatchReader):
        return stream_chunks(found)
    return found if isinstance(found, Iterator) else None


if __name__ == "__main__":
    main()
