from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict.nn import NormalParamExtractor, TensorDictModule
from torch import nn
from torchrl.modules import ProbabilisticActor, TanhNormal, ValueOperator

from seeds import snippet
from windrow.collectors import AsyncCollector, BaseCollector, Evaluator, MultiCollector
from windrow.envs import GymEnv

Run = Callable[..., dict[str, Any]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """Runs a snippet in an empty folder: ``run(name, names, changes)``. What it leaves running is
    ended.

    All snippets of several workers, or of one in the background, give functions: these workers must
    be in processes.
    """
    monkeypatch.chdir(tmp_path)
    scopes: list[dict[str, Any]] = []

    def run(
        name: str, names: dict[str, Any] | None = None, changes: dict[str, str] | None = None
    ) -> dict[str, Any]:
        scopes.append(snippet.run(name, names or {}, changes or {}))
        for left in scopes[-1].values():
            if isinstance(left, (AsyncCollector, MultiCollector)):
                assert "in processes" in repr(left) or sys.platform != "linux"
        return scopes[-1]

    yield run
    for scope in scopes:
        for left in scope.values():
            if isinstance(left, (BaseCollector, Evaluator)):
                left.shutdown()


@pytest.fixture
def make_env() -> Callable[[], GymEnv]:
    return lambda: GymEnv("CartPole-v1")


@pytest.fixture
def policy() -> TensorDictModule:
    """Logits of CartPole's two actions, which are its one-hot action as far as TorchRL is
    concerned. Its poles fall soon.
    """
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
    return TensorDictModule(network, in_keys=["observation"], out_keys=["action"])


@pytest.fixture
def actor() -> ProbabilisticActor:
    """A policy for HalfCheetah with a probability for what it does."""
    network = nn.Sequential(nn.Linear(17, 32), nn.Tanh(), nn.Linear(32, 12), NormalParamExtractor())
    return ProbabilisticActor(
        TensorDictModule(network, in_keys=["observation"], out_keys=["loc", "scale"]),
        in_keys=["loc", "scale"],
        out_keys=["action"],
        distribution_class=TanhNormal,
        return_log_prob=True,
    )


@pytest.fixture
def critic() -> ValueOperator:
    return ValueOperator(
        nn.Sequential(nn.Linear(17, 32), nn.Tanh(), nn.Linear(32, 1)), in_keys=["observation"]
    )
