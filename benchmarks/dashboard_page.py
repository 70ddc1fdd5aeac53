"""What the page of a run costs in a real browser: its first paint, an update, and clicks meanwhile. It never asserts.

It is a part of `benchmarks.dashboard`. The server is the real one, in a process of its own, and so is the browser: they
and what writes the log share the cores of this machine. The browser's own clock says when something was drawn: in the
frame after the one in which it was found in the page.
"""

from __future__ import annotations

import contextlib
import http.client
import importlib.util
import json
import os
import random
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from cerebro_spark.store import paths
from cerebro_spark.store.local import LocalStore

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

LOADS, UPDATES, UNITS_AN_UPDATE = 5, 10, 8
USED_SECONDS = 15
"""So long the page is used while its run's log grows."""
_SECONDS = 300.0
_HEIGHT, _TALL = 900, 2400
_ROWS, _CHART = "#part-trials tbody tr", "#part-curves .scatterlayer .trace path"
# Notes the first frame with rows and with a chart, each update of the stream, and what clicks and keys took.
_NOTES = """
window.noted = { drawn: {}, updates: [], shown: [], acts: [], longest: 0 };
noted.clock = () => (performance.timeOrigin + performance.now()) / 1000;
const wanted = { row: "ROWS", chart: "CHART" };
const look = () => {
  for (const [name, where] of Object.entries(wanted)) {
    if (!document.querySelector(where)) continue;
    delete wanted[name];
    requestAnimationFrame(() => (noted.drawn[name] = performance.now() / 1000));
  }
  if (Object.keys(wanted).length) requestAnimationFrame(look);
};
requestAnimationFrame(look);
window.EventSource = class extends EventSource {
  constructor(...given) {
    super(...given);
    this.addEventListener("update", () => noted.updates.push(noted.clock()));
  }
};
noted.state = () => {
  const part = document.querySelector("#part-trials");
  const sorted = part.querySelector("[aria-sort]");
  return `${sorted?.textContent} ${sorted?.ariaSort} ${part.querySelector("[role=status]").textContent}`;
};
noted.follow = () => {
  const words = document.querySelector(".figures .under");
  new MutationObserver(() => {
    const units = Number(words.textContent.split(" ")[0].replaceAll(/[^0-9]/g, ""));
    requestAnimationFrame(() => noted.shown.push([units, noted.clock()]));
  }).observe(words, { childList: true, characterData: true, subtree: true });
  const act = (kind, at, before) => {
    const frame = () => noted.acts.push([kind, performance.now() - at, before !== noted.state()]);
    requestAnimationFrame(() => requestAnimationFrame(frame));
  };
  let pressed;
  addEventListener("click", (event) => act("click", event.timeStamp, noted.state()), true);
  addEventListener("keydown", (event) => (pressed = [event.timeStamp, noted.state()]), true);
  addEventListener("input", () => act("key", ...pressed), true);
  const tasks = (list) => (noted.longest = Math.max(noted.longest, ...list.getEntries().map((task) => task.duration)));
  new PerformanceObserver(tasks).observe({ type: "longtask" });
};
""".replace("ROWS", _ROWS).replace("CHART", _CHART)


def why_not() -> str:
    """Why no page can be opened here, or ""."""
    if importlib.util.find_spec("playwright") is None:
        return "playwright is not installed"
    return "" if _chromium() else "chromium is not installed"


def _chromium() -> str | None:
    return os.environ.get("CEREBRO_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")


class Update(NamedTuple):
    """An update, in seconds: when it was in the store, reached the page, and was drawn; `before` is the one before."""

    before: float
    stored: float
    arrived: float
    drawn: float


def split(update: Update, poll: float) -> dict[str, float]:
    """Where the time of an update went, in milliseconds.

    The server looks at the store so many seconds after it has sent the update before.

    >>> split(Update(before=10.0, stored=10.25, arrived=11.125, drawn=11.375), poll=1.0)
    {'all': 1125.0, 'polling': 750.0, 'server': 125.0, 'page': 250.0}
    """
    before, stored, arrived, drawn = update
    look = before + poll
    parts = {"all": drawn - stored, "polling": look - stored, "server": arrived - look, "page": drawn - arrived}
    return {name: 1000 * seconds for name, seconds in parts.items()}


