"""What an index needs and its maker did not say: chosen from the rows and the dimension. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PARTITION_ROWS = 8192
MAX_PARTITIONS = 65_536
BUILD_OPTIONS = frozenset(
    [
        "metric",
        "distance_type",
        "num_partitions",
        "ivf_centroids",
        "pq_codebook",
        "num_sub_vectors",
        "num_bits",
        "accelerator",
        "filter_nan",
        "train",
        "index_cache_size",
        "shuffle_partition_batches",
        "shuffle_partition_concurrency",
        "ivf_centroids_file",
        "sample_rate",
        "max_iters",
        "max_iterations",
        "target_partition_size",
        "streaming_sample_rate",
        "streaming_coreset_rate",
        "streaming_refine_passes",
        "m",
        "max_level",
        "skip_transpose",
        "ef_construction",
        "prefetch_distance",
        "one_pass_ivfpq",
        "precomputed_partition_dataset",
        "rabitq_model",
        "format_version",
        "document_granularity",
        "with_position",
        "block_size",
        "memory_limit",
        "num_workers",
        "base_tokenizer",
        "language",
        "max_token_length",
        "lower_case",
        "stem",
        "remove_stop_words",
        "custom_stop_words",
        "ascii_folding",
        "min_ngram_length",
        "max_ngram_length",
        "prefix_only",
        "skip_merge",
        "rows_per_zone",
        "number_of_items",
        "probability",
        "page_size",
    ]
)
"""Options that pylance's builders of indices know; they pass over others in silence."""


def completed(kind: str, given: Mapping[str, Any], rows: int | None, dimension: int) -> dict[str, Any]:
    """The options of a vector index with those that product quantization cannot do without.

    Of an index that is built in pieces, `rows` are those of one: pylance does not choose the partitions of pieces.
    """
    options = dict(given)
    if kind.endswith("PQ"):
        options.setdefault("num_sub_vectors", sub_vectors(dimension))
        if rows is not None:
            options.setdefault("num_partitions", partitions(rows))
    return options


def partitions(rows: int) -> int:
    """So many that each holds some thousand rows: fewer cost searches, more cost memory and training."""
    return max(1, min(MAX_PARTITIONS, rows // PARTITION_ROWS))


def sub_vectors(dimension: int) -> int:
    """Sixteen values to a sub-vector where the dimension allows it, else eight, else one sub-vector."""
    for width in (16, 8):
        if dimension % width == 0:
            return dimension // width
    return 1
