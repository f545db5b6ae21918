"""What TorchRL's buffers can be told, and where it has their parts."""

from __future__ import annotations

import copy
import importlib
import inspect
import multiprocessing
import pickle
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torchrl.data
from tensordict import NonTensorStack, TensorDict

import windrow.data
from accepted import accepted_by
from windrow.data import (
    LazyMemmapStorage,
    LazyStackStorage,
    LazyTensorStorage,
    ListStorage,
    MultiStep,
    PrioritizedReplayBuffer,
    PrioritizedSampler,
    PrioritizedSliceSampler,
    ReplayBuffer,
    SamplerWithoutReplacement,
    SliceSampler,
    TensorDictPrioritizedReplayBuffer,
    TensorDictReplayBuffer,
    TensorStorage,
    split_trajectories,
)

LIBRARIES = [torchrl.data, windrow.data]


def frames(count: int, start: int = 0) -> TensorDict:
    number = torch.arange(start, start + count)
    return TensorDict({"number": number, "next": {"done": (number % 5 == 4)[:, None]}}, [count])


def buffer_of(**arguments: Any) -> ReplayBuffer:
    buffer = ReplayBuffer(storage=LazyTensorStorage(20), batch_size=4, **arguments)
    buffer.extend(frames(20))
    return buffer


@pytest.mark.parametrize(
    ("make", "argument", "value"),
    [
        (buffer_of, "dim_extend", 1),
        (buffer_of, "compilable", True),
        (buffer_of, "checkpointer", object()),
        (buffer_of, "delayed_init", True),
        (lambda **a: LazyTensorStorage(10, **a), "compilable", True),
        (lambda **a: LazyMemmapStorage(10, **a), "existsok", False),
        (lambda **a: SliceSampler(slice_len=2, **a), "compile", True),
        (lambda **a: SliceSampler(slice_len=2, **a), "use_gpu", "cuda"),
        (lambda **a: SliceSampler(slice_len=2, **a), "trajectories", torch.zeros(3)),
        (lambda **a: SliceSampler(slice_len=2, **a), "ends", torch.zeros(3, dtype=torch.bool)),
        (lambda **a: PrioritizedSampler(10, 0.7, 0.9, **a), "dtype", torch.float64),
        (
            lambda **a: PrioritizedSliceSampler(10, 0.7, 0.9, slice_len=2, **a),
            "max_priority_within_buffer",
            True,
        ),
        (lambda **a: PrioritizedReplayBuffer(alpha=0.7, beta=0.9, **a), "dtype", torch.float64),
    ],
)
def test_arguments_without_effect_say_why(make: Any, argument: str, value: Any) -> None:
    with pytest.warns(UserWarning, match=f"{argument} has no effect: ."):
        make(**{argument: value})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make(**{argument: torch.float32 if argument == "dtype" else None})


@pytest.mark.parametrize(
    "make",
    [buffer_of, lambda **a: SliceSampler(slice_len=2, **a), lambda **a: PrioritizedSampler(**a)],
)
def test_arguments_that_there_are_not(make: Any) -> None:
    with pytest.raises(TypeError, match="has no argument prefetsch"):
        make(prefetsch=3)


def public_classes() -> list[type]:
    return [
        value
        for name, value in vars(windrow.data).items()
        if isinstance(value, type) and not name.startswith("_")
    ]


@pytest.mark.parametrize("kind", public_classes(), ids=lambda kind: kind.__name__)
def test_every_argument_is_visible_and_documented(kind: type) -> None:
    parameters = inspect.signature(kind).parameters
    # One that makes a buffer of any class passes that class its arguments.
    passed_on = [
        name for name, parameter in parameters.items() if parameter.kind is parameter.VAR_KEYWORD
    ]
    expected = [["arguments"]] if "replay_buffer_cls" in parameters else [[], ["legacy"]]
    assert passed_on in expected
    documented = f"{inspect.getdoc(kind)}\n{inspect.getdoc(kind.__init__)}"
    assert [
        name
        for name in accepted_by(kind)
        if not re.search(rf"^ *{name}(:| =| {{4}})", documented, re.MULTILINE)
    ] == []


