"""The door of the dashboard: every request passes it before any route is looked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cerebro_spark.dashboard.login import entered_page, refused_page
from cerebro_spark.dashboard.security import Access, bearer, cookie_values, response_headers, same

_SAFE = ("GET", "HEAD")


class Guard:
    """Checks Host, token and origin, takes the base path off, and puts the security headers on.

    Args:
        app: The app behind the door.
        access: What may pass.
        end_streams: Ends all streams, so that a server that stops need not wait for them.
    """

    def __init__(self, app: ASGIApp, access: Access, end_streams: Callable[[], None]) -> None:
        self._app = app
        self.end_streams = end_streams
        self._access = access
        self._headers = response_headers(access)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            inside = self._without_base(scope)
            answer = self._refusal(inside) or self._entrance(inside)
            sending = _with_headers(send, self._headers)
            await (answer or self._app)(inside, receive, sending)
        # There is no websocket here: one that is asked for gets no answer but the end of its connection.

    def _without_base(self, scope: Scope) -> Scope:
        """The request as the app knows it. Some proxies take the base path off, others leave it."""
        path, base = str(scope["path"]), self._access.base_path
        if base and (path == base or path.startswith(f"{base}/")):
            path = path[len(base) :]
        return {**scope, "path": path, "raw_path": path.encode("utf-8", "replace"), "root_path": ""}

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self._access.knows_host(hosts[0]):
            name = f"{hosts[0]!r:.100}" if hosts else "none"
            return _no(403, f"the Host is {name}, by which this server is not known: start it with --allow-host NAME")
        if scope["path"] == "":
            return _moved(str(scope.get("query_string", b""), "latin-1"), self._access.base_path)
        by_header = self._access.is_token(bearer(headers.get("authorization", "")))
        is_page = scope["path"] == "/" and scope["method"] in _SAFE
        if not by_header and not self._has_cookie(headers):
            if is_page and scope["method"] == "GET" and self._token_in(scope):
                return None
            if is_page:
                return HTMLResponse(refused_page(), 401, {"cache-control": "no-store"})
            return _no(401, "this needs the token that was printed when the dashboard was started")
        return self._wrong_origin(scope, headers, by_header)

    def _has_cookie(self, headers: Headers) -> bool:
        values = cookie_values(headers.getlist("cookie"), self._access.cookie)
        return any(same(value, self._access.session) for value in values)

    def _wrong_origin(self, scope: Scope, headers: Headers, by_header: bool) -> Response | None:
        """Refuse what a page of another site had a browser send."""
        site = headers.get("sec-fetch-site")
        origin = headers.get("origin")
        foreign = origin is not None and not self._access.knows_origin(origin, headers["host"])
        if scope["method"] in _SAFE:
            if scope["path"].startswith("/api/") and (foreign or site in ("cross-site", "same-site")):
                return _no(403, "pages of other sites may not read this")
            return None
        if foreign or (site is not None and site != "same-origin"):
            return _no(403, f"pages of other sites may not send commands (Origin {origin!r:.100}): see --allow-host")
        if by_header:
            return None
        if origin is None and site is None:
            return _no(403, "a browser that sends neither Origin nor Sec-Fetch-Site may not send commands")
        if not same(headers.get("x-csrf-token", ""), self._access.csrf):
            return _no(403, "the header X-CSRF-Token is missing or wrong: load the page again")
        return None

    def _token_in(self, scope: Scope) -> bool:
        given = _query(scope).get("token", [])
        return len(given) == 1 and self._access.is_token(given[0])

    def _entrance(self, scope: Scope) -> Response | None:
        """The answer to the link with the token: the cookie, and a page that goes on without the token.

        It is no redirect: after one, a browser that came from another site does not send the cookie.
        """
        if scope["path"] != "/" or scope["method"] != "GET" or not self._token_in(scope):
            return None
        page = HTMLResponse(entered_page(_query(scope).get("run", [""])[0]), headers={"cache-control": "no-store"})
        page.set_cookie(
            self._access.cookie,
            self._access.session,
            path=f"{self._access.base_path}/",
            httponly=True,
            samesite="strict",
        )
        return page


def _query(scope: Scope) -> dict[str, list[str]]:
    try:
        return parse_qs(str(scope.get("query_string", b""), "latin-1"), max_num_fields=50)
    except ValueError:  # too many fields
        return {}


def _no(status: int, error: str) -> Response:
    return JSONResponse({"error": error}, status, {"cache-control": "no-store"})


def _moved(query: str, base: str) -> Response:
    """The page is at the base path with a slash: its addresses are relative to that."""
    return Response(status_code=307, headers={"location": f"{base}/{'?' if query else ''}{query}"})


def _with_headers(send: Send, headers: Mapping[str, str]) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            raw = list(message.get("headers", []))
            mutable = MutableHeaders(raw=raw)
            for name, value in headers.items():
                mutable[name] = value
            message = {**message, "headers": raw}
        await send(message)

    return sending
