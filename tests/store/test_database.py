"""Opening stores, and what is said when that, or writing, cannot be done."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import optuna
import pytest
from sqlalchemy import inspect, text

from draftsmith.store.database import connect, optuna_storage
from draftsmith.store.errors import NoTablesError, StoreEnvironmentError, StoreInputError
from draftsmith.store.migrations.upgrade import open_database, open_existing
from draftsmith.store.records import NewTrial
from draftsmith.store.repository import Repository


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "new" / "folder" / "store.db"


def integrity(path: Path) -> str:
    with closing(sqlite3.connect(path)) as connection:
        return str(connection.execute("PRAGMA integrity_check").fetchone()[0])


def rows(address: str | Path) -> list[int]:
    with closing(open_database(address)) as database:
        repository = Repository(database)
        runs = repository.runs()
        return [trial.number for run in runs for trial in repository.trials(run.id)]


def test_plain_path_opens_a_sqlite_store_as_configured(path: Path) -> None:
    with closing(open_database(path)) as database, database.read("look") as session:
        pragma = {
            name: session.execute(text(f"PRAGMA {name}")).scalar()
            for name in ("journal_mode", "foreign_keys", "synchronous", "busy_timeout")
        }
    assert pragma == {
        "journal_mode": "wal",
        "foreign_keys": 1,
        "synchronous": 1,
        "busy_timeout": 30000,
    }


@pytest.mark.parametrize("form", ["{}", "sqlite:///{}", "file:{}", "sqlite:///file:{}?uri=true"])
def test_each_spelling_names_the_same_file(tmp_path: Path, form: str) -> None:
    file = tmp_path / "a b%20c?d" if form == "{}" else tmp_path / "plain.db"
    with closing(open_database(form.format(file))) as database:
        Repository(database).open_run({}, {})
    assert file.exists()
    with closing(open_database(file)) as database:
        assert len(Repository(database).runs()) == 1


def test_memory_store_works() -> None:
    with closing(open_database("sqlite://")) as database:
        repository = Repository(database)
        assert repository.runs() == []
        assert repository.open_run({}, {}).id == 1


@pytest.mark.parametrize("form", ["file:{}?mode=ro", "sqlite:///{}?mode=ro"])
def test_read_only_store_reads_and_says_why_it_does_not_write(path: Path, form: str) -> None:
    with closing(open_database(path)) as database:
        Repository(database).open_run({}, {})
    with closing(open_database(form.format(path))) as database:
        repository = Repository(database)
        assert len(repository.runs()) == 1
        with pytest.raises(StoreEnvironmentError, match=r"open a run: the store is read-only.*Fix"):
            repository.open_run({}, {})
        assert len(repository.runs()) == 1


def test_read_only_needs_an_existing_store_with_the_newest_schema(path: Path) -> None:
    with pytest.raises(StoreEnvironmentError, match="cannot be opened"):
        open_database(f"file:{path}?mode=ro")
    assert not path.exists()
    path.parent.mkdir(parents=True)
    sqlite3.connect(path).close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE other (x)")
    with pytest.raises(StoreEnvironmentError, match="schema is empty.*read-only.*Fix"):
        open_database(f"file:{path}?mode=ro")


def test_full_disk_is_one_message_and_leaves_the_store_intact(path: Path) -> None:
    """Filled to its limit, the store keeps all that was committed and goes on when given room."""
    limited = f"sqlite:///{path}?max_page_count=60"
    written = 0
    with closing(open_database(limited)) as database:
        repository = Repository(database)
        run = repository.open_run({}, {})
        with pytest.raises(
            StoreEnvironmentError, match=r"no space is left.*intact.*Fix: free"
        ) as full:
            while written < 1000:
                config = {"n": written, "filling": "x" * 2000}
                repository.add_trials(run.id, [NewTrial(config=config)])
                written += 1
        assert "Traceback" not in str(full.value) and "INSERT" not in str(full.value)
        assert 0 < written < 1000
        assert len(repository.trials(run.id)) == written
    assert integrity(path) == "ok"
    with closing(open_database(path)) as database:
        answer = Repository(database).add_trials(run.id, [NewTrial(config={"after": 1})])
    assert answer[0].trial is not None and answer[0].trial.number == written


def test_store_that_is_too_small_to_be_made_says_so(path: Path) -> None:
    with pytest.raises(StoreEnvironmentError, match="no space is left"):
        open_database(f"sqlite:///{path}?max_page_count=5")
    assert rows(path) == []


@pytest.mark.parametrize(
    "content", [b"not a database, " * 100, b"SQLite format 3\x00" + b"\xff" * 4000]
)
def test_a_file_that_is_no_database_is_refused_and_left_alone(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    with pytest.raises((StoreInputError, StoreEnvironmentError), match=r"store sqlite.*Fix"):
        open_database(path)
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("", "empty"),
        ("mysterydb://x/y", "mysterydb"),
        ("mysql://me:secret@x/y", r"me:\*\*\*@x/y: mysql is not supported; use SQLite.*PostgreSQL"),
        ("bad\udcff.db", r"store 'bad\\udcff\.db': its name is not UTF-8 \(from character 4"),
        ("sqlite:///bad\udcff.db", "its name is not UTF-8"),
        ("a\x00.db", "holds a NUL"),
        ("://", "no SQLAlchemy URL"),
        ("sqlite:///x.db?mode=rx", "use ro, rw or rwc"),
        ("sqlite:///x.db?max_page_count=0", "whole number above 0"),
        ("sqlite:///x.db?journal=wal", "unknown key 'journal'"),
    ],
)
def test_wrong_address_is_refused_by_name(address: str, message: str) -> None:
    with pytest.raises(StoreInputError, match=message):
        open_database(address)


@pytest.mark.parametrize("tables", [0, 4])
def test_a_database_without_our_tables_is_only_read_when_asked_to(path: Path, tables: int) -> None:
    path.parent.mkdir(parents=True)
    with closing(sqlite3.connect(path)) as connection:
        for number in range(tables):
            connection.execute(f"CREATE TABLE theirs{number} (x)")
    content = path.read_bytes()
    held = r"it holds theirs0, theirs1, theirs2 and 1 more" if tables else "it is empty"
    for address in (path, f"file:{path}?mode=ro"):
        with pytest.raises(NoTablesError, match=f"without draftsmith's tables .{held}.*Fix: name"):
            open_existing(address)
    assert path.read_bytes() == content
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
    with closing(open_database(path)) as database:
        assert database.joined == tuple(f"theirs{number}" for number in range(tables))
    with closing(open_existing(path)) as database:
        assert database.joined == () and Repository(database).runs() == []


def test_a_folder_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(StoreInputError, match="is a folder"):
        open_database(tmp_path)


def test_a_parent_that_is_a_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreEnvironmentError, match="cannot create its folder"):
        open_database(tmp_path / "file" / "store.db")


def test_unreachable_server_is_reported_without_its_password() -> None:
    with pytest.raises(StoreEnvironmentError, match="cannot be reached.*Fix") as failure:
        open_database("postgresql://me:secret@127.0.0.1:1/db?connect_timeout=2")
    assert "secret" not in str(failure.value) and "***" in str(failure.value)


@pytest.mark.parametrize("text_", ["postgres//me:secret@host", "foo bar://me:secret@h:x/db"])
def test_a_broken_address_is_shown_without_its_password(text_: str) -> None:
    with pytest.raises(StoreInputError) as failure:
        open_database(f"{text_}://")
    assert "secret" not in str(failure.value)


def test_missing_database_on_the_server_is_named(url: str) -> None:
    if not url.startswith("postgresql"):
        pytest.skip("a file is made when it is missing")
    with pytest.raises(StoreEnvironmentError, match="no such database.*createdb"):
        open_database(url.replace("/postgres?", "/absent?"))


def test_a_lock_held_too_long_is_reported(url: str) -> None:
    with (
        closing(open_database(url)) as holder,
        closing(open_database(url, busy_timeout_s=0.3)) as waiter,
    ):
        with (
            holder.write("hold the lock"),
            pytest.raises(StoreEnvironmentError, match="lock for too long.*Fix"),
        ):
            Repository(waiter).open_run({}, {})
        assert Repository(waiter).open_run({}, {}).id == 1


def test_a_failed_write_leaves_nothing_behind(url: str) -> None:
    with closing(open_database(url)) as database:
        repository = Repository(database)
        with pytest.raises(RuntimeError), database.write("try") as session:
            session.execute(
                text(
                    "INSERT INTO draftsmith_deployments (fingerprint, description, created_at) "
                    "VALUES ('f', '{}', 0)"
                )
            )
            raise RuntimeError
        with database.read("count") as session:
            count = session.execute(text("SELECT count(*) FROM draftsmith_deployments")).scalar()
        assert count == 0 and repository.runs() == []


@pytest.fixture
def quiet_optuna() -> Iterator[None]:
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    yield
    optuna.logging.set_verbosity(level)


@pytest.mark.usefixtures("quiet_optuna")
@pytest.mark.parametrize("optuna_first", [False, True])
def test_optuna_lives_in_the_same_database(url: str, optuna_first: bool) -> None:
    """Each keeps its tables and its version; trials of one are not trials of the other."""
    if optuna_first:
        plain = url.replace("postgresql://", "postgresql+psycopg://")
        optuna.storages.RDBStorage(plain).remove_session()
    with closing(open_database(url)) as database:
        target = optuna_storage(database)
        storage = optuna.storages.RDBStorage(target.url, engine_kwargs=target.engine_kwargs)
        repository = Repository(database)
        run = repository.open_run({}, {})
        study = optuna.create_study(storage=storage, study_name="s", direction="maximize")
        for number in range(3):
            asked = study.ask()
            k = asked.suggest_int("k", 1, 8)
            new = NewTrial(config={"k": k, "n": number}, optuna_number=asked.number)
            repository.add_trials(run.id, [new])
            study.tell(asked, float(k))
        names = set(inspect(database.engine).get_table_names())
        assert {"alembic_version", "draftsmith_version", "trials", "draftsmith_trials"} <= names
        assert [trial.optuna_number for trial in repository.trials(run.id)] == [0, 1, 2]
        storage.remove_session()
        storage.engine.dispose()
    with closing(open_database(url)) as database:
        target = optuna_storage(database)
        storage = optuna.storages.RDBStorage(target.url, engine_kwargs=target.engine_kwargs)
        assert storage.get_current_version() == storage.get_head_version()
        assert len(optuna.load_study(storage=storage, study_name="s").trials) == 3
        storage.remove_session()
        storage.engine.dispose()


def test_optuna_gets_the_password() -> None:
    with closing(connect("postgresql://me:secret@127.0.0.1:1/db")) as database:
        assert optuna_storage(database).url == "postgresql+psycopg://me:secret@127.0.0.1:1/db"
