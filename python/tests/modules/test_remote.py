"""Policies that a server in another process evaluates."""

from __future__ import annotations

import pickle
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from tensordict import TensorDict
from torch import nn

from cartpole import cartpole
from messages.wire import BIND, Wire, bind_text, counted
from recurrent import cell, check
from windrow import WorkerError
from windrow._windrow import RemoteWeightsCore
from windrow.collectors import (
    AsyncBatchedCollector,
    AsyncCollector,
    Collector,
    Evaluator,
    MultiAsyncCollector,
    MultiSyncCollector,
    RemoteModuleWeightUpdater,
    VanillaWeightUpdater,
)
from windrow.envs import GymWrapper
from windrow.modules import RemotePolicy, RemoteServer
from windrow.policies import beside

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="remote policies need Unix")

TOKEN = "only-those-who-know-this-may-ask"
KINDS = [
    pytest.param(Collector, {}, id="direct"),
    pytest.param(AsyncCollector, {"placement": "threads"}, id="background"),
    pytest.param(MultiSyncCollector, {"placement": "threads"}, id="sync"),
    pytest.param(MultiAsyncCollector, {"placement": "threads"}, id="async"),
    pytest.param(AsyncBatchedCollector, {}, id="batched"),
    *(
        [pytest.param(MultiSyncCollector, {"placement": "processes"}, id="processes")]
        if sys.platform == "linux"
        else []
    ),
]


def always(choice: int) -> nn.Linear:
    """A policy that always takes this action."""
    policy = nn.Linear(4, 2)
    with torch.no_grad():
        policy.weight.zero_()
        policy.bias.copy_(torch.eye(2)[choice])
    return policy


