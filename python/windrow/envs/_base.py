"""What all environments have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from windrow._windrow import EnvHandle, EnvRecipe
from windrow.envs import _specs

if TYPE_CHECKING:
    from tensordict import TensorDictBase

Key = str | tuple[str, ...]

_FLAGS = ("done", "terminated", "truncated")


def _short(path: tuple[str, ...]) -> Key:
    return path[0] if len(path) == 1 else path


class EnvBase:
    """An environment that steps on ``TensorDict``s, and that collectors make copies of.

    Observations, rewards and flags are those of TorchRL: ``reset`` gives a root, ``step`` adds ``"next"`` to it. A subclass
    says in ``_make_recipe`` how it is made; it is made when it is first needed.

    Arguments:
        device: where tensors are put; None leaves them on the CPU without saying so.
    """

    def __init__(self, device: Any = None) -> None:
        self._device = device
        self._handle: EnvHandle | None = None
        self._seeds: list[int] | None = None
        self._facts: _Facts | None = None
        self._closed = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if hasattr(cls, "_step") or hasattr(cls, "_reset"):
            raise TypeError(
                f"{cls.__name__} steps by its own _step and _reset, as environments of TorchRL do: derive it from "
                "torchrl.envs.EnvBase; collectors, and whatever else takes an environment, take it as well"
            )

    def _make_recipe(self) -> EnvRecipe:
        raise NotImplementedError

    def _recipe(self) -> EnvRecipe:
        """How collectors make this environment. An object that only one can step at a time is given over."""
        self._handle = None
        return self._make_recipe()

    def _made(self) -> EnvHandle:
        if self._closed:
            raise RuntimeError(f"{type(self).__name__} was closed: make another one")
        if self._handle is None:
            self._handle = EnvHandle(self._make_recipe())
        return self._handle

    def _known(self) -> _Facts:
        if self._facts is None:
            self._facts = _Facts(self._made())
        return self._facts

    # What it is

    @property
    def device(self) -> Any:
        """Where tensors are put, a ``torch.device`` or None."""
        import torch

        return None if self._device is None else torch.device(self._device)

    @property
    def batch_size(self) -> Any:
        """``[]`` for one environment, ``[n]`` for several in lockstep."""
        import torch

        return torch.Size(self._known().batch)

    @property
    def num_envs(self) -> int:
        """Environments in lockstep."""
        return self._known().num_envs

    @property
    def batch_locked(self) -> bool:
        """The batch size does not change."""
        return True

    @property
    def max_episode_steps(self) -> int | None:
        """Steps after which the environment truncates an episode by itself, if it does."""
        return self._known().max_episode_steps

    @property
    def observation_spec(self) -> Any:
        """Names and specs of the observations."""
        return _specs.give(self._observation())

    full_observation_spec = observation_spec

    @property
    def full_action_spec(self) -> Any:
        """Names and specs of the actions."""
        return _specs.give(self._action())

    @property
    def action_spec(self) -> Any:
        """The action's spec; a composite where there are several."""
        entries = list(self._action().leaves())
        return _specs.give(entries[0][1] if len(entries) == 1 else self._action())

    @property
    def reward_spec(self) -> Any:
        """The reward's spec, ``[*batch, 1]``."""
        return _specs.give(_specs.Unbounded((*self._known().batch, 1), "float32", self._device))

    @property
    def full_reward_spec(self) -> Any:
        """Specs of the rewards under their names: that of the step, and others if the environment has some."""
        return _specs.give(self._reward())

    @property
    def done_spec(self) -> Any:
        """Specs of ``done``, ``terminated`` and ``truncated``, ``[*batch, 1]``."""
        batch = self._known().batch
        flags = {name: _specs.Categorical(2, (*batch, 1), "bool", self._device) for name in _FLAGS}
        return _specs.give(_specs.Composite(flags, batch, self._device))

    full_done_spec = done_spec

    def _observation(self) -> _specs.Composite:
        facts = self._known()
        return self._named([leaf for leaf in facts.observation if leaf[0] not in facts.rewards])

    def _reward(self) -> _specs.Composite:
        facts = self._known()
        reward = (("reward",), ("unbounded", "float32", (1,)))
        return self._named([reward, *(leaf for leaf in facts.observation if leaf[0] in facts.rewards)])

    def _action(self) -> _specs.Composite:
        return self._named(self._known().action)

    def _named(self, leaves: list[tuple[tuple[str, ...], _specs.Description]]) -> _specs.Composite:
        batch = self._known().batch
        root: dict[str, Any] = {}
        for path, leaf in leaves:
            level = root
            for name in path[:-1]:
                level = level.setdefault(name, {})
            level[path[-1]] = _specs.of(leaf, batch, self._device)

        def composite(level: dict[str, Any]) -> _specs.Composite:
            entries = {name: composite(entry) if isinstance(entry, dict) else entry for name, entry in level.items()}
            return _specs.Composite(entries, batch, self._device)

        return composite(root)

    @property
    def observation_keys(self) -> list[Key]:
        """Names of the observations."""
        return [key for key, _ in self._observation().leaves()]

    @property
    def action_keys(self) -> list[Key]:
        """Names of the actions."""
        return [_short(path) for path, _ in self._known().action]

    @property
    def action_key(self) -> Key:
        """Name of the first action."""
        return self.action_keys[0]

    @property
    def reward_keys(self) -> list[Key]:
        """Names of the rewards: one, unless the environment has more."""
        return [key for key, _ in self._reward().leaves()]

    @property
    def reward_key(self) -> Key:
        """Name of the reward of the step."""
        return "reward"

    @property
    def done_keys(self) -> list[Key]:
        """Names of the flags."""
        return list(_FLAGS)

    @property
    def reset_keys(self) -> list[Key]:
        """Name of the flags that ask for a partial reset."""
        return ["_reset"]

    # What it does

    def reset(self, tensordict: TensorDictBase | None = None, *, seed: int | None = None) -> TensorDictBase:
        """Begins episodes and gives the root: first observations, and flags that are all False.

        Arguments:
            tensordict: its entry ``"_reset"`` (bool, ``[*batch, 1]``) names the environments to be reset; without it, all
                are.
            seed: seeds them as :meth:`set_seed` does.
        """
        if seed is not None:
            self.set_seed(seed)
        handle, facts = self._made(), self._known()
        which = list(range(facts.num_envs))
        if tensordict is not None and tensordict.get("_reset", None) is not None:
            flags = tensordict.get("_reset").reshape(facts.num_envs, -1).any(-1).tolist()
            which = [env for env in which if flags[env]]
        if self._seeds is None or len(which) < facts.num_envs:
            seen = handle.reset(which, [None] * len(which))
        else:
            seen = handle.reset(which, self._seeds)
            self._seeds = None
        root = self._tensordict(seen).exclude(*self.reward_keys)
        partial = len(which) < facts.num_envs
        for name in _FLAGS:
            flags = self._zeros(bool)
            if partial and tensordict is not None and tensordict.get(name, None) is not None:
                flags = tensordict.get(name).reshape(facts.num_envs, 1).clone()
                flags[which] = False
                flags = flags.reshape((*facts.batch, 1))
            root.set(name, flags)
        return root

    def step(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Takes the actions in ``tensordict``, and adds to it what follows as ``"next"``."""
        handle, facts = self._made(), self._known()
        actions = [facts.to_action(tensordict, path, leaf) for path, leaf in facts.action]
        seen, reward, terminated, truncated = handle.step(actions)
        import torch

        following = self._tensordict(seen)
        shape = (*facts.batch, 1)
        flags = [torch.tensor(values).reshape(shape) for values in (terminated, truncated)]
        following.set("reward", torch.tensor(reward, dtype=torch.float32).reshape(shape))
        following.set("done", flags[0] | flags[1])
        following.set("terminated", flags[0])
        following.set("truncated", flags[1])
        tensordict.set("next", following)
        return tensordict

    def step_and_maybe_reset(self, tensordict: TensorDictBase) -> tuple[TensorDictBase, TensorDictBase]:
        """Steps, and gives the root that follows too: ended environments have begun a new episode there."""
        tensordict = self.step(tensordict)
        following = tensordict.get("next").exclude(*self.reward_keys)
        done = following.get("done")
        if not bool(done.any()):
            return tensordict, following
        return tensordict, self.reset(following.clone(False).set("_reset", done))

    def rand_action(self, tensordict: TensorDictBase | None = None) -> TensorDictBase:
        """Adds actions drawn from the action space."""
        if tensordict is None:
            tensordict = self._empty()
        for key, spec in self._action().leaves():
            tensordict.set(key, spec.rand())
        return tensordict

    def rand_step(self, tensordict: TensorDictBase | None = None) -> TensorDictBase:
        """Steps with actions drawn from the action space."""
        return self.step(self.rand_action(tensordict))

    def rollout(
        self,
        max_steps: int,
        policy: Any = None,
        *,
        auto_reset: bool = True,
        break_when_any_done: bool = True,
        tensordict: TensorDictBase | None = None,
    ) -> TensorDictBase:
        """``max_steps`` steps under ``policy``, or fewer where an episode ends: ``[*batch, time]``.

        Arguments:
            policy: called with the root, gives it back with actions; None draws actions at random.
            auto_reset: begin with a reset; otherwise with ``tensordict``.
            break_when_any_done: end with the first episode that does; otherwise begin the next one.
        """
        import torch

        root = self.reset() if auto_reset or tensordict is None else tensordict
        steps = []
        for _ in range(max_steps):
            root = self.rand_action(root) if policy is None else policy(root)
            if break_when_any_done:
                step = self.step(root)
                root = step.get("next").exclude(*self.reward_keys)
            else:
                step, root = self.step_and_maybe_reset(root)
            steps.append(step)
            if break_when_any_done and bool(step.get(("next", "done")).any()):
                break
        stacked: Any = torch.stack(steps, len(self._known().batch))
        stacked.names = [*stacked.names[:-1], "time"]
        return stacked

    def set_seed(self, seed: int, static_seed: bool = False) -> int:
        """Seeds environment ``i`` with ``seed + i`` at the next reset, or all with ``seed`` when ``static_seed``.

        Returns:
            The last seed that was given.
        """
        number = self._known().num_envs
        self._seeds = [seed if static_seed else seed + env for env in range(number)]
        return self._seeds[-1]

    def _take_seed(self) -> int | None:
        """The seed of the first environment, which somebody else is to begin with. None where there is none."""
        seeds, self._seeds = self._seeds, None
        return None if seeds is None else seeds[0]

    def fake_tensordict(self) -> TensorDictBase:
        """One step of zeros, with all keys, shapes and element types."""
        fake = self._observation().zero()
        following = self._observation().zero()
        for name in _FLAGS:
            fake.set(name, self._zeros(bool))
            following.set(name, self._zeros(bool))
        for key, spec in self._reward().leaves():
            following.set(key, spec.zero())
        for key, spec in self._action().leaves():
            fake.set(key, spec.zero())
        return fake.set("next", following)

    def append_transform(self, transform: Any) -> EnvBase:
        """This environment with ``transform`` around it."""
        from windrow.envs.transforms import TransformedEnv

        return TransformedEnv(self, transform)

    def state_dict(self) -> dict[str, Any]:
        """Nothing: an environment's state is its own."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any], strict: bool = True) -> None:
        """Takes what :meth:`state_dict` gave.

        Raises:
            KeyError: there is something in it, and ``strict``.
        """
        if state_dict and strict:
            raise KeyError(f"{type(self).__name__} has no state, got {sorted(state_dict)}")

    def to(self, device: Any) -> EnvBase:
        """Puts tensors on ``device`` from now on."""
        self._device = device
        return self

    def close(self) -> None:
        """Lets the environment go; it cannot be used again."""
        self._handle, self._closed = None, True

    @property
    def is_closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    def __enter__(self) -> EnvBase:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_handle": None, "_facts": None}

    # Tensors

    def _empty(self) -> TensorDictBase:
        from tensordict import TensorDict

        return TensorDict({}, batch_size=self._known().batch, device=self.device)

    def _zeros(self, dtype: type) -> Any:
        import torch

        kind = torch.bool if dtype is bool else torch.float32
        return torch.zeros((*self._known().batch, 1), dtype=kind, device=self.device)

    def _tensordict(self, seen: list[Any]) -> TensorDictBase:
        import torch

        facts, root = self._known(), self._empty()
        for (path, _), array in zip(facts.observation, seen, strict=True):
            tensor = torch.from_numpy(array)
            root.set(_short(path), tensor if facts.batch else tensor[0])
        return root


class _Facts:
    """What a handle says of itself, kept when the handle is given over."""

    def __init__(self, handle: EnvHandle) -> None:
        self.id = handle.id
        self.num_envs = handle.num_envs
        self.batch: tuple[int, ...] = (handle.num_envs,) if handle.is_batched else ()
        self.max_episode_steps = handle.max_episode_steps
        self.observation = _specs.leaves(handle.observation, "observation")
        self.action = _specs.leaves(handle.action, "action")
        self.rewards = {tuple(path) for path in handle.rewards}

    def to_action(self, tensordict: TensorDictBase, path: tuple[str, ...], leaf: _specs.Description) -> Any:
        """The action at ``path`` as an array with a leading dimension for the environments."""
        import torch

        value = tensordict.get(_short(path)).detach().cpu()
        spec = _specs.of(leaf)
        assert isinstance(spec, _specs.Spec)
        if leaf[0] == "one_hot" and value.is_floating_point():
            # Scores: the largest one chooses, before anything is rounded.
            value = value.reshape(self.num_envs, *spec.shape)
            chosen = [torch.zeros_like(v).scatter(-1, v.argmax(-1, True), 1) for v in value.split(list(leaf[1]), -1)]
            value = torch.cat(chosen, -1)
        expected = (self.num_envs, *spec.shape)
        if value.numel() != torch.Size(expected).numel():
            raise ValueError(
                f"action {_short(path)!r} of {self.id}: expected shape {(*self.batch, *spec.shape)}, got {tuple(value.shape)}"
            )
        return value.reshape(expected).to(spec.dtype).numpy()
