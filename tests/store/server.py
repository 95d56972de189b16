"""A PostgreSQL server of the test session's own, on a free loopback port."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType

import psycopg


def find_postgres() -> Path | None:
    """The folder with initdb and postgres, or None."""
    on_path = shutil.which("initdb")
    folders = [Path(on_path).resolve().parent] if on_path else []
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    for folder in folders:
        if (folder / "initdb").exists() and (folder / "postgres").exists():
            return folder
    return None


class PostgresServer:
    """Started on entry, stopped and removed on exit. The server refuses root: an unprivileged user
    runs it then.
    """

    def __init__(self, programs: Path) -> None:
        self._programs = programs
        self._folder = Path(tempfile.mkdtemp(prefix="draftsmith-postgres-"))
        self._as_user: list[str] = []
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]

    def __enter__(self) -> PostgresServer:
        if os.getuid() == 0:
            user = self._unprivileged()
            os.chown(self._folder, user.pw_uid, user.pw_gid)
            ids = [f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
            self._as_user = ["setpriv", *ids, "--"]
        data = self._folder / "data"
        options = ["-D", str(data), "-U", "tester", "-A", "trust", "-E", "UTF8", "--no-sync"]
        subprocess.run(
            [*self._as_user, str(self._programs / "initdb"), *options],
            check=True,
            capture_output=True,
            cwd=self._folder,
        )
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": "",
            "fsync": "off",
            "full_page_writes": "off",
            "shared_buffers": "16MB",
        }
        flags = [part for key, value in settings.items() for part in ("-c", f"{key}={value}")]
        self._log = (self._folder / "log").open("wb")
        self._process = subprocess.Popen(
            [*self._as_user, str(self._programs / "postgres"), "-D", str(data), *flags],
            stdout=self._log,
            stderr=self._log,
            cwd=self._folder,
        )
        self._wait()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.send_signal(signal.SIGQUIT)  # at once; the data are thrown away
        self._process.wait(30)
        self._log.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def create_schema(self, name: str) -> str:
        """A new empty schema; the URL of a database that sees it only."""
        with psycopg.connect(self._dsn("postgres"), autocommit=True) as connection:
            connection.execute(f'CREATE SCHEMA "{name}"')
        path = f"-csearch_path%3D{name}"
        return f"postgresql://tester@127.0.0.1:{self.port}/postgres?options={path}"

    def _dsn(self, name: str) -> str:
        return f"host=127.0.0.1 port={self.port} user=tester dbname={name}"

    def _wait(self) -> None:
        deadline = time.monotonic() + 60
        while True:
            try:
                psycopg.connect(self._dsn("postgres")).close()
                return
            except psycopg.OperationalError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    log = (self._folder / "log").read_text(errors="replace")
                    raise RuntimeError(f"PostgreSQL did not start: {log[-2000:]}") from None
                time.sleep(0.05)

    @staticmethod
    def _unprivileged() -> pwd.struct_passwd:
        known = {entry.pw_name: entry for entry in pwd.getpwall()}
        return known.get("postgres") or known["nobody"]
