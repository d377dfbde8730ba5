"""The processes of one ddp trial. `tuner.engine.processes.ranks` starts them as Ray actors, `Processes` without Ray."""

from __future__ import annotations

import contextlib
import datetime
import logging
import multiprocessing
import os
import socket
from collections.abc import Hashable
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from typing import Any

import psutil
import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from tuner.errors.sent import error_of, sent
from tuner.training.devices import accelerator
from tuner.training.devices.accelerator import is_out_of_memory, release
from tuner.training.devices.usage import Usage, of_workers
from tuner.training.loop import Training
from tuner.training.task import TrialSpec

logger = logging.getLogger(__name__)
Answer = tuple[Hashable, Any, BaseException | None]  # a call, its return value, its error (None if it succeeded)
JOIN_TIMEOUT = datetime.timedelta(seconds=60)  # all processes of a group must connect within this time
ECHO_S = 5.0  # seconds to wait, after an error that is only an echo (`is_echo`), for the error that caused it


class GroupOutOfMemoryError(RuntimeError):
    """A process ran out of memory; the arguments are torch's message and the number of examples trained on at once."""


class WorkerDiedError(RuntimeError):
    """A process of a `Processes` group has died; the text has its rank and exit code."""


class DDPRank:
    """One process of a group; `device` is cpu or cuda:INDEX. The trial's report and state are those of rank 0.

    Callers must call a method in all processes at once, except `listen` and `state`.
    """

    def __init__(self, rank: int, num_workers: int, num_threads: int, device: str) -> None:
        self.rank, self.num_workers, self.device = rank, num_workers, device
        torch.set_num_threads(num_threads)
        self.store: TCPStore | None = None
        self.training: Training | None = None

    def listen(self, host: str) -> int:
        """Opens a port for the group at the address `host`; returns its number. Called in rank 0 only."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, 0), family=family)  # TCPStore itself would listen on all interfaces
        port = int(listener.getsockname()[1])
        descriptor = listener.detach()
        self.store = TCPStore(
            host, port, self.num_workers, True, JOIN_TIMEOUT, wait_for_workers=False, master_listen_fd=descriptor
        )
        return port

    def join(self, host: str, port: int, address: str) -> None:
        """Joins the group that rank 0 has opened at `host` and `port`; `address` is this process's own address."""
        accelerator.here.use(self.device)  # not in the constructor, whose errors Ray shows as a lost worker
        # Without these variables, gloo and nccl would choose the interface of the host's name, or the first one.
        interfaces = psutil.net_if_addrs().items()
        if interface := next((name for name, known in interfaces if address in [each.address for each in known]), ""):
            os.environ.update(GLOO_SOCKET_IFNAME=interface, NCCL_SOCKET_IFNAME=interface)
        if self.store is None:
            self.store = TCPStore(host, port, self.num_workers, False, JOIN_TIMEOUT)
        backend = accelerator.here.backend(self.device)
        dist.init_process_group(backend, store=self.store, rank=self.rank, world_size=self.num_workers)

    def begin(self, material: Any, spec: TrialSpec, state: bytes | None, limit: int | None) -> tuple[int, Any]:
        """Builds the training, restored from a state if there is one; returns its epoch and the state's `extra`.

        Args:
            material: (task, splits), or a function that returns them.
            limit: the most examples to train on at once; None = the limit saved in the state, if any.
        """
        self.end()
        task, splits = material() if callable(material) else material
        spec = replace(spec, strategy="ddp", num_workers=self.num_workers)
        self.training = Training(task, splits, spec, rank=self.rank, device=self.device)
        extra = None if state is None else self.training.restore(state)
        if limit is not None:
            self.training.train_fit.limit = limit
        self.usage = Usage()
        return self.training.epoch, extra

    def run_epoch(self) -> tuple[dict[str, Any], dict[str, float]]:
        """Trains one epoch; returns the report of `Training.run_epoch`, and this process's usage.

        Raises GroupOutOfMemoryError if memory runs out and a smaller `limit` may help. Other processes may then wait
        in a collective call, so the caller must restart the group.
        """
        training = self.training
        assert training is not None
        try:
            return training.run_epoch(), self.usage.read()
        except RuntimeError as error:
            size = training.train_fit.size(training.strategy.share_of(training.batch_size))
            if size == 1 or training.spec.on_oom == "fail" or not is_out_of_memory(error):
                raise
            raise GroupOutOfMemoryError(str(error), size) from None

    def final_metrics(self) -> dict[str, float]:
        assert self.training is not None
        return self.training.final_metrics()

    def state(self, extra: Any) -> bytes:
        assert self.training is not None
        return self.training.state(extra)

    def end(self) -> None:
        if self.training is not None:
            self.training.close()
            self.training = None
            release()


