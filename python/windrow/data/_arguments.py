"""Arguments of buffers and their parts that TorchRL knows and that have no effect here, and why."""

from __future__ import annotations

from windrow._passed_over import Fixed

#: Of buffers.
OF_BUFFERS: dict[str, Fixed] = {
    "prefetch": (0, "a sample is drawn when it is asked for, without holding the interpreter up"),
    "dim_extend": (None, "frames are written one by one, along the last dimension of a batch, which is time"),
    "compilable": (False, "nothing is compiled"),
    "checkpointer": (None, "dumps has one format"),
    "delayed_init": (False, "memory is laid out when the first frames come"),
}

#: Of storages.
OF_STORAGES: dict[str, Fixed] = {
    "compilable": (False, "nothing is compiled"),
    "consolidated": (False, "each frame lies in one piece"),
    "shared_init": (False, "memory is laid out when the first frames come"),
    "cleanup_memmap": (True, "files of a scratch_dir stay, others go"),
    "existsok": (True, "what is there already is gone on with"),
    "auto_cleanup": (None, "files of a scratch_dir stay, others go"),
}

#: Of samplers of slices.
OF_SLICES: dict[str, Fixed] = {
    "compile": (False, "nothing is compiled"),
    "use_gpu": (False, "slices are chosen on the CPU"),
    "trajectories": (None, "trajectories are told apart by entries of the frames"),
    "ends": (None, "trajectories are told apart by entries of the frames"),
    "init_key": ("is_init", "the entry is \"is_init\""),
    "step_key": (None, "trajectories are told apart by their ids and ends"),
    "fragmented": (False, "pieces of a trajectory that were written apart count as several"),
}

#: Of samplers with priorities.
OF_PRIORITIES: dict[str, Fixed] = {
    "dtype": (None, "priorities are float32"),
    "device": ("cpu", "priorities are kept on the CPU"),
    "max_priority_within_buffer": (False, "new frames have the highest priority ever given"),
}
