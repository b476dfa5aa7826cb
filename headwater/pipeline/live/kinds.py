"""The kinds of live sources by the name that [[source]] gives them, and how each is parsed. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from headwater.pipeline.live.debezium_spec import parse_debezium
from headwater.pipeline.live.dlt_spec import parse_dlt
from headwater.pipeline.live.kafka_spec import parse_kafka
from headwater.pipeline.live.live_source import LiveSpec

Parse = Callable[[str, Any, str], LiveSpec]
"""Parses what [[source]] says under the kind's name. Arguments: the section for errors, the value, and `into`."""
KINDS: Mapping[str, Parse] = {"debezium": parse_debezium, "dlt": parse_dlt, "kafka": parse_kafka}
"""One row for each kind: a new kind is a row here, a `LiveSpec` and a `LiveReader`."""
