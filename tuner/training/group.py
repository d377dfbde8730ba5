"""The processes of one ddp trial: what each process does, and how the processes connect to each other.

`tuner.engine.workers.actors` starts them as Ray actors, and `tuner.training.launch` as plain processes.
"""

from __future__ import annotations

import datetime
import logging
import os
import socket
from collections.abc import Hashable
from dataclasses import replace
from typing import Any

import psutil
import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from tuner.training.data import Splits
from tuner.training.devices import accelerator
from tuner.training.devices.accelerator import is_out_of_memory
from tuner.training.devices.memory import release
from tuner.training.devices.usage import Usage, of_workers
from tuner.training.loop import Training
from tuner.training.task import Task, TrialSpec

logger = logging.getLogger(__name__)
Answer = tuple[Hashable, Any, BaseException | None]  # a call, its return value, its error (None if it succeeded)
JOIN_TIMEOUT = datetime.timedelta(seconds=60)  # all processes of a group must connect within this time
ECHO_S = 5.0  # seconds to wait for the original error of another process, see `is_echo`


class GroupOutOfMemoryError(RuntimeError):
    """A process of a group ran out of memory; it trained on `size` examples at once, and fewer may fit."""

    def __init__(self, text: str, size: int) -> None:
        super().__init__(text)
        self.size = size

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.size)


class DDPRank:
    """One process of a group. Callers must call a method in all processes at once, except `listen` and `state`.

    Args:
        rank: from 0. The other processes connect to rank 0. The report and state of rank 0 are those of the trial.
        num_workers: number of processes in the group.
        num_threads: number of torch threads, at least 1.
        device: cpu or cuda:INDEX.
    """

    def __init__(self, rank: int, num_workers: int, num_threads: int, device: str) -> None:
        self.rank, self.num_workers, self.device = rank, num_workers, device
        torch.set_num_threads(num_threads)
        self.store: TCPStore | None = None
        self.training: Training | None = None

    def listen(self, host: str) -> int:
        """Opens a port for the group, only at the address `host`; returns the port's number. Called in rank 0 only."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, 0), family=family)  # TCPStore itself would listen on all interfaces
        port = int(listener.getsockname()[1])
        descriptor = listener.detach()
        self.store = TCPStore(
            host, port, self.num_workers, True, JOIN_TIMEOUT, wait_for_workers=False, master_listen_fd=descriptor
        )
        return port

    def join(self, host: str, port: int, address: str) -> None:
        """Connects this process to rank 0, which listens at `host` and `port`.

        gloo and nccl must use the interface with `address`, this process's own one in the network of the group. By
        themselves they would choose the interface of the host's name, or the first one.
        """
        accelerator.here.use(self.device)  # not in the constructor, whose errors Ray shows as a lost worker
        interface = interface_of(address)
        if interface:
            os.environ.update(GLOO_SOCKET_IFNAME=interface, NCCL_SOCKET_IFNAME=interface)
        if self.store is None:
            self.store = TCPStore(host, port, self.num_workers, False, JOIN_TIMEOUT)
        backend = accelerator.here.backend(self.device)
        dist.init_process_group(backend, store=self.store, rank=self.rank, world_size=self.num_workers)

    def begin(self, task: Task, splits: Splits, spec: TrialSpec, state: bytes | None, limit: int | None) -> int:
        """Builds the training, restored from a state if there is one; returns the number of finished epochs.

        Args:
            state: the content of a checkpoint; None = start at epoch 0.
            limit: the most examples that may be trained on at once; None = the limit saved in the state, if any.
        """
        self.end()
        whole = replace(spec, strategy="ddp", num_workers=self.num_workers)
        self.training = Training(task, splits, whole, rank=self.rank, device=self.device)
        if state is not None:
            self.training.restore(state, keep=spec.mutable)
        if limit is not None:
            self.training.train_fit.limit = limit
        self.shrinks = spec.on_oom == "shrink"
        self.usage = Usage()
        return self.training.epoch

    def run_epoch(self) -> tuple[dict[str, Any], dict[str, float]]:
        """Trains and validates one epoch; returns the report of `Training.run_epoch`, and this process's usage.

        Raises GroupOutOfMemoryError if memory runs out and a smaller `limit` may help. The other processes may wait for
        this one in a collective call, so the caller must restart the group.
        """
        assert self.training is not None
        fit = self.training.train_fit
        try:
            return self.training.run_epoch(), self.usage.read()
        except RuntimeError as error:
            size = fit.size(self.training.strategy.share_of(self.training.batch_size))
            if size == 1 or not self.shrinks or not is_out_of_memory(error):
                raise
            raise GroupOutOfMemoryError(str(error), size) from None

    def state(self, **others: Any) -> bytes:
        """The content of a checkpoint (`Training.state`); rank 0's serves all ranks."""
        assert self.training is not None
        return self.training.state(**others)

    def end(self) -> None:
        """Frees the training; the process stays connected for the next trial."""
        if self.training is not None:
            self.training.close()
            self.training = None
            release()


