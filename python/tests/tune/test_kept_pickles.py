"""What earlier versions pickled is read: trials of Hyperopt, the arguments of a saved search, an algorithm of a recipe.

The files in `kept` were written by the version before arguments became fields of the searches.
"""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from sound_search import model_fn

import cerebro_spark as cs
from cerebro_spark.errors import ConfigurationError
from cerebro_spark.store import moved
from cerebro_spark.types import Work

KEPT = Path(__file__).parent / "kept"


def test_trials_of_hyperopt_are_read_and_need_a_backend_only() -> None:
    pytest.importorskip("hyperopt")
    trials = pickle.loads((KEPT / "trials.pickle").read_bytes())
    assert (trials.store, trials.metric, trials.epochs, trials.seed) == ("/tmp/kept/runs", "val_loss", 3, 4)
    assert (trials.features, trials.label, trials.validation, trials.replicas) == (["x"], "y", 0.25, 1)
    assert (trials.backend, trials.trackers, trials.run_ids, len(trials.data["x"])) == (None, (), [], 40)
    again = pickle.loads(pickle.dumps(trials))
    assert (again.epochs, again.seed, again._points) == (3, 4, [{"x": 0.5}])
    with pytest.raises(ConfigurationError, match="backends are not pickled"):
        again.fmin(model_fn, {})


def test_a_saved_search_is_made_again() -> None:
    search = cs.RandomSearch(**moved.loads((KEPT / "search_arguments.pickle").read_bytes()))
    assert (search.model_fn, search.num_trials, search.epochs, search.patience) == (model_fn, 5, 3, 2)
    assert (search.seed, search.replicas, search.store) == (4, 1, "/tmp/kept/runs")


def test_an_algorithm_of_a_recipe_goes_on() -> None:
    stopping = moved.loads((KEPT / "stopping.pickle").read_bytes())
    assert stopping.ask() == Work("t0", {"lr": 0.1}, 1)


def test_the_script_of_a_replay_is_found_at_its_new_place() -> None:
    from cerebro_spark.replays import ReplaySearch

    assert moved.loads(b"ccerebro_spark.replay\nReplaySearch\n.") is ReplaySearch
