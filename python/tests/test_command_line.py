"""``windrow`` on the command line."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
import tomllib
import warnings
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result
from safetensors.torch import load_file, save_file
from torch import nn

import windrow
from windrow._cli import bench as benching, main
from windrow._cli.commands import windrow as commands
from windrow._cli.peers import PEERS, Running, Side
from windrow.collectors import MultiSyncCollector
from windrow.data import LazyTensorStorage, ReplayBuffer


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Commands write into a folder of the test, and show warnings in their own way."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    return


def run(*arguments: Any, code: int = 0) -> Result:
    """Runs a command that ends with ``code``."""
    result = CliRunner().invoke(
        commands, [str(argument) for argument in arguments], prog_name="windrow"
    )
    assert result.exit_code == code, (result.output, result.exception)
    return result


def refused(*arguments: Any, code: int = 2) -> str:
    """The one line by which a command says why it fails."""
    result = run(*arguments, code=code)
    assert "Traceback" not in result.output
    (line,) = (line for line in result.stderr.splitlines() if line.startswith("Error: "))
    assert result.stderr.splitlines()[-1] == line
    return line


def program(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=False, **options
    )


def test_the_module_is_the_command() -> None:
    told = program("-m", "windrow", "--version")
    assert (told.returncode, told.stdout, told.stderr) == (
        0,
        f"windrow {windrow.__version__}\n",
        "",
    )


def test_the_installed_script_is_the_command_and_its_extra_is_named() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    module, _, name = project["scripts"]["windrow"].partition(":")
    assert getattr(importlib.import_module(module), name) is main
    assert any(needed.startswith("click") for needed in project["optional-dependencies"]["cli"])
    assert any(needed.startswith("tqdm") for needed in project["optional-dependencies"]["progress"])


def test_an_error_of_the_program_is_a_line_and_a_status() -> None:
    told = program("-m", "windrow", "collect", "CartPole-v9")
    assert (told.returncode, told.stdout) == (1, "")
    assert (
        told.stderr.startswith(
            'Error: no environment is called "CartPole-v9"; did you mean CartPole-v1?'
        )
        and told.stderr.count("\n") == 1
    )
    assert "Traceback" in program("-m", "windrow", "--traceback", "collect", "CartPole-v9").stderr


def test_without_click_an_error_names_the_extra() -> None:
    told = program(
        "-c", "import sys; sys.modules['click'] = None; from windrow._cli import main; main()"
    )
    assert told.returncode == 1
    assert (
        told.stderr
        == 'Error: the command windrow needs click, which is not installed: pip install "windrow-rl[cli]"\n'
    )


@pytest.mark.parametrize("command", ["collect", "bench", "envs", "info", "trace"])
def test_every_command_explains_itself(command: str) -> None:
    assert (
        run(command, "--help").output.startswith(f"Usage: windrow {command}")
        and f"\n  {command} " in run("--help").output
    )


# collect


def test_frames_are_counted_and_dropped() -> None:
    assert re.fullmatch(
        r"500 frames in \S+ s \(.* frames/s\), \d+ episodes ended, mean return \d+\.\d+\n",
        run("collect", "CartPole-v1", "--frames", 500, "--seed", 0).output,
    )


def test_a_file_has_a_row_for_each_frame() -> None:
    assert run(
        "collect", "CartPole-v1", "--frames", 501, "--seed", 3, "--out", "a.safetensors"
    ).output.endswith("written to a.safetensors\n")
    frames = load_file("a.safetensors")
    assert frames["observation"].shape == (501, 4) and frames["next.reward"].shape == (501, 1)
    assert (frames["collector.traj_ids"].diff() >= 0).all() and os.listdir() == ["a.safetensors"]
    run("collect", "CartPole-v1", "--frames", 501, "--seed", 3, "--out", "b.safetensors")
    assert Path("a.safetensors").read_bytes() == Path("b.safetensors").read_bytes()


def test_workers_deliver_what_a_collector_does() -> None:
    run(
        "collect",
        "CartPole-v1",
        "--frames",
        800,
        "--workers",
        2,
        "--num-envs",
        2,
        "--seed",
        3,
        "--out",
        "a.safetensors",
    )
    with MultiSyncCollector(
        "CartPole-v1", num_workers=2, num_envs=2, frames_per_batch=800, total_frames=800, seed=3
    ) as collector:
        (batch,) = collector
    assert torch.equal(
        load_file("a.safetensors")["observation"], batch["observation"].reshape(-1, 4)
    )


def test_a_folder_is_a_checkpoint_of_a_buffer() -> None:
    run("collect", "CartPole-v1", "--frames", 300, "--out", "frames")
    buffer = ReplayBuffer(storage=LazyTensorStorage(300))
    buffer.loads("frames")
    assert len(buffer) == 300 and buffer[:]["observation"].shape == (300, 4)


def test_nothing_is_overwritten_in_silence() -> None:
    Path("a.safetensors").write_text("mine")
    Path("full").mkdir()
    Path("full/mine").touch()
    collecting = ("collect", "CartPole-v1", "--frames", 10, "--out")
    assert refused(*collecting, "a.safetensors").endswith(
        "a.safetensors exists: --force replaces it"
    )
    assert refused(*collecting, "full", "--force").endswith(
        "full is a folder with files in it: choose another name"
    )
    assert refused(*collecting, "a.csv").endswith(
        "a.csv: expected FILE.safetensors or a folder, got .csv"
    )
    assert refused(*collecting, "no/a.safetensors").endswith("there is no folder no")
    assert Path("a.safetensors").read_text() == "mine" and sorted(os.listdir()) == [
        "a.safetensors",
        "full",
    ]
    run(*collecting, "a.safetensors", "--force")
    assert len(load_file("a.safetensors")["action"]) == 10 and sorted(os.listdir()) == [
        "a.safetensors",
        "full",
    ]


def test_a_file_that_appears_meanwhile_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    from windrow._cli import collect

    monkeypatch.setattr(collect, "_check_free", lambda *_: Path("a.safetensors").write_text("mine"))
    assert "was written by somebody else meanwhile" in refused(
        "collect", "CartPole-v1", "--frames", 10, "--out", "a.safetensors", code=1
    )
    assert Path("a.safetensors").read_text() == "mine" and os.listdir() == ["a.safetensors"]


TEXT = """
import gymnasium

