"""A server that evaluates a model for many clients."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import pickle
import signal
import socket
import struct
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict
from tensordict.nn import (
    InteractionType,
    ProbabilisticTensorDictModule,
    TensorDictModule,
    TensorDictSequential,
    set_interaction_type,
)
from torch import nn
from torch.distributions import Normal

from waiting import threads, until
from windrow._objects import Objects
from windrow.collectors import Collector
from windrow.modules import InferenceServer, _door
from windrow.modules._door import RemoteClient

Serve = Callable[..., InferenceServer]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """A server that runs, and ends after the test."""
    servers: list[InferenceServer] = []

    def make(*args: Any, **arguments: Any) -> InferenceServer:
        servers.append(InferenceServer(*args, **arguments).start())
        return servers[-1]

    yield make
    for server in servers:
        server.shutdown()


class Doubles(nn.Module):
    """Doubles what it is given, and raises an error at 13."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(2.0))
        self.sizes: list[int] = []

    def forward(self, tensordict: Any) -> Any:
        self.sizes.append(len(tensordict))
        if (tensordict["x"] == 13).any():
            raise ValueError("unlucky")
        return tensordict.set("y", tensordict["x"] * self.factor)


def request(x: float) -> TensorDict:
    return TensorDict({"x": torch.tensor([x])})


def test_answers_are_those_of_the_model(serve: Serve) -> None:
    model = Doubles()
    server = serve(model)
    answer = server.client()(request(3.0))
    assert (
        answer["y"].tolist() == [6.0] and answer["x"].tolist() == [3.0] and answer.batch_size == ()
    )
    assert answer["policy_version"] == 0 and answer["policy_version"].dtype == torch.int64
    assert not answer["y"].requires_grad and model.sizes == [], "a copy is called"


def test_many_threads_get_each_their_own(serve: Serve) -> None:
    server = serve(Doubles(), max_batch_size=5)

    def ask(number: int) -> bool:
        client = server.client()
        return all(
            float(client(request(100.0 * number + 20 + x))["y"]) == 2 * (100.0 * number + 20 + x)
            for x in range(30)
        )

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(ask, range(8)))
    stats = server.stats()
    assert (
        stats["requests"] == 240
        and 48 <= stats["batches"] <= 240
        and stats["avg_batch_size"] == 240 / stats["batches"]
    )
    assert 0 < stats["batch_fill"] <= 1 and stats["failed_batches"] == 0
    assert (
        0 <= stats["p50_forward_ms"] <= stats["p95_forward_ms"]
        and 0 <= stats["p50_queue_ms"] <= stats["p95_queue_ms"]
    )
    assert server.stats(reset=True)["requests"] == 240 and server.stats()["requests"] == 0


def at_once(server: InferenceServer, requests: list[TensorDict]) -> list[Any]:
    """The answers, or errors, of clients that are all there before the first of them asks."""
    clients = server.clients(len(requests))

    def ask(client: Any, request: TensorDict) -> Any:
        try:
            return client(request)
        except Exception as error:
            return error

    with ThreadPoolExecutor(len(requests)) as pool:
        return list(pool.map(ask, clients, requests))


def test_those_that_ask_at_once_are_answered_by_one_call(serve: Serve) -> None:
    sizes: list[int] = []

    def model(tensordict: Any) -> Any:
        sizes.append(len(tensordict))
        return tensordict.set("y", tensordict["x"] + 1)

    server = serve(model, min_batch_size=4, timeout=60.0)
    answers = at_once(server, [request(float(x)) for x in range(4)])
    assert sizes == [4] and [float(answer["y"]) for answer in answers] == [1.0, 2.0, 3.0, 4.0]


