"""The processes of one ddp trial: what each of them does, and how they find each other; who starts them is left open.

`tuner.engine.workers` starts them as Ray actors, `tuner.training.launch` as plain processes.
"""

from __future__ import annotations

import datetime
import fcntl
import io
import logging
import os
import socket
import struct
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from tuner.training.data import Splits
from tuner.training.loop import Training
from tuner.training.memory import is_out_of_memory, release
from tuner.training.task import Task
from tuner.training.trial_spec import TrialSpec
from tuner.training.usage import Usage, of_workers

logger = logging.getLogger(__name__)
Answer = tuple[int, Any, BaseException | None]  # rank, value, error
JOIN_TIMEOUT = datetime.timedelta(seconds=60)  # for all processes to be there
ECHO_S = 5.0  # how long the error behind an echo of it is waited for
SIOCGIFADDR = 0x8915  # Linux: the address of a network interface


class GroupOutOfMemoryError(RuntimeError):
    """A process of a group ran out of memory with `size` examples at once, and fewer may fit."""

    def __init__(self, text: str, size: int) -> None:
        super().__init__(text)
        self.size = size

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.size)


class Member:
    """One process of a group. Every method is called in all processes at once, `listen` and `state` aside.

    Args:
        rank: from 0; rank 0 is where the others find the group, and reports and saves.
        num_workers: processes of the group.
        num_threads: of torch, at least 1.
        device: cpu or cuda (its own device is then the only one that the process sees, or that of its index).
    """

    def __init__(self, rank: int, num_workers: int, num_threads: int, device: str) -> None:
        self.rank, self.num_workers, self.device = rank, num_workers, device
        torch.set_num_threads(num_threads)
        if torch.device(device).type == "cuda":
            torch.cuda.set_device(device)
        self.store: TCPStore | None = None
        self.training: Training | None = None

    def listen(self, host: str) -> int:
        """Rank 0 alone: opens the port at which the group meets, at this address alone, and returns it."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, 0), family=family)  # a store's own listens on all interfaces
        port = int(listener.getsockname()[1])
        self.store = TCPStore(
            host,
            port,
            self.num_workers,
            True,
            JOIN_TIMEOUT,
            wait_for_workers=False,
            master_listen_fd=listener.detach(),
        )
        return port

    def join(self, host: str, port: int, address: str) -> None:
        """Meets the others.

        Args:
            host, port: where rank 0 listens.
            address: this process's own, in the network that the group talks over. Its interface is named to gloo
                and nccl, which would take one by the host's name, or the first there is.
        """
        interface = interface_of(address)
        if interface:
            os.environ.update(GLOO_SOCKET_IFNAME=interface, NCCL_SOCKET_IFNAME=interface)
        if self.store is None:
            self.store = TCPStore(host, port, self.num_workers, False, JOIN_TIMEOUT)
        backend = "nccl" if torch.device(self.device).type == "cuda" else "gloo"
        dist.init_process_group(backend, store=self.store, rank=self.rank, world_size=self.num_workers)

    def begin(self, task: Task, splits: Splits, spec: TrialSpec, state: bytes | None, limit: int | None) -> int:
        """Builds the training, or goes on with a state; returns the epochs done.

        Args:
            state: a torch.save of a state with `training` in it, to go on from; None = anew.
            limit: examples that go through a model at once at most; None = as the state says, or all.
        """
        self.end()
        whole = replace(spec, strategy="ddp", num_workers=self.num_workers)
        self.training = Training.of(task, splits, whole, self.rank, self.device)
        if state is not None:
            saved = torch.load(io.BytesIO(state), weights_only=True, map_location=self.device)
            self.training.load_state_dict(saved["training"], keep=spec.mutable)
        if limit is not None:
            self.training.train_fit.limit = limit
        self.shrinks = spec.on_oom == "shrink"
        self.usage = Usage()
        return self.training.epoch

    def run_epoch(self) -> tuple[dict[str, Any], dict[str, float]]:
        """Trains and validates an epoch; gives the report of all processes, and this one's usage of its machine.

        Raises:
            GroupOutOfMemoryError: a part of a batch did not fit here. The others wait in a collective call for this
                process, so that the group has to be started anew, with a smaller `limit`.
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
        """A torch.save of the training's state, and of `others` beside it. The same in every process."""
        assert self.training is not None
        saved = io.BytesIO()
        torch.save({"training": self.training.state_dict(), **others}, saved)
        return saved.getvalue()

    def end(self) -> None:
        """Lets go of the training; the process and its group stay for the next one."""
        if self.training is not None:
            self.training.close()
            self.training = None
            release()


