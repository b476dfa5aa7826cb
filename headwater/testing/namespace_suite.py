"""The conformance suite of catalogs, through `LanceNamespace` alone. Subclass `NamespaceSuite` with fixtures:

`namespace` yields an empty catalog; `features` is its `Capabilities`. Run it directly and through REST.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import partial
from typing import Any

import lance_namespace as api
import pyarrow as pa
import pytest
from lance_namespace import LanceNamespace

from headwater.errors import LanceNamespaceError
from headwater.registry import Capabilities
from headwater.store.seam import OWN_FOLDER

ROWS = pa.table({"id": [1, 2, 3], "name": ["a", "b", "c"]})
ODD_NAMES = (
    "a b",
    "é",
    "e\u0301",
    "日本🎉",
    "a%20b",
    "a%2Fb",
    "a#b?c",
    "a*[b]{c}",
    "~a",
    "a:b",
    ".a",
    "a.",
    "a&b=c",
    "'\"",
    "a.lance",
)
BAD_NAMES = ("", ".", "..", "a/b", "a\\b", "a$b", "a\nb", "a\0b", "\x7f", "x" * 256, "../up")


def ipc(table: pa.Table) -> bytes:
    """Return an Arrow IPC stream for CreateTable."""
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def code_of(action: Callable[[], object]) -> int:
    """Return the code of the error that an action raises."""
    with pytest.raises(LanceNamespaceError) as caught:
        action()
    return int(caught.value.code)


class NamespaceSuite:
    """The tests of names, tables and rows for every kind of catalog."""

    @pytest.fixture
    def nested(self, namespace: LanceNamespace, features: Capabilities) -> LanceNamespace:
        """Skip tests of child namespaces after asserting UnsupportedOperation (0) in a catalog without them."""
        if not features.namespaces:
            assert code_of(lambda: namespace.create_namespace(api.CreateNamespaceRequest(id=["a"]))) == 0
            assert code_of(lambda: namespace.describe_table(api.DescribeTableRequest(id=["a", "t"]))) == 0
            pytest.skip("this kind of catalog has no child namespaces, and says so")
        return namespace

    # Namespaces

    def test_a_new_catalog_has_a_root_and_nothing_in_it(self, namespace: LanceNamespace) -> None:
        assert namespace.list_tables(api.ListTablesRequest(id=[])).tables == []
        assert namespace.list_namespaces(api.ListNamespacesRequest(id=[])).namespaces == []
        assert namespace.list_all_tables(api.ListTablesRequest()).tables == []
        assert namespace.describe_namespace(api.DescribeNamespaceRequest(id=[])).properties == {}
        namespace.namespace_exists(api.NamespaceExistsRequest(id=[]))

    def test_a_namespace_is_created_described_and_dropped(self, nested: LanceNamespace) -> None:
        request = api.CreateNamespaceRequest(id=["a"], properties={"owner": "ml"})
        assert nested.create_namespace(request).properties == {"owner": "ml"}
        assert nested.describe_namespace(api.DescribeNamespaceRequest(id=["a"])).properties == {"owner": "ml"}
        nested.create_namespace(api.CreateNamespaceRequest(id=["a", "b"]))
        assert nested.list_namespaces(api.ListNamespacesRequest(id=[])).namespaces == ["a"]
        assert nested.list_namespaces(api.ListNamespacesRequest(id=["a"])).namespaces == ["b"]
        nested.drop_namespace(api.DropNamespaceRequest(id=["a", "b"]))
        nested.drop_namespace(api.DropNamespaceRequest(id=["a"]))
        assert code_of(lambda: nested.namespace_exists(api.NamespaceExistsRequest(id=["a"]))) == 1

    def test_the_modes_of_create_namespace(self, nested: LanceNamespace) -> None:
        nested.create_namespace(api.CreateNamespaceRequest(id=["a"], properties={"v": "1"}))
        for mode in (None, "Create", "create", "CREATE"):
            again = api.CreateNamespaceRequest(id=["a"], mode=mode, properties={"v": "2"})
            assert code_of(partial(nested.create_namespace, again)) == 2
        for mode in ("ExistOk", "exist_ok", "existok"):
            kept = nested.create_namespace(api.CreateNamespaceRequest(id=["a"], mode=mode, properties={"v": "2"}))
            assert kept.properties == {"v": "1"}
        nested.create_namespace(api.CreateNamespaceRequest(id=["a"], mode="Overwrite", properties={"w": "3"}))
        assert nested.describe_namespace(api.DescribeNamespaceRequest(id=["a"])).properties == {"w": "3"}
        nested.create_namespace(api.CreateNamespaceRequest(id=["a", "child"]))
        assert code_of(lambda: nested.create_namespace(api.CreateNamespaceRequest(id=["a"], mode="overwrite"))) == 3
        assert code_of(lambda: nested.create_namespace(api.CreateNamespaceRequest(id=["b"], mode="sideways"))) == 13

    def test_a_missing_parent_is_namespace_not_found(self, nested: LanceNamespace) -> None:
        ask: list[Callable[[], object]] = [
            lambda: nested.create_namespace(api.CreateNamespaceRequest(id=["no", "b"])),
            lambda: nested.list_namespaces(api.ListNamespacesRequest(id=["no"])),
            lambda: nested.list_tables(api.ListTablesRequest(id=["no"])),
            lambda: nested.describe_namespace(api.DescribeNamespaceRequest(id=["no"])),
            lambda: nested.drop_namespace(api.DropNamespaceRequest(id=["no"])),
            lambda: nested.declare_table(api.DeclareTableRequest(id=["no", "t"])),
            lambda: nested.create_table(api.CreateTableRequest(id=["no", "t"]), ipc(ROWS)),
            lambda: nested.describe_table(api.DescribeTableRequest(id=["no", "t"])),
            lambda: nested.table_exists(api.TableExistsRequest(id=["no", "t"])),
            lambda: nested.drop_table(api.DropTableRequest(id=["no", "t"])),
            lambda: nested.deregister_table(api.DeregisterTableRequest(id=["no", "t"])),
        ]
        assert [code_of(action) for action in ask] == [1] * len(ask)
        nested.drop_namespace(api.DropNamespaceRequest(id=["no"], mode="Skip"))

    def test_drop_is_restricted_unless_it_cascades(self, nested: LanceNamespace) -> None:
        for id in (["a"], ["a", "b"], ["keep"]):
            nested.create_namespace(api.CreateNamespaceRequest(id=id))
        for id in (["a", "b", "t"], ["a", "u"], ["keep", "t"]):
            nested.create_table(api.CreateTableRequest(id=id), ipc(ROWS))
        assert code_of(lambda: nested.drop_namespace(api.DropNamespaceRequest(id=["a"]))) == 3
        nested.drop_namespace(api.DropNamespaceRequest(id=["a"], behavior="Cascade"))
        assert nested.list_namespaces(api.ListNamespacesRequest(id=[])).namespaces == ["keep"]
        assert code_of(lambda: nested.describe_table(api.DescribeTableRequest(id=["a", "u"]))) == 1
        assert self.count(nested, ["keep", "t"]) == 3

    def test_the_root_is_neither_created_nor_dropped(self, namespace: LanceNamespace) -> None:
        assert code_of(lambda: namespace.create_namespace(api.CreateNamespaceRequest(id=[]))) == 2
        assert code_of(lambda: namespace.drop_namespace(api.DropNamespaceRequest(id=[]))) == 13

    def test_one_name_has_one_object_whatever_its_kind(self, nested: LanceNamespace) -> None:
        nested.create_namespace(api.CreateNamespaceRequest(id=["n"]))
        nested.create_table(api.CreateTableRequest(id=["t"]), ipc(ROWS))
        assert code_of(lambda: nested.create_table(api.CreateTableRequest(id=["n"]), ipc(ROWS))) == 5
        assert code_of(lambda: nested.declare_table(api.DeclareTableRequest(id=["n"]))) == 5
        assert code_of(lambda: nested.create_namespace(api.CreateNamespaceRequest(id=["t"]))) == 2
        assert code_of(lambda: nested.describe_table(api.DescribeTableRequest(id=["n"]))) == 4
        assert code_of(lambda: nested.describe_namespace(api.DescribeNamespaceRequest(id=["t"]))) == 1

    # Tables

    def test_a_table_is_created_described_and_dropped(self, namespace: LanceNamespace) -> None:
        created = namespace.create_table(api.CreateTableRequest(id=["t"]), ipc(ROWS))
        assert created.version == 1
        namespace.table_exists(api.TableExistsRequest(id=["t"]))
        found = namespace.describe_table(api.DescribeTableRequest(id=["t"], load_detailed_metadata=True))
        assert (found.version, found.location) == (1, created.location)
        assert found.var_schema is not None
        assert [field.name for field in found.var_schema.fields] == ["id", "name"]
        assert self.count(namespace, ["t"]) == 3
        namespace.drop_table(api.DropTableRequest(id=["t"]))
        assert code_of(lambda: namespace.table_exists(api.TableExistsRequest(id=["t"]))) == 4
        assert code_of(lambda: namespace.drop_table(api.DropTableRequest(id=["t"]))) == 4
        namespace.create_table(api.CreateTableRequest(id=["t"]), ipc(ROWS.slice(0, 1)))
        assert self.count(namespace, ["t"]) == 1

    def test_the_modes_of_create_table(self, namespace: LanceNamespace) -> None:
        namespace.create_table(api.CreateTableRequest(id=["t"]), ipc(ROWS))
        assert code_of(lambda: namespace.create_table(api.CreateTableRequest(id=["t"]), ipc(ROWS))) == 5
        namespace.create_table(api.CreateTableRequest(id=["t"], mode="ExistOk"), ipc(ROWS.slice(0, 1)))
        assert self.count(namespace, ["t"]) == 3
        namespace.create_table(api.CreateTableRequest(id=["t"], mode="Overwrite"), ipc(pa.table({"other": [1]})))
        assert self.count(namespace, ["t"]) == 1
        namespace.create_table(api.CreateTableRequest(id=["fresh"], mode="overwrite"), ipc(ROWS))
        assert self.count(namespace, ["fresh"]) == 3

    def test_an_empty_stream_makes_an_empty_table(self, namespace: LanceNamespace) -> None:
        namespace.create_table(api.CreateTableRequest(id=["t"]), ipc(ROWS.schema.empty_table()))
        assert self.count(namespace, ["t"]) == 0

    def test_a_body_that_is_no_arrow_stream_changes_nothing(self, namespace: LanceNamespace) -> None:
        good = ipc(ROWS)
        for body in (b"", b"garbage", good[: len(good) // 2], good[:8]):
            assert code_of(partial(namespace.create_table, api.CreateTableRequest(id=["t"]), body)) == 13
        assert namespace.list_tables(api.ListTablesRequest(id=[])).tables == []
        assert code_of(lambda: namespace.table_exists(api.TableExistsRequest(id=["t"]))) == 4

    def test_a_declared_table_exists_without_data_and_can_be_created(self, namespace: LanceNamespace) -> None:
        declared = namespace.declare_table(api.DeclareTableRequest(id=["t"]))
        found = namespace.describe_table(api.DescribeTableRequest(id=["t"], check_declared=True))
        assert (found.is_only_declared, found.location) == (True, declared.location)
        assert namespace.list_tables(api.ListTablesRequest(id=[])).tables == ["t"]
        assert namespace.list_tables(api.ListTablesRequest(id=[], include_declared=False)).tables == []
        assert code_of(lambda: namespace.declare_table(api.DeclareTableRequest(id=["t"]))) == 5
        namespace.create_table(api.CreateTableRequest(id=["t"]), ipc(ROWS))
        found = namespace.describe_table(api.DescribeTableRequest(id=["t"], check_declared=True))
        assert (found.is_only_declared, found.location) == (False, declared.location)
        assert namespace.list_tables(api.ListTablesRequest(id=[], include_declared=False)).tables == ["t"]

    def test_a_missing_table_is_table_not_found(self, namespace: LanceNamespace) -> None:
        ask: list[Callable[[], object]] = [
            lambda: namespace.describe_table(api.DescribeTableRequest(id=["no"])),
            lambda: namespace.table_exists(api.TableExistsRequest(id=["no"])),
            lambda: namespace.drop_table(api.DropTableRequest(id=["no"])),
            lambda: namespace.deregister_table(api.DeregisterTableRequest(id=["no"])),
            lambda: namespace.count_table_rows(api.CountTableRowsRequest(id=["no"])),
            lambda: namespace.insert_into_table(api.InsertIntoTableRequest(id=["no"]), ipc(ROWS)),
            lambda: namespace.list_table_tags(api.ListTableTagsRequest(id=["no"])),
            lambda: namespace.delete_from_table(api.DeleteFromTableRequest(id=["no"], predicate="true")),
        ]
        assert [code_of(action) for action in ask] == [4] * len(ask)

    def test_a_missing_version_is_version_not_found(self, namespace: LanceNamespace) -> None:
        namespace.create_table(api.CreateTableRequest(id=["t"]), ipc(ROWS))
        assert code_of(lambda: namespace.describe_table(api.DescribeTableRequest(id=["t"], version=99))) == 11

    def test_a_deregistered_table_is_gone_but_its_data_is_not(self, namespace: LanceNamespace) -> None:
        namespace.create_table(api.CreateTableRequest(id=["t"]), ipc(ROWS))
        namespace.deregister_table(api.DeregisterTableRequest(id=["t"]))
        assert namespace.list_tables(api.ListTablesRequest(id=[])).tables == []
        assert code_of(lambda: namespace.describe_table(api.DescribeTableRequest(id=["t"]))) == 4
        assert code_of(lambda: namespace.deregister_table(api.DeregisterTableRequest(id=["t"]))) == 4

    def test_a_deregistered_table_is_registered_again(self, namespace: LanceNamespace) -> None:
        namespace.create_table(api.CreateTableRequest(id=["t"]), ipc(ROWS))
        location = str(namespace.deregister_table(api.DeregisterTableRequest(id=["t"])).location)
        namespace.register_table(api.RegisterTableRequest(id=["t"], location=location.rstrip("/").rsplit("/", 1)[-1]))
        assert self.count(namespace, ["t"]) == 3
        assert namespace.list_tables(api.ListTablesRequest(id=[])).tables == ["t"]

    @pytest.mark.parametrize(
        "location",
        [
            "",
            "/",
            "..",
            "../x",
            "a/../../x",
            "/tmp-elsewhere",
            "s3://x/y",
            ".",
            "__manifest",
            "__manifest/data",
            f"{OWN_FOLDER}/x",
            "a\\b",
            "a//b",
        ],
    )
    def test_a_location_outside_the_root_or_inside_the_catalog_is_refused(
        self, namespace: LanceNamespace, location: str
    ) -> None:
        assert code_of(lambda: namespace.register_table(api.RegisterTableRequest(id=["t"], location=location))) == 13
        if location:
            assert code_of(lambda: namespace.declare_table(api.DeclareTableRequest(id=["t"], location=location))) == 13
        assert namespace.list_tables(api.ListTablesRequest(id=[])).tables == []

    def test_the_location_of_another_table_is_refused(self, nested: LanceNamespace) -> None:
        nested.create_table(api.CreateTableRequest(id=["t"]), ipc(ROWS))
        location = str(nested.describe_table(api.DescribeTableRequest(id=["t"])).location).rsplit("/", 1)[-1]
        for place in (location, f"{location}/data", f"{location}/_versions"):
            assert code_of(partial(nested.declare_table, api.DeclareTableRequest(id=["u"], location=place))) == 13
            assert code_of(partial(nested.register_table, api.RegisterTableRequest(id=["u"], location=place))) == 13
        assert self.count(nested, ["t"]) == 3

    def test_rename_moves_a_table_across_namespaces(self, namespace: LanceNamespace, features: Capabilities) -> None:
        namespace.create_table(api.CreateTableRequest(id=["t"]), ipc(ROWS))
        rename = api.RenameTableRequest(id=["t"], new_table_name="u")
        if not features.rename:
            assert code_of(lambda: namespace.rename_table(rename)) == 0
            return
        namespace.rename_table(rename)
        assert namespace.list_tables(api.ListTablesRequest(id=[])).tables == ["u"]
        assert self.count(namespace, ["u"]) == 3
        assert code_of(lambda: namespace.rename_table(rename)) == 4
        if not features.namespaces:
            return
        namespace.create_namespace(api.CreateNamespaceRequest(id=["n"]))
        namespace.rename_table(api.RenameTableRequest(id=["u"], new_table_name="v", new_namespace_id=["n"]))
        assert self.count(namespace, ["n", "v"]) == 3
        namespace.create_table(api.CreateTableRequest(id=["t"]), ipc(ROWS.slice(0, 1)))
        assert self.count(namespace, ["t"]) == 1
        taken = api.RenameTableRequest(id=["t"], new_table_name="v", new_namespace_id=["n"])
        assert code_of(lambda: namespace.rename_table(taken)) == 5
        nowhere = api.RenameTableRequest(id=["t"], new_table_name="v", new_namespace_id=["no"])
        assert code_of(lambda: namespace.rename_table(nowhere)) == 1
        namespace.rename_table(api.RenameTableRequest(id=["n", "v"], new_table_name="w", new_namespace_id=[]))
        assert self.count(namespace, ["w"]) == 3
        assert self.count(namespace, ["t"]) == 1

    def test_dropping_one_table_never_harms_another(self, namespace: LanceNamespace) -> None:
        for name in ("a", "a.b", "a.lance", "ab"):
            namespace.create_table(api.CreateTableRequest(id=[name]), ipc(ROWS))
        namespace.drop_table(api.DropTableRequest(id=["a"]))
        assert namespace.list_tables(api.ListTablesRequest(id=[])).tables == ["a.b", "a.lance", "ab"]
        assert [self.count(namespace, [name]) for name in ("a.b", "a.lance", "ab")] == [3, 3, 3]

    def test_properties_of_a_new_table_are_kept_by_the_catalog_or_by_the_table_alone(
        self, namespace: LanceNamespace, features: Capabilities
    ) -> None:
        request = api.CreateTableRequest(id=["t"], properties={"owner": "ml"})
        kept = {"owner": "ml"} if features.properties else None
        assert namespace.create_table(request, ipc(ROWS)).properties == kept
        found = namespace.describe_table(api.DescribeTableRequest(id=["t"], load_detailed_metadata=True))
        assert (found.properties, found.metadata) == ({"owner": "ml"}, {"owner": "ml"})
        if not features.properties:
            declared = api.DeclareTableRequest(id=["u"], properties={"owner": "ml"})
            assert code_of(lambda: namespace.declare_table(declared)) == 0

    # Names

    @pytest.mark.parametrize("name", ODD_NAMES)
    def test_an_odd_name_is_found_again_exactly_as_written(
        self, namespace: LanceNamespace, features: Capabilities, name: str
    ) -> None:
        namespace.create_table(api.CreateTableRequest(id=[name]), ipc(ROWS))
        assert namespace.list_tables(api.ListTablesRequest(id=[])).tables == [name]
        assert self.count(namespace, [name]) == 3
        if features.namespaces:
            namespace.create_namespace(api.CreateNamespaceRequest(id=["n"]))
            namespace.create_namespace(api.CreateNamespaceRequest(id=["n", name]))
            namespace.create_table(api.CreateTableRequest(id=["n", name, name]), ipc(ROWS))
            assert namespace.list_namespaces(api.ListNamespacesRequest(id=["n"])).namespaces == [name]
            assert namespace.list_tables(api.ListTablesRequest(id=["n", name])).tables == [name]
            assert self.count(namespace, ["n", name, name]) == 3
        namespace.drop_table(api.DropTableRequest(id=[name]))
        assert namespace.list_tables(api.ListTablesRequest(id=[])).tables == []

    @pytest.mark.parametrize("name", BAD_NAMES)
    def test_a_bad_name_is_invalid_input_and_touches_nothing(self, namespace: LanceNamespace, name: str) -> None:
        ask: list[Callable[[], object]] = [
            lambda: namespace.create_table(api.CreateTableRequest(id=[name]), ipc(ROWS)),
            lambda: namespace.declare_table(api.DeclareTableRequest(id=[name])),
            lambda: namespace.describe_table(api.DescribeTableRequest(id=[name])),
            lambda: namespace.drop_table(api.DropTableRequest(id=[name])),
            lambda: namespace.create_namespace(api.CreateNamespaceRequest(id=[name])),
        ]
        for action in ask:
            assert code_of(action) in self.bad_name_codes(name)
        assert namespace.list_all_tables(api.ListTablesRequest()).tables == []

    def bad_name_codes(self, name: str) -> tuple[int, ...]:
        """Return the codes that a bad name may get: InvalidInput. A client that joins names into a URL may send another
        id."""
        return (13,)

    # Paging

    def test_pages_follow_each_other_while_the_listing_changes(self, namespace: LanceNamespace) -> None:
        names = [f"t{number:02}" for number in range(10)]
        for name in names:
            namespace.declare_table(api.DeclareTableRequest(id=[name]))
        first = namespace.list_tables(api.ListTablesRequest(id=[], limit=4))
        assert (first.tables, bool(first.page_token)) == (names[:4], True)
        namespace.drop_table(api.DropTableRequest(id=["t03"]))
        namespace.drop_table(api.DropTableRequest(id=["t05"]))
        namespace.declare_table(api.DeclareTableRequest(id=["t00a"]))
        second = namespace.list_tables(api.ListTablesRequest(id=[], limit=4, page_token=first.page_token))
        assert second.tables == ["t04", "t06", "t07", "t08"]
        third = namespace.list_tables(api.ListTablesRequest(id=[], limit=4, page_token=second.page_token))
        assert (third.tables, third.page_token or None) == (["t09"], None)

    def test_a_bad_limit_or_token_is_invalid_input(self, namespace: LanceNamespace) -> None:
        for limit in (0, -1):
            assert code_of(partial(namespace.list_tables, api.ListTablesRequest(id=[], limit=limit))) == 13
        token = "not a token \u00e9"
        assert code_of(lambda: namespace.list_tables(api.ListTablesRequest(id=[], page_token=token))) == 13

    def test_all_tables_are_listed_by_their_full_identifier(self, nested: LanceNamespace) -> None:
        nested.create_namespace(api.CreateNamespaceRequest(id=["a"]))
        nested.create_namespace(api.CreateNamespaceRequest(id=["a", "b"]))
        for id in (["z"], ["a", "t"], ["a", "b", "t"]):
            nested.declare_table(api.DeclareTableRequest(id=id))
        assert nested.list_all_tables(api.ListTablesRequest()).tables == ["a$b$t", "a$t", "z"]
        page = nested.list_all_tables(api.ListTablesRequest(limit=2))
        assert page.tables == ["a$b$t", "a$t"]
        assert nested.list_all_tables(api.ListTablesRequest(limit=2, page_token=page.page_token)).tables == ["z"]

    # Rows

    def test_rows_are_inserted_updated_merged_and_deleted(self, namespace: LanceNamespace) -> None:
        namespace.create_table(api.CreateTableRequest(id=["t"]), ipc(ROWS))
        namespace.insert_into_table(api.InsertIntoTableRequest(id=["t"], mode="append"), ipc(ROWS.slice(0, 1)))
        assert self.count(namespace, ["t"]) == 4
        namespace.delete_from_table(api.DeleteFromTableRequest(id=["t"], predicate="id = 1"))
        assert self.count(namespace, ["t"]) == 2
        namespace.update_table(api.UpdateTableRequest(id=["t"], predicate="id = 2", updates=[["name", "'x'"]]))
        assert self.count(namespace, ["t"], "name = 'x'") == 1
        merge = api.MergeInsertIntoTableRequest(
            id=["t"], on=["id"], when_matched_update_all=True, when_not_matched_insert_all=True
        )
        namespace.merge_insert_into_table(merge, ipc(pa.table({"id": [2, 9], "name": ["y", "z"]})))
        assert self.count(namespace, ["t"]) == 3
        assert self.count(namespace, ["t"], "name = 'y'") == 1

    @staticmethod
    def count(namespace: LanceNamespace, id: list[str], predicate: str | None = None) -> int:
        answer: Any = namespace.count_table_rows(api.CountTableRowsRequest(id=id, predicate=predicate))
        return int(getattr(answer, "count", answer))