class Opaque(nn.Module):
    """A policy that torch has to evaluate."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(self.layer(observation).detach().numpy()).argmax(-1)


@pytest.fixture(scope="module")
def server() -> Iterator[RemoteServer]:
    with RemoteServer(always(0), env="CartPole-v1", token=TOKEN) as running:
        yield running


@pytest.fixture
def remote(server: RemoteServer) -> RemotePolicy:
    server.update_policy_weights_(always(0))
    return RemotePolicy(server.address, token=TOKEN, timeout=60)


def build(kind: Any, policy: Any, **options: Any) -> Any:
    envs: Any = cartpole if kind in (Collector, AsyncCollector) else [cartpole] * 2
    return kind(envs, policy, **{"frames_per_batch": 20, "track_policy_version": True, **options})


def settled(collector: Any, version: int) -> Any:
    """A batch of this version alone: where workers run ahead, the first ones were begun before."""
    for _ in range(20):
        batch = next(collector)
        if (batch["policy_version"] == version).all():
            return batch
    raise AssertionError(f"no batch of version {version}")


@pytest.mark.parametrize(("kind", "options"), KINDS)
def test_each_collector_acts_with_a_remote_policy(remote, server, kind, options) -> None:
    with build(kind, remote, **options) as collector:
        assert collector.policy_backend == "native"
        assert (settled(collector, server.policy_version)["action"] == 0).all()
        collector.update_policy_weights_(always(1))
        assert (settled(collector, server.policy_version)["action"] == 1).all()


@pytest.mark.parametrize("served", ["native", "torch"])
def test_a_remote_policy_acts_as_a_local_one(served, tmp_path) -> None:
    policy = (
        nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
        if served == "native"
        else Opaque()
    )
    options: Any = {"seed": 3, "frames_per_batch": 60, "num_envs": 3}
    with RemoteServer(
        policy, address=f"unix:{tmp_path}/policy.sock", policy_backend=served, env=cartpole
    ) as server:
        assert server.address == f"unix:{tmp_path}/policy.sock"
        with Collector(cartpole, RemotePolicy(server.address), **options) as theirs:
            with Collector(cartpole, policy, policy_backend=served, **options) as ours:
                for _ in range(3):
                    got, expected = next(theirs), next(ours)
                    assert all(
                        torch.equal(got[key], expected[key]) for key in expected.keys(True, True)
                    )
        assert server.stats()["rows"] >= 180 and server.stats()["accepted"] >= 1


@pytest.mark.parametrize("kind", [Collector, AsyncBatchedCollector])
@pytest.mark.parametrize("backend", ["torch", "native"])
def test_a_remote_policy_may_remember(kind, backend) -> None:
    with RemoteServer(cell(), policy_backend=backend, env=cartpole) as server:
        with build(kind, RemotePolicy(server.address), total_frames=120, seed=1) as collector:
            batches = [batch.clone() for batch in collector]
            if kind is AsyncBatchedCollector:
                assert collector.server_stats() == {} and set(
                    torch.cat(batches)["env_index"].tolist()
                ) == {0, 1}
        assert server.stats()["rows"] >= 120
    check(batches, cell(), ("hidden",))


def test_pushed_weights_arrive_with_their_version(remote, server) -> None:
    first = server.policy_version
    assert remote.update_policy_weights_(always(1)) == first + 1 == server.policy_version
    assert remote.update_policy_weights_(always(0).state_dict()) == first + 2
    by_address = RemoteModuleWeightUpdater(server.address, token=TOKEN)
    by_policy = RemoteModuleWeightUpdater(remote)
    assert by_address.version is None
    by_address.push_weights(TensorDict.from_module(always(1)))
    by_policy(always(1))
    assert (by_address.version, by_policy.version) == (first + 3, first + 4)
    with build(
        MultiSyncCollector, remote, placement="threads", weight_updater=by_address
    ) as collector:
        assert (next(collector)["policy_version"] == first + 4).all()
        collector.update_policy_weights_(always(0))
        batch = next(collector)
        assert (batch["policy_version"] == first + 5).all() and (batch["action"] == 0).all()
        with pytest.raises(RuntimeError, match="needs the weights with each call"):
            collector.update_policy_weights_()
        with pytest.raises(
            ValueError, match="worker_ids=1: the server has one policy for all workers"
        ):
            collector.update_policy_weights_(always(0), worker_ids=[1])
    # A collector with a policy of its own gets them too.
    with build(Collector, always(0), weight_updater=by_policy) as collector:
        collector.update_policy_weights_(always(1))
        assert (next(collector)["action"] == 1).all() and server.policy_version == first + 6


def test_weights_are_fetched_where_they_are_newer(remote, server) -> None:
    version = remote.update_policy_weights_(always(1))
    found, weights = remote.newer_weights()
    assert found == version and torch.equal(weights["bias"], always(1).bias)
    assert remote.newer_weights(version - 1)[0] == version
    assert remote.newer_weights(version) is None
    with RemoteServer(always(0)) as fresh:
        assert RemotePolicy(fresh.address).newer_weights() is None
        assert fresh.policy_version == 0 == fresh.stats()["policy_version"]


def test_weights_that_do_not_fit_change_nothing(remote, server) -> None:
    version = server.policy_version
    with pytest.raises(RuntimeError, match="bias|weight|shape"):
        remote.update_policy_weights_(nn.Linear(3, 2))
    with pytest.raises(ValueError, match="bias|weight|shape"):
        server.update_policy_weights_(nn.Linear(3, 2))
    assert server.policy_version == version
    with build(Collector, remote, weight_updater=VanillaWeightUpdater()) as collector:
        with pytest.raises(
            (RuntimeError, ValueError), match="the weights of a remote policy are at"
        ):
            collector.update_policy_weights_(always(1))
            next(collector)
    with RemoteServer(lambda observation: observation.sum(-1) > 0) as function:
        with pytest.raises(
            RuntimeError, match="no weights were given, and the server has no module"
        ):
            function.update_policy_weights_()


@pytest.mark.parametrize("token", [None, TOKEN[:-1] + "?"])
def test_nobody_gets_in_with_a_wrong_token(server, token) -> None:
    stranger = RemotePolicy(server.address, token=token)
    version = server.policy_version
    with pytest.raises(
        ConnectionRefusedError,
        match="refused the connection: (the other side has a token|expected a proof of the token)",
    ):
        stranger.update_policy_weights_(always(1))
    with pytest.raises(ConnectionRefusedError):
        stranger.newer_weights()
    with pytest.raises(ValueError, match="refused the connection"):
        build(Collector, stranger)
    assert server.policy_version == version


SPRUNG: list[str] = []


class Trap:
    """Runs code where it is unpickled."""

    def __reduce__(self) -> Any:
        return SPRUNG.append, ("sprung",)


class Thing(gymnasium.Env[Any, Any]):
    """Observes text, or what it was made with in its place, at first and later."""

    observation_space = gymnasium.spaces.Dict(
        {"observation": gymnasium.spaces.Box(-1, 1, (4,)), "thing": gymnasium.spaces.Text(9)}
    )
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, first: Any, later: Any) -> None:
        self.first, self.later = (
            {"observation": np.zeros(4, np.float32), "thing": thing} for thing in (first, later)
        )

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return self.first, {}

    def step(self, action: Any) -> Any:
        return self.later, 0.0, False, False, {}


class Reader(nn.Module):
    """Is called in Python with all that is observed."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.calls = nn.Linear(4, 2), 0

    def forward(self, tensordict: Any) -> Any:
        self.calls += 1
        return tensordict.set("action", self.layer(tensordict["observation"]))


