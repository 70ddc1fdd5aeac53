"""Random orders are counted, differ with their seed, and show what is broken; `make fuzz` plays a million events."""

from __future__ import annotations

import pytest
from fuzz.playing import play

from cerebro_spark.scheduler import MopScheduler


def test_orders_are_played_until_there_were_enough_events() -> None:
    played = play(300, begin=7, orders=3)
    assert played.events >= 300
    assert played.orders >= 3
    assert play(300, begin=7, orders=3) == played
    assert play(300, begin=8, orders=3) != played


def test_what_is_broken_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three workers at a time are taken for a broken rule."""
    sound = MopScheduler.check_invariants

    def check(self: MopScheduler) -> None:
        sound(self)
        assert len(self.state.workers) < 3, "three are a crowd"

    monkeypatch.setattr(MopScheduler, "check_invariants", check)
    with pytest.raises(AssertionError, match="three are a crowd"):
        play(10_000, begin=7, orders=10, shrinks=False)
