"""Serves the page's files, Plotly's script from its Python package, and a page that lists the API."""

from __future__ import annotations

import functools
import gzip
import html
import importlib.util
from collections.abc import Mapping
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


class Script:
    """A large script (Plotly's) that never changes while the service runs: compressed once, from 4.8 MB to 1.5 MB."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._compressed = functools.cache(lambda: gzip.compress(path.read_bytes(), LEVEL, mtime=0))

    def answer(self, asked: Mapping[str, str]) -> Response:
        """Returns the script, compressed if the browser reads that; only its headers if the browser has it already."""
        state = self._path.stat()
        is_compressed = "gzip" in asked.get("accept-encoding", "")
        tag = f'"{state.st_mtime_ns:x}-{state.st_size:x}{"-gzip" if is_compressed else ""}"'
        headers = {"Cache-Control": "private, max-age=86400", "Vary": "Accept-Encoding", "ETag": tag}
        if tag in asked.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        if not is_compressed:
            return FileResponse(self._path, headers=headers, media_type="text/javascript")
        return Response(
            self._compressed(), headers={**headers, "Content-Encoding": "gzip"}, media_type="text/javascript"
        )


def add_page(app: FastAPI) -> None:
    """Adds the page's routes to the app."""
    plotly = importlib.util.find_spec("plotly")  # located, not imported: only its JavaScript is needed
    assert plotly and plotly.submodule_search_locations
    plotly_script = Script(Path(plotly.submodule_search_locations[0]) / "package_data" / "plotly.min.js")
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
    def plotly_js(request: Request) -> Response:
        return plotly_script.answer(request.headers)

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
