"""TorchRL's own scripts with ``torchrl`` renamed ``windrow.torchrl`` in their imports: which of
them run, and which classes serve them.

``python python/benches/official.py FOLDER`` takes a clone of TorchRL's repository. Each script runs
in a copy of its folder with its own numbers, by either package, until it ends or ``--limit``
seconds are over; one that is still running then "runs". With ``--tests``, those that TorchRL tests
run with the few frames of its tests, to their end. A line has the classes of collectors,
environments and buffers that were made, and the batches that were delivered. ``--table`` prints all
results, which ``docs/torchrl.md`` shows. Scripts of hydra need hydra-core; loggers are switched
off.
"""

from __future__ import annotations

import argparse
import ast
import functools
import importlib
import json
import os
import re
import runpy
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

SOTA, TUTORIALS, EXAMPLES = "sota-implementations", "tutorials/sphinx-tutorials", "examples"
#: What is changed in a script.
IMPORT = re.compile(r"^(\s*(?:from|import) +)torchrl\b", re.MULTILINE)
WHOLE = re.compile(r"^(\s*import +)torchrl$", re.MULTILINE)
#: Methods that the constructors of all classes of a kind call.
ROOTS = {
    "collector": (
        "windrow.collectors.BaseCollector._build",
        "torchrl.collectors.BaseCollector.__init__",
    ),
    "environment": ("windrow.envs.EnvBase.__init__", "torchrl.envs.EnvBase.__init__"),
    "batches": (
        "windrow.collectors.BaseCollector._processed",
        "torchrl.collectors.Collector.rollout",
    ),
    "buffer": ("windrow.data.ReplayBuffer._begin", "torchrl.data.ReplayBuffer.__init__"),
}
#: Classes within others.
INSIDES = {"Inside", "Wrapped"}
QUIET = ("logger.backend=",)
NO_LOGGER = ("trainer.logger=null",)


class Script(NamedTuple):
    """One script, and the arguments that leave its loggers out."""

    path: str
    arguments: tuple[str, ...] = ()


SCRIPTS = [
    *(
        Script(f"{SOTA}/{name}", QUIET)
        for name in (
            "dqn/dqn_cartpole.py",
            "ppo/ppo_mujoco.py",
            "a2c/a2c_mujoco.py",
            "sac/sac.py",
            "td3/td3.py",
            "ddpg/ddpg.py",
            "cql/cql_online.py",
            "cql/discrete_cql_online.py",
            "iql/iql_online.py",
            "iql/discrete_iql.py",
            "crossq/crossq.py",
            "tqc/tqc.py",
            "redq/redq.py",
            "discrete_sac/discrete_sac.py",
            "rnd/rnd_mujoco.py",
            "ppo/ppo_atari.py",
            "a2c/a2c_atari.py",
            "dqn/dqn_atari.py",
            "impala/impala_single_node.py",
            "ppo-async/ppo_async_mujoco.py",
            "dreamer/dreamer.py",
            "sac/sac-async.py",
            "multiagent/mappo_ippo.py",
            "multiagent/iql.py",
            "multiagent/qmix_vdn.py",
            "multiagent/maddpg_iddpg.py",
            "multiagent/sac.py",
        )
    ),
    Script(f"{SOTA}/bandits/dqn.py"),
    Script(f"{SOTA}/dreamer_v3/dreamer_v3.py"),
    Script(f"{SOTA}/pilco/pilco.py", ("logger.backend=csv",)),
    *(
        Script(f"{SOTA}/{name}_trainer/train.py")
        for name in ("dqn", "ddpg", "cql", "iql", "multiagent")
    ),
    Script(
        f"{SOTA}/td3_trainer/train.py",
        ("networks.policy_network.device=cpu", "networks.qvalue_network.device=cpu"),
    ),
    *(
        Script(f"{SOTA}/{name}_trainer/train.py", NO_LOGGER)
        for name in ("ppo", "a2c", "sac", "reinforce")
    ),
    *(
        Script(f"{TUTORIALS}/{name}.py")
        for name in (
            "getting-started-0",
            "getting-started-1",
            "getting-started-2",
            "getting-started-3",
            "getting-started-4",
            "getting-started-5",
            "pendulum",
            "coding_ppo",
            "coding_dqn",
            "coding_ddpg",
            "dqn_with_rnn",
            "recurrent_sequence_training",
            "rb_tutorial",
            "collector_trajectory_assembly",
            "memory_efficient_rl",
            "evaluator",
            "checkpointing",
            "multi_task",
            "multiagent_ppo",
            "multiagent_competitive_ddpg",
            "torchrl_demo",
            "torchrl_envs",
            "export",
            "rlrender",
        )
    ),
    *(
        Script(f"{EXAMPLES}/{name}.py")
        for name in (
            "agents/composite_actor",
            "agents/composite_ppo",
            "agents/multi-step",
            "agents/recurrent_actor",
            "collectors/async_batched_collector",
            "collectors/multi_weight_updates",
            "collectors/weight_sync_collectors",
            "collectors/collector_device",
            "envs/gym-async-info-reader",
            "envs/gym_conversion_examples",
            "replay-buffers/catframes-in-buffer",
            "replay-buffers/checkpoint",
            "replay-buffers/compressed_replay_buffer",
            "replay-buffers/filter-imcomplete-trajs",
            "replay-buffers/recurrent_slice_sampler_pipeline",
            "multiagent/mappo_vmas",
        )
    ),
]


