"""The first schema: runs, trials, what they measured, references, artifacts, bundles.

Tables as they were at this revision; models.py has them as they are now.
"""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "draftsmith_deployments",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("fingerprint", sa.String(length=64), nullable=False),
        sa.Column("description", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_draftsmith_deployments"),
        sa.UniqueConstraint("fingerprint", name="uq_draftsmith_deployments_fingerprint"),
    )
    lock = op.create_table(
        "draftsmith_write_lock",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_draftsmith_write_lock"),
    )
    op.create_table(
        "draftsmith_runs",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("uuid", sa.String(length=36), nullable=False),
        sa.Column("deployment_id", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("stage", sa.Text(), nullable=False),
        sa.Column("settings", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("settings_fingerprint", sa.String(length=64), nullable=False),
        sa.Column("seed", sa.BigInteger(), nullable=False),
        sa.Column("budget_trials", sa.Integer(), nullable=True),
        sa.Column("budget_seconds", sa.Double(), nullable=True),
        sa.Column("verdict", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("owner", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("owner_expires_at", sa.Double(), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["deployment_id"],
            ["draftsmith_deployments.id"],
            name="fk_draftsmith_runs_deployment_id",
        ),
        sa.PrimaryKeyConstraint("id", name="pk_draftsmith_runs"),
        sa.UniqueConstraint("uuid", name="uq_draftsmith_runs_uuid"),
    )
    op.create_index(
        "ix_draftsmith_runs_deployment_id_settings_fingerprint",
        "draftsmith_runs",
        ["deployment_id", "settings_fingerprint"],
        unique=False,
    )
    op.create_table(
        "draftsmith_artifacts",
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("value", sa.JSON(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["run_id"], ["draftsmith_runs.id"], name="fk_draftsmith_artifacts_run_id"
        ),
        sa.PrimaryKeyConstraint("run_id", "name", name="pk_draftsmith_artifacts"),
    )
    op.create_table(
        "draftsmith_bundles",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("checksum", sa.String(length=64), nullable=False),
        sa.Column("deployment_fingerprint", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["run_id"], ["draftsmith_runs.id"], name="fk_draftsmith_bundles_run_id"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_draftsmith_bundles"),
    )
    op.create_index("ix_draftsmith_bundles_run_id", "draftsmith_bundles", ["run_id"], unique=False)
    op.create_table(
        "draftsmith_references",
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("request_id", sa.String(length=255), nullable=False),
        sa.Column("ordinal", sa.Integer(), nullable=False),
        sa.Column("token_ids", sa.JSON(), nullable=False),
        sa.Column("stop_reason", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["run_id"], ["draftsmith_runs.id"], name="fk_draftsmith_references_run_id"
        ),
        sa.PrimaryKeyConstraint("run_id", "request_id", name="pk_draftsmith_references"),
    )
    op.create_table(
        "draftsmith_trials",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("config", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("config_hash", sa.String(length=64), nullable=False),
        sa.Column("stage", sa.String(length=64), nullable=False),
        sa.Column("rung", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("owner", sa.Text(), nullable=True),
        sa.Column("expires_at", sa.Double(), nullable=True),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("proposer", sa.Text(), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("optuna_number", sa.Integer(), nullable=True),
        sa.Column("budgeted", sa.Boolean(), nullable=False),
        sa.Column("score", sa.Double(), nullable=True),
        sa.Column("score_low", sa.Double(), nullable=True),
        sa.Column("score_high", sa.Double(), nullable=True),
        sa.Column("feasible", sa.Boolean(), nullable=True),
        sa.Column("summary", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("finished_at", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(
            ["run_id"], ["draftsmith_runs.id"], name="fk_draftsmith_trials_run_id"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_draftsmith_trials"),
        sa.UniqueConstraint(
            "run_id",
            "config_hash",
            "stage",
            "rung",
            name="uq_draftsmith_trials_run_id_config_hash_stage_rung",
        ),
        sa.UniqueConstraint("run_id", "number", name="uq_draftsmith_trials_run_id_number"),
    )
    op.create_index(
        "ix_draftsmith_trials_run_id_state", "draftsmith_trials", ["run_id", "state"], unique=False
    )
    op.create_table(
        "draftsmith_measurements",
        sa.Column("trial_id", sa.Integer(), nullable=False),
        sa.Column("position", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("config", sa.Text(), nullable=False),
        sa.Column("unit", sa.Integer(), nullable=False),
        sa.Column("repeat", sa.Integer(), nullable=False),
        sa.Column("request_ids", sa.JSON(), nullable=False),
        sa.Column("category", sa.Text(), nullable=False),
        sa.Column("seconds", sa.Double(), nullable=False),
        sa.Column("prefill_s", sa.Double(), nullable=False),
        sa.Column("num_tokens", sa.Integer(), nullable=False),
        sa.Column("num_steps", sa.Integer(), nullable=False),
        sa.Column("num_drafted", sa.Integer(), nullable=False),
        sa.Column("num_accepted", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["trial_id"], ["draftsmith_trials.id"], name="fk_draftsmith_measurements_trial_id"
        ),
        sa.PrimaryKeyConstraint("trial_id", "position", name="pk_draftsmith_measurements"),
    )
    op.create_table(
        "draftsmith_outputs",
        sa.Column("trial_id", sa.Integer(), nullable=False),
        sa.Column("ordinal", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("config", sa.Text(), nullable=False),
        sa.Column("request_id", sa.Text(), nullable=False),
        sa.Column("token_ids", sa.JSON(), nullable=False),
        sa.Column("stop_reason", sa.Text(), nullable=False),
        sa.Column("judgement", sa.Text(), nullable=False),
        sa.Column("num_ties", sa.Integer(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=True),
        sa.Column("emitted", sa.Integer(), nullable=True),
        sa.Column("expected", sa.Integer(), nullable=True),
        sa.Column("margin", sa.Double(), nullable=True),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("accepted_by_position", sa.JSON(), nullable=False),
        sa.Column("drafted_by_position", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(
            ["trial_id"], ["draftsmith_trials.id"], name="fk_draftsmith_outputs_trial_id"
        ),
        sa.PrimaryKeyConstraint("trial_id", "ordinal", name="pk_draftsmith_outputs"),
    )
    op.bulk_insert(lock, [{"id": 1}])


def downgrade() -> None:
    for table in (
        "bundles",
        "artifacts",
        "references",
        "outputs",
        "measurements",
        "trials",
        "runs",
        "deployments",
        "write_lock",
    ):
        op.drop_table(f"draftsmith_{table}")