def test_nothing_that_a_client_sends_is_unpickled() -> None:
    SPRUNG.clear()
    with RemoteServer(Reader(), policy_backend="torch") as server:
        remote = RemotePolicy(server.address)
        assert (
            next(Collector(GymWrapper(Thing("some", "text")), remote, frames_per_batch=5)).numel()
            == 5
        )
        with pytest.raises(ValueError, match="thing.*must not travel here"):
            Collector(
                GymWrapper(Thing(Trap(), "text")), RemotePolicy(server.address), frames_per_batch=5
            )
        with pytest.raises(WorkerError, match="thing.*must not travel here"):
            next(
                Collector(
                    GymWrapper(Thing("text", Trap())),
                    RemotePolicy(server.address),
                    frames_per_batch=5,
                )
            )
        parts = [b"", pickle.dumps(Trap())]
        held = b"".join(len(part).to_bytes(beside.HEADER, "little") + part for part in parts)
        weights = {
            f"layer.{name}": value.detach() for name, value in nn.Linear(4, 2).named_parameters()
        }
        state = torch.frombuffer(bytearray(held.ljust(4096, b"\0")), dtype=torch.uint8)
        with pytest.raises(RuntimeError, match="clients may not send"):
            remote.update_policy_weights_({**weights, beside.BESIDE: state})
        # Those of the server itself bring it.
        server.update_policy_weights_()
        _, fetched = remote.newer_weights()
        assert set(fetched.keys(True, True)) == set(weights)
    assert SPRUNG == []


def asked(server: RemoteServer, spec: dict[str, Any], first: bytes | None = None) -> str:
    """The answer to a client that binds ``spec``, which the protocol knows and
    :class:`RemotePolicy` never sends.
    """
    wire = Wire(server.address)
    text = bind_text(spec, has_first=first is not None)
    answer = wire.ask(BIND, (counted(text),), first or b"")
    wire.close()
    return answer.message.decode("utf-8", "replace")


TEXT: dict[str, Any] = {"Unbounded": {"dtype": "bytes", "shape": []}}
BOX: dict[str, Any] = {"Unbounded": {"dtype": "float32", "shape": [4]}}
POLICIES: dict[str, Any] = {
    "lowered": lambda: nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)),
    "of a TensorDict": Reader,
    "a function": lambda: lambda observation: torch.zeros(len(observation), dtype=torch.int64),
}


