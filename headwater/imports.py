"""`lance_namespace` and `lance` without the wait. Importing the first builds a validator for each call and model of a
generated client, about a second of CPU that a look-up at the command line has no use for.

    lance_namespace.errors            loaded alone: our errors are these classes, and need nothing else of the package
    lance_namespace                   imported without the models that it names: a model is imported at its first use
    lance_namespace_urllib3_client    the same; a validator is built when it first checks something

    lance                             imported when something of it is first used: a server that only names things
                                      never does
    sqlglot, duckdb, rich             the same: for SQL, which comes with an extra, and for a terminal
    pyarrow.compute                   the same
    pandas                            left out of programs that only read: pyarrow imports it for any array of Python
                                      values, which is half of the CPU of a short command

For an importer of headwater nothing is left out or changed: who calls or makes something gets it checked as ever, and
who looks at a name or an annotation finds the class. If the package was imported before, there is nothing to save.
"""

from __future__ import annotations
import __future__

import ast
import builtins
import functools
import gc
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

PROTOCOL = "lance_namespace"
ERRORS = f"{PROTOCOL}.errors"
CLIENT = "lance_namespace_urllib3_client"
PACKAGES = (PROTOCOL, CLIENT, f"{CLIENT}.models", f"{CLIENT}.api")
"""The packages whose `__init__` imports every module of the client."""


def prepare() -> None:
    """Install the lazy imports. `headwater` calls it once."""
    if PROTOCOL in sys.modules:
        return
    _load_errors()
    sys.meta_path.insert(0, _Finder())


def _load_errors() -> None:
    package = importlib.util.find_spec(PROTOCOL)
    folders = package.submodule_search_locations if package is not None else None
    if not folders:
        return  # the import that needs it says what is missing
    spec = importlib.util.spec_from_file_location(ERRORS, f"{folders[0]}/errors.py")
    if spec is None or spec.loader is None:
        return
    module = sys.modules[ERRORS] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)


def import_little(pandas: bool) -> None:
    """Without `pandas`, let nobody in this process find it, and let pydantic look for no plug-ins of other packages.

    Only for a program of ours: an importer may count on pandas, and so may a user's function.
    """
    if not pandas:
        os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
        sys.meta_path[:0] = [_LittleFinder()] if "pandas" not in sys.modules else []


@contextmanager
def without_collections() -> Iterator[None]:
    """Collect no garbage in this block, which imports. Modules stay: to walk them again and again is a tenth of it.

    What was made counts as old then, so that the next collection does not begin with all of it.
    """
    is_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_on:
            if not gc.get_freeze_count():
                gc.freeze()
                gc.unfreeze()
            gc.enable()


