"""Processes that tests race, kill and stop: forked from one that has imported everything and started no thread."""

from __future__ import annotations

import multiprocessing

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(
    [
        "lance.namespace",
        "headwater.catalog",
        "headwater.namespace.metastore",
        "headwater.moving.upgrade",
        "headwater.pipeline",
    ]
)