def test_an_error_is_that_of_the_requests_of_its_call(serve: Serve) -> None:
    server = serve(Doubles(), min_batch_size=2, timeout=60.0)
    both = at_once(server, [request(13.0), request(1.0)])
    assert all(isinstance(error, ValueError) and "unlucky" in str(error) for error in both)
    assert [float(answer["y"]) for answer in at_once(server, [request(2.0), request(1.0)])] == [
        4.0,
        2.0,
    ]
    apart = at_once(serve(Doubles(), max_batch_size=1), [request(13.0), request(1.0)])
    assert isinstance(apart[0], ValueError) and float(apart[1]["y"]) == 2.0
    assert server.stats()["failed_batches"] == 1 and server.is_alive


def test_requests_and_answers_that_do_not_fit_are_errors(serve: Serve) -> None:
    server = serve(Doubles(), min_batch_size=2, timeout=60.0)
    assert all(
        isinstance(error, Exception)
        for error in at_once(server, [request(1.0), TensorDict({"z": torch.zeros(1)})])
    )
    for model in (lambda tensordict: tensordict[0], lambda tensordict: tensordict["x"]):
        with pytest.raises(TypeError, match="expected a TensorDict with 1 answers"):
            serve(model).client()(request(1.0))


def test_requests_may_have_batches_of_their_own(serve: Serve) -> None:
    answer = serve(Doubles()).client()(TensorDict({"x": torch.ones(3, 2)}, batch_size=[3]))
    assert (
        answer.batch_size == (3,)
        and (answer["y"] == 2).all()
        and answer["policy_version"].shape == (3,)
    )


def test_new_weights_are_a_new_version(serve: Serve) -> None:
    model = Doubles()
    server = serve(model, policy_version=4)
    client = server.client()
    with torch.no_grad():
        model.factor.fill_(5.0)
    assert float(client(request(1.0))["y"]) == 2.0
    server.update_policy_weights_()
    answer = client(request(1.0))
    assert float(answer["y"]) == 5.0 and answer["policy_version"] == 5
    server.update_policy_weights_({"factor": torch.tensor(7.0)})
    assert float(client(request(1.0))["y"]) == 7.0
    with pytest.raises(ValueError, match="weights of another policy: missing .'factor'."):
        server.update_policy_weights_(nn.Linear(1, 1))
    with pytest.raises(KeyError, match="no model is called 'critic'"):
        server.update_policy_weights_(model, model_id="critic")
    server.update_model(lambda served: served.factor.data.fill_(9.0))
    assert float(client(request(1.0))["y"]) == 9.0
    assert (
        server.policy_version == server.stats()["policy_version"] == 7
        and server.stats()["weight_updates"] == 3
    )
    with pytest.raises(RuntimeError, match="no weights were given"):
        serve(lambda tensordict: tensordict).update_policy_weights_()


def test_the_exploration_type_of_a_client_holds_for_its_answer(serve: Serve) -> None:
    actor = TensorDictSequential(
        TensorDictModule(lambda x: (x, torch.ones_like(x)), ["x"], ["loc", "scale"]),
        ProbabilisticTensorDictModule(
            ["loc", "scale"], ["action"], distribution_class=Normal, default_interaction_type="mean"
        ),
    )
    client = serve(actor).client()
    assert float(client(request(0.25))["action"]) == 0.25, "the module's own default"
    with set_interaction_type(InteractionType.RANDOM):
        assert len({float(client(request(0.25))["action"]) for _ in range(4)}) == 4
    with set_interaction_type(InteractionType.DETERMINISTIC):
        assert float(client(request(0.25))["action"]) == 0.25


def test_a_server_has_to_be_started_once(serve: Serve) -> None:
    server = InferenceServer(Doubles())
    with pytest.raises(RuntimeError, match="started first"):
        server.client()
    assert not server.is_alive
    with server:
        client = server.client()
        assert server.is_alive and float(client(request(1.0))["y"]) == 2.0
        with pytest.raises(RuntimeError, match="started already"):
            server.start()
    assert not server.is_alive
    for ask in (server.client, lambda: client(request(1.0))):
        with pytest.raises(RuntimeError, match="shut down"):
            ask()
    server.shutdown()


