"""`[[source]] kafka = {...}`: topics whose messages are taken, as a value. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headwater.errors import InvalidInputError
from headwater.imports import when_used
from headwater.pipeline.file_values import as_mapping, as_text, as_texts, check_names, naming_section
from headwater.pipeline.live.live_source import TABLE, LiveContext, LiveReader
from headwater.references import FILE, VARIABLE, follow, is_bare_secret
from headwater.streams.sources.formats import FORMATS, SNAPSHOT, check_format
from headwater.streams.sources.kafka import EARLIEST, FIXED, LATEST

reader = when_used("headwater.pipeline.live.kafka_reader")
KEYS = ("servers", "topics", "format", "start", "on_lost", "settings", "spark")
STOP, CONTINUE = "stop", "continue"


@dataclass(frozen=True)
class KafkaSpec:
    """Topics as a live source.

    `start`: where a topic begins that was not read before. `on_lost`: `stop` or `continue` where a topic was cut.
    `settings`: of the client, by the names of librdkafka. `spark`: options of Spark's own source, where its jar is.
    """

    servers: str
    topics: tuple[str, ...]
    format: str = "rows"
    options: Mapping[str, Any] = field(default_factory=dict)
    start: str = EARLIEST
    on_lost: str = STOP
    settings: Mapping[str, str] = field(default_factory=dict)
    spark: Mapping[str, str] = field(default_factory=dict)
    kind = "kafka"

    @property
    def shown(self) -> str:
        return f"{', '.join(self.topics)} at {self.servers}"

    def connected(self) -> dict[str, str]:
        """Return the settings of the client, with the secrets that they refer to."""
        own = {name: follow(value, f"kafka {name}") for name, value in self.settings.items()}
        return {**own, "bootstrap.servers": self.servers}

    def opened(self, context: LiveContext) -> LiveReader:
        found: LiveReader = reader.KafkaReader(self, context)
        return found


def parse_kafka(where: str, value: Any, into: str) -> KafkaSpec:
    """The value of `kafka =`; InvalidInput (13) says what is wrong in it."""
    where = f"{where}: kafka"
    values = as_mapping(value, where)
    format = as_text(values.get("format", "rows"), f"{where} format")
    with naming_section(where):
        check_format(format, {})
    if format == SNAPSHOT:
        raise InvalidInputError(f"{where}: messages are changes, not a snapshot. The format is rows, op or debezium.")
    check_names(values, (*KEYS, *FORMATS[format]), where)
    options = {name: each for name, each in values.items() if name in FORMATS[format]}
    with naming_section(where):
        check_format(format, options)
    topics = values.get("topics")
    names = as_texts([topics] if isinstance(topics, str) else topics, f"{where} topics")
    if not names:
        raise InvalidInputError(f"{where}: topics names no topic.")
    if len(names) > 1 and TABLE not in into:
        raise InvalidInputError(
            f'{where}: {len(names)} topics need {TABLE} in into, such as into = "raw.{TABLE}": a topic is one table.'
        )
    chosen = {
        "start": _one_of(values.get("start", EARLIEST), (EARLIEST, LATEST), f"{where} start"),
        "on_lost": _one_of(values.get("on_lost", STOP), (STOP, CONTINUE), f"{where} on_lost"),
    }
    settings, spark = (_settings(values.get(name, {}), f"{where} {name}") for name in ("settings", "spark"))
    servers = as_text(values.get("servers"), f"{where} servers")
    return KafkaSpec(servers, names, format, options, settings=settings, spark=spark, **chosen)


def _one_of(value: object, words: tuple[str, ...], where: str) -> str:
    if value not in words:
        raise InvalidInputError(f"{where} is {' or '.join(map(repr, words))}, not {value!r}.")
    return str(value)


def _settings(value: Any, where: str) -> dict[str, str]:
    found = {name: as_text(each, f"{where} {name}") for name, each in as_mapping(value, where).items()}
    for name, text in found.items():
        if name.removeprefix("kafka.") in FIXED:
            raise InvalidInputError(f"{where} has {name!r}, which the source itself sets.")
        if is_bare_secret(name, text) or ("jaas" in name and not text.startswith((VARIABLE, FILE))):
            raise InvalidInputError(
                f'{where} {name} is a secret: write where it is, {name} = "env:NAME" or "file:PATH".'
            )
    return found
