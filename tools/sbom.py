"""The software bill of materials (CycloneDX 1.6, JSON), made from the pinned requirements alone: `make sbom`.

`requirements/development.txt` pins what `make` installs and what is tested. A component is `required` by the package
itself, `optional` with one of its extras, and `excluded` when only development needs it. The same pins give the same
bytes: no clock, no network.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent.parent
PIN = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==([^\s;\\]+)")
HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
VIA = re.compile(r"^\s+#\s+(?:via\s+)?(\S.*)$")
OWN = re.compile(r"^headwater \(pyproject\.toml(?::(\S+))?\)$")
REQUIRED, OPTIONAL, EXCLUDED = "required", "optional", "excluded"


@dataclass
class Pin:
    """One pinned package: its hashes, the packages that need it, and the project's own groups that name it."""

    name: str
    version: str
    hashes: list[str] = field(default_factory=list)
    parents: list[str] = field(default_factory=list)
    groups: list[str] = field(default_factory=list)

    @property
    def purl(self) -> str:
        return f"pkg:pypi/{self.name}@{self.version}"


def read_pins(text: str) -> list[Pin]:
    """The pins of a compiled requirements file, with the comments that say why each is there."""
    pins: list[Pin] = []
    for line in text.splitlines():
        found = PIN.match(line)
        if found:
            pins.append(Pin(found[1].lower(), found[2]))
        elif pins and (digest := HASH.search(line)):
            pins[-1].hashes.append(digest[1])
        elif pins and (reason := VIA.match(line)) and reason[1] != "via":
            own = OWN.match(reason[1])
            (pins[-1].groups if own else pins[-1].parents).append((own[1] or "") if own else reason[1].lower())
    return pins


def scopes(pins: list[Pin], direct: set[str], dev: str = "dev") -> dict[str, str]:
    """Return the scope of each package: required if the package itself needs it, directly or through others."""
    needed = {pin.name for pin in pins if pin.name in direct}
    used = {pin.name for pin in pins if any(group != dev for group in pin.groups)}
    for found in (needed, used):
        while more := {pin.name for pin in pins if found & set(pin.parents)} - found:
            found |= more
    return {pin.name: REQUIRED if pin.name in needed else OPTIONAL if pin.name in used else EXCLUDED for pin in pins}


def bill(pins: list[Pin], project: dict[str, Any]) -> dict[str, Any]:
    """The whole document."""
    direct = {re.split(r"[\[<>=;! ]", text, maxsplit=1)[0].lower() for text in project["dependencies"]}
    scope = scopes(pins, direct)
    own = f"pkg:pypi/{project['name']}@{project['version']}"
    refs = {pin.name: pin.purl for pin in pins}
    depends: dict[str, set[str]] = {own: {pin.purl for pin in pins if pin.groups}, **{pin.purl: set() for pin in pins}}
    for pin in pins:
        for parent in pin.parents:
            if parent in refs:
                depends[refs[parent]].add(pin.purl)
    serial = uuid.uuid5(uuid.NAMESPACE_URL, own + "".join(sorted(refs.values())))
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{serial}",
        "version": 1,
        "metadata": {
            "component": {
                "type": "library",
                "bom-ref": own,
                "name": project["name"],
                "version": project["version"],
                "purl": own,
                "licenses": [{"license": {"id": project["license"]}}],
            }
        },
        "components": [component(pin, scope[pin.name]) for pin in sorted(pins, key=lambda pin: pin.name)],
        "dependencies": [{"ref": ref, "dependsOn": sorted(on)} for ref, on in sorted(depends.items())],
    }


def component(pin: Pin, scope: str) -> dict[str, Any]:
    return {
        "type": "library",
        "bom-ref": pin.purl,
        "name": pin.name,
        "version": pin.version,
        "purl": pin.purl,
        "scope": scope,
        "properties": [{"name": "headwater:sha256", "value": digest} for digest in pin.hashes],
    }


def main() -> None:
    project = tomllib.loads((HERE / "pyproject.toml").read_text())["project"]
    document = bill(read_pins((HERE / "requirements" / "development.txt").read_text()), project)
    target = Path(sys.argv[1])
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(document, indent=1) + "\n")
    print(f"{target}: {len(document['components'])} components")


if __name__ == "__main__":
    main()
