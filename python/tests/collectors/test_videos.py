"""Videos of evaluations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.classic_control import CartPoleEnv
from torch import nn

from windrow import WorkerError
from windrow.collectors import Evaluator
from windrow.envs import GymEnv, SerialEnv, StepCounter, TransformedEnv

ffmpeg = pytest.importorskip("imageio_ffmpeg")


def frames_of(path: Path) -> tuple[int, tuple[int, int]]:
    """How many pictures a video has, and their width and height."""
    read = ffmpeg.read_frames(str(path))
    size = next(read)["size"]
    return sum(1 for _ in read), size


def drawn() -> Any:
    return gymnasium.make("CartPole-v1", render_mode="rgb_array")


FORMS: dict[str, Any] = {
    "id": lambda: "CartPole-v1",
    "GymEnv": lambda: GymEnv("CartPole-v1"),
    "transformed": lambda: TransformedEnv(GymEnv("CartPole-v1"), StepCounter()),
    "function": lambda: drawn,
    "function of a GymEnv": lambda: lambda: GymEnv("CartPole-v1"),
    "object": drawn,
    "transformed object": lambda: TransformedEnv(drawn(), StepCounter()),
}


@pytest.mark.parametrize("backend", ["thread", "process"])
@pytest.mark.parametrize("form", FORMS)
def test_each_evaluation_writes_a_video_of_its_first_episode(
    form: str, backend: Any, tmp_path: Path
) -> None:
    folder = tmp_path / "videos"
    with Evaluator(
        FORMS[form](),
        nn.Linear(4, 2),
        num_trajectories=1,
        max_steps=20,
        seed=0,
        backend=backend,
        video=folder,
    ) as evaluator:
        lengths = [evaluator.evaluate(step=step)["eval/episode_length"] for step in (100, 200)]
    assert sorted(path.name for path in folder.iterdir()) == ["eval_100.mp4", "eval_200.mp4"]
    # The first picture is that of the reset.
    assert [frames_of(folder / f"eval_{step}.mp4") for step in (100, 200)] == [
        (1 + length, (600, 400)) for length in lengths
    ]


def test_an_environment_is_native_again_after_its_evaluator(tmp_path: Path) -> None:
    env = GymEnv("CartPole-v1")
    with Evaluator(
        env, num_trajectories=1, backend="thread", video=tmp_path, log_prefix="test"
    ) as evaluator:
        assert env.backend == "gymnasium"
        evaluator.evaluate()
    assert env.backend == "native" and (tmp_path / "test_0.mp4").exists()


def test_episodes_are_the_same_with_and_without_a_video(tmp_path: Path) -> None:
    policy = nn.Linear(4, 2)
    plain = Evaluator("CartPole-v1", policy, num_trajectories=3, seed=1).evaluate()
    filmed = Evaluator("CartPole-v1", policy, num_trajectories=3, seed=1, video=tmp_path).evaluate()
    assert plain["eval/reward"] == filmed["eval/reward"]


@pytest.mark.parametrize("backend", ["thread", "process"])
def test_a_video_that_cannot_be_written_is_the_error_of_its_evaluation(
    backend: Any, tmp_path: Path
) -> None:
    (tmp_path / "videos").write_text("a file, not a folder")
    with Evaluator(
        "CartPole-v1", num_trajectories=1, backend=backend, video=tmp_path / "videos"
    ) as evaluator:
        with pytest.raises((OSError, RuntimeError), match="videos"):
            evaluator.evaluate()
        (tmp_path / "videos").unlink()
        (tmp_path / "videos" / "eval_7.mp4").mkdir(parents=True)
        with pytest.raises((OSError, RuntimeError), match="eval_7.mp4"):
            evaluator.evaluate(step=7)
        evaluator.evaluate(step=8)
    assert frames_of(tmp_path / "videos" / "eval_8.mp4")[0] > 5


class Growing(CartPoleEnv):
    """Pictures of which each is larger than the one before."""

    def render(self) -> Any:
        self.height = getattr(self, "height", 0) + 8
        return np.zeros((self.height, 32, 3), np.uint8)


@pytest.mark.parametrize(
    ("env", "error", "told"),
    [
        (
            gymnasium.make("CartPole-v1"),
            ValueError,
            'an environment that was made with render_mode="rgb_array", got render_mode=None',
        ),
        (
            lambda: gymnasium.make("CartPole-v1"),
            ValueError,
            'an environment that was made with render_mode="rgb_array", got render_mode=None',
        ),
        (
            GymEnv("CartPole-v1", backend="native"),
            ValueError,
            "native environments cannot be drawn",
        ),
        (GymEnv("CartPole-v1", num_envs=2), TypeError, "video films one environment of Gymnasium"),
        (SerialEnv(2, drawn), TypeError, "video films one environment of Gymnasium"),
        (
            lambda: Growing(render_mode="rgb_array"),
            WorkerError,
            r"one shape, expected \(8, 32, 3\), got \(16, 32, 3\)",
        ),
    ],
)
def test_what_cannot_be_filmed_is_refused(env: Any, error: Any, told: str, tmp_path: Path) -> None:
    with (
        pytest.raises(error, match=told),
        Evaluator(env, num_trajectories=1, backend="thread", video=tmp_path) as evaluator,
    ):
        evaluator.evaluate()
