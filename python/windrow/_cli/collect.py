"""``windrow collect``: frames of an environment, into a file."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from windrow import collectors, data
from windrow._cli.policy import ACTIVATIONS, load
from windrow._cli.text import short
from windrow._lazy import is_installed
from windrow._windrow import tensors_to_bytes
from windrow.collectors._progress import Returns

#: Steps of each environment in a batch, at most.
_STEPS = 200
#: Frames in a batch of few environments.
_FRAMES = 2000

_FILE = click.Path(path_type=Path)


@click.command(short_help="Collect frames of an environment, into a file.")
@click.argument("env")
@click.option(
    "--frames",
    type=click.IntRange(1),
    default=10_000,
    show_default=True,
    help="How many to collect.",
)
@click.option(
    "--workers",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="How many collect side by side.",
)
@click.option(
    "--num-envs",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Environments of each worker, which step together.",
)
@click.option(
    "--seed", type=click.IntRange(0), help="Of all that is random: the same frames each time."
)
@click.option(
    "--policy",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A file with a policy; without, actions are random.",
)
@click.option(
    "--activation",
    type=click.Choice(sorted(ACTIVATIONS)),
    default="tanh",
    show_default=True,
    help="Between layers of weights alone.",
)
@click.option(
    "--trust-policy",
    is_flag=True,
    help="Load a policy that is a program. It can do whatever you can.",
)
@click.option("--greedy", is_flag=True, help="Take the policy's best guess, and no samples.")
@click.option(
    "--out",
    type=_FILE,
    help="Where to write the frames: FILE.safetensors, or a folder for a checkpoint of a replay buffer.",
)
@click.option("--force", is_flag=True, help="Replace the file.")
@click.option(
    "--progress/--no-progress", default=None, help="Show a progress bar; by default in a terminal."
)
def collect(
    env: str,
    *,
    frames: int,
    workers: int,
    num_envs: int,
    out: Path | None,
    force: bool,
    progress: bool | None,
    **options: Any,
) -> None:
    """Collect frames of ENV, an id such as CartPole-v1 or module:id.

    Without --out, the frames are counted and dropped. A file of safetensors has an entry for each
    name, such as "next.reward", with a row for each frame; the Rust crate reads it as a TensorDict.
    A folder is what ReplayBuffer.loads reads.

    What files of policies may do: weights alone are data. Files of safetensors, and a state_dict
    that torch.save has written, run no code; their linear layers are put one after the other, with
    --activation between them. All others are programs, of TorchScript, of torch.export or a pickled
    module: whoever made one can have it do anything on this machine as you, when it is loaded or
    when it acts. Those need --trust-policy.
    """
    if out is not None:
        _check_free(out, force)
    policy = (
        None
        if options["policy"] is None
        else load(options["policy"], options["activation"], trusts=options["trust_policy"])
    )
    environments = workers * num_envs
    arguments: dict[str, Any] = {
        "frames_per_batch": min(
            frames, environments * min(_STEPS, max(1, _FRAMES // environments))
        ),
        "total_frames": frames,
        "allow_partial_batch": True,
        "num_envs": None if num_envs == 1 else num_envs,
        "seed": options["seed"],
        "exploration_type": "deterministic" if options["greedy"] else None,
        "progress": sys.stderr.isatty() and is_installed("tqdm") if progress is None else progress,
    }
    if workers == 1:
        collector: Any = collectors.Collector(env, policy, **arguments)
    else:
        collector = collectors.MultiSyncCollector(env, policy, num_workers=workers, **arguments)
    with collector:
        returns = Returns(int(collector.stats()["num_envs"]), None)
        began = time.perf_counter()
        kept = list(_kept(collector, returns, out is not None))
        seconds = time.perf_counter() - began
    if out is not None:
        _write(kept, out, force)
    click.echo(_summary(frames, seconds, returns) + ("" if out is None else f", written to {out}"))


def _kept(collector: collectors.BaseCollector, returns: Returns, keeps: bool) -> Iterator[Any]:
    """Copies of the batches that ``collector`` delivers, if they are to be kept, in one
    dimension.
    """
    for batch in collector:
        returns.add(batch)
        if keeps:
            yield batch.reshape(-1).clone()


def _summary(frames: int, seconds: float, returns: Returns) -> str:
    ended, mean = len(returns.recent), returns.mean()
    episodes = (
        "no episode ended"
        if mean is None
        else f"{ended:,} episode{'s' if ended > 1 else ''} ended, mean return {mean:.4g}"
    )
    return f"{frames:,} frames in {seconds:.3g} s ({short(frames / seconds)} frames/s), {episodes}"


def _check_free(out: Path, force: bool) -> None:
    """Raises click's errors where ``out`` cannot be written, before anything is collected."""
    if out.suffix not in ("", ".safetensors"):
        raise click.BadParameter(
            f"{out}: expected FILE.safetensors or a folder, got {out.suffix}", param_hint="--out"
        )
    if not out.parent.is_dir():
        raise click.BadParameter(f"{out}: there is no folder {out.parent}", param_hint="--out")
    if out.is_dir() and (out.suffix or any(out.iterdir())):
        raise click.BadParameter(
            f"{out} is a folder{'' if out.suffix else ' with files in it'}: choose another name",
            param_hint="--out",
        )
    if out.exists() and not out.is_dir() and (not force or not out.suffix):
        raise click.BadParameter(
            f"{out} exists{': --force replaces it' if out.suffix else ''}", param_hint="--out"
        )


def _write(kept: list[Any], out: Path, force: bool) -> None:
    """Writes the frames of batches as a whole: ``out`` is there once all of them are in it."""
    import torch

    frames = torch.cat(kept)
    if not out.suffix:
        buffer = data.ReplayBuffer(storage=data.LazyTensorStorage(len(frames)))
        buffer.extend(frames)
        buffer.dumps(out)
        return
    try:
        written = tensors_to_bytes(frames)
    except TypeError as error:
        raise click.ClickException(
            f"{out} would hold numbers alone, and {error}. A folder keeps text, too"
        ) from error
    part = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        with open(part, "xb") as file:
            file.write(written)
            file.flush()
            os.fsync(file.fileno())
        _place(part, out, force)
    finally:
        part.unlink(missing_ok=True)


def _place(part: Path, out: Path, force: bool) -> None:
    """Gives a file its name, which another must not have by now."""
    if not force:
        try:
            os.link(part, out)
            return
        except OSError as error:
            # Some file systems have no links.
            if isinstance(error, FileExistsError) or out.exists():
                raise click.ClickException(
                    f"{out} was written by somebody else meanwhile, and is left as it is"
                ) from error
    os.replace(part, out)
