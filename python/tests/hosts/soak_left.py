"""Says what is in the store of a soak beside its data: `python -m hosts.soak_left STORE`.

First it clears away what writers had begun who were killed, as `cerebro-spark clean` does, and says how many files.
"""

from __future__ import annotations

import sys

from cerebro_spark.data.dataset import Dataset
from cerebro_spark.store import open_store


def main(url: str) -> None:
    store = open_store(url)
    data = Dataset.open(store).folder
    print(store.sweep(older_than=0.0))
    for name in store.list(""):
        if not name.startswith(f"{data}/"):
            print(name)
    for name in store.unfinished(older_than=0.0):
        print(name)


if __name__ == "__main__":
    main(*sys.argv[1:])
