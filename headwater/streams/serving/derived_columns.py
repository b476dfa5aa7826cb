"""Functions of derived columns and child tables: their modules, how they are imported and called, their identity.

A function is known by its source text and its version. One beside a pipeline file is imported from that folder, which
the column remembers, so that every verb finds it again. A plan reads the text and imports nothing from there.
A function is called batch by batch. A class is made once in a process and an iterator function begun once, so a model
is loaded once for all batches and tasks of the process. A call that fails is made again before it counts as failed.

Derived columns: values that a publish computes from other columns of a row, for rows whose inputs changed only.

When a function changes (see user_functions), rows keep the old function's value and are stale
until they are written again; which they are is told by their fragments, since a publish writes rows into new ones.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import inspect
import json
import sys
import tokenize
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.errors import InvalidInputError, LanceNamespaceError
from headwater.streams.definition import Definition, Derived
from headwater.streams.reading.fresh_reads import same_rows
from headwater.streams.reading.position_views import Computed, Published
from headwater.streams.serving.staged_rows import Changes, stale_rows
from headwater.streams.table_functions import names_function
from headwater.types import convert
from headwater.work.tasks import SENT, UserModule

TEXT = "__headwater_file__"
"""The name under which a module keeps the text that it was imported from."""
Say = Callable[[str], None]


def load(derived: Derived) -> Callable[..., object]:
    """Import the function, from the folder that the column remembers if that is there. Raise InvalidInput (13)."""
    module, _, name = derived.function.partition(":")
    try:
        with _path_of(derived):
            found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, SyntaxError) as error:
        raise _not_found(derived, str(error)) from None
    if not callable(found):
        raise InvalidInputError(f"{derived.function!r} of {derived.of} is not a function.")
    return found  # type: ignore[no-any-return]


def _not_found(derived: Derived, why: str) -> InvalidInputError:
    lost = derived.folder is not None and not is_there(derived)
    known = " It lay beside a pipeline file: run that pipeline again, from where it is now." if lost else ""
    return InvalidInputError(f"The function {derived.function!r} of {derived.of} cannot be imported: {why}.{known}")


def identity(derived: Derived) -> str:
    """Return what the values of a column are computed by: the function's source and version, its inputs and type."""
    return _hashed(derived, _source(load(derived)))


def planned_identity(derived: Derived, say: Say = lambda text: None) -> str:
    """Return the same without importing code of the column's folder; say so where the text alone does not tell it.

    The text tells a function, class or lambda of a module beside the pipeline file that has no decorator.
    """
    module, _, name = derived.function.partition(":")
    file = _file_of(derived.folder, module)
    if file is None:
        return identity(derived)
    try:
        with tokenize.open(file) as opened:
            lines = opened.readlines()
        tree = ast.parse("".join(lines))
    except (SyntaxError, UnicodeError, OSError) as error:
        raise _not_found(derived, str(error)) from None
    bound = [node for node in tree.body if name in _bound(node)]
    if not bound and not any("*" in _bound(node) for node in tree.body):
        raise _not_found(derived, f"{file.name} defines no {name}")
    if len(bound) != 1 or not _is_told(bound[0]):
        say(f"{file.name} is imported to plan: its text alone does not tell what {name} is.")
        return identity(derived)
    return _hashed(
        derived, "".join(inspect.getblock([*lines[bound[0].lineno - 1 : -1], lines[-1].rstrip("\n") + "\n"]))
    )


def _bound(node: ast.stmt) -> set[str]:
    """Return the names that a statement of a module gives a value to."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return {node.name}
    within = list(ast.walk(node))
    names = {each.id for each in within if isinstance(each, ast.Name) and not isinstance(each.ctx, ast.Load)}
    names |= {each.name for each in within if isinstance(each, (ast.FunctionDef, ast.ClassDef))}
    return names | {each.asname or each.name for each in within if isinstance(each, ast.alias)}


def _is_told(node: ast.stmt) -> bool:
    """Return True if the lines of a statement are the source of the function that it defines."""
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return not node.decorator_list
    is_lambda = isinstance(node, ast.Assign) and isinstance(node.value, ast.Lambda)
    return is_lambda and node.value.lineno == node.lineno  # type: ignore[attr-defined]


def _hashed(derived: Derived, source: str | None) -> str:
    text = "\0".join((source or derived.function, derived.version, *derived.inputs, str(derived.type)))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


@lru_cache(maxsize=256)
def _source(function: Callable[..., object]) -> str | None:
    """Return the text of a function as it was when it was first asked for: its file may be edited, and it stays what it
    is."""
    try:
        return inspect.getsource(function)
    except (OSError, TypeError):
        return None


def modules_of(functions: Iterable[Derived]) -> tuple[UserModule, ...]:
    """Return the modules of functions that are single files outside of what is installed.

    Modules that were imported from beside them come along.
    """
    found: dict[str, UserModule] = {}
    for name, derived in {each.function.partition(":")[0]: each for each in functions}.items():
        if "." in name:
            continue  # a module of a package: executors have the package, or cannot have it
        load(derived)
        file = getattr(sys.modules[name], "__file__", None)
        if file is not None and file.endswith(".py") and "site-packages" not in file:
            for own, near in {name: file, **_imported_from(Path(file).parent)}.items():
                found[own] = UserModule(own, Path(near).read_text(encoding="utf-8"))
    return tuple(found.values())


def _imported_from(folder: Path) -> dict[str, str]:
    """Return the single modules of a folder that this process has imported."""
    known = {name: getattr(module, "__file__", None) for name, module in list(sys.modules.items()) if "." not in name}
    return {name: file for name, file in known.items() if file is not None and Path(file) == folder / f"{name}.py"}


# Folders ------------------------------------------------------------------------------------------------------------


def with_folder(properties: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Return properties in which each function remembers the folder, if its module lies in it."""
    found = dict(properties)
    for key, text in properties.items():
        if names_function(key):
            known = json.loads(text)
            if _file_of(str(folder), str(known["function"]).partition(":")[0]) is not None:
                found[key] = json.dumps({**known, "folder": str(folder)})
    return found


