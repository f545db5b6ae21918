"""Evaluators whose worker is a process."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn

import recurrent
from counting import Counting, raises_lock, raises_odd, raises_value_error, without_torch
from waiting import ends
from windrow import WorkerError
from windrow.collectors import Evaluator, MultiSyncCollector
from windrow.envs import EnvCreator, GymEnv, SerialEnv, TransformedEnv

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="worker processes need Linux")


@pytest.fixture
def build() -> Iterator[Callable[..., Evaluator]]:
    """Builds an evaluator whose worker is a process, and ends it after the test."""
    built: list[Evaluator] = []

    def make(env: Any, policy: Any = None, **options: Any) -> Evaluator:
        evaluator = Evaluator(
            env, policy, **{"num_trajectories": 2, "backend": "process", **options}
        )
        built.append(evaluator)
        return evaluator

    yield make
    for evaluator in built:
        try:
            evaluator.shutdown()
        except WorkerError:
            pass


def cartpole() -> gym.Env:
    return gym.make("CartPole-v1")


def always(choice: int, width: int = 4) -> nn.Linear:
    policy = nn.Linear(width, 2)
    with torch.no_grad():
        policy.weight.zero_()
        policy.bias.copy_(torch.eye(2)[choice])
    return policy


def actions(batch: TensorDict) -> dict[str, float]:
    return {"actions": float(batch["action"][batch["collector", "mask"]].float().mean())}


def process(batch: TensorDict) -> dict[str, float]:
    return {"pid": float(batch["observation"][0, 0, 1])}


class Sampled(nn.Module):
    """Draws from torch's generator nothing, and is not lowered."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        # A decision by numbers.
        assert not observation.isnan().any()
        return self.net(observation).argmax(-1)


def policies() -> dict[str, dict[str, Any]]:
    torch.manual_seed(0)
    module = Sampled()
    return {
        "lowered": {"policy": module.net},
        "torch": {"policy": TensorDictModule(module, ["observation"], ["action"])},
        "function": {"policy": lambda observation: (observation[..., 2] > 0).long()},
        "factory": {
            "policy_factory": lambda: TensorDictModule(module, ["observation"], ["action"])
        },
        "recurrent": {"policy": recurrent.lstm()},
    }


@pytest.mark.parametrize("name", policies())
def test_results_of_a_process_are_those_of_a_thread(name) -> None:
    seen: dict[str, list[TensorDict]] = {"thread": [], "process": []}
    results = {}
    for backend, batches in seen.items():

        def keep(batch: TensorDict, batches: list[TensorDict] = batches) -> dict[str, float]:
            batches.append(batch.clone())
            return {}

        options = policies()[name]
        with Evaluator(
            lambda: GymEnv("CartPole-v1", categorical_action_encoding=True),
            **options, num_trajectories=3, max_steps=40, seed=4, metrics_fn=keep, backend=backend,
        ) as evaluator:  # fmt: skip
            assert evaluator.backend == backend
            results[backend] = [evaluator.evaluate(), evaluator.evaluate(step=9)]
    for ours, theirs in zip(*results.values(), strict=True):
        assert {**ours, "eval/fps": 0} == {**theirs, "eval/fps": 0}
    for ours, theirs in zip(*seen.values(), strict=True):
        assert set(ours.keys(True, True)) == set(theirs.keys(True, True))
        for key in ours.keys(True, True):
            assert torch.equal(ours[key], theirs[key]), key


def test_the_environment_is_in_a_process_of_its_own_that_ends_with_the_evaluator(build) -> None:
    evaluator = build(lambda: Counting(), always(0, 2), metrics_fn=process)
    pid = int(evaluator.evaluate()["eval/pid"])
    assert pid != os.getpid() and int(evaluator.evaluate()["eval/pid"]) == pid
    evaluator.shutdown()
    assert ends(pid)


def test_where_an_evaluator_runs_if_nobody_says_so() -> None:
    lock = threading.Lock()

    def locked(observation: Any) -> Any:
        with lock:
            return torch.zeros((), dtype=torch.int64)

    for env, options, where in [
        ("CartPole-v1", {"policy": always(0)}, "thread"),
        (GymEnv("CartPole-v1"), {"policy": always(0)}, "thread"),
        (cartpole(), {"policy": always(0)}, "thread"),
        (SerialEnv(2, cartpole), {"policy": always(0)}, "thread"),
        (cartpole, {"policy": always(0)}, "process"),
        (cartpole, {"policy_factory": lambda env: always(0)}, "thread"),
        (
            lambda: GymEnv("CartPole-v1", categorical_action_encoding=True),
            {"policy": locked},
            "thread",
        ),
    ]:
        with Evaluator(env, num_trajectories=1, **options) as evaluator:
            assert evaluator.backend == where and where in repr(evaluator), (env, options)
            assert evaluator.evaluate()["eval/num_episodes"] == 1


