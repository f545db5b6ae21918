"""Each policy of ``theirs_policies`` by its name: whether windrow evaluates it, and that it does
what torch does.

``pytest python/tests/policies -v`` lists them, lowered or called and why.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import theirs_policies as theirs
import torch
from torch import nn

from windrow.collectors import Collector

NAMES = list(theirs.POLICIES)


def told(name: str) -> str:
    why = theirs.POLICIES[name][2]
    return f"{name}: lowered" if why is None else f"{name}: called, {why}"


def module_of(policy: Any) -> nn.Module:
    return getattr(policy, "__self__", getattr(policy, "_orig_mod", policy))


def collector(policy: Any, env: str, backend: str, exploration: str) -> Collector:
    made = theirs.environment(env)
    return Collector(
        made,
        policy,
        frames_per_batch=20,
        seed=3,
        exploration_type=exploration,
        policy_backend=backend,
    )


def entries(batch: Any) -> dict[Any, torch.Tensor]:
    own = batch.exclude("collector").flatten_keys(".")
    return dict(own.items())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NAMES, ids=told)
def test_policy(name: str) -> None:
    torch.manual_seed(1)
    make, env, why = theirs.POLICIES[name]
    policy = make()
    called = copy.deepcopy(policy)
    with collector(policy, env, "auto", "random") as drawing:
        if why is not None:
            assert drawing.policy_backend == "torch" and why in repr(drawing), repr(drawing)
            return
        assert drawing.policy_backend == "native", repr(drawing)
        with collector(called, env, "torch", "random") as other:
            own, expected = entries(next(drawing)), entries(next(other))
        # The same entries, drawn from other generators.
        assert {key: (value.shape, value.dtype) for key, value in own.items()} == {
            key: (value.shape, value.dtype) for key, value in expected.items()
        }
    # Some draw whatever the exploration. Torch does not capture the mode of a masked one.
    if name.startswith(("cleanrl", "sb3", "dropout", "masked")):
        return
    exploration = "deterministic"
    with (
        collector(policy, env, "native", exploration) as native,
        collector(called, env, "torch", exploration) as torchs,
    ):
        compare(next(native), next(torchs))
        with torch.no_grad():
            for parameter in module_of(policy).parameters():
                parameter += 0.1 * torch.randn_like(parameter)
        module_of(called).load_state_dict(module_of(policy).state_dict())
        compare(next(native), next(torchs))


def compare(own: Any, expected: Any) -> None:
    """The same actions lead to the same observations, so that both batches agree to the end."""
    found, wanted = entries(own), entries(expected)
    assert found.keys() == wanted.keys()
    for key, value in wanted.items():
        torch.testing.assert_close(
            found[key].double(),
            value.double(),
            rtol=1e-3,
            atol=1e-3,
            msg=lambda text: f"{key}: {text}",
        )


def test_what_a_script_anneals_reaches_the_next_batch() -> None:
    policy = theirs.dqn_egreedy()
    with collector(policy, "cartpole", "native", "random") as source:
        for eps, least, most in ((1.0, 4, 16), (0.0, 0, 0)):
            policy[-1].eps.fill_(eps)
            batch = next(source)
            greedy = batch["action_value"].argmax(-1)
            assert least <= int((batch["action"] != greedy).sum()) <= most
        assert source._core.weights()["module.1.eps_end"] == policy[-1].eps_end, (
            "weights that no operation reads are kept"
        )


def test_most_policies_are_lowered() -> None:
    assert sum(why is None for _, _, why in theirs.POLICIES.values()) >= 26
