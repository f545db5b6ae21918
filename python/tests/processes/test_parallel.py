"""Environments that step side by side, each in a process of its own."""

from __future__ import annotations

import gc
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import gymnasium as gym
import pytest
import torch
from test_processes import TERMINAL, run

from cartpole import cartpole
from counting import Counting, raises_lock, raises_odd, raises_surrogates, raises_value_error
from waiting import ends
from windrow import WorkerError
from windrow.collectors import Collector, MultiSyncCollector
from windrow.envs import (
    GymEnv,
    InitTracker,
    ParallelEnv,
    RewardSum,
    SerialEnv,
    StepCounter,
    TransformedEnv,
)

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="worker processes need Linux"),
    pytest.mark.filterwarnings("ignore:environments written in Python"),
]


def theirs() -> gym.Env:
    return gym.make("CartPole-v1")


def counted() -> TransformedEnv:
    return TransformedEnv(GymEnv("CartPole-v1", backend="gymnasium"), StepCounter(20))


@pytest.fixture
def parallel() -> Iterator[Callable[..., ParallelEnv]]:
    """Makes environments in processes, and closes them after the test."""
    made: list[ParallelEnv] = []

    def make(*args: Any, **kwargs: Any) -> ParallelEnv:
        made.append(ParallelEnv(*args, **kwargs))
        return made[-1]

    yield make
    for env in made:
        env.close()


def pids(env: ParallelEnv) -> list[int]:
    """The processes of environments that were reset."""
    return env._members.pids()


def same(ours: Any, theirs: Any) -> None:
    assert set(ours.keys(True, True)) == set(theirs.keys(True, True)) and ours.shape == theirs.shape
    for key in ours.keys(True, True):
        assert torch.equal(ours[key], theirs[key]), key


@pytest.mark.parametrize(
    "make", [theirs, counted, cartpole], ids=["Gymnasium", "transforms", "native"]
)
def test_steps_are_those_of_serial_environments(parallel, make) -> None:
    def played(env: Any) -> Any:
        env.set_seed(3)
        torch.manual_seed(1)
        return env.rollout(120, break_when_any_done=False)

    env = parallel(3, make)
    ours = played(env)
    same(ours, played(SerialEnv(3, make)))
    assert ours["next", "done"].any() and ours.names[-1] == "time"
    members = pids(env)
    assert len(set(members)) == 3 and os.getpid() not in members
    env.close()
    env.close()
    assert all(ends(process) for process in members)
    # It can be used again, with other processes.
    same(ours, played(env))
    assert set(pids(env)).isdisjoint(members)


def test_some_are_reset_and_the_others_go_on(parallel) -> None:
    env = parallel(3, theirs)
    root = env.rand_step(env.reset(seed=0))["next"]
    after = env.reset(root.clone().set("_reset", torch.tensor([[False], [True], [False]])))
    assert torch.equal(after["observation"][[0, 2]], root["observation"][[0, 2]])
    assert not torch.equal(after["observation"][1], root["observation"][1])


@pytest.mark.parametrize(
    ("kind", "make"),
    [(ParallelEnv, theirs), (ParallelEnv, GymEnv("CartPole-v1")), (SerialEnv, theirs)],
    ids=["processes", "native", "serial"],
)
def test_chosen_environments_are_shared_and_step_without_the_others(kind, make) -> None:
    whole, twin = kind(3, make), SerialEnv(3, make)
    root, expected = whole.reset(seed=0), twin.reset(seed=0)
    same(root, expected)
    push = torch.zeros_like(whole.rand_action(root)["action"])
    for index, chosen in ((slice(1, None), [1, 2]), ([2, 0], [2, 0]), (-1, [2])):
        some = whole[index]
        assert some.batch_size == (len(chosen),) and some.action_spec.shape[0] == len(chosen)
        step = some.step(root[chosen].set("action", push[: len(chosen)]))
        # The twin steps all; those that were not chosen here are where they were.
        other = twin.step(expected.clone().set("action", push))
        same(step["next"], other["next"][chosen])
        for env in (whole, twin):
            env.reset(seed=0)
    view = whole[torch.tensor([0, 2])]
    view.set_seed(5)
    fresh = view.reset()
    twin.set_seed(5)
    assert torch.equal(fresh["observation"][0], twin.reset()["observation"][0])
    moved = view.rollout(3)
    assert moved.shape == (2, 3) and moved.names[-1] == "time"
    same(whole.reset(root.clone().set("_reset", torch.zeros(3, 1, dtype=torch.bool)))[1], root[1])
    view.close()
    with pytest.raises(RuntimeError, match="was closed: choose the environments again"):
        view.reset()
    assert whole.rand_step(whole.reset()).shape == (3,)
    with pytest.raises(TypeError, match="can be made anew"):
        Collector(whole[0], frames_per_batch=10, total_frames=10)
    for wrong, error in (
        (3, IndexError),
        ([True, False, True], TypeError),
        ([], ValueError),
        ([0, -3], ValueError),
    ):
        with pytest.raises(error):
            whole[wrong]
    whole.close()


