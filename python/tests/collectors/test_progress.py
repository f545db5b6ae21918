"""Progress bars."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import nn

from cartpole import KINDS, TWO, cartpole
from windrow.collectors import (
    AsyncBatchedCollector,
    Collector,
    MultiAsyncCollector,
    MultiSyncCollector,
)
from windrow.collectors._progress import Returns
from windrow.data import LazyTensorStorage, ReplayBuffer
from windrow.torchrl.collectors import MultiSyncCollector as OfTorchRL


def shown(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """All that a bar has shown, the newest last."""
    return [line for line in re.split(r"[\r\n]+", capsys.readouterr().err) if line.strip()]


def returns_of(batches: list[Any]) -> list[float]:
    """Returns of the episodes that end in ``batches``, without a look at how windrow adds them
    up.
    """
    found: dict[int, list[float]] = {}
    over = set()
    for batch in batches:
        keys = [("collector", "traj_ids"), ("next", "reward"), ("next", "done")]
        mask = batch.get(("collector", "mask"), torch.ones(batch.shape, dtype=torch.bool)).flatten()
        for number, reward, done in zip(*(batch[key].flatten()[mask].tolist() for key in keys)):
            found.setdefault(number, []).append(reward)
            over |= {number} if done else set()
    return [sum(found[number]) for number in sorted(over)]


@pytest.mark.parametrize(
    ("kind", "envs"),
    [*KINDS, (OfTorchRL, TWO)],
    ids=lambda value: getattr(value, "__qualname__", ""),
)
def test_a_bar_shows_all_frames_and_returns_of_every_class(
    kind: Any, envs: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    with kind(envs, frames_per_batch=100, total_frames=900, seed=0, progress=True) as collector:
        returns = returns_of([batch.clone() for batch in collector])
        assert collector._progress._bar._shown is None
    last = shown(capsys)[-1]
    assert last.startswith(f"{kind.__name__}: 100%") and " 900/900 " in last and " frames/s" in last
    assert f"return={sum(returns[-100:]) / len(returns[-100:]):.4g}" in last and "lag" not in last


@pytest.mark.parametrize(
    ("kind", "envs", "arguments"),
    [
        (Collector, "CartPole-v1", {"num_envs": 4, "frames_per_batch": 40}),
        (Collector, "CartPole-v1", {"frames_per_batch": 7}),
        (Collector, "CartPole-v1", {"frames_per_batch": 40, "split_trajs": True}),
        (Collector, "CartPole-v1", {"num_envs": 4, "frames_per_batch": 40, "trajs_per_batch": 3}),
        (MultiSyncCollector, TWO, {"num_envs": 2, "frames_per_batch": 40, "cat_results": "stack"}),
        (MultiAsyncCollector, TWO, {"num_envs": 2, "frames_per_batch": 40}),
        (AsyncBatchedCollector, ["CartPole-v1"] * 6, {"frames_per_batch": 30}),
    ],
    ids=str,
)
def test_returns_of_episodes_over_several_batches_are_whole(
    kind: Any, envs: Any, arguments: dict[str, Any]
) -> None:
    with kind(
        envs, total_frames=1200, seed=0, **{"allow_partial_batch": True, **arguments}
    ) as collector:
        returns, batches = Returns(collector.stats()["num_envs"], None), []
        for batch in collector:
            returns.add(batch)
            batches.append(batch.clone())
    assert len(returns.recent) > 10
    assert sorted(returns.recent) == sorted(returns_of(batches))


def test_an_episode_that_a_reset_has_cut_is_none() -> None:
    with Collector(
        "CartPole-v1", frames_per_batch=5, total_frames=400, seed=0, reset_at_each_iter=True
    ) as collector:
        returns = Returns(1)
        for batch in collector:
            returns.add(batch)
            assert len(returns._running) <= 1
    assert not returns.recent


def test_frames_outside_of_the_count_belong_to_their_episodes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with Collector(
        "CartPole-v1", frames_per_batch=20, total_frames=400, seed=0, progress=True
    ) as collector:
        batches = []
        for batch in collector:
            batches += [batch.clone(), collector.rollout().clone()]
    returns = returns_of(batches[:-1])
    assert f"return={sum(returns) / len(returns):.4g}" in shown(capsys)[-1]


def test_a_batch_that_comes_again_is_counted_once(capsys: pytest.CaptureFixture[str]) -> None:
    interrupted = [KeyboardInterrupt, KeyboardInterrupt]

    def hook(batch: Any) -> None:
        if interrupted:
            raise interrupted.pop()

    with Collector(
        "CartPole-v1",
        frames_per_batch=200,
        total_frames=400,
        seed=0,
        progress=True,
        post_collect_hook=hook,
    ) as collector:
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                next(collector)
        returns = returns_of([batch.clone() for batch in collector])
        assert [*collector._progress._returns.recent] == returns


def test_a_policy_shows_how_far_behind_its_weights_are(
    network: nn.Module, capsys: pytest.CaptureFixture[str]
) -> None:
    with MultiSyncCollector(
        TWO, network, frames_per_batch=20, total_frames=60, progress=True
    ) as collector:
        for _ in collector:
            collector.update_policy_weights_()
    assert shown(capsys)[-1].endswith("lag=0]")


@pytest.mark.parametrize("arguments", [{"track_traj_ids": False}, {"set_truncated": True}], ids=str)
def test_a_return_that_cannot_be_known_is_not_shown(
    arguments: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    list(
        Collector("CartPole-v1", frames_per_batch=100, total_frames=300, progress=True, **arguments)
    )
    assert "return" not in (last := shown(capsys)[-1]) and "300/300" in last


def test_a_loop_that_is_left_closes_the_bar_and_the_next_begins_where_it_ended(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with Collector(
        "CartPole-v1", frames_per_batch=10, total_frames=100, progress=True
    ) as collector:
        for _ in collector:
            assert collector._progress._bar._shown is not None
            break
        assert collector._progress._bar._shown is None and " 10.0/100 " in shown(capsys)[-1]
        for _ in zip(range(2), collector):
            pass
        assert collector._progress._bar._shown is None
        next(collector)
        assert collector._progress._bar._shown.n == 40
    assert collector._progress._bar._shown is None and " 40.0/100 " in shown(capsys)[-1]


def test_errors_close_the_bar() -> None:
    def policy(observation: torch.Tensor) -> torch.Tensor:
        if len(calls) > 100:
            raise ValueError("no more")
        calls.append(0)
        return torch.tensor(0)

    calls: list[int] = []
    collector = Collector(
        cartpole, policy, frames_per_batch=40, progress=True, policy_backend="torch"
    )
    with pytest.raises(Exception, match="no more"):
        for _ in collector:
            pass
    assert collector._progress._bar._shown is None
    with (
        pytest.raises(KeyError, match="in the loop"),
        Collector("CartPole-v1", frames_per_batch=10, progress=True) as endless,
    ):
        for _ in endless:
            raise KeyError("in the loop")
    assert endless._progress._bar._shown is None


def test_a_bar_of_the_background_counts_what_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(1000), batch_size=8)
    with MultiSyncCollector(
        TWO, frames_per_batch=100, total_frames=900, replay_buffer=buffer, progress=True
    ) as collector:
        collector.start()
        while collector.is_running():
            buffer.sample()
        assert collector._progress._bar._shown is None
    assert len(buffer) == 900 and "900/900" in (last := shown(capsys)[-1]) and "return=" in last


def test_a_buffer_has_the_same_frames_with_a_bar() -> None:
    written = []
    for progress in (False, True):
        buffer = ReplayBuffer(storage=LazyTensorStorage(300))
        list(
            Collector(
                "CartPole-v1",
                frames_per_batch=100,
                total_frames=300,
                seed=0,
                replay_buffer=buffer,
                progress=progress,
            )
        )
        written.append(buffer[:])
    assert (written[0] == written[1]).all()


def test_without_a_bar_a_collector_is_its_own_iterator() -> None:
    with Collector("CartPole-v1", frames_per_batch=10) as collector:
        assert (
            iter(collector) is collector
            and collector._progress is None
            and collector.progress is False
        )


def test_without_tqdm_an_error_names_the_extra() -> None:
    program = """
import sys
sys.modules["tqdm"] = sys.modules["tqdm.auto"] = None
from windrow.collectors import Collector
next(Collector("CartPole-v1", frames_per_batch=10))
try:
    Collector("CartPole-v1", frames_per_batch=10, progress=True)
except ImportError as error:
    print(error)
"""
    told = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert (
        told.stdout.strip()
        == 'progress=True needs tqdm, which is not installed: pip install "windrow-rl[progress]"'
    )
