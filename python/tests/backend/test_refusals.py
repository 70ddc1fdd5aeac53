"""What is written about refused connections, in a minute that is told."""

from __future__ import annotations

from cerebro_spark.backend.wire.refusals import RefusalLog


def test_the_first_lines_of_a_minute_are_written_and_the_others_counted() -> None:
    now = [0.0]
    lines: list[str] = []
    refusals = RefusalLog(lines.append, lambda: now[0])
    for knock in range(500):
        refusals.add(f"knock {knock}")

    assert lines[:9] == [f"knock {knock}" for knock in range(9)]
    assert lines[9:] == ["knock 9; more of them in this minute will only be counted"]

    now[0] = 60.0
    refusals.add("a minute later")
    assert lines[10:] == ["connections that were refused and not told of one by one: 490", "a minute later"]


def test_what_was_counted_is_said_at_the_end_and_once() -> None:
    lines: list[str] = []
    refusals = RefusalLog(lines.append, lambda: 0.0)
    for _ in range(11):
        refusals.add("knock")
    refusals.close()
    refusals.close()

    assert lines[10:] == ["connections that were refused and not told of one by one: 1"]


def test_few_are_all_written() -> None:
    lines: list[str] = []
    refusals = RefusalLog(lines.append, lambda: 0.0)
    for _ in range(3):
        refusals.add("knock")
    refusals.close()

    assert lines == ["knock"] * 3
