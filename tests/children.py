"""Processes that tests race, kill and stop: forked from one that has imported everything and started no thread.

A test process has one fork server, and the last list of modules to preload is the one that counts. So the list stands
here, once: with a list for each folder, most children would import pylance for themselves, a second of CPU each.
"""

from __future__ import annotations

import multiprocessing

IMPORTED = (
    "headwater.catalog",
    "headwater.cli.main",
    "headwater.rest.serve",
    "headwater.web",
    "headwater.namespace.metastore",
    "headwater.moving.upgrade",
    "headwater.pipeline",
    "headwater.streams.table",
    "headwater.testing.namespace_suite",
    "lance.namespace",
)
"""A module of this list that is not there is left out without a word: a test looks."""
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(list(IMPORTED))
