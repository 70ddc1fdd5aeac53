"""A backend has one run at a time: nobody else starts one, closes its workers or gets its job without its knowing."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from cerebro_spark.backend.tenancy import Tenancy
from cerebro_spark.errors import BackendError


def in_a_thread(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, name="another", daemon=True)
    thread.start()
    return thread


def held(tenancy: Tenancy, until: threading.Event) -> threading.Thread:
    """Have another thread take the backend, and keep it until it is told to give it back."""
    taken = threading.Event()

    def hold() -> None:
        tenancy.begin()
        taken.set()
        assert until.wait(60)
        tenancy.end()

    thread = in_a_thread(hold)
    assert taken.wait(60)
    return thread


def test_who_has_it_is_named_to_others_and_to_itself() -> None:
    tenancy, until = Tenancy(), threading.Event()
    thread = held(tenancy, until)
    assert tenancy.is_of_another
    for refused in (tenancy.begin, tenancy.check_free):
        with pytest.raises(BackendError, match=r"running already: thread another drives a run .*wait for that run"):
            refused()
    until.set()
    thread.join(60)
    tenancy.begin()
    with pytest.raises(BackendError, match="running already: this thread drives"):
        tenancy.begin()


def test_only_the_thread_that_has_it_gives_it_back() -> None:
    tenancy, until = Tenancy(), threading.Event()
    thread = held(tenancy, until)
    tenancy.end()
    assert tenancy.is_of_another
    until.set()
    tenancy.wait_until_free()
    assert not tenancy.is_of_another
    thread.join(60)


def test_a_thread_that_is_gone_has_nothing() -> None:
    tenancy = Tenancy()
    in_a_thread(tenancy.begin).join(60)
    tenancy.wait_until_free()
    tenancy.begin()


def test_to_revoke_it_concerns_only_the_run_that_has_it_now() -> None:
    tenancy, until = Tenancy(), threading.Event()
    assert not tenancy.revoke(), "nobody has it"
    thread = held(tenancy, until)
    assert tenancy.revoke()
    with pytest.raises(BackendError, match=r"closed while a run went on.*cs\.resume"):
        tenancy.check()
    until.set()
    thread.join(60)
    tenancy.begin()
    tenancy.check()
    assert not tenancy.revoke(), "it is this thread's own"
    tenancy.check()


def test_the_wait_for_it_has_a_limit() -> None:
    tenancy, until = Tenancy(), threading.Event()
    thread = held(tenancy, until)
    tenancy.wait_until_free(0.01)
    assert tenancy.is_of_another
    until.set()
    thread.join(60)


def test_a_run_that_would_begin_while_the_backend_is_closed_begins_after_that() -> None:
    tenancy, begun = Tenancy(), threading.Event()
    tenancy.take_to_close()

    def begin() -> None:
        tenancy.check_free()
        tenancy.begin()
        begun.set()

    thread = in_a_thread(begin)
    assert not begun.wait(0.05)
    assert not tenancy.revoke(), "no run of another is there to be ended"
    tenancy.end()
    assert begun.wait(60)
    thread.join(60)


def test_whoever_closes_the_backend_waits_for_the_run_that_goes_on() -> None:
    tenancy, until, taken = Tenancy(), threading.Event(), threading.Event()
    thread = held(tenancy, until)

    def close() -> None:
        tenancy.take_to_close()
        taken.set()

    closing = in_a_thread(close)
    assert not taken.wait(0.05)
    until.set()
    assert taken.wait(60)
    closing.join(60)
    thread.join(60)
