"""Policies that remember: their state is carried from step to step, row by row, and forgotten where
an episode begins.
"""

from __future__ import annotations

import warnings

import gymnasium
import pytest
import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn
from torch.distributions import Categorical
from torchrl.data import Unbounded
from torchrl.envs import (
    GymEnv as TheirGymEnv,
    InitTracker as TheirInitTracker,
    SerialEnv,
    TensorDictPrimer,
    TransformedEnv as TheirTransformedEnv,
)
from torchrl.modules import MLP, GRUModule, LSTMModule, ProbabilisticActor, set_recurrent_mode

from cartpole import cartpole
from recurrent import HIDDEN, LAYERS, LSTM_STATE, POLICIES, cell, check, gru, head, lstm
from windrow.collectors import (
    AsyncBatchedCollector,
    AsyncCollector,
    Collector,
    Evaluator,
    MultiAsyncCollector,
    MultiSyncCollector,
)
from windrow.data import LazyTensorStorage, ReplayBuffer
from windrow.envs import GymWrapper, InitTracker, ParallelEnv, TransformedEnv


@pytest.fixture(autouse=True)
def one_thread():
    """Networks as small as these are evaluated faster alone, and steps are compared one by one."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def gymnasium_cartpole() -> GymWrapper:
    return GymWrapper(gymnasium.make("CartPole-v1"), categorical_action_encoding=True)


def torchrl_cartpole() -> TheirGymEnv:
    return TheirGymEnv("CartPole-v1", categorical_action_encoding=True)


ENVIRONMENTS = {
    "native": "CartPole-v1",
    "gymnasium": gymnasium_cartpole,
    "torchrl": torchrl_cartpole,
}


def single(env, policy, **arguments):
    return Collector(env, policy, frames_per_batch=60, seed=0, **arguments)


def in_thread(env, policy, **arguments):
    return AsyncCollector(
        env, policy, placement="threads", frames_per_batch=60, seed=0, **arguments
    )


def together(env, policy, **arguments):
    return Collector(env, policy, frames_per_batch=120, num_envs=3, seed=0, **arguments)


def sync(env, policy, **arguments):
    return MultiSyncCollector(
        [env] * 2,
        policy,
        placement="threads",
        frames_per_batch=120,
        num_envs=2,
        seed=0,
        **arguments,
    )


def sync_inline(env, policy, **arguments):
    return MultiSyncCollector(
        [env] * 2, policy, frames_per_batch=120, placement="inline", seed=0, **arguments
    )


def first_come(env, policy, **arguments):
    return MultiAsyncCollector(
        [env] * 2, policy, placement="threads", frames_per_batch=60, num_envs=2, seed=0, **arguments
    )


def served(env, policy, **arguments):
    return AsyncBatchedCollector(
        [env] * 4,
        policy,
        backend="threading",
        frames_per_batch=60,
        seed=0,
        track_policy_version=False,
        **arguments,
    )


def served_apart(env, policy, **arguments):
    return served(env, policy, max_batch_size=1, **arguments)


KINDS = [single, in_thread, together, sync, sync_inline, first_come, served, served_apart]


@pytest.mark.filterwarnings("ignore:.*take turns")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("name", "env"),
    [
        ("lstm", "native"),
        ("lstm", "gymnasium"),
        ("lstm", "torchrl"),
        ("gru", "native"),
        ("gru", "gymnasium"),
        ("cell", "torchrl"),
    ],
)
def test_states_are_those_of_a_loop_by_hand(name, env, kind) -> None:
    make, state = POLICIES[name]
    with kind(ENVIRONMENTS[env], make(), total_frames=240) as collector:
        batches = [batch.clone() for batch in collector]
    assert sum(batch.numel() for batch in batches) == 240
    check(batches, make(), state)


def test_each_worker_of_a_factory_has_its_own_state() -> None:
    made = []

    def factory() -> TensorDictSequential:
        made.append(lstm())
        return made[-1]

    with MultiSyncCollector(
        [cartpole] * 2,
        policy_factory=factory,
        placement="threads",
        frames_per_batch=80,
        total_frames=240,
        seed=0,
    ) as collector:
        check([batch.clone() for batch in collector], lstm(), LSTM_STATE)
    assert len(made) == 2


@pytest.mark.parametrize("envs", [None, 3])
def test_batches_have_the_state_at_the_root_and_under_next(envs) -> None:
    shape = (20,) if envs is None else (3, 20)
    source = Collector(cartpole, cell(), frames_per_batch=20 * (envs or 1), num_envs=envs)
    batch = next(source)
    outputs = {"action", "embedded", "logits", "action_log_prob"}
    assert set(batch.keys()) == {
        "observation",
        "hidden",
        "done",
        "terminated",
        "truncated",
        "collector",
        "next",
        *outputs,
    }
    assert set(batch["next"].keys()) == {
        "observation",
        "hidden",
        "reward",
        "done",
        "terminated",
        "truncated",
    }
    assert batch["hidden"].shape == batch["next", "hidden"].shape == (*shape, HIDDEN)
    batch = next(Collector(cartpole, lstm(), frames_per_batch=20 * (envs or 1), num_envs=envs))
    for key in LSTM_STATE:
        assert batch[key].shape == batch["next", key].shape == (*shape, LAYERS, HIDDEN)
    assert batch["is_init"].shape == (*shape, 1)


class Pair(nn.Module):
    """Writes the states that it was given, too."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(3, HIDDEN)
        self.out = nn.Linear(HIDDEN, 1)

    def forward(self, observation, hidden1, hidden2):
        if hidden1 is None:
            hidden1 = hidden2 = torch.zeros(*observation.shape[:-1], HIDDEN)
        after = self.cell(observation, (hidden1, hidden2))
        return self.out(after[0]), hidden1, hidden2, *after