#: Of TorchRL's, what asks for another thing than windrow makes.
NOT_TAKEN = {
    "args",
    "service_backend",
    "service_backend_options",
    "use_ray_service",
    "track_generations",
}


def test_other_arguments_of_torchrl_are_taken() -> None:
    missing = {}
    for kind in public_classes():
        if theirs := getattr(torchrl.data, kind.__name__, None):
            known = inspect.signature(theirs).parameters.values()
            names = {
                parameter.name for parameter in known if parameter.kind is not parameter.VAR_KEYWORD
            }
            missing[kind.__name__] = names - accepted_by(kind) - NOT_TAKEN
    missing = {name: names for name, names in missing.items() if names}
    assert missing == {}


def test_parts_show_what_they_were_given() -> None:
    assert (
        repr(LazyTensorStorage(20, device="cuda", existsok=True))
        == "LazyTensorStorage(max_size=20, device='cuda')"
    )
    assert (
        repr(SliceSampler(slice_len=3, strict_length=False))
        == "SliceSampler(slice_len=3, strict_length=False)"
    )
    assert repr(TensorStorage(frames(6))) == "TensorStorage(6 frames, max_size=6)"


def test_arguments_that_exclude_each_other() -> None:
    with pytest.raises(TypeError, match="transform and transform_factory"):
        buffer_of(transform=lambda batch: batch, transform_factory=lambda: None)
    with pytest.raises(TypeError, match="seed and generator"):
        buffer_of(seed=1, generator=torch.Generator())


def test_choices_follow_from_a_generator() -> None:
    def drawn(seed: int) -> list[list[int]]:
        generator = torch.Generator().manual_seed(seed)
        # Two buffers of one generator do not draw the same.
        return [buffer_of(generator=generator).sample()["number"].tolist() for _ in range(2)]

    assert drawn(1) == drawn(1) != drawn(2)
    assert drawn(1)[0] != drawn(1)[1]


@pytest.mark.parametrize("storage", ["LazyTensorStorage", "ListStorage"])
def test_samples_are_collated(storage: str) -> None:
    def run(library: Any) -> Any:
        def collate(found: Any) -> Any:
            seen.append(type(found))
            return torch.stack(list(found)).set("twice", torch.stack(list(found))["number"] * 2)

        seen: list[type] = []
        buffer = library.ReplayBuffer(
            storage=getattr(library, storage)(20),
            sampler=library.SamplerWithoutReplacement(shuffle=False),
            collate_fn=collate,
            transform=lambda batch: batch.set("thrice", batch["number"] + batch["twice"]),
            batch_size=4,
        )
        buffer.extend(frames(20))
        return buffer.sample()["thrice"].tolist(), seen

    of_torchrl, of_windrow = [run(library) for library in LIBRARIES]
    assert of_windrow == of_torchrl
    assert of_windrow[0] == [0, 3, 6, 9]


def test_parts_may_be_made_by_functions() -> None:
    buffer = ReplayBuffer(
        storage=lambda: LazyTensorStorage(20),
        sampler=SamplerWithoutReplacement,
        transform_factory=lambda: lambda batch: batch.set("other", batch["number"]),
        batch_size=4,
    )
    buffer.extend(frames(4))
    assert sorted(buffer.sample()["other"].tolist()) == [0, 1, 2, 3]


def test_memory_is_pinned_where_there_is_a_gpu() -> None:
    assert buffer_of(pin_memory=True).sample()["number"].is_pinned() is torch.cuda.is_available()


