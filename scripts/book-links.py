"""Says which links of a folder of HTML pages lead nowhere: to no file of the folder, or to no element of the page.

usage: python3 scripts/book-links.py FOLDER
"""

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """The links of a page, and the names of its elements."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.names: set[str] = set()
        self.feed(file.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Notes what a tag names and where it leads."""
        for name, value in attrs:
            if name == "id":
                self.names.add(value or "")
            elif (tag, name) in {("a", "href"), ("img", "src"), ("link", "href"), ("script", "src")}:
                self.links.append(value or "")


folder = Path(sys.argv[1]).resolve()
pages = {file: Page(file) for file in folder.rglob("*.html")}
dead = []
for file, page in pages.items():
    for link in page.links:
        to = urlsplit(link)
        if to.scheme or to.netloc or file.name == "404.html":
            continue
        target = (file.parent / unquote(to.path)).resolve() if to.path else file
        known = pages.get(target)
        if not target.is_file() or (to.fragment and known and unquote(to.fragment) not in known.names):
            dead.append(f"{file.relative_to(folder)}: {link} leads nowhere")
print(*dead, sep="\n", end="\n" if dead else "")
sys.exit(bool(dead))
