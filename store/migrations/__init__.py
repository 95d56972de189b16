"""Schema migrations: Alembic driven in code, revisions in versions/, named 0001, 0002, ...

The applied revision is kept in ``draftsmith_version``; Optuna's ``alembic_version`` is not touched.
"""
