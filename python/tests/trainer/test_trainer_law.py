"""train(A), save, load in another process, train(B) leaves the bits of train(A), train(B)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from trainer_process import FRAMEWORKS, HERE, FrameworkProcess
from unimported import keys_in

from cerebro_spark.trainer.checkpoints.reading import open_checkpoint

pytestmark = pytest.mark.slow


def case_names(framework: str) -> list[str]:
    """The keys of CASES, read without importing the framework into the tests' own process."""
    kind = "torch" if framework == "torch" else "keras"
    return keys_in(HERE / f"trainer_cases_{kind}.py", "CASES")


def contents(name: str) -> dict[str, object]:
    with open_checkpoint(Path(name)) as reader:
        return {key: (reader.spec(key), bytes(reader.read(key))) for key in reader.names()}


Pair = tuple[FrameworkProcess, FrameworkProcess]


@pytest.fixture(scope="module")
def pair_of() -> Iterator[Callable[[str], Pair]]:
    """Two processes of a framework, kept from case to case; those of another framework end first."""
    running: dict[str, Pair] = {}

    def close() -> None:
        for process in (process for pair in running.values() for process in pair):
            process.close()
        running.clear()

    def pair_of(framework: str) -> Pair:
        if framework not in running:
            close()
            running[framework] = FrameworkProcess(framework), FrameworkProcess(framework)
        return running[framework]

    yield pair_of
    close()


ALL = [pytest.param(f, name, id=f"{f}-{name}") for f in FRAMEWORKS for name in case_names(f)]


@pytest.mark.parametrize(("framework", "case"), ALL)
def test_a_hop_leaves_no_trace(pair_of: Callable[[str], Pair], framework: str, case: str, tmp_path: Path) -> None:
    here, there = pair_of(framework)
    names = [str(tmp_path / f"{index}.safetensors") for index in range(5)]
    expected, expected_metrics = here.call("straight", case=case, target=names[4])

    digests = [here.call("initial", case=case, target=names[0])]
    assert digests == [there.call("initial", case=case, target=names[1])], "one seed, one initial state, on any worker"
    metrics = []
    for index, process in enumerate([here, there, here]):
        digest, values = process.call(
            "hop", case=case, index=index, source=names[index], target=names[index + 1], digest=digests[-1]
        )
        digests.append(digest)
        metrics.append(values)

    assert len(set(digests)) == 4, "every unit changes the weights"
    assert digests[-1] == expected
    assert metrics == expected_metrics
    assert contents(names[4]) == contents(names[3]), "generators too, which the digest leaves out"