class Group:
    """Runs one trial in several processes: calls the methods of all `DDPRank`s at once.

    A subclass implements `start`, `send`, `finished` and `close`. The next trial may reuse a group (call `begin`
    again), unless a method raised an error; then the caller must end the group.
    """

    def __init__(self, num_workers: int) -> None:
        self.num_workers, self.epoch = num_workers, 0  # finished epochs
        self.spec: TrialSpec | None = None
        self.saved: bytes | None = None
        self.start()

    def start(self) -> None:
        """Starts the processes and connects them to each other."""
        raise NotImplementedError

    def send(self, rank: int, method: str, *arguments: Any, **named: Any) -> Hashable:
        """Starts a call of a process's `DDPRank`; `begin` also gets task and splits. Returns what names the call."""
        raise NotImplementedError

    def finished(self, calls: list[Any], timeout_s: float | None) -> list[Answer]:
        """Waits until one of the calls ends; returns those that have ended, none after the timeout (None = never)."""
        raise NotImplementedError

    def close(self) -> None:
        """Kills the processes, whatever they are doing."""
        raise NotImplementedError

    def begin(self, spec: TrialSpec, state: bytes | None = None, limit: int | None = None) -> None:
        """Builds the training in every process, restored from a state if there is one (see `DDPRank.begin`)."""
        self.spec, self.saved = spec, state
        self.epoch = self.call("begin", spec, state, limit)[0]

    def run_epoch(self) -> dict[str, Any]:
        """Trains one epoch in all processes; returns rank 0's report and the usage of all processes.

        If a process runs out of memory, all restart from the last state (of `begin` or `state`), with half as many
        examples at once, and repeat the epochs since then.
        """
        report: dict[str, Any] = {}
        until = self.epoch + 1
        while self.epoch < until:
            try:
                reports, usage = zip(*self.call("run_epoch"), strict=True)
                report = reports[0] | of_workers(usage)
                self.epoch += 1
            except GroupOutOfMemoryError as error:
                logger.warning("a worker with %d examples at once: %s", error.size, str(error).partition("\n")[0])
                assert self.spec is not None
                self.close()
                self.start()
                self.begin(self.spec, self.saved, error.size // 2)
        return report

    def state(self, **others: Any) -> bytes:
        """The content of a checkpoint with `others` (`Training.state`); also kept for a restart."""
        self.saved = self.call_first("state", **others)
        return self.saved

    def call(self, method: str, *arguments: Any) -> list[Any]:
        """Calls a method of each `DDPRank`; returns the values by rank, or raises what `answers` does."""
        return self.answers([self.send(rank, method, *arguments) for rank in range(self.num_workers)])

    def call_first(self, method: str, **named: Any) -> Any:
        """Calls a method of rank 0 only; returns its value."""
        return self.answers([self.send(0, method, **named)])[0]

    def answers(self, calls: list[Hashable]) -> list[Any]:
        """Waits for calls; returns their values.

        Raises the first error at once, because the other processes may wait in a collective call for ever. An error
        that only says that another process is gone (`is_echo`) is raised after all have ended, or after ECHO_S in
        which none has.
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


def interface_of(address: str) -> str:
    """The name of the network interface with this address; empty if there is none."""
    interfaces = psutil.net_if_addrs().items()
    return next((name for name, known in interfaces if address in [each.address for each in known]), "")


def addresses_among(addresses: list[str]) -> list[str]:
    """The address at which the others reach each process, by rank: loopback if all addresses are equal (one node)."""
    return ["127.0.0.1"] * len(addresses) if len(set(addresses)) == 1 else addresses


def is_echo(error: BaseException) -> bool:
    """Whether an error probably only says that another process is gone; that process's own error has the reason."""
    text = str(error)
    marks = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "gloo/transport", "NCCL error")
    return isinstance(error, dist.DistError) or any(mark in text for mark in marks)
