"""Serves the page's files, Plotly's script from its Python package, and a page that lists the API."""

from __future__ import annotations

import functools
import gzip
import html
import importlib.util
from pathlib import Path

from fastapi import FastAPI, Request
from fastapi.responses import FileResponse, HTMLResponse
from starlette.responses import Response
from starlette.routing import Route

from tuner.serve.access.guard import html_page

HERE = Path(__file__).parent / "web"
# POLICY, the Content-Security-Policy of the one page with scripts, allows only the service's files, not inline scripts.
# Plotly compiles its WebGL drawing by `new Function` from its own texts; without 'unsafe-eval' it draws neither
# scattergl nor parcoords. The hash is that of an empty text: Plotly adds an empty <style>, which it fills through the
# DOM, and sets style attributes to the empty text, which 'unsafe-hashes' allows.
POLICY = (
    "default-src 'none'; script-src 'self' 'unsafe-eval'; connect-src 'self'; img-src 'self' data: blob:; "
    "style-src 'self' 'unsafe-hashes' 'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
TYPES = {".js": "text/javascript", ".mjs": "text/javascript", ".css": "text/css"}


def add_page(app: FastAPI) -> None:
    plotly = importlib.util.find_spec("plotly")  # located, not imported: only its JavaScript is needed
    assert plotly and plotly.submodule_search_locations
    plotly_script = Path(plotly.submodule_search_locations[0]) / "package_data" / "plotly.min.js"
    for path in (each for each in HERE.rglob("*") if each.suffix in TYPES):
        app.router.routes.append(Route(f"/{path.relative_to(HERE)}", functools.partial(_file, path)))

    @app.get("/plotly.min.js", include_in_schema=False)
    def plotly_js(request: Request) -> Response:
        # The script is sent in one piece, because parts take 1.4 s longer while the service reads a long journal.
        is_small = "gzip" in request.headers.get("accept-encoding", "")
        headers = {"Cache-Control": "private, max-age=86400", "Vary": "Accept-Encoding"}
        headers |= {"Content-Encoding": "gzip"} if is_small else {}
        content = compressed(plotly_script) if is_small else plotly_script.read_bytes()
        return Response(content, headers=headers, media_type=TYPES[".js"])

    @app.get("/", include_in_schema=False)
    def page() -> FileResponse:
        return FileResponse(
            HERE / "page.html", headers={"Cache-Control": "no-cache", "Content-Security-Policy": POLICY}
        )

    @app.get("/api/docs", include_in_schema=False)
    def docs() -> HTMLResponse:
        rows = "".join(
            f"<tr><td>{method.upper()}</td><td><code>{html.escape(path)}</code></td>"
            f"<td>{html.escape(operation.get('description', ''))}</td></tr>"
            for path, methods in app.openapi()["paths"].items()
            for method, operation in methods.items()
        )
        schema = '<p>The schema: <a href="/api/openapi.json">/api/openapi.json</a></p>'
        return HTMLResponse(html_page("API", f'<h1>API</h1>{schema}<div class="scroll"><table>{rows}</table></div>'))


def _file(path: Path, request: Request) -> FileResponse:
    return FileResponse(path, headers={"Cache-Control": "no-cache"}, media_type=TYPES[path.suffix])


@functools.cache
def compressed(path: Path) -> bytes:
    """Returns a file's content, compressed by gzip; Plotly's script of 4.8 MB becomes 1.5 MB in 75 ms."""
    return gzip.compress(path.read_bytes(), compresslevel=4, mtime=0)