def test_what_a_process_cannot_do_is_told() -> None:
    lock = threading.Lock()

    def locked() -> gym.Env:
        with lock:
            return cartpole()

    def policy(observation: Any) -> Any:
        with lock:
            return observation

    with pytest.raises(
        TypeError,
        match=r'backend="process" sends env to its process, but env uses lock, .*backend="thread"',
    ):
        Evaluator(locked, always(0), backend="process")
    with pytest.raises(
        TypeError, match=r'backend="process" sends policy to its process, but policy.* uses lock, '
    ):
        Evaluator(cartpole, policy, backend="process")
    with pytest.raises(
        ValueError, match='step_timeout needs backend="process" or "ray", got backend="thread"'
    ):
        Evaluator(cartpole, always(0), backend="thread", step_timeout=1.0)


def test_a_factory_in_the_process_gets_the_environment_that_is_stepped(build) -> None:
    def policy(env: Any) -> Any:
        env.seen = True
        return always(env.action_space.n - 1)

    class Seen(gym.Wrapper):
        def reset(self, **options: Any) -> Any:
            assert self.seen
            return super().reset(**options)

    evaluator = build(lambda: Seen(cartpole()), policy_factory=policy, metrics_fn=actions)
    assert evaluator.evaluate()["eval/actions"] == 1


@pytest.mark.parametrize("backend", ["native", "torch"])
def test_weights_reach_the_process_in_every_form(build, backend) -> None:
    policy, other = always(0), always(1)
    evaluator = build(cartpole, policy, metrics_fn=actions, policy_backend=backend)
    assert evaluator.evaluate()["eval/actions"] != evaluator.evaluate(other)["eval/actions"]
    first = evaluator.evaluate(policy)["eval/actions"]
    forms = [
        other,
        TensorDict.from_module(other),
        other.state_dict(),
        Evaluator.extract_weights(other),
    ]
    for number, weights in enumerate(forms):
        result = evaluator.evaluate(weights)
        assert result["eval/actions"] != first and result["eval/policy_version"] == 4 + 2 * number
        assert evaluator.evaluate(weights_dict={"policy": policy})["eval/actions"] == first
    with pytest.raises(ValueError, match='"bias" is missing|weight'):
        evaluator.evaluate({"weight": other.weight})
    # The module that it was built with is a snapshot, and weights are taken as they are when they
    # are given.
    with torch.no_grad():
        policy.bias.copy_(other.bias)
    assert evaluator.evaluate()["eval/actions"] != first


def test_results_of_a_process_come_while_the_caller_goes_on(build) -> None:
    seen: list[Any] = []
    evaluator = build(
        lambda: Counting(), always(0, 2), busy_policy="queue", metrics_fn=process,
        on_result=lambda result: seen.append((os.getpid(), result["eval/step"].item())),
    )  # fmt: skip
    assert evaluator.trigger_eval(step=3) and evaluator.trigger_eval(always(1, 2), step=4)
    assert [evaluator.wait(60)["eval/step"] for _ in range(2)] == [3, 4]
    assert seen == [(os.getpid(), 3), (os.getpid(), 4)] and not evaluator.pending


def test_a_busy_process_skips_and_refuses(build, tmp_path) -> None:
    gate = tmp_path / "gate"

    def waits() -> None:
        while not gate.exists():
            time.sleep(0.001)

    skips = build(lambda: Counting(waits), always(0, 2))
    refuses = build(lambda: Counting(waits), always(0, 2), busy_policy="error")
    assert skips.trigger_eval() and refuses.trigger_eval()
    assert not skips.trigger_eval()
    with pytest.raises(RuntimeError, match="wait for its result"):
        refuses.trigger_eval()
    gate.touch()
    assert skips.wait(60)["eval/episode_length"] == refuses.wait(60)["eval/episode_length"] == 10


