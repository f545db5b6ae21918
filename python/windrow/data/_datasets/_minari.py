"""Minari: a folder for each episode, and ``metadata.json``, which says how many of them are
there.
"""

import json
import re
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from windrow import _needs
from windrow._arguments import argument
from windrow._lazy import gymnasium, numpy
from windrow._types import Array
from windrow.data._datasets._columns import (
    DONE,
    IDS,
    TERMINATED,
    TRUNCATED,
    Columns,
    Format,
    Layout,
    Named,
    Path as Entry,
    described,
    layout_from,
    layout_of,
)
from windrow.data._datasets._folder import Folder, flush, named_errors
from windrow.data._datasets._parquet import arrow_of
from windrow.data._datasets._sink import Sink, SinkArguments, Writer, takes

_METADATA = "data/metadata.json"
_REWARD = ("next", "reward")
#: Frames that a reader joins before it passes them on.
_TOGETHER = 2**16


class MinariArguments(SinkArguments):
    """Arguments of a sink of Minari."""

    env: Any = argument(
        "the environment, or its id, whose spaces and specification the data set has",
        more="an integer action needs it, or ``action_space``: it may be one of so many choices, or a number",
        default=None,
    )
    observation_space: Any = argument("of Gymnasium, in place of the environment's", default=None)
    action_space: Any = argument("of Gymnasium, in place of the environment's", default=None)
    dataset_id: str | None = argument(
        "``namespace/name-v0``; by default the name of the folder", default=None
    )


class MinariSink(Sink):
    """Writes whole episodes as a data set of Minari, which ``minari.load_dataset`` loads from below
    ``MINARI_DATASETS_PATH``, and ``minari.MinariDataset(path / "data")`` from anywhere.

    The data set has what the format has: observations, among them the last one of an episode,
    actions, rewards and flags. Actions of a ``Discrete`` space are numbers, also where the
    collector's are one-hot. Pictures are kept as they are. An episode is visible when
    ``metadata.json`` counts it, which happens when all of it is on the disk. A sink of a folder
    that is there goes on with it.

    Each episode is a folder, as Minari reads it, so episodes of a few frames take longer than in
    other formats.

    Raises:
        ImportError: Minari or pyarrow is not installed.
        RuntimeError: another sink writes the folder.
        ValueError: the identifier is none, or spaces are missing.
        OSError: the folder cannot be written.
    """

    @takes(MinariArguments)
    def __init__(self, arguments: MinariArguments) -> None:
        parquet = _needs.module("MinariSink", "pyarrow.parquet", "minari")
        minari = _needs.module("MinariSink", "minari", "minari")
        self._begin(arguments, lambda folder: _MinariWriter(folder, minari, parquet, arguments))