def test_environments_known_to_be_native_stay_here(parallel) -> None:
    env = parallel(2, GymEnv("CartPole-v1"))
    env.reset()
    assert not env._members.is_open()
    with pytest.raises(AttributeError, match="no attribute 'spaces'"):
        env.spaces
    single = parallel(1, theirs, serial_for_single=True)
    assert single.reset().shape == (1,) and not single._members.is_open()
    alone = parallel(1, theirs)
    assert alone.reset().shape == (1,) and len(pids(alone)) == 1


@pytest.mark.parametrize("placement", ["inline", "threads", "processes"])
@pytest.mark.parametrize("kind", ["object", "function"])
def test_collectors_take_them(placement, kind) -> None:
    def collected(make: Any) -> Any:
        env = make(2, theirs) if kind == "object" else partial(make, 2, theirs)

        def policy(observation):
            return (observation[..., 2] > 0).long()

        with Collector(
            TransformedEnv(env, InitTracker()) if kind == "object" else env,
            policy,
            frames_per_batch=80,
            total_frames=240,
            seed=4,
            placement=placement,
            track_traj_ids=True,
        ) as collector:
            return torch.cat([batch.clone() for batch in collector], -1)

    same(collected(ParallelEnv), collected(SerialEnv))


def test_workers_in_lists_take_them() -> None:
    envs = [partial(ParallelEnv, 2, Counting)] * 2
    with MultiSyncCollector(
        envs, None, frames_per_batch=80, total_frames=160, placement="processes"
    ) as collector:
        found = {
            process
            for batch in collector
            for process in batch["observation"][..., 1].flatten().tolist()
        }
        workers = [collector.stats("per_worker")[f"worker_{worker}/pid"] for worker in range(2)]
    assert len(found) == 4 and not found & {float(worker) for worker in workers}
    assert all(ends(int(process)) for process in (*found, *workers))


def test_what_the_environments_have_is_asked_of_each(parallel) -> None:
    env = parallel(2, [lambda: Counting(pace=2.0), lambda: Counting(pace=3.0)])
    assert env.pace == [2.0, 3.0]
    assert env.faster(2.0) == [4.0, 6.0] and env.pace == [4.0, 6.0]
    with pytest.raises(AttributeError, match="colour"):
        env.colour
    with pytest.raises(TypeError):
        env.faster("very")
    root = env.rand_step(env.reset())
    assert root["next", "observation"][:, 0].tolist() == [4.0, 6.0]
    assert pickle.loads(pickle.dumps(ParallelEnv(2, Counting))).reset().shape == (2,)


def test_attributes_are_those_of_the_environments_that_a_collector_steps() -> None:
    env = ParallelEnv(2, Counting)
    with Collector(env, None, frames_per_batch=20) as collector:
        next(collector)
        members = pids(env)
        assert env.resets == [2, 2] and collector.env.resets == [2, 2]
        assert pids(env) == members
    assert all(ends(process) for process in members)