@pytest.mark.parametrize(
    ("act", "kind", "told"),
    [
        (raises_value_error, ValueError, "no such road"),
        (raises_odd, RuntimeError, "mud at 3"),
        (raises_lock, LookupError, "held"),
    ],
)
def test_an_exception_of_the_process_is_what_it_was(build, tmp_path, act, kind, told) -> None:
    path = tmp_path / "failed"

    def once() -> None:
        if not path.exists():
            path.touch()
            act()

    evaluator = build(lambda: Counting(once), always(0, 2))
    with pytest.raises(WorkerError, match=f"(?s)episode 0, step 6.*in {act.__name__}") as caught:
        evaluator.evaluate()
    cause: Any = caught.value.__cause__
    assert (
        type(cause) is kind and told in str(cause) and f"in {act.__name__}" in str(cause.__cause__)
    )
    assert evaluator.evaluate()["eval/num_episodes"] == 2, "the next evaluation starts over"


def test_an_exception_of_a_constructor_in_the_process_is_raised_when_it_is_built(build) -> None:
    def env() -> gym.Env:
        raises_value_error()
        return cartpole()

    with pytest.raises(ValueError, match="no such road") as caught:
        build(env, always(0))
    assert "in raises_value_error" in str(caught.value.__cause__)
    lazy = build(env, policy_factory=lambda: always(0))
    with pytest.raises(ValueError, match="no such road"):
        lazy.evaluate()


def test_a_process_that_is_killed_is_the_error_of_an_evaluation(build) -> None:
    evaluator = build(lambda: Counting(), always(0, 2), metrics_fn=process)
    pid = int(evaluator.evaluate()["eval/pid"])
    os.kill(pid, signal.SIGKILL)
    assert ends(pid)
    with pytest.raises(WorkerError, match="SIGKILL"):
        evaluator.evaluate()
    assert int(evaluator.evaluate()["eval/pid"]) not in (pid, os.getpid())


def test_a_frozen_process_is_killed_and_shows_its_stack(build) -> None:
    def sleeps_long() -> None:
        time.sleep(600)

    evaluator = build(lambda: Counting(sleeps_long), always(0, 2), step_timeout=2.5)
    with pytest.raises(WorkerError, match="(?s)in sleeps_long") as caught:
        evaluator.evaluate()
    assert "2.5" in str(caught.value)


def test_a_process_that_is_stuck_is_killed_by_the_end_of_the_evaluator(build, tmp_path) -> None:
    told = tmp_path / "pid"

    def sleeps() -> None:
        told.write_text(str(os.getpid()))
        time.sleep(600)

    for end in (lambda evaluator: evaluator.shutdown(0.1), interrupted):
        evaluator = build(lambda: Counting(sleeps), always(0, 2))
        evaluator.trigger_eval()
        while not (told.exists() and told.read_text()):
            time.sleep(0.001)
        end(evaluator)
        assert ends(int(told.read_text()))
        told.unlink()


def interrupted(evaluator: Evaluator) -> None:
    """Leaves the context of the evaluator by Ctrl-C, in a wait for its result."""
    timer = threading.Timer(0.2, signal.raise_signal, [signal.SIGINT])
    with pytest.raises(KeyboardInterrupt), evaluator:
        timer.start()
        evaluator.wait()
    timer.join()


def test_init_fn_is_called_in_the_process(build) -> None:
    def prepare() -> None:
        os.environ["PREPARED"] = "yes"

    def prepared() -> gym.Env:
        assert os.environ["PREPARED"] == "yes"
        return Counting()

    assert build(prepared, always(0, 2), init_fn=prepare).evaluate()["eval/num_episodes"] == 2
    assert "PREPARED" not in os.environ


def test_a_process_with_a_native_policy_does_without_torch(build) -> None:
    assert build(without_torch, always(0, 2), max_steps=8).evaluate()["eval/episode_length"] == 8


def test_statistics_of_an_environment_that_a_process_has_stay(build) -> None:
    env = gym.wrappers.NormalizeObservation(cartpole())
    env.reset(seed=0)
    for _ in range(5):
        env.step(0)
    count = env.obs_rms.count
    evaluator = build(env, always(0), seed=0)
    assert env.update_running_mean, "it gathers again for whoever gave it"
    first = evaluator.evaluate()
    assert (
        evaluator.evaluate()["eval/reward"] == first["eval/reward"] and env.obs_rms.count == count
    )


def normed() -> Any:
    from torchrl.envs import Compose, GymEnv as TheirGymEnv, TransformedEnv, VecNormV2

    return TransformedEnv(TheirGymEnv("CartPole-v1"), Compose(VecNormV2(in_keys=["observation"])))


