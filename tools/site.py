"""Build the documents as a static site: `python -m tools.site [FOLDER]`, or `make docs`.

The pages are written for GitHub. This module copies them to `build/site-source` in the form that MkDocs reads, and runs
`mkdocs build --strict` into `build/site/VERSION`. A folder for each version, `versions.json` for the menu of versions,
and an `index.html` that leads to the newest: any web server can serve `build/site`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = ("*.md", "docs/**/*.md", "benchmarks/results/*.md", "examples/**/*.md")
FENCE = re.compile(r"^```(?P<language>\w*)[ \t]*(?P<about>[^\n`]*)$")
LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^\]]*)\]\((?P<to>[^)\s]+)\)")
ITEM = re.compile(r"(?:[-*]|\d+\.) ")


def version() -> str:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return str(project["version"])


def stage(source: Path) -> list[str]:
    """Write every page and the images to a new folder; return the pages, relative to the project."""
    shutil.rmtree(source, ignore_errors=True)
    names = sorted({path.relative_to(ROOT) for pattern in PAGES for path in ROOT.glob(pattern)})
    pages = {name.as_posix() for name in names}
    for name in sorted(pages):
        target = source / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(page(name, (ROOT / name).read_text(), pages))
    shutil.copytree(ROOT / "docs" / "images", source / "docs" / "images")
    return sorted(pages)


def page(name: str, text: str, pages: set[str]) -> str:
    """Return the text of a page as Python-Markdown reads it."""
    return "\n".join(_lines(name, text, pages)) + "\n"


def _lines(name: str, text: str, pages: set[str]) -> Iterator[str]:
    """Yield the lines: fences without our notes, the blank lines that Python-Markdown needs, links that lead there."""
    in_code, before = False, ""
    for line in text.splitlines():
        fence = FENCE.match(line)
        if fence and not in_code:
            in_code = True
            if before:
                yield ""
            title = fence["about"].removeprefix("file: ") if fence["about"].startswith("file: ") else ""
            yield f"```{fence['language']}" + (f' title="{title}"' if title else "")
        elif in_code:
            in_code = line != "```"
            yield line
            before = line
            continue
        else:
            if before and _begins(line) and not _begins(before) and not before.startswith(" "):
                yield ""
            yield LINK.sub(lambda found: _link(name, found, pages), line)
        before = line


def _begins(line: str) -> bool:
    """Return True for a line of a list or of a table."""
    return bool(ITEM.match(line)) or line.startswith("|")


def _link(name: str, found: re.Match[str], pages: set[str]) -> str:
    """Return a link as it is if its target is part of the site. A link to a file of the source keeps only its text."""
    place, mark, anchor = found["to"].partition("#")
    if not place or "://" in place or place.startswith("mailto:") or found["image"]:
        return found[0]
    there = os.path.normpath(os.path.join(os.path.dirname(name), place))
    if there in pages or there.startswith("docs/images/"):
        return found[0]
    index = f"{there}/README.md"
    if index in pages:
        return f"[{found['text']}]({place.rstrip('/')}/README.md{mark}{anchor})"
    return found["text"] if found["text"].startswith("`") else f"`{found['text']}`"


def build(site: Path) -> Path:
    """Build the site of this version below `site`, and return its folder. Raises CalledProcessError on any warning."""
    source = site.with_name(f"{site.name}-source").resolve()
    stage(source)
    target = site.resolve() / version()
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--clean", "--site-dir", str(target)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "SITE_SOURCE": str(source)}
    subprocess.run(command, cwd=ROOT, check=True, env=environment)
    versions = sorted((each.parent.name for each in site.glob("*/index.html")), key=_order, reverse=True)
    listed = [{"version": each, "title": each, "aliases": []} for each in versions]
    (site / "versions.json").write_text(json.dumps(listed, indent=1) + "\n")
    start = f"{versions[0]}/index.html"
    (site / "index.html").write_text(
        '<!doctype html><meta charset="utf-8"><title>Headwater</title>'
        f'<meta http-equiv="refresh" content="0; url={start}"><a href="{start}">Headwater</a>\n'
    )
    return target


def _order(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in name.split(".")]


if __name__ == "__main__":
    site = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / "site"
    print(f"{build(site)}/index.html is the start; to search it: python -m http.server -d {site}")