def tested(sources: Path) -> list[Script]:
    """The scripts that TorchRL's repository tests, with the few frames that it gives them."""
    tests = ast.parse((sources / ".github/unittest/linux_sota/scripts/test_sota.py").read_text())
    found = (
        node.value
        for node in tests.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "commands"
    )
    commands = map(shlex.split, ast.literal_eval(next(found)).values())
    return [Script(path, tuple(arguments)) for _, path, *arguments in commands]


def ported(text: str) -> str:
    """A script with the package renamed in its imports."""
    return IMPORT.sub(r"\1windrow.torchrl", WHOLE.sub(r"\1torchrl as torchrl", text))


def record(made: dict[str, dict[str, int]]) -> None:
    """Counts in ``made`` which classes are made."""
    for kind, methods in ROOTS.items():
        for method in methods:
            module, root, name = method.rsplit(".", 2)
            cls = getattr(importlib.import_module(module), root)
            setattr(cls, name, counted(getattr(cls, name), made.setdefault(kind, {})))


def counted(init: Any, made: dict[str, int]) -> Any:
    """A method of constructors, which counts the objects that it is called for."""

    @functools.wraps(init)
    def counting(self: Any, *args: Any, **kwargs: Any) -> Any:
        name = f"{type(self).__module__.partition('.')[0]}.{type(self).__name__}"
        made[name] = made.get(name, 0) + 1
        return init(self, *args, **kwargs)

    return counting


def child(path: str, arguments: list[str], report: str) -> None:
    """Runs one script in this process, and writes to ``report`` which classes it has made."""
    made: dict[str, dict[str, int]] = {}

    def write() -> None:
        Path(report).write_text(json.dumps(made))

    def end(*_: Any) -> None:
        write()
        os._exit(124)

    signal.signal(signal.SIGTERM, end)
    record(made)
    sys.argv = [path, *arguments]
    sys.path.insert(0, os.path.dirname(path))
    try:
        runpy.run_path(path, run_name="__main__")
    finally:
        write()


def run(script: Script, sources: Path, package: str, limit: float, logs: Path) -> dict[str, Any]:
    """How ``script`` goes by ``package``."""
    name = script.path.replace("/", "+")
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "script"
        shutil.copytree((sources / script.path).parent, copy)
        if package == "windrow":
            for source in copy.rglob("*.py"):
                source.write_text(ported(source.read_text()))
        report, log = Path(folder) / "report.json", logs / f"{name}.{package}.log"
        path = str(copy / Path(script.path).name)
        command = [sys.executable, __file__, "--child", report, path, *script.arguments]
        environment = {
            **os.environ,
            "MUJOCO_GL": "egl",
            "HYDRA_FULL_ERROR": "1",
            "MPLBACKEND": "Agg",
            "TMPDIR": folder,
            "BATCHED_PIPE_TIMEOUT": "60",
        }
        began = time.monotonic()
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                cwd=copy,
                env=environment,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
            try:
                code = process.wait(limit)
            except subprocess.TimeoutExpired:
                process.terminate()
                try:
                    code = process.wait(10)
                except subprocess.TimeoutExpired:
                    code = 124
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()
        made = json.loads(report.read_text()) if report.exists() else {}
        seconds = time.monotonic() - began
    outcome = {0: f"ends ({seconds:.0f} s)", 124: "runs"}.get(code) or last_error(
        log.read_text(errors="replace")
    )
    return {"script": script.path, "package": package, "outcome": outcome, "made": made}


