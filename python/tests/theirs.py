"""Environments of TorchRL, for tests."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDict
from torchrl.data import Binary, Categorical, Composite, Unbounded
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
