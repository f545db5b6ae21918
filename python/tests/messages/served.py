"""The process whose servers get the messages. It counts unpickled objects, panics and memory."""

from __future__ import annotations

import importlib
import json
import pickle
import sys
from typing import Any

import torch
from torch import nn

from messages.make import BOX, TEXT
from windrow.modules import RemoteServer

#: Functions that read pickled objects, by module and name.
READERS = [
    ("pickle", "loads"),
    ("pickle", "load"),
    ("_pickle", "loads"),
    ("_pickle", "load"),
    ("cloudpickle", "loads"),
    ("cloudpickle", "load"),
]
CLASSES = [
    ("pickle", "Unpickler"),
    ("_pickle", "Unpickler"),
    ("pickle", "_Unpickler"),
    ("torch", "load"),
]
WITH_TEXT = {"Composite": [["observation", BOX], ["thing", TEXT]]}

reached: list[str] = []


def set_traps() -> None:
    """Makes functions that read pickled objects fail from now on, and counts their calls."""

    def trap(name: str) -> Any:
        def sprung(*_: object, **__: object) -> None:
            reached.append(name)
            raise pickle.UnpicklingError(f"{name} was reached")

        return sprung

    for module, name in [*READERS, *CLASSES]:
        found = importlib.import_module(module)
        if hasattr(found, name):
            setattr(found, name, trap(f"{module}.{name}"))


class Reader(nn.Module):
    """Looks at text beside numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.read = nn.Linear(4, 2), 0

    def forward(self, tensordict: Any) -> Any:
        self.read += len(str(tensordict.get("thing", None)))
        return tensordict.set("action", self.layer(tensordict["observation"]).argmax(-1))


def by_function(observation: torch.Tensor) -> torch.Tensor:
    return (observation.sum(-1) > 0).to(torch.int64)


def servers() -> dict[str, tuple[Any, Any]]:
    """A server of each kind of policy, and the observation of its clients."""
    layers = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    return {
        "native": (RemoteServer(layers, env="CartPole-v1", policy_backend="native"), BOX),
        "random": (RemoteServer(), BOX),
        "torch": (RemoteServer(Reader(), policy_backend="torch"), WITH_TEXT),
        "function": (RemoteServer(by_function, policy_backend="torch"), BOX),
    }


def memory(name: str) -> int:
    """MiB of this process."""
    with open("/proc/self/status") as status:
        line = next(line for line in status if line.startswith(name))
    return int(line.split()[1]) >> 10


def main() -> None:
    torch.set_num_threads(1)
    made = servers()
    set_traps()
    panicked = 0
    for question in sys.stdin:
        if question.strip() == "renew":
            panicked += sum(server.stats()["panicked"] for server, _ in made.values())
            for server, _ in made.values():
                server.shutdown()
            made = servers()
        answer = {
            "addresses": {
                name: [server.address, observation] for name, (server, observation) in made.items()
            }
        }
        now = panicked + sum(server.stats()["panicked"] for server, _ in made.values())
        answer |= {
            "reached": reached,
            "panicked": now,
            "now": memory("VmRSS"),
            "peak": memory("VmHWM"),
        }
        print(json.dumps(answer), flush=True)
    for server, _ in made.values():
        server.shutdown()


if __name__ == "__main__":
    main()
