"""A server that plays the dashboard's: it serves the pages and made-up answers, under the tightest policy they bear."""

from __future__ import annotations

import json
import mimetypes
import queue
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import made_up_answers as answers
from made_up_run import MadeUpRun

STATIC = Path(__file__).resolve().parents[3] / "cerebro_spark" / "dashboard" / "static"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'self'"
)
VERBS = ["stop_trial", "resume_trial", "clone", "add_workers", "remove_worker", "pause", "unpause", "end", "kill"]
PREFIX = "/user/ann/proxy/8787"
Json = dict[str, Any]


def renamed(value: Any, names: dict[str, str]) -> Any:
    """Return a JSON value with other texts in place of some, in keys too: what users may have written."""
    if isinstance(value, dict):
        return {renamed(key, names): renamed(one, names) for key, one in value.items()}
    if isinstance(value, list):
        return [renamed(one, names) for one in value]
    return names.get(value, value) if isinstance(value, str) else value


class MadeUpServer(ThreadingHTTPServer):
    """Serves some runs below a prefix, as behind a proxy.

    Args:
        runs: The runs.
        read_only: Whether there are no commands.
        plotly: The file of the library.
    """

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, runs: list[MadeUpRun], plotly: Path, read_only: bool = False) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.runs = {run.name: run for run in runs}
        self.plotly = plotly
        self.read_only = read_only
        self.refusing = False
        self.renames: dict[str, str] = {}
        self.posted: list[Json] = []
        self.questions: list[Json] = []
        self.asked: list[str] = []
        self.listeners: list[tuple[str, queue.Queue[tuple[str, Json] | None]]] = []
        self.lock = threading.Lock()
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def url(self) -> str:
        """Where the pages are."""
        return f"http://127.0.0.1:{self.server_address[1]}{PREFIX}/"

    def step(self, run: MadeUpRun, units: int = 0, change: Callable[[], None] = lambda: None) -> None:
        """Let a run go on, and tell who listens."""
        before, first = run.version, run.done
        run.advance(units)
        change()
        run.ticks += 1
        self.tell(run.name, "update", answers.update(run, before, first, set()))

    def tell(self, name: str, kind: str, data: Json) -> None:
        """Send an event to who listens to a run, or to all runs with ""."""
        with self.lock:
            for wanted, mailbox in self.listeners:
                if wanted == name:
                    mailbox.put((kind, data))

    def list_runs(self) -> None:
        """Send the list of runs to who listens to all of them."""
        self.tell("", "runs", {"runs": [run.row() for run in self.runs.values()], "reading": 0})

    def drop_listeners(self) -> None:
        """End all streams, as a server that stops does."""
        with self.lock:
            for _, mailbox in self.listeners:
                mailbox.put(None)

    def close(self) -> None:
        self.drop_listeners()
        self.shutdown()
        self.server_close()


