"""What collects the blocks misses none, and what checks commands refuses wrong ones."""

from __future__ import annotations

from pathlib import Path

import doc_commands
import pytest
from doc_blocks import Block, blocks

PAGE = """# A page

```python
ours = 1
```

<!-- not run: this is theirs -->
```python
theirs = 1
```

!!! note
    ```python
    if ours:
        within = 1
    ```

```console
$ cerebro-spark --help
usage
$ make docs
```
"""


@pytest.fixture
def page(tmp_path: Path) -> Path:
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    return page


def test_a_mark_is_for_the_next_block_alone(page: Path) -> None:
    assert [(block.language, block.why_not) for block in blocks(page)] == [
        ("python", None),
        ("python", "this is theirs"),
        ("python", None),
        ("console", None),
    ]


def test_blocks_keep_their_lines_and_lose_their_indent(page: Path) -> None:
    first, _, within, _ = blocks(page)
    assert first.padded.splitlines()[3] == "ours = 1"
    assert within.code == "if ours:\n    within = 1\n"
    assert PAGE.splitlines()[within.line - 1].strip() == "if ours:"


def test_a_console_block_has_commands_with_their_output(page: Path) -> None:
    assert doc_commands.commands(blocks(page)[-1]) == [("cerebro-spark --help", "usage\n"), ("make docs", "")]


def test_a_shell_block_has_a_command_a_line() -> None:
    block = Block(Path("page.md"), 1, "bash", "# first\nmake docs\n\nmake \\\n  test\n", None)
    assert [" ".join(command.split()) for command, _ in doc_commands.commands(block)] == ["make docs", "make test"]


@pytest.mark.parametrize(
    "command",
    [
        "pip install 'cerebro-spark[nonsense]'",
        "pip install -c constraints/nowhere.txt .",
        "pip install something-else",
        "make nonsense",
        "python examples/digits.py --nonsense 3",
        "python -m nonsense",
        "nonsense --help",
    ],
)
def test_a_wrong_command_is_refused(command: str) -> None:
    with pytest.raises(AssertionError):
        doc_commands.check(command, "")


def test_an_option_of_ours_that_is_not_there_is_refused() -> None:
    with pytest.raises(SystemExit):
        doc_commands.check("cerebro-spark simulate --nonsense", "")


def test_output_that_is_not_what_comes_out_is_refused() -> None:
    command = "cerebro-spark simulate --trials 2 --workers 2 --epochs 1"
    with pytest.raises(AssertionError):
        doc_commands.check(command, "something else\n")


@pytest.mark.parametrize(
    "command",
    [
        "pip install -c constraints/classic.txt '.[spark,torch]'",
        "make docs",
        "python examples/digits.py --trials 2",
        "cerebro-spark doctor --master yarn",
    ],
)
def test_a_right_command_passes(command: str) -> None:
    doc_commands.check(command, "")