@pytest.mark.parametrize("kind", POLICIES)
def test_no_example_that_a_client_sends_is_unpickled(kind: str) -> None:
    SPRUNG.clear()
    example = list(b"o" + pickle.dumps(Trap()))
    for entries in ([["observation", TEXT]], [["observation", BOX], ["thing", TEXT]]):
        spec = {
            "id": "x",
            "observation": {"Composite": entries},
            "action": {"Discrete": {"n": 2}},
            "examples": [[[entries[-1][0]], example]],
        }
        with RemoteServer(POLICIES[kind](), policy_backend="torch") as server:
            asked(server, spec)
    assert SPRUNG == []


@pytest.mark.parametrize("shape", [(2**31, 4), (2**62,), (0, 2**62), (-1,)])
def test_a_shape_that_a_client_sends_is_compared_with_what_is_there(shape: tuple[int, ...]) -> None:
    value = b"r" + bytes((7, len(shape))) + b"float32" + struct.pack(f"<{len(shape)}q", *shape)
    spec = {
        "id": "x",
        "observation": {"Composite": [["observation", BOX], ["thing", TEXT]]},
        "action": {"Discrete": {"n": 2}},
    }
    with RemoteServer(Reader(), policy_backend="torch") as server:
        first = bytes(16) + struct.pack("<I", len(value)) + value
        assert "thing" in (told := asked(server, spec, first)) and (
            "places" in told or "no shape" in told
        ), told
        # An example stands for the values of each environment that wrote none.
        spec["examples"] = [[["thing"], list(value)]]
        assert "thing" in asked(server, spec)


def test_objects_cross_where_both_ends_allow_it() -> None:
    with RemoteServer(Reader(), policy_backend="torch", allow_pickle=True) as server:
        remote = RemotePolicy(server.address, allow_pickle=True)
        assert (
            next(
                Collector(GymWrapper(Thing({"a": 1}, {"a": 2})), remote, frames_per_batch=5)
            ).numel()
            == 5
        )
        with pytest.raises(ValueError, match="thing.*must not travel here"):
            Collector(
                GymWrapper(Thing({"a": 1}, "text")),
                RemotePolicy(server.address),
                frames_per_batch=5,
            )
    with RemoteServer(Reader(), policy_backend="torch") as server:
        with pytest.raises(ValueError, match="thing.*must not travel here"):
            Collector(
                GymWrapper(Thing({"a": 1}, "text")),
                RemotePolicy(server.address, allow_pickle=True),
                frames_per_batch=5,
            )


def test_addresses_that_others_reach_need_proof() -> None:
    for address in ("0.0.0.0:0", "10.0.0.1:7777", "policy.example.com:80"):
        with pytest.raises(
            ValueError, match="can be reached from other machines: give a token, or TLS"
        ):
            RemotePolicy(address)
        with pytest.raises(ValueError, match="can be reached from other machines"):
            RemoteServer(always(0), address=address)
    with pytest.raises(
        ValueError,
        match="127.0.0.1:7777 can be reached by all users of this machine: give a token, or TLS",
    ):
        RemotePolicy("127.0.0.1:7777")
    with pytest.raises(ValueError, match="can be reached by all users of this machine"):
        RemoteServer(always(0), address="127.0.0.1:0")
    assert RemotePolicy("10.0.0.1:7777", token=TOKEN).address == "10.0.0.1:7777"
    with RemoteServer(always(0), address="0.0.0.0:0", token=TOKEN) as server:
        assert server.address.startswith("0.0.0.0:")


