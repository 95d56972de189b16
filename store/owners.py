"""Which process drives: naming this one, and telling whether another is gone."""

import os
import secrets
import socket

import psutil

from draftsmith.store.records import Owner

_START_TOLERANCE_S = 1.0


def this_process() -> Owner:
    """An Owner for the calling process; each call has its own token."""
    pid = os.getpid()
    return Owner(
        host=socket.gethostname(),
        pid=pid,
        started=psutil.Process(pid).create_time(),
        token=secrets.token_hex(6),
    )


def is_gone(owner: Owner) -> bool:
    """True when ``owner`` is of this host and its process has ended (or its pid has another process
    now). False when alive, or on another host, where only expiry can tell.
    """
    if owner.host != socket.gethostname():
        return False
    try:
        process = psutil.Process(owner.pid)
        if abs(process.create_time() - owner.started) > _START_TOLERANCE_S:
            return True
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True
    except psutil.AccessDenied:
        return False
