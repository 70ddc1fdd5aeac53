"""Strategies change how a model lies on its device, and not a bit of what it learns; what they cannot do they name."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from strategy_models import (
    COLUMNS,
    EXACT,
    PARAMS,
    REFUSED,
    Block,
    Blocks,
    RoundsOtherwise,
    Transformer,
    make_feed,
    make_trainer,
    mlp,
    model_fn_of,
    read,
    save,
    train,
)
from torch.optim.optimizer import register_optimizer_step_post_hook

from cerebro_spark.codec import decode, encode
from cerebro_spark.errors import ConfigurationError, TrialFailed
from cerebro_spark.events import PartitionLoaded, RunStarted, Settings, UnitFinished, WorkAdded, WorkerJoined
from cerebro_spark.replays import RunScript
from cerebro_spark.trainer import Hooks, Resources, TorchModel
from cerebro_spark.trainer.base import Member
from cerebro_spark.trainer.group import GroupRefused
from cerebro_spark.trainer.spec import TrainerSpec
from cerebro_spark.trainer.torch.built_model import BuiltTorchModel
from cerebro_spark.trainer.torch.strategies import host_state
from cerebro_spark.trainer.torch.strategies.blocks import find_blocks, find_obstacle
from cerebro_spark.trainer.torch.strategies.host_state import HostedOptimizer
from cerebro_spark.trainer.torch.strategies.recomputing import Recomputing
from cerebro_spark.trainer.torch.trainer import TorchTrainer
from cerebro_spark.types import Checkpoint, Partition, Unit, Work

CPU = torch.device("cpu")

# Exactness


@pytest.mark.parametrize("precision", [None, "bfloat16"])
@pytest.mark.parametrize("name", EXACT)
def test_recomputing_leaves_the_very_bits(name: str, precision: Any) -> None:
    plain = make_trainer(EXACT[name], "plain", precision=precision)
    again = make_trainer(EXACT[name], "recompute", precision=precision)
    assert train(again) == train(plain)
    assert (again.strategy, again.steps) == ("recompute", "eager")


@pytest.mark.parametrize("strategy", ["offload", "offload+recompute"])
def test_offloading_on_a_cpu_changes_nothing(strategy: str) -> None:
    made = make_trainer(Transformer, strategy)
    assert train(made) == train(make_trainer(Transformer, "plain"))
    assert made.strategy == ("recompute" if "recompute" in strategy else "plain")


def test_auto_on_a_cpu_is_plain_and_tries_nothing() -> None:
    made = make_trainer(Transformer, "auto")
    assert train(made) == train(make_trainer(Transformer, "plain"))
    assert (made.strategy, made.failed_tries) == ("", [])


def test_a_trial_hops_between_strategies() -> None:
    first, second, straight = (make_trainer(EXACT["cnn"], each) for each in ("recompute", "plain", "plain"))
    first.build("t0", PARAMS)
    first.train(Unit("t0", 1, "p0"), make_feed(1))
    state = save(first)
    second.load("t0", PARAMS, state)
    second.train(Unit("t0", 2, "p0"), make_feed(2))
    first.load("t0", PARAMS, save(second))
    first.train(Unit("t0", 3, "p0"), make_feed(3))
    assert read(save(first)) == train(straight, units=3)[0]


def test_a_schedule_by_batch_and_an_evaluation_in_between() -> None:
    def model_fn(params: Any) -> TorchModel:
        made = model_fn_of(EXACT["cnn"], "Adagrad")(params)
        made.lr_scheduler, made.scheduler_step = torch.optim.lr_scheduler.ExponentialLR(made.optimizer, 0.9), "batch"
        return made

    states = []
    for strategy in ("plain", "recompute"):
        resources = Resources(device="cpu", threads=1, strategy=strategy)
        made = TorchTrainer(Hooks(model_fn), COLUMNS, seed=3, resources=resources)
        made.build("t0", PARAMS)
        made.train(Unit("t0", 1, "p0"), make_feed(1))
        before = made.evaluate(Unit("t0", 1, "v0", "eval"), make_feed(7)).values()
        made.load("t0", PARAMS, save(made))
        made.train(Unit("t0", 2, "p0"), make_feed(2))
        states.append((read(save(made)), before))
    assert states[0] == states[1]


def test_blocks_are_computed_twice_and_look_as_before() -> None:
    calls: list[str] = []

    class Noting(Block):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            calls.append("a call")
            return super().forward(x)

    module = Blocks(Noting)
    before = [dict(vars(part)) for part in module.modules()]
    names = list(module.state_dict())
    with Recomputing(find_blocks(module), CPU).in_force():
        assert list(module.state_dict()) == names
        module(torch.randn(4, 5, 8)).sum().backward()
    assert len(calls) == 4
    assert [dict(vars(part)) for part in module.modules()] == before
    with Recomputing(find_blocks(module), CPU).in_force(), torch.no_grad():
        module(torch.randn(4, 5, 8))
    assert len(calls) == 6


class Staged(torch.nn.Module):
    """As many models of images: sequences beside each other, and a head that writes into its input."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8))
        self.stages = torch.nn.Sequential(*(torch.nn.Sequential(Block(), Block()) for _ in range(2)))
        self.head = torch.nn.Sequential(torch.nn.Dropout(0.1, inplace=True), torch.nn.Linear(8, 8), torch.nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.head(self.stages(self.stem(x))).mean((1, 2))
        return result


def test_blocks_are_what_repeats_as_far_out_as_possible() -> None:
    names = ["stem", "stages.0.0", "stages.0.1", "stages.1.0", "stages.1.1"]
    assert [block.name for block in find_blocks(Staged())] == names
    decoder = torch.nn.TransformerDecoder(torch.nn.TransformerDecoderLayer(8, 2), 2)
    assert [block.name for block in find_blocks(decoder)] == ["layers.0", "layers.1"]
    assert [block.name for block in find_blocks(EXACT["dicts"]())] == ["first.a", "first.b", "second.a"]
    assert train(make_trainer(Staged, "recompute")) == train(make_trainer(Staged, "plain"))


def test_less_is_kept_for_the_gradients() -> None:
    def count_kept(recomputes: bool) -> int:
        kept: list[int] = []

        def keep(tensor: torch.Tensor) -> torch.Tensor:
            kept.append(tensor.nbytes)
            return tensor

        module = Transformer()
        recomputing = Recomputing(find_blocks(module) if recomputes else [], CPU)
        with recomputing.in_force(), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            module(torch.randn(64, 5, 8))
        return sum(kept)

    assert count_kept(True) < count_kept(False) / 4


OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    **{
        name: getattr(torch.optim, name)
        for name in ("ASGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam")
    },
    "RMSprop": lambda p: torch.optim.RMSprop(p, momentum=0.9, centered=True),
    "Rprop": torch.optim.Rprop,
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "amsgrad": lambda p: torch.optim.Adam(p, amsgrad=True, weight_decay=0.1, foreach=True),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_in_pieces_leave_the_very_bits(name: str) -> None:
    def run(pieces: bool) -> list[Any]:
        torch.manual_seed(0)
        module: Any = mlp()
        module[1].bias.requires_grad_(False)
        optimizer = OPTIMIZERS[name](module.parameters())
        hosted = HostedOptimizer(optimizer, list(module.parameters()), CPU, piece=3000)
        for step in range(4):
            optimizer.zero_grad()
            module(torch.randn(16, 5, 8)).square().mean().backward()
            if step == 2:
                module[4].weight.grad = None
            hosted.step(optimizer.step) if pieces else optimizer.step()
            hosted.finish()
        gradients = [None if each.grad is None else each.grad.tolist() for each in module.parameters()]
        state = {index: str(state) for index, state in optimizer.state_dict()["state"].items()}
        return [gradients, state, {key: value.tolist() for key, value in module.state_dict().items()}]

    assert run(True) == run(False)


# Refusals


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_computed_again_is_named(name: str) -> None:
    make, said = REFUSED[name]
    made = make_trainer(make, "recompute")
    made.build("t0", PARAMS)
    with pytest.raises(ConfigurationError, match=said) as caught:
        made.train(Unit("t0", 1, "p0"), make_feed())
    assert "strategy is 'recompute', but trial t0" in str(caught.value)
    assert "Use 'plain', or 'auto'" in str(caught.value)


def test_what_rounds_otherwise_each_time_may_do_so_when_it_is_computed_again() -> None:
    made = make_trainer(lambda: Blocks(RoundsOtherwise), "recompute")
    train(made)
    assert made.strategy == "recompute"


@pytest.mark.parametrize("name", ["hooks", "hidden", "large buffer", "no blocks"])
def test_what_is_refused_trains_as_it_is(name: str) -> None:
    train(make_trainer(REFUSED[name][0], "auto"))


def test_a_train_fn_takes_its_own_steps() -> None:
    def train_fn(model: Any, batches: Any, params: Any) -> Any:
        return {"loss": 1.0, "rows": sum(len(batch["y"]) for batch in batches)}

    resources = Resources(device="cpu", threads=1, strategy="recompute")
    made = TorchTrainer(Hooks(model_fn_of(Transformer), train_fn=train_fn), COLUMNS, resources=resources)
    made.build("t0", PARAMS)
    with pytest.raises(ConfigurationError, match="its train_fn takes the steps"):
        made.train(Unit("t0", 1, "p0"), make_feed())


def _compile_all(module: torch.nn.Module) -> Any:
    return torch.compile(module)


def _compile_in_place(module: Any) -> Any:
    module.blocks[0].linear.compile()
    return module


@pytest.mark.parametrize(
    ("compile_", "said"),
    [(_compile_all, "its OptimizedModule is"), (_compile_in_place, "its Linear 'blocks.0.linear' is")],
)
def test_what_is_compiled_is_not_computed_again(compile_: Callable[[Any], Any], said: str) -> None:
    module = compile_(Blocks(Block))
    assert find_obstacle(module, find_blocks(module)) == f"{said} compiled"


def test_an_error_in_a_step_leaves_the_model_as_it_was() -> None:
    fails = [False]

    class Failing(Block):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if fails[0]:
                raise ArithmeticError("a block fails")
            return super().forward(x)

    built: list[torch.nn.Module] = []

    def make() -> torch.nn.Module:
        built.append(Blocks(Failing))
        return built[-1]

    made = make_trainer(make, "recompute")
    train(made)
    (module,) = built
    before = [dict(vars(part)) for part in module.modules()]
    fails[0] = True
    with pytest.raises(TrialFailed, match="a block fails"):
        made.train(Unit("t0", 3, "p0"), make_feed(3))
    assert [dict(vars(part)) for part in module.modules()] == before


class OwnAdam(torch.optim.Adam):
    pass


def _hooked(parameters: Any) -> Any:
    optimizer = torch.optim.Adam(parameters)
    optimizer.register_step_post_hook(lambda *_: None)
    return optimizer


def _with_another_step(parameters: Any) -> Any:
    optimizer: Any = torch.optim.Adam(parameters)
    step = optimizer.step
    optimizer.step = lambda *given: step(*given)
    return optimizer


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (torch.optim.LBFGS, "its optimizer LBFGS may do more than step each parameter"),
        (OwnAdam, "its optimizer OwnAdam may do more"),
        (_hooked, "its optimizer has hooks"),
        (_with_another_step, "its optimizer has another `step` than its class"),
        (lambda p: torch.optim.SGD(p, lr=0.1), "keeps no state: use 'recompute'"),
    ],
)
def test_which_optimizers_stay_on_the_device(make: Any, said: str) -> None:
    module = mlp()
    model = BuiltTorchModel(TorchModel(module, make(module.parameters()), torch.nn.MSELoss()), CPU, None)
    assert said in host_state.find_obstacle(model)


