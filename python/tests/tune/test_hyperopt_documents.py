"""Hyperopt's documents and the params that they stand for: the translation, without any training."""

from __future__ import annotations

import functools
import sys
from typing import Any

import numpy as np
import pytest
from fast_tier import drawn
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro_spark.tune.algorithms.tpe import point_document
from cerebro_spark.tune.plugins.hyperopt_search import checked_point, ended_trials, params_of, plain


@functools.cache
def tree_domain() -> Any:
    from hyperopt import hp
    from hyperopt.base import Domain

    nets = [{"kind": "wide", "units": hp.quniform("units", 8, 64, 8)}, {"kind": "flat"}]
    return Domain(None, {"lr": hp.loguniform("lr", -5, -1), "net": hp.choice("net", nets)})


@settings(deadline=None, max_examples=drawn(50))
@given(st.floats(0.01, 0.3), st.integers(0, 1), st.sampled_from([8.0, 16.0, 64.0]), st.integers(0, 10**6))
def test_a_point_is_the_document_that_hyperopt_would_write(lr: float, net: int, units: float, tid: int) -> None:
    import hyperopt

    domain = tree_domain()
    point = {"lr": lr, "net": net, **({"units": units} if net == 0 else {})}
    document = point_document(tid, checked_point(point, domain), domain.params)
    trials = hyperopt.Trials()
    trials.insert_trial_docs([document])
    trials.refresh()
    assert {label: found[0] for label, found in trials.vals.items() if found} == point
    assert set(document["misc"]["vals"]) == {"lr", "net", "units"}
    numbers = {label: np.float64(value) if label != "net" else np.int64(value) for label, value in point.items()}
    net_params = {"kind": "wide", "units": units} if net == 0 else {"kind": "flat"}
    assert params_of(numbers, domain) == {"lr": lr, "net": net_params}


nested = st.recursive(
    st.one_of(st.integers(-5, 5), st.text(max_size=3), st.booleans(), st.none()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.tuples(inner), st.dictionaries(st.text(), inner, max_size=2)
    ),
)


@given(nested)
def test_plain_values_stay_as_they_are(value: Any) -> None:
    assert plain(value) == value
    assert type(plain(value)) is type(value)


def test_an_early_stop_fn_sees_the_order_of_ends_and_a_loss_for_each() -> None:
    domain = tree_domain()
    documents = [point_document(tid, {"lr": 0.1, "net": 1}, domain.params) for tid in (0, 1)]
    late, failed = documents
    failed.update(state=2, result={"status": "fail", "error": "it broke"})
    late.update(state=2, result={"status": "ok", "loss": 0.5})
    seen = ended_trials([failed, late])
    assert seen.tids == [1, 0]
    assert seen.losses() == [sys.float_info.max, 0.5]
    assert "loss" not in failed["result"], "the document itself stays as it is"


@pytest.mark.parametrize("percent", [0.0, 5.0])
def test_a_failure_at_first_does_not_hide_all_progress_after_it(percent: float) -> None:
    from hyperopt.early_stop import no_progress_loss

    documents = [point_document(tid, {"lr": 0.1, "net": 1}, tree_domain().params) for tid in range(7)]
    documents[0].update(state=2, result={"status": "fail", "error": "it broke"})
    for number, document in enumerate(documents[1:]):
        document.update(state=2, result={"status": "ok", "loss": 8.0 - number})
    state: list[Any] = []
    stop = no_progress_loss(3, percent)
    for ended in range(1, 8):
        stopped, state = stop(ended_trials(documents[:ended]), *state)
        assert not stopped
