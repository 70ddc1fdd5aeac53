"""Nobody gets in without the token, from another site, or under another name; and the token is told to nobody."""

from __future__ import annotations

import hmac
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from dashboard_clients import TOKEN, client_of
from dashboard_runs import small_turns, write
from starlette.testclient import TestClient

from cerebro_spark.commands import Command
from cerebro_spark.dashboard.login import entered_page
from cerebro_spark.dashboard.security import Access, RateLimit, cookie_values
from cerebro_spark.dashboard.serving import link_of
from cerebro_spark.errors import ConfigurationError
from cerebro_spark.store.local import LocalStore

ACCESS = Access(token=TOKEN)
ROUTES = [
    "static/app.js",
    "vendor/plotly.min.js",
    "api/server",
    "api/runs",
    "api/stream",
    "api/runs/r1",
    "api/runs/r1/stream",
    "api/runs/r1/commands",
    "none",
]
COMMAND = "api/runs/r2/commands"
HERE = "http://127.0.0.1:8787"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> LocalStore:
    store = LocalStore(tmp_path_factory.mktemp("store"))
    write(store, small_turns()[:7], "r2")
    return store


@pytest.fixture(scope="module")
def sent() -> list[tuple[str, Command]]:
    return []


@pytest.fixture(scope="module")
def open_client(store: LocalStore, sent: list[tuple[str, Command]]) -> Any:
    with client_of(store, sent, allowed_hosts=("hub.example.org",)) as client:
        yield client


@pytest.fixture
def client(open_client: TestClient) -> TestClient:
    open_client.cookies.clear()
    open_client.cookies.set(ACCESS.cookie, ACCESS.session)
    return open_client


@pytest.fixture
def stranger(open_client: TestClient) -> TestClient:
    open_client.cookies.clear()
    return open_client


# -- the token


@pytest.mark.parametrize("route", ROUTES)
def test_without_the_token_nothing_is_told(stranger: TestClient, route: str) -> None:
    answer = stranger.get(route)
    assert answer.status_code == 401
    assert set(answer.json()) == {"error"}
    assert stranger.get(f"{route}?token={TOKEN}").status_code == 401, "only the page takes it from the address"


@pytest.mark.parametrize("link", ["", "?token=", "?token=wrong", f"?token={TOKEN}x", f"?token={TOKEN}&token=x"])
def test_the_page_without_the_token_says_how_to_get_in(stranger: TestClient, link: str) -> None:
    answer = stranger.get(f"/{link}")
    assert answer.status_code == 401
    assert "link that was printed" in answer.text
    assert "set-cookie" not in answer.headers


def test_the_link_gives_a_cookie_and_goes_on_without_the_token(stranger: TestClient) -> None:
    answer = stranger.get(f"/?token={TOKEN}&run=r1")
    assert answer.status_code == 200
    assert "./#/run/r1" in answer.text
    assert TOKEN not in answer.text
    cookie = answer.headers["set-cookie"]
    assert TOKEN not in cookie
    assert {"httponly", "samesite=strict", "path=/"} <= {part.strip().lower() for part in cookie.split(";")}
    stranger.cookies.clear()
    stranger.cookies.set(*cookie.split(";")[0].split("=", 1))
    assert stranger.get("api/server").status_code == 200


@pytest.mark.parametrize(
    ("header", "status"),
    [
        (f"Bearer {TOKEN}", 200),
        (f"token {TOKEN}", 200),
        (f"Basic {TOKEN}", 401),
        ("Bearer", 401),
        ("Bearer wrong", 401),
        (f"Bearer {ACCESS.session}", 401),
        (f"Bearer {ACCESS.csrf}", 401),
    ],
)
def test_programs_send_the_token_in_a_header(stranger: TestClient, header: str, status: int) -> None:
    assert stranger.get("api/server", headers={"authorization": header}).status_code == status


@pytest.mark.parametrize("value", ["", "wrong", TOKEN, ACCESS.csrf, ACCESS.session[:-1], ACCESS.session + "0", "ä"])
def test_other_cookies_open_nothing(stranger: TestClient, value: str) -> None:
    headers = {"cookie": f"{ACCESS.cookie}={value}".encode()}
    assert stranger.get("api/server", headers=headers).status_code == 401  # type: ignore[arg-type]


