"""What can be told to collectors and asked of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from windrow._numbers import whole
from windrow._passed_over import pass_over
from windrow.collectors import _env_states
from windrow.collectors._interruptor import Interruptor
from windrow.collectors._profile import WITHOUT_EFFECT, ProfileConfig
from windrow.collectors._publishing import Publishing


class Control(Publishing):
    """Seeds, states, figures and profiles."""

    _interruptor: Interruptor | None
    _envs: list[Any]
    _worker_idx: int | None
    _profile: ProfileConfig | None
    post_collect_hook: Callable[[Any], None] | None

    def set_seed(self, seed: int, static_seed: bool = False) -> int:
        """Seeds environment ``i`` with ``seed + i`` (all of them with ``seed``, where ``static_seed``), and begins new
        episodes. Returns the seed of the last environment.

        Raises:
            TypeError: the seed is no whole number.
            ValueError: it is negative.
            RuntimeError: the collector was shut down.
        """
        self._surface()
        self._check_not_ended()
        return self._core.set_seed(whole("seed", seed, 0), static_seed)

    def reset(self, index: Any = None, *, reset_idx: Any = None) -> None:
        """Begins new episodes in all environments.

        Args:
            index: a flag for each worker or environment, all of them True.
            reset_idx: the same, as collectors with several workers call it.

        Raises:
            RuntimeError: only some of them are to be reset, or the collector was shut down.
        """
        index = reset_idx if index is None else index
        if index is not None and not (isinstance(index, (list, tuple)) and all(index)):
            raise RuntimeError("reset begins new episodes in all environments: index must be left out")
        self._surface()
        self._check_not_ended()
        self._core.reset()

    def state_dict(self) -> dict[str, Any]:
        """What it takes to go on later: ``frames``, ``iter``, ``seed``, ``policy_version``, ``traj_pool``, ``policy_state_dict``
        and ``env_state_dict``, what transforms of environments have gathered: of the only worker, or under ``"worker<i>"`` of
        each. Simulators are not saved. A batch that waits until a limiter lets it be written counts."""
        self._raise_background()
        state = self._core.state_dict().to_dict()
        state["env_state_dict"] = _env_states.states_of(self._envs)
        self._source.add_to(state)
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any], **_: Any) -> None:
        """Goes on from a saved state, with new episodes in every environment. Nothing is changed when that fails.

        Raises:
            ValueError: it is the state of another kind of collector, of another policy or of other environments.
        """
        self._raise_background()
        state = dict(state_dict)
        states = state.get("env_state_dict", {})
        state["env_state_dict"] = {}
        with self._source.restored(state):
            before = _env_states.states_of(self._envs)
            try:
                _env_states.load(self._envs, states)
                self._core.load_state_dict(state)
            except BaseException:
                _env_states.load(self._envs, before)
                raise
        # An earlier state brings ids back that were used since.
        self._number = None

    def stats(self, workers: str = "aggregate") -> dict[str, Any]:
        """Figures since the start, by name.

        Args:
            workers: ``"aggregate"`` are those of the collector, ``"per_worker"`` those of each worker, as
                ``"worker_<i>/<name>"``: ``frames`` that it has collected, also those that were not delivered, ``parts`` of
                batches that they filled, ``restarts`` after it had failed, whether it is ``alive``, how many seconds it has
                ``waited``, the ``policy_version`` that has acted last, and its ``policy_lag`` behind the newest.
                ``"both"`` are all of them.

        Raises:
            ValueError: ``workers`` is none of these.
        """
        if workers not in ("aggregate", "per_worker", "both"):
            raise ValueError(f'workers must be "aggregate", "per_worker" or "both", got {workers!r}')
        self._raise_background()
        figures: dict[str, Any] = {}
        if workers != "per_worker":
            figures |= {**self._core.stats(), "policy_backend": self.policy_backend}
        if workers != "aggregate":
            for worker, its in enumerate(self._core.worker_stats()):
                figures |= {f"worker_{worker}/{name}": figure for name, figure in its.items()}
        return figures

    def losses(self) -> list[str]:
        """What happened to workers that were lost without ending the collector, since this was last asked."""
        self._raise_background()
        return self._core.take_losses()

    @property
    def policy_backend(self) -> str:
        """Who evaluates the policy: ``"native"`` in Rust, ``"torch"`` in Python."""
        return self._core.policy_backend()

    @property
    def requested_frames_per_batch(self) -> int:
        """Frames in a batch."""
        return int(self._core.stats()["requested_frames_per_batch"])

    @property
    def frames_per_batch(self) -> int:
        """Frames in a batch."""
        return self.requested_frames_per_batch

    @property
    def total_frames(self) -> int | float:
        """Frames in all; infinite where the collector is endless."""
        total = self._core.stats()["total_frames"]
        return float("inf") if total is None else int(total)

    @property
    def replay_buffer(self) -> Any:
        """Where batches go, if they are not delivered."""
        return self._replay_buffer

    @property
    def interruptor(self) -> Interruptor | None:
        """What can cut batches short."""
        return self._interruptor

    @property
    def worker_idx(self) -> int:
        """The number that was given to this collector.

        Raises:
            RuntimeError: none was.
        """
        if self._worker_idx is None:
            raise RuntimeError("worker_idx was not given to this collector")
        return self._worker_idx

    def set_post_collect_hook(self, hook: Callable[[Any], None] | None) -> None:
        """Calls ``hook`` with each batch as it is delivered, in place of the present one."""
        self.post_collect_hook = hook

    # Profile

    def enable_profile(
        self,
        *,
        workers: list[int] | None = None,
        num_rollouts: int = 3,
        warmup_rollouts: int = 1,
        save_path: Any = None,
        **options: Any,
    ) -> None:
        """Records where the time of workers goes, and writes a trace for each that Perfetto opens.

        Args:
            workers: numbers of workers; the first where there is nothing.
            num_rollouts: batches after which a worker is no longer looked at.
            warmup_rollouts: how many of these are not recorded.
            save_path: of the trace; ``{worker_idx}`` stands for the number of the worker. Its folder is made.
            options: of torch's profiler, which is not used; a warning says so, and :attr:`profile_config` keeps them.

        Raises:
            RuntimeError: the first batch was collected already.
            ValueError: nothing would be recorded, or there is no such worker.
            TypeError: an option is unknown.
        """
        pass_over("enable_profile", options, WITHOUT_EFFECT)
        config = ProfileConfig(
            workers=workers or [0], num_rollouts=num_rollouts, warmup_rollouts=warmup_rollouts, save_path=save_path, **options
        )
        self._raise_background()
        template = config.template()
        Path(template).parent.mkdir(parents=True, exist_ok=True)
        self._core.enable_profile(config.workers, num_rollouts, warmup_rollouts, template)
        self._profile = config

    def disable_profile(self) -> None:
        """Ends the recording, and writes what there is."""
        self._raise_background()
        self._core.disable_profile()

    @property
    def profile_config(self) -> ProfileConfig | None:
        """What :meth:`enable_profile` was called with."""
        return self._profile

    def profile_summary(self) -> dict[int, dict[str, float]]:
        """Seconds that each recorded worker has spent in each phase."""
        self._raise_background()
        return self._core.profile_summary()
