"""Data sets of Minari, read by Minari."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import minari
import numpy as np
import pytest
import torch
from tensordict import TensorDict

from episodes import by_content, steps
from windrow.collectors import Collector
from windrow.data import MinariSink, ReplayBuffer
from windrow.envs import GymEnv


@pytest.mark.parametrize("one_hot", [True, False])
def test_minari_reads_the_episodes_that_were_collected(
    one_hot: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def collector(**to: Any) -> Collector:
        env = GymEnv("CartPole-v1", num_envs=4, categorical_action_encoding=not one_hot)
        return Collector(env, frames_per_batch=100, total_frames=600, seed=3, **to)

    for _ in range(2):
        with MinariSink(
            tmp_path / "tests" / "pole-v1",
            env="CartPole-v1",
            rows_per_file=200,
            dataset_id="tests/pole-v1",
        ) as sink:
            assert len(list(collector(replay_buffer=sink))) == 6
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    dataset = minari.load_dataset("tests/pole-v1")
    assert (
        (dataset.total_steps, dataset.total_episodes)
        == (sink.num_rows, sink.num_episodes)
        == (1200, len(list(dataset)))
    )
    assert (
        dataset.recover_environment().spec.id == "CartPole-v1"
        and dataset.action_space == gym.make("CartPole-v1").action_space
    )
    rows = []
    for episode in dataset:
        assert episode.terminations[-1] or episode.truncations[-1]
        assert not (episode.terminations | episode.truncations)[:-1].any()
        action = np.eye(2)[episode.actions] if one_hot else episode.actions[:, None]
        rows.append(
            np.concatenate(
                [
                    episode.observations[:-1],
                    action,
                    episode.observations[1:],
                    episode.rewards[:, None],
                ],
                1,
            )
        )
    expected = by_content(torch.cat([batch.reshape(-1).clone() for batch in collector()]))
    assert sorted(map(tuple, np.concatenate(rows).tolist())) == sorted(expected * 2)


@pytest.mark.parametrize(
    "source",
    [
        lambda path: path,
        lambda path: path / "data",
        lambda path: minari.MinariDataset(path / "data"),
    ],
)
def test_a_buffer_has_the_frames_of_a_data_set_of_minari(source: Any, tmp_path: Path) -> None:
    with MinariSink(tmp_path) as sink:
        batch = steps([3, 5]).set("action", torch.rand(8, 2))
        batch["next", "observation"] = batch["observation"] + torch.tensor([0.0, 1.0])
        sink.extend(batch)
    found = ReplayBuffer.from_dataset(source(tmp_path))[:]
    for key in (
        "observation",
        ("next", "observation"),
        "action",
        ("next", "reward"),
        ("next", "done"),
        ("collector", "traj_ids"),
    ):
        assert torch.equal(found[key], batch[key]), key


def test_observations_in_dictionaries_keep_their_names(tmp_path: Path) -> None:
    space = gym.spaces.Dict(
        {
            "eye": gym.spaces.Box(0, 255, (40, 40, 3), np.uint8),
            "arm": gym.spaces.Dict({"joint": gym.spaces.Discrete(4, start=2)}),
        }
    )
    batch = TensorDict({"action": torch.rand(6, 2)}, [6])
    eye, joint = torch.randint(256, (7, 40, 40, 3), dtype=torch.uint8), torch.randint(2, 6, (7,))
    batch["eye"], batch["next", "eye"] = eye[:-1], eye[1:]
    batch["arm", "joint"], batch["next", "arm", "joint"] = joint[:-1], joint[1:]
    batch["next", "reward"], batch["next", "done"] = (
        torch.rand(6, 1),
        (torch.arange(6) == 5)[:, None],
    )
    with MinariSink(tmp_path, observation_space=space) as sink:
        sink.extend(batch)
    episode = minari.MinariDataset(tmp_path / "data")[0]
    assert np.array_equal(episode.observations["eye"], eye) and np.array_equal(
        episode.observations["arm"]["joint"], joint
    )
    found = ReplayBuffer.from_dataset(tmp_path)[:]
    for key in ("eye", ("next", "eye"), ("arm", "joint"), ("next", "arm", "joint"), "action"):
        assert torch.equal(found[key], batch[key]), key


def nested(names: list[str]) -> tuple[gym.spaces.Dict, TensorDict]:
    """A space of observations with these names, and an episode of them."""
    batch = TensorDict({"action": torch.rand(4, 2), "next": {"reward": torch.rand(4, 1)}}, [4])
    for name in names:
        batch[name], batch["next", name] = torch.rand(4, 1), torch.rand(4, 1)
    batch["next", "done"] = (torch.arange(4) == 3)[:, None]
    return gym.spaces.Dict({name: gym.spaces.Box(0, 1, (1,)) for name in names}), batch


def test_observations_with_the_names_of_others_columns_come_back_as_they_were(
    tmp_path: Path,
) -> None:
    names = ["episode", "episode_index", "state", "observations", "dones"]
    space, batch = nested(names)
    with MinariSink(tmp_path, observation_space=space) as sink:
        sink.extend(batch)
    found = ReplayBuffer.from_dataset(tmp_path)[:]
    assert all(torch.equal(found[name], batch[name]) for name in names)
    assert found["collector", "traj_ids"].tolist() == [0] * 4


@pytest.mark.parametrize(
    "name", ["action", "next", "collector", "reward", "done", "terminated", "truncated"]
)
def test_an_observation_with_the_name_of_another_entry_is_refused(
    name: str, tmp_path: Path
) -> None:
    space, batch = nested(["a"])
    space = gym.spaces.Dict({"a": space["a"], name: space["a"]})
    told = f"observation '{name}' of the dictionary: this is the name of another entry"
    with (
        MinariSink(tmp_path, observation_space=space) as sink,
        pytest.raises(ValueError, match=told),
    ):
        sink.extend(batch)


def test_folders_of_numbers_are_kept_where_no_data_set_is(tmp_path: Path) -> None:
    (tmp_path / "data" / "2026").mkdir(parents=True)
    (tmp_path / "data" / "2026" / "a").write_text("a")
    MinariSink(tmp_path).close()
    assert (tmp_path / "data" / "2026" / "a").exists()


def test_episodes_that_no_metadata_count_are_removed(tmp_path: Path) -> None:
    def write(first: int) -> MinariSink:
        with MinariSink(tmp_path) as sink:
            sink.extend(
                steps([2], first=first)
                .set("action", torch.rand(2, 1))
                .set(("next", "observation"), torch.zeros(2, 2))
            )
        return sink

    write(0)
    # A process was killed while it wrote the second one.
    (tmp_path / "data" / "1").mkdir()
    (tmp_path / "data" / "1" / "part-7.parquet").write_bytes(b"PAR1")
    assert minari.MinariDataset(tmp_path / "data").total_episodes == 1
    assert write(1).num_episodes == 2
    assert [episode.observations[0, 0] for episode in minari.MinariDataset(tmp_path / "data")] == [
        0,
        1,
    ]


def test_what_minari_cannot_have_is_an_error(tmp_path: Path) -> None:
    batch = steps([2]).set(("next", "observation"), torch.zeros(2, 2))
    for action, told in (
        (torch.arange(2), "give MinariSink env=... or action_space=..."),
        (None, "expected an entry action"),
    ):
        with MinariSink(tmp_path) as sink, pytest.raises(ValueError, match=told):
            sink.extend(batch if action is None else batch.clone().set("action", action))
    space = gym.spaces.Box(-1, 1, (3,))
    with (
        MinariSink(tmp_path, action_space=space) as sink,
        pytest.raises(ValueError, match=r"action: expected \[3\], as its space has, got \[2\]"),
    ):
        sink.extend(batch.set("action", torch.rand(2, 2)))
    with pytest.raises(
        ValueError, match="dataset_id: expected namespace/name-v0 or name-v0, got 'a b'"
    ):
        MinariSink(tmp_path / "other", dataset_id="a b")
