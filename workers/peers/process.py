"""One peer process: started, asked in JSON lines, stopped while others are timed, and gone at the
end.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any, Self

import psutil

from draftsmith.workers.errors import WorkerEnvironmentError

TAIL_LINES = 4
MAX_ANSWER_BYTES = 64 * 2**20
POLL_S = 0.5
GRACE_S = 30.0  # for an idle engine to end by itself after its stdin closed
# Between SIGTERM and SIGKILL: multiprocessing's tracker outlives the first and removes what the
# others left in shared memory.
TERM_S = 3.0


class PeerError(WorkerEnvironmentError):
    """The peer died, hangs, answers nonsense or an error. The message names the peer and holds the
    last lines of its stderr.
    """


class PeerProcess:
    """A process group of its own, so that a signal reaches the helpers that an engine starts, and a
    terminal's Ctrl-C none of them. After a ``PeerError`` nothing of it runs any more.
    """

    def __init__(
        self, name: str, command: Sequence[str], *, environment: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self._log, path = tempfile.mkstemp()
        os.unlink(path)  # the open file lives on, and nothing is left of it in the end
        self._buffer = b""
        try:
            self._process = subprocess.Popen(
                list(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                env={**os.environ, **(environment or {})},
                process_group=0,
                bufsize=0,
            )
        except OSError as error:
            os.close(self._log)
            raise PeerError(
                f"peer {name}: {command[0]} cannot be started ({error.strerror})"
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self.close(at_once=kind is not None)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def ended(self) -> bool:
        """Whether it has ended and been reaped."""
        return self._process.returncode is not None

    def ask(self, order: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        """One order, its answer. PeerError after ``timeout_s`` seconds without one, at its death,
        for anything but a JSON object, and for an answer that holds an ``error`` or ``refused``.
        """
        if self.ended:
            raise PeerError(f"peer {self.name} has ended")
        limit_s = time.monotonic() + timeout_s
        try:
            self._write(json.dumps(order).encode() + b"\n")
            answer = _object(self._read_line(limit_s, timeout_s))
            if "refused" in answer:
                self.close(at_once=True)
                raise PeerError(f"peer {self.name}: {answer['refused']}")
            if "error" in answer:
                raise _Failed(str(answer["error"]))
            return answer
        except _Failed as failed:
            tail = self._tail()
            self.close(at_once=True)
            raise PeerError(f"peer {self.name} {failed}{tail}") from None
        except BaseException:
            self.close(at_once=True)
            raise

    def pause(self) -> None:
        """Stop every thread of it: what is timed meanwhile has the machine to itself."""
        self._signal(signal.SIGSTOP)
        if hasattr(os, "waitid"):  # return only when it stands still
            try:
                os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
            except ChildProcessError:  # reaped
                return

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def close(self, *, at_once: bool = False) -> None:
        """End the process and its helpers, and reap it. An idle one is first given the chance to
        end by itself, unless ``at_once``.
        """
        if self._process.stdin is None or self._process.stdin.closed:
            return
        helpers = _descendants(self.pid)
        try:
            self._process.stdin.close()
            self.resume()
            if not at_once:
                self._wait(GRACE_S)
            self._signal(signal.SIGTERM)
            self._wait(TERM_S)
            psutil.wait_procs(helpers, timeout=TERM_S)
        finally:
            self._signal(signal.SIGKILL)
            for helper in helpers:
                _kill(helper)
            self._process.wait()
            psutil.wait_procs(helpers, timeout=TERM_S)
            if self._process.stdout is not None:
                self._process.stdout.close()
            os.close(self._log)

    def _wait(self, seconds: float) -> None:
        limit_s = time.monotonic() + seconds
        while not self._ended() and time.monotonic() < limit_s:
            time.sleep(0.01)

    def _ended(self) -> bool:
        """Whether the leader has ended; it is not reaped, so that its group's id stays taken."""
        if self._process.returncode is not None or not hasattr(os, "waitid"):
            return self._process.poll() is not None
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def _signal(self, number: int) -> None:
        """To the whole group, the leader's death notwithstanding; never once it is reaped."""
        if self._process.returncode is not None:
            return
        try:
            os.killpg(self.pid, number)
        except (ProcessLookupError, PermissionError):  # all of it has ended
            return

    def _write(self, data: bytes) -> None:
        assert self._process.stdin is not None
        view = memoryview(data)
        try:
            while view:
                view = view[self._process.stdin.write(view) or 0 :]
        except (OSError, ValueError):
            raise _Failed(self._death()) from None

    def _read_line(self, limit_s: float, timeout_s: float) -> bytes:
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as ready:
            ready.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                left = limit_s - time.monotonic()
                if left <= 0:
                    raise _Failed(f"gave no answer in {timeout_s:g} s")
                if not ready.select(min(left, POLL_S)):
                    if self._ended():
                        raise _Failed(self._death())
                    continue
                data = os.read(self._process.stdout.fileno(), 2**16)
                if not data:
                    raise _Failed(self._death())
                self._buffer += data
                if len(self._buffer) > MAX_ANSWER_BYTES:
                    raise _Failed(f"sent over {MAX_ANSWER_BYTES} bytes without an end of line")
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _death(self) -> str:
        self._wait(POLL_S)
        if not self._ended():
            return "closed its end"
        self._signal(signal.SIGKILL)  # helpers, before their group's id is given up
        code = self._process.wait()
        return f"died by signal {-code}" if code < 0 else f"ended with exit code {code}"

    def _tail(self) -> str:
        size = os.fstat(self._log).st_size
        kept = os.pread(self._log, 4096, max(0, size - 4096)).decode(errors="replace")
        lines = [line.strip() for line in kept.splitlines() if line.strip()][-TAIL_LINES:]
        return f"; its last lines: {' / '.join(lines)}" if lines else ""


class _Failed(Exception):
    pass


def _object(line: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(line)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise _Failed(f"answered with no JSON object: {line[:80].decode(errors='replace')!r}")
    return answer


def _descendants(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.Error:
        return []


def _kill(process: psutil.Process) -> None:
    try:
        process.kill()
    except psutil.Error:
        return
