"""The built site in a real browser: loads without an error or a request elsewhere, and is accessible in both themes."""

import json
from importlib.resources import files

import pytest
from conftest import pages

PAGES = pages() or ["index.html"]
# the library pages come from one generator; axe takes most of a minute on the long ones, so the shortest stands for all
AUDITED = [p for p in PAGES if not p.startswith("book/api_") or p == "book/api_lowbit.html"]


@pytest.mark.parametrize("path", PAGES)
def test_page_loads_clean_and_fits_a_phone(open_page, path):
    page = open_page(path, viewport={"width": 390, "height": 844})
    page.wait_for_timeout(300)
    assert page.bad == []
    assert page.evaluate("document.documentElement.scrollWidth") <= 390, "the page scrolls sideways on a phone"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("path", AUDITED)
def test_axe(open_page, path, scheme):
    page = open_page(path, color_scheme=scheme)
    page.wait_for_timeout(400)
    assert page.evaluate("document.documentElement.dataset.theme") == scheme
    page.add_script_tag(path=str(files("axe_playwright_python") / "axe.min.js"))
    result = page.evaluate("axe.run(document, {runOnly: ['wcag2a', 'wcag2aa']})")
    bad = [(v["id"], v["impact"], [n["html"][:160] for n in v["nodes"][:3]]) for v in result["violations"]]
    assert bad == [], json.dumps(bad, indent=1)


@pytest.mark.parametrize("path", [p for p in PAGES if p.startswith("studies")])
def test_figures_are_drawn_with_number_caption_and_text(open_page, path):
    page = open_page(path)
    figures = page.query_selector_all("figure:has(img)")
    assert figures
    for figure in figures:
        image = figure.query_selector("img")
        assert image.get_attribute("src").endswith(".svg")
        assert image.evaluate("i => i.naturalWidth") > 300
        assert len(image.get_attribute("alt")) > 60
        assert figure.query_selector(".caption-number").inner_text().startswith("Fig.")


def test_formulas_are_set(open_page):
    page = open_page("studies/01_roofline.html")
    page.wait_for_selector("mjx-container", timeout=10_000)


def test_search_finds_a_term(open_page):
    page = open_page("search.html?q=roofline")
    page.wait_for_selector("#search-results li", timeout=10_000)
    assert "The roofline of linear layers" in page.inner_text("#search-results")
