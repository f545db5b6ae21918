"""What a user sees of everything that can go wrong in a worker process. Nothing hangs, and no
process is left.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
import torch

import faulty
from faulty import ENDS, PLACES, RAISES, Faulty
from room import children
from waiting import until
from windrow import WorkerError
from windrow.collectors import Collector, MultiSyncCollector
from windrow.envs import FiniteTensorDictCheck, GymWrapper, TransformedEnv

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="worker processes need Linux")


@pytest.fixture(autouse=True)
def no_process_is_left() -> Iterator[None]:
    before = children()
    yield
    until(lambda: children() <= before)


Build = Callable[..., Any]


@pytest.fixture
def build() -> Iterator[Build]:
    """Builds a collector with workers in processes, and ends it after the test."""
    built: list[Any] = []

    def make(*envs: Any, **options: Any) -> Any:
        kind = MultiSyncCollector if len(envs) > 1 else Collector
        options = {
            "frames_per_batch": 20 * len(envs),
            "total_frames": -1,
            "placement": "processes",
            "seed": 3,
            **options,
        }
        built.append(kind(list(envs) if len(envs) > 1 else envs[0], **options))
        return built[-1]

    yield make
    for collector in built:
        collector.shutdown(raise_on_error=False)


@pytest.fixture
def env(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[Callable[[], None], str], Any]]:
    """Makes environments that call a function at a place, of which ``import`` is a module of the
    user's that calls it in workers.
    """
    monkeypatch.syspath_prepend(tmp_path)
    modules = []

    def at(act: Callable[[], None], place: str) -> Any:
        if place != "import":
            return partial(Faulty, act, place)
        name = f"users_{act.__name__}"
        (tmp_path / f"{name}.py").write_text(
            f"import os, faulty\nif os.getpid() != {os.getpid()}:\n    faulty.{act.__name__}()\ndef make(): return faulty.Faulty(None, '')\n"
        )
        modules.append(name)
        return importlib.import_module(name).make

    yield at
    for name in modules:
        del sys.modules[name]


def run(build: Build, env: Any) -> Any:
    """Collects, and returns the error."""
    with pytest.raises(BaseException) as caught:
        collector = build(env)
        for _ in range(5):
            next(collector)
    return caught.value


#: Episode and step of the failure, where an environment has begun one.
STANDS = {"reset": (1, 0), "step": (1, 6)}


@pytest.mark.parametrize("place", PLACES[:-1])
@pytest.mark.parametrize("act", RAISES, ids=lambda act: act.__name__)
def test_an_exception_is_the_one_that_was_raised(
    build: Build, env: Any, act: Callable[[], None], place: str
) -> None:
    name, words = RAISES[act]
    error = run(build, env(act, place))
    is_failure = act not in (
        faulty.system_exit,
        faulty.interrupt,
        faulty.generator_exit,
        faulty.alarm,
    )
    if place in STANDS and is_failure:
        assert type(error) is WorkerError
        assert (error.worker, error.env, (error.episode, error.step)) == (0, 0, STANDS[place])
        assert f"in {act.__name__}" in str(error), "the traceback is in the message"
        error = error.__cause__
    assert type(error).__name__ == name
    assert words in str(error)
    told = str(error.__cause__)
    assert f"in {act.__name__}" in told
    for known in {
        "group": ["one of two", "two of two"],
        "chained": ["no wire", "direct cause"],
    }.get(act.__name__, []):
        assert known in told


@pytest.mark.parametrize("act", RAISES, ids=lambda act: act.__name__)
def test_an_exception_of_close_is_shown_and_harms_nothing(
    build: Build, env: Any, act: Callable[[], None], capfd: pytest.CaptureFixture[str]
) -> None:
    collector = build(env(act, "close"))
    assert next(collector).numel() == 20
    collector.shutdown()
    shown = capfd.readouterr().err
    assert f"in {act.__name__}" in shown and "Faulty" in shown, shown


@pytest.mark.parametrize("place", PLACES[:-1])
@pytest.mark.parametrize("act", ENDS, ids=lambda act: act.__name__)
def test_the_end_of_a_process_is_told_with_its_place_and_last_words(
    build: Build, env: Any, act: Callable[[], None], place: str
) -> None:
    error = run(build, env(act, place))
    assert ENDS[act] in str(error)
    assert "my last words" in str(error)
    if act is faulty.crash:
        assert (
            f"in {place if place != 'constructor' else '__init__'}" in str(error)
            or place == "import"
        )
        assert "in crash" in str(error), "the stack that Python shows"
    if place in STANDS:
        assert type(error) is WorkerError
        # The new episode has not begun.
        stands = (0, 9) if place == "reset" else STANDS[place]
        assert (error.worker, error.env, (error.episode, error.step)) == (0, 0, stands)
        assert "it was in `" + place in str(error)
    else:
        assert "worker 0" in str(error)
    if place == "step":
        assert "last action of its environment was [" in str(error)


@pytest.mark.parametrize("act", ENDS, ids=lambda act: act.__name__)
def test_the_end_of_a_process_in_close_is_told_by_the_shutdown(
    build: Build, env: Any, act: Callable[[], None]
) -> None:
    collector = build(env(act, "close"))
    assert next(collector).numel() == 20
    with pytest.raises(WorkerError, match="my last words") as caught:
        collector.shutdown()
    assert ENDS[act] in str(caught.value)
    collector.shutdown()


def test_an_answer_may_be_of_any_length(build: Build, env: Any) -> None:
    collector = build(env(faulty.leave, "never"))
    assert len(collector.get_distant_attr("env.large")) == 65 << 20
    assert next(collector).numel() == 20


def test_a_worker_without_memory_raises_what_python_raises(build: Build, env: Any) -> None:
    error = run(build, env(faulty.starve, "step"))
    assert type(error) is WorkerError and (error.worker, error.env, error.step) == (0, 0, 6)
    assert "MemoryError" in str(error) or "signal" in str(error), error


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("nan", ["NaN", '"a"']),
        ("reward", ["NaN", "reward"]),
        ("shape", ['"a"', "expected float32 (2,), got float32 (3,)"]),
        ("dtype", ['"b"', "expected int64 (), got float64 ()"]),
        ("missing", ['"b"', "expected a value, got nothing"]),
        ("text", ['"a"', "two numbers"]),
        ("five", ["expected (observation, reward, terminated, truncated, info)"]),
    ],
)
def test_what_an_environment_must_not_return_is_named(
    build: Build, how: str, told: list[str]
) -> None:
    def checked() -> Any:
        return TransformedEnv(GymWrapper(faulty.Bad(how)), FiniteTensorDictCheck())

    error = run(build, checked)
    assert type(error) is WorkerError
    assert (error.worker, error.env, (error.episode, error.step)) == (0, 0, (1, 6))
    assert all(words in str(error) for words in told), error


def test_an_array_that_an_environment_goes_on_writing_to_keeps_its_values(build: Build) -> None:
    kept, fresh = (next(build(partial(faulty.Bad, how))) for how in ("kept", ""))
    assert torch.equal(kept["a"], fresh["a"]) and torch.equal(kept["next", "a"], fresh["next", "a"])


def test_a_loss_is_raised_or_replaced_up_to_a_budget_or_left_out(build: Build) -> None:
    dying, well = partial(Faulty, faulty.leave, "step"), partial(Faulty, faulty.leave, "never")
    collector = build(dying, well)
    with pytest.raises(WorkerError, match="exit status 3"):
        for _ in range(5):
            next(collector)
    with pytest.raises(RuntimeError, match="ended by an error: worker 0"):
        next(collector)

    collector = build(dying, well, on_loss=2)
    with pytest.raises(WorkerError, match="exit status 3"):
        for _ in range(9):
            next(collector)
    assert collector.stats()["restarts"] == 2
    told = collector.losses()
    assert len(told) == 2 and all("my last words" in loss for loss in told)

    collector = build(dying, well, on_loss="continue")
    for _ in range(9):
        batch = next(collector)
    assert batch["next", "observation"][:, 0].max() > 20
    assert (collector.stats()["workers_alive"], len(collector.losses()), collector.losses()) == (
        1,
        1,
        [],
    )


@pytest.mark.parametrize("act", [faulty.ordinary, faulty.leave], ids=lambda act: act.__name__)
def test_a_worker_that_cannot_be_replaced_is_an_error(
    build: Build, act: Callable[[], None], tmp_path: Path
) -> None:
    mark = tmp_path / "begun"

    def once() -> gym.Env:
        if mark.exists():
            act()
        mark.touch()
        return Faulty(faulty.ordinary, "step")

    error = run(partial(build, on_loss=5), once)
    assert type(error) is WorkerError and error.worker == 0
    assert ("no such road" if act is faulty.ordinary else "exit status 3") in str(error)