def test_secrets_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[bytes] = []
    digest = hmac.compare_digest

    def compare(given: bytes, expected: bytes) -> bool:
        compared.append(given)
        return digest(given, expected)

    monkeypatch.setattr(hmac, "compare_digest", compare)
    assert ACCESS.is_token(TOKEN)
    assert not ACCESS.is_token("wrong")
    assert len(compared) == 2


def test_what_is_derived_from_the_token_does_not_tell_it() -> None:
    assert len({TOKEN, ACCESS.session, ACCESS.csrf, ACCESS.cookie}) == 4
    assert TOKEN not in repr(ACCESS)
    assert len(Access().token) >= 32
    assert Access().token != Access().token
    with pytest.raises(ConfigurationError, match="at least 16"):
        Access(token="short")


def test_a_name_of_a_run_in_the_link_can_be_nothing_else() -> None:
    assert "alert" not in entered_page('"><script>alert(1)</script>')
    assert "javascript" not in entered_page("javascript:alert(1)")


# -- the Host: DNS rebinding


@pytest.mark.parametrize("host", ["127.0.0.1:8787", "localhost:1", "LOCALHOST", "[::1]:8787", "hub.example.org"])
def test_known_hosts(client: TestClient, host: str) -> None:
    headers = {"host": host, "cookie": f"{ACCESS.cookie}={ACCESS.session}"}
    assert client.get("api/server", headers=headers).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "127.0.0.1.evil.example",
        "localhost.evil.example:8787",
        "evil.example#localhost",
        "localhost@evil.example",
        "evil.example, localhost",
        "hub.example.org.evil.example",
        "10.0.0.7:8787",
        "",
        "[::1",
    ],
)
def test_other_hosts_are_refused_even_with_the_token(client: TestClient, host: str) -> None:
    headers = {"host": host, "authorization": f"Bearer {TOKEN}"}
    answer = client.get("api/server", headers=headers)
    assert answer.status_code == 403
    assert "--allow-host" in answer.json()["error"]
    assert client.get(f"/?token={TOKEN}", headers={"host": host}).status_code == 403


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "127.0.0.1", "localhost", "::1", "node7"])
def test_a_server_is_known_by_the_link_that_it_prints(host: str) -> None:
    access = Access(token=TOKEN, host=host)
    assert access.knows_host(urlsplit(link_of(access, 8787)).netloc)
    assert not access.knows_host("evil.example:8787")


def test_a_server_for_other_machines_is_known_by_its_addresses() -> None:
    everywhere = Access(token=TOKEN, host="0.0.0.0", allowed_hosts=("node7:8787",))
    assert [everywhere.knows_host(host) for host in ("10.0.0.7:80", "[fe80::1]:80", "node7", "node8")] == [
        *(True, True, True),
        False,
    ]


# -- other sites: CSRF


GOOD: dict[str, str] = {"origin": HERE, "sec-fetch-site": "same-origin", "x-csrf-token": ACCESS.csrf}


def command(client: TestClient, **headers: str | None) -> int:
    wanted = {"content-type": "application/json", **GOOD, **{k.replace("_", "-"): v for k, v in headers.items()}}
    kept = {name: value for name, value in wanted.items() if value is not None}
    return client.post(COMMAND, content=b'{"verb": "pause"}', headers=kept).status_code


def test_a_page_of_ours_may_command(client: TestClient, sent: list[Any]) -> None:
    before = len(sent)
    assert command(client) == 202
    assert command(client, sec_fetch_site=None) == 202, "older browsers do not say it"
    assert command(client, origin=None) == 202
    assert len(sent) == before + 3


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:9999"},
        {"origin": "http://127.0.0.1:8787.evil.example"},
        {"origin": "file://"},
        {"origin": "http://["},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
        {"sec_fetch_site": "none"},
        {"origin": None, "sec_fetch_site": None},
        {"x_csrf_token": None},
        {"x_csrf_token": "wrong"},
        {"x_csrf_token": TOKEN},
    ],
)
def test_nobody_else_may(client: TestClient, sent: list[Any], headers: dict[str, str | None]) -> None:
    before = len(sent)
    assert command(client, **headers) == 403
    assert len(sent) == before