def last_error(log: str) -> str:
    """The line of a log that names the error."""
    lines = [
        line
        for line in log.splitlines()
        if re.match(r"^[\w.]+(Error|Exception|Exit|Interrupt|NotFound)\b", line)
    ]
    return (lines[-1] if lines else "no error message")[:200]


def served(made: dict[str, dict[str, int]]) -> str:
    """The classes that were made, without repetitions, and the batches that collectors of this
    process have delivered.
    """
    names = (name for kind, by_name in made.items() if kind != "batches" for name in by_name)
    classes = dict.fromkeys(
        name for name in names if name.rpartition(".")[2] not in INSIDES and "._" not in name
    )
    batches = sum(made.get("batches", {}).values())
    return ", ".join([*classes, *([f"{batches} batches"] if batches else [])])


def table(results: Path) -> None:
    """Prints a line in Markdown for each script that runs with TorchRL, and names the others, with
    their last results.
    """
    last: dict[str, dict[str, Any]] = {}
    for line in results.read_text().splitlines():
        result = json.loads(line)
        last.setdefault(result["script"], {})[result["package"]] = result
    print("| script | `torchrl` | `windrow.torchrl` | made by the latter |\n|---|---|---|---|")
    others = []
    for script, by in last.items():
        name = script.removeprefix(f"{SOTA}/").removeprefix(f"{TUTORIALS}/")
        theirs, own = (
            by.get(package, {"outcome": "not run", "made": {}})
            for package in ("torchrl", "windrow")
        )
        if theirs["outcome"].startswith(("runs", "ends")):
            print(
                f"| {name} | {theirs['outcome']} | {own['outcome'][:90]} | {served(own['made'])} |"
            )
        else:
            others.append(
                f"{name} ({theirs['outcome'].partition(':')[0][:40]}; here {own['outcome'].partition(':')[0][:40]})"
            )
    print(f"\nWith TorchRL itself these end with an error on that machine: {', '.join(others)}.")


def main() -> None:
    """Runs scripts, and prints a line for each."""
    if sys.argv[1:2] == ["--child"]:
        return child(sys.argv[3], sys.argv[4:], sys.argv[2])
    parser = argparse.ArgumentParser(description="TorchRL's own scripts by windrow.torchrl.")
    parser.add_argument("sources", type=Path, help="a clone of TorchRL's repository")
    parser.add_argument("--limit", type=float, default=60, help="seconds for each; 60 unless given")
    parser.add_argument("--only", default="", help="only scripts whose paths match this expression")
    parser.add_argument(
        "--package", choices=("windrow", "torchrl"), help="one of the two; both unless given"
    )
    parser.add_argument(
        "--logs",
        type=Path,
        default=Path(tempfile.gettempdir()) / "official",
        help="where logs and results go",
    )
    parser.add_argument(
        "--add",
        nargs="+",
        default=(),
        metavar="NAME=VALUE",
        help="arguments for each script, such as fewer frames",
    )
    parser.add_argument(
        "--tests",
        action="store_true",
        help="the commands of TorchRL's own tests of its scripts, which come to an end",
    )
    parser.add_argument(
        "--table", action="store_true", help="run nothing, and print the results in logs as a table"
    )
    arguments = parser.parse_args()
    if arguments.table:
        return table(arguments.logs / "results.jsonl")
    arguments.logs.mkdir(parents=True, exist_ok=True)
    for script in tested(arguments.sources) if arguments.tests else SCRIPTS:
        if (
            not re.search(arguments.only, script.path)
            or not (arguments.sources / script.path).exists()
        ):
            continue
        script = script._replace(arguments=(*script.arguments, *arguments.add))
        for package in [arguments.package] if arguments.package else ["windrow", "torchrl"]:
            result = run(script, arguments.sources, package, arguments.limit, arguments.logs)
            with (arguments.logs / "results.jsonl").open("a") as results:
                print(json.dumps(result), file=results)
            print(
                f"{script.path}  {package}  {result['outcome']}  {served(result['made'])}",
                flush=True,
            )


if __name__ == "__main__":
    main()