class Group:
    """The processes of one trial, told what to do all at once. Who starts them says how, in the methods at the end.

    A group is kept from one trial to the next while all is well (`begin` again); after any error it is to be ended.

    Attributes:
        epoch: epochs done.
    """

    def __init__(self) -> None:
        self.epoch = 0
        self.spec: TrialSpec | None = None
        self.saved: bytes | None = None

    def begin(self, spec: TrialSpec, state: bytes | None = None, limit: int | None = None) -> None:
        """Every process builds the training, or goes on with the state (see `Member.begin`)."""
        self.spec, self.saved = spec, state
        self.epoch = self.call("begin", spec, state, limit)[0]

    def run_epoch(self) -> dict[str, Any]:
        """As `Training.run_epoch`, over all processes, with what they used of their machines.

        Where a part of a batch does not fit, the processes are started anew, with half of the examples at once, from
        the state that was saved last.
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
                self.restart()
                self.begin(self.spec, self.saved, error.size // 2)
        return report

    def state(self, **others: Any) -> bytes:
        """A torch.save of the training's state, and of `others` beside it."""
        self.saved = self.call_first("state", **others)
        return self.saved

    def call(self, method: str, *arguments: Any) -> list[Any]:
        """A method of every `Member`, and its values by rank; raises the error that explains the others."""
        raise NotImplementedError

    def call_first(self, method: str, **named: Any) -> Any:
        """A method of rank 0 alone."""
        raise NotImplementedError

    def restart(self) -> None:
        """Ends the processes, wherever they stand, and starts new ones."""
        raise NotImplementedError


def interface_of(address: str) -> str:
    """The network interface that has an IPv4 address; empty where none has."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                found = fcntl.ioctl(probe.fileno(), SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:
                continue  # an interface without an address
            if socket.inet_ntoa(found[20:24]) == address:
                return name
    return ""


def addresses_among(addresses: list[str]) -> list[str]:
    """The address that each process has for the others, by rank: loopback where all are on one machine."""
    return ["127.0.0.1"] * len(addresses) if len(set(addresses)) == 1 else addresses


def gathered(num_workers: int, done: Callable[[float | None], list[Answer]]) -> list[Any]:
    """The values of all processes, by rank.

    The first error is raised without waiting for the others, which may stand in a collective call for ever. Unless it
    is the echo of another process's end: then what that one has to say is waited for.

    Args:
        done: gives answers that were not given before, at least one, or none after that many seconds (None = never).
    """
    values: dict[int, Any] = {}
    echo: BaseException | None = None
    while len(values) < num_workers:
        answers = done(None if echo is None else ECHO_S)
        for rank, value, error in answers:
            if error is not None and not is_echo(error):
                raise error
            values[rank], echo = value, echo or error
        if not answers:
            break
    if echo is not None:
        raise echo
    return [values[rank] for rank in range(num_workers)]


def is_echo(error: BaseException) -> bool:
    """Whether a collective call failed because another process is gone: its own error says why."""
    text = str(error)
    marks = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "gloo/transport", "NCCL error")
    return isinstance(error, dist.DistError) or any(mark in text for mark in marks)