def test_a_shutdown_ends_those_that_wait() -> None:
    begun, release = threading.Event(), threading.Event()

    def stuck(tensordict: Any) -> Any:
        begun.set()
        release.wait()
        return tensordict

    server = InferenceServer(stuck, max_batch_size=1).start()
    clients = server.clients(2)
    with ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(client, request(1.0)) for client in clients]
        begun.wait()
        with pytest.raises(TimeoutError, match="did not return within 0.05 s"):
            server.shutdown(0.05)
        for waiting in asked:
            with pytest.raises(RuntimeError, match="inference server"):
                waiting.result(60)
        release.set()
    server.shutdown()


def test_an_interrupt_does_not_wait_for_the_answer() -> None:
    begun, release = threading.Event(), threading.Event()

    def stuck(tensordict: Any) -> Any:
        begun.set()
        release.wait()
        return tensordict

    def press() -> None:
        begun.wait()
        os.kill(os.getpid(), signal.SIGINT)

    with InferenceServer(stuck) as server:
        client = server.client()
        threading.Thread(target=press).start()
        with pytest.raises(KeyboardInterrupt):
            client(request(1.0))
        release.set()
        assert client(request(2.0))["x"] == 2.0


def test_no_thread_is_left_and_a_server_is_freed() -> None:
    before = set(threads())
    server = InferenceServer(Doubles()).start()
    client = server.client()
    client(request(1.0))
    freed = weakref.ref(server)
    del server, client

    def is_freed() -> bool:
        gc.collect()
        return freed() is None and not set(threads()) - before

    until(is_freed)


def test_a_client_is_a_policy(serve: Serve) -> None:
    network = TensorDictModule(nn.Linear(4, 2), ["observation"], ["action"])
    client = serve(network).client()
    batches = [
        Collector("CartPole-v1", policy, frames_per_batch=20, seed=1).next()
        for policy in (client, network)
    ]
    assert torch.equal(batches[0]["action"], batches[1]["action"])


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({}, TypeError, "either model or policy_factory, got neither"),
        ({"model": Doubles(), "policy_factory": Doubles}, TypeError, "got both"),
        ({"model": 3}, TypeError, "model must be something that can be called, got int"),
        ({"model": Doubles(), "max_batch_size": 0}, ValueError, "max_batch_size must be 1 or more"),
        (
            {"model": Doubles(), "max_batch_size": 2, "min_batch_size": 3},
            ValueError,
            "min_batch_size",
        ),
        ({"model": Doubles(), "timeout": -1.0}, ValueError, "timeout"),
        ({"model": Doubles(), "max_batchsize": 2}, TypeError, "did you mean max_batch_size"),
    ],
)
def test_wrong_arguments_are_named(
    arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        InferenceServer(**arguments)


def test_other_ways_to_make_a_model_and_a_batch(serve: Serve) -> None:
    def collate(requests: list[Any]) -> Any:
        return torch.stack(requests).set("z", torch.ones(len(requests)))

    server = serve(
        policy_factory=Doubles,
        collate_fn=collate,
        policy_version_key=("extra", "version"),
        output_device="cpu",
    )
    answer = server.client()(request(1.0))
    assert (
        answer["z"] == 1
        and answer["extra", "version"] == 0
        and "policy_version" not in answer.keys()
    )
    with pytest.warns(UserWarning, match="service_backend has no effect"):
        InferenceServer(Doubles(), service_backend="ray")


def _elsewhere(client: Any, pipe: Any) -> None:
    """In another process: asks what ``pipe`` tells."""
    while (x := pipe.recv()) is not None:
        try:
            pipe.send(float(client(request(x))["y"]))
        except Exception as error:
            pipe.send((type(error).__name__, str(error)))


def test_a_client_in_another_process(serve: Serve) -> None:
    server = serve(Doubles())
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_elsewhere, args=(server.client(), there), daemon=True)
    process.start()
    for x, expected in ((1.0, 2.0), (13.0, ("ValueError", "unlucky")), (2.0, 4.0)):
        here.send(x)
        assert here.recv() == expected
    # That of the other process remains, until it is killed.
    until(lambda: server.stats()["clients"] == 1)
    os.kill(process.pid or 0, signal.SIGKILL)
    process.join()
    until(lambda: server.stats()["clients"] == 0)
    assert float(server.client()(request(3.0))["y"]) == 6.0


