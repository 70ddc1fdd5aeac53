"""The `cerebro-spark` command. It turns options into calls, results into text, and errors into one line."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from cerebro_spark._version import __version__
from cerebro_spark.dispatch import POLICIES
from cerebro_spark.errors import CerebroError, ConfigurationError
from cerebro_spark.simulation import Outcome, Scenario, simulate

MEGABYTE = 1_000_000


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        arguments: The words after `cerebro-spark`. Defaults to None: those of this process.

    Returns:
        The exit code: 0, 1 if `doctor` found something to fix, or 2 for an error, which is printed.
    """
    options = _parser().parse_args(arguments)
    command: Callable[[argparse.Namespace], int | None] = options.command
    try:
        return command(options) or 0
    except BrokenPipeError:
        return 1
    except (CerebroError, OSError) as error:
        print(f"cerebro-spark: error: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="cerebro-spark", description="Model Hopper Parallelism on Spark.")
    parser.add_argument("--version", action="version", version=f"cerebro-spark {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_demo(commands)
    _add_doctor(commands)
    _add_simulate(commands)
    _add_runs(commands)
    _add_show(commands)
    _add_clean(commands)
    return parser


def _add_simulate(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "simulate",
        help="run the scheduler on an imaginary cluster",
        description="Run the real scheduler on an imaginary cluster in virtual time, and compare with the lower bound.",
    )
    number: dict[str, Any] = {"type": int, "metavar": "N"}
    parser.add_argument("--trials", **number, default=16, help="number of trials (default: %(default)s)")
    parser.add_argument("--workers", **number, default=8, help="number of workers (default: %(default)s)")
    parser.add_argument(
        "--partitions", **number, default=None, help="number of training partitions (default: as many as workers)"
    )
    parser.add_argument("--epochs", **number, default=5, help="epochs of every trial (default: %(default)s)")
    parser.add_argument(
        "--replicas", **number, default=1, help="workers that hold each partition (default: %(default)s)"
    )
    parser.add_argument(
        "--validation", **number, default=0, help="validation partitions, evaluated every epoch (default: %(default)s)"
    )
    parser.add_argument(
        "--policy", default="hopper", metavar="NAME", help=f"one of {', '.join(POLICIES)} (default: %(default)s)"
    )
    parser.add_argument(
        "--heterogeneous",
        action="store_true",
        help="vary trial costs and worker speeds as in Figure 6 of the Cerebro paper",
    )
    parser.add_argument(
        "--cost", type=float, default=1.0, metavar="S", help="mean seconds of a unit (default: %(default)s)"
    )
    parser.add_argument(
        "--jitter",
        type=float,
        default=0.0,
        metavar="X",
        help="vary unit times by up to this share (default: %(default)s)",
    )
    parser.add_argument("--known-costs", action="store_true", help="tell the scheduler the costs and speeds in advance")
    parser.add_argument(
        "--failure-rate",
        type=float,
        default=0.0,
        metavar="X",
        help="probability that a worker dies during a unit (default: %(default)s)",
    )
    parser.add_argument(
        "--model-mb", type=float, default=100.0, metavar="MB", help="size of a checkpoint in MB (default: %(default)s)"
    )
    parser.add_argument(
        "--bandwidth-mb",
        type=float,
        default=float("inf"),
        metavar="MB",
        help="bandwidth for checkpoints in MB/s (default: %(default)s)",
    )
    parser.add_argument("--seeds", **number, default=1, help="run with the seeds 0 to N-1 (default: %(default)s)")
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object with a list of values, one for each seed"
    )
    parser.add_argument("--gantt", metavar="FILE.png", help="draw a Gantt chart of the run with seed 0")
    parser.set_defaults(command=_simulate)


def _add_demo(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "demo",
        help="show how trials hop",
        description="Compare the policies on an imaginary cluster, and draw the runs.",
    )
    parser.add_argument("--out", default="out", metavar="FOLDER", help="folder for the pictures (default: %(default)s)")
    parser.set_defaults(command=_demo)


def _add_doctor(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "doctor",
        help="check this installation, a store and a cluster",
        description="Check Java, Python, versions, a store and a cluster. The exit code is 1 if there is a FIX.",
    )
    parser.add_argument("--master", metavar="URL", help="check this Spark cluster too: local[2], spark://..., yarn")
    parser.add_argument(
        "--store", metavar="URL", help="check that this store is writable: a folder, hdfs://..., s3://..."
    )
    parser.add_argument(
        "--conf", action="append", default=[], metavar="NAME=VALUE", help="a setting of Spark; may be repeated"
    )
    parser.set_defaults(command=_doctor)


def _add_runs(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("runs", help="list the runs in a store", description="List the runs in a store.")
    parser.add_argument("store", metavar="STORE", help="a folder, hdfs://..., s3://...")
    parser.set_defaults(command=_runs)


def _add_show(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("show", help="show the trials of a run", description="Show the trials of a run.")
    parser.add_argument("store", metavar="STORE", help="a folder, hdfs://..., s3://...")
    parser.add_argument("run", metavar="RUN", help="the id of the run, as `cerebro-spark runs STORE` lists it")
    parser.add_argument("--plot", metavar="FILE.png", help="draw learning curves, params and a Gantt chart")
    parser.set_defaults(command=_show)


def _add_clean(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "clean",
        help="delete unused files of the cache and of a store",
        description="Delete unused files of this host's cache, and unfinished writes of dead processes in a store.",
    )
    parser.add_argument("--store", metavar="URL", help="clean this store too: a folder, hdfs://..., s3://...")
    parser.add_argument(
        "--older-than",
        type=float,
        metavar="DAYS",
        help="age in days from which on an unfinished write in the store is dead (default: 1; 7 for data sets)",
    )
    parser.add_argument("--dry-run", action="store_true", help="list the files with their bytes, and delete nothing")
    parser.set_defaults(command=_clean)


def _clean(options: argparse.Namespace) -> None:
    from cerebro_spark.cleaning import as_text, clean

    found = clean(options.store, older_than=options.older_than, dry_run=options.dry_run)
    print(as_text(found, options.dry_run))


def _doctor(options: argparse.Namespace) -> int:
    from cerebro_spark.doctor import examine

    settings = dict(_setting(pair) for pair in options.conf)
    colours = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    broken = 0
    for line in examine(options.master, options.store, settings):
        print(line.shown(colours), flush=True)
        broken += line.verdict == "FIX"
    return 1 if broken else 0


def _setting(pair: str) -> tuple[str, str]:
    name, sign, value = pair.partition("=")
    if not sign or not name:
        raise ConfigurationError(f"`conf` is {pair!r}, but must be NAME=VALUE, such as spark.task.cpus=2")
    return name, value


def _runs(options: argparse.Namespace) -> None:
    from cerebro_spark.result.listing import as_text, listed
    from cerebro_spark.store.opening import open_store

    store = open_store(options.store)
    lines = list(listed(store))
    print(as_text(lines) if lines else f"no runs in {store.url} yet")


def _show(options: argparse.Namespace) -> None:
    from cerebro_spark.result import Result

    if options.plot:
        from cerebro_spark.gantt import check_writable

        check_writable(options.plot)
    result = Result(options.store, options.run)
    print(result)
    if options.plot:
        result.plot().savefig(options.plot)
        print(f"Picture: {options.plot}")


def _simulate(options: argparse.Namespace) -> None:
    if options.seeds < 1:
        raise ConfigurationError(f"`seeds` is {options.seeds}, but must be at least 1")
    if not options.bandwidth_mb > 0:
        raise ConfigurationError(f"`bandwidth-mb` is {options.bandwidth_mb}, but must be above 0")
    if not 0 <= options.model_mb < float("inf"):
        raise ConfigurationError(f"`model-mb` is {options.model_mb}, but must be a number of megabytes, 0 or more")
    scenario = Scenario(
        trials=options.trials,
        workers=options.workers,
        partitions=options.partitions,
        epochs=options.epochs,
        replicas=options.replicas,
        validation=options.validation,
        policy=options.policy,
        heterogeneous=options.heterogeneous,
        cost=options.cost,
        jitter=options.jitter,
        known_costs=options.known_costs,
        failure_rate=options.failure_rate,
        model_bytes=int(options.model_mb * MEGABYTE),
        bandwidth=options.bandwidth_mb * MEGABYTE,
    )
    if options.gantt:
        from cerebro_spark.gantt import check_writable

        check_writable(options.gantt)
    outcomes = [simulate(scenario, seed, keep_bars=bool(options.gantt) and seed == 0) for seed in range(options.seeds)]
    print(json.dumps(_as_json(outcomes)) if options.json else _as_table(scenario, outcomes))
    if options.gantt:
        _draw(scenario, outcomes[0], options.gantt)


def _demo(options: argparse.Namespace) -> None:
    folder = Path(options.out)
    folder.mkdir(parents=True, exist_ok=True)
    print("8 trials hop over 8 workers, 5 epochs, unit times vary by 5 %: every worker should be busy all the time.\n")
    print(f"{'policy':<16}{'makespan':>10}{'x bound':>10}{'busy':>8}")
    for policy in POLICIES:
        scenario = Scenario(trials=8, workers=8, epochs=5, jitter=0.05, policy=policy)
        outcome = simulate(scenario, seed=1, keep_bars=True)
        print(f"{policy:<16}{outcome.makespan:>9.1f}s{outcome.ratio:>10.3f}{outcome.utilisation:>8.1%}")
        _draw(scenario, outcome, folder / f"gantt-{policy}.png")
    failing = Scenario(
        trials=16, workers=8, epochs=5, replicas=3, jitter=0.05, deaths={2: ((20.0, 45.0),), 5: ((24.0, 52.0),)}
    )
    outcome = simulate(failing, seed=1, keep_bars=True)
    print(f"\n16 trials, 3 replicas, two workers die and return: {outcome.ratio:.3f} x what those alive could do,")
    print(f"{outcome.units_rerun} units run again, none lost.")
    _draw(failing, outcome, folder / "gantt-failures.png")
    print(f"\nPictures: {folder}/gantt-*.png")
    print("Next: `cerebro-spark simulate --help` plays with your own numbers of trials, workers and partitions.")


def _draw(scenario: Scenario, outcome: Outcome, path: str | Path) -> None:
    from cerebro_spark.gantt import draw

    shape = f"{scenario.trials} trials on {scenario.workers} workers, {scenario.epochs} epochs"
    draw(outcome.timeline, path, f"{shape}, {scenario.policy}: {outcome.ratio:.3f} x the lower bound")


def _as_json(outcomes: Sequence[Outcome]) -> dict[str, list[float]]:
    keys = ("makespan", "lower_bound", "ratio", "utilisation", "units_rerun", "bytes_hopped")
    return {key: [getattr(outcome, key) for outcome in outcomes] for key in keys}


def _as_table(scenario: Scenario, outcomes: Sequence[Outcome]) -> str:
    values = {key: sum(column) / len(column) for key, column in _as_json(outcomes).items()}
    kind = "heterogeneous" if scenario.heterogeneous else "homogeneous"
    seeds = f", mean of {len(outcomes)} seeds" if len(outcomes) > 1 else ""
    lines = [
        f"{scenario.trials} trials x {scenario.workers} workers x {scenario.columns} partitions"
        f" x {scenario.epochs} epochs, {scenario.replicas} replica(s), {kind}, policy {scenario.policy}{seeds}",
        f"  makespan      {values['makespan']:.2f} s",
        f"  lower bound   {values['lower_bound']:.2f} s",
        f"  ratio         {values['ratio']:.4f}",
        f"  utilisation   {values['utilisation']:.1%}",
        f"  units lost    {sum(outcome.units_lost for outcome in outcomes)}",
        f"  trials failed {sum(outcome.trials_failed for outcome in outcomes)}",
        f"  units re-run  {values['units_rerun']:g}",
        f"  bytes hopped  {values['bytes_hopped'] / MEGABYTE:,.0f} MB",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