@pytest.mark.parametrize(
    ("act", "kind", "message"),
    [
        (raises_value_error, ValueError, "no such road"),
        (raises_odd, RuntimeError, "mud at 3"),
        (raises_surrogates, OSError, "caf"),
        (raises_lock, LookupError, "held"),
    ],
)
def test_what_an_environment_raises_is_raised_here(parallel, act, kind, message) -> None:
    env = parallel(3, [Counting, Counting, partial(Counting, act)])
    with pytest.raises(kind, match=message) as told:
        env.rollout(10)
    assert any("environment 2" in note for note in told.value.__notes__)
    assert f"in {act.__name__}" in str(told.value.__cause__)
    assert env.rollout(5).shape == (3, 5), "it lives on"


@pytest.mark.parametrize(
    ("act", "end"),
    [
        (lambda: os._exit(5), "exit status 5"),
        (os.abort, "signal 6 .SIGABRT."),
        (lambda: os.kill(os.getpid(), 9), "signal 9 .SIGKILL."),
    ],
    ids=["exit", "abort", "kill"],
)
def test_a_process_that_dies_is_named(parallel, act, end) -> None:
    env = parallel(2, [Counting, partial(Counting, act)])
    env.reset()
    members = pids(env)
    with pytest.raises(
        RuntimeError,
        match=f"environment 1: its process ended with {end}; close these environments and make others; it was in `step`",
    ):
        env.rollout(10)
    with pytest.raises(RuntimeError, match=f"environment 1: its process ended with {end}"):
        env.reset()
    env.close()
    assert all(ends(process) for process in members)


def test_a_process_that_dies_between_two_steps_is_named(parallel) -> None:
    env = parallel(2, Counting)
    root = env.reset()
    os.kill(pids(env)[0], signal.SIGKILL)
    with pytest.raises(RuntimeError, match="environment 0: its process ended with signal 9"):
        env.rand_step(root)


def test_a_collector_names_the_environment() -> None:
    with pytest.raises(WorkerError, match=r"environment 1.*no such road") as told:
        with Collector(
            ParallelEnv(2, [Counting, partial(Counting, raises_value_error)]),
            None,
            frames_per_batch=40,
        ) as collector:
            next(collector)
    assert isinstance(told.value.__cause__, ValueError) and told.value.env == 1


def test_what_cannot_start_is_named(parallel) -> None:
    def fails() -> Any:
        raise LookupError("no key")

    with pytest.raises(LookupError, match="no key") as told:
        parallel(2, [theirs, fails]).reset()
    assert any("environment 1" in note for note in told.value.__notes__)
    with pytest.raises(ValueError, match="environment 1: .*observe and accept the same"):
        parallel(2, [theirs, lambda: gym.make("Pendulum-v1")]).reset()
    lock = threading.Lock()
    with pytest.raises(
        TypeError, match=r"ParallelEnv sends create_env_fn to each worker, but .*lock.*SerialEnv"
    ):
        parallel(2, lambda: Counting(lock.acquire)).reset()


def test_a_closed_environment_is_killed_at_the_deadline(parallel) -> None:
    class Lingers(Counting):
        def close(self) -> None:
            threading.Event().wait()

    env = parallel(2, [Lingers, Counting], shutdown_timeout=0.2)
    env.reset()
    members = pids(env)
    env.close()
    assert all(ends(process) for process in members)


def test_processes_end_with_an_environment_that_is_dropped() -> None:
    env = ParallelEnv(2, Counting)
    env.reset()
    members = pids(env)
    del env
    gc.collect()
    assert all(ends(process) for process in members)


def test_torchrl_environments_and_their_states(parallel) -> None:
    pytest.importorskip("torchrl")
    from torchrl.envs import (
        Compose,
        GymEnv as TheirGymEnv,
        StepCounter as TheirStepCounter,
        TransformedEnv as TheirTransformedEnv,
        VecNormV2,
    )

    def limited(*transforms: Any) -> Any:
        return TheirTransformedEnv(
            TheirGymEnv("CartPole-v1"), Compose(TheirStepCounter(12), *transforms)
        )

    def played(env: Any) -> Any:
        env.set_seed(0)
        torch.manual_seed(0)
        return env.rollout(30, break_when_any_done=False)

    env = parallel(2, limited)
    same(played(env), played(SerialEnv(2, limited)))
    assert not env.state_dict()
    env = parallel(2, lambda: limited(VecNormV2(["observation"])))
    env.rollout(8, break_when_any_done=False)
    states = env.state_dict()
    assert sorted(states) == ["worker0", "worker1"] and str(states["worker0"]) != str(
        states["worker1"]
    )
    env.load_state_dict({"worker0": states["worker1"], "worker1": states["worker0"]})
    assert str(env.state_dict()) == str(
        {"worker0": states["worker1"], "worker1": states["worker0"]}
    )


