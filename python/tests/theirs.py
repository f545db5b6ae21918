"""Environments of TorchRL, for tests."""

from __future__ import annotations

import math
from typing import Any

import torch
from tensordict import TensorDict
from torchrl.data import Binary, Bounded, Categorical, Composite, Unbounded
from torchrl.envs import EnvBase


class Counting(EnvBase):
    """Observes how many steps its episode has lasted, in a group; ends after five."""

    def __init__(self, batch: tuple[int, ...] = ()) -> None:
        super().__init__(batch_size=batch)
        self.observation_spec = Composite(
            data=Composite(count=Unbounded((*batch, 1), dtype=torch.int32), shape=batch),
            flag=Categorical(2, (*batch, 1), dtype=torch.bool),
            shape=batch,
        )
        self.action_spec = Binary(1, (*batch, 1), dtype=torch.bool)
        self.reward_spec = Unbounded((*batch, 1))
        self.full_done_spec = Categorical(2, (*batch, 1), dtype=torch.bool)
        self.count = torch.zeros((*batch, 1), dtype=torch.int32)

    def _reset(self, tensordict: Any = None, **kwargs: Any) -> Any:
        some = tensordict is not None and "_reset" in tensordict.keys()
        asked = tensordict["_reset"] if some else torch.ones_like(self.count, dtype=torch.bool)
        self.count = torch.where(asked, 0, self.count).to(torch.int32)
        return self._root(self.count)

    def _root(self, count: Any) -> Any:
        root = TensorDict({"data": {"count": count}, "flag": count % 2 == 1}, self.batch_size)
        return root.set("done", torch.zeros_like(count, dtype=torch.bool))

    def _step(self, tensordict: Any) -> Any:
        self.count = self.count + 1
        following = self._root(self.count).set("reward", self.count.float())
        return following.set("done", self.count >= 5)

    def _set_seed(self, seed: int | None) -> None:
        return None


class Agents(EnvBase):
    """Two agents; the episode ends after four steps."""

    def __init__(
        self,
        batch: tuple[int, ...] = (),
        name: Any = ("agents", "reward"),
        shape: tuple[int, ...] = (2, 1),
    ) -> None:
        super().__init__(batch_size=batch)
        self.name, self.rewards, self.count = (
            name,
            torch.arange(1.0, 1 + math.prod(shape)).reshape(shape),
            0,
        )

        def agents(**leaves: Any) -> Any:
            return Composite(agents=Composite(leaves, shape=(*batch, 2)), shape=batch)

        self.observation_spec = agents(observation=Unbounded((*batch, 2, 3)))
        self.action_spec = agents(action=Bounded(-1, 1, (*batch, 2, 1)))
        reward = Unbounded((*batch, *shape))
        self.reward_spec = (
            agents(reward=reward)
            if isinstance(name, tuple)
            else Composite({name: reward}, shape=batch)
        )
        self.full_done_spec = Categorical(2, (*batch, 1), dtype=torch.bool)

    def _root(self) -> Any:
        size = self.batch_size
        agents = TensorDict(
            {"observation": torch.full((*size, 2, 3), float(self.count))}, (*size, 2)
        )
        return TensorDict({"agents": agents, "done": torch.full((*size, 1), self.count >= 4)}, size)

    def _reset(self, tensordict: Any = None, **kwargs: Any) -> Any:
        self.count = 0
        return self._root()

    def _step(self, tensordict: Any) -> Any:
        self.count += 1
        return self._root().set(
            self.name, self.rewards.expand(*self.batch_size, *self.rewards.shape).clone()
        )

    def _set_seed(self, seed: int | None) -> None:
        return None
