"""Makes the picture of the dashboard in the README, from a real search while it trains.

    python python/tests/dashboard/dashboard_picture.py [FILE]

It needs the extras `dashboard`, `torch`, `images` and `examples`, Playwright and chromium, and takes about a minute.
"""

from __future__ import annotations

import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import page_checks
from browsing import opened_page, started_browser, wait_for_charts
from dashboard_clients import serving

import cerebro_spark as cs
from cerebro_spark import hp
from cerebro_spark.commands import Command
from cerebro_spark.live.handle import OVER
from cerebro_spark.live.run import Run

if TYPE_CHECKING:
    from playwright.sync_api import Page

FILE = Path(__file__).resolve().parents[3] / "docs" / "images" / "dashboard.png"
RUN = "digits"
TRIALS, EPOCHS = 16, 24
WIDTH, HEIGHT = 1280, 1600
COLOURS = 256
SECONDS = 600.0


def model_fn(params: Mapping[str, Any]) -> cs.TorchModel:
    import torch
    from torch import nn

    hidden = params["hidden"]
    module = nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, hidden, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(params["dropout"]),
        nn.Linear(64 * hidden, 10),
    )

    def accuracy(output: Any, label: Any) -> Any:
        return (output.argmax(1) == label).float()

    optimizer = torch.optim.Adam(module.parameters(), lr=params["lr"])
    return cs.TorchModel(module, optimizer, nn.CrossEntropyLoss(), metrics={"accuracy": accuracy})


def start(store: Path) -> Run:
    """Begin a search over 16 small networks that read handwritten digits."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    data = {"x": (digits.data / 16).astype("float32"), "y": digits.target.astype(np.int64)}
    search = cs.GridSearch(
        model_fn,
        space={
            "lr": hp.choice([1e-2, 3e-3, 1e-3, 1e-4]),
            "hidden": hp.choice([8, 32]),
            "dropout": hp.choice([0.0, 0.4]),
            "batch_size": 16,
        },
        backend=cs.LocalBackend(4, threads=1),
        store=str(store),
        features="x",
        label="y",
        validation=0.25,
        metric="val_accuracy",
        mode="max",
        epochs=EPOCHS,
        seed=7,
        progress=False,
    )
    return search.start(data, run_id=RUN)


def wait_until(run: Run, ready: Callable[[], bool]) -> None:
    """Look with every turn of the run."""
    run._live.wait_for_answer(Command("pause"), lambda: ready() or run._ended.is_set(), SECONDS)
    if not ready():
        raise SystemExit(f"the run is over too early: {run!r} {run.error or ''}")


def steer(run: Run) -> None:
    """Do what a person would: stop the worst, and try a variation of the best."""
    wait_until(run, lambda: len(run.trials) > 0 and bool((run.trials.epochs >= 2).all()))
    worst = run.snapshot().ranked()[-1]
    run.stop_trial(worst)
    assert run.best is not None
    run.clone(run.best.id, params={"lr": 5e-3}, epochs=EPOCHS // 2)


def shoot(page: Page, url: str, file: Path) -> None:
    """Keep the upper part of the page of the run."""
    page.set_viewport_size({"width": WIDTH, "height": HEIGHT})
    page_checks.open_run(page, url, RUN)
    wait_for_charts(page)
    page.get_by_label("Filter trials").fill("hidden=32")  # fewer rows, so that the workers can be seen below them
    page.get_by_label("Filter trials").blur()
    page.locator("#part-gantt").get_by_role("button", name="1 min", exact=True).click()
    threading.Event().wait(3.0)  # a few updates: the charts below are drawn when they come into sight
    page.screenshot(path=file)


def shrink(file: Path) -> None:
    """Keep few colours, which the eye does not miss."""
    from PIL import Image

    with Image.open(file) as picture:
        picture.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(file, optimize=True)


def watch(run: Run, store: str, file: Path) -> None:
    """Look at the run, steer it, and keep a picture when it is half done."""
    with serving(cs.open_store(store)) as served, started_browser() as browser, opened_page(browser) as page:
        page.goto(served.link())
        steer(run)
        wait_until(run, lambda: run.progress.epochs >= 0.5 * TRIALS * EPOCHS)
        shoot(page, f"http://127.0.0.1:{served.port}/", file)


def main(file: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = start(Path(folder))
        try:
            watch(run, folder, file)
        finally:
            if run.status not in OVER:
                run.end()
            run.wait(SECONDS)
    shrink(file)
    print(f"{file}: {file.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else FILE)
