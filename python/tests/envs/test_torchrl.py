"""TorchRL's environments, and its specs."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from tensordict import TensorDict

import windrow.envs as ours

torchrl = pytest.importorskip("torchrl")

from torchrl.data import (
    Binary,
    Bounded,
    Categorical,
    Composite,
    MultiCategorical,
    MultiOneHot,
    OneHot,
    Unbounded,
)
from torchrl.envs import (
    EnvBase,
    GymEnv,
    SerialEnv,
    StepCounter,
    Transform,
    TransformedEnv,
)

from theirs import Counting
from windrow.collectors import Collector


def test_a_single_environment_is_collected() -> None:
    batch = next(Collector(lambda: Counting(), None, frames_per_batch=12))
    assert batch.shape == (12,)
    assert batch["data", "count"].flatten().tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1]
    assert batch["next", "data", "count"].flatten().tolist() == [1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 1, 2]
    assert batch["next", "reward"].flatten().tolist() == [1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 1, 2]
    assert batch["next", "done"].flatten().nonzero().flatten().tolist() == [4, 9]
    assert torch.equal(batch["next", "terminated"], batch["next", "done"])
    assert batch["next", "flag"].dtype == torch.bool and batch["data", "count"].dtype == torch.int32


def test_steps_that_differ_from_the_specs_are_told_of() -> None:
    class Other(Counting):
        def _step(self, tensordict: Any) -> Any:
            following = super()._step(tensordict)
            following["seen"] = torch.ones(1)
            return following.exclude(("data", "count"))

    with pytest.warns(UserWarning, match="batches") as told:
        batch = next(Collector(lambda: Other(), None, frames_per_batch=12, policy_backend="torch"))
    texts = [str(warning.message) for warning in told]
    assert sum("batches leave out" in text and "['seen']" in text for text in texts) == 1
    assert sum("batches have zeros there: [\"('data', 'count')\"]" in text for text in texts) == 1
    assert not batch["next", "data", "count"].any() and "seen" not in batch.keys()


@pytest.mark.parametrize(
    ("make", "size"),
    [(lambda: Counting((2, 3)), (2, 3)), (lambda: SerialEnv(6, Counting), (6,))],
    ids=["batch", "serial"],
)
def test_batches_have_the_dimensions_of_their_environments(
    make: Any, size: tuple[int, ...]
) -> None:
    batch = next(Collector(make, None, frames_per_batch=6 * 12))
    assert batch.shape == (*size, 12)
    assert (
        batch.reshape(6, 12)["data", "count"].squeeze(-1).tolist()
        == [[0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1]] * 6
    )


def test_some_are_reset_and_the_others_go_on() -> None:
    def limited(steps: int) -> Any:
        return lambda: TransformedEnv(Counting(), StepCounter(steps))

    batch = next(Collector(SerialEnv(2, [limited(2), limited(3)]), None, frames_per_batch=12))
    assert batch["next", "truncated"].squeeze(-1).tolist() == [
        [False, True] * 3,
        [False, False, True] * 2,
    ]
    assert batch["step_count"].squeeze(-1).tolist() == [[0, 1] * 3, [0, 1, 2] * 2]


def test_transformed_gym_environments_look_like_windrows() -> None:
    theirs = Collector(
        lambda: TransformedEnv(GymEnv("CartPole-v1"), StepCounter()),
        None,
        frames_per_batch=200,
        seed=3,
    )
    own = Collector(
        lambda: ours.TransformedEnv(ours.GymEnv("CartPole-v1"), ours.StepCounter()),
        None,
        frames_per_batch=200,
        seed=3,
    )
    a, b = next(theirs), next(own)
    assert set(a.keys(True, True)) == set(b.keys(True, True))
    for key in b.keys(True, True):
        assert (a[key].shape, a[key].dtype) == (b[key].shape, b[key].dtype), key
    # TorchRL resets once more after it has seeded.
    assert a["observation"][0].abs().max() <= 0.05


def test_groups_of_rewards_and_flags_are_not_lost() -> None:
    class Team(Counting):
        def __init__(self) -> None:
            super().__init__()
            self.full_reward_spec = Composite(
                agents=Composite(reward=Unbounded((2, 1)), shape=()), shape=()
            )
            self.full_done_spec = Composite(
                agents=Composite(done=Categorical(2, (2, 1), dtype=torch.bool), shape=())
            )

        def _root(self, count: Any) -> Any:
            root = TensorDict({"data": {"count": count}, "flag": count % 2 == 1}, [])
            return root.set(("agents", "done"), torch.zeros(2, 1, dtype=torch.bool))

        def _reset(self, tensordict: Any = None, **kwargs: Any) -> Any:
            return self._root(torch.zeros(1, dtype=torch.int32))

        def _step(self, tensordict: Any) -> Any:
            following = self._root((tensordict["data", "count"] + 1).to(torch.int32))
            count = following["data", "count"]
            following.set(("agents", "reward"), torch.stack([count.float(), 10 * count.float()]))
            following.set(("agents", "done"), torch.stack([count >= 3, count >= 9]))
            return following

    batch = next(Collector(Team(), None, frames_per_batch=6))
    assert batch["next", "reward"].flatten().tolist() == [11, 22, 33, 11, 22, 33]
    assert batch["next", "agents", "reward"].squeeze(-1).tolist() == [[1, 10], [2, 20], [3, 30]] * 2
    assert batch["next", "done"].flatten().tolist() == [False, False, True] * 2
    assert batch["next", "agents", "done"].squeeze(-1)[2].tolist() == [True, False]


@pytest.mark.parametrize(
    "spec",
    [
        OneHot(3),
        MultiOneHot([2, 3]),
        Categorical(3, dtype=torch.int64),
        MultiCategorical([2, 3]),
        Bounded(-1, 1, (2,), dtype=torch.float64),
        Bounded(0, 4, (2,), dtype=torch.int64),
        Unbounded((2,)),
        Binary(4, dtype=torch.int8),
    ],
    ids=lambda spec: type(spec).__name__,
)
def test_actions_of_every_kind_are_drawn_from_their_specs(spec: Any) -> None:
    seen = []

    class Acting(Counting):
        def __init__(self) -> None:
            super().__init__()
            self.action_spec = spec

        def _step(self, tensordict: Any) -> Any:
            seen.append(tensordict["action"])
            return super()._step(tensordict)

    next(Collector(Acting(), None, frames_per_batch=20))
    assert len(seen) >= 20 and all(spec.is_in(action) for action in seen)


def test_errors_cross() -> None:
    class Failing(Counting):
        def _step(self, tensordict: Any) -> Any:
            raise ValueError("the floor")

    with pytest.raises(Exception, match="the floor") as caught:
        next(Collector(Failing(), None, frames_per_batch=5))
    assert isinstance(caught.value.__cause__, ValueError)


def test_specs_are_torchrls_where_it_is_installed() -> None:
    env = ours.GymEnv("CartPole-v1")
    theirs = GymEnv("CartPole-v1")
    assert env.action_spec == theirs.action_spec
    assert env.observation_spec["observation"].shape == theirs.observation_spec["observation"].shape
    assert isinstance(env.done_spec, Composite)
    pendulum = ours.GymEnv("Pendulum-v1")
    assert pendulum.action_spec == GymEnv("Pendulum-v1").action_spec
    indices = ours.GymEnv("CartPole-v1", categorical_action_encoding=True)
    assert (
        indices.action_spec == GymEnv("CartPole-v1", categorical_action_encoding=True).action_spec
    )


def test_classes_of_specs_do_not_depend_on_what_was_imported() -> None:
    program = (
        "import sys; from windrow.envs import GymEnv; env = GymEnv('CartPole-v1')\n"
        "assert 'torchrl' not in sys.modules; first = env.action_spec\n"
        "import torchrl.data; print(type(first) is type(env.action_spec) is torchrl.data.OneHot)"
    )
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (told.stdout, told.stderr) == ("True\n", "")


def test_specs_have_torchrls_names_where_it_is_not_installed() -> None:
    program = (
        "import sys; sys.modules['torchrl'] = None\n"
        "from windrow.envs import GymEnv, SerialEnv, check_env\n"
        "env = SerialEnv(2, lambda: GymEnv('CartPole-v1')); check_env(env)\n"
        "spec = env.action_spec; drawn = spec.rand((3,))\n"
        "print(spec.nvec, spec.n, spec.space.n, tuple(drawn.shape), spec.is_in(drawn), spec == env.full_action_spec['action'])\n"
        "spec = GymEnv('Pendulum-v1').action_spec; print(spec.space.low.item(), spec.high.item(), spec.is_in(spec.rand()), spec.one(), hasattr(spec, 'n'))\n"
        "print(sorted(env.specs['output_spec', 'full_done_spec'].zero().keys()), env.done_spec.rand()['done'].shape)"
    )
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert told.stdout.splitlines() == [
        "[2] 2 2 (3, 2, 2) True True",
        "-2.0 2.0 True tensor([1.]) False",
        "['done', 'terminated', 'truncated'] torch.Size([2, 1])",
    ], told.stderr


class Chooses(EnvBase):
    """Observes what was chosen, as booleans."""

    def __init__(self) -> None:
        super().__init__(batch_size=())
        self.observation_spec = Composite(chosen=Unbounded(3))
        self.action_spec = OneHot(3, dtype=torch.bool)
        self.reward_spec = Unbounded(1)

    def _reset(self, tensordict: Any = None, **_: Any) -> Any:
        return TensorDict({"chosen": torch.zeros(3)})

    def _step(self, tensordict: Any) -> Any:
        action = tensordict["action"]
        assert action.dtype == torch.bool
        flag = torch.zeros(1, dtype=torch.bool)
        return TensorDict(
            {"chosen": action.float(), "reward": torch.ones(1), "done": flag, "terminated": flag}
        )

    def _set_seed(self, seed: int | None) -> None:
        pass


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.float32, torch.bool])
def test_one_hot_actions_of_any_number_type_reach_an_environment_that_takes_booleans(
    dtype: torch.dtype,
) -> None:
    def choose(td: Any) -> Any:
        return td.set("action", torch.eye(3, dtype=dtype)[1].expand(*td.batch_size, 3))

    env = ours.SerialEnv(2, Chooses)
    stepped = env.step(choose(env.reset()))
    with Collector(Chooses(), choose, frames_per_batch=4) as collector:
        for batch in (stepped, next(collector)):
            assert bool((batch["next", "chosen"] == torch.eye(3)[1]).all())


class Masked(EnvBase):
    """As in the documentation of ``ActionMask``: the mask is in the spec of the state alone. An
    action is legal once.
    """

    def __init__(self, *, returns: bool = True) -> None:
        super().__init__()
        self._returns = returns
        self.action_spec = Categorical(4)
        self.state_spec = Composite(action_mask=Binary(4, dtype=torch.bool))
        self.observation_spec = Composite(obs=Unbounded(1))
        self.reward_spec = Unbounded(1)

    def _reset(self, tensordict: Any = None, **_: Any) -> Any:
        return TensorDict({"obs": torch.zeros(1), "action_mask": torch.ones(4, dtype=torch.bool)})

    def _step(self, tensordict: Any) -> Any:
        mask = tensordict["action_mask"].scatter(-1, tensordict["action"].unsqueeze(-1), False)
        kept = {"action_mask": mask} if self._returns else {}
        done = ~mask.any().view(1)
        return TensorDict(
            {
                "obs": torch.zeros(1),
                "reward": torch.ones(1),
                "done": done,
                "terminated": done,
                **kept,
            }
        )

    def _set_seed(self, seed: Any) -> None:
        pass


def test_a_mask_that_only_the_state_spec_names_restricts_actions() -> None:
    env = ours.TransformedEnv(Masked(), ours.ActionMask())
    batch = next(Collector(env, None, frames_per_batch=40, total_frames=40, seed=0))
    assert torch.equal(batch["action"].reshape(10, 4).sort().values, torch.arange(4).expand(10, 4))
    assert batch["action_mask"].sum(1).tolist() == [4, 3, 2, 1] * 10
    assert batch["next", "action_mask"].sum(1).tolist() == [3, 2, 1, 0] * 10


def test_a_state_that_steps_leave_as_it_is_is_observed_with_its_value() -> None:
    batch = next(Collector(Masked(returns=False), None, frames_per_batch=6, total_frames=6, seed=0))
    assert batch["action_mask"].all() and batch["next", "action_mask"].all()


def test_a_flag_of_several_numbers_for_an_environment_is_an_error_with_a_way_out() -> None:
    class Wide(Transform):
        def transform_done_spec(self, done_spec: Any) -> Any:
            done_spec["done"] = Binary(3, shape=(3,), dtype=torch.bool)
            return done_spec

    with pytest.raises(
        ValueError,
        match=r"'done' has shape \[3\] by a transform around Masked: expected \[1\].*out_key=\(",
    ):
        Collector(lambda: TransformedEnv(Masked(), Wide()), None, frames_per_batch=4)
