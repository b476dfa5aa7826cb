"""The bill of materials names every pinned package, once, and says how it is needed."""

from __future__ import annotations

import tomllib
from collections import Counter

from tools.sbom import EXCLUDED, HERE, OPTIONAL, REQUIRED, bill, read_pins, scopes

PINS = """\
a==1.0 \\
    --hash=sha256:{0} \\
    --hash=sha256:{1}
    # via headwater (pyproject.toml)
b[x]==2.0 \\
    --hash=sha256:{0}
    # via
    #   a
    #   c
c==3 ; sys_platform != 'win32' \\
    --hash=sha256:{0}
    # via headwater (pyproject.toml:server)
d==4 \\
    --hash=sha256:{0}
    # via headwater (pyproject.toml:dev)
""".format("0" * 64, "1" * 64)


def test_pins_are_read_with_their_hashes_and_reasons() -> None:
    pins = read_pins(PINS)
    assert [(pin.name, pin.version, len(pin.hashes)) for pin in pins] == [
        ("a", "1.0", 2), ("b", "2.0", 1), ("c", "3", 1), ("d", "4", 1),
    ]  # fmt: skip
    assert pins[1].parents == ["a", "c"]
    assert scopes(pins, {"a"}) == {"a": REQUIRED, "b": REQUIRED, "c": OPTIONAL, "d": EXCLUDED}


def test_the_bill_has_every_pin_of_the_project() -> None:
    project = tomllib.loads((HERE / "pyproject.toml").read_text())["project"]
    text = (HERE / "requirements" / "development.txt").read_text()
    document = bill(read_pins(text), project)
    names = [component["name"] for component in document["components"]]
    assert len(names) == len(set(names)) == sum("==" in line for line in text.splitlines() if line[:1].isalnum())
    scope = {component["name"]: component["scope"] for component in document["components"]}
    assert (scope["pylance"], scope["starlette"], scope["pytest"]) == (REQUIRED, OPTIONAL, EXCLUDED)
    assert min(Counter(scope.values()).values()) > 3
    refs = {component["bom-ref"] for component in document["components"]}
    assert {ref for entry in document["dependencies"] for ref in entry["dependsOn"]} <= refs
    assert all(component["properties"] for component in document["components"])
    assert document == bill(read_pins(text), project)
