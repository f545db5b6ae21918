"""Vectors of environments that the engine knows: native ones, and any with transforms of windrow
around them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from windrow._keys import path
from windrow._windrow import VectorCore
from windrow.envs._native import EXACT_REWARD
from windrow.envs._specs import Leaf
from windrow.vectors._base import Notes, Stepped, closed_before, masked, reset_needed, with_masks
from windrow.vectors._exchange import Exchange

_INSTEAD = "native=False runs Gymnasium's"


class EngineVector(Exchange):
    """Environments that Rust steps. The last leaves that they observe are ``entries`` of ``info``,
    each with whether resets return it, too.
    """

    def __init__(
        self,
        core: VectorCore,
        mode: AutoresetMode,
        form: str,
        batch: int | None = None,
        entries: Mapping[str, bool] | None = None,
    ) -> None:
        entries = entries or {}
        told = core.describe()
        observed, acted = (
            [Leaf(*leaf) for leaf in told[part]] for part in ("observation", "action")
        )
        own = len(observed) - len(entries)
        observed, self._entries = (
            observed[:own],
            [(name, own + place) for place, name in enumerate(entries)],
        )
        #: The leaf that rewards are observed as in double precision, which no ``info`` has.
        self._exact = next((place for name, place in self._entries if name == EXACT_REWARD), None)
        self._entries = [entry for entry in self._entries if entry[0] != EXACT_REWARD]
        self._at_reset = [(name, place) for name, place in self._entries if entries[name]]
        super().__init__(
            told["num_envs"],
            _space(observed, "observation"),
            _space(acted, "action"),
            mode,
            {},
            form,
        )
        self._id = told["id"]
        self._core = core
        self._paths = [path(leaf.key) for leaf in observed]
        self._acted = [path(leaf.key) for leaf in acted]
        self._is_tuple = isinstance(self.single_observation_space, spaces.Tuple)
        self._is_bare = not self._is_tuple and not isinstance(
            self.single_observation_space, spaces.Dict
        )
        self._acts_bare = len(acted) == 1
        self._given_seeds = [-1] * self.num_envs
        self._exchange(batch)
        #: In the mode DISABLED, those whose episode has ended.
        self._over: set[int] = set()
        #: In the mode NEXT_STEP, those whose next step begins an episode.
        self._ended = np.zeros(self.num_envs, np.bool_)

    def _begin(
        self, envs: list[int], seeds: list[int | None], options: dict[str, Any] | None
    ) -> tuple[Any, Notes]:
        if options:
            raise ValueError(
                f"{self._id} runs in Rust and takes no options, got {options}: {_INSTEAD}"
            )
        seen = self._core.reset(envs, seeds)
        for env, seed in zip(envs, seeds, strict=True):
            if seed is not None:
                self._given_seeds[env] = seed
        self._over.difference_update(envs)
        self._ended[envs] = False
        return self._observation(seen), [
            (env, self._said(seen, env, self._at_reset)) for env in envs
        ] if self._at_reset else []

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Steps all environments."""
        if self.closed:
            raise closed_before("step")
        if self._over:
            raise reset_needed(sorted(self._over))
        seen, reward, terminated, truncated, ended = self._core.step(
            (actions,) if self._acts_bare else self._leaves(actions)
        )
        observation = seen[0] if self._is_bare else self._observation(seen)
        info = {} if ended is None else self._infos(ended)
        if self._entries:
            info.update(self._columns(seen, self._new_episodes(terminated, truncated)))
        return observation, self._rewards(seen, reward, ended), terminated, truncated, info

    def _stepped(self, actions: Any) -> Stepped:
        if self._over:
            raise reset_needed(sorted(self._over))
        seen, reward, terminated, truncated, ended = self._core.step(
            (actions,) if self._acts_bare else self._leaves(actions)
        )
        notes = [] if ended is None else self._notes(ended)
        if self._entries:
            begun = self._new_episodes(terminated, truncated)
            for env in range(self.num_envs):
                notes.append(
                    (
                        env,
                        self._said(
                            seen,
                            env,
                            self._at_reset if begun is not None and begun[env] else self._entries,
                        ),
                    )
                )
        return (
            self._observation(seen),
            self._rewards(seen, reward, ended),
            terminated,
            truncated,
            notes,
        )

    def _rewards(self, seen: Sequence[Any], rounded: Any, ended: Any) -> Any:
        """The rewards of a step: the exact ones where they are observed."""
        if self._exact is None:
            return rounded
        rewards = seen[self._exact]
        if ended is not None and ended[1] is not None:
            # The rows of those are of their resets.
            rewards[ended[0]] = [last[self._exact] for last in ended[1]]
        return rewards

    def _new_episodes(self, terminated: Any, truncated: Any, envs: Any = slice(None)) -> Any:
        """Which of ``envs`` have begun an episode in this step, and say what a reset says: a mask.
        None where all say the same.
        """
        if (
            len(self._at_reset) == len(self._entries)
            or self.autoreset_mode is AutoresetMode.DISABLED
        ):
            return None
        ended = terminated | truncated
        if self.autoreset_mode is AutoresetMode.NEXT_STEP:
            ended, self._ended[envs] = self._ended[envs].copy(), ended
        return ended if ended.any() else None

    def _said(
        self, seen: Sequence[Any], env: int, entries: list[tuple[str, int]]
    ) -> dict[str, Any]:
        """What ``env`` says in ``info``."""
        return {name: seen[place][env] for name, place in entries}

    def _columns(self, seen: Sequence[Any], begun: Any = None) -> dict[str, Any]:
        """``info`` of all environments that ``seen`` has rows of; those that ``begun`` says have
        begun an episode.
        """
        columns = {name: seen[place] for name, place in self._entries}
        if begun is None:
            return with_masks(columns, len(seen[0]))
        info = masked(columns, ~begun) if not begun.all() else {}
        return {
            **info,
            **with_masks({name: seen[place] for name, place in self._at_reset}, len(seen[0])),
        }

    def _notes(self, ended: Any) -> Notes:
        """What is told of environments whose episodes have ended."""
        envs, finals, episodes = ended
        if self.autoreset_mode is AutoresetMode.DISABLED:
            self._over.update(envs)
        notes: Notes = []
        for place, env in enumerate(envs):
            info = (
                {}
                if finals is None
                else {name: finals[place][leaf][()] for name, leaf in self._entries}
            )
            if episodes is not None:
                info["episode"] = dict(zip("rlt", episodes[place], strict=True))
            if finals is not None:
                notes.append(
                    (
                        env,
                        {
                            "final_obs": self._observation(_single(finals[place])),
                            "final_info": info,
                        },
                    )
                )
            elif info:
                notes.append((env, info))
        return notes

    def _received(self, envs: Any, stepped: Any) -> tuple[Any, ...]:
        seen, reward, terminated, truncated, ended = stepped
        info = {} if ended is None else self._infos(ended, len(envs))
        if self._entries:
            info.update(self._columns(seen, self._new_episodes(terminated, truncated, envs)))
        return (
            self._observation(seen),
            self._rewards(seen, reward, ended),
            terminated,
            truncated,
            info,
        )

    def _infos(self, ended: Any, size: int | None = None) -> dict[str, Any]:
        """``info`` of the same: what folding the notes gives, in fewer steps. Rows of ``size``
        environments, or of all.
        """
        envs, finals, episodes = ended
        if size is None and (self._form != "arrays" or finals is None):
            return self._told(self._notes(ended))
        size = self.num_envs if size is None else size
        mask = np.zeros(size, np.bool_)
        mask[envs] = True
        info: dict[str, Any] = {}
        if episodes is not None:
            told: dict[str, Any] = {}
            for name, dtype, values in zip(
                "rlt", (float, int, float), zip(*episodes, strict=True), strict=True
            ):
                told[name], told[f"_{name}"] = np.zeros(size, dtype), mask.copy()
                told[name][envs] = values
            info["episode"], info["_episode"] = told, mask.copy()
        if finals is None:
            return info
        for name, leaf in self._entries:
            column = [seen[leaf] for seen in finals]
            info[name], info[f"_{name}"] = (
                np.zeros((size, *np.shape(column[0])), column[0].dtype),
                mask.copy(),
            )
            info[name][envs] = column
        last = np.full(size, None, object)
        for env, seen in zip(envs, finals, strict=True):
            last[env] = self._observation(_single(seen))
        return {
            "final_obs": last,
            "_final_obs": mask,
            "final_info": info,
            "_final_info": mask.copy(),
        }

    def _observation(self, seen: Sequence[Any]) -> object:
        """Leaves in the structure of the observation space."""
        if self._is_bare:
            return seen[0]
        if self._is_tuple:
            return tuple(seen[: len(self._paths)])
        found: dict[str, Any] = {}
        for (*groups, last), values in zip(self._paths, seen, strict=False):
            level = found
            for group in groups:
                level = level.setdefault(group, {})
            level[last] = values
        return found

    def _leaves(self, actions: Any) -> list[Any]:
        """The leaves of actions in the structure of the action space."""
        found = []
        for names in self._acted:
            level = actions
            for name in names:
                level = level[name]
            found.append(level)
        return found

    def _called(
        self,
        envs: Sequence[int],
        name: str,
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> list[Any]:
        # They are no objects of Python's, so they have no methods, and few attributes.
        known: dict[str, Any] = {
            "spec": self.spec,
            "metadata": {},
            "render_mode": None,
            "observation_space": self.single_observation_space,
            "action_space": self.single_action_space,
        }
        if name == "np_random_seed":
            return [self._given_seeds[env] for env in envs]
        if name not in known:
            raise AttributeError(
                f"{self._id} runs in Rust and has no {name!r}: {_INSTEAD}, which has all of its own"
            )
        return [known[name] for _ in envs]

    def _set(self, envs: Sequence[int], name: str, values: Sequence[Any]) -> None:
        raise AttributeError(f"{self._id} runs in Rust, where {name!r} cannot be set: {_INSTEAD}")

    def _are_wrapped(self, envs: Sequence[int], wrapper: type) -> list[bool]:
        return [False for _ in envs]

    def close_extras(self, **kwargs: object) -> None:
        """Ends threads."""
        self._core.close()


def _single(seen: Sequence[Any]) -> list[Any]:
    """The leaves of one environment, in which a choice is a number."""
    return [leaf if leaf.ndim else leaf.item() for leaf in seen]


def _space(leaves: list[Leaf], role: str) -> spaces.Space[Any]:
    """The space of values with these leaves: a single one that is called after its role is bare,
    and numbered ones below it are a tuple.
    """
    if len(leaves) == 1 and leaves[0].key == role:
        return _space_of(leaves[0], role)
    if [path(leaf.key) for leaf in leaves] == [(role, str(place)) for place in range(len(leaves))]:
        return spaces.Tuple([_space_of(leaf, role) for leaf in leaves])
    root: dict[str, Any] = {}
    for leaf in leaves:
        *groups, last = path(leaf.key)
        level = root
        for group in groups:
            level = level.setdefault(group, {})
        level[last] = _space_of(leaf, role)
    return _nested(root)


def _nested(level: dict[str, Any]) -> spaces.Dict:
    return spaces.Dict(
        {
            name: _nested(inner) if isinstance(inner, dict) else inner
            for name, inner in level.items()
        }
    )


def _space_of(leaf: Leaf, role: str) -> spaces.Space[Any]:
    shape, dtype = tuple(leaf.shape), np.dtype(leaf.dtype) if leaf.dtype != "bytes" else None
    if dtype is None:
        raise TypeError(
            f"the {role} {leaf.key!r} is no array: make_vec without transforms gives what the environments return"
        )
    if leaf.kind == "discrete" and not shape:
        return spaces.Discrete((leaf.nvec or [2])[0])
    if leaf.kind == "multi_discrete":
        return spaces.MultiDiscrete(list(leaf.nvec or []))
    if leaf.kind == "binary":
        return spaces.MultiBinary(shape)
    if leaf.kind == "bounded":
        low, high = (np.array(bound, dtype).reshape(shape) for bound in (leaf.low, leaf.high))
        return spaces.Box(low, high, shape, dtype.type)
    if dtype == np.bool_ or leaf.kind in ("discrete", "one_hot"):
        return spaces.Box(
            0, 1 if leaf.kind != "discrete" else max(leaf.nvec or [2]) - 1, shape, dtype.type
        )
    least, most = (
        (np.iinfo(dtype).min, np.iinfo(dtype).max) if dtype.kind in "iu" else (-np.inf, np.inf)
    )
    return spaces.Box(least, most, shape, dtype.type)