class _LittleFinder(MetaPathFinder):
    """Raises for pandas what an environment without it would."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("pandas is left out of commands that only read", name=name)


class _Finder(MetaPathFinder):
    """Finds the two packages and the client's modules as everybody would, and has them loaded by `_Loader`."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name not in (PROTOCOL, CLIENT) and not name.startswith(f"{CLIENT}."):
            return None
        # Another thread may import at the same time, so the list of finders stays as it is.
        others = (each for each in sys.meta_path if each is not self)
        spec = next((found for each in others if (found := each.find_spec(name, path, target)) is not None), None)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(Loader):
    """Runs a module with its validators built when they are used. Of `PACKAGES` it leaves the models for later."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        with built_when_used():
            if module.__name__ in PACKAGES:
                _run_without_models(module, self._loader)
            else:
                self._loader.exec_module(module)
        if module.__name__ == PROTOCOL and ERRORS in sys.modules:
            module.errors = sys.modules[ERRORS]  # type: ignore[attr-defined]


def _run_without_models(package: ModuleType, loader: Any) -> None:
    """Run the `__init__` of a package. A name that it takes from the client's modules is imported at its first use.

    A name that the code itself uses is imported at once; annotations are evaluated when somebody asks for one.
    """
    homes: dict[str, tuple[str, str]] = {}
    own = []
    for line in ast.parse(loader.get_source(package.__name__)).body:
        if isinstance(line, ast.ImportFrom) and (line.module or "").startswith(f"{CLIENT}."):
            homes.update({alias.asname or alias.name: (str(line.module), alias.name) for alias in line.names})
        else:
            own.append(line)
    texts = __future__.annotations.compiler_flag
    code = compile(ast.Module(own, []), str(package.__file__), "exec", texts, dont_inherit=True)

    def find(name: str) -> Any:
        if name not in homes:
            return _submodule(package.__name__, name)
        module, attribute = homes[name]
        found = getattr(importlib.import_module(module), attribute)
        setattr(package, name, found)
        return found

    package.__getattr__ = find  # type: ignore[method-assign]
    package.__dir__ = lambda: sorted({*package.__dict__, *homes})  # type: ignore[method-assign]
    package.__dict__.setdefault("__all__", sorted(homes))  # `import *` takes them too
    for name in homes.keys() & set(_names_used(code)):
        find(name)
    exec(code, package.__dict__)
    for owner in [package, *(item for item in vars(package).values() if isinstance(item, type))]:
        for item in list(vars(owner).values()):
            if isinstance(item, FunctionType) and item.__module__ == package.__name__:
                item.__annotations__ = _Annotations(item.__annotations__, package)


class _Annotations(dict[str, Any]):
    """The annotations of a function, whose texts become the models that they name when somebody looks at them."""

    def __init__(self, texts: Mapping[str, Any], package: ModuleType) -> None:
        super().__init__(texts)
        self._package = package

    def __getitem__(self, name: str) -> Any:
        found = super().__getitem__(name)
        return _evaluated(found, self._package) if isinstance(found, str) else found

    def __iter__(self) -> Iterator[str]:  # a copy by `dict` goes through this and `__getitem__`
        return iter(tuple(super().keys()))

    def get(self, name: str, default: Any = None) -> Any:
        return self[name] if name in self.keys() else default

    def items(self) -> Any:
        return {name: self[name] for name in self}.items()

    def values(self) -> Any:
        return {name: self[name] for name in self}.values()

    def copy(self) -> dict[str, Any]:
        return dict(self.items())


def _evaluated(text: str, package: ModuleType) -> Any:
    """Return the value of an annotation of a package, as the import of all its names would have made it."""
    for name in _names_used(compile(text, str(package.__file__), "eval")):
        if not hasattr(builtins, name):
            getattr(package, name)  # a model is then one of the module's own names
    return eval(text, package.__dict__)


def _submodule(package: str, name: str) -> ModuleType:
    """Return a module of a package, which an `__init__` that imports all of them would have set as an attribute."""
    if not name.startswith("_") and importlib.util.find_spec(f"{package}.{name}") is not None:
        return importlib.import_module(f"{package}.{name}")
    raise AttributeError(f"module {package!r} has no attribute {name!r}")


def _names_used(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_used(constant)


@contextmanager
def built_when_used() -> Iterator[None]:
    """Defer pydantic's validators of classes in this block until their first use."""
    import pydantic

    call, config = pydantic.validate_call, pydantic.BaseModel.model_config
    if config.get("defer_build"):  # a module that another one of the client imports
        yield
        return
    pydantic.validate_call = _later(call)
    pydantic.BaseModel.model_config = {**config, "defer_build": True}
    try:
        yield
    finally:
        pydantic.validate_call, pydantic.BaseModel.model_config = call, config


def _later(validate: Callable[..., Any]) -> Callable[..., Any]:
    def validate_call(function: Callable[..., Any] | None = None, /, **options: Any) -> Callable[..., Any]:
        if function is None:
            return lambda given: validate_call(given, **options)
        build = functools.cache(lambda: validate(function, **options))

        @functools.wraps(function)
        def validated(*args: Any, **kwargs: Any) -> Any:
            return build()(*args, **kwargs)

        return validated

    return validate_call


class _WhenUsed:
    """A package that is imported when something of it is first asked for."""

    def __init__(self, package: str) -> None:
        self._package = package
        self._module: ModuleType | None = None

    def __getattr__(self, name: str) -> Any:
        if self._module is None:
            self._module = importlib.import_module(self._package)
        try:
            return getattr(self._module, name)
        except AttributeError:
            return importlib.import_module(f"{self._package}.{name}")  # a module that the package itself leaves alone


def when_used(module: str) -> Any:
    """Return a module that is imported when something of it is first asked for."""
    return _WhenUsed(module)


def exports(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package: a name is imported from its home, a module, when it is first used."""

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        with without_collections():
            found = getattr(importlib.import_module(homes[name]), name)
        setattr(sys.modules[package], name, found)
        return found

    return find


def warm() -> None:
    """Import `lance` now, and the models with which it asks a catalog, so that the first use does not wait."""
    _ = lance.LanceDataset, lance.namespace.LanceNamespace


if TYPE_CHECKING:
    import duckdb as duckdb
    import lance as lance
    import lance.commit
    import lance.namespace
    import lance.optimize
    import sqlglot as sqlglot
    from sqlglot import expressions as expressions

    exp = expressions
else:
    lance = _WhenUsed("lance")
    sqlglot = when_used("sqlglot")
    exp = when_used("sqlglot.expressions")
    duckdb = when_used("duckdb")
rich = when_used("rich")
pc = when_used("pyarrow.compute")