def test_hooks_of_all_optimizers_count_and_neither_those_of_a_state_dict_nor_a_schedule() -> None:
    module = mlp()
    optimizer = torch.optim.Adam(module.parameters())
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    optimizer.register_state_dict_pre_hook(lambda *_: None)
    model = BuiltTorchModel(TorchModel(module, optimizer, torch.nn.MSELoss()), CPU, None)
    assert host_state.find_obstacle(model) == ""
    hook = register_optimizer_step_post_hook(lambda *_: None)
    try:
        assert "its optimizer has hooks" in host_state.find_obstacle(model)
    finally:
        hook.remove()


@pytest.mark.parametrize(
    ("strategy", "said"),
    [
        (
            "best",
            "strategy is 'best', but must be 'auto', 'plain', 'recompute', 'offload', 'offload\\+recompute' or 'shard'",
        ),
        (None, "strategy is None, but must be .*: leave it out for 'auto'"),
        (["plain"], "strategy is \\['plain'\\], but must be"),
    ],
)
def test_other_values_are_refused(strategy: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        Resources(strategy=strategy)


def test_bundles_and_groups_leave_it_alone() -> None:
    alone = make_trainer(mlp, "recompute")
    expected = [train(alone, 1, trial)[0] for trial in ("t0", "t1")]
    made = make_trainer(mlp, "recompute")
    members = [Member(Unit(trial, 1, "p0"), PARAMS, make_feed(1)) for trial in ("t0", "t1")]
    outcomes = made.train_together(members)
    assert all(not isinstance(each, Exception) and each.width == 1 for each in outcomes)
    assert [each.strategy for each in outcomes if not isinstance(each, Exception)] == ["recompute"] * 2
    saved = [each.checkpoint.getvalue() for each in outcomes if not isinstance(each, Exception)]
    assert [read(state) for state in saved] == expected
    made.build("t0", PARAMS)
    seat: Any = None
    with pytest.raises(GroupRefused, match="its strategy is 'recompute', and groups train by 'plain' alone"):
        made.train_in_group(Unit("t0", 1, "p0", beside=("p1",)), make_feed(), seat)


# The ladder


class SmallDevice(TorchTrainer):
    """Has a device of its own on which only some strategies fit, as a third batch shows."""

    fits: tuple[str, ...] = ()
    computed = 0

    @property
    def _has_own_memory(self) -> bool:
        return True

    def _begin_unit(self, model: Any, training: bool) -> None:
        super()._begin_unit(model, training)
        self.computed = 0

    def _compute_loss(self, model: Any, tensors: Any) -> Any:
        result = super()._compute_loss(model, tensors)
        self.computed += 1
        if self._in_force is not None and self._in_force.strategy not in self.fits and self.computed > 2:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 3.00 GiB")
        return result


@pytest.mark.parametrize("fits", ["recompute", "offload", "offload+recompute"])
def test_what_does_not_fit_is_begun_again_by_the_next(fits: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    made = make_trainer(Transformer, "auto", SmallDevice)
    assert isinstance(made, SmallDevice)
    made.fits = (fits,)
    assert train(made) == train(make_trainer(Transformer, "plain"))
    assert made.strategy == fits
    rungs = ["plain", "recompute", "offload", "offload+recompute"]
    assert [each.strategy for each in made.failed_tries] == rungs[: rungs.index(fits)]
    (said,) = [each.getMessage() for each in caplog.records if "trains by strategy" in each.getMessage()]
    assert f"Transformer with batches of 16 trains by strategy {fits!r} ('plain': out of memory" in said
    train(made, 1, "t1")
    assert len(made.failed_tries) == rungs.index(fits), "it is known for the structure"


def test_recurrent_trials_have_one_structure_and_what_fits_is_known_for_it() -> None:
    made = make_trainer(EXACT["recurrent"], "auto", SmallDevice)
    assert isinstance(made, SmallDevice)
    made.fits = ("offload",)
    states: dict[str, bytes] = {}
    for epoch in (1, 2):
        for trial in ("t0", "t1"):
            if epoch == 1:
                made.build(trial, PARAMS)
            else:
                made.load(trial, PARAMS, states[trial])
            made.train(Unit(trial, epoch, "p0"), make_feed(epoch))
            states[trial] = save(made)
    for trial, state in states.items():
        assert read(state) == train(make_trainer(EXACT["recurrent"], "plain"), trial=trial)[0]
    assert len(made.models) == 1
    assert [each.strategy for each in made.failed_tries] == ["plain", "recompute"]


def test_a_unit_goes_back_to_the_checkpoint_that_it_came_from() -> None:
    straight, made = make_trainer(EXACT["cnn"], "plain"), make_trainer(EXACT["cnn"], "auto", SmallDevice)
    assert isinstance(made, SmallDevice)
    made.fits = ("plain", "recompute")
    train(made, 1)
    state = save(made)
    made.fits = ("recompute",)
    made.load("t0", PARAMS, state)
    made.train(Unit("t0", 2, "p0"), make_feed(2))
    assert made.strategy == "recompute"
    assert read(save(made)) == train(straight, 2)[0]


def test_what_fits_by_no_strategy_fails_and_says_what_was_tried() -> None:
    made = make_trainer(EXACT["cnn"], "auto", SmallDevice)
    made.build("t0", PARAMS)
    with pytest.raises(TrialFailed, match="'plain': out of memory; 'recompute': out of memory; 'offload': out"):
        made.train(Unit("t0", 1, "p0"), make_feed())


@pytest.mark.parametrize("name", sorted(set(REFUSED) - {"hidden noise"}))
def test_auto_leaves_out_what_a_model_cannot_use_and_no_trace_of_it_is_left(name: str) -> None:
    make = REFUSED[name][0]
    made = make_trainer(make, "auto", SmallDevice)
    assert isinstance(made, SmallDevice)
    made.fits = ("offload",)
    assert train(made) == train(make_trainer(make, "plain"))
    assert made.failed_tries[0].strategy == "plain"
    assert made.strategy == "offload"


# Logs


def test_a_known_strategy_is_used_again() -> None:
    spec = TrainerSpec(Hooks(model_fn_of(Transformer)), framework="torch", strategies={"t0": "recompute", "t1": ""})
    made = spec.with_resources(device="cpu", threads=1).make_trainer(COLUMNS)
    made.build("t0", PARAMS)
    made.train(Unit("t0", 1, "p0"), make_feed(1))
    used = [made.strategy]
    made.build("t1", PARAMS)
    made.train(Unit("t1", 1, "p0"), make_feed(1))
    assert [*used, made.strategy] == ["recompute", "plain"]


def test_events_have_the_strategy_and_old_ones_are_read() -> None:
    event = UnitFinished(1.0, "w0", Unit("t0", 1, "p0"), 1, 2.0, strategy="recompute")
    assert decode(encode(event)) == event
    older = UnitFinished(1.0, "w0", Unit("t0", 1, "p0"), 1, 2.0)
    assert decode(encode(older).replace(',"strategy":""', "")) == older


def test_a_replay_is_told_the_strategy_of_the_run() -> None:
    unit = Unit("t0", 1, "p0")
    finished = UnitFinished(3.0, "w0", unit, 1, 1.0, Checkpoint("t0", 1, 1, 1, 9, "d"), strategy="recompute")
    script = RunScript.from_events(
        [
            RunStarted(0.0, "r1", Settings((Partition("p0", rows=9),), workers=1)),
            WorkerJoined(0.0, "w0"),
            WorkAdded(1.0, Work("t0", {}, 1)),
            PartitionLoaded(2.0, "w0", "p0"),
            finished,
        ]
    )
    assert script.strategies == {"t0": "recompute"}


def test_older_pickles_mean_what_was_done_then() -> None:
    resources = object.__new__(Resources)
    resources.__setstate__([2, "cpu", None, 1 << 30, None, "auto"])
    assert (resources.compile, resources.strategy) == ("auto", "plain")
    spec = object.__new__(TrainerSpec)
    spec.__setstate__([Hooks(model_fn_of(mlp)), 3, "torch", resources])
    assert (spec.metric_rule, spec.strategies) == ("guess", {})
    assert pickle.loads(pickle.dumps(Resources(strategy="offload"))).strategy == "offload"


def test_predictions_are_those_of_the_model() -> None:
    plain, again = make_trainer(Transformer, "plain"), make_trainer(Transformer, "recompute")
    outputs = []
    for made in (plain, again):
        train(made)
        outputs.append(made.predict(make_feed(5))["prediction"])
    assert np.array_equal(outputs[0], outputs[1])
