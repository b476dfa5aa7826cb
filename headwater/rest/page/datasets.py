"""Facts of a Lance dataset: versions with sizes, fragments and files. Manifests are read, never rows."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

from lance_namespace import DescribeTableRequest, LanceNamespace, ListTableVersionsRequest

from headwater.rest.call import Call
from headwater.rest.page.page_facts import FragmentFact, FragmentFacts, VersionFacts, VersionSize, holds

if TYPE_CHECKING:
    import lance


def _opened(namespace: LanceNamespace, call: Call) -> lance.LanceDataset:
    """The table as it is now."""
    from headwater.tables.handle import TableHandle  # it brings Lance along, which a server may leave to its workers

    told = namespace.describe_table(DescribeTableRequest(id=list(call.id.names), with_table_uri=True))
    client = namespace if told.managed_versioning else None
    uri = str(told.table_uri or told.location)
    return TableHandle(call.id, uri, dict(told.storage_options or {}), client).open()


def versions(namespace: LanceNamespace, call: Call) -> VersionFacts:
    """The newest versions that the catalog knows, oldest first."""
    asked = ListTableVersionsRequest(id=list(call.id.names), limit=call.request.limit, descending=True)
    listed = namespace.list_table_versions(asked).versions or []
    times = {int(one.version): one.timestamp_millis for one in listed}
    found: list[VersionSize] = []
    everything = _opened(namespace, call).versions()
    for one in sorted(everything, key=lambda item: int(item["version"])):
        told: dict[str, str] = one.get("metadata") or {}
        number, rows = int(one["version"]), int(told.get("total_rows") or 0)
        if number in times:
            before = found[-1].rows if found else 0
            size, fragments = int(told.get("total_files_size") or 0), int(told.get("total_fragments") or 0)
            found.append(VersionSize(number, times[number] or _ms(one), rows, size, fragments, rows - before))
    return VersionFacts(found, len(everything))


def _ms(one: dict[str, Any]) -> int | None:
    time = one.get("timestamp")
    return int(time.astimezone(dt.UTC).timestamp() * 1000) if isinstance(time, dt.datetime) else None


def fragments(namespace: LanceNamespace, call: Call) -> FragmentFacts:
    """The fragments of the newest version that are wanted, each with its rows, deletions and files."""
    dataset, asked = _opened(namespace, call), call.request
    known = [fragment.metadata for fragment in dataset.get_fragments()]
    wanted = [one for one in known if holds(asked.word, one.id, *(file.path for file in one.files))]
    shown = [
        FragmentFact(
            one.id,
            one.num_rows,
            one.num_deletions or 0,
            sum(file.file_size_bytes or 0 for file in one.files),
            [(str(file.path), file.file_size_bytes) for file in one.files],
        )
        for one in wanted[: asked.limit]
    ]
    return FragmentFacts(shown, len(known), max((one.rows for one in shown), default=0) or 1, dataset.version)
