"""What a learner does with a batch before its losses: advantages, and shuffled minibatches."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from windrow import _needs
from windrow._keys import Key, short
from windrow._lazy import numpy, tensordict as td, torch
from windrow._numbers import real, whole
from windrow._types import Array, Device
from windrow._values import unheld
from windrow._windrow import RowGather, advantages

#: Copies the rows between two places of an order.
_Take = Callable[["torch.Tensor", int, int], "td.TensorDictBase"]


def minibatches(
    batch: td.TensorDictBase,
    size: int,
    epochs: int = 1,
    generator: torch.Generator | None = None,
    *,
    keys: Sequence[Key] | None = None,
    device: Device | None = None,
    drop_last: bool = False,
) -> Iterator[td.TensorDictBase]:
    """Shuffled minibatches of ``batch``, in several passes over its frames: those of
    ``batch.reshape(-1)[rows]``, about twice as fast.

    Each pass has every frame once, in the order of a ``torch.randperm``. Frames are counted over
    all batch dimensions. A minibatch is a copy, in the memory of one before of which no tensor is
    left: keep as many as you like. What is written to a tensor of ``batch`` meanwhile is in the
    minibatches that follow.

    Args:
        batch: a batch of tensors, all on one device.
        size: frames of a minibatch. The last one of a pass has what is left.
        epochs: passes over the frames.
        generator: draws the orders; torch's own by default.
        keys: the entries that minibatches have, all by default. A name stands for all entries below
            it.
        device: where minibatches are; by default where ``batch`` is.
        drop_last: leave the last minibatch of a pass out where it would be short.

    Raises:
        TypeError: an entry is no tensor, such as text.
        ValueError: a tensor requires a gradient, which a copy would lose; or tensors are on several
            devices.
        KeyError: there is no such entry.

    Example:
        >>> import windrow
        >>> from windrow.collectors import Collector
        >>> batch = next(Collector("CartPole-v1", frames_per_batch=100))
        >>> [len(minibatch) for minibatch in windrow.minibatches(batch, 40, epochs=2)]
        [40, 40, 20, 40, 40, 20]
    """
    _needs.torch("minibatches")
    if not isinstance(batch, td.TensorDictBase):
        raise TypeError(f"batch: expected a TensorDict, got {type(batch).__name__}")
    size, epochs = whole("size", size, 1), whole("epochs", epochs, 0)
    take, own = _rows_of(
        batch if keys is None else batch.select(*([keys] if isinstance(keys, str) else keys))
    )
    target = own if device is None else torch.device(device)
    count = batch.batch_size.numel()
    end = count - count % size if drop_last else count

    def passes() -> Iterator[td.TensorDictBase]:
        for _ in range(epochs):
            order = torch.randperm(
                count, generator=generator, device=None if generator is None else generator.device
            )
            order = order.to("cpu" if own.type == "cpu" else own)
            for begin in range(0, end, size):
                rows = take(order, begin, min(begin + size, end))
                yield rows if target == own else rows.to(target)

    return passes()


def _rows_of(batch: td.TensorDictBase) -> tuple[_Take, torch.device]:
    """A function that copies rows of ``batch``, and the device that they are on."""
    for names, is_tensor in unheld(batch):
        what = "tensors whose shapes may differ" if is_tensor else "values that are no tensors"
        raise TypeError(
            f"entry {short(names)!r}: minibatches are of tensors, got {what}: choose other entries with keys=[...]"
        )
    tensors: dict[Key, torch.Tensor] = dict(batch.items(True, True))
    if not tensors:
        raise ValueError("batch: expected an entry at least, got none")
    for key, tensor in tensors.items():
        if tensor.requires_grad:
            raise ValueError(
                f"entry {key!r} requires a gradient, which a copy would lose: compute it under torch.no_grad(), or detach it"
            )
    devices = {tensor.device for tensor in tensors.values()}
    if len(devices) > 1:
        raise ValueError(
            f"batch: expected tensors on one device, got {' and '.join(sorted(map(str, devices)))}"
        )
    own = devices.pop()
    if own.type != "cpu":
        flat = batch.reshape(-1)
        return lambda order, begin, end: flat[order[begin:end]], own
    gather = RowGather(batch if type(batch) is td.TensorDict else batch.contiguous(), own)
    return lambda order, begin, end: gather.rows(order.numpy(), begin, end), own


def generalized_advantage_estimate(
    gamma: float,
    lmbda: float,
    state_value: Any,
    next_state_value: Any,
    reward: Any,
    done: Any,
    *,
    terminated: Any = None,
    time_dim: int | None = None,
    traj_ids: Any = None,
) -> tuple[Any, Any]:
    """Advantages and value targets, computed in Rust: what TorchRL's function of this name returns,
    up to 1e-5 (it rounds discounts to ``float32``).

    ``δ = reward + γ · next_state_value · (1 - terminated) - state_value``,
    ``A = δ + γλ · (1 - done) · A'`` with the advantage ``A'`` of the next frame, and the target is
    ``A + state_value``. An episode that was cut has a future, one that has terminated has none. The
    last frame of all is followed by nothing.

    Args:
        gamma: the discount, from 0 to 1.
        lmbda: weight of longer returns, from 0 to 1.
        state_value: values of the observations: tensors of torch or arrays of NumPy, of ``float32``
            or ``float64``, as all that follow.
        next_state_value: values of the observations that followed, of the same shape.
        reward: rewards, of the same shape.
        done: whether episodes ended, of the same shape.
        terminated: whether they ended by themselves; ``done`` by default.
        time_dim: the dimension of time. By default the one before the last,
            ``[*batch, time, rewards]``, and that of arrays with one dimension. With two dimensions
            it has to be named, since ``[time, 1]`` and ``[env, time]`` look alike.
        traj_ids: numbers of trajectories, of the shape up to ``time_dim``, such as
            ``batch["collector", "traj_ids"]``: where they change without an end, as between the
            frames of two workers, the estimate ends as at the end of a batch.

    Returns:
        Advantages and value targets, as tensors if ``reward`` is one, on its device.

    Raises:
        TypeError: elements are not of ``float32`` or ``float64``.
        ValueError: shapes differ; the dimension of time is not clear; ``gamma`` or ``lmbda`` is
            outside; or a tensor requires a gradient.

    Example:
        >>> import numpy as np
        >>> import windrow
        >>> ends = np.array([[False, False, True]])
        >>> zeros, ones = np.zeros((1, 3)), np.ones((1, 3))
        >>> windrow.generalized_advantage_estimate(0.5, 1.0, zeros, zeros, ones, ends, time_dim=1)[0]
        array([[1.75, 1.5 , 1.  ]])
    """
    arrays = _numbers(reward=reward, state_value=state_value, next_state_value=next_state_value)
    kind = numpy.result_type(*arrays.values())
    flags = {"done": _array("done", done).astype(bool, copy=False)}
    flags["terminated"] = (
        flags["done"]
        if terminated is None
        else _array("terminated", terminated).astype(bool, copy=False)
    )
    shape = arrays["reward"].shape
    for name, array in {**arrays, **flags}.items():
        if array.shape != shape:
            raise ValueError(f"{name}: expected the shape of reward, {shape}, got {array.shape}")
    time = _time_dim(shape, time_dim)
    # Dimensions behind that of time are estimated apart from each other.
    parts = (math.prod(shape[:time]), shape[time], math.prod(shape[time + 1 :]))
    ids = None if traj_ids is None else _ids(traj_ids, shape[: time + 1]).reshape(parts[:2])
    own, values, following = (
        array.astype(kind, copy=False).reshape(parts) for array in arrays.values()
    )
    ends, cuts = (array.reshape(parts) for array in flags.values())
    weights = real("gamma", gamma), real("lmbda", lmbda)
    found = [
        array.reshape(shape)
        for array in advantages(weights, own, (values, following), (ends, cuts), ids)
    ]
    if "torch" in sys.modules and isinstance(reward, torch.Tensor):
        return tuple(torch.from_numpy(array).to(reward.device) for array in found)  # type: ignore[return-value]
    return found[0], found[1]


def _numbers(**values: Any) -> dict[str, Array]:
    """The ``values`` as arrays of floating-point numbers, by their names."""
    arrays = {name: _array(name, value) for name, value in values.items()}
    for name, array in arrays.items():
        if array.dtype not in (numpy.float32, numpy.float64):
            raise TypeError(f"{name}: expected float32 or float64, got {array.dtype}")
    return arrays


def _ids(traj_ids: Any, shape: tuple[int, ...]) -> Array:
    """Trajectory ids as an array, which must have this ``shape``."""
    ids = _array("traj_ids", traj_ids).astype(numpy.int64, copy=False)
    if ids.shape != shape:
        raise ValueError(
            f"traj_ids: expected shape {shape}, that of reward up to the dimension of time, got {ids.shape}"
        )
    return ids


def _array(name: str, value: Any) -> Array:
    """A tensor or array as an array, over the same memory where it is on the CPU."""
    if "torch" not in sys.modules or not isinstance(value, torch.Tensor):
        return numpy.asarray(value)
    if value.requires_grad:
        raise ValueError(
            f"{name} requires a gradient, which would be lost: compute it under torch.no_grad(), or detach it"
        )
    return value.cpu().numpy()


def _time_dim(shape: tuple[int, ...], given: int | None) -> int:
    """The dimension of time in arrays of this shape, counted from the first."""
    dims = len(shape)
    if given is None:
        if dims in (0, 2):
            raise ValueError(
                f"reward of shape {shape}: say which dimension is time: time_dim=0 for [time, 1] or [time, env], time_dim=1 for [env, time]"
                if dims
                else "reward: expected a dimension of time, got a single number"
            )
        return max(dims - 2, 0)
    if not -dims <= (dim := int(given)) < dims:
        raise ValueError(
            f"time_dim: expected a dimension of reward, which has shape {shape}, got {given}"
        )
    return dim % dims
