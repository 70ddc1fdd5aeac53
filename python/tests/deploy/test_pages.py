"""What can be checked of docs/deploy without a cluster: links lead somewhere, and settings are those of Spark."""

from __future__ import annotations

import re
import subprocess
import zipfile
from pathlib import Path

import pages
import pytest
from gateway import HAS_MESOS, SPARK_HOME

NAMES = sorted(page.stem for page in pages.FOLDER.glob("*.md"))
# Names that end in something of the user's.
OPEN = ("spark.executorEnv.", "spark.kubernetes.driver.secretKeyRef.", "spark.kubernetes.executor.secretKeyRef.")
# Put together by Spark from two constants; test_asked.py sees that it is heeded.
BUILT = {"spark.kubernetes.authenticate.driver.serviceAccountName"}


def test_all_pages_are_listed() -> None:
    listed = re.findall(r"\]\((\w+)\.md\)", pages.text("index"))
    assert sorted({*listed, "index"}) == NAMES


@pytest.mark.parametrize("page", NAMES)
def test_links_lead_somewhere(page: str) -> None:
    for link in re.findall(r"\]\((?!https?:)([^)]+)\)", pages.text(page)):
        file, _, anchor = link.partition("#")
        target = pages.FOLDER / (file or f"{page}.md")
        headings = re.findall(r"^#+ (.+)$", target.read_text(), re.MULTILINE)
        assert not anchor or anchor in {heading.lower().replace(" ", "-") for heading in headings}, link


@pytest.mark.parametrize("page", NAMES)
def test_commands_are_shell(page: str) -> None:
    for code in (*pages.blocks(page, "bash"), *pages.blocks(page, "sh")):
        subprocess.run(["bash", "-n"], input=code, text=True, check=True, timeout=300)


def test_the_files_that_commands_name_are_there() -> None:
    """Relative to the root of the project; what a page has made before is not looked for."""
    for page in NAMES:
        for name in re.findall(r"(?<![\w/.])examples/[\w/.]+", pages.text(page)):
            assert (pages.ROOT / name).is_file(), f"{page}.md names {name}"


@pytest.fixture(scope="module")
def settings_of_spark() -> set[str]:
    """Every name of a setting that occurs as a constant in Spark's own classes."""
    found: set[str] = set()
    for jar in ("core", "kubernetes", "mesos", "yarn", "launcher", "sql", "common-utils", "network-common"):
        if jar == "mesos" and not HAS_MESOS:
            continue
        (place,) = Path(SPARK_HOME, "jars").glob(f"spark-{jar}_*.jar")
        with zipfile.ZipFile(place) as archive:
            for entry in archive.namelist():
                if entry.endswith(".class"):
                    code = archive.read(entry)
                    if b"spark." in code:
                        found |= {name.decode() for name in re.findall(rb"spark\.[a-zA-Z][\w.]*", code)}
    return found


@pytest.mark.slow
@pytest.mark.parametrize("page", NAMES)
def test_settings_are_those_of_spark(page: str, settings_of_spark: set[str]) -> None:
    if page == "mesos" and not HAS_MESOS:
        pytest.skip("Spark 4 has no Mesos")
    prose = re.sub(r"^```python\n.*?^```$", "", pages.text(page), flags=re.MULTILINE | re.DOTALL)
    for name in set(re.findall(r"(?<![\w.:/-])spark\.[a-z][\w.]*[\w]", prose)):
        resource = re.fullmatch(r"spark\.(worker|executor|task|driver)\.resource\.gpu\.(\w+)", name)
        if resource:
            assert resource[2] in ("amount", "discoveryScript", "vendor"), name
        elif not name.startswith(OPEN) and name not in BUILT:
            assert name in settings_of_spark, f"{page}.md says {name}"
