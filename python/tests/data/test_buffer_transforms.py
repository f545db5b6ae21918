"""TorchRL's transforms in buffers, beside those in TorchRL's own buffers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torchrl.data
from tensordict import TensorDict
from torchrl.envs import transforms as of

import windrow.data

TRANSFORMS = {
    "scaling": lambda: of.RewardScaling(0.5, 2.0, in_keys=[("next", "reward")]),
    "several": lambda: of.Compose(
        of.RenameTransform(["observation"], ["seen"]), of.CatTensors(["seen", "action"], "both")
    ),
    "next observations": lambda: of.NextStateReconstructor(fill_value=-1.0),
    "deltas": lambda: of.NextObservationDelta(in_keys=["observation"]),
    "several steps": lambda: of.MultiStepTransform(n_steps=3, gamma=0.9),
    "types on the way in": lambda: of.DTypeCastTransform(
        torch.float64, torch.float16, in_keys=["observation"], in_keys_inv=["observation"]
    ),
    "names on the way in": lambda: of.RenameTransform([], [], ["other"], ["observation"]),
    "a function": lambda: lambda td: td.set("twice", 2 * td["observation"]),
    "fewer entries": lambda: of.ExcludeTransform("action"),
}


def frames() -> TensorDict:
    number = torch.arange(24.0)[:, None]
    following = TensorDict(
        {
            "reward": number,
            "done": number % 8 == 7,
            "delta": {"observation": torch.ones(24, 3).half()},
        },
        [24],
    )
    return TensorDict(
        {
            "observation": number.expand(24, 3).clone(),
            "action": -number,
            "collector": {"traj_ids": torch.arange(24) // 8},
            "next": following,
        },
        [24],
    )


#: TorchRL's buffers do not call `forward` of an inverted transform, which is all that these have.
ONE_WAY = {"next observations", "deltas"}
CASES = [
    (name, way) for name in TRANSFORMS for way in ("argument", "factory", "appended", "inverted")
]


@pytest.mark.parametrize(
    ("name", "way"), [case for case in CASES if case[1] != "inverted" or case[0] not in ONE_WAY]
)
def test_samples_and_rows_are_those_of_torchrl(name: str, way: str) -> None:
    samples = []
    for library in (windrow.data, torchrl.data):
        arguments: dict[str, Any] = {}
        if way in ("argument", "factory"):
            arguments = (
                {"transform": TRANSFORMS[name]()}
                if way == "argument"
                else {"transform_factory": TRANSFORMS[name]}
            )
        buffer = library.ReplayBuffer(
            storage=library.LazyTensorStorage(100),
            sampler=library.SamplerWithoutReplacement(shuffle=False),
            batch_size=10,
            **arguments,
        )
        if not arguments:
            buffer.append_transform(TRANSFORMS[name](), invert=way == "inverted")
        buffer.extend(frames())
        buffer.extend(frames())
        samples.append([buffer.sample(), buffer.sample(), len(buffer)])
    (*ours, count), (*theirs, expected) = samples
    assert count == expected and len(ours) == len(theirs)
    for sample, wanted in zip(ours, theirs, strict=True):
        assert set(sample.keys(True, True)) == set(wanted.keys(True, True))
        for key in wanted.keys(True, True):
            assert sample[key].dtype == wanted[key].dtype, key
            assert torch.allclose(sample[key].double(), wanted[key].double(), equal_nan=True), key


def test_a_buffer_follows_a_compose_that_changes() -> None:
    several = windrow.envs.Compose(windrow.envs.RenameTransform(["observation"], ["seen"]))
    buffer = windrow.data.ReplayBuffer(
        storage=windrow.data.LazyTensorStorage(100), batch_size=10, transform=several
    )
    buffer.extend(frames())

    def entries() -> set[str]:
        return {key for key in buffer.sample().keys() if key not in ("collector", "next")}

    assert entries() == {"seen", "action"}
    several.append(windrow.envs.RenameTransform(["seen"], ["again"]))
    several.append(lambda batch: batch.exclude("action"))
    assert entries() == {"again"}
    several.pop()
    several.pop(0)
    with pytest.raises(KeyError, match="seen"):
        buffer.sample()
    several.insert(0, windrow.envs.RenameTransform(["observation"], ["seen"]))
    assert entries() == {"again", "action"}


def test_what_is_no_function_is_no_transform() -> None:
    with pytest.raises(TypeError, match=r"transform must be a function of a sample, got \[\]"):
        windrow.data.ReplayBuffer(transform=[])
    with pytest.raises(TypeError, match="transform must be a function of a sample, got 3"):
        windrow.data.ReplayBuffer().append_transform(3)  # type: ignore[arg-type]


def test_modules_are_put_into_evaluation_mode() -> None:
    transform = of.ObservationNorm(0.0, 1.0, in_keys=["observation"])
    windrow.data.ReplayBuffer(storage=windrow.data.LazyTensorStorage(10), transform=transform)
    assert not transform.training
