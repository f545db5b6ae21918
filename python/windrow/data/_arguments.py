"""Arguments of buffers and their parts that TorchRL knows and that have no effect here, and why."""

from __future__ import annotations

#: Of buffers.
OF_BUFFERS: dict[str, str] = {
    "prefetch": "a sample is drawn when it is asked for, without holding the interpreter up",
    "dim_extend": "frames are written one by one, along the last dimension of a batch, which is time",
    "compilable": "nothing is compiled",
    "checkpointer": "dumps has one format",
    "delayed_init": "memory is laid out when the first frames come",
}

#: Of storages.
OF_STORAGES: dict[str, str] = {
    "compilable": "nothing is compiled",
    "consolidated": "each frame lies in one piece",
    "shared_init": "memory is laid out when the first frames come",
    "cleanup_memmap": "files of a scratch_dir stay, others go",
    "existsok": "what is there already is gone on with",
    "auto_cleanup": "files of a scratch_dir stay, others go",
}

#: Of samplers of slices.
OF_SLICES: dict[str, str] = {
    "compile": "nothing is compiled",
    "use_gpu": "slices are chosen on the CPU",
    "trajectories": "trajectories are told apart by entries of the frames",
    "ends": "trajectories are told apart by entries of the frames",
    "init_key": "the entry is \"is_init\"",
    "step_key": "trajectories are told apart by their ids and ends",
    "fragmented": "pieces of a trajectory that were written apart count as several",
}

#: Of samplers with priorities.
OF_PRIORITIES: dict[str, str] = {
    "dtype": "priorities are float32",
    "device": "priorities are kept on the CPU",
    "max_priority_within_buffer": "new frames have the highest priority ever given",
}
