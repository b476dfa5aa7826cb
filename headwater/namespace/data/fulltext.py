"""Full-text queries: from the request's model to pylance's (lance-rest-openapi.yaml, FtsQuery)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pyarrow as pa

from headwater.errors import InvalidInputError
from headwater.imports import lance
from headwater.tables.columns.fields import require_field

if TYPE_CHECKING:
    from lance.query import FullTextOperator, FullTextQuery
    from lance_namespace_urllib3_client.models.boolean_query import BooleanQuery as BooleanModel
    from lance_namespace_urllib3_client.models.boost_query import BoostQuery as BoostModel
    from lance_namespace_urllib3_client.models.fts_query import FtsQuery
    from lance_namespace_urllib3_client.models.match_query import MatchQuery as MatchModel
    from lance_namespace_urllib3_client.models.phrase_query import PhraseQuery as PhraseModel
    from lance_namespace_urllib3_client.models.query_table_request_full_text_query import QueryTableRequestFullTextQuery

MAX_QUERY_DEPTH = 16
MAX_CLAUSES = 1024
MAX_TERMS_CHARS = 100_000
MAX_U32 = 2**32 - 1

FULL_TEXT_TYPES = frozenset(("inverted", "fts"))


def full_text_query(dataset: lance.LanceDataset, asked: QueryTableRequestFullTextQuery) -> FullTextQuery:
    """Return the query to run: exactly one of the string and the structured form."""
    if (asked.string_query is None) == (asked.structured_query is None):
        raise InvalidInputError("full_text_query holds one of string_query and structured_query.")
    if asked.structured_query is not None:
        return _Builder(dataset).build(asked.structured_query.query, 0)
    assert asked.string_query is not None
    columns = asked.string_query.columns or indexed_columns(dataset)
    return _any_column(dataset.schema, _terms(asked.string_query.query), columns)


def indexed_columns(dataset: lance.LanceDataset) -> list[str]:
    """Return the columns with a full-text index, which are searched when none is named."""
    found = [
        name
        for index in dataset.describe_indices()
        if index.index_type.lower() in FULL_TEXT_TYPES
        for name in index.field_names
    ]
    if not found:
        raise InvalidInputError(
            "The table has no full-text index to search: create one with index_type FTS, or name the columns."
        )
    return list(dict.fromkeys(found))


def _any_column(schema: pa.Schema, terms: str, columns: list[str]) -> FullTextQuery:
    names = [require_field(schema, column)[0] for column in columns]
    if len(names) == 1:
        return lance.query.MatchQuery(terms, names[0])
    return lance.query.MultiMatchQuery(terms, names)


class _Builder:
    """Builds one structured query, counting its clauses."""

    def __init__(self, dataset: lance.LanceDataset) -> None:
        self._dataset = dataset
        self._clauses = 0

    def build(self, query: FtsQuery, depth: int) -> FullTextQuery:
        self._clauses += 1
        if depth > MAX_QUERY_DEPTH or self._clauses > MAX_CLAUSES:
            raise InvalidInputError(
                f"The full-text query is too large: at most {MAX_QUERY_DEPTH} levels and {MAX_CLAUSES} clauses."
            )
        given = [name for name in ("match", "phrase", "boost", "multi_match", "boolean") if getattr(query, name)]
        if len(given) != 1:
            raise InvalidInputError("Each full-text query holds one of match, phrase, boost, multi_match and boolean.")
        if query.match is not None:
            return self._match(query.match)
        if query.phrase is not None:
            return self._phrase(query.phrase)
        if query.boost is not None:
            return self._boost(query.boost, depth)
        if query.boolean is not None:
            return self._boolean(query.boolean, depth)
        assert query.multi_match is not None
        return self._multi_match(query.multi_match.match_queries)

    def _match(self, query: MatchModel) -> FullTextQuery:
        if query.column is None:
            return self._columns(query)
        return lance.query.MatchQuery(
            _terms(query.terms),
            require_field(self._dataset.schema, query.column)[0],
            boost=_number("boost", query.boost, 1.0),
            fuzziness=_count("fuzziness", query.fuzziness, 0),
            max_expansions=_count("max_expansions", query.max_expansions, 50),
            operator=_operator(query.operator),
            prefix_length=_count("prefix_length", query.prefix_length, 0),
        )

    def _columns(self, query: MatchModel) -> FullTextQuery:
        """A match without a column asks every indexed one."""
        each = [self._match(query.model_copy(update={"column": name})) for name in indexed_columns(self._dataset)]
        return (
            each[0] if len(each) == 1 else lance.query.BooleanQuery([(lance.query.Occur.SHOULD, one) for one in each])
        )

    def _multi_match(self, queries: list[MatchModel]) -> FullTextQuery:
        self._clauses += len(queries)
        if not queries or self._clauses > MAX_CLAUSES:
            raise InvalidInputError(f"multi_match holds between 1 and {MAX_CLAUSES} match queries.")
        return lance.query.BooleanQuery([(lance.query.Occur.SHOULD, self._match(query)) for query in queries])

    def _phrase(self, query: PhraseModel) -> FullTextQuery:
        columns = [query.column] if query.column else indexed_columns(self._dataset)
        slop = _count("slop", query.slop, 0)
        each = [
            lance.query.PhraseQuery(_terms(query.terms), require_field(self._dataset.schema, column)[0], slop=slop)
            for column in columns
        ]
        return (
            each[0] if len(each) == 1 else lance.query.BooleanQuery([(lance.query.Occur.SHOULD, one) for one in each])
        )

    def _boost(self, query: BoostModel, depth: int) -> FullTextQuery:
        return lance.query.BoostQuery(
            self.build(query.positive, depth + 1),
            self.build(query.negative, depth + 1),
            negative_boost=_number("negative_boost", query.negative_boost, 0.5),
        )

    def _boolean(self, query: BooleanModel, depth: int) -> FullTextQuery:
        sides = (
            (lance.query.Occur.MUST, query.must),
            (lance.query.Occur.SHOULD, query.should),
            (lance.query.Occur.MUST_NOT, query.must_not),
        )
        clauses = [(occur, self.build(one, depth + 1)) for occur, side in sides for one in side or []]
        if not any(occur is not lance.query.Occur.MUST_NOT for occur, _ in clauses):
            raise InvalidInputError("A boolean query needs a clause under must or should.")
        return lance.query.BooleanQuery(clauses)


def _terms(text: str) -> str:
    if not text.strip() or len(text) > MAX_TERMS_CHARS:
        raise InvalidInputError(f"The words to search for are a text of 1 to {MAX_TERMS_CHARS} characters.")
    return text


def _operator(text: str | None) -> FullTextOperator:
    try:
        return lance.query.FullTextOperator((text or "or").upper())
    except ValueError:
        raise InvalidInputError(f"operator must be And or Or, not {str(text)[:40]!r}.") from None


def _count(field: str, value: int | None, default: int) -> int:
    if value is None:
        return default
    if not 0 <= value <= MAX_U32:
        raise InvalidInputError(f"{field} must be between 0 and {MAX_U32}.")
    return value


def _number(field: str, value: float | int | None, default: float) -> float:
    if value is None:
        return default
    if not math.isfinite(value):
        raise InvalidInputError(f"{field} must be a finite number.")
    return float(value)
