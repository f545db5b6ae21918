"""Policies of ONNX, for other programs."""

from __future__ import annotations

import json
import os
from typing import Any

from windrow import _needs
from windrow._lazy import module

_choose, _factory = module("windrow.policies.choose"), module("windrow.envs._factory")
_lower = module("windrow.policies.lower.lowering")
_predictors, _writing = (
    module("windrow.policies.predictors"),
    module("windrow.policies.onnx.writing"),
)


def export_onnx(
    policy: Any,
    path: str | os.PathLike[str] | None = None,
    *,
    env: Any = None,
    exploration_type: Any = "deterministic",
) -> Any:
    """``policy`` as a model of ONNX, which has the graph that windrow reads it as.

    The model has an input for each observation and each state, ``[N, *shape]`` for ``N``
    environments, and an output for each entry that the policy writes, under their names; parts of
    nested names are joined by dots. The next state ``k`` is the output ``next.k``. Weights are
    those of this moment. A policy of this model in a collector computes the same.

    Args:
        policy: a module, or another policy that Rust can evaluate.
        path: a file to write the model to.
        env: an environment, its id, or a function that makes one, which tells what is observed;
            needed where the sizes of layers do not.
        exploration_type: whether the model draws actions, as in a collector; its draws are those of
            whoever runs it.

    Returns:
        An ``onnx.ModelProto``, which ``onnx.checker`` has checked.

    Raises:
        ValueError: windrow does not read the policy as a graph, or ONNX has no operator for a part
            of it.
        ImportError: ``onnx`` is not installed.
    """
    onnx, checker = (
        _needs.module("export_onnx", name, "onnx") for name in ("onnx", "onnx.checker")
    )
    made = env() if _factory.is_function(env) else None
    try:
        given = env if made is None else made
        conditions = _choose.Conditions(_choose.exploration_name(exploration_type), threads=False)
        lowered = _lower.lower(_predictors.adapted(policy), conditions, given)
    except _lower.NotLowerable as reason:
        raise ValueError(f"the policy is no graph that windrow reads, since {reason}") from None
    finally:
        if made is not None:
            made.close()
    model = _writing.model_of(
        json.loads(lowered.core["graph"]), lowered.core["weights"], lowered.inputs
    )
    checker.check_model(model, full_check=True)
    if path is not None:
        onnx.save(model, os.fspath(path))
    return model