@pytest.mark.parametrize("kind", [single, together, sync])
def test_the_keys_of_a_recurrent_policy_are_those_of_torchrl(kind) -> None:
    out_keys = ["action", "hidden1", "hidden2", ("next", "hidden1"), ("next", "hidden2")]
    policy = TensorDictModule(
        Pair(), in_keys=["observation", "hidden1", "hidden2"], out_keys=out_keys
    )
    with kind("Pendulum-v1", policy) as collector:
        batch = next(collector)
    flags = {"done", "terminated", "truncated"}
    assert set(batch.keys()) == {
        "action",
        "observation",
        "hidden1",
        "hidden2",
        "collector",
        "next",
        *flags,
    }
    assert set(batch["next"].keys()) == {"observation", "reward", "hidden1", "hidden2", *flags}
    assert set(batch["collector"].keys()) == {"traj_ids"}
    for key in ("hidden1", "hidden2"):
        assert torch.equal(
            batch[key][..., 1:, :].flatten(0, -2)[:9],
            batch["next", key][..., :-1, :].flatten(0, -2)[:9],
        )
        assert batch["next", key].abs().sum() > 0


def test_actors_of_torchrl_remember() -> None:
    torch.manual_seed(0)
    body = TensorDictSequential(
        GRUModule(4, HIDDEN, in_keys=["observation", "h"], out_keys=["embedded", ("next", "h")]),
        head()[0],
    )
    actor = ProbabilisticActor(body, in_keys=["logits"], distribution_class=Categorical)
    batches = [
        batch.clone()
        for batch in Collector(cartpole, actor, frames_per_batch=50, total_frames=150, seed=0)
    ]
    check(batches, actor, ("h",))


def test_functions_remember_what_they_write_for_the_next_step() -> None:
    def policy(td: TensorDictBase) -> TensorDictBase:
        count = td.get("count", torch.zeros(*td.shape, dtype=torch.int64))
        return TensorDict({"action": count % 2, ("next", "count"): count + 1}, td.shape)

    with Collector(
        cartpole, policy, frames_per_batch=90, num_envs=3, max_frames_per_traj=7
    ) as collector:
        batch = next(collector)
    assert torch.equal(batch["count"], batch["step_count"].squeeze(-1))
    assert torch.equal(batch["next", "count"], batch["next", "step_count"].squeeze(-1))
    assert torch.equal(batch["action"], batch["count"] % 2)


def test_states_may_be_nested() -> None:
    class Steps(nn.Module):
        def forward(self, observation, steps):
            steps = torch.zeros(observation.shape[:-1]) if steps is None else steps
            return (steps % 2).long(), steps + 1

    keys = {
        "in_keys": ["observation", ("memory", "steps")],
        "out_keys": ["action", ("next", "memory", "steps")],
    }
    batch = next(
        Collector(
            cartpole, TensorDictModule(Steps(), **keys), frames_per_batch=30, max_frames_per_traj=5
        )
    )
    assert torch.equal(batch["memory", "steps"], batch["step_count"].squeeze(-1).float())


