"""Print the modules of headwater that have at most one importer, with their lines and that importer."""

import ast
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parent.parent


def modules() -> dict[str, Path]:
    """Return each module of the product by its dotted name."""
    found = {}
    for path in sorted((ROOT / "headwater").rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def importers(known: dict[str, Path]) -> dict[str, set[str]]:
    """Return, for each module, the modules that import it anywhere in their text."""
    found: dict[str, set[str]] = defaultdict(set)
    for name, path in known.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                wanted = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                wanted = [f"{node.module}.{alias.name}" for alias in node.names]
            else:
                continue
            for text in wanted:
                while text and text not in known:
                    text = text.rpartition(".")[0]
                if text and text != name:
                    found[text].add(name)
    return found


def main() -> None:
    """Print one line for each module with at most one importer; arguments limit it to packages."""
    known = modules()
    found = importers(known)
    for name, path in known.items():
        if path.name == "__init__.py" or (sys.argv[1:] and not name.startswith(tuple(sys.argv[1:]))):
            continue
        if len(found[name]) <= 1:
            lines = len(path.read_text().splitlines())
            for importer in found[name] or {"-"}:
                theirs = len(known[importer].read_text().splitlines()) if importer in known else 0
                print(f"{name} {lines} <- {importer} {theirs}")


if __name__ == "__main__":
    main()
