"""Who holds places of a cluster is asked to make room, as long as it is there."""

from __future__ import annotations

import gc
from typing import Any

from cerebro_spark.data.slots import add_holder, make_room, remove_holder


class Holder:
    def __init__(self, asked: list[Any]) -> None:
        self._asked = asked

    def make_room(self, context: Any) -> None:
        self._asked.append((self, context))


def test_every_holder_is_asked_but_the_one_whose_job_it_is() -> None:
    asked: list[Any] = []
    first, second = Holder(asked), Holder(asked)
    for holder in (first, second, first):
        add_holder(holder)
    make_room("context")
    assert sorted(asked, key=str) == sorted([(first, "context"), (second, "context")], key=str)
    asked.clear()
    make_room("context", besides=first)
    assert asked == [(second, "context")]
    remove_holder(second)
    remove_holder(second)
    asked.clear()
    make_room("other")
    assert asked == [(first, "other")]


def test_a_holder_that_is_gone_is_not_asked() -> None:
    asked: list[Any] = []
    add_holder(Holder(asked))
    gc.collect()
    make_room("context")
    assert asked == []