def test_what_begins_with_an_underscore_is_carried_and_not_recorded() -> None:
    from torchrl.data import Bounded
    from torchrl.modules import OrnsteinUhlenbeckProcessModule

    class Still(nn.Module):
        def forward(self, observation):
            return torch.zeros(*observation.shape[:-1], 1)

    spec = Bounded(-2, 2, (1,))
    noise = OrnsteinUhlenbeckProcessModule(
        spec=spec,
        eps_init=1.0,
        eps_end=1.0,
        annealing_num_steps=1,
        sigma=0.01,
        theta=0.0,
        x0=0.0,
        dt=1.0,
    )
    still = TensorDictModule(Still(), in_keys=["observation"], out_keys=["action"])
    with warnings.catch_warnings():
        # An environment without is_init would be complained about.
        warnings.simplefilter("error")
        source = Collector(
            "Pendulum-v1",
            TensorDictSequential(still, noise),
            frames_per_batch=2000,
            max_frames_per_traj=100,
            seed=0,
        )
        batch = next(source)
    assert not [key for key in batch.keys() if key.startswith("_")]
    walks = batch["action"].reshape(20, 100)
    # Without a memory the spread would stay that of a single step, 0.01.
    assert walks[:, -1].std() > 0.05
    assert walks[:, 0].abs().max() < 0.05


# Specs that policies ask for


def test_an_init_tracker_is_added_once_and_only_if_it_is_read() -> None:
    tracked = TransformedEnv(cartpole(), InitTracker())
    theirs = TheirTransformedEnv(torchrl_cartpole(), TheirInitTracker())
    for env in (cartpole, tracked, theirs, ParallelEnv(2, cartpole)):
        batches = [
            batch.clone()
            for batch in Collector(env, gru(), frames_per_batch=60, total_frames=120, seed=0)
        ]
        check(batches, gru(), ("h",))
        assert not batches[0]["next", "is_init"].any()
    assert "is_init" not in next(Collector(cartpole, cell(), frames_per_batch=10)).keys()

    def policy(observation, is_init):
        return is_init.squeeze(-1).long()

    batch = next(Collector(cartpole, policy, frames_per_batch=40))
    assert torch.equal(batch["action"], batch["is_init"].squeeze(-1).long())
    network = TensorDictModule(
        MLP(5, 2, num_cells=[8]), in_keys=["observation", "is_init"], out_keys=["action"]
    )
    with torch.no_grad():
        batch = next(Collector(cartpole, network, frames_per_batch=40, seed=0))
        scores = network.module(torch.cat([batch["observation"], batch["is_init"]], -1))
    assert torch.equal(batch["action"], scores.argmax(-1))


def test_without_registration_nothing_is_added() -> None:
    with pytest.raises(
        KeyError,
        match="reads 'is_init', which neither the environment observes nor the policy writes",
    ):
        single(cartpole, lstm(), auto_register_policy_transforms=False)
    tracked = TransformedEnv(cartpole(), InitTracker())
    batches = [
        batch.clone()
        for batch in single(
            tracked, lstm(), auto_register_policy_transforms=False, total_frames=120
        )
    ]
    check(batches, lstm(), LSTM_STATE)
    check(
        [next(single(cartpole, lstm(), auto_register_policy_transforms=None)).clone()],
        lstm(),
        LSTM_STATE,
    )


@pytest.mark.parametrize("kind", [single, sync])
def test_a_policy_that_reads_what_nobody_writes_is_refused(kind) -> None:
    misspelt = LSTMModule(
        4,
        HIDDEN,
        in_keys=["observation", "h", "c"],
        out_keys=["embedded", ("next", "h"), ("next", "cell")],
    )
    with pytest.raises(
        KeyError, match="reads 'c', which neither the environment observes nor the policy writes"
    ):
        kind(cartpole, TensorDictSequential(misspelt, *head()))


