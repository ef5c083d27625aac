"""Links: of a built site to its pages and anchors, and of Markdown to the repository's files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# What a browser fetches by itself when it shows a page.
_LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}
# ... but for links that only say where something is.
_NOT_LOADED = {"canonical", "next", "prev", "index", "search", "author", "license", "up"}
_FETCHED_BY_CSS = re.compile(r"""url\(\s*['"]?(https?:)?//|@import\s+['"](https?:)?//""")
_MARKDOWN_CODE = re.compile(r"(`+).+?\1")
_MARKDOWN_LINK = re.compile(r"\[[^\]]*\]\(([^()\s]+)\)")


@dataclass
class Page(HTMLParser):
    """What an HTML page can be linked at, what it links to, and what it loads."""

    anchors: set[str] = field(default_factory=set)
    links: list[tuple[int, str]] = field(default_factory=list)  # line, address
    loads: list[tuple[int, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    @classmethod
    def read(cls, file: Path) -> Page:
        page = cls()
        page.feed(file.read_text(encoding="utf-8"))
        page.close()
        return page

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attributes}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        line, _ = self.getpos()
        if "href" in values and tag in ("a", "area"):
            self.links.append((line, values["href"]))
        elif values.get(_LOADED.get(tag, "")) and values.get("rel") not in _NOT_LOADED:
            self.loads.append((line, values[_LOADED[tag]]))


def check_site(folder: Path) -> list[str]:
    """Return what is wrong with the links of a built site: a line each.

    A link within the site must lead to a file that is there, and to an anchor that the file has.
    What a page loads must be a file of the site: nothing comes from elsewhere.
    """
    pages = {file.resolve(): Page.read(file) for file in sorted(folder.rglob("*.html"))}
    if not pages:
        return [f"{folder}: there are no pages"]
    complaints = []
    for file, page in pages.items():
        for line, address in [*page.links, *page.loads]:
            wrong = _wrong(file, address, pages, folder.resolve())
            if wrong is None and urlsplit(address).netloc and (line, address) in page.loads:
                wrong = "it is loaded from elsewhere"
            if wrong:
                name = file.relative_to(folder.resolve())
                complaints.append(f"{name}:{line}: {address}: {wrong}")
    for file in sorted(folder.rglob("*.css")):
        if _FETCHED_BY_CSS.search(file.read_text(encoding="utf-8", errors="replace")):
            complaints.append(f"{file.relative_to(folder)}: it loads something from elsewhere")
    return complaints


def _wrong(file: Path, address: str, pages: dict[Path, Page], folder: Path) -> str | None:
    parts = urlsplit(address)
    if parts.scheme or parts.netloc:
        return None
    target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
    if target.is_dir():
        target /= "index.html"
    if not target.is_file():
        return "there is no such file"
    if not target.is_relative_to(folder):
        return "it leaves the site"
    anchor = unquote(parts.fragment)
    if anchor and target in pages and anchor not in pages[target].anchors:
        return "there is no such anchor"
    return None


def markdown_links(text: str) -> Iterator[str]:
    """Give the addresses that a Markdown page links to, but for those in its code."""
    code = False
    for line in text.splitlines():
        if line.lstrip().startswith(("```", "~~~")):
            code = not code
        elif not code:
            yield from _MARKDOWN_LINK.findall(_MARKDOWN_CODE.sub("``", line))


def check_markdown(root: Path, file: Path) -> list[str]:
    """Return which links of a Markdown file lead to no file of the repository: a line each."""
    complaints = []
    for address in markdown_links(file.read_text(encoding="utf-8")):
        parts = urlsplit(address)
        if parts.scheme or parts.netloc or not parts.path:
            continue
        if not (file.parent / unquote(parts.path)).exists():
            complaints.append(f"{file.relative_to(root)}: {address}: there is no such file")
    return complaints
