"""`headwater serve`, which tells at its end what the serving process did with Lance: `python -m` this module.

The last line of stderr is JSON: the modules of Lance that it has imported, and the datasets that it has opened.
"""

from __future__ import annotations

import json
import sys
from importlib.abc import MetaPathFinder
from typing import Any

from headwater.cli import main

OPENED: set[str] = set()


class Noticing(MetaPathFinder):
    """Notes the datasets that are opened once somebody has imported Lance."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> None:
        if name == "lance.optimize" or "lance.dataset" not in sys.modules:
            return
        dataset: Any = getattr(sys.modules["lance.dataset"], "LanceDataset", None)
        if dataset is None or hasattr(dataset, "noticed"):
            return
        first = dataset.__init__

        def init(self: Any, uri: Any, *given: Any, **named: Any) -> None:
            OPENED.add(str(uri))
            first(self, uri, *given, **named)

        dataset.__init__, dataset.noticed = init, True


if __name__ == "__main__":
    sys.meta_path.insert(0, Noticing())
    status = main()
    modules = sorted(name for name in sys.modules if name.split(".")[0] == "lance")
    print(json.dumps({"modules": modules, "opened": sorted(OPENED)}), file=sys.stderr)
    sys.exit(status)
