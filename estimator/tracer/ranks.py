"""One rank of a distributed job, alone in a dry run: only it is started, and the others are answered for.

A launcher (torchrun, accelerate, deepspeed, Lightning, `mp.spawn`) starts one worker in the place of all. The
rendezvous and the collectives on the CPU are answered within the process, as if every other rank had done and
said the same. NCCL's process groups stay PyTorch's own: what they allocate is real.

Which rank: the first, or the middle one (N // 2 of N), for the first often does more than the others.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from typing import Any, Callable, Dict, List, Mapping, Optional

UNIQUE_ID_BYTES = 128  # of a ncclUniqueId, the only value that PyTorch reads without having written it
LAUNCHER = "torch.distributed.launcher.api"
PIPELINE_STAGE = "torch.distributed.pipelining.stage"


class Alone:
    """Makes this process the one rank that is traced; `middle`: the middle rank, not the first one.

    `world_size` is the number of ranks if it is known better than the launcher of the script knows it.
    """

    def __init__(self, middle: bool = False, world_size: Optional[int] = None) -> None:
        self._middle, self._world_size = middle, world_size
        self._stores: List[Any] = []  # C++ holds only a half of a store that is written in Python
        self.leave: Callable[[], None] = lambda: os._exit(0)  # ends a rank that is not traced
        self._ended: Optional[Dict[str, Any]] = None  # the facts when the last process group was destroyed

    def wanted(self, world_size: int) -> int:
        """The rank of `world_size` that is traced."""
        return world_size // 2 if self._middle else 0

    def is_other_rank(self, environment: Mapping[str, str]) -> bool:
        """Whether a launcher has started this process as a rank that is not traced."""
        try:
            world_size = int(environment["WORLD_SIZE"])
            rank = int(environment.get("RANK") or environment["LOCAL_RANK"])
        except (KeyError, ValueError):
            return False
        return 0 <= rank < world_size and rank != self.wanted(world_size)

    def attach(self, torch: Any) -> None:
        """Replaces what waits for other processes; called when torch has been imported."""
        self._replace_spawn(torch)
        if not torch.distributed.is_available():
            return
        c10d: Any = sys.modules["torch.distributed.distributed_c10d"]
        self._replace_stores(torch, c10d)
        self._replace_gloo(torch, c10d)
        for name, answer in _ANSWERS.items():
            for module in (torch.distributed, c10d):
                if hasattr(module, name):
                    setattr(module, name, answer)
        initialise = c10d.init_process_group

        @functools.wraps(initialise)
        def init_process_group(*arguments: Any, **options: Any) -> Any:
            result = initialise(*arguments, **options)
            self._leave_to_children(c10d.get_rank(), c10d.get_world_size())
            return result

        destroy = c10d.destroy_process_group

        @functools.wraps(destroy)
        def destroy_process_group(*arguments: Any, **options: Any) -> Any:
            self._ended = self.facts()
            return destroy(*arguments, **options)

        for module in (c10d, torch.distributed):
            module.init_process_group = init_process_group
            module.destroy_process_group = destroy_process_group

    def facts(self) -> Dict[str, Any]:
        """Rank, world size and process groups (see `facts`), also when they are gone."""
        found = facts()
        return found if found["groups"] or self._ended is None else self._ended

    def replace_launcher(self, module: Any) -> None:
        """torchrun's agent becomes its one worker; `module` is LAUNCHER."""

        def launch_agent(
            config: Any, entrypoint: Any, args: Any, *others: Any, **options: Any
        ) -> Dict[int, Any]:
            local = int(config.nproc_per_node)
            world_size = self._world_size or local * int(config.max_nodes)
            rank = self.wanted(world_size)
            return {rank % local: _become(rank, local, world_size, entrypoint, list(args))}

        module.launch_agent = launch_agent

    @staticmethod
    def answer_for_stages(module: Any) -> None:
        """The next stage of a pipeline tells the shapes of gradients: those of what it was sent.

        What the stage before sends is not known, so that only the first stage can be traced alone; `module`
        is PIPELINE_STAGE.
        """
        receive = module.PipelineStage._recv_meta
        derive, gradients = module._derive_grad_metas, module._StageBackwardMeta

        def _recv_meta(stage: Any, src_stage: int) -> Any:
            if src_stage > stage.stage_index:
                return gradients(backward_metas=derive(stage._stage_meta.outputs))
            return receive(stage, src_stage)

        module.PipelineStage._recv_meta = _recv_meta

    def _leave_to_children(self, rank: int, world_size: int) -> None:
        """A rank that is not traced ends here; if it has started others itself, one of them is."""
        if rank == self.wanted(world_size):
            return
        multiprocessing = sys.modules.get("multiprocessing")
        is_child = multiprocessing is not None and multiprocessing.parent_process() is not None
        if not is_child and not _wait_for_children():
            return  # nobody else is there: better this rank than none
        sys.stdout.flush()
        sys.stderr.flush()
        self.leave()

    def _replace_stores(self, torch: Any, c10d: Any) -> None:
        """Key-value stores over TCP or a file, where the ranks would meet."""
        made = self._stores

        class Store(torch.distributed.Store):  # type: ignore[misc]
            """Holds what this rank sets; what another would have set is a unique id of NCCL."""

            def __init__(self, world_size: int) -> None:
                super().__init__()
                self._values: Dict[str, bytes] = {}
                self._ranks = max(world_size, 1)

            def set(self, key: str, value: Any) -> None:
                self._values[key] = value.encode() if isinstance(value, str) else bytes(value)

            def get(self, key: str) -> bytes:
                return self._values.get(key, bytes(UNIQUE_ID_BYTES))

            def compare_set(self, key: str, expected: Any, desired: Any) -> bytes:
                wanted = expected.encode() if isinstance(expected, str) else bytes(expected)
                if self._values.get(key, b"") == wanted:
                    self.set(key, desired)
                return self._values.get(key, wanted)

            def add(self, key: str, value: int) -> int:
                """Every other rank adds the same."""
                total = int(self._values.get(key, b"0")) + value * self._ranks
                self._values[key] = str(total).encode()
                return total

            def append(self, key: str, value: Any) -> None:
                self._values[key] = self._values.get(key, b"") + bytes(value)

            def multi_get(self, keys: List[str]) -> List[bytes]:
                return [self.get(key) for key in keys]

            def multi_set(self, keys: List[str], values: List[Any]) -> None:
                for key, value in zip(keys, values):  # noqa: B905 - strict= is newer than 3.9
                    self.set(key, value)

            def has_extended_api(self) -> bool:
                return True

            def delete_key(self, key: str) -> bool:
                return self._values.pop(key, None) is not None

            def num_keys(self) -> int:
                return len(self._values)

            def check(self, keys: List[str]) -> bool:
                return all(key in self._values for key in keys)

            def wait(self, keys: List[str], timeout: Any = None) -> None:
                pass

            def set_timeout(self, timeout: Any) -> None:
                pass

        def tcp(
            host_name: Any = None, port: Any = 0, world_size: Any = None, *others: Any, **options: Any
        ) -> Any:
            made.append(Store(world_size or 1))
            return made[-1]

        def file(file_name: Any = None, world_size: Any = -1, *others: Any, **options: Any) -> Any:
            return tcp(world_size=world_size)

        rendezvous = sys.modules.get("torch.distributed.rendezvous")
        for module in (torch.distributed, c10d, rendezvous):
            for name, replacement in (("TCPStore", tcp), ("FileStore", file)):
                if hasattr(module, name):
                    setattr(module, name, replacement)

    @staticmethod
    def _replace_gloo(torch: Any, c10d: Any) -> None:
        """Collectives on the CPU: PyTorch's own fake process group copies what this rank has."""
        gloo: Any = getattr(c10d, "ProcessGroupGloo", None)
        fake: Any = getattr(torch._C._distributed_c10d, "FakeProcessGroup", None)
        if gloo is None or fake is None:
            return
        make = getattr(fake, "_create_internal", fake)
        fake._set_sequence_number_for_group = _no_sequence  # which that of 2.4 to 2.6 refuses
        if not hasattr(fake, "options"):  # that of 2.8 has none, while its groups of gloo do
            fake.options = _Options()

        class Kind(type):
            def __call__(cls, store: Any, rank: int, size: int, *others: Any, **options: Any) -> Any:
                return make(rank, size)

            def __instancecheck__(cls, instance: Any) -> bool:
                return isinstance(instance, (gloo, fake))

            def __getattr__(cls, name: str) -> Any:
                return getattr(gloo, name)

        replacement = Kind("ProcessGroupGloo", (), {"__module__": c10d.__name__})
        c10d.ProcessGroupGloo = torch.distributed.ProcessGroupGloo = replacement

    def _replace_spawn(self, torch: Any) -> None:
        """`mp.spawn` calls its function here, once."""
        module: Any = sys.modules.get("torch.multiprocessing.spawn")
        if module is None:
            return

        def start_processes(
            fn: Callable[..., Any], args: Any = (), nprocs: int = 1, join: bool = True, *_: Any, **__: Any
        ) -> Any:
            fn(self.wanted(nprocs), *args)
            return None if join else _Joined()

        for place in (module, torch.multiprocessing):
            place.start_processes = place.spawn = start_processes


