"""What holds for the pages' files without a browser: none parses HTML, nothing comes from elsewhere, all is shipped."""

from __future__ import annotations

import re
from configparser import ConfigParser
from pathlib import Path

import pytest

from cerebro_spark.commands import VERBS

ROOT = Path(__file__).resolve().parents[3]
STATIC = ROOT / "cerebro_spark" / "dashboard" / "static"
FILES = sorted(path for path in STATIC.rglob("*") if path.is_file())
SCRIPTS = [path for path in FILES if path.suffix == ".js"]
# Whatever turns text into markup or code.
FORBIDDEN = (
    r"innerHTML|outerHTML|insertAdjacentHTML|createContextualFragment|setHTMLUnsafe|parseFromString|DOMParser"
    r"|document\.write|srcdoc|\beval\s*\(|new\s+Function|setTimeout\(\s*[\"'`]|javascript:"
)
IMPORTS = re.compile(r"^import .*? from \"\./(.+?)\";", re.MULTILINE)
READABLE = [
    *(("text", ground) for ground in ("ground", "surface", "raised", "sunken", "hover", "chosen")),
    *(("muted", ground) for ground in ("ground", "surface", "raised", "sunken")),
    *(("accent", ground) for ground in ("ground", "surface", "raised", "hover")),
    *((state, f"{state}-wash") for state in ("running", "good", "warn", "bad", "calm")),
    *(("bad", ground) for ground in ("surface", "raised")),
    ("on-accent", "accent-fill"),
    ("on-accent", "bad-fill"),
]
VISIBLE = [("line-strong", "surface"), ("focus", "surface"), ("focus", "ground"), ("running", "calm-wash")]


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_no_script_parses_html_or_code(path: Path) -> None:
    assert re.findall(FORBIDDEN, path.read_text()) == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_nothing_comes_from_elsewhere(path: Path) -> None:
    # A name space is no address.
    text = path.read_text().replace("http://www.w3.org/2000/svg", "")
    assert re.findall(r"https?://|@import|(?:href|src)=\"/", text) == []


def test_the_page_has_nothing_inline() -> None:
    page = (STATIC / "index.html").read_text()
    assert re.findall(r"<style|\sstyle=|\son\w+=|<script(?![^>]*\ssrc=)", page) == []


def test_every_script_is_used_and_every_import_exists() -> None:
    names = {path.name for path in SCRIPTS}
    reached, left = {"first.js"}, ["main.js"]
    while left:
        name = left.pop()
        assert name in names
        if name not in reached:
            reached.add(name)
            left += IMPORTS.findall((STATIC / "js" / name).read_text())
    assert reached == names


def test_files_stay_small() -> None:
    assert [path.name for path in FILES if len(path.read_text().splitlines()) > 400] == []


def test_every_file_is_shipped() -> None:
    config = ConfigParser()
    config.read(ROOT / "setup.cfg")
    patterns = config["options.package_data"]["cerebro_spark"].split()
    shipped = {path for pattern in patterns for path in (ROOT / "cerebro_spark").glob(pattern)}
    assert set(FILES) <= shipped


def test_every_command_has_its_words() -> None:
    words = (STATIC / "js" / "command_words.js").read_text()
    listed = re.search(r"export const WORDS = \{(.*)\}", words)
    assert listed is not None
    assert {entry.split(":")[0].strip() for entry in listed[1].split(",")} == set(VERBS)


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_texts_and_marks_stand_out_from_their_ground(theme: int) -> None:
    colours = _colours(theme)
    weak = [(*pair, round(_contrast(*(colours[one] for one in pair)), 2)) for pair in READABLE + VISIBLE]
    assert [found for found in weak if found[2] < (3.0 if found[:2] in VISIBLE else 4.5)] == []


def _colours(theme: int) -> dict[str, str]:
    text = (STATIC / "style" / "colours.css").read_text()
    both = re.findall(r"--([\w-]+): light-dark\((#\w{6}), (#\w{6})\);", text)
    single = re.findall(r"--([\w-]+): (#\w{6});", text)
    return {name: (light, dark)[theme] for name, light, dark in both} | dict(single)


def _contrast(one: str, other: str) -> float:
    """The ratio that WCAG asks for: 4.5 for texts, 3 for large ones and for marks."""
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


def _luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
