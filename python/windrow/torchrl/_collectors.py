"""TorchRL's word, where it differs from that of :mod:`windrow.collectors`, for any class."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from windrow._lazy import tensordict as td
from windrow._types import Policy
from windrow._warnings import warn
from windrow.collectors._arguments import CollectorArguments
from windrow.collectors._base import BaseCollector
from windrow.envs._base import Wrapped
from windrow.envs._factory import is_function
from windrow.policies.choose import Choice


class AsTorchRL(BaseCollector):
    """TorchRL's word for any class of collectors."""

    #: As it was given.
    _asked_for: int | None = None

    def _build(self, arguments: CollectorArguments) -> None:
        acts = arguments.policy
        name = getattr(acts, "__name__", None)
        if getattr(acts, "__self__", acts) is arguments.create_env_fn is not None and name in (
            "rand_action",
            "rand_step",
        ):
            # The collector steps the environment, which draws the actions.
            arguments = arguments.but(policy=None)
        if arguments.trajs_per_batch is None and not arguments.allow_partial_batch:
            arguments, self._asked_for = _whole_batches(arguments)
        super()._build(arguments)

    def _chosen_policy(self, arguments: CollectorArguments) -> Choice:
        self._specify(arguments.policy)
        return super()._chosen_policy(arguments)

    def _specify(self, policy: Policy | None) -> None:
        """Gives modules of ``policy`` that add noise, and know no spec of actions, that of the
        environment.
        """
        if not any(
            getattr(module, "_spec", policy) is None
            for module in getattr(policy, "modules", list)()
        ):
            return
        # Such a module comes from torchrl.
        from torchrl.modules import set_exploration_modules_spec_from_env

        given = self._workers.given[0]
        looked_at = Wrapped(given) if isinstance(given, str) or is_function(given) else given
        set_exploration_modules_spec_from_env(policy, looked_at)
        if looked_at is not given:
            looked_at.close()

    def _make_core(self, arguments: CollectorArguments) -> Choice:
        try:
            choice = super()._make_core(arguments)
        except ValueError:
            if self._asked_for is None:
                raise
            # Environments that step together may not share the frames in all. How large their
            # batches are, an endless collector says.
            choice = super()._make_core(arguments.but(total_frames=None))
        batch = self.frames_per_batch
        rounded = arguments if self._asked_for is None else _rounded_up(arguments, batch)
        if self._asked_for is not None and (
            rounded is not arguments or self._core.stats()["total_frames"] is None
        ):
            self._warn_of_rounding(arguments.frames_per_batch)
            self._arguments = rounded.but(frames_per_batch=batch)
            self._core.shutdown(None)
            choice = super()._make_core(self._arguments)
        return choice

    def _warn_of_rounding(self, asked: int | float | Sequence[int]) -> None:
        if isinstance(asked, (int, float)) and asked < self.frames_per_batch:
            rounded = f"frames_per_batch={asked} cannot be split over environments that step together: batches have {self.frames_per_batch} frames"
            warn(rounded)

    @property
    def total_frames(self) -> int | float:
        """Frames in all, as they were asked for; infinite if the collector is endless."""
        return super().total_frames if self._asked_for is None else self._asked_for

    def _shaped(self, batch: td.TensorDictBase) -> td.TensorDictBase:
        batch = super()._shaped(batch)
        # The engine keeps environments next to each other at each step. Scripts call `view`, which
        # TorchRL's order allows.
        return batch.contiguous() if batch.ndim > 1 and isinstance(batch, td.TensorDict) else batch

    @functools.cached_property
    def _inner_dimensions(self) -> Sequence[int]:
        return super()._inner_dimensions or self.getattr_env("batch_size")[1:]

    def _check_answers(self) -> None:
        self._raise_background()


def _whole_batches(arguments: CollectorArguments) -> tuple[CollectorArguments, int | None]:
    """Rounds ``total_frames`` up to whole batches, with a warning. Also returns the frames that
    were requested, None for endless collection.
    """
    asked = arguments.total_frames
    frames = arguments.frames_per_batch
    batch = int(sum(frames) if isinstance(frames, (list, tuple)) else frames)  # type: ignore[arg-type]
    rounded = _rounded_up(arguments, batch)
    if asked is None or rounded is arguments:
        return arguments, None if asked is None else int(asked)
    warn(
        f"total_frames={asked} is no multiple of frames_per_batch={batch}: the last batch is as large as the others, as in TorchRL"
    )
    return rounded, int(asked)


def _rounded_up(arguments: CollectorArguments, batch: int) -> CollectorArguments:
    """``arguments`` with ``total_frames`` a multiple of ``batch``; themselves if it is one."""
    total = arguments.total_frames
    if total is None or total % batch == 0:
        return arguments
    return arguments.but(total_frames=-(-int(total) // batch) * batch)