class GrowingLog:
    """A copy of a run's log without its last segments, which are appended one after another."""

    def __init__(self, source: LocalStore, target: LocalStore, run: str) -> None:
        names = source.list(paths.log_folder(run))
        # The first update of a series only says when the server looks.
        updates = LOADS + 1 + UPDATES + USED_SECONDS
        kept = len(names) - min(updates * UNITS_AN_UPDATE + 1, len(names) // 2)
        self._run, self._source, self._target = run, source, target
        self._beats = 0
        self.units = 0
        for name in names[:kept]:
            self._append(name)
        self._waiting = names[kept:-1]  # with the last one the run would be over
        self.beat()

    def grow(self) -> None:
        """Append a few units, as a driver does: each in a segment of its own."""
        for _ in range(UNITS_AN_UPDATE):
            self._append(self._waiting.pop(0))
        self.beat()

    @property
    def can_grow(self) -> bool:
        """Whether there is enough left."""
        return len(self._waiting) >= UNITS_AN_UPDATE

    def beat(self) -> None:
        """Give a sign of life, as a driver does."""
        self._target.write(paths.beat(self._run, "5e8c", self._beats), b"{}")
        self._beats += 1

    def _append(self, name: str) -> None:
        data = self._source.read(name)
        self._target.write(name, data)
        self.units += data.count(b'"event":"UnitFinished"')


class Server:
    """The real server of a store, and how a browser enters it."""

    def __init__(self, link: str) -> None:
        self._link = urlsplit(link)
        self.url = f"http://{self._link.netloc}/"
        headers, _ = self._ask(f"/?{self._link.query}")
        self._cookie = str(headers["set-cookie"]).split(";")[0]

    def enter(self, context: BrowserContext) -> None:
        """Let a browser in, as if it had opened the link with the token."""
        name, _, value = self._cookie.partition("=")
        context.add_cookies([{"name": name, "value": value, "url": self.url}])

    def get(self, path: str) -> Any:
        return json.loads(self._ask(path, Cookie=self._cookie)[1])

    def wait_until_read(self, run: str) -> float:
        """Wait until the whole log is read; returns how many seconds that took."""
        began = time.perf_counter()
        while self.get(f"/api/runs/{run}")["state"] == "reading":
            time.sleep(0.2)
        return time.perf_counter() - began

    def _ask(self, path: str, **headers: str) -> tuple[http.client.HTTPMessage, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self._link.port or 80, timeout=_SECONDS)
        with contextlib.closing(connection):
            connection.request("GET", path, headers={"Host": self._link.netloc, **headers})
            answer = connection.getresponse()
            return answer.headers, answer.read()


def measure(folder: str, run: str) -> dict[str, Any]:
    """Open the page of a run, let its log grow, and use the page meanwhile.

    Args:
        folder: The folder of a local store, which is left as it is.
        run: The id of a run there that is over.
    """
    from cerebro_spark.dashboard.notebook import open_dashboard

    with tempfile.TemporaryDirectory() as scratch:
        store = LocalStore(scratch)
        log = GrowingLog(LocalStore(folder), store, run)
        with contextlib.closing(open_dashboard(store, show=False)) as shown, _browser() as browser:
            server = Server(shown.link)
            result: dict[str, Any] = {"units": log.units, "read_s": server.wait_until_read(run)}
            result["poll_s"] = poll = float(server.get("/api/server")["poll_seconds"])
            result["loads"] = [_load(browser, server, run, log) for _ in range(LOADS)]
            with _opened(browser, server, run, _TALL) as page:
                result["updates_ms"] = [split(update, poll) for update in _updates(page, log, poll)]
                result["acts"] = _use(page, log)
                result["longest_task_ms"] = page.evaluate("noted.longest")
            result["load_average"] = os.getloadavg()
    return result


@contextlib.contextmanager
def _browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # Without a sandbox, which containers do not allow: it opens nothing but the pages of this benchmark.
        args = ["--no-sandbox", "--disable-dev-shm-usage"]
        started = playwright.chromium.launch(executable_path=_chromium(), args=args)
        with contextlib.closing(started):
            yield started


@contextlib.contextmanager
def _opened(browser: Browser, server: Server, run: str, height: int) -> Iterator[Page]:
    """The page of a run, once it shows rows and a chart, in a browser that has never seen it."""
    context = browser.new_context(viewport={"width": 1280, "height": height})
    with contextlib.closing(context):
        context.set_default_timeout(1000 * _SECONDS)
        context.add_init_script(_NOTES)
        server.enter(context)
        page = context.new_page()
        page.goto(f"{server.url}#/run/{run}")
        page.wait_for_function("() => noted.drawn.row && noted.drawn.chart")
        yield page


def _load(browser: Browser, server: Server, run: str, log: GrowingLog) -> dict[str, float]:
    """Seconds from navigation to the first row and to the first chart. No answer is kept from the load before."""
    log.grow()
    with _opened(browser, server, run, _HEIGHT) as page:
        return dict(page.evaluate("noted.drawn"))


def _updates(page: Page, log: GrowingLog, poll: float) -> Iterator[Update]:
    """Let the log grow at a random moment between two looks of the server, again and again."""
    page.evaluate("noted.follow()")
    draw = random.Random(0)
    log.grow()
    before, _ = _shown(page, log.units)
    for _ in range(UPDATES):
        if not log.can_grow:
            return
        page.wait_for_timeout(1000 * poll * draw.uniform(0.0, 0.7))
        log.grow()
        stored = time.time()
        arrived, drawn = _shown(page, log.units)
        yield Update(before, stored, arrived, drawn)
        before = arrived


def _shown(page: Page, units: int) -> tuple[float, float]:
    """When the page got the update with which it shows so many units, and when they were drawn."""
    page.wait_for_function("(units) => noted.shown.some(([shown]) => shown >= units)", arg=units, polling=50)
    drawn = float(page.evaluate("(units) => noted.shown.find(([shown]) => shown >= units)[1]", units))
    return max(at for at in page.evaluate("noted.updates") if at <= drawn), drawn


def _use(page: Page, log: GrowingLog) -> dict[str, list[float]]:
    """Sort and filter the table at random moments while the log grows; returns what each took, in milliseconds."""
    ended = threading.Event()
    writer = threading.Thread(target=_keep_growing, args=(log, ended))
    writer.start()
    try:
        _click_and_type(page, ended)
    finally:
        ended.set()
        writer.join()
    acts: list[tuple[str, float, bool]] = page.evaluate("noted.acts")
    if not all(acted for _, _, acted in acts):
        raise SystemExit(f"some clicks or keys did nothing: {acts}")
    return {kind: [ms for known, ms, _ in acts if known == kind] for kind in ("click", "key")}


def _keep_growing(log: GrowingLog, ended: threading.Event) -> None:
    """Append a few units every second, until there are no more."""
    while log.can_grow and not ended.wait(1.0):
        log.grow()
    ended.set()


def _click_and_type(page: Page, ended: threading.Event) -> None:
    draw = random.Random(1)
    headers = page.locator("#part-trials th .sorter")
    field = page.get_by_label("Filter trials")
    acts = 0
    while not ended.is_set():
        for key in ("", "9", "Backspace"):
            page.wait_for_timeout(draw.uniform(50, 250))
            if key:
                field.press(key)
            else:
                headers.nth(draw.randrange(headers.count())).click()
            acts += 1
            page.wait_for_function("(acts) => noted.acts.length >= acts", arg=acts, polling=20)


def table(result: dict[str, Any]) -> str:
    """The numbers of `measure` for people."""
    lines = [
        f"the page of the run in chromium, {result['units']:,} units; load of the machine"
        f" {result['load_average'][0]:.1f}; the server read the log in {result['read_s']:.1f} s",
        f"\n| ms | median | most | of |\n|---|---|---|---|\n{_row('first row of the trials', _each(result, 'row'))}",
        _row("first chart", _each(result, "chart")),
    ]
    words = {
        "all": "an update, from the store to the page",
        "polling": "of that: until the server looks",
        "server": "of that: server and transfer",
        "page": "of that: the page",
    }
    lines += [_row(text, [one[name] for one in result["updates_ms"]]) for name, text in words.items()]
    lines += [_row(f"a {kind} acts while the log grows", spent) for kind, spent in result["acts"].items()]
    return "\n".join([*lines, f"\nlongest task of the page while the log grew: {result['longest_task_ms']:.0f} ms"])


def _each(result: dict[str, Any], name: str) -> list[float]:
    return [1000 * load[name] for load in result["loads"]]


def _row(text: str, spent: list[float]) -> str:
    """
    >>> _row("first chart", [900.0, 1000.4, 1500.0])
    '| first chart | 1000 | 1500 | 3 |'
    """
    return f"| {text} | {statistics.median(spent):.0f} | {max(spent):.0f} | {len(spent)} |"
