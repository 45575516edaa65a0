"""Every internal link and fragment of the built site resolves. No network, no browser."""

import re
from html.parser import HTMLParser
from urllib.parse import unquote, urldefrag, urlsplit


class Page(HTMLParser):
    def __init__(self, path):
        super().__init__()
        self.ids, self.links = set(), []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.ids |= {attrs[key] for key in ("id", "name") if attrs.get(key)}
        self.links += [attrs[key] for key in ("href", "src") if attrs.get(key)]


def broken(site, pages):
    for path, page in pages.items():
        for link in page.links:
            url, fragment = urldefrag(link)
            parts = urlsplit(url)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            if not target.exists():
                yield f"{path.relative_to(site)}: {link}"
            elif fragment and target in pages and unquote(fragment) not in pages[target].ids:
                yield f"{path.relative_to(site)}: {link} (no such anchor)"


def test_internal_links(site):
    # 404.html has absolute paths of the published address
    paths = [p.resolve() for p in site.rglob("*.html") if "_static" not in p.parts and p.name != "404.html"]
    pages = {path: Page(path) for path in paths}
    assert len(pages) > 5
    assert sum(len(page.links) for page in pages.values()) > 100
    assert sorted(set(broken(site.resolve(), pages))) == []


def test_no_page_names_a_local_path(site):
    root = str(site.parent.parent)
    named = [p for p in site.rglob("*.html") if root in p.read_text(encoding="utf-8")]
    assert named == []


def test_no_signature_prints_a_whole_table(site):
    # autodoc prints the value of a public constant: a large one makes the library page unusable
    pages = "".join(p.read_text(encoding="utf-8") for p in sorted((site / "book").glob("api*.html")))
    found = re.findall(r'<dt class="sig.*?</dt>', pages, re.DOTALL)
    texts = [re.sub(r"<[^>]+>", "", dt) for dt in found]
    assert len(texts) > 100
    assert [text[:80] for text in texts if len(text) > 2000] == []
