"""Environments that run free: pools in threads and in processes."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import gymnasium
import pytest
import torch
from tensordict import TensorDict

from cartpole import cartpole
from counting import Counting, raises_odd, raises_value_error
from waiting import ends, threads, until
from windrow import make_vec
from windrow._windrow import native_ids
from windrow.collectors import Collector
from windrow.envs import (
    AsyncEnvPool,
    GymEnv,
    ProcessorAsyncEnvPool,
    SerialEnv,
    StepCounter,
    ThreadingAsyncEnvPool,
    TransformedEnv,
    async_envs,
    check_env_specs,
)

pytestmark = pytest.mark.filterwarnings("ignore:environments written in Python")
BACKENDS = [
    "threading",
    pytest.param(
        "multiprocessing", marks=pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
    ),
]


@pytest.fixture
def pool() -> Iterator[Callable[..., AsyncEnvPool]]:
    """Makes pools, and shuts them down after the test."""
    made: list[AsyncEnvPool] = []

    def make(*args: Any, **kwargs: Any) -> AsyncEnvPool:
        made.append(AsyncEnvPool(*args, **kwargs))
        return made[-1]

    yield make
    for one in made:
        one.shutdown()


def theirs() -> gymnasium.Env[Any, Any]:
    return gymnasium.make("CartPole-v1")


def counted() -> TransformedEnv:
    env = GymEnv("CartPole-v1", backend="gymnasium", categorical_action_encoding=True)
    return TransformedEnv(env, StepCounter(20))


one_hot = partial(GymEnv, "CartPole-v1")


def acted(root: Any, steps: Any, make: Any = one_hot) -> Any:
    """``root`` with actions that follow from the environment and how many steps it has taken."""
    chosen = torch.tensor([(7 * env + 3 * steps[env]) % 5 > 2 for env in root["env_index"]]).long()
    return root.set("action", torch.nn.functional.one_hot(chosen, 2) if make is one_hot else chosen)


def same(ours: Any, others: Any) -> None:
    assert set(ours.keys(True, True)) == set(others.keys(True, True))
    for key in ours.keys(True, True):
        if key != "env_index":
            assert torch.equal(ours[key], others[key]), key
            assert ours[key].dtype == others[key].dtype, key


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("make", [cartpole, one_hot, theirs, counted])
def test_episodes_are_those_of_environments_in_lockstep(pool, make, backend) -> None:
    if make is cartpole:
        make = partial(GymEnv, "CartPole-v1", frame_skip=2, categorical_action_encoding=True)
    lockstep = SerialEnv(3, make)
    lockstep.set_seed(5)
    expected: list[list[Any]] = [[], [], []]
    root = lockstep.reset()
    for step in range(60):
        record, root = lockstep.step_and_maybe_reset(
            acted(root.set("env_index", torch.arange(3)), [step] * 3, make)
        )
        for env in range(3):
            expected[env].append(record.exclude("env_index")[env])
    assert any(bool(record["next", "done"]) for record in expected[0]), "episodes end"

    free = pool([make] * 3, backend=backend)
    assert type(free) is (
        ThreadingAsyncEnvPool if backend == "threading" else ProcessorAsyncEnvPool
    )
    assert free.batch_size == (3,) and free.set_seed(5) == 7
    free.async_reset_send()
    root = free.async_reset_recv(min_get=3)
    assert list(root["env_index"]) == [0, 1, 2] and free.action_spec == lockstep.action_spec
    free.async_step_and_maybe_reset_send(acted(root, steps := [0, 0, 0], make))
    got: list[list[Any]] = [[], [], []]
    while sum(steps) < 180:
        record, root = free.async_step_and_maybe_reset_recv(min_get=1)
        indices = list(record["env_index"])
        assert indices == sorted(indices) == list(root["env_index"])
        for row, env in enumerate(indices):
            got[env].append(record.exclude("env_index")[row])
            steps[env] += 1
        goes_on = [row for row, env in enumerate(indices) if steps[env] < 60]
        if goes_on:
            free.async_step_and_maybe_reset_send(acted(root[goes_on], steps, make))
    for ours, others in zip(got, expected, strict=True):
        same(torch.stack(ours), torch.stack(others))


@pytest.mark.parametrize("backend", BACKENDS)
def test_all_at_once_is_lockstep(pool, backend) -> None:
    free, lockstep = pool([theirs] * 3, backend=backend), SerialEnv(3, theirs)
    for env in (free, lockstep):
        env.set_seed(2)
    torch.manual_seed(0)
    ours = free.rollout(40, break_when_any_done=False)
    torch.manual_seed(0)
    same(ours.exclude("env_index"), lockstep.rollout(40, break_when_any_done=False))
    root = free.reset()
    stepped = free.rand_step(root)
    assert list(root["env_index"]) == list(stepped["env_index"]) == [0, 1, 2]
    stepped = free.step_mdp(stepped)
    after = free.reset(stepped.clone().set("_reset", torch.tensor([[False], [True], [False]])))
    assert torch.equal(after["observation"][[0, 2]], stepped["observation"][[0, 2]])
    assert not torch.equal(after["observation"][1], stepped["observation"][1])
    check_env_specs(free)


def played(pool: Any) -> list[Any]:
    """What a pool answers to many calls."""
    seen: list[Any] = []

    def note(*tensordicts: Any) -> Any:
        seen.extend(tensordict.clone() for tensordict in tensordicts)
        return tensordicts[-1]

    root = note(pool.reset())
    note(pool.step(acted(root.clone(), [0] * 3)))
    for step in range(1, 40):
        pool.async_step_and_maybe_reset_send(acted(root.clone(), [step] * 3))
        root = note(*pool.async_step_and_maybe_reset_recv(min_get=3))
    # Rows that were sent separately come together, those that were sent together separately.
    for row in (2, 0):
        pool.async_step_send(acted(root.clone(), [3] * 3)[row : row + 1])
    note(pool.async_step_recv(min_get=2))
    pool.async_reset_send(TensorDict(env_index=torch.tensor([1, 2]), batch_size=[2]))
    first = [pool.async_reset_recv(min_get=1, max_get=1) for _ in range(2)]
    note(*sorted(first, key=lambda one: list(one["env_index"])))
    # One alone, without a dimension for it.
    alone = acted(root.clone(), [5] * 3)[1]
    pool.async_step_send(alone, env_index=1)
    note(pool.async_step_recv(env_index=1))
    pool.async_step_and_maybe_reset_send(alone, env_index=1)
    note(*pool.async_step_and_maybe_reset_recv(env_index=1))
    pool.async_reset_send(env_index=0)
    note(pool.async_reset_recv(env_index=0))
    pool.shutdown()
    return seen


def test_answers_are_those_of_torchrls_pool() -> None:
    torchrl = pytest.importorskip("torchrl.envs")

    def make(seed: int) -> Any:
        env = torchrl.GymEnv("CartPole-v1")
        env.set_seed(seed)
        return env

    makers = [partial(make, seed) for seed in range(3)]
    ours, others = played(AsyncEnvPool(makers)), played(torchrl.AsyncEnvPool(makers))
    assert len(ours) == len(others)
    for one, other in zip(ours, others, strict=True):
        assert one.batch_size == other.batch_size
        assert one.get("env_index").tolist() == other.get("env_index").tolist()
        # Roots of TorchRL's keep the action of the step before.
        same(one, other if "action" in one.keys() else other.exclude("action"))


def test_calls_out_of_order_say_which_was_expected(pool) -> None:
    env = pool([cartpole] * 3)
    actions = TensorDict(action=torch.zeros(3, dtype=torch.long), batch_size=[3])
    with pytest.raises(
        RuntimeError,
        match="environment 0: expected async_reset_send and async_reset_recv, since it was never reset, got async_step_send",
    ):
        env.async_step_send(actions)
    with pytest.raises(
        RuntimeError,
        match="async_step_recv waits for 1, expected as many told by async_step_send, got 0",
    ):
        env.async_step_recv()
    env.async_reset_send(env_index=[0, 2])
    with pytest.raises(
        RuntimeError,
        match="environment 2: expected async_reset_recv, since async_reset_send was called, got async_step_send",
    ):
        env.async_step_send(actions[2], env_index=2)
    with pytest.raises(RuntimeError, match="environment 0: expected async_reset_recv"):
        env.reset()
    with pytest.raises(
        RuntimeError, match="async_reset_recv waits for 3, expected as many .* got 2"
    ):
        env.async_reset_recv(min_get=3)
    with pytest.raises(RuntimeError, match="environment 1: expected a send first"):
        env.async_reset_recv(env_index=1)
    for limits in [{"min_get": 0}, {"min_get": 2, "max_get": 1}, {"timeout": -1.0}, {"max_get": 0}]:
        with pytest.raises(ValueError, match="min_get|timeout|max_get"):
            env.async_reset_recv(**limits)
    with pytest.raises(TypeError, match="timeout must be a number"):
        env.async_reset_recv(timeout="soon")
    assert list(env.async_reset_recv(min_get=2)["env_index"]) == [0, 2]
    with pytest.raises(
        ValueError,
        match=r"expected a TensorDict of shape \(2,\) for environments \[0, 2\], got \(3,\)",
    ):
        env.async_step_send(actions, env_index=[0, 2])
    for wrong, message in [
        ([0, 0], "environment 0 is named twice"),
        ([0, 3], "from 0 to 2, got 3"),
    ]:
        with pytest.raises(ValueError, match=message):
            env.async_step_send(actions[:2], env_index=wrong)
    with pytest.raises(KeyError, match="action"):
        env.async_step_send(TensorDict(batch_size=[2]), env_index=[0, 2])
    env.async_step_send(actions[:2], env_index=[0, 2])
    assert list(env.async_step_recv(min_get=2)["env_index"]) == [0, 2], (
        "nothing of what was refused was sent"
    )


class Gated(Counting):
    """Waits in its steps, and says that it has begun one."""

    def __init__(self, gate: threading.Event, begun: threading.Event | None = None) -> None:
        super().__init__()
        self.gate, self.begun = gate, begun or threading.Event()

    def step(self, action: Any) -> Any:
        self.begun.set()
        assert self.gate.wait(60)
        return super().step(action)


def test_the_first_that_are_done_are_received_first(pool) -> None:
    gate = threading.Event()
    env = pool([partial(Gated, gate), Counting, Counting])
    env.async_step_send(env.rand_action(env.reset()))
    for count in range(1, 4):
        others = env.async_step_recv(min_get=2)
        assert list(others["env_index"]) == [1, 2]
        assert others["next", "observation"][:, 0].tolist() == [count, count]
        env.async_step_send(env.step_mdp(others).set("action", others["action"]))
    others = env.async_step_recv(min_get=2)
    with pytest.raises(TimeoutError, match="expected 1 results within 0ns, got 0"):
        env.async_step_recv(timeout=0)
    with pytest.raises(TimeoutError, match="got 0"):
        env.async_step_recv(env_index=0, timeout=0.01)
    env.async_step_send(env.step_mdp(others).set("action", others["action"]))
    gate.set()
    whole = env.async_step_recv(min_get=1, timeout=60)
    assert list(whole["env_index"]) == [0, 1, 2], "it waits for all within its time"
    assert whole["next", "observation"][:, 0].tolist() == [1, 5, 5]
    env.async_step_send(whole)
    counts = [len(env.async_step_recv(min_get=1, max_get=1, timeout=60)) for _ in range(3)]
    assert counts == [1, 1, 1]


def test_threads_share_a_pool(pool) -> None:
    env = pool([Counting] * 4)
    seen: dict[int, list[float]] = {}

    def play(index: int) -> None:
        env.async_reset_send(env_index=index)
        root, own = env.async_reset_recv(env_index=index), []
        for _ in range(25):
            env.async_step_and_maybe_reset_send(
                root.set("action", torch.tensor(0)), env_index=index
            )
            record, root = env.async_step_and_maybe_reset_recv(env_index=index)
            assert record["env_index"] == root["env_index"] == index
            own.append(float(record["next", "observation"][0]))
        seen[index] = own

    threads = [threading.Thread(target=play, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == dict.fromkeys(range(4), [float(1 + step % 10) for step in range(25)])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("act", "kind", "message"),
    [(raises_value_error, ValueError, "no such road"), (raises_odd, None, "mud at 3")],
)
def test_what_an_environment_raises_is_raised_here(pool, backend, act, kind, message) -> None:
    env = pool([Counting, partial(Counting, act), Counting], backend=backend)
    root = env.reset()
    for _ in range(6):
        root = env.step_mdp(env.rand_step(root))
    env.async_step_send(env.rand_action(root))
    with pytest.raises(kind or Exception, match=message) as told:
        env.async_step_recv(min_get=3)
    assert any("environment 1" in note for note in told.value.__notes__)
    others = env.async_step_recv(min_get=2)
    assert list(others["env_index"]) == [0, 2]
    with pytest.raises(
        RuntimeError,
        match="environment 1: expected async_reset_send and async_reset_recv, since it has failed",
    ):
        env.async_step_send(env.rand_action(root)[1], env_index=1)
    env.async_reset_send(env_index=1)
    assert env.async_reset_recv(env_index=1)["observation"][0] == 0, "it lives on"
    # A fault in a step of all leaves nothing to be received.
    with pytest.raises(kind or Exception, match=message):
        env.rollout(10)
    assert env.rollout(5).shape == (3, 5)


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
def test_a_process_that_dies_is_named_and_the_others_go_on() -> None:
    with AsyncEnvPool(
        [Counting, partial(Counting, partial(os._exit, 5)), Counting], backend="multiprocessing"
    ) as env:
        root = env.reset()
        processes = root["observation"][:, 1].tolist()
        assert len(set(processes)) == 3 and os.getpid() not in processes
        for _ in range(6):
            root = env.step_mdp(env.rand_step(root))
        env.async_step_send(env.rand_action(root))
        with pytest.raises(
            RuntimeError, match="environment 1: its process ended with exit status 5"
        ):
            env.async_step_recv(min_get=3)
        assert list(env.async_step_recv(min_get=2)["env_index"]) == [0, 2]
        env.async_reset_send(env_index=1)
        with pytest.raises(
            RuntimeError, match="environment 1: its process ended with exit status 5"
        ):
            env.async_reset_recv(env_index=1)
        env.async_step_send(env.rand_action(root)[2], env_index=2)
        assert env.async_step_recv(env_index=2)["next", "observation"][0] == 8
        env.async_step_send(env.rand_action(root)[::2])
    assert all(ends(int(process)) for process in processes)


def test_what_cannot_start_is_named() -> None:
    def fails() -> Any:
        raise LookupError("no key")

    with pytest.raises(LookupError, match="no key") as told:
        AsyncEnvPool([theirs, fails])
    assert any("environment 1" in note for note in told.value.__notes__)
    with pytest.raises(ValueError, match="environment 1: .*observe and accept the same"):
        AsyncEnvPool([theirs, lambda: gymnasium.make("Pendulum-v1")])
    with pytest.raises(ValueError, match="at least one"):
        AsyncEnvPool([])
    if sys.platform == "linux":
        with pytest.raises(LookupError, match="no key") as told:
            AsyncEnvPool([theirs, fails], backend="multiprocessing")
        assert any("environment 1" in note for note in told.value.__notes__)
        lock = threading.Lock()
        with pytest.raises(
            TypeError, match=r'backend="multiprocessing" sends .*lock.*backend="threading"'
        ):
            AsyncEnvPool([lambda: Counting(lock.acquire)] * 2, backend="multiprocessing")


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_pool_ends_whatever_is_unread(backend) -> None:
    closed: list[int] = []

    class Closing(Counting):
        def close(self) -> None:
            closed.append(os.getpid())

    make = Counting if backend == "multiprocessing" else Closing
    with AsyncEnvPool([make] * 3, backend=backend) as env:
        root = env.rand_action(env.reset())
        env.async_step_send(root[:1])
        env.async_step_send(root[1:])
    assert len(closed) == (0 if backend == "multiprocessing" else 3) and env.is_closed
    processes = root["observation"][:, 1].tolist()
    assert backend == "threading" or all(ends(int(process)) for process in processes)
    env.shutdown()
    for call in [
        env.reset,
        env.async_step_recv,
        partial(env.async_step_send, root),
        lambda: env.observation_keys and env.rand_step(root),
    ]:
        with pytest.raises(RuntimeError, match="AsyncEnvPool was shut down: make another one"):
            call()
    with pytest.raises(LookupError, match="user"), AsyncEnvPool([make], backend=backend) as env:
        env.async_reset_send()
        raise LookupError("of the user")
    # One that nobody shuts down.
    env = AsyncEnvPool([make] * 2, backend=backend)
    env.async_reset_send()
    del env
    gc.collect()
    # The three of the pool that was shut down, the one of the user's error, and these two.
    assert len(closed) == (0 if backend == "multiprocessing" else 6)


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
def test_a_stuck_environment_keeps_no_pool_from_ending() -> None:
    env = AsyncEnvPool([partial(Counting, signal.pause), Counting], backend="multiprocessing")
    root = env.reset()
    processes = root["observation"][:, 1].tolist()
    for _ in range(6):
        root = env.step_mdp(env.rand_step(root))
    env.async_step_send(env.rand_action(root))
    env.async_step_recv(env_index=1)
    env.shutdown()
    assert all(ends(int(process)) for process in processes)
    gate, begun = threading.Event(), threading.Event()
    env = AsyncEnvPool([partial(Gated, gate, begun), Counting])
    env.async_step_send(env.rand_action(env.reset()))
    assert begun.wait(60)
    with pytest.raises(
        RuntimeError,
        match=r"environments \[0\] did not return within 100ms: their threads are left behind",
    ):
        env.shutdown(0.1)
    gate.set()


def test_ctrl_c_ends_a_wait_and_loses_nothing(pool) -> None:
    gate = threading.Event()
    env = pool([partial(Gated, gate)])
    env.async_step_send(env.rand_action(env.reset()))
    timer = threading.Timer(0.2, signal.raise_signal, [signal.SIGINT])
    with pytest.raises(KeyboardInterrupt):
        timer.start()
        env.async_step_recv()
    timer.join()
    gate.set()
    assert env.async_step_recv()["next", "observation"][0, 0] == 1


def test_after_ctrl_c_in_a_step_the_next_call_goes_on(pool) -> None:
    gate, begun = threading.Event(), threading.Event()
    env = pool([partial(Gated, gate, begun), Counting])
    root = env.rand_action(env.reset())

    def interrupt() -> None:
        assert begun.wait(60)
        signal.raise_signal(signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    with pytest.raises(KeyboardInterrupt):
        thread.start()
        env.step(root)
    thread.join()
    gate.set()
    assert env.step(root)["next", "observation"][:, 0].tolist() == [2, 2]
    assert env.reset()["observation"][:, 0].tolist() == [0, 0]


def test_members_may_be_several_environments(pool) -> None:
    env = pool([lambda: SerialEnv(2, Counting)] * 3)
    assert env.batch_size == (3, 2) and env.env_batch_sizes == [(2,)] * 3 and env.num_envs == 6
    root = env.rand_action(env.reset())
    assert root["observation"].shape == (3, 2, 2)
    env.async_step_send(root[1:])
    stepped = env.async_step_recv(min_get=2)
    assert stepped["next", "reward"].shape == (2, 2, 1)
    asked = (
        stepped["next"].clone().set("_reset", torch.tensor([[[True], [False]], [[False], [True]]]))
    )
    env.async_reset_send(asked, env_index=[1, 2])
    assert env.async_reset_recv(min_get=2)["observation"][..., 0].tolist() == [[0, 1], [1, 0]]
    env.async_step_send(root[0], env_index=0)
    assert env.async_step_recv(env_index=0)["next", "observation"].shape == (2, 2)


@pytest.mark.parametrize("stack", ["dense", "maybe_dense", "lazy"])
def test_what_was_sent_comes_back(pool, stack) -> None:
    env = pool([Counting] * 3, stack=stack)
    root = env.rand_action(env.reset())
    env.async_step_send(root[:2].set("mark", torch.tensor([1, 2])))
    env.async_step_send(root[2:].set("mark" if stack == "dense" else "other", torch.tensor([3])))
    stepped = env.async_step_recv(min_get=3)
    assert torch.equal(stepped["action"], root["action"])
    assert stepped["next", "observation"][:, 0].tolist() == [1, 1, 1]
    if stack == "dense":
        assert stepped["mark"].tolist() == [1, 2, 3]
    else:
        assert stepped[:2]["mark"].tolist() == [1, 2] and stepped[2:]["other"].tolist() == [3]


def test_arguments(pool) -> None:
    for wrong in [
        {"exchange": "pipe"},
        {"backend": "asyncio"},
        {"stack": "tall"},
        {"create_env_kwargs": [{}, {}]},
        {"num_threads": 0},
    ]:
        with pytest.raises(ValueError, match=next(iter(wrong))):
            AsyncEnvPool([theirs], **wrong)
    with pytest.raises(TypeError, match="no argument min_gt"):
        AsyncEnvPool([theirs], min_gt=1)
    with pytest.raises(
        ValueError, match='exchange="shm" is for processes: it needs backend="multiprocessing"'
    ):
        AsyncEnvPool([theirs], exchange="shm")
    for exchange in ("auto", "queue"):
        assert pool([theirs], exchange=exchange).resolved_exchange == "queue"
    env = pool(lambda pace: Counting(pace=pace), create_env_kwargs={"pace": 2.0})
    assert env.rand_step(env.reset())["next", "observation"][0, 0] == 2
    env = pool(
        [lambda pace: Counting(pace=pace)] * 2, create_env_kwargs=[{"pace": 3.0}, {"pace": 4.0}]
    )
    env.min_get = 2
    env.async_step_send(env.rand_action(env.reset()))
    assert env.async_step_recv()["next", "observation"][:, 0].tolist() == [3, 4]
    assert (env.backend, env.stack, env.stats(), env.resolved_exchange) == (
        "threading",
        "dense",
        {},
        "queue",
    )
    assert async_envs.AsyncEnvPool is AsyncEnvPool and issubclass(
        ProcessorAsyncEnvPool, AsyncEnvPool
    )
    assert pool(["CartPole-v1"] * 2, num_threads=1).rollout(3).shape == (2, 3)


@pytest.mark.parametrize(
    "make", [AsyncEnvPool, partial(make_vec, batch_size=1)], ids=["pool", "vector"]
)
def test_threads_are_as_many_as_the_cores_that_the_process_may_use(
    monkeypatch: pytest.MonkeyPatch, make: Any
) -> None:
    may_use = (os.cpu_count() or 1) + 1
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(may_use)), raising=False)
    before = threads()
    made = make(["CartPole-v1"] * may_use)
    until(lambda: len(threads().keys() - before.keys()) == may_use)
    made.close()


def test_a_collector_takes_one_in_lockstep() -> None:
    def frames(env: Any) -> Any:
        with Collector(env, None, frames_per_batch=60, total_frames=60, seed=1) as collector:
            return next(collector)

    same(frames(AsyncEnvPool([theirs] * 3)), frames(SerialEnv(3, theirs)))


def test_a_program_may_end_with_a_pool(tmp_path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import gymnasium\n"
        "from windrow.envs import AsyncEnvPool\n"
        "pools = [AsyncEnvPool([lambda: gymnasium.make('CartPole-v1')] * 3, backend=b) for b in ('threading', 'multiprocessing')]\n"
        "for pool in pools:\n"
        "    pool.async_step_send(pool.rand_action(pool.reset()))\n"
        "pools[0].itself = pools[0]\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_garbage_is_collected() -> None:
    closed: list[bool] = []

    class Knowing(Counting):
        """Refers to the pool that steps it."""

        pool: Any = None

        def close(self) -> None:
            closed.append(self.pool is not None)

    envs = [Knowing() for _ in range(2)]
    pool = AsyncEnvPool([lambda env=env: env for env in envs])
    for env in envs:
        env.pool = pool
    pool.async_step_send(pool.rand_action(pool.reset()))
    del pool, envs, env
    # A thread that is at a step keeps its environment for as long.
    until(lambda: native_ids() and gc.collect() >= 0 and len(closed) == 2)
    assert closed == [True, True]


@pytest.mark.skipif(sys.platform != "linux", reason="needs fork")
def test_a_fork_leaves_a_pool_alone(pool) -> None:
    env = pool([cartpole] * 2)
    root = env.rand_action(env.reset())
    env.async_step_send(root)
    child = os.fork()
    if child == 0:
        try:
            env.async_step_recv()
        except RuntimeError as error:
            del env
            os._exit(7 if "belongs to process" in str(error) else 8)
        os._exit(9)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert len(env.async_step_recv(min_get=2)) == 2
