"""Policies in files."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from windrow import _needs

if TYPE_CHECKING:
    import torch

ACTIVATIONS = {"elu": "ELU", "gelu": "GELU", "relu": "ReLU", "silu": "SiLU", "tanh": "Tanh"}
#: Numbers in a name are compared as numbers: layer 10 comes after layer 9.
_PARTS = re.compile(r"(\d+)")


def load(path: Path, activation: str, *, trusts: bool) -> Callable[..., Any] | Path:
    """The policy in a file: a module that maps observations to actions, or to their scores.

    Args:
        path: weights of linear layers, in the form of safetensors or a ``state_dict``; or a
            program: a file of TorchScript, of ``torch.export``, or a module that ``torch.save`` has
            pickled; or a model of ONNX.
        activation: what stands between linear layers, one of :data:`ACTIVATIONS`.
        trusts: whether the user trusts the file, and programs are loaded.

    Raises:
        ValueError: the file is none of these, a program that is not trusted, or has weights of
            something else.
        ImportError: what reads the file is not installed.
    """
    if path.suffix == ".onnx":
        return path
    if path.suffix == ".safetensors":
        return _linear_layers(_safetensors(path), activation, path)
    kind = _kind(path)
    if kind == "torch.save":
        weights = _plain(path)
        if isinstance(weights, Mapping):
            return _linear_layers(weights, activation, path)
        kind = "a pickled module"
    if not trusts:
        raise ValueError(
            f"{path} holds {kind}: to load it may run any code in it. If you trust who made it, say --trust-policy; files of weights alone "
            "(.safetensors, or a state_dict that torch.save has written) need no trust"
        )
    return _program(path, kind)


def _safetensors(path: Path) -> Mapping[str, Any]:
    weights: Mapping[str, Any] = _needs.module(
        str(path), "safetensors.torch", "safetensors"
    ).load_file(path)
    return weights


def _kind(path: Path) -> str:
    """What wrote the file, by what is in its archive."""
    if not zipfile.is_zipfile(path):
        raise ValueError(
            f"{path} is no policy: expected a file of safetensors, torch.save, TorchScript or torch.export"
        )
    with zipfile.ZipFile(path) as archive:
        names = [name.partition("/")[2] or name for name in archive.namelist()]
    if "archive_format" in names or any(name.endswith("models/model.json") for name in names):
        return "a program of torch.export"
    if "constants.pkl" in names:
        return "a program of TorchScript"
    if "data.pkl" in names:
        return "torch.save"
    raise ValueError(
        f"{path} is an archive of something else: expected a file of torch.save, TorchScript or torch.export"
    )


def _plain(path: Path) -> object:
    """What ``torch.save`` has written, if loading it runs no code; None otherwise."""
    import pickle

    import torch

    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        return None


def _program(path: Path, kind: str) -> Callable[..., Any]:
    import torch

    if kind.endswith("torch.export"):
        return torch.export.load(path).module()
    if kind.endswith("TorchScript"):
        return _scripted(torch.jit.load(path, map_location="cpu"))
    made = torch.load(path, map_location="cpu", weights_only=False)
    if not callable(made):
        raise ValueError(
            f"{path} holds {type(made).__name__}, and no module that maps observations to actions"
        )
    return made


def _scripted(program: torch.jit.ScriptModule) -> torch.nn.Module:
    """A module of TorchScript, with the observations that it reads: those of its parameters' names,
    or the only one.
    """
    from tensordict.nn import TensorDictModule

    names = [parameter.name for parameter in program.forward.schema.arguments[1:]]  # type: ignore[attr-defined]
    return TensorDictModule(
        program, in_keys=names if len(names) > 1 else ["observation"], out_keys=["action"]
    )


def _linear_layers(weights: Mapping[str, Any], activation: str, path: Path) -> torch.nn.Module:
    """The linear layers with these weights, in the order of their names, and ``activation`` between
    them.
    """
    import torch
    from torch import nn

    layers: list[nn.Module] = []
    left, width = dict(weights), None
    for name in sorted(
        weights,
        key=lambda name: [int(part) if part.isdigit() else part for part in _PARTS.split(name)],
    ):
        if not name.endswith("weight"):
            continue
        weight, bias = left.pop(name), left.pop(f"{name.removesuffix('weight')}bias", None)
        if (
            not isinstance(weight, torch.Tensor)
            or weight.ndim != 2
            or (width is not None and weight.shape[1] != width)
        ):
            got = list(getattr(weight, "shape", ()))
            raise ValueError(
                f"{path}: expected linear layers one after the other, got {name} {got}{f' after {width} numbers' if width else ''}"
            )
        width = len(weight)
        layer = nn.Linear(weight.shape[1], width, bias=bias is not None)
        layer.load_state_dict({"weight": weight, **({} if bias is None else {"bias": bias})})
        layers += [layer, getattr(nn, ACTIVATIONS[activation])()]
    if not layers or left:
        raise ValueError(
            f"{path}: expected weights of linear layers alone, got {', '.join(sorted(left)) or 'none'}"
        )
    return nn.Sequential(*layers[:-1])
