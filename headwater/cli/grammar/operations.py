"""The operations of the protocol as verbs: each with the arguments it takes, and how they fill its request."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headwater.cli.grammar.words import number, pair
from headwater.errors import InvalidInputError
from headwater.rest.routes import BY_OPERATION

Fields = dict[str, Any]


@dataclass(frozen=True)
class FieldArg:
    """One argument of a verb; a name with dashes is an option. `field` is the request field it fills."""

    name: str
    about: str
    field: str | None = None
    convert: Callable[[str], Any] | None = None
    repeat: bool = False
    flag: bool = False
    required: bool = False
    default: Any = None

    @property
    def key(self) -> str:
        return self.name.lstrip("-").replace("-", "_")


@dataclass(frozen=True)
class Verb:
    """One verb of the command line that is one operation of the catalog."""

    name: str
    operation: str
    about: str
    args: tuple[FieldArg, ...] = ()
    fixed: tuple[tuple[str, Any], ...] = ()
    data: bool = False
    without_id: bool = False

    def fields(self, given: argparse.Namespace) -> Fields:
        """The fields of the request, from the command line."""
        fields: Fields = dict(self.fixed)
        if not self.without_id:
            fields["id"] = list(given.name_of(given.id or ""))
        for arg in self.args:
            value = getattr(given, arg.key)
            if value is not None and value is not False and arg.field is not None:
                fields[arg.field] = _pairs(value) if arg.convert is pair else value
        return fields

    @property
    def creates(self) -> bool:
        """Whether it makes a new name, and with it the catalog and the namespaces above where they are missing."""
        return self.operation in ("CreateNamespace", "CreateTable", "DeclareTable")

    @property
    def method(self) -> str:
        return BY_OPERATION[self.operation].method


def _pairs(values: list[tuple[str, str]]) -> dict[str, str]:
    return dict(values)


def ranges(text: str) -> list[dict[str, int]]:
    """`3`, `1-5` (the last one included), `7-` (and all that follow, the newest too), or several: `1-3,5,9-`."""
    return [_range(part.strip()) for part in text.split(",")]


def _range(text: str) -> dict[str, int]:
    first, dash, last = text.partition("-")
    start = number(first)
    end = -1 if dash and not last else (number(last) if dash else start) + 1
    return {"start_version": start, "end_version": end}


def updates(values: list[tuple[str, str]] | dict[str, str]) -> list[list[str]]:
    return [[column, expression] for column, expression in dict(values).items()]


def columns(values: dict[str, str]) -> list[dict[str, str]]:
    return [{"name": name, "expression": expression} for name, expression in values.items()]


_LIMIT = FieldArg("--limit", "at most so many", "limit", number)
_TOKEN = FieldArg("--page-token", "continue after the page that gave this token", "page_token")
_PAGE = (_LIMIT, _TOKEN)
_PROPERTY = FieldArg("--set", "a property, key=value (repeatable)", "properties", pair, repeat=True)
_BRANCH = FieldArg("--branch", "on this branch", "branch")
_VERSION = FieldArg("--version", "at this version", "version", number)
_WHERE = FieldArg("--where", "only rows where this SQL holds", "predicate")
_MODE = FieldArg("--mode", "what to do when it exists: create, exist_ok or overwrite", "mode")
_INDEX = FieldArg("index", "the name of the index", "index_name")
_TAG = FieldArg("tag", "the name of the tag", "tag")
_TAGGED = FieldArg("version", "the version it names", "version", number)
_NO_VECTOR: tuple[tuple[str, Any], ...] = (("vector", {}),)

VERBS: tuple[Verb, ...] = (
    Verb("namespaces", "ListNamespaces", "list the namespaces in a namespace", _PAGE),
    Verb(
        "tables",
        "ListTables",
        "list the tables in a namespace",
        (*_PAGE, FieldArg("--include-declared", "true (default) or false", "include_declared", lambda t: t == "true")),
    ),
    Verb("all-tables", "ListAllTables", "list every table of the catalog", _PAGE, without_id=True),
    Verb("create-namespace", "CreateNamespace", "create a namespace", (_MODE, _PROPERTY)),
    Verb("describe-namespace", "DescribeNamespace", "show a namespace and its properties"),
    Verb("namespace-exists", "NamespaceExists", "exit 0 if there is such a namespace, 3 if not"),
    Verb(
        "drop-namespace",
        "DropNamespace",
        "drop a namespace",
        (
            FieldArg("--behavior", "restrict (default), or cascade: drop what is in it too", "behavior"),
            FieldArg("--mode", "fail (default) or skip, when there is none", "mode"),
        ),
    ),
    Verb(
        "describe",
        "DescribeTable",
        "show a table",
        (_VERSION, _BRANCH, FieldArg("--tag", "at this tag", "tag")),
        (("load_detailed_metadata", True), ("with_table_uri", True)),
    ),
    Verb("exists", "TableExists", "exit 0 if there is such a table, 3 if not", (_VERSION,)),
    Verb(
        "declare",
        "DeclareTable",
        "reserve a name for a table",
        (FieldArg("--location", "where", "location"), _PROPERTY),
    ),
    Verb(
        "register",
        "RegisterTable",
        "give a name to a Lance table that is there already",
        (FieldArg("location", "where it is, relative to the catalog", "location"), _MODE, _PROPERTY),
    ),
    Verb("deregister", "DeregisterTable", "forget a table and keep its data"),
    Verb("drop", "DropTable", "drop a table and its data"),
    Verb(
        "rename",
        "RenameTable",
        "rename a table, or move it: both ids are whole ones",
        (FieldArg("new_id", "its new id, such as prod.people"),),
    ),
    Verb("restore", "RestoreTable", "make an old version the current one", (_TAGGED, _BRANCH)),
    Verb("create", "CreateTable", "create a table from a file", (_MODE, _PROPERTY), data=True),
    Verb(
        "insert",
        "InsertIntoTable",
        "add the rows of a file",
        (FieldArg("--mode", "append (default) or overwrite", "mode"), _BRANCH),
        data=True,
    ),
    Verb(
        "merge",
        "MergeInsertIntoTable",
        "merge the rows of a file: update those that match, insert the others",
        (FieldArg("--on", "a column to match by (repeatable)", "on", repeat=True, required=True), _BRANCH),
        (("when_matched_update_all", True), ("when_not_matched_insert_all", True)),
        data=True,
    ),
    Verb(
        "update",
        "UpdateTable",
        "change rows",
        (FieldArg("--set", "column=SQL expression (repeatable)", "updates", pair, repeat=True, required=True), _WHERE),
    ),
    Verb(
        "delete",
        "DeleteFromTable",
        "delete rows",
        (FieldArg("--where", "the rows to delete, as SQL", "predicate", required=True), _BRANCH),
    ),
    Verb("count", "CountTableRows", "count rows", (_WHERE, _VERSION, _BRANCH)),
    Verb("stats", "GetTableStats", "sizes and numbers of a table", (_BRANCH,)),
    Verb(
        "explain",
        "ExplainTableQueryPlan",
        "how a query would be run",
        (
            FieldArg("--where", "the filter of the query, as SQL", "filter"),
            FieldArg("--verbose", "in detail", "verbose", flag=True),
        ),
    ),
    Verb(
        "analyze",
        "AnalyzeTableQueryPlan",
        "run a query and show how it went",
        (FieldArg("--where", "the filter of the query, as SQL", "filter"),),
        (("k", 10), *_NO_VECTOR),
    ),
    Verb(
        "versions",
        "ListTableVersions",
        "list the versions of a table",
        (*_PAGE, _BRANCH, FieldArg("--descending", "newest first", "descending", flag=True)),
    ),
    Verb("describe-version", "DescribeTableVersion", "show a version", (_VERSION, _BRANCH)),
    Verb(
        "delete-versions",
        "BatchDeleteTableVersions",
        "delete the records of old versions",
        (FieldArg("versions", "such as 3, 1-5, 1-3,5 or 7- (the newest too)", "ranges", ranges), _BRANCH),
    ),
    Verb("tags", "ListTableTags", "list the tags of a table", _PAGE),
    Verb("tag-version", "GetTableTagVersion", "the version a tag names", (_TAG,)),
    Verb("create-tag", "CreateTableTag", "name a version", (_TAG, _TAGGED, _BRANCH)),
    Verb("update-tag", "UpdateTableTag", "move a tag to another version", (_TAG, _TAGGED, _BRANCH)),
    Verb("delete-tag", "DeleteTableTag", "delete a tag", (_TAG,)),
    Verb("branches", "ListTableBranches", "list the branches of a table", _PAGE),
    Verb(
        "create-branch",
        "CreateTableBranch",
        "create a branch",
        (
            FieldArg("name", "its name", "name"),
            FieldArg("--from-branch", "from this branch", "from_branch"),
            FieldArg("--from-version", "from this version", "from_version", number),
        ),
    ),
    Verb("delete-branch", "DeleteTableBranch", "delete a branch", (FieldArg("name", "its name", "name"),)),
    Verb("indices", "ListTableIndices", "list the indices of a table", _PAGE),
    Verb(
        "create-index",
        "CreateTableIndex",
        "create an index on a column",
        (
            FieldArg("column", "the column", "column"),
            FieldArg("--type", "IVF_PQ, BTREE, BITMAP, FTS, ...", "index_type", required=True),
            FieldArg("--name", "its name", "name"),
            FieldArg("--distance", "l2, cosine or dot", "distance_type"),
        ),
    ),
    Verb("index-stats", "DescribeTableIndexStats", "show an index", (_INDEX,)),
    Verb("drop-index", "DropTableIndex", "drop an index", (_INDEX, _BRANCH)),
    Verb(
        "add-columns",
        "AlterTableAddColumns",
        "add columns",
        (
            FieldArg("--column", "name=SQL expression (repeatable)", "new_columns", pair, repeat=True, required=True),
            _BRANCH,
        ),
    ),
    Verb(
        "drop-columns",
        "AlterTableDropColumns",
        "drop columns",
        (FieldArg("--column", "a column (repeatable)", "columns", repeat=True, required=True), _BRANCH),
    ),
    Verb(
        "rename-column",
        "AlterTableAlterColumns",
        "rename a column",
        (FieldArg("column", "its name"), FieldArg("name", "its new name"), _BRANCH),
    ),
    Verb(
        "set-metadata",
        "UpdateTableSchemaMetadata",
        "set the metadata of a table's schema",
        (FieldArg("--set", "key=value (repeatable)", "metadata", pair, repeat=True, required=True), _BRANCH),
    ),
    Verb("transaction", "DescribeTransaction", "show a transaction: the id is the table's, followed by its own"),
)


def request_fields(verb: Verb, given: argparse.Namespace) -> Fields:
    """The request of a verb, with the few fields that the line cannot hold in their own shape."""
    fields = verb.fields(given)
    if verb.operation == "UpdateTable":
        fields["updates"] = updates(fields["updates"])
    elif verb.operation == "AlterTableAddColumns":
        fields["new_columns"] = columns(fields["new_columns"])
    elif verb.operation == "AlterTableAlterColumns":
        fields["alterations"] = [{"path": given.column, "rename": given.name}]
    elif verb.operation == "RenameTable":
        *above, name = given.name_of(given.new_id)
        fields |= {"new_table_name": name, "new_namespace_id": above}
    elif verb.operation == "ExplainTableQueryPlan":
        fields["query"] = {"k": 10, "vector": {}, "filter": fields.pop("filter", None)}
    elif not verb.without_id and not fields["id"] and not BY_OPERATION[verb.operation].path.startswith("/v1/namespace"):
        raise InvalidInputError(f"`headwater {verb.name}` needs the id of a table.")
    return fields