def test_a_process_uses_the_statistics_of_a_training_by_one_creator(build) -> None:
    creator = EnvCreator(normed)
    seen: list[torch.Tensor] = []

    def first(batch: TensorDict) -> dict[str, float]:
        seen.append(batch["observation"][0, 0].clone())
        return {}

    evaluator = build(creator, always(0), metrics_fn=first, seed=3, num_trajectories=1)
    evaluator.evaluate()
    evaluator.evaluate()
    assert torch.equal(seen[0], seen[1]), "it gathers nothing"
    with MultiSyncCollector(
        [creator] * 2, None, frames_per_batch=200, placement="processes"
    ) as collector:
        next(collector)
    evaluator.evaluate()
    assert not torch.equal(seen[1], seen[2]), "it sees what the training has gathered"


def recorded(path: Path, own: bool, fails: bool = False) -> Any:
    """An environment with a recorder that writes down steps, and how much it has recorded."""
    import torchrl.envs

    import windrow.envs

    class Recorder(torchrl.envs.Transform):
        logger, seen = None, 0

        def _call(self, next_tensordict: Any) -> Any:
            self.seen += 1
            return next_tensordict

        def dump(self, step: int | None = None) -> None:
            if fails:
                raises_value_error()
            with path.open("a") as file:
                file.write(f"{os.getpid()} {step} {self.seen}\n")
            self.seen = 0

    library: Any = windrow.envs if own else torchrl.envs
    return library.TransformedEnv(
        library.GymEnv("Pendulum-v1"), library.Compose(library.StepCounter(), Recorder())
    )


def pendulum_policy() -> TensorDictModule:
    return TensorDictModule(nn.Linear(3, 1), in_keys=["observation"], out_keys=["action"])


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("dumps", [True, False])
def test_recorders_in_the_process_write_after_each_evaluation(
    build, tmp_path, own: bool, dumps: bool
) -> None:
    path = tmp_path / "dumped"
    seen: list[str] = []

    def note(result: TensorDict) -> None:
        seen.append(path.read_text() if path.exists() else "")

    options: dict[str, Any] = {
        "num_trajectories": 1,
        "max_steps": 3,
        "dump_video": dumps,
        "on_result": note,
    }
    evaluator = build(lambda: recorded(path, own), pendulum_policy(), **options)
    evaluator.evaluate(step=7)
    assert evaluator.trigger_eval(step=9) and evaluator.wait(60)
    if not dumps:
        assert seen == ["", ""]
        return
    written = [line.split() for line in path.read_text().splitlines()]
    assert [step for _, step, _ in written] == ["7", "9"]
    assert int(written[0][0]) not in (0, os.getpid()) and written[0][0] == written[1][0]
    assert all(int(count) >= 3 for *_, count in written), (
        "the recorder that is told has seen the steps"
    )
    assert [len(text.splitlines()) for text in seen] == [1, 2], (
        "they have written before on_result is called"
    )


@pytest.mark.parametrize("backend", ["thread", "process"])
def test_the_error_of_a_recorder_is_that_of_its_evaluation(backend, build, tmp_path) -> None:
    evaluator = build(
        lambda: recorded(tmp_path / "dumped", True, fails=True),
        pendulum_policy(),
        num_trajectories=1,
        max_steps=3,
        backend=backend,
    )
    for step in (4, 5):
        with pytest.raises(ValueError, match="no such road"):
            evaluator.evaluate(step=step)


def test_video_of_a_process_is_where_its_logger_writes(build, tmp_path) -> None:
    def filmed() -> Any:
        from torchrl.record import CSVLogger, VideoRecorder

        logger = CSVLogger("film", str(tmp_path), video_format="pt")
        pictures = gym.wrappers.AddRenderObservation(
            gym.make("CartPole-v1", render_mode="rgb_array"), render_only=False
        )
        return TransformedEnv(
            pictures, VideoRecorder(logger, tag="test", in_keys=["pixels"], skip=1)
        )

    policy = TensorDictModule(always(0), in_keys=["state"], out_keys=["action"])
    build(filmed, policy, num_trajectories=1, max_steps=4).evaluate(step=3)
    (path,) = tmp_path.rglob("*.pt")
    film = torch.load(path)
    assert path.stem.endswith("_3") and film.ndim == 5 and film.shape[1] >= 4


class Locked:
    """A logger that only one process can have."""

    def __init__(self) -> None:
        self.lock = threading.Lock()


def test_what_keeps_a_recorder_from_being_sent_is_named(tmp_path) -> None:
    recorder = recorded(tmp_path / "dumped", own=True).transform[1]
    recorder.logger = Locked()
    env = TransformedEnv(GymEnv("Pendulum-v1"), recorder)
    with pytest.raises(
        TypeError,
        match=r"logger\.lock, .*cannot be pickled.*Make it within the function, or choose backend=\"thread\"",
    ):
        Evaluator(env, pendulum_policy(), backend="process")