def test_transforms_go_around(parallel) -> None:
    def played(kind: Any) -> Any:
        env = TransformedEnv(kind(2, theirs), RewardSum())
        env.set_seed(1)
        torch.manual_seed(0)
        rows = env.rollout(40, break_when_any_done=False)
        env.close()
        return rows

    same(played(parallel), played(SerialEnv))


SCRIPT = textwrap.dedent("""
    import os, signal, sys, time
    import gymnasium
    from windrow.envs import ParallelEnv

    STUCK = os.path.join(os.path.dirname(os.path.abspath(sys.argv[0])), "stuck")

    class Env(gymnasium.Wrapper):
        def step(self, action):
            if os.path.exists(STUCK):
                os.close(os.open(STUCK + "ed", os.O_CREAT))
                signal.pause()
            return self.env.step(action)

    env = ParallelEnv(3, lambda: Env(gymnasium.make("CartPole-v1")))
    env.rollout(10, break_when_any_done=False)
""")

TELL = "print(os.getpid(), *env._members.pids(), flush=True)\n"


def test_a_script_leaves_nothing_behind(tmp_path) -> None:
    for code, status in [
        ("", 0),
        ("os.kill(os.getpid(), signal.SIGKILL)\n", -signal.SIGKILL),
        ("raise SystemExit(4)\n", 4),
    ]:
        done = run(SCRIPT + TELL + code, tmp_path)
        assert done.returncode == status, done.stderr
        assert not done.stderr, done.stderr
        processes = done.stdout.split()
        assert len(processes) == 4 and all(ends(int(process)) for process in processes)


def test_a_fork_of_the_program_leaves_them_alone(tmp_path) -> None:
    code = textwrap.dedent("""
        child = os.fork()
        if child == 0:
            try:
                env.reset()
            except RuntimeError as error:
                assert "belong to process" in str(error), error
                sys.exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        env.reset()
        env.close()
    """)
    done = run(SCRIPT + code, tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("by", ["hand", "inline", "threads"])
@pytest.mark.parametrize("stuck", [False, True])
def test_ctrl_c_ends_a_step_with_one_traceback(tmp_path, stuck, by) -> None:
    script = tmp_path / "script.py"
    begin = (
        TELL
        + "import threading\ndef tell():\n    while not os.path.exists(STUCK + 'ed'): time.sleep(0.01)\n    print(flush=True)\n"
    )
    begin += (
        "open(STUCK, 'w').close()\nthreading.Thread(target=tell, daemon=True).start()\n"
        if stuck
        else "print(flush=True)\n"
    )
    loop = "while True: env.rollout(1000, break_when_any_done=False)\n"
    if by != "hand":
        collector = f"from windrow.collectors import Collector\nbatches = Collector(env, frames_per_batch=30, placement={by!r})\n"
        begin, loop = f"{collector}next(batches)\n{begin}", "for _ in batches: pass\n"
    script.write_text(SCRIPT + begin + loop)
    primary, secondary = os.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", TERMINAL, str(script)],
        stdin=secondary,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        os.close(secondary)
        assert process.stdout is not None and process.stderr is not None
        processes = process.stdout.readline().split()
        process.stdout.readline()
        os.write(primary, b"\x03")
        errors = process.stderr.read()
        status = process.wait(60)
    os.close(primary)
    assert status in (130, -signal.SIGINT), errors
    assert errors.count("Traceback (most recent call last)") == 1, errors
    assert errors.rstrip().endswith("KeyboardInterrupt"), errors
    assert len(processes) == 4 and all(ends(int(process)) for process in processes)
