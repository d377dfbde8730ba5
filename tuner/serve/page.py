"""Serves the page's files, Plotly's script from its Python package, and a page that lists the API."""

from __future__ import annotations

import functools
import gzip
import html
import importlib.util
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import FileResponse, HTMLResponse
from starlette.responses import Response

HERE = Path(__file__).parent / "web"
SCRIPTS = tuple(path.name for path in sorted(HERE.glob("*.js")))  # ES modules; page.js imports the others
# POLICY is the Content-Security-Policy of the one page that runs scripts: only the service's files, no inline scripts.
# Plotly compiles its WebGL drawing by `new Function` from its own texts; without 'unsafe-eval' it draws neither
# scattergl nor parcoords. The hash is that of an empty text: Plotly adds an empty <style>, which it fills through the
# DOM, and sets style attributes to the empty text, which 'unsafe-hashes' allows.
POLICY = (
    "default-src 'none'; script-src 'self' 'unsafe-eval'; connect-src 'self'; img-src 'self' data: blob:; "
    "style-src 'self' 'unsafe-hashes' 'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
LEVEL = 4  # of gzip: 75 ms for Plotly's script, whose first request waits for it; level 9 takes 178 ms for 4 % less
TYPES = {".js": "text/javascript", ".css": "text/css"}


@functools.cache
def compressed(path: Path) -> bytes:
    """Returns a file's content, compressed: Plotly's script has 4.8 MB, or 1.5 MB compressed."""
    return gzip.compress(path.read_bytes(), LEVEL, mtime=0)


def add_page(app: FastAPI) -> None:
    """Adds the page's routes to the app."""
    plotly = importlib.util.find_spec("plotly")  # located, not imported: only its JavaScript is needed
    assert plotly and plotly.submodule_search_locations
    plotly_script = Path(plotly.submodule_search_locations[0]) / "package_data" / "plotly.min.js"
    again = {"Cache-Control": "no-cache"}

    @app.get("/", include_in_schema=False)
    def page() -> FileResponse:
        return FileResponse(HERE / "page.html", headers={**again, "Content-Security-Policy": POLICY})

    def add_file(name: str) -> None:
        @app.get(f"/{name}", include_in_schema=False)
        def file() -> FileResponse:
            return FileResponse(HERE / name, headers=again, media_type=TYPES[Path(name).suffix])

    for name in ("page.css", "control.css", *SCRIPTS):
        add_file(name)

    @app.get("/plotly.min.js", include_in_schema=False)
    def plotly_js(request: Request) -> Response:
        headers = {"Cache-Control": "private, max-age=86400", "Vary": "Accept-Encoding"}
        if "gzip" not in request.headers.get("accept-encoding", ""):
            return FileResponse(plotly_script, headers=headers, media_type=TYPES[".js"])
        headers["Content-Encoding"] = "gzip"
        return Response(compressed(plotly_script), headers=headers, media_type=TYPES[".js"])

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
