"""Batches and weights as one array of bytes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tensordict import NonTensorData, TensorDict

from windrow.ray import _session


def test_a_tensordict_is_one_array_and_comes_back_as_it_was() -> None:
    batch = TensorDict(
        {
            "a": torch.arange(6.0).view(2, 3).t(),
            "next": {"done": torch.tensor([[True], [False], [True]])},
        },
        [3],
        names=["time"],
    )
    packed = _session.pack(batch)
    assert packed.dtype == np.uint8 and packed.ndim == 1
    read = _session.unpack(packed)
    assert (read == batch).all() and read.names == ["time"] and read["a"].dtype == torch.float32
    read["a"].add_(1)
    assert (_session.unpack(packed) == batch).all()
    weights = _session.unpack(_session.pack({"0.weight": torch.ones(2, 2, requires_grad=True)}))
    assert weights.batch_size == torch.Size([]) and weights["0.weight"].tolist() == [[1, 1], [1, 1]]


@pytest.mark.filterwarnings("error")
def test_an_array_that_cannot_be_written_to_is_read_without_a_copy_or_a_warning() -> None:
    packed = _session.pack(TensorDict({"a": torch.arange(1000)}, [1000]))
    packed.flags.writeable = False
    view = _session.unpack(packed, copy=False)["a"]
    start = packed.__array_interface__["data"][0]
    assert start < view.data_ptr() < start + packed.nbytes
    assert not start < _session.unpack(packed)["a"].data_ptr() < start + packed.nbytes
    del packed
    assert torch.equal(view, torch.arange(1000))


def test_objects_and_text_are_packed_too() -> None:
    unpacked = _session.unpack(
        _session.pack(TensorDict({"name": "a", "what": NonTensorData({1, 2})}, []))
    )
    assert (unpacked["name"], unpacked["what"]) == ("a", {1, 2})


def test_several_are_put_together() -> None:
    parts = [
        _session.pack(TensorDict({"a": torch.full((2, 3), float(number))}, [2, 3]))
        for number in range(2)
    ]
    assert _session.unpack(*parts)["a"].tolist() == [[0] * 3] * 2 + [[1] * 3] * 2
    assert _session.unpack(*parts, dim=-1)["a"].tolist() == [[0] * 3 + [1] * 3] * 2
    assert _session.unpack(*parts, stack=True).batch_size == torch.Size([2, 2, 3])


def test_what_cannot_be_packed_or_read_is_named() -> None:
    with pytest.raises(TypeError, match="next.what: .*complex|next.what: .*DLPack type 5"):
        _session.pack(TensorDict({"next": {"what": torch.zeros(2, dtype=torch.complex64)}}, [2]))
    with pytest.raises(TypeError, match="'name': expected what can be pickled, .*got a generator"):
        _session.pack(TensorDict({"name": NonTensorData(letter for letter in "ab")}, []))
    with pytest.raises(ValueError, match="not a valid safetensors file"):
        _session.unpack(np.zeros(100, np.uint8))