class _MinariWriter(Writer):
    def __init__(
        self, folder: Folder, minari: Any, parquet: Any, arguments: MinariArguments
    ) -> None:
        super().__init__(folder)
        self._parquet = parquet
        self._data = folder.path / "data"
        path = folder.path / _METADATA
        if path.exists():
            self._about = json.loads(path.read_text())
            if "windrow_columns" not in self._about:
                raise self.foreign(path)
            self.rows, self.episodes = self._about["total_steps"], self._about["total_episodes"]
            self.layout = layout_from(self._about["windrow_columns"])
            read = minari.serialization.deserialize_space
            self._spaces = tuple(
                read(self._about[name]) for name in ("observation_space", "action_space")
            )
        else:
            env = gymnasium.make(arguments.env) if isinstance(arguments.env, str) else arguments.env
            self._spaces = tuple(
                given if given is not None else getattr(env, name, None)
                for name, given in (
                    ("observation_space", arguments.observation_space),
                    ("action_space", arguments.action_space),
                )
            )
            self._about = {
                "minari_version": minari.__version__,
                "dataset_id": _identifier(folder.path, arguments.dataset_id),
            }
            spec: Any = getattr(env, "spec", None)
            if spec is not None:
                self._about["env_spec"] = spec.to_json()
        self._written = minari.serialization.serialize_space
        # Folders of episodes that a process was writing when it ended. A sink writes metadata with
        # a count of 0 before its first episode; numbered folders without metadata are not its own.
        with named_errors(self._data):
            for leftover in self._data.glob("*/") if self.layout is not None else ():
                if leftover.name.isdigit() and int(leftover.name) >= self.episodes:
                    shutil.rmtree(leftover)

    def accept(self, columns: Columns) -> None:
        names = ("observation", "action")
        self._spaces = tuple(
            _space_of(name, columns) if space is None else space
            for name, space in zip(names, self._spaces, strict=True)
        )
        observations = self._spaces[0]
        for name in observations.spaces if isinstance(observations, gymnasium.spaces.Dict) else ():
            _check_observation((name,))
        self._entries({key: values[:1] for key, values in columns.items()})
        if self.layout is None:
            # Before there is an episode: a folder of episodes alone would be a data set of another
            # format.
            self._count(0, 0, layout_of(columns))

    def save(self, columns: Columns, lengths: Any) -> None:
        ends = numpy.cumsum(lengths)
        for at, (start, end) in enumerate(zip(ends - lengths, ends, strict=True)):
            self._save_episode(
                self.episodes + at, {key: values[start:end] for key, values in columns.items()}
            )
        with named_errors(self._data):
            flush(self._data)
        self._count(
            self.rows + int(lengths.sum()), self.episodes + len(lengths), layout_of(columns)
        )

    def _count(self, rows: int, episodes: int, layout: Layout) -> None:
        """Makes episodes visible."""
        self._about |= {
            "total_steps": rows,
            "total_episodes": episodes,
            "data_format": "parquet",
            "jpeg_encoding": False,
            "observation_space": self._written(self._spaces[0]),
            "action_space": self._written(self._spaces[1]),
            "windrow_columns": described(layout),
        }
        self.folder.publish_text(_METADATA, json.dumps(self._about))
        self.rows, self.episodes, self.layout = rows, episodes, layout

    def _entries(self, columns: Columns) -> dict[str, Any]:
        """The columns of an episode, by Minari's names."""
        rows = len(columns[DONE])

        def flag(key: Entry) -> Array:
            return columns[key].reshape(rows) if key in columns else numpy.zeros(rows, bool)

        terminated, truncated = flag(TERMINATED), flag(TRUNCATED)
        if TERMINATED not in columns:
            terminated = flag(DONE) & ~truncated
        ahead = {key[1:]: values[-1:] for key, values in columns.items() if key[0] == "next"}
        if _REWARD not in columns:
            raise ValueError(
                f'expected an entry ("next", "reward"), which episodes of Minari have; there are {_listed(columns)}'
            )
        return {
            "observations": _encoded(self._spaces[0], ("observation",), columns, ahead),
            "actions": _encoded(self._spaces[1], ("action",), columns, {}),
            "rewards": arrow_of(_lengthened(columns[_REWARD].reshape(rows))),
            "terminations": arrow_of(_lengthened(terminated)),
            "truncations": arrow_of(_lengthened(truncated)),
        }

    def _save_episode(self, number: int, columns: Columns) -> None:
        import pyarrow

        rows, entries = len(columns[DONE]), self._entries(columns)
        folder = self._data / str(number)
        with named_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            # No reader looks at it before the metadata count it.
            table = pyarrow.Table.from_pydict(entries)
            self._parquet.write_table(table, folder / "part-0.parquet", compression="zstd")
            (folder / "metadata.json").write_text(json.dumps({"id": number, "total_steps": rows}))
            for name in ("part-0.parquet", "metadata.json", "."):
                flush(folder / name)


def _identifier(path: Path, given: str | None) -> str:
    name = given or re.sub(r"[^-\w]+", "-", path.name)
    name = name if re.search(r"-v\d+$", name) or given else f"{name}-v0"
    if not re.fullmatch(r"([-\w][-\w/]*[-\w]+/)?[-\w]+-v\d+", name):
        raise ValueError(f"dataset_id: expected namespace/name-v0 or name-v0, got {name!r}")
    return name


def _space_of(name: str, columns: Columns) -> "gymnasium.Space[Any]":
    """The space of an entry without a space of its own: all values of its type."""
    key = _entry((name,), columns)
    values = columns[key]
    if name == "action" and values.dtype.kind in "iu":
        raise ValueError(
            "action: expected a space for integers, which may stand for choices: give MinariSink env=... or action_space=..."
        )
    if values.dtype == bool:
        return gymnasium.spaces.MultiBinary(values.shape[1:] or (1,))
    limits: Any = (-numpy.inf, numpy.inf) if values.dtype.kind == "f" else numpy.iinfo(values.dtype)
    low, high = limits if values.dtype.kind == "f" else (limits.min, limits.max)
    return gymnasium.spaces.Box(low, high, shape=values.shape[1:] or (1,), dtype=values.dtype)


def _entry(key: Entry, columns: Columns) -> Entry:
    """The entry of an environment's only observation, or of its action."""
    for found in (key, ("pixels",)) if key == ("observation",) else (key,):
        if found in columns:
            return found
    raise ValueError(
        f"expected an entry {'.'.join(key)}, which the space of the data set has; there are {_listed(columns)}"
    )


def _listed(columns: Columns) -> str:
    return ", ".join(map(".".join, columns))


