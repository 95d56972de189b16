"""The schema: made by revisions, equal to the models, and never downgraded by surprise."""

from __future__ import annotations

from contextlib import closing
from importlib import resources

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import text

from draftsmith.store.errors import StoreEnvironmentError
from draftsmith.store.migrations.upgrade import VERSION_TABLE, newest_revision, open_database
from draftsmith.store.models import Base
from draftsmith.store.repository import Repository


def test_revisions_make_what_the_models_say(url: str) -> None:
    with closing(open_database(url)) as database, database.read("compare") as session:
        context = MigrationContext.configure(
            session.connection(),
            opts={"version_table": VERSION_TABLE, "compare_type": True},
        )
        assert compare_metadata(context, Base.metadata) == []
        assert context.get_current_heads() == (newest_revision(),)


def test_opening_again_changes_nothing(url: str) -> None:
    with closing(open_database(url)) as database:
        uuid = Repository(database).open_run({}, {}).uuid
    with closing(open_database(url)) as database:
        assert [run.uuid for run in Repository(database).runs()] == [uuid]


def test_a_newer_schema_is_refused_naming_both_versions(url: str) -> None:
    with closing(open_database(url)) as database, database.write("age") as session:
        session.execute(text(f"UPDATE {VERSION_TABLE} SET version_num = '0999'"))
    with pytest.raises(StoreEnvironmentError, match=f"version 0999.*up to {newest_revision()}"):
        open_database(url)


def test_every_revision_is_a_module_of_the_package() -> None:
    folder = resources.files("draftsmith.store.migrations.versions")
    names = [entry.name for entry in folder.iterdir() if entry.name.startswith("r")]
    assert f"r{newest_revision()}_first_schema.py" in names
