"""The workspace as a browser sees it: `file:///workspace/…` without a single `file://` URL.

A page loaded from a real `file://` URL can show any file of the machine in a frame or a new window. Here each document
of the workspace has a host name of its own that nobody can guess, and a proxy answers for it. So one document cannot
read another, as it cannot over `file://`, and the rest of the disk has no address at all.
"""

from __future__ import annotations

import re
import secrets
from hashlib import sha256
from urllib.parse import quote, unquote, urlsplit

from orchestrator.errors import ToolError
from orchestrator.sandbox.proxy import Request, Response
from orchestrator.threads import ThreadPool
from orchestrator.workspace.files import media_type
from orchestrator.workspace.loop import LoopWorkspace

SHOWN = "file:///workspace"
"""What stands for the workspace in URLs that people and models read."""
_HOST = r"[0-9a-f]{40}\.localhost"
_DOCUMENTS = {"document", "iframe", "frame", "object", "embed"}
_REFUSED = {"empty", "serviceworker", "report"}
"""What a script fetches by itself (Sec-Fetch-Dest); a page of `file://` cannot either."""


class WorkspaceSite:
    """Gives each document of the workspace a host of its own, and answers for these hosts.

    Args:
        workspace: The files.
        threads: Where they are read.
    """

    def __init__(self, workspace: LoopWorkspace, threads: ThreadPool) -> None:
        self._workspace, self._threads = workspace, threads
        self._secret = secrets.token_hex()

    def address(self, name: str) -> str:
        """Return where the browser finds a file or folder of the workspace: by path, or by a `file:` URL.

        Raises:
            ToolError: There is no such file, or it is outside the workspace.
        """
        path, rest = name, ""
        if name.lower().startswith("file:"):
            parts = urlsplit(name)
            if parts.netloc not in ("", "localhost"):
                raise ToolError(f"{name!r} names the host {parts.netloc!r}; write file:///workspace/page.html")
            path = unquote(parts.path)
            rest = (f"?{parts.query}" if parts.query else "") + (f"#{parts.fragment}" if parts.fragment else "")
        return self._url(self._document(path)) + rest

    def shown(self, text: str) -> str:
        """Return a text with the hosts of documents put as `file:///workspace`."""
        return re.sub(rf"http://{_HOST}(:80)?", SHOWN, text)

    def holds(self, url: str) -> bool:
        """Tell whether a URL is that of a document of the workspace."""
        return re.match(rf"http://{_HOST}/", url) is not None

    async def serve(self, request: Request) -> Response | None:
        """Answer a request for a document or for what belongs to one; None: it is for another host."""
        if not re.fullmatch(_HOST, request.host):
            return None
        path, _, query = request.target.partition("?")
        purpose = request.headers.get("sec-fetch-dest", "empty")
        if request.method not in ("GET", "HEAD") and purpose not in _DOCUMENTS:
            return Response(405)
        try:
            file = self._document(unquote(path).lstrip("/") or ".")
            url = self._url(file)
            if purpose in _DOCUMENTS and urlsplit(url)[1:3] != (request.host, path):
                return Response(303, headers=(("Location", url + (f"?{query}" if query else "")),))
            if purpose in _REFUSED:
                return Response(403, b"scripts cannot fetch files, as over file://")
            return await self._threads.run(self._read, file)
        except ToolError as error:
            return Response(404, str(error).encode(), (("Content-Type", "text/plain; charset=utf-8"),))

    def _read(self, file: str) -> Response:
        data = self._workspace.read(file)
        return Response(200, data, (("Content-Type", _content_type(media_type(file), data)), *_HEADERS))

    def _document(self, path: str) -> str:
        """Return the path of a file in the workspace; a folder's is that of its index.html."""
        found = self._workspace.existing(path)
        if found.is_dir():
            found = self._workspace.existing(f"{self._workspace.relative(found)}/index.html")
        return self._workspace.relative(found)

    def _url(self, file: str) -> str:
        """Return the address of a document, whose host only this object can name."""
        host = sha256(f"{self._secret}/{file}".encode()).hexdigest()[:40]
        return f"http://{host}.localhost/{quote(file)}"


_HEADERS = (
    ("X-Content-Type-Options", "nosniff"),  # a script must be one, so that data cannot be run to learn what it says
    ("Referrer-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Cache-Control", "no-store"),
)
_RENDERED = re.compile(
    r"(image|audio|video|font)/.*|text/(html|css|javascript|vtt|xml)|application/(pdf|wasm|xml|.*\+xml|javascript)"
)


def _content_type(kind: str, data: bytes) -> str:
    """Return the type that makes a browser show a file rather than download it, where it can."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return kind if _RENDERED.fullmatch(kind) else "application/octet-stream"
    return f"{kind if _RENDERED.fullmatch(kind) else 'text/plain'}; charset=utf-8"