def _encoded(space: Any, key: Entry, columns: Columns, ahead: Columns) -> Any:
    """Values of a space as Minari keeps them, and one row more: that of ``ahead`` or, where a frame
    has no successor, any.
    """
    import pyarrow

    parts: Any = getattr(space, "spaces", None)
    if isinstance(space, gymnasium.spaces.Dict):
        inner = () if key == ("observation",) else key
        arrays = {
            name: _encoded(part, (*inner, name), columns, ahead) for name, part in parts.items()
        }
        return pyarrow.StructArray.from_arrays(list(arrays.values()), names=list(arrays))
    key = _entry(key, columns)
    values = _lengthened(columns[key], ahead.get(key))
    if isinstance(space, gymnasium.spaces.Discrete):
        if values.size > len(values):
            # One-hot.
            values = values.reshape(len(values), -1).argmax(1) + space.start
        return pyarrow.array(values.reshape(len(values)).astype(space.dtype))
    if not isinstance(
        space, (gymnasium.spaces.Box, gymnasium.spaces.MultiDiscrete, gymnasium.spaces.MultiBinary)
    ):
        raise ValueError(
            f"entry {'.'.join(key)}: expected a Box, Discrete, MultiDiscrete, MultiBinary or a Dict of them, got {space}"
        )
    if values[0].size != int(numpy.prod(space.shape)):
        raise ValueError(
            f"entry {'.'.join(key)}: expected {list(space.shape)}, as its space has, got {list(values.shape[1:])}"
        )
    return pyarrow.FixedSizeListArray.from_arrays(
        pyarrow.array(values.astype(space.dtype, copy=False).reshape(-1)), values[0].size
    )


def _lengthened(values: Array, last: Array | None = None) -> Array:
    """``values`` and one row more."""
    return numpy.concatenate([values, numpy.zeros_like(values[-1:]) if last is None else last])


def _of_dataset(dataset: Iterable[Any]) -> Iterator[Named]:
    """The columns of a ``minari.MinariDataset``, several episodes at a time. Numbers of episodes
    are those of the data set.
    """
    waiting: list[Named] = []
    for episode in dataset:
        rows = len(episode.rewards)
        inside = isinstance(episode.observations, dict)
        observations = dict(_flat(episode.observations, () if inside else ("observation",)))
        for key in observations if inside else ():
            _check_observation(key)
        columns: Named = {
            **{key: numpy.asarray(values)[:rows] for key, values in observations.items()},
            **{
                ("next", *key): numpy.asarray(values)[1 : rows + 1]
                for key, values in observations.items()
            },
            **{key: numpy.asarray(values) for key, values in _flat(episode.actions, ("action",))},
            _REWARD: numpy.asarray(episode.rewards, numpy.float32),
            TERMINATED: numpy.asarray(episode.terminations),
            TRUNCATED: numpy.asarray(episode.truncations),
            IDS: numpy.full(rows, episode.id),
        }
        waiting.append(columns)
        if sum(len(one[IDS]) for one in waiting) >= _TOGETHER:
            yield _joined(waiting)
            waiting = []
    if waiting:
        yield _joined(waiting)


def _joined(several: list[Named]) -> Named:
    # A copy of one, too: Minari has arrays that cannot be written.
    return {name: numpy.concatenate([one[name] for one in several]) for name in several[0]}


def _check_observation(key: Entry) -> None:
    """Checks that no other entry of a frame has the key of an observation.

    Raises:
        ValueError: another entry has it.
    """
    if key[0] in _ROOTS or ("next", *key) in (_REWARD, DONE, TERMINATED, TRUNCATED):
        raise ValueError(
            f"observation {key[0]!r} of the dictionary: this is the name of another entry of frames: "
            "give it another one"
        )


#: The entries of frames for the columns of Minari other than observations.
_ROOTS = {"action", _REWARD[0], IDS[0]}


def _flat(values: Any, key: Entry) -> Iterator[tuple[Entry, Any]]:
    """Values of nested dictionaries and tuples by the keys of their entries below ``key``."""
    if isinstance(values, dict):
        for name, inner in values.items():
            yield from _flat(inner, (*key, name))
    elif isinstance(values, tuple):
        for place, inner in enumerate(values):
            yield from _flat(inner, (*key, str(place)))
    else:
        yield key, values


def _is_at(path: Path) -> bool:
    files = [file for file in (path / "metadata.json", path / _METADATA) if file.is_file()]
    return bool(files) and "data_format" in json.loads(files[0].read_text())


def _read(path: Path) -> Iterator[Named]:
    minari = _needs.module("a data set of Minari", "minari", "minari")
    return _of_dataset(
        minari.MinariDataset(path if (path / "metadata.json").exists() else path / "data")
    )


MINARI = Format("Minari", _is_at, _read, {("minari", "MinariDataset"): _of_dataset})
