"""The built site, served on this machine, and a browser. `make test` builds the site first: a missing one fails."""

import functools
import http.server
import os
import shutil
import threading
from pathlib import Path

import pytest

SITE = Path(__file__).resolve().parent.parent.parent / "_build" / "html"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
FLAGS += ["--disable-component-update", "--disable-sync"]


def pages() -> list[str]:
    """Every page of the book, by its path in the site. What Sphinx adds (search, index, sources) is not among them."""
    return sorted(p.relative_to(SITE).as_posix() for d in ("book", "studies") for p in (SITE / d).rglob("*.html"))


def pytest_collection_modifyitems(items):
    if CHROMIUM or os.environ.get("CI") == "true":
        return
    reason = "no Chromium on this machine (Debian: apt-get install chromium): the site was not looked at in a browser"
    for item in items:
        if "browser" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def site() -> Path:
    assert (SITE / "index.html").exists(), "no built site: run `make test`, or `make book` first"
    return SITE


@pytest.fixture(scope="session")
def base(site):
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/"
    server.shutdown()


@pytest.fixture(scope="session")
def browser():
    from playwright.sync_api import sync_playwright

    assert CHROMIUM, "CI=true and no Chromium: install it (Debian: apt-get install chromium)"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser, base):
    """Open a page of the site; ``page.bad`` collects errors, failed requests and requests to anywhere else."""
    contexts = []

    def open_(path, **options):
        context = browser.new_context(**({"viewport": {"width": 1280, "height": 900}} | options))
        contexts.append(context)
        page = context.new_page()
        page.bad = []
        page.on("pageerror", lambda e: page.bad.append(f"error: {e}"))
        page.on("console", lambda m: page.bad.append(f"console: {m.text}") if m.type == "error" else None)
        page.on("requestfailed", lambda r: page.bad.append(f"failed: {r.url}"))
        local = (base, "data:", "blob:")
        page.on("request", lambda r: None if r.url.startswith(local) else page.bad.append(f"remote: {r.url}"))
        page.on("response", lambda r: page.bad.append(f"{r.status}: {r.url}") if r.status >= 400 else None)
        page.goto(base + path, wait_until="load")
        return page

    yield open_
    for context in contexts:
        context.close()
