"""Rollouts of an environment that is stepped by hand, where the engine steps it as a hand would."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from windrow._lazy import module, tensordict as td, torch
from windrow._windrow import CollectorCore, EnvHandle, WorkerError
from windrow.envs._recipe import Recipe
from windrow.policies.choose import EXPLORATION_TYPES, Choice, Conditions, choose
from windrow.policies.weights import WeightSource

if TYPE_CHECKING:
    from windrow.envs._base import EnvBase

_arguments = module("windrow.policies.arguments")

#: Bytes and steps of the longest part of a rollout.
ROOM, STEPS = 1 << 24, 1024
#: Shorter rollouts are over before a policy is read.
SHORT = 64

#: What a rollout by hand calls. Where a class has others, the engine would pass them by.
_METHODS = frozenset(
    [
        "reset",
        "step",
        "step_mdp",
        "step_and_maybe_reset",
        "_acting",
        "_begun",
        "_compact",
        "_stepped",
        "_tensordict",
        "_with_actions",
    ]
)


@dataclass(frozen=True)
class _Lent(Recipe, kind="handle"):
    """The environments of a handle, which keeps them."""

    is_native: ClassVar[bool | None] = True
    handle: EnvHandle
    several: bool

    @property
    def is_batched(self) -> bool:  # type: ignore[override]
        """As by hand."""
        return self.several


class _Refused(Exception):
    """A rollout by hand may give other frames."""


class Rollouts:
    """Rollouts of an environment under one policy, by an engine's collector that steps the
    environment's own handle.
    """

    _core: CollectorCore | None = None

    def __init__(
        self,
        env: EnvBase,
        handle: EnvHandle,
        policy: torch.nn.Module,
        exploration: str,
        trust: bool,
        cast: bool,
    ) -> None:
        #: The rollouts that these are.
        self.made_for = (handle, policy, exploration, trust, cast)
        self._handle = handle
        facts = env._known()
        width = sum(
            torch.empty(0, dtype=getattr(torch, leaf.dtype)).element_size()
            * torch.Size(leaf.shape).numel()
            for leaf in facts.observation
        )
        self._steps = max(16, min(STEPS, ROOM // (facts.num_envs * (2 * width + 64))))
        is_placed = cast and next(policy.parameters(), None) is not None
        device = env.device or (torch.device("cpu") if is_placed else None)
        conditions = Conditions(
            exploration, threads=False, trust=trust, register=False, named=device
        )
        try:
            choice = _native(policy, conditions, env)
            self._core = CollectorCore(
                {
                    "config": {
                        "placement": "inline",
                        "frames_per_batch": self._steps * facts.num_envs,
                        "exploration_type": exploration,
                    },
                    "envs": [_Lent(handle, bool(facts.batch))],
                    "env_kwargs": [None],
                    "policy": choice.core,
                    "replay_buffer": None,
                    "takes_writes": False,
                    "device": device,
                    "flat": False,
                    "init_fn": None,
                    "worker_threads": 1,
                    "launcher": None,
                    "allow_pickle": False,
                }
            )
            self._source = WeightSource(self._core, choice, inline=True)
        except Exception:
            # By hand, the user sees what is wrong.
            self._core = None

    def rollout(self, steps: int, ends: bool, seeds: list[int | None]) -> td.TensorDictBase | None:
        """As many steps from a reset on, with these seeds, up to the first end of an episode if it
        ``ends`` them; None where they have to be taken by hand.
        """
        if self._core is None:
            return None
        self._source.follow()
        if self._source.lost is not None or self._core.policy_backend() != "native":
            self._end()
            return None
        try:
            frames: td.TensorDictBase = self._core.rollout_by_hand(
                self._handle, steps, ends, seeds, self._steps
            )
            return frames
        except BaseException as error:
            self._end()
            if isinstance(error, WorkerError) and error.__cause__ is not None:
                raise error.__cause__ from None
            raise

    def _end(self) -> None:
        core, self._core = self._core, None
        if core is not None:
            core.finalize()

    def __del__(self) -> None:
        # Before the garbage collector takes apart what the policy refers to.
        self._end()


def _native(policy: torch.nn.Module, conditions: Conditions, env: EnvBase) -> Choice:
    """``policy`` in a form that the engine evaluates as torch does, without a random number.

    Raises:
        _Refused: there is none.
    """
    choice = choose(policy, None, conditions, env=env)
    # A copy would not follow the user's own policy.
    if (
        not choice.shared
        or choice.doubt is not None
        or not isinstance(choice.core, dict)
        or "graph" not in choice.core
    ):
        raise _Refused
    graph = json.loads(choice.core["graph"])
    if any(word in choice.core["graph"] for word in ('"Noise"', '"Gamma"', '"State"')):
        raise _Refused
    written = [tuple(leaf["key"]) for leaf, _ in graph["outputs"]]
    # Of what else a plain module returns, a rollout by hand keeps nothing.
    if not _arguments.calls_with_tensordict(policy, conditions.trust) and written != [("action",)]:
        raise _Refused
    if choice.beside is not None:
        # Then rollouts are made by hand.
        choice.beside.warns = False
    return choice


def rollout(
    env: EnvBase,
    policy: Any,
    steps: int,
    *,
    base: type[EnvBase],
    ends: bool,
    trust: bool,
    cast: bool,
    known: Rollouts | None,
) -> tuple[td.TensorDictBase | None, Rollouts | None]:
    """A rollout by the engine, from a reset on, and what the next one is made with; None where it
    has to be made by hand.

    Args:
        env: what is stepped.
        policy: how it acts.
        steps: how many steps.
        base: the class whose methods the engine stands for.
        ends: whether the first episode that ends also ends the rollout.
        trust: whether ``policy`` maps a TensorDict to a TensorDict.
        cast: whether it is called where its parameters are.
        known: what the rollout before was made with.
    """
    exploration = _exploration(policy) if isinstance(policy, torch.nn.Module) else None
    # With a gradient, so is what it writes.
    if (
        exploration is None
        or not _METHODS.isdisjoint(vars(env))
        or (
            torch.is_grad_enabled()
            and any(parameter.requires_grad for parameter in policy.parameters())
        )
    ):
        return None, known
    made_for = (env._made(), policy, exploration, trust, cast)
    if known is None or known.made_for != made_for:
        if (
            steps < SHORT
            or not _is_plain(env, base)
            or any(not parameter.is_cpu for parameter in policy.parameters())
        ):
            return None, known
        known = Rollouts(env, *made_for)
    seeds: list[int | None] = [None] * env.num_envs if env._seeds is None else list(env._seeds)
    found = known.rollout(steps, ends, seeds)
    if found is not None:
        env._seeds = None
    return found, known


def _exploration(policy: torch.nn.Module) -> str | None:
    """How ``policy`` explores in this thread; None where its parts differ in that."""
    from tensordict.nn.probabilistic import interaction_type

    given = interaction_type()
    if given is None:
        own = {
            str(getattr(part, "default_interaction_type", "deterministic"))
            .rpartition(".")[2]
            .lower()
            for part in policy.modules()
        }
        given = own.pop() if len(own) == 1 else ""
    name = str(getattr(given, "name", given)).lower()
    return name if name in EXPLORATION_TYPES else None


def _is_plain(env: EnvBase, base: type[EnvBase]) -> bool:
    """Whether the engine observes of ``env`` what a hand does, and under the same names."""
    if any(getattr(type(env), name) is not getattr(base, name) for name in _METHODS):
        return False
    facts = env._known()
    if (
        facts.masks
        or facts.groups
        or facts.split
        or facts.deltas
        or facts.primed
        or facts.rewards
        or facts.flags
    ):
        return False
    is_here = env.device is None or env.device.type == "cpu"
    has_one_action = [leaf.key for leaf in facts.action] == ["action"]
    return (
        is_here
        and has_one_action
        and len(facts.batch) < 2
        and all(leaf.dtype != "bytes" for leaf in facts.observation)
    )
