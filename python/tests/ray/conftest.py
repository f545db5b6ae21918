from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from waiting import runs, until
from windrow.collectors import RayCollector

ray: Any = pytest.importorskip("ray")

Build = Callable[..., RayCollector]


@pytest.fixture(scope="module")
def cluster() -> Any:
    """A Ray of 2 CPUs on this machine, of which each process that runs tests has its own. Its token
    keeps others out.
    """
    if not ray.is_initialized():
        with pytest.MonkeyPatch.context() as patch:
            # Other tests import modules of theirs by these paths; actors do, too.
            for path in reversed(sys.path):
                patch.setenv("PYTHONPATH", os.path.abspath(path), prepend=os.pathsep)
            _begin()
    return ray


def _begin() -> None:
    options = {
        "num_cpus": 2,
        "object_store_memory": 128 << 20,
        "include_dashboard": False,
        "log_to_driver": False,
    }
    for left in (2, 1, 0):
        try:
            ray.init(address="local", configure_logging=False, **options)
            break
        except Exception:
            # Ray gives up after half a minute, which a busy machine may need.
            ray.shutdown()
            if not left:
                raise


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> Iterator[None]:
    """Ends Ray behind the last test of this folder: a child of fork that ends would end its
    parent's, and other tests fork.
    """
    yield
    if nextitem is None or Path(__file__).parent not in nextitem.path.parents:
        ray.shutdown()


def _builds(cluster: Any) -> Iterator[Build]:
    built: list[RayCollector] = []

    def make(*args: Any, **options: Any) -> RayCollector:
        usual = {
            "remote_configs": {"num_cpus": 0.2},
            "num_collectors": 2,
            "frames_per_batch": 20,
            "total_frames": -1,
            "seed": 3,
        }
        built.append(RayCollector(*args, **{**usual, **options}))
        return built[-1]

    yield make
    pids = [
        pid
        for collector in built
        for name, pid in collector.stats("per_worker").items()
        if name.endswith("/pid") and pid
    ]
    for collector in built:
        collector.shutdown(raise_on_error=False)
    until(lambda: not any(map(runs, pids)))
    assert cluster.is_initialized()


@pytest.fixture
def build(cluster: Any) -> Iterator[Build]:
    """Builds collectors with two actors, and ends them after the test."""
    yield from _builds(cluster)


@pytest.fixture(scope="module")
def build_once(cluster: Any) -> Iterator[Build]:
    """As ``build``, for all tests of a module."""
    yield from _builds(cluster)
