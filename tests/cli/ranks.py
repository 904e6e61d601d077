"""Starts the program as several processes: by torchrun, or by the variables that torchrun sets, so that a test sees each process."""
import contextlib
import os
import pathlib
import signal
import socket
import subprocess
import sys

from cli_support import PROGRAM, environment

VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def place(rank, size, port):
    return dict(zip(VARIABLES, map(str, (rank, size, rank, size, "127.0.0.1", port))))


class Ranks:
    """The processes of one run, without torchrun. Leaves no process behind.

    `arguments` is one list for all, or a function of the rank; `variables` and `options` (of Popen) are functions of the rank.
    """

    def __init__(self, size, arguments, cwd=None, variables=lambda rank: {}, options=lambda rank: {}):
        port = free_port()
        self.processes = []
        for rank in range(size):
            own = arguments(rank) if callable(arguments) else arguments
            self.processes.append(subprocess.Popen(
                [PROGRAM, *map(str, own)], cwd=cwd, env={**environment(), **place(rank, size, port), **variables(rank)},
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options(rank)))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            process.kill()
            process.communicate()

    def wait(self, timeout=120):
        """Returns (exit statuses, texts of standard output, texts of standard error), in rank order."""
        texts = [process.communicate(timeout=timeout) for process in self.processes]
        return [process.returncode for process in self.processes], [out for out, _ in texts], [err for _, err in texts]


def run_ranks(size, *arguments, **options):
    with Ranks(size, arguments, **options) as ranks:
        return ranks.wait()


def succeed_on_ranks(size, *arguments, **options):
    """Returns the texts of standard output and of standard error of each rank."""
    codes, out, err = run_ranks(size, *arguments, **options)
    assert codes == [0] * size, err
    return out, err


@contextlib.contextmanager
def torchrun(*arguments, cwd, size=2, flags=(), rendezvous=("--standalone",)):
    """torchrun and its `size` processes, which are gone afterwards. `rendezvous`: the flags with which agents meet."""
    # In a session of its own: workers that outlive torchrun are in it, too.
    process = subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", *rendezvous, f"--nproc-per-node={size}", *flags, "--no-python",
         PROGRAM, *map(str, arguments)],
        cwd=cwd, env={key: value for key, value in environment().items() if key != "OMP_NUM_THREADS"}, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        yield process
    finally:
        workers = children(process.pid)
        for pid in [process.pid, *workers]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.communicate()


def children(pid):
    """Returns the processes that `pid` has started and that are our program, by rank."""
    found = {}
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError, ValueError):
            # "PID (NAME) STATE PARENT ..."
            if int((folder / "stat").read_text().rpartition(")")[2].split()[1]) != pid:
                continue
            variables = (folder / "environ").read_text().split("\0")
            rank = next(int(variable[5:]) for variable in variables if variable.startswith("RANK="))
            if (folder / "exe").readlink() == PROGRAM.resolve():
                found[rank] = int(folder.name)
    return [found[rank] for rank in sorted(found)]
