"""Runs the program without waiting for libtorch to be loaded each time (forking_program.cpp says how)."""
import os
import signal
import socket
import struct
import subprocess
import tempfile


class Forker:
    """One forking_program; its environment is the one that libraries read when they are loaded."""

    def __init__(self, server, environment):
        self.environment = environment
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.process = subprocess.Popen([server, str(theirs.fileno())], pass_fds=[theirs.fileno()], env=environment)

    def fits(self, environment):
        """Returns whether a program started with `environment` would load its libraries as this one did."""
        def of_libraries(variables):
            return {key: value for key, value in variables.items() if not key.startswith(("PALIMPSEST_", "PYTEST_"))}
        return of_libraries(environment) == of_libraries(self.environment)

    def run(self, command, cwd, environment, timeout):
        """Does the same as subprocess.run, with stdout and stderr captured as texts."""
        texts = [os.fspath(cwd or os.getcwd()), str(len(command)), *map(os.fspath, command)]
        texts += [f"{key}={value}" for key, value in environment.items()]
        with open(os.devnull) as nothing, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            descriptors = [file.fileno() for file in (nothing, out, err)]
            socket.send_fds(self.socket, [b"".join(os.fsencode(text) + b"\0" for text in texts)], descriptors)
            child = self.answer()
            self.socket.settimeout(timeout)
            try:
                status = self.answer()
            except TimeoutError:
                os.kill(child, signal.SIGKILL)
                self.socket.settimeout(None)
                self.answer()
                raise subprocess.TimeoutExpired(command, timeout) from None
            finally:
                self.socket.settimeout(None)
            for file in (out, err):
                file.seek(0)
            return subprocess.CompletedProcess(command, os.waitstatus_to_exitcode(status), out.read().decode(),
                                               err.read().decode())

    def answer(self):
        got = self.socket.recv(4)
        assert len(got) == 4, f"forking_program ended: {self.process.wait()}"
        return struct.unpack("i", got)[0]
