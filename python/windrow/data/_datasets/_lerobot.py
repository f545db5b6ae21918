"""LeRobot, version 3 of the format: frames in Parquet, pictures in videos, and ``meta``, which says
where episodes are in both.

A reader takes all files in ``data`` for the data set, and ``meta`` must say the same. So a write
makes a second folder beside that of the data set, of links to its files and the new ones, and
exchanges both.
"""

import json
from collections.abc import Iterator, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

from windrow import _needs
from windrow._arguments import argument
from windrow._lazy import numpy
from windrow._numbers import at_least
from windrow._types import Array
from windrow.data._datasets._columns import (
    DONE,
    EPISODE,
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
from windrow.data._datasets._folder import Folder
from windrow.data._datasets._parquet import array_of, arrow_of
from windrow.data._datasets._sink import Sink, SinkArguments, Writer, takes

_INFO, _STATS, _TASKS = "meta/info.json", "meta/stats.json", "meta/tasks.parquet"
_FILE = "chunk-{chunk_index:03d}/file-{file_index:03d}"
_EPISODES, _DATA, _VIDEO = (
    f"meta/episodes/{_FILE}.parquet",
    f"data/{_FILE}.parquet",
    f"videos/{{video_key}}/{_FILE}.mp4",
)
#: Files in a folder.
_CHUNK = 1000
_PICTURES, _STATE = "observation.images.", "observation.state"
#: What the format adds to frames, and a buffer does without.
_ADDED = ("timestamp", "frame_index", "index")
#: Names that LeRobot uses in each frame: the columns of its files, and the text of a task.
_RESERVED = frozenset({*_ADDED, *EPISODE, "task_index", "task"})
#: Pictures that statistics are made of are this many frames apart.
_APART = 16


class LeRobotArguments(SinkArguments):
    """Arguments of a sink of LeRobot."""

    fps: int = argument(
        "frames per second, of time stamps and videos", default=30, check=at_least(1)
    )
    task: str = argument(
        "what the policy does, in words; in a folder that is there, that of its data set",
        default="",
    )
    codec: str = argument("of videos, by FFmpeg's name", default="libx264")
    crf: int = argument("quality of videos: less is better", default=23, check=at_least(0))


class LeRobotSink(Sink):
    """Writes whole episodes as a data set of LeRobot, version 3, with pictures as videos:
    ``LeRobotDataset("any/name", root=path)`` loads it.

    ``"observation"`` is called ``observation.state``, and an entry of ``uint8`` with the shape of a
    picture ``observation.images.pixels`` after its name. The format has one observation for each
    frame, so what follows the last frame of an episode is not written. Videos lose detail. A write
    becomes visible at once and when all of it is on the disk. A sink of a folder that is there goes
    on with it.

    Raises:
        ImportError: pyarrow or av is not installed.
        ValueError: FFmpeg has no such codec, or the folder has another number of frames per second
            or another task.
        RuntimeError: another sink writes the folder.
        OSError: the folder cannot be written.
    """

    @takes(LeRobotArguments)
    def __init__(self, arguments: LeRobotArguments) -> None:
        parquet = _needs.module("LeRobotSink", "pyarrow.parquet", "lerobot")
        av = _needs.module("LeRobotSink", "av", "lerobot")
        try:
            av.codec.Codec(arguments.codec, "w")
        except av.codec.codec.UnknownCodecError as error:
            raise ValueError(
                f"codec: expected one of FFmpeg's encoders, got {arguments.codec!r}"
            ) from error
        self._begin(arguments, lambda folder: _LeRobotWriter(folder, parquet, arguments))


class _LeRobotWriter(Writer):
    reserved = _RESERVED

    def __init__(self, folder: Folder, parquet: Any, arguments: LeRobotArguments) -> None:
        super().__init__(folder)
        folder.check_exchange()
        self._parquet, self._arguments = parquet, arguments
        self._files, self._info, self._stats, self._task = 0, {}, {}, arguments.task
        path = folder.path / _INFO
        if path.exists():
            self._info = json.loads(path.read_text())
            about = self._info.get("windrow")
            if about is None or self._info["fps"] != arguments.fps:
                why = (
                    "was not written by windrow"
                    if about is None
                    else f"has {self._info['fps']} frames per second, not {arguments.fps}"
                )
                raise ValueError(f"{folder.path} {why}: give the sink another folder")
            self._task = (
                parquet.read_table(folder.path / _TASKS).column("__index_level_0__")[0].as_py()
            )
            if arguments.task not in ("", self._task):
                raise ValueError(
                    f"{folder.path} has the task {self._task!r}, not {arguments.task!r}: give the sink another folder"
                )
            self.rows, self.episodes, self._files = (
                self._info["total_frames"],
                self._info["total_episodes"],
                about["files"],
            )
            self.layout = layout_from(about["columns"])
            self._stats = json.loads((folder.path / _STATS).read_text())

    def accept(self, columns: Columns) -> None:
        _names(layout_of(columns))

    def save(self, columns: Columns, lengths: Any) -> None:
        layout = layout_of(columns)
        names = _names(layout)
        videos = {
            name: _pictures(columns[key])
            for key, name in names.items()
            if name.startswith(_PICTURES)
        }
        vectors: dict[str, Any] = {
            name: columns[key].reshape(len(columns[key]), -1)
            for key, name in names.items()
            if name not in videos
        }
        rows, count = int(lengths.sum()), len(lengths)
        ends = numpy.cumsum(lengths)
        step = numpy.arange(rows) - numpy.repeat(ends - lengths, lengths)
        vectors |= {
            "timestamp": (step / self._arguments.fps).astype(numpy.float32),
            "frame_index": step,
            "episode_index": numpy.repeat(
                numpy.arange(self.episodes, self.episodes + count), lengths
            ),
            "index": numpy.arange(self.rows, self.rows + rows),
            "task_index": numpy.zeros(rows, numpy.int64),
        }
        stats = {
            name: _merged(self._stats.get(name), _statistics(values))
            for name, values in {**vectors, **videos}.items()
        }
        files = {"chunk_index": self._files // _CHUNK, "file_index": self._files % _CHUNK}
        info = self._described(vectors, videos, layout, rows, count)

        def write(folder: Path) -> None:
            for name, pictures in videos.items():
                path = _new(folder / _VIDEO.format(video_key=name, **files))
                encode(
                    path, pictures, self._arguments.fps, self._arguments.codec, self._arguments.crf
                )
            self._table(
                folder / _DATA.format(**files),
                {name: arrow_of(values) for name, values in vectors.items()},
            )
            self._table(
                folder / _EPISODES.format(**files), self._places(lengths, list(videos), files)
            )
            if not (folder / _TASKS).exists():
                self._table(
                    folder / _TASKS,
                    {"task_index": [0], "__index_level_0__": [self._task]},
                    _TASKS_METADATA,
                )
            for name, content in ((_STATS, stats), (_INFO, info)):
                _new(folder / name).write_text(json.dumps(content, indent=1))

        self.folder.exchange(write)
        self._info, self._stats, self._files = info, stats, self._files + 1
        self.rows, self.episodes = self.rows + rows, self.episodes + count

    def _table(
        self, path: Path, columns: Mapping[str, Any], metadata: Mapping[bytes, bytes] | None = None
    ) -> None:
        import pyarrow

        table = pyarrow.Table.from_pydict(dict(columns))
        self._parquet.write_table(
            table.replace_schema_metadata(metadata),
            _new(path),
            compression="snappy",
            use_dictionary=False,
        )

    def _places(self, lengths: Any, videos: list[str], files: dict[str, int]) -> dict[str, Any]:
        """Where the episodes are, a row for each."""
        count, ends = len(lengths), numpy.cumsum(lengths)
        columns: dict[str, Any] = {
            "episode_index": numpy.arange(self.episodes, self.episodes + count),
            "tasks": [[self._task]] * count,
            "length": lengths,
            "dataset_from_index": self.rows + ends - lengths,
            "dataset_to_index": self.rows + ends,
        }
        for place in ("data", "meta/episodes", *(f"videos/{name}" for name in videos)):
            columns |= {
                f"{place}/{name}": numpy.full(count, number) for name, number in files.items()
            }
        for name in videos:
            columns[f"videos/{name}/from_timestamp"] = (ends - lengths) / self._arguments.fps
            columns[f"videos/{name}/to_timestamp"] = ends / self._arguments.fps
        return columns

    def _described(
        self, vectors: dict[str, Any], videos: dict[str, Any], layout: Layout, rows: int, count: int
    ) -> dict[str, Any]:
        features: dict[str, Any] = {
            name: {
                "dtype": values.dtype.name,
                "shape": list(values.shape[1:]) or [1],
                "names": None,
            }
            for name, values in vectors.items()
        }
        for name, pictures in videos.items():
            height, width, channels = pictures.shape[1:]
            about = {
                "video.height": height,
                "video.width": width,
                "video.channels": channels,
                "video.fps": self._arguments.fps,
            }
            about |= {
                "video.codec": self._arguments.codec.removeprefix("lib"),
                "video.is_depth_map": False,
                "has_audio": False,
            }
            features[name] = {
                "dtype": "video",
                "shape": [height, width, channels],
                "names": ["height", "width", "channels"],
                "info": about,
            }
        return {
            "codebase_version": "v3.0",
            "robot_type": None,
            "total_episodes": self.episodes + count,
            "total_frames": self.rows + rows,
            "total_tasks": 1,
            "chunks_size": _CHUNK,
            "data_files_size_in_mb": 100,
            "video_files_size_in_mb": 200,
            "fps": self._arguments.fps,
            "splits": {"train": f"0:{self.episodes + count}"},
            "data_path": _DATA,
            "video_path": _VIDEO if videos else None,
            "features": features,
            "windrow": {"files": self._files + 1, "columns": described(layout)},
        }


def _names(layout: Layout) -> dict[Entry, str]:
    """The names of the entries that are written.

    Raises:
        ValueError: LeRobot cannot have one of them.
    """
    names: dict[Entry, str] = {}
    entries: dict[str, str] = {}
    flags = (DONE, TERMINATED, TRUNCATED)
    for key, (dtype, shape) in layout.items():
        # The next frame has it; flags of the state before a step are those of the step before.
        if (key[0] == "next" and key[1:] in layout and key not in flags) or ("next", *key) in flags:
            continue
        entry = ".".join(key)
        if "/" in entry:
            raise ValueError(f"entry {entry}: names in LeRobot have no slash")
        name = (
            _PICTURES + entry
            if is_picture(dtype, shape)
            else _STATE
            if key == ("observation",)
            else entry
        )
        if (other := entries.setdefault(name, entry)) != entry:
            raise ValueError(
                f"entries {other} and {entry} have one name in LeRobot, {name}: rename one"
            )
        names[key] = name
    return names


#: By which pandas knows that tasks are the index of their table.
_TASKS_METADATA = {
    b"pandas": json.dumps(
        {
            "index_columns": ["__index_level_0__"],
            "column_indexes": [
                {
                    "name": None,
                    "field_name": None,
                    "pandas_type": "unicode",
                    "numpy_type": "object",
                    "metadata": None,
                }
            ],
            "columns": [
                {
                    "name": "task_index",
                    "field_name": "task_index",
                    "pandas_type": "int64",
                    "numpy_type": "int64",
                    "metadata": None,
                },
                {
                    "name": None,
                    "field_name": "__index_level_0__",
                    "pandas_type": "unicode",
                    "numpy_type": "object",
                    "metadata": None,
                },
            ],
            "pandas_version": "2.2.0",
        }
    ).encode()
}


def _new(path: Path) -> Path:
    """The path of a file that is not there. One that is there is a link to a file of the data set,
    which would change, too.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    return path


def is_picture(dtype: str, shape: tuple[int, ...]) -> bool:
    """Whether an entry is a picture: of 16 by 16 pixels or more, with one or three channels first
    or last, or none.
    """
    size = [length for length in shape if length >= 16]
    return (
        dtype == "uint8"
        and len(size) == 2
        and (len(shape) == 2 or (len(shape) == 3 and {shape[0], shape[2]} & {1, 3} != set()))
    )


def _pictures(values: Array) -> Array:
    """Pictures ``[rows, height, width, 3]``."""
    values = values[..., None] if values.ndim == 3 else values
    values = values if values.shape[-1] in (1, 3) else values.transpose(0, 2, 3, 1)
    return numpy.repeat(values, 3, axis=-1) if values.shape[-1] == 1 else values


def encode(path: Path, pictures: Any, fps: int, codec: str, crf: int) -> None:
    """Writes pictures ``[frames, height, width, 3]`` as a video, in one thread."""
    import av

    height, width = pictures.shape[1:3]
    options = {"crf": str(crf), "g": "2", **({"preset": "ultrafast"} if codec == "libx264" else {})}
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream(codec, rate=fps, options=options)
        stream.width, stream.height, stream.thread_count = width, height, 1
        # A pair of pixels shares a colour, where there are pairs.
        stream.pix_fmt = "yuv444p" if height % 2 or width % 2 else "yuv420p"
        stream.time_base = stream.codec_context.time_base = Fraction(1, fps)
        for at, picture in enumerate(pictures):
            frame = av.VideoFrame.from_ndarray(numpy.ascontiguousarray(picture), format="rgb24")
            frame.pts = at
            container.mux(stream.encode(frame))
        container.mux(stream.encode())


def _statistics(values: Any) -> dict[str, Any]:
    """Least, greatest and mean value, deviation and number of frames; of pictures, for each
    channel, in shares of 255.
    """
    shape: tuple[int, ...]
    if values.ndim == 4:
        values = (values[::_APART].reshape(-1, 3) / 255.0).astype(numpy.float64)
        count, shape = max(len(values), 1), (3, 1, 1)
    else:
        values = values.reshape(len(values), -1).astype(numpy.float64)
        count, shape = len(values), (values.shape[1],)
    found = {
        "min": values.min(0),
        "max": values.max(0),
        "mean": values.mean(0),
        "std": values.std(0),
    }
    return {
        **{name: value.reshape(shape).tolist() for name, value in found.items()},
        "count": [count],
    }


def _merged(before: dict[str, Any] | None, after: dict[str, Any]) -> dict[str, Any]:
    """Statistics of the frames of both."""
    if before is None:
        return after
    one, other = (
        {name: numpy.asarray(value) for name, value in part.items()} for part in (before, after)
    )
    count = one["count"] + other["count"]
    share = other["count"] / count
    apart = other["mean"] - one["mean"]
    variance = (
        one["std"] ** 2 * (1 - share) + other["std"] ** 2 * share + apart**2 * share * (1 - share)
    )
    merged = {
        "min": numpy.minimum(one["min"], other["min"]),
        "max": numpy.maximum(one["max"], other["max"]),
    }
    merged |= {"mean": one["mean"] + apart * share, "std": numpy.sqrt(variance), "count": count}
    return {name: value.tolist() for name, value in merged.items()}


def _is_at(path: Path) -> bool:
    return (path / _INFO).is_file() and "codebase_version" in json.loads((path / _INFO).read_text())


def _read(path: Path) -> Iterator[Named]:
    """The columns of each file of frames, with pictures.

    Raises:
        ValueError: it is of another version of the format.
    """
    pq = _needs.module("a data set of LeRobot", "pyarrow.parquet", "lerobot")
    info = json.loads((path / _INFO).read_text())
    if not info["codebase_version"].startswith("v3."):
        raise ValueError(
            f"{path}: expected version v3 of LeRobot's format, got {info['codebase_version']}"
        )
    features = info["features"]
    videos = [name for name, feature in features.items() if feature["dtype"] == "video"]
    places = [
        row
        for file in sorted((path / "meta/episodes").glob("*/*.parquet"))
        for row in pq.read_table(file).to_pylist()
    ]
    layout = layout_from(info.get("windrow", {}).get("columns", {}))
    pictures = {name: _decoded(path, info, name, places) for name in videos}
    entries = {name: key for key, name in _names(layout).items()}
    for file in sorted((path / "data").glob("*/*.parquet")):
        table = pq.read_table(file)
        named = {
            name: array_of(name, table.column(name))
            for name in table.column_names
            if name not in _ADDED
        }
        if info["total_tasks"] == 1:
            named.pop("task_index", None)
        for name in videos:
            named[name] = numpy.stack([next(pictures[name]) for _ in range(table.num_rows)])
        short = {_STATE: "observation"}
        yield {
            entries.get(name) or short.get(name, name.removeprefix(_PICTURES)): _as_given(
                values, *layout[entries[name]]
            )
            if name in entries
            else values
            for name, values in named.items()
        }


def _as_given(values: Array, dtype: str, shape: tuple[int, ...]) -> Array:
    """Values in the shape that the entry had."""
    if is_picture(dtype, shape):
        channels = (
            shape[-1]
            if len(shape) == 3 and shape[-1] in (1, 3)
            else shape[0]
            if len(shape) == 3
            else 1
        )
        values = values[..., :channels]
        values = (
            values.transpose(0, 3, 1, 2) if len(shape) == 3 and shape[-1] not in (1, 3) else values
        )
    return values.reshape(-1, *shape)


def _decoded(
    path: Path, info: dict[str, Any], name: str, places: list[dict[str, Any]]
) -> Iterator[Any]:
    """The pictures of all frames in their order."""
    av = _needs.module("a data set of LeRobot with videos", "av", "lerobot")
    before, frames, at = None, iter(()), 0
    for place in places:
        files = {part: place[f"videos/{name}/{part}"] for part in ("chunk_index", "file_index")}
        start = round(place[f"videos/{name}/from_timestamp"] * info["fps"])
        if files != before or start < at:
            frames, before, at = (
                _frames(av, path / info["video_path"].format(video_key=name, **files)),
                files,
                0,
            )
        for _ in range(start - at):
            next(frames)
        for _ in range(place["length"]):
            yield next(frames)
        at = start + place["length"]


def _frames(av: Any, path: Path) -> Iterator[Any]:
    with av.open(str(path)) as container:
        for frame in container.decode(video=0):
            yield frame.to_ndarray(format="rgb24")


def _of_dataset(dataset: Any) -> Iterator[Named]:
    if dataset.episodes is not None:
        raise TypeError(
            "expected all episodes of a data set of LeRobot, got a selection of them: leave episodes=... out"
        )
    return _read(Path(dataset.root))


LEROBOT = Format("LeRobot", _is_at, _read, {("lerobot", "LeRobotDataset"): _of_dataset})