class Group:
    """Runs one trial in several processes: calls the methods of all `DDPRank`s at once.

    The next trial may reuse a group (call `begin` again). If a method raises an error, the caller must close the group.
    """

    def __init__(self, material: Any, num_workers: int) -> None:
        self.material, self.num_workers, self.epoch = material, num_workers, 0  # finished epochs
        self.spec: TrialSpec | None = None
        self.saved: bytes | None = None
        self.start()

    def start(self) -> None:
        """Starts the processes and connects them to each other."""
        raise NotImplementedError

    def send(self, rank: int, method: str, *arguments: Any) -> Hashable:
        """Calls a method of a process's `DDPRank` without waiting for its end; returns the call, for `finished`."""
        raise NotImplementedError

    def finished(self, calls: list[Any], timeout_s: float | None) -> list[Answer]:
        """Waits until one call ends; returns the answers of ended calls, none after the timeout (None = no timeout)."""
        raise NotImplementedError

    def close(self) -> None:
        """Kills the processes, whatever they are doing."""
        raise NotImplementedError

    def begin(self, spec: TrialSpec, state: bytes | None = None, limit: int | None = None) -> Any:
        """Builds the training in every process; returns the state's `extra`. For the arguments, see `DDPRank.begin`."""
        self.spec, self.saved = spec, state
        self.epoch, extra = self.call("begin", self.material, spec, state, limit)[0]
        return extra

    def run_epoch(self) -> dict[str, Any]:
        """Trains one epoch in all processes; returns rank 0's report and the usage of all processes.

        If a process runs out of memory (see `DDPRank.run_epoch`), all processes restart with half as many examples at
        once. They begin from the last state (passed to `begin` or returned by `state`), and repeat the epochs since it.
        """
        report: dict[str, Any] = {}
        until = self.epoch + 1
        while self.epoch < until:
            try:
                reports, usage = zip(*self.call("run_epoch"), strict=True)
                report = reports[0] | of_workers(usage)
                self.epoch += 1
            except GroupOutOfMemoryError as error:
                text, size = error.args
                logger.warning("a worker with %d examples at once: %s", size, text.partition("\n")[0])
                assert self.spec is not None
                self.close()
                self.start()
                self.begin(self.spec, self.saved, size // 2)
        return report

    def final_metrics(self) -> dict[str, float]:
        """Returns what `Training.final_metrics` does, computed in all processes."""
        metrics: dict[str, float] = self.call("final_metrics")[0]
        return metrics

    def state(self, extra: Any = None) -> bytes:
        """Returns the content of a checkpoint (`Training.state`), and keeps it for a restart."""
        saved: bytes
        (saved,) = self.answers([self.send(0, "state", extra)])
        self.saved = saved
        return saved

    def call(self, method: str, *arguments: Any) -> list[Any]:
        return self.answers([self.send(rank, method, *arguments) for rank in range(self.num_workers)])

    def answers(self, calls: list[Hashable]) -> list[Any]:
        """Waits for calls; returns their values, or raises the first error without waiting for the other calls.

        An error that only says that another process is gone (`is_echo`) is raised when all calls have ended, or when
        none has ended for ECHO_S seconds.
        """
        values: dict[Hashable, Any] = {}
        echo: BaseException | None = None
        while pending := [call for call in calls if call not in values]:
            answers = self.finished(pending, None if echo is None else ECHO_S)
            for call, value, error in answers:
                if error is not None and not is_echo(error):
                    raise error
                values[call], echo = value, echo or error
            if not answers:
                break
        if echo is not None:
            raise echo
        return [values[call] for call in calls]


class Processes(Group):
    """A group of plain processes on this machine, without Ray; they end with `close`, or with this process.

    Args:
        material: a module-level function, or a partial of one; each process calls it for the task and its data.
        use_cuda: whether each process uses the GPU with the index of its rank; otherwise it uses the CPU.
    """

    def __init__(self, material: Any, num_workers: int, num_threads: int = 1, use_cuda: bool = False) -> None:
        self.num_threads, self.use_cuda = num_threads, use_cuda
        super().__init__(material, num_workers)

    def start(self) -> None:
        context = multiprocessing.get_context("spawn")  # a forked process can use neither CUDA nor autograd's threads
        self.processes, self.pipes = [], list[Connection]()
        for rank in range(self.num_workers):
            pipe, theirs = context.Pipe()
            device = f"cuda:{rank}" if self.use_cuda else "cpu"
            arguments = (theirs, rank, self.num_workers, self.num_threads, device)
            process = context.Process(target=run_calls, args=arguments, daemon=True)
            process.start()
            theirs.close()  # while it is open here, a read would not notice that the other process has ended
            self.processes.append(process)
            self.pipes.append(pipe)
        host = "127.0.0.1"
        (port,) = self.answers([self.send(0, "listen", host)])
        self.call("join", host, port, host)

    def send(self, rank: int, method: str, *arguments: Any) -> Connection:
        self.pipes[rank].send((method, arguments))
        return self.pipes[rank]

    def finished(self, calls: list[Any], timeout_s: float | None) -> list[Answer]:
        return [self.received(pipe) for pipe in wait(calls, timeout_s)]

    def received(self, pipe: Any) -> Answer:
        try:
            value, pickled, printed = pipe.recv()
            return pipe, value, error_of(pickled, printed) if printed else None
        except (EOFError, ConnectionError):
            rank = self.pipes.index(pipe)
            self.processes[rank].join()
            code = self.processes[rank].exitcode
            return pipe, None, WorkerDiedError(f"worker {rank} has died (exit code {code})")

    def close(self) -> None:
        for process, pipe in zip(self.processes, self.pipes, strict=True):
            process.kill()  # these processes have nothing to save
            process.join()
            pipe.close()
        self.processes, self.pipes = [], []


def run_calls(pipe: Connection, *arguments: Any) -> None:
    """Runs the calls that arrive through the pipe, until the pipe closes; the main function of a process."""
    member = DDPRank(*arguments)
    with contextlib.suppress(EOFError):
        while True:
            method, arguments = pipe.recv()
            try:
                answer = getattr(member, method)(*arguments), b"", ""
            except Exception as error:
                answer = None, *sent(error)
            pipe.send(answer)


def addresses_among(addresses: list[str]) -> list[str]:
    """The address of each rank for the other ranks: loopback if all `addresses` are equal (one node)."""
    return ["127.0.0.1"] * len(addresses) if len(set(addresses)) == 1 else addresses


def is_echo(error: BaseException) -> bool:
    """Whether an error probably only says that another process is gone; that process's own error has the reason."""
    text = str(error)
    marks = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "gloo/transport", "NCCL error")
    return isinstance(error, dist.DistError) or any(mark in text for mark in marks)
