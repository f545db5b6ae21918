"""Advantages and minibatches for learners."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import LazyStackedTensorDict, NonTensorStack, TensorDict
from torchrl.objectives.value.functional import (
    generalized_advantage_estimate,
    vec_generalized_advantage_estimate,
)

import windrow
from windrow.collectors import Collector, MultiSyncCollector
from windrow.envs import GymEnv


def collected(**arguments: Any) -> TensorDict:
    """A batch with entries of all kinds that learners add."""
    batch = next(
        Collector(GymEnv("CartPole-v1", num_envs=4), frames_per_batch=200, seed=0, **arguments)
    )
    batch["advantage"] = torch.randn(4, 50, 1)
    batch["half"] = torch.randn(4, 50, dtype=torch.float16)
    batch["brain"] = torch.randn(4, 50, 3).to(torch.bfloat16)
    batch["complex"] = torch.randn(4, 50, dtype=torch.complex64)
    batch["turned"] = torch.randn(3, 50, 4).permute(2, 1, 0)
    batch["agents"] = TensorDict({"seen": torch.randn(4, 50, 2, 3)}, [4, 50, 2])
    return batch


def is_same(one: TensorDict, other: TensorDict) -> bool:
    leaves = dict(one.items(True, True)), dict(other.items(True, True))
    assert leaves[0].keys() == leaves[1].keys()
    return all(
        torch.equal(leaves[0][key], leaves[1][key]) and leaves[0][key].dtype == leaves[1][key].dtype
        for key in leaves[0]
    )


def test_minibatches_are_the_rows_of_random_permutations() -> None:
    batch = collected()
    flat = batch.reshape(-1)
    expected = torch.Generator().manual_seed(3)
    orders = [torch.randperm(200, generator=expected) for _ in range(3)]
    drawn = list(windrow.minibatches(batch, 64, 3, torch.Generator().manual_seed(3)))
    rows = [rows for order in orders for rows in order.split(64)]
    assert [len(minibatch) for minibatch in drawn] == [64, 64, 64, 8] * 3
    for minibatch, chosen in zip(drawn, rows, strict=True):
        assert is_same(minibatch, flat[chosen])
        assert minibatch.batch_size == (len(chosen),) and minibatch.device == torch.device("cpu")
        assert minibatch["agents"].batch_size == (len(chosen), 2)
    assert len(list(windrow.minibatches(batch, 64, drop_last=True))) == 3


def test_torch_s_own_generator_draws_orders_without_another() -> None:
    batch = collected()
    torch.manual_seed(5)
    order = torch.randperm(200)
    torch.manual_seed(5)
    assert is_same(next(windrow.minibatches(batch, 200)), batch.reshape(-1)[order])


def test_memory_of_a_minibatch_is_used_again_only_when_nobody_holds_it() -> None:
    batch = collected()
    places, held, before = set(), [], []
    for number, minibatch in enumerate(windrow.minibatches(batch, 20, epochs=4)):
        if number % 5 == 0:
            # A view is enough to keep the whole.
            held.append(minibatch["observation"][3:5].numpy())
            before.append(minibatch["observation"][3:5].clone())
        else:
            places.add(minibatch["next", "reward"].data_ptr())
    del minibatch
    assert all(np.array_equal(one, other) for one, other in zip(held, before, strict=True))
    assert len(places) <= 4
    kept = list(windrow.minibatches(batch, 20))
    assert len({minibatch["observation"].data_ptr() for minibatch in kept}) == 10


def test_a_minibatch_can_be_changed_in_place_and_leaves_the_batch_as_it_is() -> None:
    batch = collected()
    before = batch["advantage"].clone()
    for minibatch in windrow.minibatches(batch, 50):
        minibatch["advantage"].zero_()
    assert torch.equal(batch["advantage"], before)


def test_what_is_written_to_a_batch_is_in_the_minibatches_that_follow() -> None:
    batch = collected()
    drawn = windrow.minibatches(batch, 100, keys=["advantage", ("next", "done")])
    next(drawn)
    batch["advantage"].fill_(7.0)
    batch["next", "done"].fill_(True)
    after = next(drawn)
    assert bool((after["advantage"] == 7).all()) and bool(after["next", "done"].all())
    assert set(after.keys(True, True)) == {"advantage", ("next", "done")}
    assert set(next(windrow.minibatches(batch, 100, keys="advantage")).keys()) == {"advantage"}


def test_batches_may_be_flat_or_lazy_and_outlive_their_collector() -> None:
    with MultiSyncCollector(
        [GymEnv("CartPole-v1")] * 2, frames_per_batch=100, placement="threads", seed=0
    ) as collector:
        flat = next(iter(collector))
    lazy = LazyStackedTensorDict(
        *(TensorDict({"a": torch.full((5,), number)}, [5]) for number in range(2)), stack_dim=0
    )
    for batch in (flat, lazy):
        order = torch.randperm(batch.numel(), generator=torch.Generator().manual_seed(0))
        drawn = windrow.minibatches(
            batch, batch.numel(), generator=torch.Generator().manual_seed(0)
        )
        assert is_same(next(drawn), batch.reshape(-1).contiguous()[order])
    drawn = windrow.minibatches(flat, 10)
    expected = flat["observation"].sum().item()
    del flat, batch
    assert sum(minibatch["observation"].sum().item() for minibatch in drawn) == pytest.approx(
        expected
    )


@pytest.mark.parametrize(
    ("change", "arguments", "message"),
    [
        (
            lambda batch: batch.set("text", NonTensorStack(*"abcd")),
            {},
            r"entry 'text'.*no tensors.*keys=",
        ),
        (
            lambda batch: batch.set("value", torch.zeros(4, requires_grad=True) * 2),
            {},
            "entry 'value' requires a gradient",
        ),
        (lambda batch: None, {"keys": []}, "an entry at least"),
        (lambda batch: None, {"keys": ["nothing"]}, "nothing"),
        (lambda batch: None, {"size": 0}, "size must be 1 or more, got 0"),
        (lambda batch: None, {"epochs": 1.5}, "epochs must be a whole number"),
        (
            lambda batch: batch.set("wide", torch.zeros(4, dtype=torch.complex128)),
            {},
            "wide: .*64 bits, got 128",
        ),
        (
            lambda batch: batch.set("far", torch.zeros(4, device="meta")),
            {},
            "one device, got cpu and meta",
        ),
    ],
)
def test_what_cannot_be_a_minibatch_is_refused(
    change: Callable[[TensorDict], Any], arguments: dict[str, Any], message: str
) -> None:
    batch = TensorDict({"number": torch.arange(4)}, [4])
    change(batch)
    with pytest.raises((TypeError, ValueError, KeyError), match=message):
        windrow.minibatches(batch, **{"size": 2, **arguments})
    with pytest.raises(TypeError, match="expected a TensorDict, got dict"):
        windrow.minibatches({"number": torch.arange(4)}, 2)  # type: ignore[arg-type]


def test_a_batch_without_frames_has_no_minibatches() -> None:
    assert (
        list(windrow.minibatches(TensorDict({"number": torch.zeros(0, 2)}, [0]), 4, epochs=3)) == []
    )


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_minibatches_go_to_a_device_and_come_from_one() -> None:
    batch = collected()
    there = batch.to("cuda")
    for given, arguments in ((batch, {"device": "cuda"}), (there, {})):
        generator = torch.Generator().manual_seed(0)
        order = torch.randperm(200, generator=torch.Generator().manual_seed(0))
        drawn = list(windrow.minibatches(given, 50, generator=generator, **arguments))
        assert all(minibatch.device.type == "cuda" for minibatch in drawn)
        for minibatch, rows in zip(drawn, order.split(50), strict=True):
            assert is_same(minibatch.cpu(), batch.reshape(-1)[rows])


# Advantages


def estimated(gamma: float, lmbda: float, *columns: Any, **arguments: Any) -> Any:
    """The estimate of value, value that followed, reward, done and, fifth, terminated."""
    if len(columns) > 4:
        arguments["terminated"] = columns[4]
    return windrow.generalized_advantage_estimate(gamma, lmbda, *columns[:4], **arguments)


def columns(dtype: torch.dtype, *shape: int) -> list[torch.Tensor]:
    """Values, values that followed, rewards, and flags of some ends and fewer terminations."""
    numbers = [torch.randn(shape, dtype=dtype) for _ in range(3)]
    done = torch.rand(shape) < 0.1
    return [*numbers, done, done & (torch.rand(shape) < 0.5)]


def by_hand(gamma: float, lmbda: float, *given: torch.Tensor) -> torch.Tensor:
    """Advantages of columns ``[env, time]``, in a loop."""
    value, following, reward, done, ends = given
    found, last = torch.zeros_like(value), torch.zeros_like(value[:, 0])
    for step in reversed(range(value.shape[1])):
        last = (
            reward[:, step]
            + gamma * following[:, step] * ~ends[:, step]
            - value[:, step]
            + gamma * lmbda * last * ~done[:, step]
        )
        found[:, step] = last
    return found


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
def test_advantages_are_those_of_a_loop(dtype: torch.dtype, tolerance: float) -> None:
    given = columns(dtype, 8, 64)
    advantage, target = estimated(0.99, 0.95, *given, time_dim=1)
    torch.testing.assert_close(
        advantage, by_hand(0.99, 0.95, *given), rtol=tolerance, atol=tolerance
    )
    assert torch.equal(target, advantage + given[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_advantages_are_those_of_torchrl(dtype: torch.dtype) -> None:
    for shape in [(8, 128, 1), (3, 5, 17, 2), (50, 1)]:
        given = columns(dtype, *shape)
        expected = generalized_advantage_estimate(0.99, 0.95, *given)
        time_dim = -2 if len(shape) == 2 else None
        found = estimated(0.99, 0.95, *given, time_dim=time_dim)
        for own, other in zip(found, expected, strict=True):
            assert own.dtype == dtype and own.shape == other.shape
            torch.testing.assert_close(own, other, rtol=1e-5, atol=1e-5)
        without = estimated(0.9, 1.0, *given[:4], time_dim=time_dim)
        torch.testing.assert_close(
            without[0],
            vec_generalized_advantage_estimate(0.9, 1.0, *given[:4])[0],
            rtol=1e-4,
            atol=1e-4,
        )


def test_arrays_of_numpy_come_back_as_arrays_and_time_may_be_any_dimension() -> None:
    given = columns(torch.float32, 6, 40, 1)
    expected = estimated(0.99, 0.95, *given)
    flat = [one.squeeze(-1).numpy() for one in given]
    turned = [np.ascontiguousarray(one.T) for one in flat]
    one = [array[2] for array in flat]
    for arrays, time_dim, back in [
        (flat, 1, lambda x: x),
        (flat, -1, lambda x: x),
        (turned, 0, np.transpose),
        ([x.T for x in flat], 0, np.transpose),
    ]:
        for own, other in zip(
            estimated(0.99, 0.95, *arrays, time_dim=time_dim), expected, strict=True
        ):
            assert isinstance(own, np.ndarray)
            np.testing.assert_array_equal(back(own), other.squeeze(-1).numpy())
    np.testing.assert_array_equal(estimated(0.99, 0.95, *one)[0], expected[0][2, :, 0].numpy())


def test_flags_may_be_numbers_and_types_are_promoted() -> None:
    value, following, reward, done, ends = (one.numpy() for one in columns(torch.float32, 2, 9, 1))
    expected = estimated(0.9, 0.8, value, following, reward, done, ends)[0]
    own = estimated(0.9, 0.8, value, following, reward, done.astype(float), ends.astype(int))[0]
    np.testing.assert_array_equal(own, expected)
    assert estimated(0.9, 0.8, value, following, reward.astype(float), done)[0].dtype == np.float64


def test_trajectories_of_two_workers_in_one_row_do_not_run_into_each_other() -> None:
    given = [one.reshape(-1, 1) for one in columns(torch.float32, 2, 20, 1)]
    ids = torch.arange(2).repeat_interleave(20)
    apart = [
        estimated(0.99, 0.95, *(one[rows] for one in given), time_dim=0)[0]
        for rows in (ids == 0, ids == 1)
    ]
    joined = estimated(0.99, 0.95, *given, time_dim=0, traj_ids=ids)[0]
    assert torch.equal(joined, torch.cat(apart))
    assert not torch.equal(joined, estimated(0.99, 0.95, *given, time_dim=0)[0])


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"gamma": 1.5}, "gamma must be within 0 to 1, got 1.5"),
        ({"lmbda": "a"}, "lmbda must be a number"),
        (
            {"state_value": np.zeros((3, 4, 1), np.float32)},
            r"state_value: expected the shape of reward, \(2, 4, 1\), got \(3, 4, 1\)",
        ),
        ({"done": np.zeros((2, 4), bool)}, r"done: expected the shape of reward"),
        (
            {"reward": np.zeros((2, 4, 1), np.int64)},
            "reward: expected float32 or float64, got int64",
        ),
        (
            {"time_dim": 3},
            r"time_dim: expected a dimension of reward, which has shape \(2, 4, 1\), got 3",
        ),
        ({"traj_ids": np.zeros((2, 4, 1))}, r"traj_ids: expected shape \(2, 4\)"),
        (
            {"state_value": torch.zeros(2, 4, 1, requires_grad=True)},
            "state_value requires a gradient",
        ),
    ],
)
def test_wrong_columns_are_refused(changed: dict[str, Any], message: str) -> None:
    zeros = np.zeros((2, 4, 1), np.float32)
    given = {
        "gamma": 0.9,
        "lmbda": 0.9,
        "state_value": zeros,
        "next_state_value": zeros,
        "reward": zeros,
        "done": zeros.astype(bool),
    }
    with pytest.raises((TypeError, ValueError), match=message):
        windrow.generalized_advantage_estimate(**{**given, **changed})


def test_time_has_to_be_named_where_shapes_do_not_tell() -> None:
    zeros = np.zeros((8, 1), np.float32)
    with pytest.raises(
        ValueError, match=r"say which dimension is time: time_dim=0 for \[time, 1\]"
    ):
        windrow.generalized_advantage_estimate(0.9, 0.9, zeros, zeros, zeros, zeros)
