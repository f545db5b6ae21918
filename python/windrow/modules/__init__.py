"""Policies, and servers that evaluate one for many clients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from windrow._lazy import listing, names_of, tensordict as td

if TYPE_CHECKING:
    from windrow.modules._inference import InferenceClient, InferenceServer
    from windrow.modules._onnx import export_onnx
    from windrow.modules._remote import RemotePolicy, RemoteServer

__all__ = [
    "InferenceClient",
    "InferenceServer",
    "RandomPolicy",
    "RemotePolicy",
    "RemoteServer",
    "export_onnx",
]

if not TYPE_CHECKING:
    _HOMES = {
        "InferenceClient": "_inference",
        "InferenceServer": "_inference",
        "RemotePolicy": "_remote",
        "RemoteServer": "_remote",
        "export_onnx": "_onnx",
    }
    __getattr__ = names_of(__name__, _HOMES)
    __dir__ = listing(__name__, __all__)


class RandomPolicy:
    """Draws every action uniformly from the action space, as a collector without a policy does.

    In a collector the engine draws, and the spec is that of the environment. Called by itself, it
    draws from ``action_spec``.

    Args:
        action_spec: something with a method ``rand(shape)``; only needed to call the policy outside
            of a collector. Of a composite spec, each action is written under its own name.
        action_key: where :meth:`__call__` writes the action of a spec that is no composite.
    """

    def __init__(
        self, action_spec: Any = None, action_key: str | tuple[str, ...] = "action"
    ) -> None:
        self.action_spec = action_spec
        self.action_key = action_key

    def __call__(self, tensordict: td.TensorDictBase) -> td.TensorDictBase:
        """Writes an action for each row of ``tensordict``, and returns it.

        Raises:
            RuntimeError: there is no spec to draw from.
            ValueError: the spec is of another number of environments.
        """
        if self.action_spec is None:
            raise RuntimeError("a RandomPolicy that is called by itself needs an action_spec")
        spec, batch = self.action_spec, tuple(tensordict.batch_size)
        if not hasattr(spec, "keys"):
            tensordict.set(self.action_key, spec.rand(batch))
            return tensordict
        # Its own dimensions are those of the environments, which come last.
        own = tuple(spec.shape)
        if batch[len(batch) - len(own) :] != own:
            raise ValueError(
                f"a RandomPolicy whose action_spec is of {list(own)} environments was given a TensorDict of {list(batch)}"
            )
        return tensordict.update(spec.rand(batch[: len(batch) - len(own)]))

    def __repr__(self) -> str:
        return f"RandomPolicy(action_key={self.action_key!r})"