def test_a_state_needs_a_first_value() -> None:
    def step(observation, hidden):
        hidden = hidden + observation.sum(-1)
        return (hidden > 0).long(), hidden

    keys = {"in_keys": ["observation", "hidden"], "out_keys": ["action", ("next", "hidden")]}
    with pytest.raises(TypeError, match=r"failed without \['hidden'\].*make_tensordict_primer"):
        single(cartpole, TensorDictModule(step, **keys))

    def from_one(observation, hidden):
        return step(observation, torch.ones(observation.shape[:-1]) if hidden is None else hidden)

    with pytest.raises(ValueError, match="something else than zeros where it is given no 'hidden'"):
        single(cartpole, TensorDictModule(from_one, **keys))

    def growing(observation, hidden):
        return step(observation, observation.new_zeros(2) if hidden is None else hidden)[0][
            ..., 0
        ], observation.new_zeros(3)

    with pytest.raises(
        ValueError, match=r"writes \('next', 'hidden'\) with shape \(3,\), expected \(5,\)"
    ):
        single(cartpole, Primed(growing, Unbounded((5,))))


class Primed(TensorDictModule):
    """Tells the first value of its state."""

    def __init__(self, function, spec: Unbounded, **options) -> None:
        super().__init__(
            function, in_keys=["observation", "hidden"], out_keys=["action", ("next", "hidden")]
        )
        self.arguments = ({"hidden": spec}, options)

    def make_tensordict_primer(self) -> TensorDictPrimer:
        return TensorDictPrimer(self.arguments[0], expand_specs=True, **self.arguments[1])


@pytest.mark.parametrize("envs", [None, 3, "served"])
def test_states_begin_as_primers_say(envs) -> None:
    def step(observation, hidden):
        return hidden[..., 0].long() % 2, hidden + 1

    def collected(**options) -> TensorDictBase:
        policy = Primed(step, Unbounded((2,)), **options)
        if envs == "served":
            return next(served(cartpole, policy, max_frames_per_traj=5))
        return next(
            Collector(cartpole, policy, frames_per_batch=60, num_envs=envs, max_frames_per_traj=5)
        )

    batch = collected(default_value=7.0)
    assert torch.equal(batch["hidden"], 7 + batch["step_count"].expand(*batch.shape, 2).float())
    batch = collected(random=True)
    starts = (batch["hidden"] - batch["step_count"])[batch["step_count"].squeeze(-1) == 0]
    assert len(starts.flatten().unique()) == starts.numel()


class Unprimed(Primed):
    """Raises an error in place of telling the first value of its state, zeros."""

    def __init__(self, error: Exception) -> None:
        def step(observation, hidden):
            hidden = torch.zeros(*observation.shape[:-1], 2) if hidden is None else hidden
            return hidden[..., 0].long() % 2, hidden + 1

        super().__init__(step, Unbounded((2,)))
        self.error = error

    def make_tensordict_primer(self) -> TensorDictPrimer:
        raise self.error


def test_a_module_that_knows_no_first_value_of_its_state_begins_with_zeros_and_says_so() -> None:
    with pytest.warns(
        UserWarning, match="Unprimed knows no first value of its state.*only for matching keys"
    ):
        batch = next(single(cartpole, Unprimed(RuntimeError("only for matching keys"))))
    assert (batch["hidden"][0] == 0).all()


def test_a_defect_of_a_module_in_making_a_primer_is_raised() -> None:
    with pytest.raises(AttributeError, match="no hidden_size"):
        single(cartpole, Unprimed(AttributeError("no hidden_size")))


# Environments that have a state of the policy's


def primed(value: float = 0.0) -> TheirTransformedEnv:
    env = TheirTransformedEnv(torchrl_cartpole(), TheirInitTracker())
    shape = (LAYERS, HIDDEN)
    specs = {key: Unbounded(shape) for key in LSTM_STATE}
    return env.append_transform(TensorDictPrimer(specs, default_value=value, expand_specs=True))


