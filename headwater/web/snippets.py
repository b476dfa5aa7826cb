"""How to use a table from elsewhere: texts to copy, with the address that the browser used. Pure."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import quote

from headwater.names import DELIMITER, ObjectId

KEY = "hw_..."


@dataclass(frozen=True)
class Snippet:
    """A text for one tool."""

    name: str
    code: str


def snippets(site: str, id: ObjectId, needs_key: bool) -> list[Snippet]:
    python = _python(site, id, needs_key)
    dotted = ".".join(f"`{name.replace('`', '``')}`" for name in ("lake", *id.names))
    return [
        Snippet("Python", f"{python}\nprint(table.head(10))"),
        Snippet("pandas", f"{python}\nframe = table.to_pandas(limit=1000)"),
        Snippet("LanceDB", _lancedb(site, id, needs_key)),
        Snippet("Spark", f"{_spark(site, needs_key)}\nspark.table({_text(dotted)}).show()"),
        Snippet("SQL", f"SELECT * FROM {dotted} LIMIT 10"),
        Snippet("curl", _curl(site, id, needs_key)),
    ]


def _python(site: str, id: ObjectId, needs_key: bool) -> str:
    key = f', **{{"headers.x-api-key": "{KEY}"}}' if needs_key else ""
    return f"from headwater import Catalog\n\ntable = Catalog({_text(site)}{key})[{_list(id.names)}]"


def _lancedb(site: str, id: ObjectId, needs_key: bool) -> str:
    key = f', "headers.x-api-key": "{KEY}"' if needs_key else ""
    opened = f"db.open_table({_text(id.name)}, namespace_path={_list(id.parent.names)})"
    return f'import lancedb\n\ndb = lancedb.connect_namespace("rest", {{"uri": {_text(site)}{key}}})\ntable = {opened}'


def _spark(site: str, needs_key: bool) -> str:
    token = f', token="{KEY}"' if needs_key else ""
    opened = f'spark = configure(SparkSession.builder, "lake", uri={_text(site)}{token}).getOrCreate()'
    return f"from headwater.spark import configure\nfrom pyspark.sql import SparkSession\n\n{opened}"


def _curl(site: str, id: ObjectId, needs_key: bool) -> str:
    key = f" -H 'x-api-key: {KEY}'" if needs_key else ""
    path = f"{site}/v1/table/{quote(DELIMITER.join(id.names), safe='')}/describe"
    return f"curl -s -X POST{key} -H 'content-type: application/json' -d '{{}}' {shlex.quote(path)}"


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)


def _list(names: Iterable[str]) -> str:
    return json.dumps(list(names), ensure_ascii=False)
