"""How one batch of a trial is tried on the first worker there, before a run begins. It decides nothing."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from cerebro_spark.backend.hand import Hand
from cerebro_spark.backend.hub import Hub
from cerebro_spark.backend.job import Job
from cerebro_spark.backend.wire import Message
from cerebro_spark.codec import to_plain
from cerebro_spark.errors import BackendError
from cerebro_spark.types import WorkerId

_SECONDS_TO_END = 10.0


class Rehearsals:
    """The part of a WiredBackend that rehearses. `_news` is its lock, notified of whatever a rehearsal waits for."""

    start_timeout: float
    _news: threading.Condition
    _hands: dict[WorkerId, Hand]
    _hub: Hub | None
    _job: Job | None
    _rehearsed: dict[int, str | None]
    _practice: Message | None
    _failure: BackendError | None

    def rehearse(self, params: Mapping[str, Any]) -> str | None:
        plain = to_plain(params, "params")
        last_words = ""
        # A worker may be taken away in just this moment; if the next dies too, it is the trial that kills them.
        for _ in range(2):
            hand, number = self._rehearse_once(plain)
            if number is not None:
                return self._rehearsed[number]
            hand.ended.wait(_SECONDS_TO_END)
            died = f"worker {hand.name} on {hand.host} died; its last words:"
            last_words = last_words or "\n".join([died, *hand.words])
        return last_words

    def _rehearse_once(self, plain: Any) -> tuple[Hand, int | None]:
        """Have the first worker there try one batch; returns it, and where to find what it said, None if it died."""
        with self._news:
            hand = self._first_comer()
            assert self._hub is not None
            hand.tried = True
            number = len(self._rehearsed)
            self._hub.send(hand.peer or 0, {"type": "rehearse", "number": number, "params": plain})
            # The others have nothing to do meanwhile, and would build and trace the same in their first unit.
            self._practice = {"type": "practise", "params": plain} if number == 0 else None
            for other in self._hands.values():
                if self._practice and other is not hand and other.peer is not None:
                    self._hub.send(other.peer, self._practice)
            self._wait_for_rehearsal(hand, number)
            self._practice = None
            if self._failure is not None:
                raise self._failure
            if number in self._rehearsed:
                return hand, number
            self._rehearsed[number] = None
            return hand, None

    def _wait_for_rehearsal(self, hand: Hand, number: int) -> None:
        """Until it is over, or its worker is gone, or it takes too long, which counts as its end; the lock is held."""
        assert self._job is not None
        assert self._hub is not None
        limit = self._job.unit_timeout
        seconds = None if limit is None else limit + self.start_timeout  # frameworks are loaded, models built first
        if not self._news.wait_for(
            lambda: number in self._rehearsed or hand.name not in self._hands or self._failure, seconds
        ):
            self._rehearsed[number] = f"one batch took longer than {seconds:g} s"
            self._hub.lose(hand.peer or 0, str(self._rehearsed[number]))

    def _first_comer(self) -> Hand:
        """Wait until a worker is there. With none for ever, the facts hold the error that says so."""

        def there() -> Hand | None:
            return next((hand for hand in self._hands.values() if hand.peer is not None), None)

        self._news.wait_for(lambda: there() or self._failure)
        if self._failure is not None:
            raise self._failure
        found = there()
        assert found is not None
        return found

    def _note_rehearsal(self, message: Message) -> None:
        error = message.get("error")
        with self._news:
            self._rehearsed[int(message["number"])] = None if error is None else str(error)
            self._news.notify_all()
