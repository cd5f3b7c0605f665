"""The console's static files. They need no key: they hold no data."""

from __future__ import annotations

import hashlib
from importlib.resources import files

from fastapi import APIRouter
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

KINDS = {"html": "text/html", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
"""Media type by the ending of a file's name."""
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",  # previews arrive in events
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
"""Content-Security-Policy: nothing from elsewhere, no code and no style in the page itself."""
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


def static_files() -> dict[str, bytes]:
    """Return the content of each file by its name."""
    folder = files("services.gateway.console") / "static"
    return {one.name: one.read_bytes() for one in folder.iterdir() if one.name.rpartition(".")[2] in KINDS}


def routes() -> APIRouter:
    """Return the routes of the files."""
    router = APIRouter(include_in_schema=False)
    known = static_files()
    tags = {name: f'"{hashlib.sha256(content).hexdigest()[:32]}"' for name, content in known.items()}

    @router.get("/")
    @router.get("/console")
    async def start() -> Response:
        return RedirectResponse("/console/", headers={"Cache-Control": "no-cache"})

    @router.get("/console/")
    @router.get("/console/{name}")
    async def file(request: Request, name: str = "index.html") -> Response:
        """Return a file, or that the browser's copy is still the same."""
        if name not in known:
            raise HTTPException(404)
        headers = HEADERS | {"ETag": tags[name]}
        if request.headers.get("if-none-match") == tags[name]:
            return Response(status_code=304, headers=headers)
        return Response(known[name], media_type=KINDS[name.rpartition(".")[2]], headers=headers)

    return router
