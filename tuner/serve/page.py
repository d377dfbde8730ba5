"""Serves the page's files, Plotly's script from its Python package, and a page that lists the API."""

from __future__ import annotations

import functools
import html
import importlib.util
from pathlib import Path

from fastapi import FastAPI, Request
from fastapi.responses import FileResponse, HTMLResponse
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.routing import Route

from tuner.serve.access.guard import html_page

HERE = Path(__file__).parent / "web"
# POLICY is the Content-Security-Policy of the one page that runs scripts: only the service's files, no inline scripts.
# Plotly compiles its WebGL drawing by `new Function` from its own texts; without 'unsafe-eval' it draws neither
# scattergl nor parcoords. The hash is that of an empty text: Plotly adds an empty <style>, which it fills through the
# DOM, and sets style attributes to the empty text, which 'unsafe-hashes' allows.
POLICY = (
    "default-src 'none'; script-src 'self' 'unsafe-eval'; connect-src 'self'; img-src 'self' data: blob:; "
    "style-src 'self' 'unsafe-hashes' 'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
TYPES = {".js": "text/javascript", ".css": "text/css"}


def add_page(app: FastAPI) -> None:
    """Adds the page's routes to the app."""
    plotly = importlib.util.find_spec("plotly")  # located, not imported: only its JavaScript is needed
    assert plotly and plotly.submodule_search_locations
    plotly_script = Path(plotly.submodule_search_locations[0]) / "package_data" / "plotly.min.js"
    again, daily = "no-cache", "private, max-age=86400"
    gzip = Middleware(GZipMiddleware, compresslevel=4)  # Plotly's script: 1.5 of 4.8 MB in 75 ms, level 9 takes 178 ms
    for path, cache in {
        plotly_script: daily,
        **dict.fromkeys((*HERE.glob("*.css"), *HERE.glob("*.js")), again),
    }.items():
        app.router.routes.append(Route(f"/{path.name}", functools.partial(_file, path, cache), middleware=[gzip]))

    @app.get("/", include_in_schema=False)
    def page() -> FileResponse:
        return FileResponse(HERE / "page.html", headers={"Cache-Control": again, "Content-Security-Policy": POLICY})

    @app.get("/api/docs", include_in_schema=False)
    def docs() -> HTMLResponse:
        """A page that lists the routes."""
        rows = "".join(
            f"<tr><td>{method.upper()}</td><td><code>{html.escape(path)}</code></td>"
            f"<td>{html.escape(operation.get('description', ''))}</td></tr>"
            for path, methods in app.openapi()["paths"].items()
            for method, operation in methods.items()
        )
        schema = '<p>The schema: <a href="/api/openapi.json">/api/openapi.json</a></p>'
        return HTMLResponse(html_page("API", f'<h1>API</h1>{schema}<div class="scroll"><table>{rows}</table></div>'))


def _file(path: Path, cache: str, request: Request) -> FileResponse:
    return FileResponse(path, headers={"Cache-Control": cache}, media_type=TYPES[path.suffix])
