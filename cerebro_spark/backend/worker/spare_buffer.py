"""Memory for checkpoints that is used again. It knows nothing of what is in it."""

from __future__ import annotations

from collections import deque
from io import BytesIO


class SpareBuffer:
    """Keeps one buffer for the next checkpoint, once the last one is stored. Any thread may call any method.

    The system hands out memory page by page, and clears each: for large checkpoints that takes longer than all the rest
    of saving one. No more is kept than the last checkpoint took.

    >>> spare = SpareBuffer()
    >>> buffer = spare.take()
    >>> buffer.write(b"a checkpoint")
    12
    >>> spare.give_back(buffer)
    >>> spare.take() is buffer, buffer.tell(), spare.take() is buffer
    (True, 0, False)
    """

    def __init__(self) -> None:
        self._spare: deque[BytesIO] = deque(maxlen=1)

    def take(self) -> BytesIO:
        """Return a buffer to be written from its beginning. What was there before may still follow what is written."""
        try:
            buffer = self._spare.pop()
            buffer.seek(0)
            buffer.write(b"")
        except (IndexError, BufferError):  # there is none, or somebody still reads it: a write that was given up, say
            return BytesIO()
        return buffer

    def give_back(self, buffer: BytesIO) -> None:
        """Keep a buffer for later."""
        self._spare.append(buffer)
