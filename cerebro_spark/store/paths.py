"""The names of everything in a store. No other module makes such names. It reads and writes nothing.

runs/<run>/log/000000000064.jsonl       one commit of the event log, from event 64 on; ...000-...063.jsonl: joined ones;
                                        ...064.2.jsonl: of the second driver that took the run over, see segments.py
runs/<run>/claim.json                   the process that took the run's id, the first file in its folder
runs/<run>/beats/<token>-000000007.json  a sign of life of a driver; each has a name of its own
runs/<run>/mailbox/<nanoseconds>-<id>.json  a command that no driver has logged yet; names sort by the time of sending
runs/<run>/functions.pkl                the user's functions, the one pickle of a run
runs/<run>/checkpoints/<trial>/...      a trial's state after a unit
runs/<run>/carried/<trial>/a17.json     metric states between two units, where they are too large for the log
runs/<run>/proposals/<trial>-<token>.json  how the library that leads a run knows a trial
runs/<run>/result.json                  what the search returned
runs/<run>/forecasts/000000000007.json  when the run will be done, as it seems; the newest counts
runs/<run>/questions/<time>-<id>.json   a command of which somebody asks what it would change
datasets/<dataset>/manifest.json        schema, shapes, rows, seed and files of a prepared data set
datasets/<dataset>/<token>/train/...parquet   its partitions, a folder a split; each writer has a token of its own
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from cerebro_spark.errors import ConfigurationError
from cerebro_spark.types import Checkpoint, PartitionId, Split

RUNS = "runs"
DATASETS = "datasets"

_LONGEST_ID = 200  # an id and its suffix are a file name, which may have 255 characters
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_CHECKPOINT = re.compile(r"e\d{4,}-s\d{5,}-a\d+\.safetensors")
_SEGMENT = re.compile(r"(\d{12,})(?:-(\d{12,}))?(?:\.([1-9]\d*))?\.jsonl")
_LETTER = re.compile(rf"{RUNS}/([^/]+)/mailbox/(\d{{20}})-({_ID.pattern})\.json")
_PILOT = re.compile(rf"((?:{RUNS}|{DATASETS})/plan-(\d{{20}})-[^/]+)/")
_QUESTION = re.compile(rf"{RUNS}/([^/]+)/questions/(\d{{20}})-({_ID.pattern})\.json")


class Pilot(NamedTuple):
    """What a plan tries: a folder, and when it began, in nanoseconds since 1970."""

    folder: str
    begun_at: int


class Segment(NamedTuple):
    """A file of an event log: the term of its driver, and the first events of the first and the last commit in it."""

    name: str
    term: int
    first: int
    last: int
    joined: bool


class Letter(NamedTuple):
    """A file with a command: when it was sent, in nanoseconds since 1970, and the id of the command in it."""

    name: str
    run: str
    sent: int
    command: str


def check_id(identifier: str, what: str = "run id") -> str:
    """Return `identifier` if it can be one part of a name in every store, else raise ConfigurationError.

    >>> check_id("2026-11-15-churn")
    '2026-11-15-churn'
    """
    if not isinstance(identifier, str) or not is_id(identifier):
        raise ConfigurationError(
            f"the {what} is {identifier!r}, but must be letters, digits, '.', '_' and '-', with a letter or digit"
            f" first, and at most {_LONGEST_ID} of them"
        )
    return identifier


def is_id(name: str) -> bool:
    """Whether `check_id` accepts a name.

    >>> is_id("r1"), is_id("r1 copy"), is_id("_old")
    (True, False, False)
    """
    return _ID.fullmatch(name) is not None and len(name) <= _LONGEST_ID


def run_folder(run: str) -> str:
    """The folder of one run.

    >>> run_folder("r1")
    'runs/r1'
    """
    return f"{RUNS}/{check_id(run)}"


def run_ids(names: Iterable[str]) -> list[str]:
    """The ids of the runs that have an event log among these names, sorted.

    >>> run_ids(["runs/r2/log/000000000000.jsonl", "runs/r1/log/000000000000.jsonl", "runs/r3/functions.pkl", "x"])
    ['r1', 'r2']
    """
    parts = (name.split("/") for name in names)
    return sorted({part[1] for part in parts if len(part) == 4 and part[0] == RUNS and part[2] == "log"})


def log_folder(run: str) -> str:
    """The folder of a run's event log.

    >>> log_folder("r1")
    'runs/r1/log'
    """
    return f"{run_folder(run)}/log"


def log_segment(run: str, first: int, last: int | None = None, term: int = 0) -> str:
    """The name of the segment that begins with event `first`, or of joined segments that begin with `first` to `last`.

    Names sort as their numbers do.

    >>> log_segment("r1", 7), log_segment("r1", 0, 64, term=2)
    ('runs/r1/log/000000000007.jsonl', 'runs/r1/log/000000000000-000000000064.2.jsonl')
    """
    if first < 0 or (last is not None and last < first):
        raise ConfigurationError(f"a segment cannot have the events {first} to {last}: they count from 0 upwards")
    joined, of_term = "" if last is None else f"-{last:012d}", f".{term}" if term else ""
    return f"{log_folder(run)}/{first:012d}{joined}{of_term}.jsonl"


def segment(name: str) -> Segment | None:
    """The parts of the name of a log file, or None if it is no log segment.

    >>> segment("runs/r1/log/000000000000-000000000064.2.jsonl")[1:], segment("runs/r1/log/000000000007.jsonl")[1:]
    ((2, 0, 64, True), (0, 7, 7, False))
    """
    found = _SEGMENT.fullmatch(name.rpartition("/")[2])
    if found is None:
        return None
    return Segment(name, int(found[3] or 0), int(found[1]), int(found[2] or found[1]), found[2] is not None)


def claim(run: str) -> str:
    """The file that claims the id of a run: of several processes, only one can write it.

    >>> claim("r1")
    'runs/r1/claim.json'
    """
    return f"{run_folder(run)}/claim.json"


def beats(run: str) -> str:
    """The folder of the drivers' signs of life.

    >>> beats("r1")
    'runs/r1/beats'
    """
    return f"{run_folder(run)}/beats"


def beat(run: str, token: str, count: int) -> str:
    """One sign of life of one driver.

    >>> beat("r1", "5e8c", 7)
    'runs/r1/beats/5e8c-000000007.json'
    """
    return f"{beats(run)}/{check_id(token, 'token')}-{count:09d}.json"


def mailbox(run: str) -> str:
    """The folder of commands to a run.

    >>> mailbox("r1")
    'runs/r1/mailbox'
    """
    return f"{run_folder(run)}/mailbox"


def letter(run: str, sent: int, command: str) -> str:
    """The file of a command that was sent at some nanoseconds since 1970. Names sort by that time.

    >>> letter("r1", 1_800_000_000_000_000_000, "5e8c")
    'runs/r1/mailbox/01800000000000000000-5e8c.json'
    """
    return f"{mailbox(run)}/{sent:020d}-{check_id(command, 'command id')}.json"


def read_letter(name: str) -> Letter | None:
    """The parts of the name of a command's file, or None if it is none.

    >>> read_letter("runs/r1/mailbox/01800000000000000000-5e8c.json")[1:], read_letter("runs/r1/mailbox/notes.txt")
    (('r1', 1800000000000000000, '5e8c'), None)
    """
    found = _LETTER.fullmatch(name)
    return None if found is None else Letter(name, found[1], int(found[2]), found[3])


def functions(run: str) -> str:
    """The cloudpickle of the user's functions.

    >>> functions("r1")
    'runs/r1/functions.pkl'
    """
    return f"{run_folder(run)}/functions.pkl"


def probe(token: str) -> str:
    """A file that is written and deleted to check that a store is writable; no run has this name.

    >>> probe("5e8c")
    'runs/probe-5e8c'
    """
    return f"{RUNS}/probe-{check_id(token, 'token')}"


def result(run: str) -> str:
    """What the search returned.

    >>> result("r1")
    'runs/r1/result.json'
    """
    return f"{run_folder(run)}/result.json"


def plan(run: str) -> str:
    """What was planned for a run, and what it took.

    >>> plan("r1")
    'runs/r1/plan.json'
    """
    return f"{run_folder(run)}/plan.json"


def forecasts(run: str) -> str:
    """The folder of a run's forecasts.

    >>> forecasts("r1")
    'runs/r1/forecasts'
    """
    return f"{run_folder(run)}/forecasts"


def forecast(run: str, number: int) -> str:
    """One forecast of a run; the one with the greatest number is the newest.

    >>> forecast("r1", 7)
    'runs/r1/forecasts/000000000007.json'
    """
    return f"{forecasts(run)}/{number:012d}.json"


def questions(run: str) -> str:
    """The folder of what people ask about the rest of a run.

    >>> questions("r1")
    'runs/r1/questions'
    """
    return f"{run_folder(run)}/questions"


def question(run: str, asked_at: int, command: str) -> str:
    """One question, by when it was asked, in nanoseconds since 1970, and the id of the command that it is about.

    >>> question("r1", 1_800_000_000_000_000_000, "c0ffee")
    'runs/r1/questions/01800000000000000000-c0ffee.json'
    """
    return f"{questions(run)}/{asked_at:020d}-{check_id(command, 'command id')}.json"


def read_question(name: str) -> Letter | None:
    """The parts of the name of a question, or None if it is none.

    >>> read_question("runs/r1/questions/01800000000000000000-c0ffee.json")[1:]
    ('r1', 1800000000000000000, 'c0ffee')
    """
    found = _QUESTION.fullmatch(name)
    return None if found is None else Letter(name, found[1], int(found[2]), found[3])


def pilot(begun_at: int, token: str) -> str:
    """The id of what a plan tries and deletes again, a run or a data set, by when it began (nanoseconds since 1970).

    >>> pilot(1_800_000_000_000_000_000, "c0ffee")
    'plan-01800000000000000000-c0ffee'
    """
    return check_id(f"plan-{begun_at:020d}-{token}")


def read_pilot(name: str) -> Pilot | None:
    """The folder of a plan's try that a file is in, and when that began; None if it is in none.

    >>> read_pilot("runs/plan-01800000000000000000-c0ffee/checkpoints/t0/e0001-s00001-a1.safetensors")
    Pilot(folder='runs/plan-01800000000000000000-c0ffee', begun_at=1800000000000000000)
    """
    found = _PILOT.match(name)
    return None if found is None else Pilot(found[1], int(found[2]))


def checkpoint_folder(run: str, trial: str | None = None) -> str:
    """The folder of all checkpoints of a run, or of one trial.

    >>> checkpoint_folder("r1", "t3")
    'runs/r1/checkpoints/t3'
    """
    folder = f"{run_folder(run)}/checkpoints"
    return folder if trial is None else f"{folder}/{check_id(trial, 'trial id')}"


def checkpoint(run: str, checkpoint: Checkpoint) -> str:
    """The file of one checkpoint.

    >>> checkpoint("r1", Checkpoint("t3", epoch=1, step=4, attempt=17))
    'runs/r1/checkpoints/t3/e0001-s00004-a17.safetensors'
    """
    check_id(checkpoint.trial, "trial id")
    return f"{checkpoint_folder(run)}/{checkpoint.name}.safetensors"


def is_checkpoint(name: str) -> bool:
    """Whether a name in a run's folder of checkpoints is that of a checkpoint, and not of another file.

    >>> is_checkpoint("runs/r1/checkpoints/t3/e0001-s00004-a17.safetensors"), is_checkpoint("runs/r1/checkpoints/notes")
    (True, False)
    """
    return _CHECKPOINT.fullmatch(name.rpartition("/")[2]) is not None


def carried_folder(run: str) -> str:
    """The folder of metric states that are passed from unit to unit and too large for the log.

    >>> carried_folder("r1")
    'runs/r1/carried'
    """
    return f"{run_folder(run)}/carried"


def carried(run: str, trial: str, attempt: int) -> str:
    """The metric states after a unit, by the attempt that wrote them.

    >>> carried("r1", "t3", 17)
    'runs/r1/carried/t3/a17.json'
    """
    return f"{carried_folder(run)}/{check_id(trial, 'trial id')}/a{attempt}.json"


def proposals(run: str) -> str:
    """The folder of what another library, which leads the run, needs to know its trials again.

    >>> proposals("r1")
    'runs/r1/proposals'
    """
    return f"{run_folder(run)}/proposals"


def proposal(run: str, trial: str, token: str) -> str:
    """What that library needs of one trial. Each writer has a token of its own, without a '-'.

    >>> proposal("r1", "t3", "5e8c")
    'runs/r1/proposals/t3-5e8c.json'
    """
    return f"{proposals(run)}/{check_id(trial, 'trial id')}-{check_id(token, 'token')}.json"


def proposed_trial(name: str) -> str:
    """The trial that such a file is about.

    >>> proposed_trial("runs/r1/proposals/t3-5e8c.json")
    't3'
    """
    return name.rpartition("/")[2].rpartition("-")[0]


def dataset_folder(dataset: str) -> str:
    """The folder of a prepared data set.

    >>> dataset_folder("d1")
    'datasets/d1'
    """
    return f"{DATASETS}/{check_id(dataset, 'data set id')}"


def dataset_ids(names: Iterable[str]) -> list[str]:
    """The ids of the data sets whose manifest is among these names, sorted; one without a manifest is unfinished.

    >>> dataset_ids(["datasets/d1/manifest.json", "datasets/d2/5e8c/train/train-00000.parquet"])
    ['d1']
    """
    parts = (name.split("/") for name in names)
    return sorted(part[1] for part in parts if len(part) == 3 and part[0] == DATASETS and part[2] == "manifest.json")


def manifest(dataset: str) -> str:
    """The manifest of a data set; it is written last, so a data set exists once its manifest does.

    >>> manifest("d1")
    'datasets/d1/manifest.json'
    """
    return f"{dataset_folder(dataset)}/manifest.json"


def writer_folder(dataset: str, token: str) -> str:
    """The folder of one writer of a data set: several may try one name, but only one can write the manifest.

    >>> writer_folder("d1", "5e8c")
    'datasets/d1/5e8c'
    """
    return f"{dataset_folder(dataset)}/{check_id(token, 'token')}"


def split_folder(dataset: str, token: str, split: Split) -> str:
    """The folder of one split's partitions, which is a Parquet data set of its own.

    >>> split_folder("d1", "5e8c", "train")
    'datasets/d1/5e8c/train'
    """
    return f"{writer_folder(dataset, token)}/{split}"


def partition_file(dataset: str, token: str, split: Split, partition: PartitionId, part: int | None = None) -> str:
    """The file of a partition, or the `part`-th of several.

    >>> partition_file("d1", "5e8c", "train", "train-00000"), partition_file("d1", "5e8c", "train", "train-00000", 2)
    ('datasets/d1/5e8c/train/train-00000.parquet', 'datasets/d1/5e8c/train/train-00000-002.parquet')
    """
    suffix = "" if part is None else f"-{part:03d}"
    return f"{split_folder(dataset, token, split)}/{check_id(partition, 'partition id')}{suffix}.parquet"
