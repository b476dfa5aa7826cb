"""Columns written again in a type that Lance itself does not cast to: numbers as text, whole numbers as fractions.

Each fragment gets a data file with the new values, and one commit puts the new fields in the place of the old ones.
Every value must fit its new type, by the rule for rows that come in (fitting).
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from headwater.errors import InvalidInputError, TableSchemaValidationError
from headwater.imports import lance
from headwater.protobuf import parse, text
from headwater.tables.fill import schema_from_json, schema_to_json
from headwater.types import convert

PASSING = "__headwater_cast_"
NAME, PARENT, NONE = 2, 4, (1 << 64) - 1
"""Of Lance's protobuf message of a field: the numbers of its name and of its parent's id, and the id of no parent."""
ALIKE = (pa.types.is_integer, pa.types.is_floating, pa.types.is_nested, pa.types.is_dictionary)


def is_cast_by_lance(old: Any, new: Any) -> bool:
    """Return True for types that Lance casts between by itself, or not at all."""
    if isinstance(old, pa.BaseExtensionType) or isinstance(new, pa.BaseExtensionType):
        return True
    texts = (pa.string(), pa.large_string())
    return old == new or any(test(old) and test(new) for test in ALIKE) or (old in texts and new in texts)


def recast(dataset: lance.LanceDataset, types: Mapping[str, Any]) -> None:
    """Change the types of top-level columns in one commit. Error 20 for a value that does not fit, or an index."""
    for index in dataset.describe_indices():
        for name in set(index.field_names) & set(types):
            raise TableSchemaValidationError(
                f"The column {name!r} has the index {index.name!r}, which is of its old type: drop the index first."
            )
    names = {name: f"{PASSING}{place}" for place, name in enumerate(types)}
    fields = {name: dataset.schema.field(name).with_type(kind) for name, kind in types.items()}
    made = pa.schema([fields[name].with_name(passing) for name, passing in names.items()])

    wrong: list[TableSchemaValidationError] = []  # Lance tells what a function raised as an error of its own

    def cast(batch: pa.RecordBatch) -> pa.RecordBatch:
        try:
            return pa.RecordBatch.from_arrays([_cast(batch, fields[name]) for name in types], schema=made)
        except TableSchemaValidationError as error:
            wrong.append(error)
            raise

    fragments, schema = [], None
    for fragment in dataset.get_fragments():
        try:
            metadata, schema = fragment.merge_columns(lance.udf.BatchUDF(cast, output_schema=made), columns=list(types))
        except Exception:
            if wrong:
                raise wrong[0] from None
            raise
        fragments.append(metadata)
    if schema is None:
        new = [fields.get(field.name, field) for field in dataset.schema]
        schema = lance.schema.LanceSchema.from_pyarrow(pa.schema(new, metadata=dataset.schema.metadata))
    else:
        schema = _in_place(schema, names)
    lance.LanceDataset.commit(
        dataset,
        lance.LanceOperation.Merge(fragments, schema),
        read_version=dataset.version,
        namespace_client=dataset._namespace_client,
        table_id=dataset._table_id,
        namespace_client_managed_versioning=dataset._namespace_client_managed_versioning,
    )
    dataset.checkout_latest()


def _cast(batch: pa.RecordBatch, field: Any) -> Any:
    try:
        return convert(batch.column(field.name), field.type, exact=True)
    except InvalidInputError as error:
        raise TableSchemaValidationError(f"The column {field.name!r} cannot become {field.type}: {error}") from None


def _in_place(schema: Any, names: Mapping[str, str]) -> Any:
    """Return the schema with each new field under the name, and in the place, of the old one."""
    told = schema_to_json(schema)
    messages = [base64.b64decode(field) for field in told["fields"]]
    tops = {str(_value(each, NAME)): each for each in messages if _value(each, PARENT) == NONE}
    new = {tops[name]: _renamed(tops[passing], name) for name, passing in names.items()}
    gone = {tops[passing] for passing in names.values()}
    fields = [new.get(each, each) for each in messages if each not in gone]
    return schema_from_json({**told, "fields": [base64.b64encode(each).decode() for each in fields]})


def _value(message: bytes, wanted: int) -> int | str | None:
    found = next((value for number, value, _ in parse(message) if number == wanted), None)
    return found.decode() if isinstance(found, bytes) else found


def _renamed(message: bytes, name: str) -> bytes:
    return b"".join(text(NAME, name) if number == NAME else whole for number, _, whole in parse(message))