@pytest.mark.parametrize(
    "sample",
    [
        lambda here, there: (here, [there], "text"),
        lambda here, there: {"here": here, 0: there},
        lambda here, there: TensorDict({"here": here, "inner": {"there": there}}, [3]).set(
            "text", NonTensorStack(*"abc")
        ),
    ],
    ids=["tuple", "dictionary", "TensorDict"],
)
def test_tensors_that_are_not_on_a_gpu_are_pinned_in_any_sample(
    sample: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pinned = []

    def pin(tensor: torch.Tensor) -> torch.Tensor:
        pinned.append(tensor.device.type)
        return tensor + 1

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    # In the place of a GPU.
    expected = sample(torch.ones(3), torch.zeros(3, device="meta"))
    found = buffer_of(
        pin_memory=True, transform=lambda _: sample(torch.zeros(3), torch.zeros(3, device="meta"))
    ).sample()
    assert pinned == ["cpu"] and type(found) is type(expected) and str(found) == str(expected)


class Add:
    """Adds to numbers of samples, and takes away from those of frames that are written."""

    def __init__(self, amount: int) -> None:
        self.amount = amount

    def __call__(self, batch: Any) -> Any:
        return batch.set("number", batch["number"] + self.amount)

    def inv(self, batch: Any) -> Any:
        return batch.clone().set("number", batch["number"] - self.amount)


def test_transforms_are_inserted_and_inverted() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(20), batch_size=4)
    double = Double()
    assert buffer.append_transform(double) is buffer
    buffer.insert_transform(0, Add(5))
    assert [type(transform) for transform in buffer.transform] == [Add, Double]
    buffer.extend(frames(1))
    assert buffer[:]["number"].tolist() == [-5]
    assert buffer.sample()["number"].tolist() == [0] * 4
    inverted = ReplayBuffer(storage=LazyTensorStorage(20), batch_size=4)
    inverted.append_transform(Add(5), invert=True).append_transform(double, invert=True)
    inverted.extend(frames(1, 3))
    assert inverted[:]["number"].tolist() == [11]
    assert inverted.sample()["number"].tolist() == [6] * 4


class Double:
    """Has no inverse."""

    def __call__(self, batch: Any) -> Any:
        return batch.set("number", batch["number"] * 2)


def test_where_an_inverse_is_none_nothing_is_written() -> None:
    class Refuse:
        def inv(self, batch: Any) -> None:
            return None

    for library in LIBRARIES:
        buffer = library.ReplayBuffer(storage=library.LazyTensorStorage(20), batch_size=4)
        if library is windrow.data:
            buffer.append_transform(Refuse())
            assert buffer.add(frames(1)[0]) is None
        else:
            from torchrl.envs.transforms import MultiStepTransform

            buffer.append_transform(MultiStepTransform(n_steps=50, gamma=0.9))
        assert len(buffer.extend(frames(2).set(("next", "reward"), torch.zeros(2, 1)))) == 0
        assert len(buffer) == 0


def test_threads_share_every_buffer() -> None:
    buffer = buffer_of(shared=True)
    assert buffer.share() is buffer


def test_a_storage_may_begin_with_frames() -> None:
    for library in LIBRARIES:
        buffer = library.ReplayBuffer(storage=library.TensorStorage(frames(6)), batch_size=4)
        assert len(buffer) == 6 and buffer[:]["number"].tolist() == list(range(6))
    roomy = ReplayBuffer(storage=TensorStorage(frames(6), max_size=8))
    roomy.extend(frames(3, 6))
    assert roomy[:]["number"].tolist() == [8, 1, 2, 3, 4, 5, 6, 7]
    stack = ReplayBuffer(storage=LazyStackStorage(6))
    stack.extend(frames(6))
    assert stack[:]["number"].tolist() == list(range(6))
    with pytest.raises(ValueError, match="stack_dim must be 0, got 1"):
        LazyStackStorage(6, stack_dim=1)


@pytest.mark.parametrize("way", [copy.deepcopy, lambda buffer: pickle.loads(pickle.dumps(buffer))])
def test_buffers_are_copied(way: Any) -> None:
    buffer = TensorDictPrioritizedReplayBuffer(
        alpha=1.0, beta=1.0, storage=LazyTensorStorage(20), batch_size=8, transform=Add(1), seed=3
    )
    buffer.extend(frames(10))
    buffer.update_priority(list(range(10)), [float(number) for number in range(10)])
    other = way(buffer)
    assert torch.equal(other.sample()["index"], buffer.sample()["index"])
    other.empty()
    assert len(buffer) == 10 and len(other) == 0


