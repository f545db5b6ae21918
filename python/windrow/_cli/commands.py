"""All commands, and what becomes of their errors."""

from __future__ import annotations

import sys
import warnings

import click

from windrow import __version__
from windrow._cli.bench import bench
from windrow._cli.collect import collect
from windrow._cli.look import envs, info, trace


class _Plain(click.Group):
    """Commands whose errors are one line."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise
        except Exception as error:
            if ctx.params["traceback"]:
                raise
            raise click.ClickException(_line(error)) from error


def _line(error: Exception) -> str:
    """An error in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # Python quotes the message of a KeyError.
    said = (
        str(error.args[0])
        if isinstance(error, KeyError) and error.args
        else lines[0]
        if lines
        else ""
    )
    return (
        said
        if isinstance(error, (ValueError, ImportError)) and said
        else f"{type(error).__name__}: {said}".rstrip(": ")
    )


def _warned(message: Warning | str, *_: object, **__: object) -> None:
    """Shows a warning without the line of windrow's that it points at, which is none of the
    user's.
    """
    click.echo(f"Warning: {str(message).splitlines()[0]}", err=True)


@click.group(
    cls=_Plain, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}
)
@click.version_option(__version__, message="windrow %(version)s")
@click.option("--traceback", is_flag=True, help="Show where an error of a command came from.")
def windrow(traceback: bool) -> None:
    """Collect experience of reinforcement learning, from the command line."""
    if not sys.warnoptions:
        warnings.showwarning = _warned


for _command in (collect, bench, envs, info, trace):
    windrow.add_command(_command)
