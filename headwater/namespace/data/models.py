"""The parts of requests and answers that `lance_namespace` itself does not export."""

from lance_namespace_urllib3_client.models.add_columns_entry import AddColumnsEntry
from lance_namespace_urllib3_client.models.alter_columns_entry import AlterColumnsEntry
from lance_namespace_urllib3_client.models.boolean_query import BooleanQuery
from lance_namespace_urllib3_client.models.boost_query import BoostQuery
from lance_namespace_urllib3_client.models.branch_contents import BranchContents
from lance_namespace_urllib3_client.models.fragment_stats import FragmentStats
from lance_namespace_urllib3_client.models.fragment_summary import FragmentSummary
from lance_namespace_urllib3_client.models.fts_query import FtsQuery
from lance_namespace_urllib3_client.models.index_content import IndexContent
from lance_namespace_urllib3_client.models.json_arrow_data_type import JsonArrowDataType
from lance_namespace_urllib3_client.models.json_arrow_field import JsonArrowField
from lance_namespace_urllib3_client.models.json_arrow_schema import JsonArrowSchema
from lance_namespace_urllib3_client.models.match_query import MatchQuery
from lance_namespace_urllib3_client.models.phrase_query import PhraseQuery
from lance_namespace_urllib3_client.models.query_table_request_columns import QueryTableRequestColumns
from lance_namespace_urllib3_client.models.query_table_request_full_text_query import QueryTableRequestFullTextQuery
from lance_namespace_urllib3_client.models.table_basic_stats import TableBasicStats
from lance_namespace_urllib3_client.models.tag_contents import TagContents
from lance_namespace_urllib3_client.models.update_field_metadata_entry import UpdateFieldMetadataEntry

__all__ = [
    "AddColumnsEntry",
    "AlterColumnsEntry",
    "BooleanQuery",
    "BoostQuery",
    "BranchContents",
    "FragmentStats",
    "FragmentSummary",
    "FtsQuery",
    "IndexContent",
    "JsonArrowDataType",
    "JsonArrowField",
    "JsonArrowSchema",
    "MatchQuery",
    "PhraseQuery",
    "QueryTableRequestColumns",
    "QueryTableRequestFullTextQuery",
    "TableBasicStats",
    "TagContents",
    "UpdateFieldMetadataEntry",
]
