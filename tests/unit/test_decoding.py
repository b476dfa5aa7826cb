"""msgspec learns a type when it first decodes it, and crashes the process when two threads do so at once.

So what is decoded has a decoder, and what is converted to is learnt, while modules are imported: by one thread.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import headwater

ROOT = Path(headwater.__file__).parent
INSIDE = {"AnyPart", "DataFile", "WireScan", "WireTable"}
"""Learnt as a part of what has a decoder: deltas, and the calls of Spark's workers."""


def calls(tree: ast.AST, name: str) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == name:
            yield node


def names(tree: ast.AST | None) -> set[str]:
    found = ast.walk(tree) if tree is not None else ()
    own = {node.id if isinstance(node, ast.Name) else node.attr for node in found if _is_name(node)}  # type: ignore[attr-defined]
    return {name for name in own if name.lstrip("_")[:1].isupper()}


def _is_name(node: ast.AST) -> bool:
    return isinstance(node, (ast.Name, ast.Attribute))


def test_no_thread_is_the_first_to_decode_a_type() -> None:
    texts = {path: path.read_text() for path in ROOT.rglob("*.py")}
    trees = {path: ast.parse(text) for path, text in texts.items() if "msgspec" in text}
    learnt = set(INSIDE)
    for tree in trees.values():
        for statement in tree.body:
            if isinstance(statement, (ast.Assign, ast.AnnAssign)) and any(calls(statement, "Decoder")):
                learnt |= names(statement)
    for path, tree in trees.items():
        for call in calls(tree, "decode"):
            told = [keyword.value for keyword in call.keywords if keyword.arg == "type"]
            assert not any(names(kind) for kind in told), f"{path}:{call.lineno}: make a decoder when imported"
        for call in calls(tree, "convert"):
            if ast.unparse(call.func) == "msgspec.convert" and ast.unparse(call.args[1]) != "self.asked":
                unknown = names(call.args[1]) - learnt
                assert not unknown, f"{path}:{call.lineno}: {unknown} are not learnt when imported"
