"""Vectors of Gymnasium's environments in worker processes, a group of them in each.

A process has a :class:`PythonVector`, which begins episodes by itself. To the engine it is a
:class:`Group`: a vector that is stepped as a whole and never told to begin another episode.
Observations that are one array travel through shared memory, and so do rewards, in full precision,
and flags; notes and all other observations are pickled beside them, where there are any.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate

from windrow._windrow import ParallelMembers, VectorCore
from windrow.envs._convert import Gift
from windrow.envs._recipe import Many, Parallel, Recipe, Vector
from windrow.processes import setup
from windrow.processes.pickling import Door, dumps
from windrow.processes.proxy import Remote
from windrow.vectors._base import (
    Notes,
    Stepped,
    closed_before,
    columns_in,
    columns_of,
    refuse_unlike,
    with_masks,
)
from windrow.vectors._exchange import Exchange, Fold
from windrow.vectors._losses import LOST, Known, Losses
from windrow.vectors._python import PythonVector

#: Element types that the engine has in rows.
_ROWS = {"bool", "int8", "uint8", "int16", "int32", "int64", "float32", "float64"}
#: Entries of ``info`` between the processes.
_REWARD, _NOTE = "windrow reward", "windrow note"
# A reward is an array of one, which is read as it lies.
_ENTRIES = ((_REWARD, "float64", (1,)), (_NOTE, "bytes", ()))


#: What travels in the place of values that do not.
_NOTHING = spaces.Box(0, 1, (1,), np.uint8)


def is_array(space: Any) -> bool:
    """Whether values of ``space`` travel through shared memory, as one array."""
    if type(space) is spaces.Discrete:
        return int(space.start) == 0 and space.dtype == np.int64
    if type(space) is spaces.MultiDiscrete:
        # The engine has choices in a row.
        return len(space.shape) == 1 and space.dtype == np.int64 and not space.start.any()
    return type(space) is spaces.MultiBinary or (
        type(space) is spaces.Box and space.dtype.name in _ROWS and len(space.shape) > 0
    )


class Group(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """The environments of a process."""

    metadata = {"autoreset_mode": AutoresetMode.DISABLED}
    #: See :func:`windrow.envs._vectors.habits`.
    _is_as_gymnasiums = True

    def __init__(
        self,
        makers: Sequence[Callable[[], Any]],
        mode: AutoresetMode,
        wrap: Callable[[Any], Any] | None,
        first: int,
        on_loss: Literal["raise"] | int,
    ) -> None:
        self._inner = inner = PythonVector(makers, mode, wrap, first=first, on_loss=on_loss)
        inner._in_worker = f", in worker {first // inner.num_envs}, a process of its own"
        self.num_envs, self.spec = inner.num_envs, inner.envs[0].spec
        self._is_array = is_array(inner.single_observation_space)
        self.single_observation_space = (
            inner.single_observation_space if self._is_array else _NOTHING
        )
        self._takes_array = is_array(inner.single_action_space)
        self.single_action_space = inner.single_action_space if self._takes_array else _NOTHING
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self._nothing = create_empty_array(self.single_observation_space, self.num_envs)
        #: Of the next reset, and those of the next step that are no array.
        self.options: dict[str, Any] | None = None
        self.actions: Any = None
        # The engine closes it in the end.
        self._given_away = Vector(Gift(self), False, False, _ENTRIES)

    def _recipe(self) -> Recipe:
        return self._given_away

    def reset(
        self, *, seed: Any = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        envs, _ = self._inner._masked(options)
        seeds = self._inner._seeds(seed)
        try:
            seen, notes = self._inner._begin(envs, [seeds[env] for env in envs], self.options)
        finally:
            self.options = None
        return self._told(envs[0], seen, np.zeros(self.num_envs), notes)

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        seen, rewards, terminated, truncated, notes = self._inner._stepped(
            actions if self._takes_array else self.actions
        )
        observation, info = self._told(0, seen, rewards, notes)
        return observation, rewards, terminated, truncated, info

    def _told(
        self, place: int, seen: Any, rewards: Any, notes: Notes
    ) -> tuple[Any, dict[str, Any]]:
        """The observation, and what travels in ``info``: of all environments in the ``place`` of
        one.
        """
        note: list[list[bytes] | None] = [None] * self.num_envs
        if (packed := self._noted(notes)) is not None:
            note[place] = [packed]
        return seen if self._is_array else self._nothing, {_REWARD: rewards[:, None], _NOTE: note}

    def _noted(self, notes: Notes) -> bytes | None:
        """Notes as they travel: numbers that all environments have as
        :class:`~windrow.vectors._base.Columns`, anything else pickled.
        """
        if not self._is_array:
            return _bytes((notes, self._inner._seen, self._inner.losses.of(0)))
        if not any(info for _, info in notes):
            return None
        if (found := columns_of(notes, self.num_envs)) is None:
            return _bytes((notes, None, self._inner.losses.of(0)))
        columns, packed = found
        return columns.head + packed

    # Called from the process that the vector is in

    def about(self) -> tuple[Any, ...]:
        """Spaces, metadata and the mode of rendering."""
        inner = self._inner
        return (
            inner.single_observation_space,
            inner.single_action_space,
            inner.metadata,
            inner.render_mode,
        )

    def do(self, what: str, *arguments: Any) -> Any:
        """Calls a method of the vector in this process."""
        return getattr(self._inner, what)(*arguments)

    def begin_anew(self, options: dict[str, Any] | None) -> tuple[list[Any], Notes, Known | None]:
        """Begins the first episode of each environment: what each observes, notes, and losses."""
        inner = self._inner
        notes = [(env, inner._first(env, None, options)) for env in range(self.num_envs)]
        inner._over[:] = False
        return inner._seen, notes, inner.losses.of(0)

    def take_options(self, options: dict[str, Any] | None) -> None:
        """Takes the options of the next reset."""
        self.options = options

    def take_actions(self, actions: Sequence[Any]) -> None:
        """Takes the actions of the next step, one for each environment."""
        space: Any = self._inner.single_action_space
        into: Any = create_empty_array(space, self.num_envs)
        self.actions = concatenate(space, actions, into)

    def close_extras(self, **kwargs: object) -> None:
        self._inner.close()


def _bytes(value: object) -> bytes:
    """``value`` for the other process: by plain pickle, which is faster, where that can."""
    try:
        return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    except Exception:
        return dumps(value)


class Starter:
    """Makes the group of a process, of functions by the numbers of their environments."""

    #: See :func:`windrow.processes.blame.parts`.
    is_around_a_function = True

    def __init__(
        self,
        makers: dict[int, Callable[[], Any]],
        mode: AutoresetMode,
        wrap: Callable[[Any], Any] | None,
        on_loss: Literal["raise"] | int,
    ) -> None:
        self._makers, self._mode, self._wrap, self._on_loss = makers, mode, wrap, on_loss

    def __call__(self) -> Group:
        return Group(
            list(self._makers.values()), self._mode, self._wrap, min(self._makers), self._on_loss
        )


class ProcessVector(Exchange):
    """Environments of Gymnasium in worker processes."""

    def __init__(
        self,
        sent: Sequence[bytes],
        mode: AutoresetMode,
        form: str,
        each: int,
        batch: int | None,
        losses: tuple[Literal["raise"] | int, float | None],
    ) -> None:
        on_loss, step_timeout = losses
        # Those that are received some at a time are started and stepped each by itself.
        parts = [sent] if batch is None else [[one] for one in sent]
        self._members = [ParallelMembers() for _ in parts]
        nothing = Many(())
        recipes = [
            Parallel(
                (nothing,) * len(part),
                sent=tuple(part),
                live=live,
                patient=batch is not None,
                step_timeout=step_timeout,
                outlives=True,
                first=number,
            )
            for number, (part, live) in enumerate(zip(parts, self._members, strict=True))
        ]
        self._core = VectorCore(
            recipes,
            AutoresetMode.DISABLED.value,
            None if batch is None else len(sent),
            batch is not None,
        )
        places = [
            (live, place)
            for live, part in zip(self._members, parts, strict=True)
            for place in range(len(part))
        ]
        self._places = places
        self._remotes: list[Any] = [Remote(live, place) for live, place in places]
        self._losses = Losses(on_loss, each * len(sent), each)
        observed, acted, metadata, render_mode = self._remotes[0].about()
        try:
            for member, remote in enumerate(self._remotes):
                refuse_unlike(member * each, (observed, acted), remote.about()[:2])
        except BaseException:
            self.close_extras()
            raise
        super().__init__(each * len(sent), observed, acted, mode, metadata, form)
        self.render_mode, self._each = render_mode, each
        self._exchange(batch)
        self._is_array, self._takes_array = is_array(observed), is_array(acted)
        leaves = [leaf[0] for leaf in self._core.describe()["observation"]]
        self._reward, self._note = leaves.index(_REWARD), leaves.index(_NOTE)
        self._seen: list[Any] = [None] * self.num_envs
        #: The last observations, as one array; only if lost environments are replaced.
        self._last: np.ndarray | None = None

    def _begin(
        self, envs: list[int], seeds: list[int | None], options: dict[str, Any] | None
    ) -> tuple[Any, Notes]:
        self._losses.begin(envs, seeds)
        if options is not None:
            for member in sorted({env // self._each for env in envs}):
                self._give(member, "take_options", options)
        seen = self._core.reset(envs, seeds)
        observed = seen[0]
        if self._last is not None:
            others = np.setdiff1d(np.arange(self.num_envs), envs)
            # The engine's rows lack what `_begun_anew` has written since the last step.
            observed[others] = self._last[others]
        # The others have told theirs before.
        notes = self._notes([seen[self._note][env] for env in envs], envs)
        every = range(self.num_envs)
        begun = sorted({env // self._each for env in envs})
        # The episodes of others that have ended are cut by the next step.
        lost = self._lost(begun) if any(map(self._is_gone, begun)) else {}
        for member, reason in lost.items():
            anew = self._begun_anew(member, observed, every, options)
            notes += [(env, {**info, LOST: reason}) for env, info in anew]
        self._keep(every, observed)
        return self._observation(observed), notes

    # Losses

    def _give(self, member: int, take: str, value: object) -> None:
        """Gives ``member`` what belongs to its next command, which finds out if its process has
        ended.
        """
        try:
            getattr(self._remotes[member], take)(value)
        except RuntimeError:
            if not self._is_gone(member):
                raise

    def _is_gone(self, member: int) -> bool:
        """True where the process of ``member`` has ended."""
        live, place = self._places[member]
        return live.pids()[place] is None

    def _lost(self, members: Sequence[int]) -> dict[int, str]:
        """Workers among ``members``, and those that are stepped with them, whose processes have
        ended, each with the reason; others are in their places now.

        Raises:
            WorkerError: a worker has used up its replacements, or a replacement failed.
        """
        # Others may be in the middle of a step, and have no row here.
        places = [(member, *self._places[member]) for member in members]
        lost: dict[int, str] = {}
        for first, live in {member - place: live for member, live, place in places}.items():
            lost |= {first + ended: reason for ended, reason in live.take_losses()}
        self._put_others(lost)
        return lost

    def _put_others(self, lost: dict[int, str]) -> None:
        seeds = {}
        for member, reason in lost.items():
            if self._losses.left(member) <= 0:
                raise self._losses.error(member, reason)
            live, place = self._places[member]
            envs = range(member * self._each, (member + 1) * self._each)
            seeds[member] = self._losses.replace(member, envs)
            try:
                live.replace(place)
            except Exception as error:
                why = f"{reason}; the process in its place failed: {error}"
                raise self._losses.error(member, why) from error
        # Nobody can be called before each has a process again.
        for member in lost:
            self._remotes[member].do("take_over", seeds[member], self._losses.of(member))

    def _begun_anew(
        self,
        member: int,
        observed: Any,
        envs: Sequence[int],
        options: dict[str, Any] | None = None,
    ) -> Notes:
        """Has the new environments of ``member`` begin, whose rows are those of ``envs``: notes."""
        first = member * self._each
        while True:
            try:
                seen, notes, known = self._remotes[member].begin_anew(options)
                break
            except RuntimeError:
                # If the process still runs, an environment has raised the exception.
                again = dict(self._places[member][0].take_losses())
                if not again:
                    raise
                self._put_others({member: again[self._places[member][1]]})
        self._losses.take_over(member, known)
        for env, one in enumerate(seen, first):
            if self._is_array:
                observed[envs.index(env)] = one
            else:
                self._seen[env] = one
        return [(first + number, info) for number, info in notes]

    def _with_losses(
        self, envs: Sequence[int], seen: Sequence[Any], terminated: Any, truncated: Any
    ) -> Notes:
        """Writes the rows of environments that were lost in a step of ``envs``. Returns their
        notes.
        """
        notes: Notes = []
        ended = terminated | truncated
        # Rows of lost ones are truncated.
        cut = np.flatnonzero(truncated).tolist()
        members = sorted({envs[row] // self._each for row in cut})
        for member, reason in self._lost(members).items():
            for env in range(member * self._each, (member + 1) * self._each):
                ended[envs.index(env)] = False
                last = self._seen[env]
                if self._is_array and self._last is not None:
                    last = seen[0][envs.index(env)] = self._last[env]
                if self.autoreset_mode is AutoresetMode.SAME_STEP:
                    notes.append(
                        (
                            env,
                            {
                                "final_obs": np.copy(last) if self._is_array else last,
                                "final_info": {LOST: reason},
                            },
                        )
                    )
                else:
                    notes.append((env, {LOST: reason}))
            if self.autoreset_mode is AutoresetMode.SAME_STEP:
                notes += self._begun_anew(member, seen[0], envs)
        if self._losses.budget is not None:
            self._losses.end(envs, ended)
        self._keep(envs, seen[0])
        return notes

    def _keep(self, envs: Sequence[int], observed: Any) -> None:
        if self._losses.budget is None or not self._is_array:
            return
        if self._last is None:
            self._last = np.zeros((self.num_envs, *observed.shape[1:]), observed.dtype)
        self._last[envs] = observed

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Steps all environments."""
        if self.closed:
            raise closed_before("step")
        seen, terminated, truncated, lost = self._step(actions)
        # Observations that are no array come with the notes.
        pickled = seen[self._note]
        infos = (
            self._told(self._notes(pickled, range(self.num_envs)) + lost)
            if lost
            else self._infos(pickled)
        )
        return self._observation(seen[0]), seen[self._reward][:, 0], terminated, truncated, infos

    def _infos(self, pickled: Sequence[bytes]) -> dict[str, Any]:
        """``info`` of a step: arrays are joined, where all groups have the same."""
        if not any(pickled):
            return {}
        if not self._is_array:
            return self._told(self._notes(pickled, range(self.num_envs)))
        groups = pickled[:: self._each]
        columns = columns_in(groups[0])
        if columns is None or not all(note.startswith(columns.head) for note in groups):
            return self._told(self._notes(pickled, range(self.num_envs)))
        return with_masks(columns.arrays(groups, len(columns.head)), self.num_envs)

    def _stepped(self, actions: Any) -> Stepped:
        seen, terminated, truncated, lost = self._step(actions)
        notes = self._notes(seen[self._note], range(self.num_envs)) + lost
        return self._observation(seen[0]), seen[self._reward][:, 0], terminated, truncated, notes

    def _step(self, actions: Any) -> tuple[Any, Any, Any, Notes]:
        rows = (
            actions
            if self._takes_array
            else self._pickled(range(len(self._remotes)), list(iterate(self.action_space, actions)))
        )
        seen, _, terminated, truncated, _ = self._core.step((rows,))
        return (
            seen,
            terminated,
            truncated,
            self._with_losses(range(self.num_envs), seen, terminated, truncated),
        )

    def _pickled(self, members: Sequence[int], actions: Sequence[Any]) -> object:
        """Gives ``members`` actions that are no array, and returns what travels in their place."""
        for place, member in enumerate(members):
            own = actions[place * self._each : (place + 1) * self._each]
            self._give(member, "take_actions", own)
        return np.zeros((self.num_envs, 1), np.uint8)

    def _rows_of(self, members: list[int], actions: Any) -> object:
        return (
            super()._rows_of(members, actions)
            if self._takes_array
            else self._pickled(members, list(actions))
        )

    def _received(self, envs: Any, stepped: Any) -> tuple[Any, ...]:
        seen, _, terminated, truncated, _ = stepped
        lost = self._with_losses(envs.tolist(), seen, terminated, truncated)
        notes = self._notes(seen[self._note], envs) + lost
        rows = {env: row for row, env in enumerate(envs.tolist())}
        infos = Fold(len(envs)).of([(rows[env], info) for env, info in notes])
        observation = seen[0] if self._is_array else self._rows(None, envs)
        return observation, seen[self._reward][:, 0], terminated, truncated, infos

    def _notes(self, pickled: Sequence[bytes], envs: Sequence[int]) -> Notes:
        notes: Notes = []
        for env, note in zip(envs, pickled, strict=True):
            if note:
                first = env - env % self._each
                if (columns := columns_in(note)) is not None:
                    notes += enumerate(columns.infos(note, len(columns.head)), first)
                    continue
                said, seen, known = pickle.loads(note)
                notes += [(first + number, info) for number, info in said]
                # Losses within the process.
                self._losses.take_over(env // self._each, known)
                if seen is not None:
                    self._seen[first : first + self._each] = seen
        return notes

    def _observation(self, array: Any) -> object:
        return array if self._is_array else self._rows(array, range(self.num_envs))

    def _rows(self, seen: Any, envs: Any) -> object:
        if self._is_array:
            return seen[envs]
        space, rows = self.single_observation_space, [self._seen[env] for env in envs]
        into: Any = create_empty_array(space, len(rows))
        return concatenate(space, rows, into)

    def _called(
        self,
        envs: Sequence[int],
        name: str,
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> list[Any]:
        return self._from_members("_called", envs, lambda rows: (name, args, kwargs))

    def _set(self, envs: Sequence[int], name: str, values: Sequence[Any]) -> None:
        self._from_members("_set", envs, lambda rows: (name, [values[row] for row in rows]))

    def _are_wrapped(self, envs: Sequence[int], wrapper: type) -> list[bool]:
        return self._from_members("_are_wrapped", envs, lambda rows: (wrapper,))

    def _from_members(
        self, what: str, envs: Sequence[int], arguments: Callable[[list[int]], tuple[Any, ...]]
    ) -> list[Any]:
        """What a method of the vectors in the processes answers for each of ``envs``."""
        found: list[Any] = [None] * len(envs)
        for member, remote in enumerate(self._remotes):
            rows = [row for row, env in enumerate(envs) if env // self._each == member]
            if rows:
                own = [envs[row] - member * self._each for row in rows]
                try:
                    answers = remote.do(what, own, *arguments(rows))
                except RuntimeError as error:
                    if not self._is_gone(member):
                        raise
                    raise self._losses.error(member, self._after_end(member)) from error
                for row, answer in zip(rows, answers or [None] * len(rows), strict=True):
                    found[row] = answer
        return found

    def _after_end(self, member: int) -> str:
        """Says that the process of ``member`` has ended, and the way out."""
        if self._losses.left(member) > 0:
            return (
                "its process has ended: the next step or reset replaces it, call again after that"
            )
        return "its process has ended: close these environments and make others"

    def close_extras(self, **kwargs: object) -> None:
        """Ends the processes, which close their environments."""
        for live in self._members:
            live.close()
        self._core.close()


def sent(
    makers: Sequence[Callable[[], Any]],
    mode: AutoresetMode,
    wrap: Callable[[Any], Any] | None,
    members: int,
    on_loss: Literal["raise"] | int,
) -> list[bytes]:
    """Groups of the environments that ``makers`` make, for as many processes as there are
    ``members``.
    """
    each, numbered = len(makers) // members, list(enumerate(makers))
    starters = [
        Starter(dict(numbered[first : first + each]), mode, wrap, on_loss)
        for first in range(0, len(makers), each)
    ]
    door = Door("make_vec", instead="leave workers out", env="env")
    return [setup.member(one, None, door, is_quiet=place > 0) for place, one in enumerate(starters)]