def test_a_copy_of_a_client_asks_through_a_socket(serve: Serve) -> None:
    server = serve(Doubles())
    copy = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(server.client()))))
    assert float(copy(request(4.0))["y"]) == 8.0
    with pytest.raises(ValueError, match="unlucky"):
        copy(request(13.0))
    assert float(copy(request(5.0))["y"]) == 10.0
    server.shutdown()
    with pytest.raises(RuntimeError, match="the inference server has ended"):
        copy(request(4.0))
    with pytest.raises(RuntimeError, match="shut down"):
        server.client()


def copied(server: InferenceServer, **arguments: Any) -> Any:
    """A client as another process has it."""
    return pickle.loads(pickle.dumps(server.client(**arguments)))


class Thing:
    """An object, which only pickle could write."""


class Trap:
    """Runs code where it is unpickled."""

    def __reduce__(self) -> Any:
        return SPRUNG.append, (1,)


SPRUNG: list[int] = []


def test_what_crosses_to_other_processes_is_data(serve: Serve) -> None:
    def model(requests: Any) -> Any:
        assert requests["text"] == ["what"] and requests["half", "x"].dtype == torch.bfloat16
        return requests.set(
            "more", TensorDict({"y": requests["half", "x"] * 2}, requests.batch_size)
        )

    given = TensorDict(
        {
            "text": NonTensorData("what"),
            "half": TensorDict({"x": torch.ones(2, dtype=torch.bfloat16)}),
        },
        device="cpu",
    )
    answer = copied(serve(model))(given)
    assert (
        answer["more", "y"].tolist() == [2, 2]
        and answer["more", "y"].dtype == torch.bfloat16
        and answer["text"] == "what"
    )
    assert answer.device == torch.device("cpu")


def test_objects_cross_where_both_ends_allow_it(serve: Serve) -> None:
    server = serve(
        lambda requests: requests.set("found", NonTensorStack(*[Thing()] * len(requests))),
        allow_pickle=True,
    )
    assert isinstance(
        copied(server, allow_pickle=True)(TensorDict({"thing": NonTensorData(Thing())}))["found"],
        Thing,
    )
    with pytest.raises(
        TypeError, match="thing'?: expected data .*got a Thing.*allow_pickle=True at both ends"
    ):
        copied(server)(TensorDict({"thing": NonTensorData(Thing())}))
    with pytest.raises(
        TypeError, match="found'?: expected data .*got a Thing.*allow_pickle=True at both ends"
    ):
        copied(server)(request(1.0))
    for client in (serve(Doubles()).client, serve(Doubles()).clients):
        with pytest.raises(ValueError, match=r"InferenceServer\(..., allow_pickle=True\)"):
            client(*([] if client.__name__ == "client" else [1]), allow_pickle=True)


def test_neither_end_unpickles_what_the_other_sends(serve: Serve) -> None:
    SPRUNG.clear()
    objects = RemoteClient(*serve(Doubles())._opened().address, True)
    with pytest.raises(ValueError, match="pickled object.*allow_pickle=True at both ends"):
        objects(TensorDict({"x": torch.ones(1), "trap": NonTensorData(Trap())}))
    server, client = _ends()
    for told in (
        (False, Objects().write(Trap())),
        (True, b"o" + pickle.dumps((pickle.dumps(Trap()), b""))),
    ):
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(client, request(1.0))
            server.receive()
            server.send(*told)
            with pytest.raises((ValueError, RuntimeError), match="pickled object"):
                raise asked.exception()  # type: ignore[misc]
    assert SPRUNG == []