class _Options:
    """Of a process group: what is written into them is read by nobody."""


class _Joined:
    """The context of processes that have all ended."""

    def __init__(self) -> None:
        self.processes: List[Any] = []
        self.error_queues: List[Any] = []

    def join(self, timeout: Any = None, *others: Any, **options: Any) -> bool:
        return True

    def pids(self) -> List[int]:
        return []


def facts() -> Dict[str, Any]:
    """Rank, world size and the process groups of this process as (backend, ranks in it) pairs."""
    found: Dict[str, Any] = {"rank": 0, "world_size": 1, "groups": []}
    torch = sys.modules.get("torch")
    with contextlib.suppress(Exception):  # a part of PyTorch that has no stable interface
        distributed = torch.distributed  # type: ignore[union-attr]
        if distributed.is_available() and distributed.is_initialized():
            found["rank"], found["world_size"] = distributed.get_rank(), distributed.get_world_size()
            world = sys.modules["torch.distributed.distributed_c10d"]._world
            found["groups"] = [
                {"backend": str(world.pg_map[group][0]), "ranks": len(ranks)}
                for group, ranks in world.pg_group_ranks.items()
                if group in world.pg_map
            ]
    return found


class Collectives:
    """When PyTorch lets go of what its collectives over NCCL were given.

    Its watchdog looks for ended ones every 100 ms, and keeps their tensors until then: on hardware, DDP's
    first buckets usually live on beside those of its second step. So that a trace does not depend on the
    machine's speed, they are held until the first backward pass of the next step, and all let go there.
    """

    def __init__(self, hold: Callable[[bool], None]) -> None:
        self._hold = hold
        self._settled_at = -1
        hold(True)

    def attach(self, torch: Any) -> None:
        """Lets go of all before process groups are destroyed, which waits for them."""
        if not torch.distributed.is_available():
            return
        c10d = sys.modules["torch.distributed.distributed_c10d"]
        for name in ("destroy_process_group", "_shutdown_process_group", "_abort_process_group"):
            if hasattr(c10d, name):
                replacement = self._letting_go(getattr(c10d, name))
                for module in (c10d, torch.distributed):
                    setattr(module, name, replacement)

    def _letting_go(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def ending(*arguments: Any, **options: Any) -> Any:
            self._hold(False)
            try:
                return function(*arguments, **options)
            finally:
                self._hold(True)

        return ending

    def settle(self, step: int) -> None:
        """Lets go of all ended collectives, once a step."""
        if step == self._settled_at:
            return
        self._settled_at = step
        with contextlib.suppress(Exception):  # a part of PyTorch that has no stable interface
            backends = _nccl_backends()
            if backends:
                self._hold(False)
                for backend in backends:
                    backend._wait_for_pending_works()
        self._hold(True)


def _nccl_backends() -> List[Any]:
    torch = sys.modules["torch"]
    if not torch.distributed.is_initialized():
        return []
    world = sys.modules["torch.distributed.distributed_c10d"]._world
    kind = torch.distributed.ProcessGroupNCCL
    found = []
    for group in world.pg_map:
        with contextlib.suppress(RuntimeError):  # a group without a backend for the GPU
            backend = group._get_backend(torch.device("cuda"))
            if isinstance(backend, kind):
                found.append(backend)
    return found


def worker_environment(rank: int, local: int, world_size: int) -> Dict[str, str]:
    """What torchrun sets for a worker (see "Environment Variables" of torch.distributed.run)."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank % local),
        "GROUP_RANK": str(rank // local),
        "ROLE_RANK": str(rank),
        "ROLE_NAME": "default",
        "LOCAL_WORLD_SIZE": str(local),
        "WORLD_SIZE": str(world_size),
        "GROUP_WORLD_SIZE": str(-(-world_size // local)),
        "ROLE_WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": "29500",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_RUN_ID": "none",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_ERROR_FILE": os.devnull,
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
    }


def _become(rank: int, local: int, world_size: int, entrypoint: Any, arguments: List[Any]) -> Any:
    os.environ.update(worker_environment(rank, local, world_size))
    if callable(entrypoint):
        return entrypoint(*arguments)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execvp(entrypoint, [entrypoint, *map(str, arguments)])  # noqa: S606


def _wait_for_children() -> bool:
    """Waits until all children have ended; False if there were none."""
    any_child = False
    while True:
        try:
            os.wait()
        except ChildProcessError:
            return any_child
        any_child = True


# --- collectives of Python objects: over NCCL they would read back what no kernel has written ---


def _all_gather_object(object_list: List[Any], obj: Any, group: Any = None) -> None:
    object_list[:] = [obj] * len(object_list)


def _gather_object(obj: Any, object_gather_list: Optional[List[Any]] = None, *_: Any, **__: Any) -> None:
    if object_gather_list is not None:
        object_gather_list[:] = [obj] * len(object_gather_list)


def _scatter_object_list(
    scatter_object_output_list: List[Any],
    scatter_object_input_list: Optional[List[Any]] = None,
    *_: Any,
    **__: Any,
) -> None:
    if scatter_object_input_list:
        scatter_object_output_list[0] = scatter_object_input_list[0]


def _nothing(*arguments: Any, **options: Any) -> None:
    """The list of another rank is not known: it is taken to be as it is here."""


def _no_sequence(group: Any) -> None:
    """Numbers of collectives are for finding out which rank is behind."""


_ANSWERS: Dict[str, Callable[..., Any]] = {
    "all_gather_object": _all_gather_object,
    "gather_object": _gather_object,
    "scatter_object_list": _scatter_object_list,
    "broadcast_object_list": _nothing,
    "send_object_list": _nothing,
    "recv_object_list": _nothing,
    "monitored_barrier": _nothing,
    "_verify_params_across_processes": _nothing,
}
