"""The base of all environments."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from windrow import _fence, _needs
from windrow._codecs import own_codec
from windrow._keys import Key, path
from windrow._lazy import module, tensordict as td, torch
from windrow._numbers import whole
from windrow._types import AnyTransform, Device
from windrow._values import public, stacked as stacked_steps, with_actions, with_values
from windrow._windrow import EnvHandle
from windrow.envs._check import checked
from windrow.envs._convert import of
from windrow.envs._described import FLAGS, Described, Facts
from windrow.envs._recipe import Recipe
from windrow.envs._specs import Spec, set_delta, torch_noise

_rollouts, _transform = module("windrow.envs._rollouts"), module("windrow.envs._transform")
_answers, _arguments = module("windrow.policies.answers"), module("windrow.policies.arguments")
_predictors = module("windrow.policies.predictors")


class OfInit:
    """The signature of a class that has a ``__new__`` too: that of its ``__init__``."""

    def __get__(self, own: object, owner: type) -> inspect.Signature:
        if own is not None:
            raise AttributeError(f"{owner.__name__!r} object has no attribute '__signature__'")
        signature = inspect.signature(owner.__init__)  # type: ignore[misc]
        return signature.replace(parameters=[*signature.parameters.values()][1:])


class EnvBase(Described):
    """An environment that steps on ``TensorDict``s, and that collectors make copies of.

    Observations, rewards and flags are those of TorchRL: ``reset`` gives a root, ``step`` adds
    ``"next"`` to it. windrow's own classes say in ``_new_recipe`` how environments are made; they
    are made when they are first needed. An environment with a ``_step`` and a ``_reset`` of its own
    derives from :class:`windrow.torchrl.envs.EnvBase`, and everything here that takes an
    environment takes it.

    Args:
        device: where tensors are put; None leaves them on the CPU without saying so.
    """

    #: Whether states can be loaded while a collector steps it.
    _takes_states = False
    #: Methods that TorchRL calls of an environment.
    _never_called: ClassVar[tuple[str, ...]] = ("_reset", "_set_seed", "_step")
    __signature__ = OfInit()

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        _fence.check_derived(cls, EnvBase)

    def __init__(self, device: Device | None = None) -> None:
        self._device = device
        self._handle = None
        #: Its recipe, once it was asked for.
        self._source: Recipe | None = None
        self._seeds: list[int] | None = None
        self._facts: Facts | None = None
        #: The last observations, where they tell the legal actions.
        self._seen: td.TensorDictBase | None = None
        self._closed = False

    @property
    def _handle(self) -> EnvHandle | None:
        """The environments as they are stepped by hand, once they are made."""
        return self._held

    @_handle.setter
    def _handle(self, handle: EnvHandle | None) -> None:
        self._held: EnvHandle | None = handle
        #: Whether its episodes have begun.
        self._has_begun = False
        #: Steps the handle in rollouts, after the first that it can make.
        self._engine: Any = None

    def _new_recipe(self) -> Recipe:
        raise NotImplementedError

    def _recipe(self, *, plain: bool = False) -> Recipe:
        """How collectors make this environment. An object that only one can step at a time is given
        over. A ``plain`` one has the same specs, but may observe other numbers.
        """
        self._handle = None
        if self._source is None:
            self._source = self._new_recipe()
        return self._source

    def _made(self) -> EnvHandle:
        self._closed = False
        if self._handle is None:
            _needs.torch(type(self).__name__)
            self._handle = EnvHandle(self._by_hand())
        return self._handle

    def _by_hand(self) -> Recipe:
        """How this environment is made where it is stepped by hand."""
        return self._recipe()

    def _is_settled(self) -> bool:
        """Whether transforms have all the statistics that the environment is made with."""
        return True

    def _known(self) -> Facts:
        if self._facts is None:
            # To ask for specs estimates no statistics.
            self._facts = Facts(
                self._made() if self._is_settled() else EnvHandle(self._recipe(plain=True))
            )
            self._facts.batch = self._dimensions(self._facts)
        return self._facts

    def _dimensions(self, facts: Facts) -> tuple[int, ...]:
        """The batch size of this environment, of which ``facts`` are known."""
        return facts.batch

    # What it does

    def reset(
        self,
        tensordict: td.TensorDictBase | None = None,
        *,
        seed: int | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> td.TensorDictBase:
        """Begins episodes and gives the root: first observations, and flags that are all False.

        Args:
            tensordict: the root is written to it, and it is given back. Its entry ``"_reset"``
                (bool, ``[*batch, 1]``), which is taken out, names the environments to be reset;
                without it, all are.
            seed: seeds them as :meth:`set_seed` does.
            options: passed to the ``reset`` of an environment of Gymnasium, this time.
                ``reset_options`` of :class:`GymEnv` are for each.

        Raises:
            ValueError: ``options`` are given, and this is no single environment of Gymnasium;
                ``"_reset"`` has another shape.
        """
        if seed is not None:
            self.set_seed(seed)
        if options is not None:
            with self._with_options(options):
                return self.reset(tensordict)
        handle, facts = self._made(), self._known()
        which = list(range(facts.num_envs))
        asked = None if tensordict is None else tensordict.pop("_reset", None)
        if asked is not None:
            if asked.numel() % facts.num_envs:
                raise ValueError(
                    f'"_reset": expected shape {(*facts.batch, 1)}, got {tuple(asked.shape)}'
                )
            asked = asked.reshape(facts.num_envs, -1).any(-1)
            which = asked.nonzero().flatten().tolist()
        seeds: list[int] | list[None] = [None] * len(which)
        if self._seeds is not None and len(which) == facts.num_envs:
            seeds, self._seeds = self._seeds, None
        root = self._tensordict(handle.reset(which, seeds)).exclude(*self.reward_keys)
        self._has_begun = True
        if tensordict is not None and asked is not None:
            root = self._begun(root, tensordict, asked)
        self._seen = root if facts.masks else None
        return root if tensordict is None else tensordict.update(root)

    def _with_options(self, options: Mapping[str, Any]) -> contextlib.AbstractContextManager[None]:
        """A context, in which resets have ``options``."""
        raise ValueError(
            f"resets of {self!r} take no options, those of a GymEnv of one environment do"
        )

    def _begun(
        self, root: td.TensorDictBase, before: td.TensorDictBase, asked: torch.Tensor
    ) -> td.TensorDictBase:
        """``root``, where environments that have not begun as ``asked`` keep their flags and the
        states of policies.
        """
        for key in [*FLAGS, *self._known().primed]:
            kept, begun = before.get(key, None), root.get(key)
            if kept is not None:
                own = asked.reshape((*root.batch_size, *[1] * (begun.ndim - root.ndim))).to(
                    begun.device
                )
                root.set(key, begun.where(own, kept.reshape(begun.shape).to(begun.device)))
        return root

    def step(self, tensordict: td.TensorDictBase) -> td.TensorDictBase:
        """Takes the actions in ``tensordict``, and adds to it what follows as ``"next"``."""
        if not hasattr(tensordict, "get"):
            raise TypeError(f"expected a TensorDict with actions, got {type(tensordict).__name__}")
        handle, facts = self._made(), self._known()
        return self._stepped(
            tensordict,
            handle.step([facts.to_action(tensordict, leaf) for leaf in facts.action]),
            facts.batch,
        )

    def _stepped(
        self, tensordict: td.TensorDictBase, stepped: tuple[Any, ...], batch: tuple[int, ...]
    ) -> td.TensorDictBase:
        """``tensordict`` with ``"next"``: what environments have returned."""
        facts, shape = self._known(), (*batch, 1)
        seen, reward, terminated, truncated = stepped
        ended, cut = (
            torch.tensor(values, device="cpu").reshape(shape) for values in (terminated, truncated)
        )
        following = self._tensordict(seen, (ended | cut, ended, cut), batch)
        if "reward" not in facts.rewards:
            following.set(
                "reward", torch.tensor(reward, dtype=torch.float32, device="cpu").reshape(shape)
            )
        written = tensordict.get("next", None)
        if written is not None:
            # States of the policy, and other entries that it has written.
            known = {
                *following.keys(include_nested=True, leaves_only=True),
                *self.reward_keys,
            } - facts.primed
            following.update(written.exclude(*known))
        tensordict.set("next", following)
        for key, dtype in facts.deltas.items():
            set_delta(tensordict, key, dtype)
        self._seen = following if facts.masks else None
        return tensordict

    def step_and_maybe_reset(
        self, tensordict: td.TensorDictBase
    ) -> tuple[td.TensorDictBase, td.TensorDictBase]:
        """Steps, and gives the root that follows too: ended environments have begun a new episode
        there.
        """
        tensordict = self.step(tensordict)
        following = self.step_mdp(tensordict)
        tensordict = self._compact(tensordict)
        done = following.get("done")
        if not bool(done.any()):
            return tensordict, following
        return tensordict, self.reset(following.clone(False).set("_reset", done))

    def _compact(self, tensordict: td.TensorDictBase) -> td.TensorDictBase:
        """A step without the next observations of which it has a difference."""
        deltas = self._known().deltas
        return (
            tensordict.exclude(*(("next", *path(key)) for key in deltas)) if deltas else tensordict
        )

    def step_mdp(self, next_tensordict: td.TensorDictBase) -> td.TensorDictBase:
        """The root that follows a step, where no episode has ended. It keeps what else a policy has
        written to the root before.
        """
        following = next_tensordict.get("next").select(*self.observation_keys, *FLAGS)
        return next_tensordict.exclude("next", *self.observation_keys, *FLAGS).update(following)

    def rand_action(self, tensordict: td.TensorDictBase | None = None) -> td.TensorDictBase:
        """Adds actions drawn from the action space: legal ones, where the environment observes
        which are.
        """
        facts = self._known()
        root = self._seen if tensordict is None else tensordict
        if tensordict is None:
            tensordict = self._empty()
        noise, actions = torch_noise(), {}
        for leaf in facts.action:
            mask = (
                None
                if root is None or leaf.key not in facts.masks
                else root.get(facts.masks[leaf.key], None)
            )
            drawn = facts.draw_action(
                leaf, noise, None if mask is None else mask.detach().cpu().numpy()
            )
            action = torch.as_tensor(drawn, dtype=Spec(leaf).dtype, device=self.device or "cpu")
            actions[leaf.key] = action.reshape((*facts.batch, *leaf.shape))
        return self._with_actions(tensordict, actions)

    def _with_actions(self, root: td.TensorDictBase, actions: dict[Key, Any]) -> td.TensorDictBase:
        """``root``, to which ``actions`` are added, by the keys of their leaves."""
        facts = self._known()
        for key, action in actions.items():
            if public(key) == key:
                root.set(key, action)
        joined: td.TensorDictBase = with_actions(root, facts.split, len(facts.batch), actions)
        return joined

    def rand_step(self, tensordict: td.TensorDictBase | None = None) -> td.TensorDictBase:
        """Steps with actions drawn from the action space. Without ``tensordict``, it begins
        episodes first where none has begun.
        """
        if tensordict is None:
            # A transform that was added since makes it anew.
            self._made()
            if not self._has_begun:
                self.reset()
        return self.step(self.rand_action(tensordict))

    def rollout(
        self,
        max_steps: int,
        policy: Callable[..., Any] | None = None,
        callback: Callable[[EnvBase, td.TensorDictBase], Any] | None = None,
        *,
        auto_reset: bool = True,
        auto_cast_to_device: bool = False,
        break_when_any_done: bool | None = None,
        break_when_all_done: bool | None = None,
        return_contiguous: bool | None = None,
        tensordict: td.TensorDictBase | None = None,
        set_truncated: bool = False,
        trust_policy: bool = False,
    ) -> td.TensorDictBase:
        """``max_steps`` steps under ``policy``, or fewer where an episode ends: ``[*batch, time]``.

        A module that draws no random numbers runs in Rust, as in a collector, where it can: without
        gradients, in an environment of one action, and without ``callback`` or a first
        ``tensordict``. All else is stepped from Python, with the same result.

        Args:
            policy: called with the root, gives it back with actions; a plain module is called with
                observations, as in a collector. None draws actions at random.
            callback: called with this environment and the root that follows, after each step but
                the last.
            auto_reset: begin with a reset; otherwise with ``tensordict``.
            auto_cast_to_device: call the policy where its parameters are.
            break_when_any_done: end with the first episode that does, which is the default;
                otherwise begin the next one.
            break_when_all_done: of one environment, the same.
            return_contiguous: accepted for TorchRL's sake; the steps are always stacked in memory
                of their own.
            set_truncated: mark the last step as truncated.
            trust_policy: take a plain module for one that maps a TensorDict to a TensorDict.
        """
        max_steps = whole("max_steps", max_steps, 1)
        ends = self._ends(break_when_any_done, break_when_all_done)
        if policy is not None and callback is None and (auto_reset or tensordict is None):
            how = {"ends": ends, "trust": trust_policy, "cast": auto_cast_to_device}
            found, self._engine = _rollouts.rollout(
                self, policy, max_steps, base=EnvBase, known=self._engine, **how
            )
            if found is not None:
                self._has_begun = True
                return self._cut(found) if set_truncated else found
        root = self.reset() if auto_reset or tensordict is None else tensordict
        act = (
            self.rand_action
            if policy is None
            else self._acting(policy, trust_policy, auto_cast_to_device)
        )
        steps: list[Any] = []
        while len(steps) < max_steps:
            root = act(root)
            if ends:
                step = self.step(root)
                root, step = self.step_mdp(step), self._compact(step)
            else:
                step, root = self.step_and_maybe_reset(root)
            steps.append(step)
            if ends and bool(step.get(("next", "done")).any()):
                break
            if callback is not None and len(steps) < max_steps:
                callback(self, root)
        facts = self._known()
        stacked = stacked_steps(steps, len(facts.batch), "time")
        return self._cut(stacked) if set_truncated else stacked

    def _cut(self, steps: td.TensorDictBase) -> td.TensorDictBase:
        """``steps``, the last of which is marked as truncated."""
        last: Any = steps[..., -1].get("next")
        for key in [
            "truncated",
            "done",
            *(flag for flag in self._known().flags if path(flag)[-1] != "terminated"),
        ]:
            last.get(key).fill_(True)
        return steps

    def _ends(self, any_done: bool | None, all_done: bool | None) -> bool:
        """Whether a rollout ends with the first episode that does."""
        if all_done and any_done:
            raise TypeError("break_when_any_done and break_when_all_done: expected one of them")
        if all_done and self._known().num_envs > 1:
            raise ValueError(
                f"break_when_all_done=True: {self._known().num_envs} environments step together, of which none waits for others"
            )
        return bool(all_done) or any_done is not False

    def _acting(
        self, policy: Callable[..., Any], trust: bool, cast: bool
    ) -> Callable[[td.TensorDictBase], td.TensorDictBase]:
        """``policy`` as a function from root to root."""
        call = policy = _predictors.adapted(policy)
        if isinstance(policy, torch.nn.Module):
            if not _arguments.calls_with_tensordict(policy, trust):
                observed = _arguments.read_by(
                    policy, trust, self.observation_keys, self._known().info
                )
                places = _arguments.arguments_of(policy, observed)

                def call(root: td.TensorDictBase) -> td.TensorDictBase:
                    inputs = [root.get(key) for key in observed]
                    answer = policy(*(_arguments.placed(place, inputs) for place in places))
                    outputs = _answers.named(answer, self.action_keys)
                    values = answer if isinstance(answer, tuple) else (answer,)
                    # Steps before this one keep their groups of actions.
                    return root.copy().update(
                        dict(zip(self.action_keys, values)) if outputs is None else outputs
                    )

        parameter = (
            next(policy.parameters(), None)
            if cast and isinstance(policy, torch.nn.Module)
            else None
        )
        if parameter is None:
            return call
        return lambda root: call(root.to(parameter.device)).to(self.device or "cpu")

    def set_seed(self, seed: int, static_seed: bool = False) -> int:
        """Seeds environment ``i`` with ``seed + i`` at the next reset, or all with ``seed`` when
        ``static_seed``.

        Returns:
            The last seed that was given.

        Raises:
            TypeError: the seed is not a whole number.
            ValueError: it is negative.
        """
        seed, number = whole("seed", seed, 0), self._known().num_envs
        self._seeds = [seed if static_seed else seed + env for env in range(number)]
        return self._seeds[-1]

    def _take_seed(self) -> int | None:
        """The seed of the first environment, for a collector; this environment keeps none. None
        without a seed.
        """
        seeds, self._seeds = self._seeds, None
        return None if seeds is None else seeds[0]

    def fake_tensordict(self) -> td.TensorDictBase:
        """One step of zeros, with all keys, shapes and element types."""
        fake, following = (self._specs_of("observation").zero() for _ in range(2))
        for part, root in (("done", fake), ("done", following), ("reward", following)):
            for key, spec in self._specs_of(part).leaves():
                root.set(key, spec.zero())
        facts = self._known()
        fake = self._with_actions(
            fake, {leaf.key: Spec(leaf, facts.batch, self._device).zero() for leaf in facts.action}
        )
        fake.set("next", following)
        for key, dtype in facts.deltas.items():
            set_delta(fake, key, dtype)
        return self._compact(fake)

    def add_truncated_keys(self) -> EnvBase:
        """This environment: there is a ``"truncated"`` beside ``"done"`` in any case."""
        return self

    def append_transform(self, transform: AnyTransform) -> EnvBase:
        """This environment with ``transform`` around it."""
        transformed: EnvBase = _transform.TransformedEnv(self, transform)
        return transformed

    def apply(self, fn: Callable[[Any], Any]) -> EnvBase:
        """Calls ``fn`` with each transform, and with this environment last."""
        fn(self)
        return self

    def any_done(self, tensordict: td.TensorDictBase) -> bool:
        """Whether an episode ends in ``tensordict``, which then gets an entry ``"_reset"``."""
        done = tensordict.get("done")
        if bool(done.any()):
            tensordict.set("_reset", done.clone())
        return bool(done.any())

    def maybe_reset(self, tensordict: td.TensorDictBase) -> td.TensorDictBase:
        """The root ``tensordict``, in which ended environments have begun a new episode."""
        return self.reset(tensordict) if self.any_done(tensordict) else tensordict

    def empty_cache(self) -> None:
        """Nothing: specs follow the transforms in any case."""

    #: Specs are made anew for each who asks.
    is_spec_locked = True

    def set_spec_lock_(self, mode: bool = True) -> EnvBase:
        """This environment: its specs cannot be changed in any case."""
        return self

    def check_env_specs(
        self,
        return_contiguous: bool | None = None,
        check_dtype: bool = True,
        seed: int | None = None,
        tensordict: td.TensorDictBase | None = None,
        break_when_any_done: bool | str | None = None,
    ) -> None:
        """Checks that this environment does what its specs promise, as the function
        :func:`check_env_specs`, whose arguments these are, does.
        """
        checked(self, 100, seed or 0)

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

    def to(self, device: Device | None) -> EnvBase:
        """Puts tensors on ``device`` from now on."""
        self._device = device
        return self

    def train(self, mode: bool = True) -> EnvBase:
        """Nothing changes: there is no other mode."""
        return self

    def eval(self) -> EnvBase:
        """The same as :meth:`train`."""
        return self.train(False)

    def close(self, *, raise_if_closed: bool = True) -> None:
        """Releases the environment; it is made again when it is used again. ``raise_if_closed`` is
        accepted for TorchRL's sake: it may be closed more than once.
        """
        self._handle, self._closed = None, True

    def __del__(self) -> None:
        # Before the garbage collector takes apart what is behind it and refers to it: it is closed
        # while it is whole.
        self._handle = None

    @property
    def is_closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    def __enter__(self) -> EnvBase:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise _fence.lacking(self, name)

    def __getstate__(self) -> dict[str, Any]:
        return {
            **self.__dict__,
            "_held": None,
            "_engine": None,
            "_has_begun": False,
            "_source": None,
            "_facts": None,
            "_seen": None,
        }

    # Tensors

    def _empty(self, batch: tuple[int, ...] | None = None) -> td.TensorDictBase:
        return td.TensorDict(
            {}, batch_size=self._known().batch if batch is None else batch, device=self.device
        )

    def _tensordict(
        self,
        seen: list[Any],
        flags: Sequence[Any] | None = None,
        batch: tuple[int, ...] | None = None,
    ) -> td.TensorDictBase:
        """What was observed, and the ``flags``, which are False unless given; by all environments,
        or by as many as ``batch`` has.
        """
        facts, root = self._known(), self._empty(batch)
        batch = tuple(root.batch_size)
        values = []
        for leaf, array in zip(facts.observation, seen, strict=True):
            if leaf.dtype == "bytes":
                values.append((path(leaf.key), (*batch, *leaf.shape), array))
                continue
            tensor = torch.from_numpy(array)
            root.set(leaf.key, tensor.reshape((*batch, *tensor.shape[1:])))
        for key, size in facts.groups.items():
            group = root.get(key, None)
            if group is not None:
                group.batch_size = (*batch, *size)
        for name, flag in zip(
            FLAGS,
            flags or [torch.zeros((*batch, 1), dtype=torch.bool, device="cpu") for _ in FLAGS],
            strict=True,
        ):
            root.set(name, flag)
        return with_values(root, values, own_codec()) if values else root


class Wrapped(EnvBase):
    """An environment of another library, an id, a function that makes an environment, or a
    recipe.
    """

    def __init__(self, env: object) -> None:
        super().__init__()
        self._env = env

    def _new_recipe(self) -> Recipe:
        return of(self._env)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or not _fence.is_a(vars(self).get("_env"), "EnvBase"):
            raise _fence.lacking(self, name)
        return getattr(self._env, name)

    def __repr__(self) -> str:
        return repr(self._env)
