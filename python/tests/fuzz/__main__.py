"""Plays random orders of events against the scheduler until there were so many, in a process for each core.

    PYTHONPATH=python/tests python -m fuzz [--events 1000000] [--seed N] [--processes N]
    PYTHONPATH=python/tests python -m fuzz --frames 1000000 [--seed N]

Every order keeps the rules, comes to an end, and is repeated with the same actions: see `test_scheduler_stateful.py`.
What breaks one is shrunk and raised. Orders are drawn anew each time, unless a seed is given. With `--frames` a hub is
attacked that often instead, one time in five after the handshake.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import time

from fuzz.playing import play
from fuzz.wire import besiege


def main() -> None:
    """Play as the command line says, and print how much was played."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--frames", type=int)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    if options.frames is not None:
        attack_hub(options.frames, options.seed)
        return
    print(f"seed {options.seed}, {options.processes} processes", flush=True)
    began = time.monotonic()
    share = -(-options.events // options.processes)
    # Far enough apart that no two processes come to the same round.
    begins = [(share, options.seed + number * options.events) for number in range(options.processes)]
    with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
        played = pool.starmap(play, begins)
    events, orders, seconds = sum(p.events for p in played), sum(p.orders for p in played), time.monotonic() - began
    print(f"{events:,} events in {orders:,} orders, {seconds:.0f} s: every order kept the rules and was repeated")


def attack_hub(frames: int, seed: int) -> None:
    """Attack a hub, and print what came of it."""
    print(f"seed {seed}", flush=True)
    began = time.monotonic()
    siege = besiege(frames - frames // 5, frames // 5, seed)
    print(
        f"{siege.before:,} attacks before the handshake and {siege.after:,} after it, {time.monotonic() - began:.0f} s:"
        f" {len(siege.acted)} were acted on, {siege.admitted} honest workers were admitted after at most"
        f" {siege.slowest:.2f} s, memory grew by {siege.growth / 2**20:.1f} MiB"
    )
    if siege.acted:
        raise SystemExit(f"acted on: {siege.acted[:3]}")


if __name__ == "__main__":
    main()
