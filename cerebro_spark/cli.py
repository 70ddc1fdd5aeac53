"""The `cerebro-spark` command. It turns options into calls, results into text, and errors into one line."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from cerebro_spark._version import __version__
from cerebro_spark.cli_live import COMMANDS as LIVE_COMMANDS
from cerebro_spark.cli_options import RUN, STORE, CommandSpec, flag, value
from cerebro_spark.cli_plan import COMMANDS as PLAN_COMMANDS
from cerebro_spark.dashboard.arguments import ARGUMENTS as DASHBOARD_ARGUMENTS
from cerebro_spark.dispatch import POLICIES
from cerebro_spark.errors import CerebroError, ConfigurationError
from cerebro_spark.gantt import check_writable, draw
from cerebro_spark.simulation import Outcome, Scenario, simulate

MEGABYTE = 1_000_000


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        arguments: The words after `cerebro-spark`. Defaults to None: those of this process.

    Returns:
        The exit code: 0; 2 for an error, which is printed; 1 if `doctor` found something to fix, or a live run refused
        a command; 3 if it did not answer.
    """
    options = _parser().parse_args(arguments)
    try:
        return options.command(options) or 0
    except BrokenPipeError:
        return 1
    except (CerebroError, OSError) as error:
        print(f"cerebro-spark: error: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="cerebro-spark", description="Model Hopper Parallelism on Spark.")
    parser.add_argument("--version", action="version", version=f"cerebro-spark {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, (run, summary, description, arguments) in _COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=description)
        command.set_defaults(command=run)
        for argument, settings in arguments.items():
            command.add_argument(argument, **settings)
    return parser


def _clean(options: argparse.Namespace) -> None:
    from cerebro_spark.cleaning import clean, format_leftovers

    found = clean(options.store, older_than=options.older_than, dry_run=options.dry_run)
    print(format_leftovers(found, options.dry_run))


def _doctor(options: argparse.Namespace) -> int:
    from cerebro_spark.doctor import examine

    settings = dict(_setting(pair) for pair in options.conf)
    colours = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    broken = 0
    for diagnosis in examine(options.master, options.store, settings):
        print(diagnosis.format(colours), flush=True)
        broken += diagnosis.verdict == "FIX"
    return 1 if broken else 0


def _setting(pair: str) -> tuple[str, str]:
    name, sign, value = pair.partition("=")
    if not sign or not name:
        raise ConfigurationError(f"`conf` is {pair!r}, but must be NAME=VALUE, such as spark.task.cpus=2")
    return name, value


def _gain(pair: str) -> tuple[int, float]:
    width, _, gain = pair.partition("=")
    try:
        return int(width), float(gain)
    except ValueError:
        raise ConfigurationError(
            f"`fuse-gain` is {pair!r}, but must be WIDTH=X: 8=4.3 says that 8 trials are 4.3 times faster together"
        ) from None


def _group_size(said: str, workers: int) -> int:
    if said == "auto":
        return max(workers, 1)
    if not said.isdecimal() or int(said) < 1:
        raise ConfigurationError(
            f"`workers-per-trial` is {said!r}, but must be auto or a number of at least 1: 4 says that four workers"
            " train each trial together"
        )
    if int(said) > max(workers, 1):
        raise ConfigurationError(
            f"`workers-per-trial` is {said}, but there are only {workers} workers: use {workers} at most, or auto"
        )
    return int(said)


def _efficiency(said: str, group: int) -> tuple[float, ...]:
    try:
        values = tuple(float(part) for part in said.split(",")) if said else ()
    except ValueError:
        values = (0.0,)
    meaning = "1,0.9,0.8 says that two workers together do 1.8 times the work of one, and three 2.4 times"
    if not all(0 < value < float("inf") for value in values):
        raise ConfigurationError(f"`efficiency` is {said!r}, but must be numbers above 0, with commas: {meaning}")
    if values and values[0] != 1:
        raise ConfigurationError(f"`efficiency` is {said!r}, but must begin with 1, that of a single worker: {meaning}")
    if values and group == 1:
        raise ConfigurationError(
            f"`efficiency` is {said!r}, but every unit has one worker: add --workers-per-trial auto, or a number"
        )
    return values


def _dashboard(options: argparse.Namespace) -> None:
    from cerebro_spark.dashboard.command_line import dashboard

    dashboard(options)


def _runs(options: argparse.Namespace) -> None:
    from cerebro_spark.result.listing import as_text, listed
    from cerebro_spark.store.opening import open_store

    store = open_store(options.store)
    lines = list(listed(store))
    print(as_text(lines) if lines else f"no runs in {store.url} yet")


def _show(options: argparse.Namespace) -> None:
    from cerebro_spark.result import display, plots
    from cerebro_spark.result.listing import read_view
    from cerebro_spark.store.opening import open_store

    if options.plot:
        check_writable(options.plot)
    view = read_view(open_store(options.store), options.run)
    print(display.as_text(view))
    if view.workers and not view.finished:
        print(f"\n{display.workers_as_text(view)}")
    if options.plot:
        plots.plot(view, None).savefig(options.plot)
        print(f"Picture: {options.plot}")


def _simulate(options: argparse.Namespace) -> None:
    if options.seeds < 1:
        raise ConfigurationError(f"`seeds` is {options.seeds}, but must be at least 1")
    if not options.bandwidth_mb > 0:
        raise ConfigurationError(f"`bandwidth-mb` is {options.bandwidth_mb}, but must be above 0")
    if not 0 <= options.model_mb < float("inf"):
        raise ConfigurationError(f"`model-mb` is {options.model_mb}, but must be a number of megabytes, 0 or more")
    known = {field.name for field in fields(Scenario)}
    group = _group_size(options.workers_per_trial, options.workers)
    scenario = Scenario(
        **{name: value for name, value in vars(options).items() if name in known and name != "efficiency"},
        efficiency=_efficiency(options.efficiency, group),
        model_bytes=int(options.model_mb * MEGABYTE),
        bandwidth=options.bandwidth_mb * MEGABYTE,
        gain=dict(_gain(pair) for pair in options.fuse_gain),
        group=group,
        group_auto=options.workers_per_trial == "auto",
    )
    if options.gantt:
        check_writable(options.gantt)
    outcomes = [simulate(scenario, seed, keep_units=bool(options.gantt) and seed == 0) for seed in range(options.seeds)]
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
        outcome = simulate(scenario, seed=1, keep_units=True)
        print(f"{policy:<16}{outcome.makespan:>9.1f}s{outcome.ratio:>10.3f}{outcome.utilisation:>8.1%}")
        _draw(scenario, outcome, folder / f"gantt-{policy}.png")
    failing = Scenario(
        trials=16, workers=8, epochs=5, replicas=3, jitter=0.05, deaths={2: ((20.0, 45.0),), 5: ((24.0, 52.0),)}
    )
    outcome = simulate(failing, seed=1, keep_units=True)
    print(f"\n16 trials, 3 replicas, two workers die and return: {outcome.ratio:.3f} x what those alive could do,")
    print(f"{outcome.units_rerun} units run again, none lost.")
    _draw(failing, outcome, folder / "gantt-failures.png")
    print(f"\nPictures: {folder}/gantt-*.png")
    print("Next: `cerebro-spark simulate --help` plays with your own numbers of trials, workers and partitions.")


def _draw(scenario: Scenario, outcome: Outcome, path: str | Path) -> None:
    shape = f"{scenario.trials} trials on {scenario.workers} workers, {scenario.epochs} epochs"
    draw(outcome.timeline, path, f"{shape}, {scenario.policy}: {outcome.ratio:.3f} x the lower bound")


def _as_json(outcomes: Sequence[Outcome]) -> dict[str, list[float]]:
    keys = ("makespan", "lower_bound", "ratio", "utilisation", "units_rerun", "bytes_hopped")
    return {key: [getattr(outcome, key) for outcome in outcomes] for key in keys}


def _as_table(scenario: Scenario, outcomes: Sequence[Outcome]) -> str:
    values = {key: sum(column) / len(column) for key, column in _as_json(outcomes).items()}
    kind = "heterogeneous" if scenario.heterogeneous else "homogeneous"
    seeds = f", mean of {len(outcomes)} seeds" if len(outcomes) > 1 else ""
    by_itself = " if every trial trains by itself" if scenario.fuse > 1 else ""
    by_itself = " if every unit has one worker" if scenario.group > 1 else by_itself
    groups = f", groups of {'up to ' * scenario.group_auto}{scenario.group} workers" if scenario.group > 1 else ""
    lines = [
        f"{scenario.trials} trials x {scenario.workers} workers x {scenario.columns} partitions"
        f" x {scenario.epochs} epochs, {scenario.replicas} replica(s), {kind}, policy {scenario.policy}{groups}{seeds}",
        f"  makespan      {values['makespan']:.2f} s",
        f"  lower bound   {values['lower_bound']:.2f} s{by_itself}",
        f"  ratio         {values['ratio']:.4f}",
        f"  utilisation   {values['utilisation']:.1%}",
        f"  units lost    {sum(outcome.units_lost for outcome in outcomes)}",
        f"  trials failed {sum(outcome.trials_failed for outcome in outcomes)}",
        f"  units re-run  {values['units_rerun']:g}",
        f"  bytes hopped  {values['bytes_hopped'] / MEGABYTE:,.0f} MB",
    ]
    return "\n".join(lines)


_SIMULATE = {
    "--trials": value("N", "number of trials", 16),
    "--workers": value("N", "number of workers", 8),
    "--partitions": {**value("N", "number of training partitions (default: as many as workers)"), "type": int},
    "--epochs": value("N", "epochs of every trial", 5),
    "--replicas": value("N", "workers that hold each partition", 1),
    "--validation": value("N", "validation partitions, evaluated every epoch", 0),
    "--policy": value("NAME", f"one of {', '.join(POLICIES)}", "hopper"),
    "--heterogeneous": flag("vary trial costs and worker speeds as in Figure 6 of the Cerebro paper"),
    "--cost": value("S", "mean seconds of a unit", 1.0),
    "--jitter": value("X", "vary unit times by up to this share", 0.0),
    "--known-costs": flag("tell the scheduler the costs and speeds in advance"),
    "--failure-rate": value("X", "probability that a worker dies during a unit", 0.0),
    "--fuse": value("N", "how many trials of equal cost may go together at most; 1 for never", 1),
    "--fuse-gain": {
        **value("WIDTH=X", "as many trials are X times faster together, such as 8=4.3; may be repeated"),
        "action": "append",
        "default": [],
    },
    "--workers-per-trial": value("N", "how many workers train a trial together, or auto; 1 for one at a time", "1"),
    "--efficiency": value(
        "E,E,...", "how efficient one worker is, two together, three and so on, such as 1,0.9,0.85", ""
    ),
    "--model-mb": value("MB", "size of a checkpoint in MB", 100.0),
    "--bandwidth-mb": value("MB", "bandwidth for checkpoints in MB/s", float("inf")),
    "--seeds": value("N", "run with the seeds 0 to N-1", 1),
    "--json": flag("print one JSON object with a list of values, one for each seed"),
    "--gantt": value("FILE.png", "draw a Gantt chart of the run with seed 0"),
}
_DOCTOR = {
    "--master": value("URL", "check this Spark cluster too: local[2], spark://..., yarn"),
    "--store": value("URL", "check that this store is writable: a folder, hdfs://..., s3://..."),
    "--conf": {**value("NAME=VALUE", "a setting of Spark; may be repeated"), "action": "append", "default": []},
}
_SHOW = {
    "store": STORE,
    "run": RUN,
    "--plot": value("FILE.png", "draw learning curves, params and a Gantt chart"),
}
_AGE = "age in days from which on an unfinished write or upload is dead (default: 1; 7 for data sets)"
_CLEAN = {
    "--store": value("URL", "clean this store too: a folder, hdfs://..., s3://..."),
    "--older-than": {**value("DAYS", _AGE), "type": float},
    "--dry-run": flag("list the files with their bytes, and delete nothing"),
}
_COMMANDS: dict[str, CommandSpec] = {
    "demo": (
        _demo,
        "show how trials hop",
        "Compare the policies on an imaginary cluster, and draw the runs.",
        {"--out": value("FOLDER", "folder for the pictures", "out")},
    ),
    "doctor": (
        _doctor,
        "check this installation, a store and a cluster",
        "Check Java, Python, versions, a store and a cluster. The exit code is 1 if there is a FIX.",
        _DOCTOR,
    ),
    "simulate": (
        _simulate,
        "run the scheduler on an imaginary cluster",
        "Run the real scheduler on an imaginary cluster in virtual time, and compare with the lower bound.",
        _SIMULATE,
    ),
    "runs": (_runs, "list the runs in a store", "List the runs in a store.", {"store": STORE}),
    "show": (_show, "show the trials of a run", "Show the trials of a run.", _SHOW),
    **PLAN_COMMANDS,
    **LIVE_COMMANDS,
    "dashboard": (
        _dashboard,
        "show runs in the browser, and steer them",
        "Show the runs of a store in the browser, live, and send commands to them. It prints the link to open.",
        DASHBOARD_ARGUMENTS,
    ),
    "clean": (
        _clean,
        "delete unused files of the cache and of a store",
        "Delete unused files of this host's cache, and what dead processes left of uploads, and in a store.",
        _CLEAN,
    ),
}

if __name__ == "__main__":
    sys.exit(main())
