"""The line protocol's near end: what a peer may do wrong, and that nothing of it is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from draftsmith.workers.leftovers import is_running
from draftsmith.workers.peers.catalogue import ENGINES
from draftsmith.workers.peers.process import PeerError, PeerProcess
from tests.support.fakepeer import fake_python

PATIENCE_S = 60.0  # for a thing that must happen, on a busy machine
SPINNING = """
if count == 1:
    def spin():
        while True:
            pass
    threading.Thread(target=spin, daemon=True).start()
answer({"count": count})
"""
HELPER = """
import subprocess
helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
answer({"helper": helper.pid})
"""


@pytest.fixture
def start(tmp_path: Path) -> Callable[[str], PeerProcess]:
    return lambda body: PeerProcess("fake", [fake_python(tmp_path / "peer", body)])


def gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or not is_running(psutil.Process(pid))


def eventually(holds: Callable[[], bool]) -> bool:
    limit_s = time.monotonic() + PATIENCE_S
    while not holds() and time.monotonic() < limit_s:
        time.sleep(0.02)
    return holds()


def test_orders_are_answered_in_turn(start: Callable[[str], PeerProcess]) -> None:
    with start("answer({'heard': order['x'], 'count': count})") as peer:
        assert [peer.ask({"x": x}, PATIENCE_S) for x in "ab"] == [
            {"heard": "a", "count": 1},
            {"heard": "b", "count": 2},
        ]
    assert gone(peer.pid)


def test_answers_longer_than_a_pipe_arrive_whole(start: Callable[[str], PeerProcess]) -> None:
    with start("answer({'long': order['x'] * 2})") as peer:
        assert peer.ask({"x": "y" * 300_000}, PATIENCE_S) == {"long": "y" * 600_000}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("print('out of luck', file=sys.stderr); sys.exit(5)", "ended with exit code 5"),
        ("print('out of luck', file=sys.stderr); os.kill(os.getpid(), 9)", "died by signal 9"),
        ("print('out of luck', file=sys.stderr); print('Loading...')", "no JSON object"),
        ("print('out of luck', file=sys.stderr); print('[1, 2]')", "no JSON object"),
        ("print('out of luck', file=sys.stderr); answer({'error': 'X: no'})", "X: no"),
        ("print('out of luck', file=sys.stderr); os.close(1); time.sleep(600)", "closed its end"),
    ],
)
def test_what_goes_wrong_is_told_with_the_last_lines(
    start: Callable[[str], PeerProcess], body: str, message: str
) -> None:
    peer = start(body)
    with pytest.raises(PeerError) as told:
        while True:  # nonsense is answered at once, a death may be seen only by the next order
            peer.ask({}, PATIENCE_S)
    assert "peer fake" in str(told.value) and message in str(told.value)
    assert "out of luck" in str(told.value)
    assert gone(peer.pid)


def test_a_peer_that_hangs_is_given_up_and_killed(start: Callable[[str], PeerProcess]) -> None:
    peer = start("signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)")
    with pytest.raises(PeerError, match="gave no answer in 0.2 s"):
        peer.ask({}, 0.2)
    assert gone(peer.pid)
    with pytest.raises(PeerError, match="has ended"):
        peer.ask({}, 0.2)


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(PeerError, match="cannot be started"):
        PeerProcess("fake", [str(tmp_path / "none")])


def test_a_stopped_peer_uses_no_processor_and_goes_on(start: Callable[[str], PeerProcess]) -> None:
    with start(SPINNING) as peer:
        peer.ask({}, PATIENCE_S)
        peer.pause()
        process = psutil.Process(peer.pid)
        before = process.cpu_times()
        time.sleep(0.3)
        assert process.status() == psutil.STATUS_STOPPED
        assert process.cpu_times() == before
        peer.resume()
        assert peer.ask({}, PATIENCE_S) == {"count": 2}
        assert eventually(lambda: process.cpu_times().user > before.user)


@pytest.mark.parametrize("paused", [False, True])
@pytest.mark.parametrize("at_once", [False, True])
def test_helpers_of_a_peer_end_with_it(
    start: Callable[[str], PeerProcess], paused: bool, at_once: bool
) -> None:
    peer = start(HELPER)
    helper = peer.ask({}, PATIENCE_S)["helper"]
    if paused:
        peer.pause()
    peer.close(at_once=at_once)
    assert gone(peer.pid) and eventually(lambda: gone(helper))
    peer.close()  # a second time does nothing


def test_ctrl_c_in_the_middle_of_an_answer(start: Callable[[str], PeerProcess]) -> None:
    peer = start("os.kill(os.getppid(), signal.SIGINT); time.sleep(600)")
    with pytest.raises(KeyboardInterrupt), peer:
        peer.ask({}, PATIENCE_S)
    assert gone(peer.pid)


@pytest.mark.parametrize("paused", [False, True])
def test_a_peer_dies_with_its_parent(tmp_path: Path, paused: bool) -> None:
    engine = tmp_path / "engine.py"
    engine.write_text(
        "class Engine:\n    versions, note = {}, ''\n    def __init__(self, o): ...\n"
    )
    driver = tmp_path / "driver.py"
    driver.write_text(
        "import os, signal, sys\n"
        "from draftsmith.workers.peers.process import PeerProcess\n"
        f"peer = PeerProcess('fake', [sys.executable, {str(ENGINES / 'serve.py')!r},"
        f" {str(engine)!r}])\n"
        "peer.ask({'op': 'load'}, 60)\n"
        f"{'peer.pause()' if paused else ''}\n"
        "print(peer.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run(
        [sys.executable, "-P", driver], stdout=subprocess.PIPE, text=True, check=False
    )
    assert done.returncode == -signal.SIGKILL
    pid = int(done.stdout)
    try:
        assert eventually(lambda: gone(pid))
    finally:
        if not gone(pid):
            os.kill(pid, signal.SIGKILL)
