"""Stores under test: who asks for ``url`` or ``repository`` runs on SQLite and PostgreSQL."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from draftsmith.store.database import Database
from draftsmith.store.migrations.upgrade import open_database
from draftsmith.store.models import Base, WriteLock
from draftsmith.store.records import RunRecord
from draftsmith.store.repository import Repository
from tests.store.server import PostgresServer, find_postgres
from tests.support.clock import FakeClock


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    programs = find_postgres()
    if programs is None:
        pytest.skip("PostgreSQL (initdb, postgres) is not installed")
    with PostgresServer(programs) as server:
        yield server


KINDS = ["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)]


@pytest.fixture(params=KINDS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Address of an empty database of this test's own."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'store.db'}"
    server: PostgresServer = request.getfixturevalue("postgres_server")
    return server.create_schema(f"t{uuid.uuid4().hex}")


@pytest.fixture(scope="session", params=KINDS)
def migrated(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Database]:
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path_factory.mktemp('store') / 'shared.db'}"
    else:
        url = request.getfixturevalue("postgres_server").create_schema(f"shared{uuid.uuid4().hex}")
    opened = open_database(url, busy_timeout_s=10.0)
    yield opened
    opened.close()


@pytest.fixture
def database(migrated: Database) -> Database:
    """A migrated database without rows."""
    with migrated.write("empty the tables") as session:
        for table in reversed(Base.metadata.sorted_tables):
            if table is not WriteLock.__table__:
                session.execute(table.delete())
    return migrated


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(1_000_000.0)


@pytest.fixture
def repository(database: Database, clock: FakeClock) -> Repository:
    return Repository(database, clock.now)


@pytest.fixture
def run(repository: Repository) -> RunRecord:
    return repository.open_run({"target": "tiny"}, {"space": {"block_size": [2, 4]}}, seed=7)
