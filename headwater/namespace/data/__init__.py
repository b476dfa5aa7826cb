"""The data operations of a namespace over pylance: rows, indices, columns, tags, branches, metadata.

    operations (facade) -> data.<operation>(TableHandle, request) -> headwater/tables -> pylance

One function per operation, named as in `lance_namespace.LanceNamespace`. `insert_reader`, `merge_insert_reader` and
`query_batches` are the same operations on streams of record batches.
"""

from headwater.namespace.data.columns import (
    alter_table_add_columns,
    alter_table_alter_columns,
    alter_table_backfill_columns,
    alter_table_drop_columns,
    create_table_index,
    create_table_scalar_index,
    describe_table_index_stats,
    drop_table_index,
    list_table_indices,
    restore_table,
    update_field_metadata,
    update_table_schema_metadata,
)
from headwater.namespace.data.describe import (
    DataFacts,
    alter_transaction,
    describe_data,
    describe_transaction,
    get_table_stats,
    lance_schema_to_json,
    schema_to_json,
    type_from_json,
)
from headwater.namespace.data.query import (
    analyze_table_query_plan,
    count_table_rows,
    explain_table_query_plan,
    query_batches,
    query_table,
)
from headwater.namespace.data.refs import (
    create_table_branch,
    create_table_tag,
    delete_table_branch,
    delete_table_tag,
    get_table_tag_version,
    list_table_branches,
    list_table_tags,
    update_table_tag,
)
from headwater.namespace.data.write import (
    delete_from_table,
    insert_into_table,
    insert_mode,
    insert_reader,
    merge_insert_into_table,
    merge_insert_reader,
    update_table,
)
from headwater.tables.translate import translating
from headwater.tables.write import arrow

__all__ = [
    "DataFacts",
    "alter_table_add_columns",
    "alter_table_alter_columns",
    "alter_table_backfill_columns",
    "alter_table_drop_columns",
    "alter_transaction",
    "analyze_table_query_plan",
    "arrow",
    "count_table_rows",
    "create_table_branch",
    "create_table_index",
    "create_table_scalar_index",
    "create_table_tag",
    "delete_from_table",
    "delete_table_branch",
    "delete_table_tag",
    "describe_data",
    "describe_table_index_stats",
    "describe_transaction",
    "drop_table_index",
    "explain_table_query_plan",
    "get_table_stats",
    "get_table_tag_version",
    "insert_into_table",
    "insert_mode",
    "insert_reader",
    "lance_schema_to_json",
    "list_table_branches",
    "list_table_indices",
    "list_table_tags",
    "merge_insert_into_table",
    "merge_insert_reader",
    "query_batches",
    "query_table",
    "restore_table",
    "schema_to_json",
    "translating",
    "type_from_json",
    "update_field_metadata",
    "update_table",
    "update_table_schema_metadata",
    "update_table_tag",
]