class Speaks(gymnasium.Env):
    observation_space, action_space = gymnasium.spaces.Text(5), gymnasium.spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        return "ab", {}

    def step(self, action):
        return "abc", 1.0, False, False, {}

gymnasium.register("Speaks-v0", Speaks)
"""


def test_text_goes_into_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("speaks.py").write_text(TEXT)
    monkeypatch.syspath_prepend(os.getcwd())
    collecting = ("collect", "speaks:Speaks-v0", "--frames", 10, "--out")
    assert (
        "numbers alone" in (line := refused(*collecting, "a.safetensors", code=1))
        and "observation" in line
    )
    run(*collecting, "frames")
    buffer = ReplayBuffer(storage=LazyTensorStorage(10))
    buffer.loads("frames")
    assert set(buffer[:]["next", "observation"]) == {"abc"}


def test_frames_that_cannot_be_split_are_an_error() -> None:
    assert "use 999 or 1002" in refused(
        "collect", "CartPole-v1", "--frames", 1000, "--num-envs", 3, code=1
    )


def test_a_bar_is_shown_where_it_is_asked_for() -> None:
    assert "500/500" in run("collect", "CartPole-v1", "--frames", 500, "--progress").stderr
    assert run("collect", "CartPole-v1", "--frames", 500).stderr == ""


# Policies in files


class Best(nn.Module):
    """Pushes the pole to the side that it leans to."""

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.one_hot(
            (observation[..., 2] + observation[..., 3] > 0).long(), 2
        ).float()


def linear() -> nn.Module:
    """The same by linear layers."""
    net = nn.Sequential(nn.Linear(4, 2), nn.Tanh(), nn.Linear(2, 2, bias=False))
    with torch.no_grad():
        net[0].weight.copy_(torch.tensor([[0.0, 0, -1, -1], [0, 0, 1, 1]]))
        net[0].bias.zero_()
        net[2].weight.copy_(torch.eye(2))
    return net


def mean_return(*arguments: Any) -> float:
    output = run(
        "collect", "CartPole-v1", "--frames", 2000, "--seed", 0, "--greedy", "--policy", *arguments
    ).output
    return float(output.rpartition("mean return ")[2])


def test_weights_alone_need_no_trust() -> None:
    save_file(linear().state_dict(), "a.safetensors")
    torch.save(linear().state_dict(), "a.pt")
    assert (
        mean_return("a.safetensors", "--activation", "relu")
        == mean_return("a.pt", "--activation", "relu")
        > 150
    )


def test_without_safetensors_an_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    save_file(linear().state_dict(), "a.safetensors")
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    line = refused("collect", "CartPole-v1", "--policy", "a.safetensors", code=1)
    assert line.endswith(
        'a.safetensors needs safetensors, which is not installed: pip install "windrow-rl[safetensors]"'
    )


def test_layers_are_in_the_order_of_their_numbers() -> None:
    layers = [
        nn.Linear(4, 4)
        if n == 0
        else nn.Linear(4, 2)
        if n == 20
        else nn.Linear(4, 4)
        if n % 2 == 0
        else nn.Tanh()
        for n in range(21)
    ]
    save_file(nn.Sequential(*layers).state_dict(), "deep.safetensors")
    assert mean_return("deep.safetensors") > 0


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (
            {"0.weight": torch.zeros(3, 4), "1.weight": torch.zeros(2, 5)},
            r"got 1.weight \[2, 5\] after 3 numbers",
        ),
        ({"0.weight": torch.zeros(8, 3, 5, 5)}, r"got 0.weight \[8, 3, 5, 5\]"),
        (
            {"0.weight": torch.zeros(2, 4), "scale": torch.zeros(1)},
            "linear layers alone, got scale",
        ),
        ({}, "linear layers alone, got none"),
    ],
    ids=str,
)
def test_other_weights_are_refused(weights: dict[str, torch.Tensor], message: str) -> None:
    torch.save(weights, "a.pt")
    assert re.search(message, refused("collect", "CartPole-v1", "--policy", "a.pt", code=1))


@pytest.mark.filterwarnings("ignore:`torch.jit:FutureWarning")
@pytest.mark.filterwarnings("ignore:the policy is called in Python")
@pytest.mark.parametrize("kind", ["pickled", "scripted", "exported"])
def test_a_program_needs_trust(kind: str) -> None:
    if kind == "pickled":
        torch.save(linear(), "policy.pt")
    elif kind == "scripted":
        torch.jit.save(torch.jit.script(Best()), "policy.pt")
    else:
        exported = torch.export.export(
            linear(), (torch.randn(3, 4),), dynamic_shapes=({0: torch.export.Dim("rows")},)
        )
        torch.export.save(exported, Path("policy.pt2"))
    file = "policy.pt2" if kind == "exported" else "policy.pt"
    assert "say --trust-policy" in refused("collect", "CartPole-v1", "--policy", file, code=1)
    assert mean_return(file, "--trust-policy") > 150


class Payload:
    """Runs code as it is unpickled."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("pwned",)


