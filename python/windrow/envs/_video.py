"""Videos of evaluations."""

from __future__ import annotations

import contextlib
import itertools
import os
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from windrow import _needs
from windrow._lazy import module
from windrow._types import Array
from windrow.envs._base import EnvBase, Wrapped
from windrow.envs._factory import is_function

if TYPE_CHECKING:
    from windrow.envs._adapters import Film

_adapters = module("windrow.envs._adapters")
_gym = module("windrow.envs.libs.gym")


class Video:
    """Films the first episode of each evaluation, in one environment of Gymnasium.

    Args:
        folder: where videos go, as ``<prefix>_<step>.mp4``; it is made with the first one.
        prefix: what their names begin with.
    """

    def __init__(self, folder: Path, prefix: str) -> None:
        self._folder, self._prefix = folder, prefix
        #: The environments that are filmed. A new one takes the place of another after a failure.
        self._films: weakref.WeakSet[Any] = weakref.WeakSet()

    def __reduce__(self) -> tuple[Any, ...]:
        return Video, (self._folder, self._prefix)

    def around(self, make: Any) -> Film:
        """The environment ``make``, or that ``make()`` returns, which is filmed from now on.

        Raises:
            ValueError: it does not render pictures.
        """
        env = make() if is_function(make) else make
        mode = getattr(env, "render_mode", None)
        if mode != "rgb_array":
            raise ValueError(
                f'video needs an environment that was made with render_mode="rgb_array", got render_mode={mode!r} of {env}'
            )
        return _adapters.Film(env, self)

    def add(self, film: Film) -> None:
        """Has :meth:`dump` ask ``film``, as long as something steps it, for its recording."""
        self._films.add(film)

    def begin(self, rate: float) -> Recording:
        """A recording of so many pictures a second."""
        return Recording(self._folder, self._prefix, rate)

    def dump(self, step: int) -> None:
        """Writes the video of the evaluation of ``step``.

        Raises:
            RuntimeError: nothing was filmed.
            OSError: it cannot be written.
        """
        recorded = [recording for film in self._films if (recording := film.take()) is not None]
        if not recorded:
            raise RuntimeError(
                f"no frame was rendered for the video of the evaluation of step {step}"
            )
        # Others were left by an evaluation that failed.
        newest = max(recorded, key=lambda recording: recording.number)
        newest.move_to(self._folder / f"{self._prefix}_{step}.mp4")


class Recording:
    """Pictures that ffmpeg writes to a hidden file in ``folder``, which has a name of its own once
    it is whole.
    """

    _numbers = itertools.count()

    def __init__(self, folder: Path, prefix: str, rate: float) -> None:
        self._ffmpeg = _needs.module("video", "imageio_ffmpeg", "video")
        #: Later ones have larger numbers.
        self.number = next(self._numbers)
        self._path, self._rate = folder / f".{prefix}.{os.getpid()}.{self.number}.mp4", rate
        self._writer: Any = None
        self._shape: tuple[int, ...] = ()

    def add(self, picture: Array) -> None:
        """Adds a picture, ``uint8 [height, width, 3]``."""
        if self._writer is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._shape = picture.shape
            height, width, _ = self._shape
            # Encoders take even numbers of pixels: others are rounded.
            self._writer = self._ffmpeg.write_frames(
                os.fspath(self._path),
                (width, height),
                fps=self._rate,
                macro_block_size=2,
                ffmpeg_log_level="error",
            )
            self._writer.send(None)
        if picture.shape != self._shape:
            raise ValueError(
                f"pictures of a video have one shape, expected {self._shape}, got {picture.shape}"
            )
        self._writer.send(picture.tobytes())

    def move_to(self, path: Path) -> None:
        """Ends the file, and gives it its name."""
        self._end()
        os.replace(self._path, path)

    def _end(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self._end()
            self._path.unlink(missing_ok=True)


def filmed(env: object, video: Video) -> tuple[Any, list[Callable[[], None]]]:
    """``env``, or a function that makes it, filmed for ``video``, and functions that end that.

    Raises:
        TypeError: it is no single environment of Gymnasium.
        ValueError: it does not render pictures.
    """
    if is_function(env):
        return partial(_made, env, video), []
    if isinstance(env, EnvBase):
        return env, _film(env, video)
    if isinstance(env, str):
        return filmed(_gym.env_of(env), video)
    if hasattr(env, "render_mode") and not hasattr(env, "num_envs"):
        return video.around(env), []
    raise _unfilmed(env)


def _made(make: Callable[..., Any], video: Video, **arguments: Any) -> object:
    """What ``make`` returns, filmed."""
    return filmed(make(**arguments), video)[0]


def _film(env: Any, video: Video) -> list[Callable[[], None]]:
    layers = list(_layers(env))
    base = layers[-1]
    before = dict(vars(base))
    if isinstance(base, Wrapped):
        base._env, _ = filmed(base._env, video)
    elif (
        isinstance(base, _gym.GymEnv) and not base._num_envs and not hasattr(base._name, "num_envs")
    ):
        base._film_for(video)
    else:
        raise _unfilmed(env)

    def make_anew() -> None:
        for layer in layers:
            layer._source = layer._handle = layer._facts = None

    def undo() -> None:
        vars(base).update(before)
        make_anew()

    make_anew()
    return [undo]


def _layers(env: Any) -> Iterator[Any]:
    """``env`` and what its transforms are around, the innermost last."""
    while env is not None:
        yield env
        env = vars(env).get("base_env")


def _unfilmed(env: object) -> TypeError:
    return TypeError(
        f"video films one environment of Gymnasium, by its id, as a GymEnv or as an object, got {env!r}: environments of TorchRL are filmed by "
        "a VideoRecorder among their transforms"
    )
