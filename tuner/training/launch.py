"""Runs a ddp trial in processes on this machine, without Ray: for `tuner.train`, benchmarks and tests."""

from __future__ import annotations

import contextlib
import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any

from tuner.training.data import Splits
from tuner.training.group import Answer, DDPRank, Group
from tuner.training.task import Task

Source = Callable[[], tuple[Task, Splits]]


class WorkerDiedError(RuntimeError):
    """A process of a group has died; the text has its rank and exit code."""


class Processes(Group):
    """A group of plain processes. They end with `close`, or with the process that started them.

    Args:
        source: returns the task and its data; called in each process. It is pickled, unlike its result, so it must be
            a module-level function or a `functools.partial` of one.
        num_workers: number of processes of the trial.
        num_threads: number of torch threads in each process.
        use_cuda: whether each process uses the GPU with the index of its rank; otherwise it uses the CPU.
    """

    def __init__(self, source: Source, num_workers: int, num_threads: int = 1, use_cuda: bool = False) -> None:
        self.source, self.num_threads, self.use_cuda = source, num_threads, use_cuda
        super().__init__(num_workers)

    def start(self) -> None:
        context = multiprocessing.get_context("spawn")  # a forked process can use neither CUDA nor autograd's threads
        self.processes, self.pipes = [], list[Connection]()
        for rank in range(self.num_workers):
            pipe, theirs = context.Pipe()
            device = f"cuda:{rank}" if self.use_cuda else "cpu"
            arguments = (theirs, self.source, rank, self.num_workers, self.num_threads, device)
            process = context.Process(target=run_calls, args=arguments, daemon=True)
            process.start()
            theirs.close()  # while it is open here, a read would not notice the other process's end
            self.processes.append(process)
            self.pipes.append(pipe)
        host = "127.0.0.1"
        self.call("join", host, self.call_first("listen", host=host), host)

    def send(self, rank: int, method: str, *arguments: Any, **named: Any) -> Connection:
        self.pipes[rank].send((method, arguments, named))
        return self.pipes[rank]

    def finished(self, calls: list[Any], timeout_s: float | None) -> list[Answer]:
        return [self.received(pipe) for pipe in wait(calls, timeout_s)]

    def received(self, pipe: Any) -> Answer:
        try:
            return pipe, *pipe.recv()
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

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def run_calls(pipe: Connection, source: Source, rank: int, num_workers: int, num_threads: int, device: str) -> None:
    """The main function of a process: runs the calls that arrive through the pipe, until the pipe closes."""
    member = DDPRank(rank, num_workers, num_threads, device)
    material: tuple[Task, Splits] | None = None
    answer: tuple[Any, Exception | None]
    with contextlib.suppress(EOFError):
        while True:
            method, arguments, named = pipe.recv()
            try:
                if method == "begin":
                    material = material or source()
                    arguments = (*material, *arguments)
                answer = getattr(member, method)(*arguments, **named), None
            except Exception as error:
                answer = None, error.with_traceback(None)
            pipe.send(answer)