def _check_copies(copies: list[Any]) -> None:
    """Ends its process with an error unless each has frames 0 to 9."""
    for buffer in copies:
        assert buffer[:]["number"].tolist() == list(range(10)), buffer
        buffer.extend(frames(5))


def test_processes_of_multiprocessing_are_sent_copies() -> None:
    storages = [
        LazyTensorStorage(20),
        LazyTensorStorage(20, shared_init=True),
        LazyMemmapStorage(20),
        ListStorage(20),
    ]
    buffers = [
        kind(storage=storage, batch_size=4)
        for storage in storages
        for kind in (ReplayBuffer, TensorDictReplayBuffer)
    ]
    for buffer in buffers:
        buffer.extend(frames(10))
    process = multiprocessing.get_context("spawn").Process(target=_check_copies, args=(buffers,))
    with pytest.warns(
        UserWarning, match="a ReplayBuffer that is sent to another process is a copy there"
    ):
        process.start()
    process.join(120)
    assert process.exitcode == 0 and {len(buffer) for buffer in buffers} == {10}


def test_a_buffer_with_a_directory_of_its_own_is_not_copied(tmp_path: Path) -> None:
    buffer = ReplayBuffer(storage=LazyMemmapStorage(20, scratch_dir=tmp_path))
    with pytest.raises(TypeError, match="which one buffer has for itself"):
        copy.deepcopy(buffer)


@pytest.mark.parametrize(
    ("module", "names"),
    [
        (
            "data.replay_buffers",
            ["ReplayBuffer", "SliceSampler", "TensorStorage", "RoundRobinWriter"],
        ),
        (
            "data.replay_buffers.replay_buffers",
            ["ReplayBuffer", "TensorDictPrioritizedReplayBuffer"],
        ),
        ("data.replay_buffers.samplers", ["SamplerWithoutReplacement", "PrioritizedSliceSampler"]),
        ("data.replay_buffers.storages", ["LazyMemmapStorage", "LazyStackStorage", "ListStorage"]),
        ("data.replay_buffers.writers", ["TensorDictMaxValueWriter"]),
        ("data.postprocs", ["MultiStep"]),
        ("collectors.utils", ["split_trajectories"]),
    ],
)
def test_modules_are_where_torchrl_has_them(module: str, names: list[str]) -> None:
    for name in names:
        assert hasattr(importlib.import_module(f"torchrl.{module}"), name)
        assert getattr(importlib.import_module(f"windrow.{module}"), name) is getattr(
            windrow.data, name
        )


def test_an_ensemble_of_torchrls_refuses_buffers_of_windrow() -> None:
    with pytest.raises(
        TypeError,
        match="expected buffers of torchrl.data in an ensemble of TorchRL's, got one of windrow's",
    ):
        torchrl.data.ReplayBufferEnsemble(ReplayBuffer(), ReplayBuffer(), batch_size=4)