def without_folders(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return properties as a server tells them: the folders of functions are its own."""
    found = dict(properties)
    for key, text in properties.items():
        if names_function(key):
            found[key] = json.dumps({name: value for name, value in json.loads(text).items() if name != "folder"})
    return found


def _file_of(folder: str | None, module: str) -> Path | None:
    """Return the file of a module in a folder; None if it is not there."""
    if folder is None or not all(part.isidentifier() for part in module.split(".")):
        return None
    place = Path(folder, *module.split("."))
    return next((file for file in (place.with_suffix(".py"), place / "__init__.py") if file.is_file()), None)


def is_there(derived: Derived) -> bool:
    """Return True if the function's module is in the folder that the column remembers."""
    return _file_of(derived.folder, derived.function.partition(":")[0]) is not None


def _path_of(derived: Derived) -> AbstractContextManager[None]:
    """Return a context in which the function is imported from its folder; on an executor its text was sent."""
    is_sent = getattr(sys.modules.get(derived.function.partition(":")[0]), SENT, None) is not None
    if derived.folder is None or is_sent or not is_there(derived):
        return nullcontext()
    return beside(Path(derived.folder))


@contextmanager
def beside(folder: Path) -> Iterator[None]:
    """Make modules next to the pipeline file importable, and import again those that changed.

    A module of the same name from another pipeline is dropped first.
    """
    texts = {file: file.read_bytes() for file in folder.glob("*.py") if file.stem not in sys.stdlib_module_names}
    for file, text in texts.items():
        known = sys.modules.get(file.stem)
        came_from = getattr(known, "__file__", "") or ""
        is_same = came_from == str(file) and getattr(known, TEXT, None) == text
        if not is_same and "site-packages" not in came_from:
            sys.modules.pop(file.stem, None)
    importlib.invalidate_caches()
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for file, text in texts.items():
            made = sys.modules.get(file.stem)
            if getattr(made, "__file__", "") == str(file):
                made.__dict__.setdefault(TEXT, text)


ATTEMPTS = 3
_ALIVE: dict[tuple[int, str], Callable[..., Any]] = {}
"""Callables made of classes and iterator functions in this process, by the function and its identity."""


class Iterating:
    """An iterator function: it takes a batch when it is asked for the next one, and yields one answer for each."""

    def __init__(self, call: Callable[[Iterator[Any]], Iterator[object]]) -> None:
        self._waiting: list[Any] = []
        self._answers = iter(call(self._source()))

    def _source(self) -> Iterator[Any]:
        while self._waiting:
            yield self._waiting.pop()

    def __call__(self, *given: object) -> Any:
        self._waiting = [given[0] if len(given) == 1 else given]
        try:
            return next(self._answers)
        except StopIteration:
            raise InvalidInputError("The function ended before its input did: yield one answer for each.") from None


def called(function: Callable[..., Any], identity: str, inputs: Sequence[Any], what: str) -> Any:
    """Return the answer to a batch of inputs; 13 names `what` failed, after several attempts."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return instance(function, identity)(*inputs)
        except LanceNamespaceError:
            _ALIVE.pop((id(function), identity), None)
            raise
        except Exception as error:
            _ALIVE.pop((id(function), identity), None)  # an iterator that failed has ended
            if attempt == ATTEMPTS:
                raise InvalidInputError(
                    f"{what} failed {ATTEMPTS} times for a batch of {len(inputs[0]) if inputs else 0} rows: "
                    f"{type(error).__name__}: {str(error)[:500]}"
                ) from error
    raise AssertionError("unreachable")


def instance(function: Callable[..., object], identity: str) -> Callable[..., Any]:
    """Return the function, or what a class or an iterator function has become in this process."""
    if not (inspect.isclass(function) or inspect.isgeneratorfunction(function)):
        return function
    key = id(function), identity
    if key not in _ALIVE:
        made: Any = function if inspect.isclass(function) else Iterating
        _ALIVE[key] = made() if inspect.isclass(function) else made(function)
    return _ALIVE[key]


BATCH = 1 << 14
Identify = Callable[[Derived], str]


def compute(derived: Derived, rows: pa.Table) -> Any:
    """Return the values for some rows. The function gets one Arrow array for each input, a batch at a time."""
    function, own = load(derived), identity(derived) if rows.num_rows else ""
    what = f"The function {derived.function!r} of {derived.of}"
    parts: list[Any] = [pa.nulls(0, derived.type)]
    for start in range(0, rows.num_rows, BATCH):
        batch = rows.slice(start, BATCH)
        inputs = [_array(batch.column(name)) for name in derived.inputs]
        parts.append(_values(derived, called(function, own, inputs, what), batch.num_rows))
    return pa.concat_arrays(parts)


def _array(column: object) -> Any:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _values(derived: Derived, answer: Any, rows: int) -> Any:
    try:
        if isinstance(answer, np.ndarray):
            answer = list(answer)
        array = _array(answer) if isinstance(answer, (pa.Array, pa.ChunkedArray)) else pa.array(answer, derived.type)
        array = convert(array, derived.type)
    except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError, ValueError) as error:
        raise InvalidInputError(
            f"The function of the derived column {derived.name!r} answered values that are not {derived.type}: {error}"
        ) from None
    if len(array) != rows:
        raise InvalidInputError(
            f"The function of the derived column {derived.name!r} answered {len(array)} values for {rows} rows."
        )
    return array


def with_derived(definition: Definition, dataset: object, changes: Changes, known: Sequence[Computed]) -> pa.Table:
    """Return changed rows with derived columns, computed where an input or the function changed, else as before."""
    rows = changes.rows
    before = {each.name: each for each in known}
    for derived in definition.derived:
        same = before.get(derived.name)
        needed = np.ones(rows.num_rows, bool)
        fresh = same is not None and same.stale_to < 0 and same.identity == identity(derived)
        if dataset is not None and fresh:  # while there are stale rows, every row that is written is computed
            needed = _needed(derived, changes)
        values = compute(derived, changes.rows.take(np.flatnonzero(needed)))
        if not needed.all():
            values = _filled(dataset, derived, changes, needed, values)
        rows = rows.append_column(pa.field(derived.name, derived.type), values)
    return rows


def _needed(derived: Derived, changes: Changes) -> npt.NDArray[np.bool_]:
    needed = np.ones(changes.rows.num_rows, bool)
    kept = np.flatnonzero(changes.ids >= 0)
    inputs = list(derived.inputs)
    needed[kept] = ~same_rows(changes.rows.take(kept).select(inputs), changes.before.select(inputs))
    return needed


def _filled(dataset: Any, derived: Derived, changes: Changes, needed: Any, values: Any) -> Any:
    """Return the computed values and the old ones of other rows, in the order of the rows."""
    ids = changes.ids[~needed].tolist()
    old = dataset._take_rows(ids, columns=[derived.name]).column(derived.name)
    order = np.empty(len(needed), np.int64)
    order[np.flatnonzero(needed)] = np.arange(len(values))
    order[np.flatnonzero(~needed)] = len(values) + np.arange(len(ids))
    return pa.concat_arrays([values, _array(old)]).take(pa.array(order))


def computed(
    definition: Definition, before: Published | None, dataset: Any, identify: Identify = identity
) -> tuple[Computed, ...]:
    """Return the derived columns as a publish on top of `dataset` records them; a new function makes all rows stale."""
    known = {each.name: each for each in (before.derived if before is not None else ())}
    last = (
        max((fragment.fragment_id for fragment in dataset.get_fragments()), default=-1) if dataset is not None else -1
    )
    made = []
    for derived in definition.derived:
        own, old = identify(derived), known.get(derived.name)
        if old is None or old.identity != own:
            old = Computed(derived.name, own, last)
        elif old.stale_to >= 0 and not stale_rows(dataset, old):
            old = Computed(derived.name, own)
        made.append(old)
    return tuple(made)


def renewed(definition: Definition, before: Published, dataset: object, identify: Identify = identity) -> Published:
    """Return the published state by the present functions: values of an older function are stale."""
    now = {each.name: each for each in computed(definition, before, dataset, identify)}
    known = {each.name: each for each in before.derived}
    return replace(before, derived=tuple({**known, **now}.values()))