def test_a_program_with_the_token_may_but_not_from_another_sites_page(stranger: TestClient) -> None:
    bearer = {"authorization": f"Bearer {TOKEN}", "x_csrf_token": None}
    assert command(stranger, origin=None, sec_fetch_site=None, **bearer) == 202
    assert command(stranger, origin="http://evil.example", **bearer) == 403


def test_a_command_without_the_token_is_refused(stranger: TestClient) -> None:
    assert command(stranger) == 401


def test_behind_a_proxy_the_page_has_the_proxys_name(client: TestClient) -> None:
    assert command(client, origin="https://hub.example.org") == 202
    assert command(client, origin="https://hub.example.org.evil.example") == 403


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_other_sites_cannot_read_either(client: TestClient, site: str) -> None:
    assert client.get("api/runs", headers={"sec-fetch-site": site}).status_code == 403
    assert client.get("api/runs", headers={"origin": "http://evil.example"}).status_code == 403
    assert client.get("api/runs", headers={"sec-fetch-site": "same-origin"}).status_code == 200


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS"])
def test_other_methods_do_nothing(client: TestClient, method: str) -> None:
    assert client.request(method, COMMAND, headers=GOOD).status_code == 405


# -- headers


@pytest.mark.parametrize("path", ["/", "api/server", "none", "static/none", "/?token=wrong"])
def test_every_answer_forbids_foreign_scripts(client: TestClient, path: str) -> None:
    headers = client.get(path).headers
    policy = dict(part.strip().partition(" ")[::2] for part in headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == "'self'"
    assert policy["connect-src"] == "'self'"
    assert "unsafe" not in headers["content-security-policy"]
    assert policy["base-uri"] == "'none'"
    assert "https://hub.example.org" in policy["frame-ancestors"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"


def test_refusals_have_these_headers_too(stranger: TestClient) -> None:
    answer = stranger.get("/", headers={"host": "evil.example"})
    assert answer.status_code == 403
    assert "content-security-policy" in answer.headers


# -- arguments


@pytest.mark.parametrize("path", ["user/ann", "/a b", "/a?b", "/a#b", '/a"b', "/a;b", "/../a", "/a\nb", "/a<b"])
def test_a_base_path_is_a_plain_path(path: str) -> None:
    with pytest.raises(ConfigurationError, match="base path"):
        Access(token=TOKEN, base_path=path)


@pytest.mark.parametrize("host", ["*", "", "http://hub.example.org", "a b"])
def test_a_host_to_allow_is_a_name(host: str) -> None:
    with pytest.raises(ConfigurationError, match="cannot be allowed"):
        Access(token=TOKEN, allowed_hosts=(host,))


def test_a_base_path_may_end_with_a_slash() -> None:
    assert Access(token=TOKEN, base_path="/user/ann/").base_path == "/user/ann"


def test_the_rate_limit_lets_more_pass_later() -> None:
    now = [0.0]
    limit = RateLimit(burst=2, a_second=0.5, clock=lambda: now[0])
    assert [limit.take(), limit.take(), limit.take()] == [0.0, 0.0, 2.0]
    now[0] = 2.0
    assert [limit.take(), limit.take()] == [0.0, 2.0]
    now[0] = 1000.0
    assert [limit.take(), limit.take(), limit.take()] == [0.0, 0.0, 2.0]


def test_cookies_of_one_name() -> None:
    assert cookie_values(["x=1; y=2;x=3", "z"], "x") == ["1", "3"]


def test_names_of_files_lead_nowhere_else(tmp_path: Path) -> None:
    from cerebro_spark.dashboard.files import static_files

    folder = tmp_path / "static"
    (folder / "js").mkdir(parents=True)
    for name in ("index.html", "js/app.js", "secret.py"):
        (folder / name).write_text("x")
    (tmp_path / "outside.js").write_text("x")
    (folder / "link.js").symlink_to(tmp_path / "outside.js")
    assert sorted(static_files(folder)) == ["index.html", "js/app.js"]
