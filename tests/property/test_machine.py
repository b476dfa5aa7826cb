"""Random histories of the directory catalog, through two instances on one root, against a plain model."""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Callable
from typing import Any

import lance_namespace as api
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from headwater import DirectoryNamespace
from headwater.errors import LanceNamespaceError
from headwater.testing.namespace_suite import ipc
from tests.property.model import Id, Model, Outcome

MODES: dict[str, dict[str, str]] = {
    "V1": {"manifest_enabled": "false"},
    "V2": {"dir_listing_enabled": "false"},
    "compat": {},
}
NAMES = st.sampled_from(["a", "é"])
IDS = st.one_of(st.tuples(NAMES), st.tuples(NAMES, NAMES), st.tuples(NAMES), st.tuples(NAMES, NAMES, NAMES))
WHO = st.integers(0, 1)


class CatalogMachine(RuleBasedStateMachine):
    """Every operation on names, by either of two instances that have the same root open."""

    mode = "V2"

    @initialize()
    def open(self) -> None:
        self.root = tempfile.mkdtemp(prefix="headwater-machine-")
        self.model = Model(self.mode)
        self.instances = [self.reopen(), self.reopen()]

    def reopen(self) -> DirectoryNamespace:
        return DirectoryNamespace(root=f"{self.root}/lake", **MODES[self.mode])

    def fit(self, id: Id) -> Id:
        """Mostly root tables where there is nothing else."""
        return id[:1] if self.model.flat and len(id) < 3 else id

    def ask(self, who: int, operation: str, id: Id, *body: bytes, **fields: Any) -> tuple[Outcome, Any]:
        try:
            return None, getattr(self.instances[who], operation)({"id": list(id), **fields}, *body)
        except LanceNamespaceError as error:
            return int(error.code), None

    @rule(who=WHO, id=IDS, mode=st.sampled_from(["Create", "ExistOk", "Overwrite"]), value=st.text(max_size=3))
    def create_namespace(self, who: int, id: Id, mode: str, value: str) -> None:
        id = self.fit(id)
        properties = {"p": value.encode(errors="ignore").decode()}
        code, _ = self.ask(who, "create_namespace", id, mode=mode, properties=properties)
        assert code == self.model.create_namespace(id, mode, properties)

    @rule(who=WHO, id=IDS, behavior=st.sampled_from(["Restrict", "Cascade"]), mode=st.sampled_from(["Fail", "Skip"]))
    def drop_namespace(self, who: int, id: Id, behavior: str, mode: str) -> None:
        id = self.fit(id)
        code, _ = self.ask(who, "drop_namespace", id, behavior=behavior, mode=mode)
        assert code == self.model.drop_namespace(id, behavior, mode)

    @rule(who=WHO, id=IDS, rows=st.integers(0, 3))
    def create_table(self, who: int, id: Id, rows: int) -> None:
        id = self.fit(id)
        code, answer = self.ask(who, "create_table", id, ipc(pa.table({"n": list(range(rows))})))
        assert code == self.model.create_table(id, rows, _folder(answer))

    @rule(who=WHO, id=IDS)
    def declare_table(self, who: int, id: Id) -> None:
        id = self.fit(id)
        code, answer = self.ask(who, "declare_table", id)
        assert code == self.model.create_table(id, None, _folder(answer))

    @rule(who=WHO, id=IDS)
    def drop_table(self, who: int, id: Id) -> None:
        id = self.fit(id)
        assert self.ask(who, "drop_table", id)[0] == self.model.drop_table(id)

    @rule(who=WHO, id=IDS)
    def deregister_table(self, who: int, id: Id) -> None:
        id = self.fit(id)
        assert self.ask(who, "deregister_table", id)[0] == self.model.deregister_table(id)

    @rule(who=WHO, id=IDS, choice=st.integers(0, 9))
    def register_table(self, who: int, id: Id, choice: int) -> None:
        id = self.fit(id)
        places = sorted((*self.model.hidden, *self.model.loose, "nothing-here", f"{id[-1]}.lance"))
        place = places[choice % len(places)]
        if any(table.location == place and other != id for other, table in self.model.tables.items()):
            return
        code, _ = self.ask(who, "register_table", id, location=place)
        if place in self.model.hidden or place in self.model.loose:
            assert code == self.model.register_table(id, place)
        elif place == f"{id[-1]}.lance" and id in self.model.tables and self.model.flat:
            assert code is None, "the table that a V1 catalog shows is what was asked for"
        else:
            assert code in (0, 1, 5, 13)

    @rule(who=WHO, id=IDS, new=IDS)
    def rename_table(self, who: int, id: Id, new: Id) -> None:
        id, new = self.fit(id), self.fit(new)
        fields = {"new_table_name": new[-1], "new_namespace_id": list(new[:-1])}
        code, _ = self.ask(who, "rename_table", id, **fields)
        assert code == self.model.rename_table(id, new)

    @rule(who=WHO, id=IDS)
    def describe(self, who: int, id: Id) -> None:
        id = self.fit(id)
        code, answer = self.ask(who, "describe_table", id, check_declared=True)
        assert code == self.model.missing(id)
        if code is None:
            table = self.model.tables[id]
            assert (answer.is_only_declared, _folder(answer)) == (table.rows is None, table.location)
            if table.rows is not None:
                assert self.ask(who, "count_table_rows", id)[1].count == table.rows

    @rule(who=WHO)
    def list_all(self, who: int) -> None:
        found = self.instances[who].list_all_tables(api.ListTablesRequest()).tables
        assert found == sorted("$".join(id) for id in self.model.tables)

    @rule(seed=st.integers(0, 2**32))
    def several(self, seed: int) -> None:
        """Ten calls that follow from a seed. Rules alone seldom pile up states that get in each other's way."""
        chance = random.Random(seed)
        for _ in range(10):
            self.one(chance)

    def one(self, chance: random.Random) -> None:
        who, id, new = chance.randrange(2), self.any_id(chance), self.any_id(chance)
        calls: list[Callable[[], None]] = [
            lambda: self.create_namespace(who, id, chance.choice(["Create", "ExistOk", "Overwrite"]), "v"),
            lambda: self.drop_namespace(who, id, chance.choice(["Restrict", "Cascade"]), "Fail"),
            lambda: self.create_table(who, id, chance.randrange(4)),
            lambda: self.create_table(who, id, chance.randrange(4)),
            lambda: self.declare_table(who, id),
            lambda: self.drop_table(who, id),
            lambda: self.deregister_table(who, id),
            lambda: self.register_table(who, id, chance.randrange(10)),
            lambda: self.rename_table(who, id, new),
            lambda: self.describe(who, id),
        ]
        chance.choice(calls[2 if self.model.flat else 0 :])()

    @staticmethod
    def any_id(chance: random.Random) -> Id:
        return tuple(chance.choice(["a", "é", "c"]) for _ in range(chance.choice([1, 1, 2, 2, 3])))

    @invariant()
    def listings_agree(self) -> None:
        for who in (0, 1):
            for parent in [(), *self.model.namespaces]:
                if not self.model.flat or not parent:
                    _, spaces = self.ask(who, "list_namespaces", parent)
                    _, tables = self.ask(who, "list_tables", parent)
                    assert spaces.namespaces == self.model.children(parent, "namespace")
                    assert tables.tables == self.model.children(parent, "table")

    def teardown(self) -> None:
        if not hasattr(self, "root"):
            return
        try:
            self.instances = [self.reopen(), self.reopen()]
            self.listings_agree()
            for id, properties in self.model.namespaces.items():
                assert self.ask(0, "describe_namespace", id)[1].properties == properties
            for id in self.model.tables:
                self.describe(0, id)
        finally:
            shutil.rmtree(self.root)


def _folder(answer: Any) -> str:
    return str(answer.location).rsplit("/", 1)[-1] if answer is not None else ""


def run(mode: str, examples: int, steps: int) -> None:
    machine = type(f"{mode}Machine", (CatalogMachine,), {"mode": mode})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            database=None,
            derandomize=examples < 100,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.parametrize("mode", MODES)
def test_any_history_through_two_instances_agrees_with_the_model(mode: str) -> None:
    run(mode, examples=15, steps=12)


@pytest.mark.long
@pytest.mark.parametrize("mode", MODES)
def test_many_long_histories_through_two_instances_agree_with_the_model(mode: str) -> None:
    run(mode, examples=150, steps=40)