def test_no_code_of_a_file_runs_without_trust() -> None:
    torch.save(Payload(), "policy.pt")
    refused("collect", "CartPole-v1", "--policy", "policy.pt", code=1)
    assert not Path("pwned").exists()
    refused("collect", "CartPole-v1", "--policy", "policy.pt", "--trust-policy", code=1)
    assert Path("pwned").exists()


def test_what_is_no_policy_is_refused() -> None:
    Path("a.txt").write_text("hello")
    assert "a.txt is no policy" in refused("collect", "CartPole-v1", "--policy", "a.txt", code=1)
    assert "does not exist" in refused("collect", "CartPole-v1", "--policy", "b.pt")


# bench


def counted(name: str, calls: list[str], fails: bool = False) -> Side:
    """A side that does nothing, and fails in its second step if it is to."""

    def step() -> int:
        calls.append(name)
        if fails and calls.count(name) > 1:
            raise ValueError("out of\nluck")
        return 10

    return Side(name, lambda: Running(step, lambda: calls.append(f"closed {name}")))


def test_sides_take_turns_and_one_that_fails_is_left_out() -> None:
    calls: list[str] = []
    measured = benching._measured(
        [counted("a", calls), counted("b", calls, fails=True)], rounds=3, seconds=1e-6
    )
    assert [len(one.rates) for one in measured] == [3, 0] and measured[
        1
    ].error == "ValueError: out of"
    assert calls.count("closed a") == calls.count("closed b") == 1
    assert "Left out:\nb: ValueError: out of" in benching._tabulated(measured)