@pytest.mark.parametrize("register", [True, False])
@pytest.mark.parametrize(
    ("env", "envs"),
    [(primed, None), (primed, 3), (lambda: SerialEnv(2, primed), None), (primed, "served")],
    ids=["one", "several", "batched", "served"],
)
def test_primers_of_environments_give_the_first_value_alone(env, envs, register) -> None:
    arguments = {"frames_per_batch": 120, "total_frames": 240, "num_envs": envs, "seed": 0}
    if envs == "served":
        source = served(env, lstm(), auto_register_policy_transforms=register, total_frames=240)
    else:
        source = Collector(
            env() if envs is None else env,
            lstm(),
            auto_register_policy_transforms=register,
            **arguments,
        )
    batches = [batch.clone() for batch in source]
    check(batches, lstm(), LSTM_STATE)
    assert set(batches[0]["next"].keys()) == {
        *("observation", "is_init", "reward", "done", "terminated", "truncated", *LSTM_STATE)
    }


def test_the_first_value_is_that_of_the_environment() -> None:
    def step(observation, hidden):
        return hidden[..., 0].long() % 2, hidden + 1

    keys = {"in_keys": ["observation", "hidden"], "out_keys": ["action", ("next", "hidden")]}
    env = TheirTransformedEnv(
        torchrl_cartpole(), TensorDictPrimer({"hidden": Unbounded((2,))}, default_value=3.0)
    )
    batch = next(
        Collector(env, TensorDictModule(step, **keys), frames_per_batch=60, max_frames_per_traj=5)
    )
    assert torch.equal(batch["hidden"], 3 + batch["step_count"].expand(60, 2).float())
    assert torch.equal(batch["next", "hidden"], batch["hidden"] + 1)


def test_what_the_environment_itself_changes_cannot_be_a_state() -> None:
    def predict(observation):
        return (observation[..., 0] > 0).long(), observation

    policy = TensorDictModule(
        predict, in_keys=["observation"], out_keys=["action", ("next", "observation")]
    )
    with (
        single(cartpole, policy) as collector,
        pytest.raises(RuntimeError, match="both the policy and the environment"),
    ):
        next(collector)


def test_frames_are_those_of_torchrls_collector() -> None:
    from torchrl.collectors import Collector as TheirCollector

    policy = lstm()
    arguments = {"frames_per_batch": 60, "total_frames": 180, "exploration_type": "DETERMINISTIC"}

    def theirs() -> list[TensorDictBase]:
        from torchrl.envs import ExplorationType

        env = primed()
        env.set_seed(5)
        source = TheirCollector(
            env, policy, **{**arguments, "exploration_type": ExplorationType.DETERMINISTIC}
        )
        return [batch.clone() for batch in source]

    ours = Collector(primed(), policy, seed=5, **arguments)
    for own, other in zip([batch.clone() for batch in ours], theirs(), strict=True):
        for key in (
            "observation",
            "is_init",
            "logits",
            "action",
            *LSTM_STATE,
            *(("next", key) for key in LSTM_STATE),
        ):
            torch.testing.assert_close(own[key], other[key], rtol=1e-6, atol=1e-6)


# What else collectors do


def test_a_batch_can_be_learnt_from_as_a_sequence() -> None:
    policy = lstm()
    with Collector(cartpole, policy, frames_per_batch=120, num_envs=3, seed=1) as collector:
        batches = [next(collector) for _ in range(2)]
    for batch in batches:
        assert batch["is_init"][:, 1:].any()
        with set_recurrent_mode(True):
            again = policy[:-1](batch.select("observation", "is_init", *LSTM_STATE))
        torch.testing.assert_close(again["logits"], batch["logits"], rtol=1e-5, atol=1e-6)
        assert again["logits"].requires_grad


def test_collecting_takes_steps_whatever_mode_the_learner_is_in() -> None:
    with set_recurrent_mode(True):
        batches = [batch.clone() for batch in single(cartpole, lstm(), total_frames=120)]
    check(batches, lstm(), LSTM_STATE)


def frames_begin_with_zeros(batch: TensorDictBase) -> bool:
    """Whether the state is zero at the first frame of each trajectory, and nowhere else."""
    ids = batch["collector", "traj_ids"].flatten()
    begins = torch.cat([torch.tensor([True]), ids[1:] != ids[:-1]])
    return torch.equal((batch["hidden"] == 0).all(-1).flatten(), begins)


