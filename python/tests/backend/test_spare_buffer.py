"""Memory of checkpoints is used again, and never while somebody reads it."""

from __future__ import annotations

from io import BytesIO

from cerebro_spark.backend.worker.spare_buffer import SpareBuffer


def given_back(content: bytes) -> tuple[SpareBuffer, BytesIO]:
    spare = SpareBuffer()
    buffer = spare.take()
    buffer.write(content)
    spare.give_back(buffer)
    return spare, buffer


def test_a_buffer_that_somebody_reads_is_not_written_again() -> None:
    spare, buffer = given_back(b"the first")
    with buffer.getbuffer() as read:
        other = spare.take()
        other.write(b"the second")
        assert (bytes(read), other.getvalue()) == (b"the first", b"the second")
    assert other is not buffer


def test_a_slice_that_outlives_its_view_counts_too() -> None:
    spare, buffer = given_back(b"the first")
    with buffer.getbuffer() as whole:
        part = whole[:3]
    assert spare.take() is not buffer
    assert bytes(part) == b"the"


def test_a_shorter_checkpoint_is_written_over_a_longer_one_from_the_beginning() -> None:
    spare, buffer = given_back(b"a long one")
    again = spare.take()
    written = again.write(b"short")
    assert again is buffer
    with again.getbuffer() as whole, whole[:written] as part:
        assert bytes(part) == b"short"


def test_one_is_kept_at_most() -> None:
    spare = SpareBuffer()
    first, second = spare.take(), spare.take()
    spare.give_back(first)
    spare.give_back(second)
    assert spare.take() is second
    assert spare.take() is not first