@pytest.mark.parametrize(
    "made", [RemotePolicy, RemoteServer, RemoteModuleWeightUpdater], ids=lambda made: made.__name__
)
def test_a_token_stands_in_no_error_whatever_its_type(made) -> None:
    class Odd:
        def __repr__(self) -> str:
            return TOKEN

    for token in (
        TOKEN.encode(),
        [TOKEN],
        {TOKEN: TOKEN},
        Odd(),
        bytearray(TOKEN, "ascii"),
        TOKEN + "\n",
        TOKEN + "é",
    ):
        with pytest.raises((TypeError, ValueError)) as caught:
            made(address="127.0.0.1:1", token=token) if made is RemoteServer else made(
                "127.0.0.1:1", token=token
            )
        assert TOKEN not in str(caught.value) and "token" in str(caught.value)
    with pytest.raises((TypeError, ValueError)) as caught:
        RemoteWeightsCore(
            {**RemotePolicy("10.0.0.1:1", token=TOKEN)._remote_options, "token": TOKEN.encode()}
        )
    assert TOKEN not in str(caught.value)


def test_a_client_talks_to_no_server_without_its_token() -> None:
    with (
        RemoteServer(always(0)) as server,
        pytest.raises(ConnectionRefusedError, match="expected a proof of the token"),
    ):
        RemotePolicy(server.address, token=TOKEN).newer_weights()


def test_wrong_arguments_are_refused_at_once(tmp_path) -> None:
    for address in ("policy", "unix:", "host:65536"):
        with pytest.raises(ValueError, match="expected an address such as unix:/run/policy.sock"):
            RemotePolicy(address)
    with pytest.raises(ValueError, match="expected a token of at least 16"):
        RemotePolicy("127.0.0.1:1", token="short")
    with pytest.raises(OSError, match="none.pem"):
        RemotePolicy("127.0.0.1:1", tls={"authority": tmp_path / "none.pem"})
    with pytest.raises(
        ValueError, match="tls has colour: expected certificate, key, authority and server_name"
    ):
        RemotePolicy("127.0.0.1:1", tls={"colour": "red"})
    with pytest.raises(ValueError, match="tls has a certificate without a key"):
        RemotePolicy("127.0.0.1:1", tls={"certificate": tmp_path / "none.pem"})
    with pytest.raises(ValueError, match="tls has a key without a certificate"):
        RemoteServer(always(0), tls={"key": tmp_path / "none.pem"})
    (tmp_path / "text.pem").write_text("no certificate")
    with pytest.raises(ValueError, match="TLS: authority"):
        RemotePolicy("127.0.0.1:1", token=TOKEN, tls={"authority": tmp_path / "text.pem"})
    with pytest.raises(TypeError, match="expected an address as server, got None"):
        RemoteModuleWeightUpdater(token=TOKEN)
    with pytest.raises(ValueError, match="evaluated where its server is"):
        Collector(
            cartpole, RemotePolicy("unix:policy.sock"), frames_per_batch=20, policy_backend="torch"
        )
    with pytest.raises(
        ValueError, match="max_batch_size: the RemoteServer of the policy gathers observations"
    ):
        AsyncBatchedCollector(
            [cartpole] * 2, RemotePolicy("unix:policy.sock"), frames_per_batch=20, max_batch_size=2
        )
    with pytest.raises(OSError, match="failed to listen at unix:"):
        RemoteServer(always(0), address=f"unix:{tmp_path}/no/such/folder.sock")


def of(who: str, authority: str = "friends", **more: str) -> dict[str, Any]:
    """TLS as one of ``who``, who trusts whom ``authority`` has signed.

    The files are for these tests alone: two authorities whose keys nobody has any more, and a
    certificate of each for 127.0.0.1 and policy.test, made with ``openssl`` and valid until 2126.
    """
    place = Path(__file__).parent / "certificates"
    files = {
        "certificate": f"{who}.certificate.pem",
        "key": f"{who}.key.pem",
        "authority": f"{authority}.authority.pem",
    }
    return {"tls": {name: place / file for name, file in files.items()} | more, "timeout": 60}


