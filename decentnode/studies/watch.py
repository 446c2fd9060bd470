"""`decentnode watch`: the page of a report, served while its runs are in progress. It only reads."""

import hashlib
import hmac
import ipaddress
import secrets
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from decentnode.core.streams import print_line
from decentnode.errors import BadInput
from decentnode.results import Study
from decentnode.results.extra import need

READ_INTERVAL = 2.0
"""A page that is younger is served again without reading the runs."""
WORK_SHARE = 0.1
"""The most of the time that drawing takes, so that a page of many runs leaves the machine to them."""
SHOWN = ("evaluations.jsonl", "summary.json", "config.yaml", "study.json", "lock")
"""The files of runs that the page shows."""
COOKIE = "decentnode"


@dataclass
class LivePage:
    """The page of some runs as they are now."""

    directories: Sequence[Path]
    target: float | None = None
    _text: str = ""
    _version: str = ""
    _drawn: float = 0.0
    _seconds: float = 0.0
    """How long the last drawing took."""

    def current(self) -> tuple[str, str]:
        """The page and its version, which changes with the files of the runs. Raises BadInput."""
        age = time.monotonic() - self._drawn
        if self._text and age <= max(READ_INTERVAL, self._seconds / WORK_SHARE):
            return self._text, self._version
        if (version := self._files()) != self._version:
            from decentnode.studies.report.page import render  # loads matplotlib

            began = time.monotonic()
            self._text, self._version = render(Study(*self.directories), self.target, is_live=True), version
            self._seconds = time.monotonic() - began
        self._drawn = time.monotonic()
        return self._text, self._version

    def _files(self) -> str:
        """A hash of the sizes and times of all files that the page shows."""
        found = hashlib.sha256()
        for directory in self.directories:
            for path in sorted(directory.rglob("*")):
                if path.name in SHOWN:
                    with suppress(OSError):  # an attempt that a sweep moves aside
                        stat = path.stat()
                        found.update(f"{path} {stat.st_size} {stat.st_mtime_ns}".encode())
        return found.hexdigest()[:16]


def serve(directories: Sequence[Path], host: str, port: int, token: str, target: float | None) -> None:
    """Serves until Ctrl-C. Other addresses than those of this machine need a token; raises BadInput.

    `token`: empty draws one, where one is needed.
    """
    page = LivePage(directories, target)
    page.current()  # what is wrong with the runs is said before anybody looks
    is_guarded = bool(token) or not is_local(host)
    if is_guarded and not token:
        token = secrets.token_urlsafe(16)
    listening = _listen(host, port)
    port = listening.getsockname()[1]
    shown = f"[{host}]" if ":" in host else host
    print_line(f"http://{shown}:{port}/{f'?token={token}' if is_guarded else ''} (Ctrl-C ends it)")
    uvicorn = need("uvicorn")
    names = [] if is_guarded else [host, "localhost", "127.0.0.1", "[::1]"]
    server = uvicorn.Server(uvicorn.Config(application(page, token, names), log_level="warning"))
    server.run(sockets=[listening])


def is_local(host: str) -> bool:
    """Whether only this machine reaches a server at this address."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, protocol)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        # From here on a request waits for the server, so the address can be shown before it answers.
        listening.listen()
    except OSError as error:
        raise BadInput(f"watch: {host} port {port}: {error.strerror}; choose another with --port") from error
    return listening


def application(page: LivePage, token: str, names: Sequence[str]) -> Any:
    """The web application: the page at /, its version at /version; needs starlette.

    `token`: what a first request must know; empty: none. `names`: host names that requests may use, so that
    a page of another site cannot read this one through a name of its own; none: any.
    """
    applications, responses, routing = map(
        need, ("starlette.applications", "starlette.responses", "starlette.routing")
    )

    def answer(request: Any, content: Any, kind: Any) -> Any:
        presented = request.query_params.get("token") or request.cookies.get(COOKIE) or ""
        if token and not hmac.compare_digest(presented.encode(), token.encode()):
            return responses.PlainTextResponse("this page needs its token: /?token=...", status_code=403)
        try:
            response = kind(content())
        except BadInput as error:
            return responses.PlainTextResponse(str(error), status_code=503)
        response.headers["Cache-Control"] = "no-store"
        if token:
            response.set_cookie(COOKIE, token, httponly=True, samesite="strict")
        return response

    def show(request: Any) -> Any:
        return answer(request, lambda: page.current()[0], responses.HTMLResponse)

    def version(request: Any) -> Any:
        return answer(request, lambda: page.current()[1], responses.PlainTextResponse)

    app = applications.Starlette(
        routes=[routing.Route("/", show), routing.Route("/version", version)]
    )  # fmt: skip
    if names:
        app.add_middleware(
            need("starlette.middleware.trustedhost").TrustedHostMiddleware, allowed_hosts=names
        )
    return app