@pytest.mark.parametrize("placement", ["inline", "threads"])
def test_every_way_to_begin_an_episode_forgets(placement) -> None:
    with MultiSyncCollector(
        [cartpole],
        cell(),
        frames_per_batch=40,
        placement=placement,
        reset_at_each_iter=True,
        seed=0,
    ) as collector:
        assert all(frames_begin_with_zeros(next(collector)) for _ in range(3))
    with MultiSyncCollector(
        [cartpole], cell(), frames_per_batch=5, placement=placement, seed=0
    ) as collector:
        first = next(collector)
        collector.reset()
        assert frames_begin_with_zeros(next(collector))
        collector.set_seed(0)
        assert torch.equal(next(collector)["observation"][0], first["observation"][0])
        batch = collector.rollout()
        assert not frames_begin_with_zeros(batch), "an episode goes on"
        state = collector.state_dict()
        collector.load_state_dict(state)
        assert not frames_begin_with_zeros(next(collector)), (
            "with its simulators, a state goes on within an episode"
        )
        del state["simulators"]
        collector.load_state_dict(state)
        assert frames_begin_with_zeros(next(collector))


def test_random_frames_leave_no_trace() -> None:
    with Collector(
        cartpole, cell(), frames_per_batch=10, init_random_frames=20, seed=0
    ) as collector:
        warm = [next(collector).clone() for _ in range(4)]
        assert all(
            (batch["hidden"] == 0).all() and (batch["next", "hidden"] == 0).all()
            for batch in warm[:2]
        )
        # The first frame that the policy sees, be it within an episode, is where its memory begins.
        assert (warm[2]["hidden"][0] == 0).all() and (warm[3]["hidden"].abs().sum() > 0)
        state = collector.state_dict()
        collector.load_state_dict({**state, "frames": 0, "iter": 0})
        again = [next(collector).clone() for _ in range(3)]
        assert (again[0]["hidden"] == 0).all() and (again[1]["hidden"] == 0).all()
        assert (again[2]["hidden"][0] == 0).all() and (again[2]["hidden"][1] != 0).any()


def test_weights_change_and_the_state_goes_on() -> None:
    policy = cell()
    with MultiSyncCollector(
        [cartpole], policy, placement="threads", frames_per_batch=5, seed=0
    ) as collector:
        before = next(collector).clone()
        with torch.no_grad():
            policy[0].module.cell.weight_ih.zero_()
            policy[0].module.cell.weight_hh.zero_()
            policy[0].module.cell.bias_ih.zero_()
            policy[0].module.cell.bias_hh.zero_()
        collector.update_policy_weights_()
        after = next(collector)
    assert torch.equal(after["hidden"][0], before["next", "hidden"][-1])
    # A cell of zeros halves its state.
    torch.testing.assert_close(after["next", "hidden"], after["hidden"] / 2)


def test_cut_and_whole_trajectories_keep_their_states() -> None:
    with MultiSyncCollector(
        [cartpole] * 3,
        cell(),
        placement="threads",
        frames_per_batch=60,
        preemptive_threshold=0.5,
        seed=0,
    ) as collector:
        batches = [next(collector).clone() for _ in range(4)]
    whole = [
        batch[batch["collector", "mask"]] if ("collector", "mask") in batch.keys(True) else batch
        for batch in batches
    ]
    check(whole, cell(), ("hidden",))
    with Collector(
        cartpole, cell(), frames_per_batch=40, trajs_per_batch=3, traj_format="cat", seed=0
    ) as collector:
        check([next(collector).clone() for _ in range(2)], cell(), ("hidden",))


def test_evaluators_and_buffers_take_recurrent_policies() -> None:
    seen: list[TensorDictBase] = []

    def look(batch: TensorDictBase) -> dict[str, float]:
        seen.append(batch.clone())
        return {}

    with Evaluator(cartpole, lstm(), num_trajectories=3, metrics_fn=look, seed=0) as evaluator:
        first, second = evaluator.evaluate(), evaluator.evaluate()
    assert first["eval/num_episodes"] == second["eval/num_episodes"] == 3
    for batch in seen:
        mask = batch.get(("collector", "mask"), None)
        frames = batch if mask is None else batch[mask]
        check([frames], lstm(), LSTM_STATE)
    buffer = ReplayBuffer(storage=LazyTensorStorage(200), batch_size=16)
    with Collector(
        cartpole, lstm(), frames_per_batch=50, total_frames=100, replay_buffer=buffer
    ) as collector:
        for _ in collector:
            pass
    sample = buffer.sample()
    assert sample["next", "recurrent_state_h"].shape == (16, LAYERS, HIDDEN)
