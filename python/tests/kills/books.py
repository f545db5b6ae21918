"""What was delivered, against what every ledger says."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

from kills.mortal import Record, digest, ending, length, reward


class Books:
    """All frames that one collector has delivered, each of which is recomputed."""

    def __init__(self) -> None:
        self.rows = 0
        self.newest = 0
        self.violations: list[str] = []
        #: Of each trajectory, by its id, the frame that came last, and whether it was the end.
        self._trajectories: dict[int, tuple[Record, bool]] = {}
        #: Of each environment, which is another one after each loss, the steps of its episodes that
        #: came.
        self._episodes: dict[int, dict[int, set[int]]] = defaultdict(lambda: defaultdict(set))

    def enter(self, batch: Any) -> None:
        """Enters a batch; batches come in the order in which they were delivered."""
        there = np.ones(batch.shape, bool)
        if ("collector", "mask") in batch.keys(True):
            there = batch["collector", "mask"].numpy()

        def column(*key: str) -> Any:
            # By environment and time, as frames lie in memory.
            values = batch[key].numpy()
            return values.reshape(*there.shape, -1)[there]

        now, after = column("ledger"), column("next", "ledger")
        self.rows += len(now)
        told = np.array([np.frombuffer(digest(*record), np.uint8) for record in now.tolist()])
        told_after = np.array(
            [np.frombuffer(digest(*record), np.uint8) for record in after.tolist()]
        )
        version, action = column("policy_version"), column("action")
        self._all("I1: payload", now, column("payload") == told)
        self._all("I1: next payload", now, column("next", "payload") == told_after)
        self._all("I1: clock", now, column("clock") == now[:, 2:])
        self._all("I1: next observation", now, after == now + [0, 0, 1])
        self._all(
            "I5: weights of another version than that of their name acted", now, action == version
        )
        self.newest = max(self.newest, int(version.max()))
        flags = np.concatenate(
            [
                column(*next_, name)
                for next_ in ((), ("next",))
                for name in ("done", "terminated", "truncated")
            ],
            1,
        )
        frames = zip(
            map(tuple, now.tolist()),
            version[:, 0].tolist(),
            column("next", "reward")[:, 0].tolist(),
            flags.tolist(),
            column("collector", "traj_ids")[:, 0].tolist(),
            strict=True,
        )
        for frame in frames:
            self._enter(*frame)

    def _enter(
        self, record: Record, version: int, got: float, flags: list[bool], traj_id: int
    ) -> None:
        env, episode, t = record
        ends = t + 1 == length(env, episode)
        terminated, truncated = ending(env, episode) if ends else (False, False)
        if flags != [False, False, False, ends, terminated, truncated]:
            self.accuse(f"I1: flags of {record}: {flags}")
        if got != reward((env, episode, t + 1), version):
            self.accuse(f"I1: reward of {record}: {got}")
        steps = self._episodes[env][episode]
        if t in steps:
            self.accuse(f"I2: {record} was delivered twice")
        steps.add(t)
        last, ended = self._trajectories.get(traj_id, ((env, episode, -1), False))
        if ended or record != (last[0], last[1], last[2] + 1):
            self.accuse(f"I3: {record} follows {last} in trajectory {traj_id}")
        self._trajectories[traj_id] = record, ends

    def _all(self, what: str, records: Any, right: Any) -> None:
        for record in records[~right.all(1)].tolist():
            self.accuse(f"{what}, at {record}")

    def close(self, *, whole: bool) -> None:
        """Closes the books: what an environment has delivered is a beginning of what it has to
        tell, of ``whole`` episodes or not.
        """
        for env, episodes in self._episodes.items():
            last = max(episodes)
            for episode in range(last + 1):
                expected, got = length(env, episode), len(episodes.get(episode, ()))
                # A loss or the end may have cut the last one.
                cut = episode == last and not whole
                if got != expected and not (cut and 1 <= got < expected):
                    self.accuse(
                        f"I3: environment {env} delivered {got} of {expected} frames of episode {episode} of {last}"
                    )

    def accuse(self, violation: str) -> None:
        """Notes a violation."""
        self.violations.append(violation)
