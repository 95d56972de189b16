"""Bring a database to the schema of this version of draftsmith, once, whoever comes first."""

from __future__ import annotations

from pathlib import Path

from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.runtime.environment import EnvironmentContext
from alembic.script import ScriptDirectory
from sqlalchemy import inspect, text
from sqlalchemy.engine import Connection

from draftsmith.store.database import Database, connect, enter_wal
from draftsmith.store.errors import NoTablesError, StoreEnvironmentError
from draftsmith.store.models import Base

VERSION_TABLE = "draftsmith_version"
_ADVISORY_KEY = 0x64726166  # "draf"; PostgreSQL's name for our migration lock


def open_database(address: str | Path, *, busy_timeout_s: float = 30.0) -> Database:
    """Open ``address`` (a file path or a SQLAlchemy URL) and migrate it to the newest schema.

    A read-only store is opened when its schema is current. StoreInputError for an address that is
    none or a file that is no database; StoreEnvironmentError when it cannot be reached or written,
    or is newer.
    """
    return _open(address, busy_timeout_s, may_make=True)


def open_existing(address: str | Path, *, busy_timeout_s: float = 30.0) -> Database:
    """As ``open_database`` for who only reads: a database without draftsmith's tables is left as it
    is, with NoTablesError.
    """
    return _open(address, busy_timeout_s, may_make=False)


def newest_revision() -> str:
    """The schema revision that this version of draftsmith reads and writes."""
    return _scripts().get_current_head() or ""


def _open(address: str | Path, busy_timeout_s: float, *, may_make: bool) -> Database:
    database = connect(address, busy_timeout_s=busy_timeout_s)
    try:
        _upgrade(database, may_make)
    except BaseException:
        database.close()
        raise
    return database


def _upgrade(database: Database, may_make: bool) -> None:
    scripts = _scripts()
    newest = scripts.get_current_head() or ""
    with database.read("read its schema version") as session:
        found = _found(session.connection())
        tables = () if found else tuple(inspect(session.connection()).get_table_names())
    if found is None and not may_make:
        held = f"it holds {_listed(tables)}" if tables else "it is empty"
        raise NoTablesError(
            f"store {database.address.shown} is a database without draftsmith's tables ({held}). "
            "Fix: name the store that tune wrote, with --store or DRAFTSMITH_STORE"
        )
    _refuse_newer(database, scripts, found)
    enter_wal(database)
    if found == newest:
        return
    if database.address.read_only:
        raise StoreEnvironmentError(
            f"store {database.address.shown}: its schema is {found or 'empty'}, this draftsmith "
            f"needs {newest}, and it is opened read-only. Fix: open it once without mode=ro to "
            "migrate it"
        )
    with database.connection(f"migrate its schema to {newest}") as connection:
        if database.engine.dialect.name == "postgresql":
            connection.execute(text(f"SELECT pg_advisory_xact_lock({_ADVISORY_KEY})"))
        _refuse_newer(database, scripts, _found(connection))
        _run(connection, scripts)
    database.joined = tables


def _listed(tables: tuple[str, ...]) -> str:
    return ", ".join(tables[:3]) + (f" and {len(tables) - 3} more" if len(tables) > 3 else "")


def _run(connection: Connection, scripts: ScriptDirectory) -> None:
    """Missing revisions, inside the caller's transaction; none when another process was faster."""
    config = Config()
    with EnvironmentContext(
        config, scripts, fn=lambda revision, _context: scripts._upgrade_revs("head", revision)
    ) as environment:
        environment.configure(
            connection=connection, target_metadata=Base.metadata, version_table=VERSION_TABLE
        )
        environment.run_migrations()


def _found(connection: Connection) -> str | None:
    context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
    return context.get_current_revision()


def _refuse_newer(database: Database, scripts: ScriptDirectory, found: str | None) -> None:
    known = {revision.revision for revision in scripts.walk_revisions()}
    if found is not None and found not in known:
        raise StoreEnvironmentError(
            f"store {database.address.shown}: its schema is version {found}, this draftsmith "
            f"knows up to {max(known)}. Fix: upgrade draftsmith, or use another store"
        )


def _scripts() -> ScriptDirectory:
    return ScriptDirectory(str(Path(__file__).parent))
