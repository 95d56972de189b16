"""From SQLAlchemy's and the drivers' errors to the store's: what failed, where, and the fix.

SQLite is told apart by its error name, PostgreSQL and its kin by SQLSTATE.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

from sqlalchemy.exc import DBAPIError, OperationalError

from draftsmith.store.damage import DamagedRowError
from draftsmith.store.errors import StoreEnvironmentError, StoreError, StoreInputError


@dataclass(frozen=True, slots=True)
class _Kind:
    what: str
    fix: str
    error: type[StoreError] = StoreEnvironmentError


_READ_ONLY = _Kind(
    "the store is read-only", "open it without mode=ro, or make the file and its folder writable"
)
_FULL = _Kind(
    "no space is left for the store (disk full, or its size limit reached); nothing of this "
    "step was written and what was stored before is intact",
    "free some space, raise max_page_count, or point --store at another disk; then resume",
)
_LOCKED = _Kind(
    "another process holds the store's lock for too long",
    "end the other process, or try again when it is done",
)
_CANNOT_OPEN = _Kind(
    "the file cannot be opened or created",
    "check that its folder exists and may be written (mode=ro needs an existing file)",
)
_NOT_A_STORE = _Kind(
    "the file is not a SQLite database",
    "give the path of a store, or of a file that does not exist yet",
    StoreInputError,
)
_DAMAGED = _Kind(
    "the database file is damaged", "restore it from a copy, or start a new store elsewhere"
)
_DISK = _Kind("the disk refused to read or write", "check the disk and its quota; then resume")
_UNREACHABLE = _Kind(
    "the database server cannot be reached", "check host, port and that the server runs"
)
_REFUSED = _Kind(
    "the database server refuses this login", "check user, password and the user's rights"
)
_NO_DATABASE = _Kind("the server has no such database", "create it first (createdb NAME)")
_LACKING = _Kind(
    "the store lacks a table or a column that its version should have",
    "restore it from a copy, or start a new store elsewhere",
)
_OTHER = _Kind(
    "the database reported an error",
    "mend what the cause names, or point --store at another database",
    StoreError,
)

_SQLITE = (
    ("SQLITE_READONLY", _READ_ONLY),
    ("SQLITE_FULL", _FULL),
    ("SQLITE_IOERR_WRITE", _FULL),
    ("SQLITE_BUSY", _LOCKED),
    ("SQLITE_LOCKED", _LOCKED),
    ("SQLITE_CANTOPEN", _CANNOT_OPEN),
    ("SQLITE_NOTADB", _NOT_A_STORE),
    ("SQLITE_CORRUPT", _DAMAGED),
    ("SQLITE_IOERR", _DISK),
)
_SQLSTATE = (
    ("25006", _READ_ONLY),
    ("53", _FULL),
    ("55P03", _LOCKED),
    ("40", _LOCKED),
    ("57014", _LOCKED),
    ("3D000", _NO_DATABASE),
    ("28", _REFUSED),
    ("42501", _REFUSED),
    ("08", _UNREACHABLE),
    ("57P", _UNREACHABLE),
    ("42P01", _LACKING),
    ("42703", _LACKING),
)
_SQLITE_TEXT = (  # what SQLite has no error name for
    ("no such table", _LACKING),
    ("no such column", _LACKING),
    ("could not decode", _DAMAGED),
    ("unsupported file format", _DAMAGED),
)


def translate(error: Exception, *, url: str, doing: str) -> StoreError:
    """The store's error for one of SQLAlchemy, of a driver, or of reading what they gave; ``url``
    has its password masked already.
    """
    raw = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    kind = _kind(raw, lost_connection=isinstance(error, OperationalError))
    return kind.error(f"store {url}: cannot {doing}: {kind.what}. Fix: {kind.fix}. Cause: {raw}")


def _kind(raw: BaseException, lost_connection: bool) -> _Kind:
    if isinstance(raw, UnicodeDecodeError | DamagedRowError):
        return _DAMAGED
    name = getattr(raw, "sqlite_errorname", None)
    for prefix, kind in _SQLITE:
        if name is not None and name.startswith(prefix):
            return kind
    if isinstance(raw, sqlite3.Error):
        said = str(raw).lower()
        return next((kind for text, kind in _SQLITE_TEXT if text in said), _OTHER)
    state = getattr(raw, "sqlstate", None)
    for prefix, kind in _SQLSTATE:
        if state is not None and state.startswith(prefix):
            return kind
    if lost_connection and state is None:
        return _login_kind(str(raw))
    return _OTHER


def _login_kind(message: str) -> _Kind:
    """libpq reports a failed connection as text only."""
    if "does not exist" in message and "database" in message:
        return _NO_DATABASE
    if "authentication failed" in message or "no password supplied" in message:
        return _REFUSED
    return _UNREACHABLE
