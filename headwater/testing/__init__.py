"""Conformance suites and reference models, shipped so that others can test their own stores and catalogs.

Subclass a suite in a pytest module and give it the fixtures its docstring names. Needs pytest.
"""
