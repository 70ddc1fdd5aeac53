"""Recipes as they are pickled and unpickled, also those of older versions, which lack what came later."""

from __future__ import annotations

import enum
from dataclasses import fields
from pathlib import Path
from typing import Any

import cloudpickle
from small_search import small_dataset

from cerebro_spark import recipe as recipes
from cerebro_spark.recipe import Recipe
from cerebro_spark.search import FixedSearch
from cerebro_spark.trainer.base import Hooks, Resources
from cerebro_spark.trainer.spec import TrainerSpec
from cerebro_spark.types import Objective


class Older:
    """Pickles as a recipe did that had fewer fields."""

    def __init__(self, recipe: Recipe, count: int) -> None:
        self._state = recipe.__getstate__()[:count]  # type: ignore[index]

    def __reduce__(self) -> tuple[Any, ...]:
        return object.__new__, (Recipe,), self._state


def test_a_recipe_of_an_older_version_is_as_if_nothing_newer_was_given(tmp_path: Path) -> None:
    recipe = Recipe(
        FixedSearch([{}], 1), Objective("loss", "min"), small_dataset(tmp_path), TrainerSpec(Hooks(print)), max_kills=7
    )
    count = [field.name for field in fields(Recipe)].index("max_kills")
    _, stores = recipes.pack(recipe)
    again = recipes.unpack(cloudpickle.dumps(Older(recipe, count)), stores)
    assert again.max_kills is None
    assert again.settings(2).kill_rule == "chance"
    assert again.settings(2).quarantine == 60.0
    assert (again.kind, again.unit_timeout) == (None, None)
    assert recipes.unpack(*recipes.pack(recipe)).settings(2).max_kills == 7


def test_a_recipe_without_a_trainer_of_its_own_leaves_metrics_their_guesses(tmp_path: Path) -> None:
    """Such a recipe had the four fields of a TrainerSpec itself, when there was no other rule."""
    trainer = TrainerSpec(Hooks(print), seed=3, framework="torch")
    recipe = Recipe(FixedSearch([{}], 1), Objective("loss", "min"), small_dataset(tmp_path), trainer)
    state = recipe.__getstate__()
    assert isinstance(state, list)
    older = Recipe.__new__(Recipe)
    older.__setstate__([*state[:3], trainer.hooks, trainer.seed, trainer.framework, trainer.resources, *state[4:]])
    assert (older.trainer.seed, older.trainer.metric_rule) == (3, "guess")
    assert trainer.metric_rule == "rows"


def test_resources_of_an_older_version_compile_nothing(tmp_path: Path) -> None:
    older = Resources.__new__(Resources)
    older.__setstate__([2, "cpu", None, 1 << 30, None])
    assert older == Resources(2, "cpu", None, 1 << 30, None, compile=False, strategy="plain")
    assert (Resources().compile, Resources().strategy) == ("auto", "auto")


def test_unpickling_changes_no_class_of_this_process(tmp_path: Path) -> None:
    class Kind(enum.Enum):
        WIDE = 1

    class Model:
        width = Kind.WIDE

        def build(self) -> Kind:
            return self.width

    def model_fn(params: Any) -> Any:
        return Model().build()

    before = dict(vars(Model))
    trainer = TrainerSpec(Hooks(model_fn), framework="torch")
    recipe = Recipe(FixedSearch([{}], 1), Objective("loss", "min"), small_dataset(tmp_path), trainer)
    again = recipes.unpack(*recipes.pack(recipe))
    made = again.trainer.hooks.model_fn({})
    assert dict(vars(Model)) == before
    assert (made.name, made is Kind.WIDE) == ("WIDE", False), "it shares nothing with the original"
    assert type(made) is again.trainer.hooks.model_fn({}).__class__
