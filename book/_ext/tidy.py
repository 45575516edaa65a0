"""Small repairs to what Jupyter Book 1.0.4 puts on every page."""


def setup(app):
    # after the extensions' own handlers
    app.connect("html-page-context", repair, priority=900)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}


def repair(app, pagename, templatename, context, doctree):
    # sphinx-thebe 0.3.1 adds its inline script twice: "Identifier 'THEBE_JS_URL' has already been declared"
    seen, keep = set(), []
    for js in context.get("script_files", []):
        body = getattr(js, "attributes", {}).get("body") if not isinstance(js, str) else None
        if body and ("thebe_selector" in body or "togglebuttonSelector" in body):
            if body in seen:
                continue
            seen.add(body)
        keep.append(js)
    context["script_files"] = keep
    # docutils 0.21 writes a list without list items and a role that ARIA 1.2 withdrew
    if context.get("body"):
        context["body"] = (
            context["body"]
            .replace('<div role="list" class="citation-list">', '<div class="citation-list">')
            .replace(' role="doc-biblioentry"', "")
        )

    # the half to edit is the .py
    def walk(buttons):
        for b in buttons or []:
            if "/edit/" in (b.get("url") or "") and "/studies/" in b["url"]:
                b["url"] = b["url"].removesuffix(".ipynb") + ".py"
            walk(b.get("buttons"))

    walk(context.get("header_buttons"))