@pytest.mark.parametrize(("kind", "options"), KINDS)
def test_both_sides_show_certificates(kind: Any, options: dict[str, Any]) -> None:
    with RemoteServer(
        always(1), env="CartPole-v1", address="127.0.0.1:0", **of("friends")
    ) as server:
        with build(
            kind, RemotePolicy(server.address, **of("friends")), total_frames=40, **options
        ) as collector:
            assert all((batch["action"] == 1).all() for batch in collector)
        named = RemotePolicy(server.address, **of("friends", server_name="policy.test"))
        assert named.update_policy_weights_(always(0)) == 1


def test_whoever_shows_no_certificate_or_that_of_another_authority_is_not_let_in() -> None:
    with RemoteServer(
        always(1), env="CartPole-v1", address="127.0.0.1:0", **of("friends")
    ) as server:
        trusting = {"authority": of("friends")["tls"]["authority"]}
        for options in (of("strangers"), {"tls": trusting, "token": TOKEN}, {"token": TOKEN}):
            with pytest.raises((ConnectionError, TimeoutError)):
                RemotePolicy(server.address, **{**options, "timeout": 1}).update_policy_weights_(
                    always(0)
                )
        # And one who is let in does not take a server for its own that another authority, or
        # another name, stands for.
        for options in (
            of("friends", authority="strangers"),
            of("friends", server_name="other.test"),
        ):
            with pytest.raises((ConnectionError, TimeoutError)):
                RemotePolicy(server.address, **{**options, "timeout": 1}).update_policy_weights_(
                    always(0)
                )
        assert RemotePolicy(server.address, **of("friends")).newer_weights() is None


def test_a_server_that_has_ended_is_an_error() -> None:
    with RemoteServer(always(0)) as server:
        policy = RemotePolicy(server.address, timeout=3)
        collector = build(Collector, policy)
        next(collector)
    with pytest.raises(WorkerError, match="has ended|no answer from"):
        for _ in range(3):
            next(collector)
    with pytest.raises((ConnectionError, TimeoutError), match="has ended|no answer from"):
        policy.update_policy_weights_(always(1))
    with pytest.raises(RuntimeError, match="the server was shut down"):
        server.update_policy_weights_()
    server.shutdown()


def test_an_error_of_the_policy_fails_its_request_alone() -> None:
    class Picky(nn.Module):
        def forward(self, observation: torch.Tensor) -> torch.Tensor:
            if observation.abs().max() > 0.1:
                raise ArithmeticError("this observation is too large")
            return torch.zeros(observation.shape[:-1], dtype=torch.int64)

    with RemoteServer(Picky(), policy_backend="torch") as server:
        remote = RemotePolicy(server.address)
        with pytest.raises(WorkerError, match="this observation is too large"):
            with build(Collector, remote) as collector:
                for _ in range(20):
                    next(collector)
        with build(Collector, remote, frames_per_batch=1) as collector:
            assert next(collector).numel() == 1


def test_a_remote_policy_is_pickled_and_keeps_its_secret(remote) -> None:
    again = pickle.loads(pickle.dumps(remote))
    assert again.update_policy_weights_(always(0)) > 0
    assert repr(again) == f"RemotePolicy('{remote.address}')" and TOKEN not in repr(again)


def test_a_remote_policy_is_evaluated() -> None:
    # The evaluator counts steps, and its clients' observations are all of one form.
    with (
        RemoteServer(always(0)) as server,
        Evaluator(
            cartpole, RemotePolicy(server.address), num_trajectories=2, max_steps=20
        ) as evaluator,
    ):
        assert evaluator.evaluate()["eval/num_episodes"] == 2


def test_what_the_server_is_made_of_ends_with_it() -> None:
    server = RemoteServer(always(0))
    with pytest.raises(TypeError, match="can be neither copied nor pickled"):
        pickle.dumps(server)
    assert repr(server) == f"RemoteServer('{server.address}')"
    server.shutdown()
    server.shutdown()
