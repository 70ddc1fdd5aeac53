"""Models of trained runs: the right epoch, the right numbers, and copies that live without the run."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from kept_workers import KeptWorkers
from made_runs import (
    FEATURES,
    MadeRun,
    customers,
    failing_fn,
    keras_model_fn,
    run_search,
    scaled,
    torch_model_fn,
    two_headed_fn,
)

from cerebro_spark.data.dataset import Dataset
from cerebro_spark.errors import (
    AlreadyInStore,
    CerebroError,
    CheckpointError,
    ConfigurationError,
    DataError,
    NotFoundInStore,
    PreflightFailed,
)
from cerebro_spark.result import Result, frames, load_result, rows
from cerebro_spark.result.rows import read_rows
from cerebro_spark.trainer.base import Hooks

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def matrix(df: pd.DataFrame) -> np.ndarray[Any, Any]:
    """The features side by side, put together without the code under test."""
    blocks = [df[["age"]].to_numpy(), np.stack(df["history"].to_list()), df[["income"]].to_numpy()]
    joined: np.ndarray[Any, Any] = np.concatenate(blocks, axis=1)
    return joined.astype("float32")


def by_hand(result: Result, df: pd.DataFrame) -> np.ndarray[Any, Any]:
    """What the live model says, called as a user would."""
    model, x = result.model(), matrix(df)
    if hasattr(model, "predict"):
        return np.asarray(model.predict(x, verbose=0))[:, 0]
    import torch

    x[:, 0] = (x[:, 0] - 54) / 20
    with torch.no_grad():
        return np.asarray(model(torch.from_numpy(x)))[:, 0]


def scores(result: Result, df: pd.DataFrame) -> np.ndarray[Any, Any]:
    """What the model puts out, as it is."""
    return np.asarray(result.transform(df, kind="regression")["prediction"])


def validation_only(made: MadeRun) -> Dataset:
    return replace(Dataset.open(made.store), train=())


def test_the_best_model_is_that_of_its_best_epoch(made_run: MadeRun) -> None:
    result = made_run.result
    best, last = result.best_trial, result.history["epoch"].max()
    assert best.epoch < last
    found = result.evaluate(validation_only(made_run))
    history = result.history.set_index(["trial", "epoch"])
    for name, value in found.items():
        assert value == pytest.approx(history.loc[(best.id, best.epoch), f"val_{name}"], rel=1e-5), name
    assert found["loss"] != pytest.approx(history.loc[(best.id, last), "val_loss"], rel=1e-3)


def test_predictions_are_those_of_the_live_model_and_all_columns_stay(made_run: MadeRun) -> None:
    result, test = made_run.result, made_run.test
    scored = result.transform(test)
    assert list(scored.columns) == [*test.columns, "prediction", "probability", "rawPrediction"]
    pd.testing.assert_frame_equal(scored[test.columns], test)
    own = by_hand(result, test)
    likely, logits = (np.stack(scored[name])[:, 1] for name in ("probability", "rawPrediction"))
    is_keras = hasattr(result.model(), "predict")
    np.testing.assert_allclose(likely if is_keras else logits, own, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(likely, 1 / (1 + np.exp(-logits)), rtol=1e-5)
    assert scored["prediction"].tolist() == (own > (0.5 if is_keras else 0)).astype(float).tolist()
    assert "prediction" not in test
    arrays = result.transform(
        {**{name: test[name].to_numpy() for name in FEATURES}, "history": np.stack(test["history"].to_list())}
    )
    np.testing.assert_array_equal(np.stack(arrays["probability"]), np.stack(scored["probability"]))


def test_a_kind_and_names_may_be_told(torch_run: MadeRun) -> None:
    result, test = torch_run.result, torch_run.test
    plain = result.transform(test, kind="regression", column="score")
    assert list(plain.columns) == [*test.columns, "score"]
    assert plain["score"].dtype == np.float64
    np.testing.assert_allclose(plain["score"], by_hand(result, test), rtol=1e-5, atol=1e-6)
    named = result.transform(test, column="", probability="p", raw="")
    assert list(named.columns) == [*test.columns, "p"]
    assert list(result.transform(test, column="", probability="", raw="").columns) == list(test.columns)
    with pytest.raises(ConfigurationError, match="'p' already, or two of the new ones have that name"):
        result.transform(test, column="p", probability="p")
    with pytest.raises(ConfigurationError, match="needs a value a class a row, but the model puts out one value"):
        result.transform(test, kind="multiclass")
    with pytest.raises(ConfigurationError, match="`params` is 3, but only the result of a search"):
        result.transform(test, 3)


def test_a_model_is_the_users_own(made_run: MadeRun) -> None:
    """What they do to it changes nothing here."""
    result = made_run.result
    before = scores(result, made_run.test)
    model = result.model()
    if hasattr(model, "set_weights"):
        model.set_weights([np.zeros_like(w) for w in model.get_weights()])
    else:
        assert not model.training
        for parameter in model.parameters():
            parameter.data.zero_()
    np.testing.assert_array_equal(scores(result, made_run.test), before)


def test_other_trials_have_their_models_too(made_run: MadeRun) -> None:
    result = made_run.result
    one, two = (result.transform(made_run.test, trial_id=t, kind="regression")["prediction"] for t in ("t0", "t1"))
    assert not np.allclose(one, two)
    assert type(result.model("t0")) is type(result.model("t1"))
    assert result.evaluate(made_run.test, trial_id="t0") != result.evaluate(made_run.test, trial_id="t1")


def test_metrics_are_exact_over_all_rows_however_they_are_cut(made_run: MadeRun) -> None:
    test = made_run.test
    result = made_run.result
    found = result.evaluate(test)
    predicted, label = by_hand(result, test), test["churned"].to_numpy()
    threshold = 0.0 if "worst" in found else 0.5
    assert found["accuracy"] == pytest.approx(np.mean((predicted > threshold) == (label > 0.5)))
    if "worst" in found:
        assert found["worst"] == pytest.approx(np.abs(predicted).max() * len(test), rel=1e-5)
        losses = np.logaddexp(0, -np.where(label > 0.5, predicted, -predicted))
        assert found["loss"] == pytest.approx(losses.mean(), rel=1e-5)
    assert result.evaluate({name: test[name].to_list() for name in test}) == pytest.approx(found)


def test_rows_are_read_in_pieces_that_fit_into_memory(torch_run: MadeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = scores(torch_run.result, torch_run.test)
    sizes = []

    def noted(columns: Any, cells: Any) -> Any:
        batch = read_rows(columns, cells)
        sizes.append(sum(array.nbytes for array in batch.values()))
        return batch

    monkeypatch.setattr(rows, "_CHUNK_BYTES", 1000)
    monkeypatch.setattr(frames, "read_rows", noted)
    found = scores(torch_run.result, torch_run.test)
    assert max(sizes) <= 1000
    assert len(sizes) > 1
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_bad_rows_are_named(torch_run: MadeRun) -> None:
    result, test = torch_run.result, torch_run.test
    with pytest.raises(ConfigurationError, match="no column 'income'"):
        result.transform(test.drop(columns="income"))
    nulls: list[Any] = [None, None, *test["history"][2:]]
    with pytest.raises(DataError, match=r"'history' has 2 null rows"):
        result.transform(test.assign(history=nulls))
    with pytest.raises(DataError, match=r"'features' of the model has shape \(5,\).*'history': \(2,\)"):
        result.transform(test.assign(history=[row[:2] for row in test["history"]]))
    with pytest.raises(ConfigurationError, match=r"'prediction' already.*column='my_prediction'"):
        result.transform(test.assign(prediction=0.0))
    with pytest.raises(ConfigurationError, match="df is a list"):
        result.transform([1, 2])
    with pytest.raises(ConfigurationError, match="no column 'churned'"):
        result.evaluate(test.drop(columns="churned"))
    with pytest.raises(DataError, match="'churned' is float32, but the model was trained with int64"):
        result.evaluate(test.assign(churned=0.5))
    with pytest.raises(DataError, match="no rows"):
        result.evaluate(test.head(0))
    empty = result.transform(test.head(0))
    assert list(empty.columns) == [*test.columns, "prediction", "probability", "rawPrediction"]


def test_another_data_set_must_look_alike(torch_run: MadeRun, tmp_path: Path) -> None:
    from cerebro_spark.data.prepare import prepare

    other = prepare(customers(20, 5), store=str(tmp_path), features=["age"], label="churned", partitions=1)
    with pytest.raises(DataError, match=r"'features' as float32 of shape \(5,\).*has float32 of shape \(1,\)"):
        torch_run.result.evaluate(other)


def test_several_inputs_and_outputs(tmp_path: Path, kept_backend: KeptWorkers) -> None:
    features = {"seen": "history", "told": ["age", "income"]}
    made = run_search(
        tmp_path,
        Hooks(two_headed_fn),
        features=features,
        configurations=[{"lr": 1e-5}],
        epochs=1,
        backend=kept_backend(1),
    )
    scored = made.result.transform(made.test)
    assert list(scored.columns[-2:]) == ["prediction_churn", "prediction_kind"]
    assert scored["prediction_churn"].dtype == np.float32
    assert np.stack(scored["prediction_kind"].to_list()).shape == (90, 3)
    import torch

    x = matrix(made.test)
    outputs = made.result.model()(seen=torch.from_numpy(x[:, 1:4]), told=torch.from_numpy(x[:, [0, 4]]))
    np.testing.assert_allclose(scored["prediction_churn"], outputs["churn"].detach().numpy()[:, 0], rtol=1e-5)
    with pytest.raises(ConfigurationError, match="'prediction_kind' already"):
        made.result.transform(made.test.assign(prediction_kind=1))


def test_averaged_weights_are_in_the_model(tmp_path: Path) -> None:
    configuration = {"lr": 0.05, "hidden": 4, "batch_size": 16, "ema": True}
    made = run_search(tmp_path, Hooks(keras_model_fn), configurations=[configuration], epochs=2)
    result = made.result
    model = result.model()
    averages = [v for v in model.optimizer.variables if "_average" in v.path]
    assert len(averages) == len(model.trainable_variables)
    for average, weight in zip(averages, model.trainable_variables, strict=True):
        np.testing.assert_array_equal(average.numpy(), weight.numpy())
    scored = scores(result, made.test)
    np.testing.assert_allclose(scored, by_hand(result, made.test), rtol=1e-5, atol=1e-6)


def test_failed_trials_are_there_with_their_error(tmp_path: Path, kept_backend: KeptWorkers) -> None:
    result = run_search(tmp_path, Hooks(failing_fn, input_fn=scaled), epochs=1, backend=kept_backend(1)).result
    assert result.trials["status"].tolist() == ["finished", "failed"]
    assert "no such <b>layer</b>" in result.trials["error"].iloc[1]
    assert result.best_trial.id == "t0"
    with pytest.raises(CheckpointError, match=r"trial t1 of run r1 has no model(.|\n)*no such <b>layer</b>"):
        result.model("t1")
    assert "<b>layer" not in result._repr_html_()


LOADED = """
import sys
import pandas as pd
import cerebro_spark as cs
from cerebro_spark.result import load_result
result = load_result(sys.argv[1])
scored = result.transform(pd.read_pickle(sys.argv[2]), kind="regression")
scored["prediction"].to_pickle(sys.argv[3])
print(result.best_trial.id, sorted(result.evaluate(pd.read_pickle(sys.argv[2]))))
"""


def test_a_saved_result_scores_in_a_new_process_after_the_run_is_gone(made_run: MadeRun, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(made_run.store.root, run)
    result = Result(str(run), "r1")
    expected, measured = scores(result, made_run.test), sorted(result.evaluate(made_run.test))
    saved, rows, out = (tmp_path / name for name in ("saved", "rows.pkl", "out.pkl"))
    result.save(saved)
    shutil.rmtree(run)
    made_run.test.to_pickle(rows)
    here = Path(__file__).resolve()
    command = [sys.executable, "-c", LOADED, str(saved), str(rows), str(out)]
    # The functions of these runs are in a module of the tests, which a new process must find as a user's own would be.
    environment = {"PYTHONPATH": f"{here.parents[3]}:{here.parent}", "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split(maxsplit=1) == [result.best_trial.id, f"{measured}\n"]
    np.testing.assert_allclose(pd.read_pickle(out), expected, rtol=1e-6, atol=1e-7)


def test_a_saved_result_is_the_result(torch_run: MadeRun, tmp_path: Path) -> None:
    result = torch_run.result
    result.save(tmp_path / "saved")
    again = load_result(tmp_path / "saved")
    assert again.run_id == result.run_id
    assert again.best_trial == result.best_trial
    for name in ("trials", "history", "units"):
        pd.testing.assert_frame_equal(getattr(again, name), getattr(result, name))
    assert repr(again) == repr(result)
    again.save(tmp_path / "twice", trials=["t0"])
    few = load_result(tmp_path / "twice")
    pd.testing.assert_frame_equal(
        few.transform(torch_run.test, trial_id="t0"), result.transform(torch_run.test, trial_id="t0")
    )
    with pytest.raises(CheckpointError, match=r"saved without it, or deleted; save the result with trials=\['t1'\]"):
        few.model("t1")


def test_saving_never_destroys_anything(torch_run: MadeRun, tmp_path: Path) -> None:
    result = torch_run.result
    with pytest.raises(ConfigurationError, match="store of the run itself"):
        result.save(torch_run.store)
    alias = tmp_path / "alias"
    alias.symlink_to(torch_run.store.root)
    for overwrite in (False, True):
        with pytest.raises(CerebroError, match=r"is no saved result|store of the run itself"):
            result.save(alias, overwrite=overwrite)
    assert torch_run.result.trials.equals(result.trials)
    saved = tmp_path / "saved"
    result.save(saved)
    with pytest.raises(AlreadyInStore, match=r"saved result already \(run r1\).*overwrite=True"):
        result.save(saved)
    result.save(saved, overwrite=True)
    assert load_result(saved).best_trial == result.best_trial
    with pytest.raises(ConfigurationError, match="no trial 't7'"):
        result.save(tmp_path / "other", trials=["t7"])
    with pytest.raises(NotFoundInStore):
        load_result(tmp_path / "other")


def test_half_a_copy_is_none(torch_run: MadeRun, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(torch_run.store.root, run)
    result = Result(str(run), "r1")
    for file in run.rglob("*.safetensors"):
        file.unlink()
    with pytest.raises(NotFoundInStore):
        result.save(tmp_path / "saved")
    with pytest.raises(NotFoundInStore, match="holds no saved result"):
        load_result(tmp_path / "saved")
    torch_run.result.save(tmp_path / "saved")
    assert load_result(tmp_path / "saved").model() is not None


def test_functions_that_were_exchanged_are_not_opened(torch_run: MadeRun, tmp_path: Path) -> None:
    torch_run.result.save(tmp_path / "saved")
    (pickled,) = (tmp_path / "saved").rglob("functions.pkl")
    pickled.chmod(0o644)
    pickled.write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    with pytest.raises(CerebroError, match="its digest differs"):
        load_result(tmp_path / "saved").model()


def test_an_input_fn_that_drops_rows_is_found_out(tmp_path: Path, kept_backend: KeptWorkers) -> None:
    def dropping(batch: dict[str, Any], params: Any) -> dict[str, Any]:
        return {name: array[1:] for name, array in scaled(batch, params).items()}

    with pytest.raises(PreflightFailed, match="input_fn returned 31 rows of 'features' for a batch of 32, but must"):
        run_search(tmp_path, Hooks(torch_model_fn, input_fn=dropping), epochs=1, backend=kept_backend(1))
