"""From what a user writes (a file path or a SQLAlchemy URL) to one normal address."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from draftsmith.store.errors import StoreEnvironmentError, StoreInputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """``file`` is None for servers and in-memory databases. ``max_page_count`` limits a SQLite
    file.
    """

    url: URL
    file: Path | None = None
    read_only: bool = False
    max_page_count: int | None = None

    @property
    def shown(self) -> str:
        """For messages: the password masked."""
        return self.url.render_as_string(hide_password=True)


def parse_address(text: str | Path) -> Address:
    """A plain path, ``file:PATH?mode=ro``, or any SQLAlchemy URL.

    SQLite URLs may carry ``mode=ro`` and ``max_page_count=N``. ``postgresql://`` means psycopg 3.
    StoreInputError for what is none of these, and for another kind of database.
    """
    _check_encoding(str(text))
    if isinstance(text, Path) or not text.startswith("file:") and "://" not in text:
        if not str(text).strip():
            raise StoreInputError(
                "the store's address is empty: give a file path or a SQLAlchemy URL"
            )
        return _sqlite(URL.create("sqlite", database=str(text)))
    if text.startswith("file:"):
        path, _, query = text.removeprefix("file:").partition("?")
        text = f"sqlite:///{path}" + (f"?{query}" if query else "")
    try:
        url = make_url(text)
    except (ArgumentError, ValueError) as error:
        raise StoreInputError(
            f"the store's address {_masked(text)!r} is no SQLAlchemy URL: write a file path, "
            "sqlite:///PATH or postgresql://USER@HOST/NAME"
        ) from error
    if url.get_backend_name() == "sqlite":
        return _sqlite(url)
    if url.get_backend_name() not in ("postgres", "postgresql"):
        raise StoreInputError(
            f"store {url.render_as_string(hide_password=True)}: {url.get_backend_name()} is not "
            "supported; use SQLite (a file path, or sqlite:///PATH) or PostgreSQL "
            "(postgresql://USER@HOST/NAME)"
        )
    if url.drivername in ("postgres", "postgresql"):
        url = url.set(drivername="postgresql+psycopg")
    return Address(url=url)


def _sqlite(url: URL) -> Address:
    query = dict(url.query)
    query.pop("uri", None)
    mode, pages = query.pop("mode", "rwc"), query.pop("max_page_count", None)
    if mode not in ("ro", "rw", "rwc"):
        raise StoreInputError(f"store mode={mode!r}: use ro, rw or rwc")
    if query:
        raise StoreInputError(
            f"store address {url}: unknown key {min(query)!r}; SQLite takes mode and max_page_count"
        )
    if pages is not None and not (isinstance(pages, str) and pages.isdecimal() and int(pages) > 0):
        raise StoreInputError(f"store max_page_count={pages!r}: use a whole number above 0")
    limit = None if pages is None else int(str(pages))
    name = url.database or ":memory:"
    if name == ":memory:":
        return Address(url=URL.create("sqlite"), max_page_count=limit)
    file = Path(name.removeprefix("file:")).expanduser().absolute()
    _check_encoding(str(file))
    if file.is_dir():
        raise StoreInputError(f"store {file} is a folder: give a file, such as {file / 'store.db'}")
    plain = mode == "rwc"
    target = (
        URL.create("sqlite", database=str(file))
        if plain
        else URL.create(
            "sqlite", database=f"file:{quote(str(file))}", query={"mode": mode, "uri": "true"}
        )
    )
    return Address(url=target, file=file, read_only=mode == "ro", max_page_count=limit)


def make_parent(address: Address) -> None:
    """Create the folder of a SQLite file that is to be written."""
    if address.file is None or address.read_only:
        return
    try:
        address.file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreEnvironmentError(
            f"store {address.shown}: cannot create its folder: {error}. Fix: give a folder "
            "that may be written"
        ) from error


def _check_encoding(text: str) -> None:
    """Refuse a name that neither SQLite nor a message can spell."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise StoreInputError(
            f"store {text!a}: its name is not UTF-8 (from character {error.start + 1} on); give a "
            "path of UTF-8 characters"
        ) from error
    if "\x00" in text:
        raise StoreInputError(f"store {text!a}: its name holds a NUL; give a path without one")


def _masked(text: str) -> str:
    """Whatever stands before an @ may hold a password."""
    head, at, tail = text.rpartition("@")
    scheme, colon, _ = head.partition("://")
    return f"{scheme}{colon}***@{tail}" if at and colon else f"{at and '***@'}{tail}"
