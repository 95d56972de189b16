"""One SQLAlchemy engine, its transactions, and errors translated at that boundary.

SQLite runs in WAL mode with foreign keys on; a writing transaction begins with BEGIN IMMEDIATE, so
that it waits for its turn at the start instead of failing half way (a read lock cannot be upgraded
while another process writes). On other databases a writer first locks the row of
``draftsmith_write_lock``.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, create_engine, event, select, text
from sqlalchemy.engine import Connection
from sqlalchemy.exc import NoSuchModuleError, SQLAlchemyError
from sqlalchemy.orm import Session

from draftsmith.store.addresses import Address, make_parent, parse_address
from draftsmith.store.damage import DamagedRowError, read_json
from draftsmith.store.errors import StoreEnvironmentError, StoreInputError
from draftsmith.store.failures import translate
from draftsmith.store.models import WriteLock

_WRITE = "draftsmith_write"


@dataclass(frozen=True, slots=True)
class OptunaTarget:
    """Arguments for ``optuna.storages.RDBStorage(url, engine_kwargs=engine_kwargs)``."""

    url: str  # with its password
    engine_kwargs: dict[str, Any]


class Database:
    """An open database; ``open_database`` makes one that is migrated. One per process: not for use
    after a fork.
    """

    def __init__(self, address: Address, engine: Engine, busy_timeout_s: float) -> None:
        self.address = address
        self.engine = engine
        self.busy_timeout_s = busy_timeout_s
        self.joined: tuple[str, ...] = ()  # tables of others, where ours were added beside them
        self._writer = engine.execution_options(**{_WRITE: True})

    @contextmanager
    def read(self, doing: str) -> Iterator[Session]:
        """One reading transaction; ``doing`` completes the message "cannot ..."."""
        with self._translated(doing), Session(self.engine) as session:
            yield session

    @contextmanager
    def write(self, doing: str) -> Iterator[Session]:
        """One writing transaction, committed at the end of the block and rolled back by an
        exception.
        """
        with self._translated(doing), Session(self._writer) as session, session.begin():
            connection = session.connection()  # begins now: SQLite takes its lock here
            if not self.is_sqlite:
                self._limit_wait(connection)
                session.execute(select(WriteLock.id).with_for_update())
            yield session

    @contextmanager
    def connection(self, doing: str) -> Iterator[Connection]:
        """One writing transaction without the lock row, for migrations."""
        with self._translated(doing), self._writer.begin() as connection:
            self._limit_wait(connection)
            yield connection

    @property
    def is_sqlite(self) -> bool:
        return self.engine.dialect.name == "sqlite"

    def close(self) -> None:
        self.engine.dispose()

    def _limit_wait(self, connection: Connection) -> None:
        if self.engine.dialect.name == "postgresql":
            limit_ms = int(self.busy_timeout_s * 1000)
            connection.execute(text(f"SET LOCAL lock_timeout = {limit_ms}"))

    @contextmanager
    def _translated(self, doing: str) -> Iterator[None]:
        try:
            yield
        except (SQLAlchemyError, sqlite3.Error, UnicodeDecodeError, DamagedRowError) as error:
            raise translate(error, url=self.address.shown, doing=doing) from error


def connect(address: str | Path, *, busy_timeout_s: float = 30.0) -> Database:
    """A Database that may lack its tables. Creates the folder of a SQLite file, and the file;
    writes nothing into one that is there.
    """
    parsed = parse_address(address)
    make_parent(parsed)
    options: dict[str, Any] = {"json_serializer": _compact, "json_deserializer": read_json}
    if parsed.url.get_backend_name() == "sqlite":
        options["connect_args"] = {"timeout": busy_timeout_s}
    else:
        options["pool_pre_ping"] = True
    try:
        engine = create_engine(parsed.url, **options)
    except NoSuchModuleError as error:
        raise StoreInputError(
            f"store {parsed.shown}: SQLAlchemy knows no database {parsed.url.drivername!r}; use "
            "sqlite:///PATH or postgresql://USER@HOST/NAME"
        ) from error
    except ModuleNotFoundError as error:
        raise StoreEnvironmentError(
            f"store {parsed.shown}: its driver {error.name!r} is not installed. Fix: "
            "pip install 'draftsmith[postgres]', or the driver that the address names"
        ) from error
    database = Database(parsed, engine, busy_timeout_s)
    if database.is_sqlite:
        _prepare_sqlite(database)
    return database


def optuna_storage(database: Database) -> OptunaTarget:
    """How Optuna opens the same database. Its tables and its version table have names of their own.
    Create its storage while holding the run (``claim_run``): Optuna does not lock its own
    migration.
    """
    url = database.address.url.render_as_string(hide_password=False)
    if not database.is_sqlite:
        return OptunaTarget(url, {"pool_pre_ping": True})
    # IMMEDIATE: the driver's implicit BEGIN takes the write lock at once and waits for it.
    wait = {"timeout": database.busy_timeout_s, "isolation_level": "IMMEDIATE"}
    return OptunaTarget(url, {"connect_args": wait})


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def _prepare_sqlite(database: Database) -> None:
    engine, pages = database.engine, database.address.max_page_count

    @event.listens_for(engine, "connect")
    def on_connect(raw: Any, _record: Any) -> None:
        raw.isolation_level = None  # BEGIN is ours, below
        raw.execute("PRAGMA foreign_keys = ON")
        raw.execute("PRAGMA synchronous = NORMAL")
        if pages is not None:
            raw.execute(f"PRAGMA max_page_count = {pages}")

    @event.listens_for(engine, "begin")
    def on_begin(connection: Connection) -> None:
        writes = connection.get_execution_options().get(_WRITE, False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def enter_wal(database: Database) -> None:
    """Before the first write to a SQLite file; nothing to do for another database. The journal mode
    is kept in the file. Changing it needs the file alone and SQLite does not wait for that, so wait
    here.
    """
    if database.address.file is None or database.address.read_only:
        return
    with database._translated("open the store"):
        _switch_to_wal(database)


def _switch_to_wal(database: Database) -> None:
    deadline = time.monotonic() + database.busy_timeout_s
    while True:
        raw = database.engine.raw_connection()
        try:
            if raw.cursor().execute("PRAGMA journal_mode").fetchone()[0] == "wal":
                return
            raw.cursor().execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            busy = error.sqlite_errorname.startswith("SQLITE_BUSY")
            if not busy or time.monotonic() > deadline:
                raise
            time.sleep(0.02)
        finally:
            raw.close()
