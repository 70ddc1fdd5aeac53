"""What other processes do with a store. Nothing heavy may be imported here, because each of them imports it."""

from __future__ import annotations

import pickle
from typing import Any

from cerebro_spark.errors import AlreadyInStore
from cerebro_spark.store.base import Store


def use(pickled: bytes, name: str, answers: Any) -> None:
    store: Store = pickle.loads(pickled)
    store.write(name, name.encode())
    with store.writer(name + "-streamed") as file:
        file.write(store.read("from the parent"))
    answers.put(store.list())


def contest(pickled: bytes, number: int, ready: Any, answers: Any) -> None:
    store: Store = pickle.loads(pickled)
    store.exists("warm up the connection")
    ready.wait(60)
    try:
        store.write("contested", bytes([number]) * 50_000)
        answers.put((number, "done"))
    except AlreadyInStore:
        answers.put((number, "taken"))
