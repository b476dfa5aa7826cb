"""`Idempotency-Key`: a change repeated after a lost answer gets the first answer, and is not applied twice.

The first request with a key creates a record (create if absent: exactly one server wins), applies the change,
then stores its answer in the record. A repeat finds the answer. A repeat that finds no answer yet, because the
first is still running or its server died, is never applied: the caller is told that the outcome is unknown.
A refusal (4xx) changed nothing, so its record is removed and the key may be used again.
"""

from __future__ import annotations

import base64
import hashlib
from dataclasses import asdict, dataclass, replace

import msgspec

from headwater.clock import Clock
from headwater.errors import CommitStateUnknownError, ConcurrentModificationError, CorruptFileError, InvalidInputError
from headwater.rest.settings import IDEMPOTENCY
from headwater.retry import ATTEMPTS, retry
from headwater.store import KeyNotFoundError, PutMode, Store, create, memory_store

KEEP_MS = 24 * 3600 * 1000
MAX_KEY_CHARS = 256


@dataclass(frozen=True)
class GivenAnswer:
    """An answer that was given."""

    status: int
    body: bytes


@dataclass(frozen=True)
class KeyUse:
    """One use of a key: what was asked, by which try, and once known what was answered."""

    asked: str
    attempt: str
    started_ms: int
    status: int | None = None
    body: str = ""


_uses = msgspec.json.Decoder(KeyUse)


class Repeats:
    """The records of one catalog, in its store (or in memory when the catalog has none)."""

    def __init__(self, store: Store | None, clock: Clock) -> None:
        self._store = store if store is not None else memory_store()
        self._clock = clock

    def begin(self, caller: str, key: str, asked: str) -> GivenAnswer | str:
        """Return the answer to repeat, or the path of a record that this request now owns and must `end`."""
        if not key or len(key) > MAX_KEY_CHARS or not key.isprintable():
            raise InvalidInputError(f"Idempotency-Key must be 1 to {MAX_KEY_CHARS} printable characters.")
        path = _path(caller, key)

        def look() -> bytes:
            return msgspec.json.encode(asdict(KeyUse(asked, self._clock.uuid(), self._clock.now_ms())))

        def act(record: bytes) -> GivenAnswer | str:
            if create(self._store, path, record):
                return path
            found = self._read(path)
            if found is None:  # its change was refused just now; only one of those who repeat it creates the next
                raise ConcurrentModificationError("The record of this Idempotency-Key was removed just now: ask again.")
            return _repeat(found, asked)

        return retry(self._clock, ATTEMPTS, look, act)

    def end(self, path: str, status: int, body: bytes) -> None:
        """Store the answer of a change that was made; forget the key of one that was refused."""
        if 400 <= status < 500:
            self._store.delete(path)
            return
        found = self._read(path)
        if status < 300 and found is not None:
            answered = replace(found, status=status, body=base64.b64encode(body).decode())
            self._store.put(path, msgspec.json.encode(asdict(answered)), PutMode.OVERWRITE)

    def sweep(self) -> int:
        """Remove the records that are older than a day; how many there were."""
        old = [e.key for e in self._store.list(IDEMPOTENCY) if self._clock.now_ms() - e.modified_ms > KEEP_MS]
        for key in old:
            self._store.delete(key)
        return len(old)

    def _read(self, path: str) -> KeyUse | None:
        try:
            return _uses.decode(self._store.get(path))
        except KeyNotFoundError:
            return None
        except msgspec.MsgspecError as error:
            raise CorruptFileError(path, str(error)) from None


def _path(caller: str, key: str) -> str:
    digest = hashlib.sha256(f"{caller}\n{key}".encode()).hexdigest()
    return f"{IDEMPOTENCY}/{digest}.json"


def _repeat(found: KeyUse, asked: str) -> GivenAnswer:
    if found.asked != asked:
        raise InvalidInputError("This Idempotency-Key was used for another request: use a new key for a new request.")
    if found.status is None:
        raise CommitStateUnknownError(
            "A request with this Idempotency-Key was started and its outcome is not recorded (yet): "
            "ask again shortly; if this stays, look whether the change was made before using a new key."
        )
    return GivenAnswer(found.status, base64.b64decode(found.body))


def fingerprint(verb: str, target: str, body: bytes | memoryview) -> str:
    """Return the hash that identifies a request: of its verb, its path with query, and its body."""
    digest = hashlib.sha256(f"{verb} {target}\n".encode())
    digest.update(body)
    return digest.hexdigest()