def test_windrow_is_measured_beside_a_peer_and_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = PEERS["gymnasium"]
    monkeypatch.setitem(
        PEERS, "gymnasium", peer._replace(sides=lambda *given: peer.sides(*given)[:1])
    )
    monkeypatch.setattr(
        benching, "own_sides", lambda *given, own=benching.own_sides: own(*given)[:2]
    )
    arguments = (
        "--num-envs",
        2,
        "--rounds",
        2,
        "--seconds",
        0.01,
        "--peers",
        "gymnasium",
        "--picture",
        "speed.svg",
    )
    output = run("bench", *arguments).output
    for name in (
        "windrow, native",
        "windrow, Gymnasium's environments",
        "Gymnasium, SyncVectorEnv",
    ):
        assert re.search(rf"^{name} +\d[\d.]*( [kMG])? ", output, re.MULTILINE), output
    assert (
        "CartPole-v1, 2 environments" in output
        and "windrow, native is" in output
        and "Left out" not in output
    )
    drawn = ElementTree.parse("speed.svg").getroot()
    texts = [element.text for element in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert "Gymnasium, SyncVectorEnv" in texts and drawn.get("height")
    assert "speed.svg exists" in refused("bench", *arguments)


def test_a_picture_of_another_kind_is_matplotlibs() -> None:
    pytest.importorskip("matplotlib")
    from windrow._cli import picture

    picture.write(Path("speed.png"), "a", "b", [("windrow", 2e6), ("other", 1e3)])
    assert Path("speed.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("name", sorted(PEERS))
def test_every_peer_collects(name: str) -> None:
    pytest.importorskip({"sb3": "stable_baselines3"}.get(name, name))
    # Those of others in processes take long to start.
    side = PEERS[name].sides("CartPole-v1", 2)[0]
    running = side.start()
    try:
        assert running.step() == 200
    finally:
        running.close()


def test_peers_are_known_and_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "expected some of gymnasium, torchrl, envpool, sb3, or none, got 'rllib'" in refused(
        "bench", "--peers", "gymnasium,rllib"
    )
    monkeypatch.setitem(PEERS, "sb3", PEERS["sb3"]._replace(distribution="nowhere"))
    assert "sb3 is not installed: pip install nowhere" in refused("bench", "--peers", "sb3")


def test_peers_without_names_are_those_that_are_installed() -> None:
    installed = benching.bench.make_context("bench", []).params["peers"]
    assert "gymnasium" in installed
    assert (
        benching.bench.make_context("bench", ["--peers", "--rounds", "2"]).params["peers"]
        == installed
    )
    assert benching.bench.make_context("bench", ["--peers", "none"]).params["peers"] == []


def test_an_environment_that_nobody_knows_is_an_error() -> None:
    line = refused(
        "bench", "--env", "Nope-v1", "--peers", "none", "--rounds", 1, "--seconds", 0.001, code=1
    )
    assert "nothing could be measured with Nope-v1" in line


# Looking


def test_environments_are_listed() -> None:
    output = run("envs").output
    assert "  CartPole-v1\n" in output and re.search(r"^  pettingzoo +\d", output, re.MULTILINE)


def test_info_has_versions_and_the_machine() -> None:
    rows = dict(re.split(r"  +", line, maxsplit=1) for line in run("info").output.splitlines())
    assert (
        rows["windrow"] == windrow.__version__
        and rows["torch"] == torch.__version__.partition("+")[0]
    )
    assert {"python", "system", "processor", "memory", "placement", "native environments"} <= {
        *rows
    } and "inline" in rows["placement"]


def test_a_trace_is_tabulated() -> None:
    with MultiSyncCollector(
        "CartPole-v1", num_workers=2, frames_per_batch=100, total_frames=400
    ) as collector:
        collector.enable_profile(
            workers=[0, 1], num_rollouts=3, save_path="worker_{worker_idx}.json"
        )
        list(collector)
    output = run("trace", "worker_0.json", "worker_1.json").output
    assert (
        "worker_0.json: worker 0, 2 rollouts of 100 steps" in output
        and "worker_1.json: worker 1" in output
    )
    assert re.search(r"^EnvStep +100 +\d", output, re.MULTILINE) and re.search(
        r"^Rollout +2 .* 100\.0% ", output, re.MULTILINE
    )
    added = json.loads(Path("worker_0.json").read_text())
    added["traceEvents"].append(
        {"name": "aten::addmm", "cat": "cpu_op", "ph": "X", "ts": 1, "dur": 2}
    )
    Path("worker_0.json").write_text(json.dumps(added))
    assert re.search(r"^aten::addmm +1 +0.002 ", run("trace", "worker_0.json").output, re.MULTILINE)


@pytest.mark.parametrize("text", ["no JSON", "[]", '{"traceEvents": 3}', '{"traceEvents": []}'])
def test_what_is_no_trace_is_refused(text: str) -> None:
    Path("a.json").write_text(text)
    assert "a.json" in (line := refused("trace", "a.json", code=1)) and "expected" in line
