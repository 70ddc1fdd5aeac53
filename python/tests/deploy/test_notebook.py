"""docs/deploy/notebook.md as the notebook that it describes: its blocks are cells, and Jupyter runs them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pages
import pytest
from gateway import Gateway

pytestmark = [pytest.mark.jvm, pytest.mark.slow, pytest.mark.timeout(900)]


def notebook() -> dict[str, Any]:
    cells: list[dict[str, Any]] = [
        {"cell_type": "code", "execution_count": None, "id": f"c{at}", "metadata": {}, "outputs": [], "source": code}
        for at, code in enumerate(pages.blocks("notebook", "python", under="One machine"))
    ]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    return {"cells": cells, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}


def streams(outputs: list[dict[str, Any]]) -> str:
    return "".join("".join(output["text"]) for output in outputs if output["output_type"] == "stream")


def test_every_cell_runs(tmp_path: Path) -> None:
    gateway = Gateway(tmp_path / "home")
    gateway.configure("spark.ui.enabled false\nspark.driver.memory 512m\n")
    (gateway.folder / "search.ipynb").write_text(json.dumps(notebook()))
    gateway.run(pages.block("notebook", "bash", under="Without a browser"), IPYTHONDIR=tmp_path / "ipython")
    done = json.loads((gateway.folder / "done.ipynb").read_text())
    outputs = [cell["outputs"] for cell in done["cells"]]
    assert all(cell["execution_count"] for cell in done["cells"])
    assert not any("Warning" in streams(shown) for shown in outputs)
    _, _, _, fitting, table, scored = outputs
    bar = streams(fitting)
    assert "32/32" in bar.splitlines()[-1].replace(" ", ""), bar[-500:]
    assert "4 done" in bar
    (shown,) = table
    assert "<table" in "".join(shown["data"]["text/html"])
    assert "prediction" in streams(scored)
    assert (gateway.folder / "runs").is_dir()
