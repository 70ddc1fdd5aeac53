"""Random orders are counted, differ with their seed, and show what is broken; `make fuzz` plays a million events.

Attacks on a hub are counted, have no effect, and show what is broken; `make fuzz-wire` makes a million.
"""

from __future__ import annotations

import ssl

import pytest
from fuzz.playing import play
from fuzz.wire import besiege

from cerebro_spark.backend.wire import hub as hubs
from cerebro_spark.backend.wire.credentials import Credentials, make_context
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


@pytest.mark.slow
def test_attacks_on_a_hub_have_no_effect() -> None:
    siege = besiege(before=300, after=100, seed=7)
    assert siege.acted == []
    assert siege.admitted >= 2


@pytest.mark.slow
def test_a_hub_that_trusts_anybody_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def trusting(credentials: Credentials) -> ssl.SSLContext:
        context = make_context(credentials)
        context.verify_mode = ssl.CERT_NONE
        return context

    monkeypatch.setattr(hubs, "make_context", trusting)
    assert besiege(before=1, after=100, seed=7).acted