def postprocessed() -> TensorDict:
    number = torch.arange(24)
    ends = (number % 7 == 6)[:, None]
    following = TensorDict(
        {
            "reward": number[:, None].float(),
            "observation": number[:, None],
            "done": ends,
            "terminated": ends.clone(),
        },
        [24],
    )
    return TensorDict({"number": number, "episode": (number // 5).int(), "next": following}, [24])


@pytest.mark.parametrize("n_steps", [1, 3, 50])
@pytest.mark.parametrize("shape", [(24,), (2, 12)])
def test_multi_step_is_that_of_torchrl(n_steps: int, shape: tuple[int, ...]) -> None:
    batch = postprocessed().reshape(shape)
    theirs = torchrl.data.MultiStep(0.9, n_steps)(batch.clone())
    ours = MultiStep(0.9, n_steps).to("cpu")(batch)
    for key in theirs.keys(True, True):
        assert ours[key].shape == theirs[key].shape, key
        assert torch.allclose(ours[key].float(), theirs[key].float()), key
    assert ours[ours["nonterminal"]].ndim == 1


@pytest.mark.parametrize("device", [None, "cpu"])
@pytest.mark.parametrize("names", [[None, None], [None, "time"]])
def test_multi_step_and_splitting_leave_the_device_and_multi_step_the_names(
    device: str | None, names: list[str | None]
) -> None:
    batch = postprocessed().reshape(2, 12).to(device)
    batch.names = names
    stepped = MultiStep(0.9, 3)(batch)
    assert (stepped.names, stepped.device) == (names, batch.device)
    split = split_trajectories(batch)
    assert split.device == batch.device == split["next"].device


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"prefix": "collector"},
        {"prefix": "other"},
        {"trajectory_key": "episode"},
        {"trajectory_key": ("nested", "ids")},
        {"done_key": "terminated"},
        {"done_key": "terminated", "prefix": "other"},
    ],
    ids=str,
)
@pytest.mark.parametrize("with_ids", [True, False])
def test_trajectories_are_split_as_by_torchrl(arguments: dict[str, Any], with_ids: bool) -> None:
    from torchrl.collectors.utils import split_trajectories as split_by_torchrl

    batch = postprocessed()
    if with_ids:
        batch["collector", "traj_ids"] = torch.arange(24) // 9
        batch["nested", "ids"] = torch.arange(24) // 11
    theirs, ours = (
        split_by_torchrl(batch.clone(), **arguments),
        split_trajectories(batch, **arguments),
    )
    assert ours.shape == theirs.shape
    assert set(ours.keys(True, True)) == set(theirs.keys(True, True))
    for key in theirs.keys(True, True):
        # All values are at least 0, except for the ids of padding: TorchRL has 0, windrow -1.
        assert torch.equal(ours[key].float().clamp(min=0), theirs[key].float()), key


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("shape", [(24,), (2, 12)])
@pytest.mark.parametrize("with_ids", [True, False])
def test_nested_trajectories_are_those_of_torchrl(with_ids: bool, shape: tuple[int, ...]) -> None:
    from torchrl.collectors.utils import split_trajectories as split_by_torchrl

    batch = postprocessed()
    if with_ids:
        batch["collector", "traj_ids"] = torch.tensor([0] * 5 + [1] * 7 + [2] * 9 + [3] * 3)
    batch = batch.reshape(shape)
    theirs, ours = (
        split_by_torchrl(batch.clone(), as_nested=True),
        split_trajectories(batch, as_nested=True),
    )
    assert ours.shape == theirs.shape and set(ours.keys(True, True)) == set(theirs.keys(True, True))
    for key in theirs.keys(True, True):
        pairs = zip(ours[key].unbind(), theirs[key].unbind(), strict=True)
        assert ours[key].is_nested and all(torch.equal(own, its) for own, its in pairs), key


def test_a_mask_may_have_a_dimension_of_one_more() -> None:
    batch = postprocessed().reshape(2, 12)
    mask = torch.arange(12).expand(2, 12) < torch.tensor([[12], [7]])
    flat = MultiStep(0.9, 3)(batch.clone().set(("collector", "mask"), mask))
    theirs = torchrl.data.MultiStep(0.9, 3)(
        batch.clone().set(("collector", "mask"), mask[..., None])
    )
    ours = MultiStep(0.9, 3)(batch.clone().set(("collector", "mask"), mask[..., None]))
    assert torch.equal(ours["next", "reward"], flat["next", "reward"]) and ours[
        "collector", "mask"
    ].shape == (2, 12, 1)
    # Theirs looks ahead beyond the mask.
    assert torch.allclose(ours["next", "reward"][:, :5], theirs["next", "reward"][:, :5])
    split = split_trajectories(batch.set(("collector", "mask"), mask[..., None]))
    assert int(split["collector", "mask"].sum()) == int(mask.sum())


def test_trajectories_that_cannot_be_split() -> None:
    with pytest.raises(
        ValueError, match=r"expected the ids \('ids',\) or the flag \('next', 'over'\)"
    ):
        split_trajectories(postprocessed(), trajectory_key="ids", done_key="over")