class Handler(BaseHTTPRequestHandler):
    """One request."""

    server: MadeUpServer
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        if not parts.path.startswith(f"{PREFIX}/"):
            return self._json({"error": f"outside of {PREFIX}"}, 404)
        steps = [unquote(step) for step in parts.path[len(PREFIX) + 1 :].split("/")]
        self.server.asked.append("/".join(steps))
        if steps[0] != "api":
            return self._file(steps)
        if self.server.refusing:
            return self._json({"error": "The store cannot be read: the name node does not answer."}, 503)
        if steps[-1] == "stream":
            return self._stream("" if len(steps) == 2 else steps[2])
        return self._answer(steps[1:], query, parse_qs(parts.query))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        steps = [unquote(step) for step in urlsplit(self.path).path[len(PREFIX) + 1 :].split("/")]
        if self.server.read_only or self.headers["X-CSRF-Token"] != "csrf-1":
            return self._json({"error": "refused"}, 403)
        if steps[-1] == "questions":
            self.server.questions.append(body)
            return self._json({"asked": True}, 202)
        if steps[-1] != "commands":
            return self._json({"error": "refused"}, 403)
        self.server.posted.append(body)
        return self._json({"command": self.server.runs[steps[2]].take(body)}, 202)

    def _answer(self, steps: list[str], query: dict[str, str], lists: dict[str, list[str]]) -> None:
        runs = self.server.runs
        if steps == ["server"]:
            only = self.server.read_only
            facts = {"store": "hdfs:///user/ann/churn", "read_only": only, "version": "0.5.0", "poll_seconds": 1.0}
            return self._json({**facts, "csrf": None if only else "csrf-1", "verbs": [] if only else VERBS})
        if steps == ["runs"]:
            return self._json({"runs": [run.row() for run in runs.values()], "reading": 0})
        if steps == ["compare"]:
            return self._compare(lists["run"])
        if steps[1] not in runs:
            return self._json({"error": f"there is no run {steps[1]!r} in this store"}, 404)
        return self._of_run(runs[steps[1]], steps[2:], query)

    def _compare(self, names: list[str]) -> None:
        runs = self.server.runs
        missing = [name for name in names if name not in runs]
        if missing:
            return self._json({"error": f"there is no run {missing[0]!r} in this store"}, 404)
        return self._json({"runs": [answers.compared(runs[name]) for name in names]})

    def _of_run(self, run: MadeUpRun, steps: list[str], query: dict[str, str]) -> None:
        since = int(query.get("since", 0))
        start, end = (float(query[name]) if name in query else None for name in ("from", "to"))
        known: dict[str, Callable[[], Json]] = {
            "": run.summary,
            "trials": lambda: answers.trials(run, since),
            "curves": lambda: answers.curves(run, self._metric(query), since),
            "gantt": lambda: answers.gantt(run, start, end, int(query.get("bins", 400))),
            "workers": lambda: answers.workers(run),
            "events": lambda: answers.events(
                run, since, int(query["before"]) if "before" in query else None, int(query.get("limit", 200))
            ),
            "commands": lambda: answers.commands(run),
            "forecast": lambda: answers.forecast(run),
        }
        if len(steps) == 2 and steps[0] == "trials":
            number = int(steps[1][1:]) if steps[1][1:].isdigit() else -1
            if not 0 <= number < len(run.params):
                return self._json({"error": f"{run.name} has no trial {steps[1]!r}"}, 404)
            return self._json(answers.trial(run, number))
        return self._json(known["/".join(steps)]())

    def _metric(self, query: dict[str, str]) -> str:
        meant = {shown: name for name, shown in self.server.renames.items()}
        wanted = query.get("metric", "val_auc")
        return meant.get(wanted, wanted)

    def _stream(self, name: str) -> None:
        mailbox: queue.Queue[tuple[str, Json] | None] = queue.Queue()
        run = self.server.runs.get(name)
        if run is None:
            mailbox.put(("runs", {"runs": [one.row() for one in self.server.runs.values()], "reading": 0}))
        else:
            mailbox.put(("hello", {"generation": run.generation, "version": run.version}))
        with self.server.lock:
            self.server.listeners.append((name, mailbox))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Cache-Control", "no-store")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        try:
            self.wfile.write(b"retry: 200\n\n")
            while (event := mailbox.get()) is not None:
                data = json.dumps(renamed(event[1], self.server.renames))
                self.wfile.write(f"event: {event[0]}\ndata: {data}\n\n".encode())
        except OSError:
            pass  # The browser went to another page.
        finally:
            with self.server.lock:
                self.server.listeners.remove((name, mailbox))

    def _file(self, steps: list[str]) -> None:
        if steps == ["vendor", "plotly.min.js"]:
            return self._bytes(self.server.plotly.read_bytes(), "text/javascript")
        path = STATIC / "index.html" if steps == [""] else STATIC.joinpath(*steps[1:])
        if not path.is_file() or STATIC not in path.resolve().parents:
            return self._json({"error": "there is no such file"}, 404)
        kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
        return self._bytes(path.read_bytes(), "text/javascript" if path.suffix == ".js" else kind)

    def _json(self, answer: Json, status: int = 200) -> None:
        text = json.dumps(renamed(answer, self.server.renames), allow_nan=False)
        self._bytes(text.encode(), "application/json", status)

    def _bytes(self, body: bytes, kind: str, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("Content-Security-Policy", POLICY)
        self.end_headers()
        self.wfile.write(body)


Serve = Callable[..., MadeUpServer]
