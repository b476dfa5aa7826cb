"""`headwater serve`, which tells at its end what the serving process has imported of Lance: `python -m` this module."""

from __future__ import annotations

import json
import sys

from headwater.cli import main

if __name__ == "__main__":
    status = main()
    print(json.dumps(sorted(name for name in sys.modules if name.split(".")[0] == "lance")), file=sys.stderr)
    sys.exit(status)
