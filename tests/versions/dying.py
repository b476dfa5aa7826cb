"""A writer that is killed at a step of its commit; `write` is run in a process of its own."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

from headwater.namespace.directory import DirectoryNamespace
from headwater.namespace.versions import managed as kept
from headwater.namespace.versions.managed import ManagedVersions
from headwater.registries.manifest import ManifestRegistry
from tests.versions.samples import append

STEPS = ("staged", "committed", "finalized", "pointed", "unstaged")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def arm(step: str) -> None:
    """Make the next append of this process its last."""
    if step == "staged":
        _before(ManifestRegistry, "commit")
    elif step == "committed":
        _before(ManagedVersions, "finish")
    elif step == "finalized":
        _after(ManagedVersions, "finish")
    else:
        kept.POINT_EVERY = 1
        if step == "pointed":
            _arm_inside_point()
        else:
            _after(ManagedVersions, "point")


def _arm_inside_point() -> None:
    """Die when the record points at the final manifest, before the staged one is deleted."""
    point = ManagedVersions.point

    def dying(self: ManagedVersions) -> int:
        _after(type(self.records), "commit")
        return point(self)

    setattr(ManagedVersions, "point", dying)  # noqa: B010


def _before(kind: type[Any], name: str) -> None:
    def dying(*args: Any, **kwargs: Any) -> None:
        die()

    setattr(kind, name, dying)


def _after(kind: type[Any], name: str) -> None:
    work: Callable[..., Any] = getattr(kind, name)

    def dying(*args: Any, **kwargs: Any) -> None:
        work(*args, **kwargs)
        die()

    setattr(kind, name, dying)


def write(root: str, step: str) -> None:
    catalog = DirectoryNamespace(root=root)
    catalog.describe_table({"id": ["t"]})  # type: ignore[arg-type]
    arm(step)
    append(catalog, value=100)