def _ends() -> tuple[Any, Any]:
    """A server's end of a connection, and a client at the other."""
    here, there = socket.socketpair()
    client = RemoteClient("nowhere", b"")
    client._line = _door._Line(there)
    return _door._Line(here), client


@pytest.mark.parametrize(
    "kind", [KeyError, FileNotFoundError, ZeroDivisionError, NotImplementedError]
)
def test_built_in_exceptions_of_a_model_cross(serve: Serve, kind: type[Exception]) -> None:
    def model(requests: Any) -> Any:
        raise kind("lost")

    with pytest.raises(kind, match="lost") as caught:
        copied(serve(model))(request(1.0))
    assert "in model" in str(caught.value.__cause__)


def test_another_exception_of_a_model_crosses_by_its_name_and_text(serve: Serve) -> None:
    class Own(Exception):
        pass

    def model(requests: Any) -> Any:
        raise Own("lost")

    with pytest.raises(RuntimeError, match="Own: lost"):
        copied(serve(model))(request(1.0))


def strangers(server: InferenceServer, count: int) -> list[socket.socket]:
    """Connections that say nothing."""
    ends = [socket.socket(socket.AF_UNIX) for _ in range(count)]
    for end in ends:
        end.connect(server._opened().address[0])
    return ends


def test_strangers_keep_nobody_out_and_no_shutdown_waits_for_one(serve: Serve) -> None:
    server = serve(Doubles())
    fair = copied(server)
    silent = strangers(server, _door._STRANGERS + 44)
    # Some speak slowly, and some say what nobody asked for.
    for place, end in enumerate(silent[-40:]):
        end.send(b"\0\0" if place % 2 else b"\xff" * 64)
    assert (
        float(fair(request(4.0))["y"]) == 8.0 and float(copied(server)(request(5.0))["y"]) == 10.0
    )
    # Of too many, the oldest are sent away.
    silent[0].settimeout(60)
    while silent[0].recv(1000):
        pass
    server.shutdown()
    for end in silent:
        with end, contextlib.suppress(ConnectionError):
            end.settimeout(60)
            while end.recv(1000):
                pass


def test_a_greeting_has_a_time_limit(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_door, "_GREETING", 0.05)
    server = serve(Doubles())
    (silent,) = strangers(server, 1)
    with silent:
        silent.settimeout(60)
        while silent.recv(1000):
            pass
    assert not server._opened()._strangers


def test_whoever_has_another_key_is_not_let_in(serve: Serve) -> None:
    address, key = serve(Doubles())._opened().address
    with pytest.raises(multiprocessing.AuthenticationError):
        RemoteClient(address, key[::-1])(request(1.0))


def test_a_message_longer_than_the_limit_ends_its_connection_alone(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve(Doubles())
    client, other = copied(server), copied(server)
    client(request(1.0))
    # Its length alone: nobody waits for the rest, or has memory for it.
    client._line._socket.sendall(struct.pack("!i", 2**31 - 1))
    with pytest.raises(RuntimeError, match="closed the connection"):
        client(request(1.0))
    assert float(client(request(1.0))["y"]) == 2.0 == float(other(request(1.0))["y"])
    monkeypatch.setattr(_door, "_MOST", 100)
    with pytest.raises(ValueError, match="at most 100 bytes"):
        client(request(1.0))


@pytest.mark.filterwarnings("ignore:.*fork")
def test_a_forked_client_says_where_it_belongs(serve: Serve) -> None:
    client = serve(Doubles()).client()
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        try:
            client(request(1.0))
        except RuntimeError as error:
            os.write(writer, str(error).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert b"belongs to process" in os.read(reader, 1000)
    assert float(client(request(1.0))["y"]) == 2.0
