"""Small repairs to what Jupyter Book 1.0.4 puts on every page."""

import os

PLACEHOLDER = "example/codesign"


def setup(app):
    app.connect("config-inited", use_own_repository)
    # after the extensions' own handlers
    app.connect("html-page-context", repair, priority=900)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}


def use_own_repository(app, config):
    """Buttons lead to the repository whose CI builds the site; elsewhere there are none that would lead nowhere."""
    repository, options = os.environ.get("GITHUB_REPOSITORY"), config.html_theme_options
    if not repository:
        options |= dict.fromkeys(("use_repository_button", "use_edit_page_button", "use_issues_button"), False)
        options["launch_buttons"] = {}
        return
    owner, name = repository.split("/")
    options["repository_url"] = options.get("repository_url", "").replace(PLACEHOLDER, repository)
    config.ogp_site_url = f"https://{owner}.github.io/{name}/"


def repair(app, pagename, templatename, context, doctree):
    context["script_files"] = _without_repeats(context.get("script_files", []))
    # docutils 0.21 writes a list without list items, and a role that ARIA 1.2 withdrew
    body = context.get("body") or ""
    body = body.replace('<div role="list" class="citation-list">', '<div class="citation-list">')
    context["body"] = body.replace(' role="doc-biblioentry"', "")
    _edit_the_source_half(context.get("header_buttons"))


def _without_repeats(script_files):
    # sphinx-thebe 0.3.1 adds its inline script twice: "Identifier 'THEBE_JS_URL' has already been declared"
    seen, keep = set(), []
    for js in script_files:
        body = getattr(js, "attributes", {}).get("body") if not isinstance(js, str) else None
        if body and ("thebe_selector" in body or "togglebuttonSelector" in body):
            if body in seen:
                continue
            seen.add(body)
        keep.append(js)
    return keep


def _edit_the_source_half(buttons):
    # the half of a pair to edit is the .py
    for button in buttons or []:
        url = button.get("url") or ""
        if "/edit/" in url and url.endswith(".ipynb"):
            button["url"] = url.removesuffix(".ipynb") + ".py"
        _edit_the_source_half(button.get("buttons"))
