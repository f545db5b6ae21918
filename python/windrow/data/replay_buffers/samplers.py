"""Samplers. Their classes declare arguments; the engine draws frames."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from windrow._arguments import argument, ignored, one_of, warn_ignored
from windrow._keys import path
from windrow._lazy import torch
from windrow._numbers import at_least, real, share
from windrow.data._part import Key, Part

if TYPE_CHECKING:
    from windrow._windrow import ReplayBufferCore

__all__ = [
    "ConsumingSampler",
    "HERSampler",
    "PrioritizedSampler",
    "PrioritizedSliceSampler",
    "RandomSampler",
    "SamplerWithoutReplacement",
    "SliceSampler",
    "SliceSamplerWithoutReplacement",
]


class Sampler(Part):
    """Chooses the frames of a batch."""

    #: Whether it draws frames by their priorities.
    has_priorities: ClassVar[bool] = False
    #: Whether :meth:`_changed` changes samples.
    _changes_samples: ClassVar[bool] = False
    #: The class that ``replacement=False`` makes in the place of this one; of itself, this one.
    _without: ClassVar["type[Sampler] | None"] = None

    def __new__(cls, *args: Any, **arguments: Any) -> Any:
        without = vars(cls).get("_without")
        if arguments.pop("replacement", True) or without is cls:
            return super().__new__(cls)
        if without is None:
            raise TypeError(
                f"{cls.__name__} draws with replacement alone, got replacement=False: RandomSampler and SliceSampler take it"
            )
        return without(*args, **arguments)

    def _changed(self, batch: Any, info: Any, count: int) -> tuple[Any, Any]:
        """The sample of ``count`` frames that the frames which were drawn become, and the entries
        that the sampler adds.
        """
        return batch, info

    def _follow(self, core: "ReplayBufferCore") -> None:
        """Takes what the buffer ``core`` has loaded."""


def _replacement(without: str) -> Any:
    return argument(f"False makes a {without} of the other arguments", default=True)


class RandomSampler(Sampler, kind="RandomSampler"):
    """Draws all frames with the same probability, with replacement."""

    replacement: bool = _replacement("SamplerWithoutReplacement")


class ConsumingSampler(Sampler, kind="ConsumingSampler"):
    """Draws all frames with the same probability, and each at most ``max_sample_count`` times: the
    buffer then gives it up, and writes its row before others lose their frames. No batch has a
    frame twice, and one larger than the buffer is short.
    """

    max_sample_count: int = argument(
        "how often a frame is drawn", default=1, kw_only=False, check=at_least(1)
    )


class SamplerWithoutReplacement(Sampler, kind="SamplerWithoutReplacement"):
    """Draws every frame once before any comes again: iteration over the buffer ends when each had
    its turn.
    """

    drop_last: bool = argument(
        "leave out frames that do not fill a last batch", default=False, kw_only=False
    )
    shuffle: bool = argument(
        "draw in random order, not in that of the buffer", default=True, kw_only=False
    )


RandomSampler._without = SamplerWithoutReplacement


class SliceSampler(Sampler, kind="SliceSampler"):
    """Draws pieces of trajectories, end to end. No piece crosses the end of its trajectory.

    Either ``num_slices`` or ``slice_len`` is needed.

    Raises:
        TypeError: both ``num_slices`` and ``slice_len`` are given, or neither is, or an argument is
            unknown.
        RuntimeError: both ``end_key`` and ``end_keys`` are given.
        ValueError: arguments contradict each other.

    Example:
        >>> from windrow.collectors import Collector
        >>> from windrow.data import LazyTensorStorage, ReplayBuffer, SliceSampler
        >>> buffer = ReplayBuffer(storage=LazyTensorStorage(1000), sampler=SliceSampler(slice_len=4), batch_size=32)
        >>> for _ in Collector("CartPole-v1", frames_per_batch=500, total_frames=500, replay_buffer=buffer):
        ...     pieces = buffer.sample().reshape(8, 4)
    """

    num_slices: int | None = argument("pieces in a batch", default=None, check=at_least(1))
    slice_len: int | None = argument("frames of each piece", default=None, check=at_least(1))
    replacement: bool = _replacement("SliceSamplerWithoutReplacement")
    end_key: Key | None = argument(
        'the flag that ends an episode; None stands for ("next", "done")', default=None
    )
    end_keys: list[Key] | None = argument("the same as a list of one key", default=None)
    traj_key: Key | None = argument(
        "the id of the trajectory",
        more='None stands for ("collector", "traj_ids") or, where there is none, "episode"',
        default=None,
    )
    truncated_key: Key | None = argument(
        "the flag that is set with the last frame of each piece; None leaves flags as they are",
        default=("next", "truncated"),
    )
    strict_length: bool = argument(
        "draw only from trajectories as long as a piece; otherwise shorter ones come whole",
        default=True,
    )
    pad_output: bool = argument(
        "fill short pieces up by repeating their last frame",
        more='the entry ("collector", "mask") says which',
        default=False,
    )
    span: bool | int | Sequence[bool | int] = argument(
        "how many steps a piece may begin before its trajectory, or end behind it",
        more="True for all but one, a number, or one of these for each side",
        default=False,
    )
    stride: int = argument(
        "steps from one place where a piece may begin to the next",
        more="counted from the oldest frame that is left of the trajectory or, with a span, from as many steps before it",
        default=1,
        check=at_least(1),
    )
    burn_in: int = argument(
        "frames at the start of each piece that only warm up the state of a recurrent policy",
        more='the entry ("collector", "burn_in") says which. Of a piece that begins before its trajectory, as with span=(burn_in, 0), those '
        "count that lie before: so the first frames of trajectories are learned from, too",
        default=0,
        check=at_least(0),
    )
    cache_values: bool = argument(
        "the buffer always keeps the ends of trajectories, whatever is given", default=False
    )
    compile: object = ignored("nothing is compiled", default=False)
    use_gpu: object = ignored("slices are chosen on the CPU", default=False)
    trajectories: object = ignored(
        "trajectories are told apart by entries of the frames", default=None
    )
    ends: object = ignored("trajectories are told apart by entries of the frames", default=None)
    init_key: Key = ignored('the entry is "is_init"', default="is_init")
    step_key: Key | None = ignored(
        "trajectories are told apart by their ids and ends", default=None
    )
    fragmented: bool = ignored(
        "pieces of a trajectory that were written apart count as several", default=False
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.num_slices is None) == (self.slice_len is None):
            got = "neither" if self.num_slices is None else "both"
            raise TypeError(f"expected either num_slices or slice_len, got {got}")
        if self.end_keys is not None and self.end_key is not None:
            raise RuntimeError("end_key and end_keys: expected one of them")
        if self.end_keys is not None and len(self.end_keys) != 1:
            raise ValueError(f"end_keys must have one entry, got {len(self.end_keys)}")
        if self.pad_output and self.strict_length:
            raise ValueError(
                "pad_output=True needs strict_length=False, got strict_length=True: only short pieces are filled up"
            )

    def _options(self) -> dict[str, Any]:
        sides = self.span if isinstance(self.span, (list, tuple)) else (self.span, self.span)
        span = tuple(None if side is True else int(side) for side in sides)
        return {
            **super()._options(),
            "end_key": self.end_keys[0] if self.end_keys else self.end_key,
            "span": span,
        }


class SliceSamplerWithoutReplacement(SliceSampler, kind="SliceSamplerWithoutReplacement"):
    """Draws pieces of trajectories, one of every trajectory before any has another.

    Trajectories that are written meanwhile take part in a pass, and overwritten ones leave it. No
    batch has two pieces of one trajectory: with fewer trajectories than pieces in a batch, the
    batch is shorter. Pieces begin at random places of their trajectories. Iteration over the buffer
    ends with the pass.
    """

    drop_last: bool = argument(
        "leave out trajectories at the end of a pass that do not fill a last batch", default=False
    )
    shuffle: bool = argument(
        "draw trajectories in random order, not in that in which they were written", default=True
    )


SliceSampler._without = SliceSamplerWithoutReplacement._without = SliceSamplerWithoutReplacement


def function_of_sample(name: str, value: Any) -> Any:
    """``value``, if it can be called."""
    if not callable(value):
        raise TypeError(f"{name} must be a function of a sample, got {value!r}")
    return value


class HERSampler(Sampler, kind="HERSampler"):
    """Draws all frames with the same probability, and gives a share of each sample the goals that
    its trajectories reached later: hindsight experience replay.

    The desired goal of such a frame, at the root and under ``"next"``, becomes the goal that
    another frame has achieved by its step, and its reward is what ``reward_fn`` returns; flags of
    ends stay as they are. These frames are the first of a sample. Goals come from the same draw as
    frames, so that a collector can write meanwhile.

    Raises:
        TypeError: ``reward_fn`` is no function.
        ValueError: the strategy is unknown, or the share is none.

    Example:
        >>> import torch
        >>> from windrow.data import HERSampler, ReplayBuffer
        >>> def reward(frames):
        ...     return -(frames["next", "achieved_goal"] - frames["desired_goal"]).norm(dim=-1, keepdim=True)
        >>> ReplayBuffer(sampler=HERSampler(reward, her_ratio=0.8), batch_size=256)
        ReplayBuffer(0 frames, ...)
    """

    _changes_samples: ClassVar[bool] = True
    #: Where the goals that were achieved are read.
    _achieved_in: ClassVar[tuple[str, ...]] = ("next",)

    reward_fn: Any = argument(
        "takes the frames with new goals, and returns a reward for each",
        kw_only=False,
        check=function_of_sample,
    )
    her_ratio: float = argument("share of a sample that gets new goals", default=0.8, check=share)
    strategy: str = argument(
        'frames that goals are taken from: "future", "final", "episode" or "random"',
        more='``"future"`` takes a frame of the same trajectory that does not come before, ``"final"`` the last one that is there, '
        '``"episode"`` any one of the trajectory, and ``"random"`` any one of the buffer',
        default="future",
        check=one_of("future", "final", "episode", "random"),
    )
    goal_key: Key = argument("the goal that is desired", default="desired_goal")
    achieved_goal_key: Key = argument(
        "the goal that is achieved, of which that under next is taken", default="achieved_goal"
    )
    reward_key: Key = argument("the reward", default=("next", "reward"))
    end_key: Key | None = argument(
        'the flag that ends an episode; None stands for ("next", "done")', default=None
    )
    traj_key: Key | None = argument(
        "the id of the trajectory", more="None stands for the same as in SliceSampler", default=None
    )

    def _changed(self, batch: Any, info: Any, count: int) -> tuple[Any, Any]:
        # The goals of the first ones lie behind the frames.
        frames, goals = batch[:count], batch[count:]
        new, goal = frames[: len(goals)], path(self.goal_key)
        if len(goals):
            achieved = goals[(*self._achieved_in, *path(self.achieved_goal_key))]
            for key in (goal, ("next", *goal)):
                if key == goal or key in frames.keys(True):
                    new[key].copy_(achieved)
            old = new[self.reward_key]
            reward = torch.as_tensor(self.reward_fn(new.clone(recurse=False)))
            if reward.numel() != old.numel():
                raise ValueError(
                    f"reward_fn must return a reward for each of {len(new)} frames, {list(old.shape)}, got {list(reward.shape)}"
                )
            old.copy_(reward.detach().reshape(old.shape))
        return frames, info[:count]


class PrioritizedSampler(Sampler, kind="PrioritizedSampler"):
    """Draws frames in proportion to ``(priority + eps) ** alpha``, and gives them
    ``"priority_weight"``.

    Raises:
        ValueError: the reduction is unknown.
    """

    has_priorities: ClassVar[bool] = True
    _settable = frozenset({"alpha", "beta"})

    max_capacity: int | None = argument(
        "of no use here: the buffer knows how many rows it has", default=None, kw_only=False
    )
    alpha: float = argument("exponent of priorities", default=0.7, kw_only=False, check=real)
    beta: float = argument("exponent of weights", default=0.9, kw_only=False, check=real)
    eps: float = argument("what is added to priorities", default=1e-8, kw_only=False, check=real)
    dtype: "torch.dtype | None" = argument(
        "no effect: priorities are float32", default=None, kw_only=False
    )
    reduction: str = argument(
        'how several priorities of a frame make one: "max", "min", "mean", "median" or "sum"',
        default="max",
        kw_only=False,
        check=one_of("max", "min", "mean", "median", "sum"),
    )
    device: object = ignored("priorities are kept on the CPU", default="cpu")
    max_priority_within_buffer: bool = ignored(
        "new frames have the highest priority ever given", default=False
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if str(self.dtype) != "torch.float32":
            warn_ignored("dtype", self.dtype, None, "priorities are float32")

    def _follow(self, core: "ReplayBufferCore") -> None:
        self._set("beta", core.beta())

    def reduced(self, priorities: object) -> "torch.Tensor":
        """One priority for each frame of ``priorities``, ``[frames, several]``, as ``reduction``
        says.
        """
        reduced = getattr(priorities, self.reduction)(dim=-1)
        return reduced[0] if isinstance(reduced, tuple) else reduced


class PrioritizedSliceSampler(PrioritizedSampler, SliceSampler, kind="PrioritizedSliceSampler"):
    """Draws pieces of trajectories, each chosen by the priority of the frame that it begins
    with.
    """


def consuming(sampler: Sampler, times: int) -> Sampler:
    """A sampler that draws each frame ``times`` times: ``sampler`` itself, or one in its place.

    Raises:
        ValueError: the buffer was given one that draws otherwise.
    """
    if isinstance(sampler, ConsumingSampler) and sampler.max_sample_count == times:
        return sampler
    if type(sampler) is not RandomSampler:
        raise ValueError(
            f"consume_after_n_samples={times} needs a RandomSampler or ConsumingSampler({times}), got {sampler!r}"
        )
    return ConsumingSampler(times)
