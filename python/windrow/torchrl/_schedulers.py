"""Schedulers: change an argument of a sampler, such as ``beta`` of :class:`PrioritizedSampler`,
while training goes on.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any

from windrow._arguments import one_of
from windrow.data._content import kind_of
from windrow.data.replay_buffers.replay_buffers import ReplayBuffer
from windrow.data.replay_buffers.samplers import Sampler

__all__ = [
    "LambdaScheduler",
    "LinearScheduler",
    "ParameterScheduler",
    "SchedulerList",
    "StepScheduler",
]


class ParameterScheduler(abc.ABC):
    """Sets an argument of a sampler with each :meth:`step`. Subclasses define ``_step``, which
    returns its next value.

    Args:
        obj: a sampler, or a buffer with one.
        param_name: ``"alpha"`` or ``"beta"`` of a prioritized sampler.
        min_value: the least value.
        max_value: the greatest value.

    Raises:
        TypeError: ``obj`` is neither.
        ValueError: the sampler has no such argument.
    """

    def __init__(
        self,
        obj: ReplayBuffer | Sampler,
        param_name: str,
        min_value: float | None = None,
        max_value: float | None = None,
    ) -> None:
        if not isinstance(obj, (ReplayBuffer, Sampler)):
            raise TypeError(f"expected a sampler or a replay buffer of windrow, got {kind_of(obj)}")
        self.sampler: Sampler = obj.sampler if isinstance(obj, ReplayBuffer) else obj
        self.param_name = param_name
        if param_name not in self.sampler._settable:
            raise ValueError(
                f"{type(self.sampler).__name__} has no argument {param_name} that can be set"
            )
        self.initial_val = getattr(self.sampler, param_name)
        self._min_val = -float("inf") if min_value is None else min_value
        self._max_val = float("inf") if max_value is None else max_value
        self._step_cnt = 0

    def step(self) -> None:
        """Sets the next value."""
        self._step_cnt += 1
        setattr(
            self.sampler,
            self.param_name,
            float(min(max(self._step(), self._min_val), self._max_val)),
        )

    def state_dict(self) -> dict[str, Any]:
        """The figures of the scheduler."""
        return {
            name: value
            for name, value in self.__dict__.items()
            if name != "sampler" and not callable(value)
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on from saved figures."""
        self.__dict__.update(state_dict)

    @abc.abstractmethod
    def _step(self) -> float: ...


class LambdaScheduler(ParameterScheduler):
    """The initial value times ``lambda_fn(steps)``."""

    def __init__(
        self,
        obj: ReplayBuffer | Sampler,
        param_name: str,
        lambda_fn: Callable[[int], float],
        min_value: float | None = None,
        max_value: float | None = None,
    ) -> None:
        super().__init__(obj, param_name, min_value, max_value)
        self.lambda_fn = lambda_fn

    def _step(self) -> float:
        return float(self.initial_val * self.lambda_fn(self._step_cnt))


class LinearScheduler(ParameterScheduler):
    """From the initial value to ``final_value`` in ``num_steps`` equal steps."""

    def __init__(
        self, obj: ReplayBuffer | Sampler, param_name: str, final_value: float, num_steps: int
    ) -> None:
        super().__init__(obj, param_name)
        self.final_val, self.num_steps = final_value, num_steps

    def _step(self) -> float:
        if self._step_cnt >= self.num_steps:
            return self.final_val
        return float(
            self.initial_val + (self.final_val - self.initial_val) / self.num_steps * self._step_cnt
        )


class StepScheduler(ParameterScheduler):
    """After every ``n_steps`` steps, the value times ``gamma``, or plus it.

    Args:
        gamma: the factor, or what is added.
        n_steps: steps between changes.
        mode: ``"multiplicative"`` or ``"additive"``.
    """

    def __init__(
        self,
        obj: ReplayBuffer | Sampler,
        param_name: str,
        gamma: float = 0.9,
        n_steps: int = 1,
        mode: str = "multiplicative",
        min_value: float | None = None,
        max_value: float | None = None,
    ) -> None:
        super().__init__(obj, param_name, min_value, max_value)
        one_of("multiplicative", "additive")("mode", mode)
        self.gamma, self.n_steps, self.mode = gamma, n_steps, mode

    def _step(self) -> float:
        value = float(getattr(self.sampler, self.param_name))
        if self._step_cnt % self.n_steps:
            return value
        return value + self.gamma if self.mode == "additive" else value * self.gamma


class SchedulerList:
    """Several schedulers, which step together."""

    def __init__(self, schedulers: list[ParameterScheduler] | ParameterScheduler) -> None:
        self.schedulers = [schedulers] if isinstance(schedulers, ParameterScheduler) else schedulers

    def append(self, scheduler: ParameterScheduler) -> None:
        """Adds one."""
        self.schedulers.append(scheduler)

    def step(self) -> None:
        """Steps each scheduler."""
        for scheduler in self.schedulers:
            scheduler.step()
