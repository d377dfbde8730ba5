"""Serves the page's files, Plotly's script from its Python package, and a page that lists the API."""

from __future__ import annotations

import html
import importlib.util
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.responses import FileResponse, HTMLResponse

HERE = Path(__file__).parent / "web"
SCRIPTS = tuple(path.name for path in sorted(HERE.glob("*.js")))  # ES modules; page.js imports the others
# The Content-Security-Policy of the one page that runs scripts: only the service's own files, no inline scripts. Plotly
# compiles its WebGL drawing by `new Function` from its own texts; without 'unsafe-eval' it draws neither scattergl nor
# parcoords. The hash is that of an empty text, because Plotly adds an empty <style> and fills it through the DOM.
POLICY = (
    "default-src 'none'; script-src 'self' 'unsafe-eval'; connect-src 'self'; img-src 'self' data: blob:; "
    "style-src 'self' 'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def add_page(app: FastAPI) -> None:
    """Adds the page's routes to the app."""
    plotly = importlib.util.find_spec("plotly")  # located, not imported: only its JavaScript is needed
    assert plotly and plotly.submodule_search_locations
    script = Path(plotly.submodule_search_locations[0]) / "package_data" / "plotly.min.js"
    again = {"Cache-Control": "no-cache"}

    @app.get("/", include_in_schema=False)
    def page() -> FileResponse:
        return FileResponse(HERE / "page.html", headers={**again, "Content-Security-Policy": POLICY})

    @app.get("/page.css", include_in_schema=False)
    def css() -> FileResponse:
        return FileResponse(HERE / "page.css", headers=again)

    def add_script(name: str) -> None:
        @app.get(f"/{name}", include_in_schema=False)
        def js() -> FileResponse:
            return FileResponse(HERE / name, headers=again, media_type="text/javascript")

    for name in SCRIPTS:
        add_script(name)

    @app.get("/control.css", include_in_schema=False)
    def control_css() -> FileResponse:
        return FileResponse(HERE / "control.css", headers=again)

    @app.get("/plotly.min.js", include_in_schema=False)
    def plotly_js() -> FileResponse:
        return FileResponse(script, headers={"Cache-Control": "private, max-age=86400"}, media_type="text/javascript")

    @app.get("/api/docs", include_in_schema=False)
    def docs() -> HTMLResponse:
        return HTMLResponse(docs_page(app.openapi()))


def docs_page(openapi: dict[str, Any]) -> str:
    """Returns an HTML page that lists the routes of an OpenAPI document; it loads only the page's style sheet."""
    rows = [
        f"<tr><td>{method.upper()}</td><td><code>{html.escape(path)}</code></td>"
        f"<td>{html.escape(operation.get('description', ''))}</td></tr>"
        for path, methods in openapi["paths"].items()
        for method, operation in methods.items()
    ]
    head = '<!doctype html><html lang="en"><meta charset="utf-8"><title>tuner: API</title>'
    style = '<meta name="viewport" content="width=device-width"><link rel="stylesheet" href="/page.css">'
    schema = '<p>The schema: <a href="/api/openapi.json">/api/openapi.json</a></p>'
    table = f'<div class="scroll"><table>{"".join(rows)}</table></div>'
    return f"{head}{style}<main><h1>API</h1>{schema}{table}</main></html>"
