"""Reading pages as a browser would: links, forms and texts."""

from __future__ import annotations

from html.parser import HTMLParser

VOID = frozenset({"meta", "link", "img", "input", "br", "hr"})


class Document(HTMLParser):
    """The links, texts and forms of a page; an element that is not closed is an error."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.addresses: list[str] = []
        self.forms: list[dict[str, str]] = []
        self.inline: list[str] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(text)
        assert self._open == [], "every element is closed"

    def handle_starttag(self, tag: str, given: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in given}
        if tag == "a":
            self.links.append(attributes.get("href", ""))
        self.addresses += [attributes[name] for name in ("href", "src", "action", "hx-get") if name in attributes]
        if tag == "form":
            self.forms.append({"action": attributes.get("action", "")})
        if tag == "input" and self.forms and "name" in attributes:
            self.forms[-1][attributes["name"]] = attributes.get("value", "")
        self.inline += [name for name in attributes if name.startswith("on") or name == "style"]
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, given: list[tuple[str, str | None]]) -> None:
        """SVG's own: nothing stands in it."""

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] in ("script", "style") and data.strip():
            self.inline.append(self._open[-1])
        self.text += data

    def form(self, part: str) -> dict[str, str]:
        """The fields of the form that leads to an address with this part."""
        return next(form for form in self.forms if part in form["action"])
