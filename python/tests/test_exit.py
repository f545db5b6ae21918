"""Programs that end without ending what they have made, and copies of what cannot be copied."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from typing import Any

import pytest
from torch import nn

from cartpole import cartpole
from windrow.collectors import (
    Collector,
    Evaluator,
    Interruptor,
    MultiSyncCollector,
    VanillaWeightUpdater,
)

HEAD = """
import sys, threading, time, warnings
warnings.simplefilter("ignore")
import gymnasium
import torch
from windrow.collectors import *
from windrow.data import *

def env():
    return gymnasium.make("CartPole-v1")

def policy(td):
    return td.set("action", torch.zeros(*td.batch_size, 2))
"""

#: Programs, and how they end.
PROGRAMS = {
    "inline": ("next(c := Collector(env, policy, frames_per_batch=10))", 0),
    "in threads": (
        "next(c := MultiSyncCollector([env] * 2, policy, placement='threads', frames_per_batch=10))",
        0,
    ),
    "in processes": ("next(c := MultiSyncCollector([env] * 2, None, frames_per_batch=10))", 0),
    "in processes that run ahead": (
        "next(c := MultiAsyncCollector([env] * 2, None, frames_per_batch=10))\nsys.exit(3)",
        3,
    ),
    "in threads that run ahead": (
        "next(c := MultiAsyncCollector([env] * 2, policy, placement='threads', frames_per_batch=10))",
        0,
    ),
    "that ask one policy": (
        "next(c := AsyncBatchedCollector([env] * 2, policy, frames_per_batch=10))\nsys.exit(3)",
        3,
    ),
    "before the first batch": (
        "c = MultiAsyncCollector([env] * 2, policy, placement='threads', frames_per_batch=10)",
        0,
    ),
    "in the background": (
        "r = ReplayBuffer(storage=LazyTensorStorage(1000), batch_size=10)\n"
        "c = MultiAsyncCollector([env] * 2, policy, placement='threads', frames_per_batch=10, replay_buffer=r)\n"
        "c.start()\n"
        "r.sample()",
        0,
    ),
    "in the background, where a write waits": (
        "r = ReplayBuffer(\n"
        "    storage=LazyTensorStorage(1000), batch_size=10, limiter=RateLimiter.sample_to_insert_ratio(1.0, 10, 10.0)\n"
        ")\n"
        "c = Collector(env, policy, frames_per_batch=10, replay_buffer=r)\n"
        "c.start()\n"
        "while c._core.write_waits() is None: time.sleep(0.01)",
        0,
    ),
    # Before Python 3.14, the interpreter unwinds such a thread where it asks for the lock.
    **{
        f"a daemon thread that {does}": (
            "r = ReplayBuffer(storage=LazyTensorStorage(1000), batch_size=10)\n"
            "frames = next(Collector(env, policy, frames_per_batch=10))\n"
            "r.extend(frames)\n"
            "c = Collector('CartPole-v1', frames_per_batch=10)\n"
            "begun = threading.Event()\n"
            "def go_on():\n"
            "    while True:\n"
            f"        {call}\n"
            "        begun.set()\n"
            "threading.Thread(target=go_on, daemon=True).start()\n"
            "begun.wait()",
            0,
        )
        for does, call in [
            ("samples", "r._core.sample()"),
            ("writes", "r.extend(frames)"),
            ("waits for the buffer", "r._core.len()"),
            ("iterates", "next(c)"),
        ]
    },
    "an evaluation": (
        "e = Evaluator(env, policy, num_trajectories=100_000)\ne.trigger_eval()",
        0,
    ),
    "a pause": (
        "next(c := MultiAsyncCollector([env] * 2, policy, placement='threads', frames_per_batch=10))\nc.pause().__enter__()",
        0,
    ),
    "a cycle": (
        "class Trainer:\n"
        "    def __init__(self):\n"
        "        self.collector = MultiAsyncCollector([env] * 2, self.policy, placement='threads', frames_per_batch=10)\n"
        "    def policy(self, td):\n"
        "        return policy(td)\n"
        "next((trainer := Trainer()).collector)",
        0,
    ),
    "batches that outlive their collector": (
        "c = MultiAsyncCollector([env] * 2, policy, placement='threads', frames_per_batch=10)\n"
        "sys.kept = [next(c) for _ in range(5)]\n"
        "del c",
        0,
    ),
    "sys.exit": (
        "next(c := MultiAsyncCollector([env] * 2, policy, placement='threads', frames_per_batch=10))\nsys.exit(3)",
        3,
    ),
    "sys.exit in a thread": (
        "c = MultiAsyncCollector([env] * 2, policy, placement='threads', frames_per_batch=10)\n"
        "def end():\n"
        "    next(c)\n"
        "    sys.exit(3)\n"
        "t = threading.Thread(target=end)\n"
        "t.start()\n"
        "t.join()",
        0,
    ),
    "an exception": (
        "sys.excepthook = lambda *raised: None\n"
        "with MultiAsyncCollector([env] * 2, policy, placement='threads', frames_per_batch=10) as c:\n"
        "    next(c)\n"
        "    raise ValueError",
        1,
    ),
    # Optimised builds abort where a thread of the engine is ended in a call of Python that lets it
    # unwind.
    **{
        f"Ctrl-C while a worker makes environments: {where}": (
            "import os, signal\n"
            "sys.excepthook = lambda *raised: None\n"
            "presses = threading.Lock()\n"
            "def slowly(function):\n"
            "    def slow(*args, **kwargs):\n"
            "        if threading.current_thread() is not threading.main_thread() and presses.acquire(blocking=False):\n"
            "            threading.Timer(0.1, os.kill, [os.getpid(), signal.SIGINT]).start()\n"
            "            until = time.monotonic() + 1.5\n"
            "            while time.monotonic() < until: pass\n"
            "        return function(*args, **kwargs)\n"
            "    return slow\n"
            f"import windrow.envs.{module} as module\n"
            f"module.{name} = slowly(module.{name})\n"
            "MultiSyncCollector([env] * 2, policy, placement='threads', frames_per_batch=10)",
            -2,
        )
        for where, module, name in [
            ("their recipe", "_convert", "of"),
            ("their loan", "_innermost", "innermost"),
            ("their wrappers", "_gym_wrappers", "peel"),
        ]
    },
    "one that could not be built": (
        "try:\n"
        "    MultiSyncCollector([env] * 2, policy, placement='threads', frames_per_batch=10, total_frames=15)\n"
        "except ValueError:\n"
        "    pass",
        0,
    ),
}


@pytest.mark.parametrize("end", PROGRAMS)
def test_a_program_just_ends(end: str) -> None:
    program, status = PROGRAMS[end]
    ended = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", HEAD + program],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (ended.stderr, ended.returncode) == ("", status)


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, pickle.dumps])
@pytest.mark.parametrize(
    "make",
    [
        lambda: Collector(cartpole, frames_per_batch=10),
        lambda: MultiSyncCollector([cartpole] * 2, placement="threads", frames_per_batch=10),
        lambda: Evaluator(cartpole, nn.Linear(4, 2), num_trajectories=1),
    ],
    ids=["Collector", "MultiSyncCollector", "Evaluator"],
)
def test_what_runs_cannot_be_copied(make, how) -> None:
    with make() as running:
        with pytest.raises(
            TypeError,
            match=rf"a {type(running).__name__} runs .*neither copied nor pickled: make another",
        ):
            how(running)
        if isinstance(running, Evaluator):
            assert running.evaluate()["eval/num_episodes"] == 1
        else:
            assert next(running).numel() == 10


def again(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, again])
def test_a_copy_of_what_serves_a_collector_serves_none(copied) -> None:
    updater, interruptor = VanillaWeightUpdater(), Interruptor()
    with Collector(
        cartpole,
        nn.Linear(4, 2),
        frames_per_batch=10,
        weight_updater=updater,
        interruptor=interruptor,
    ) as collector:
        assert copied(updater).collector is None and updater.collector is collector
        copied(interruptor).stop_collection()
        assert not interruptor.collection_stopped() and next(collector).numel() == 10
