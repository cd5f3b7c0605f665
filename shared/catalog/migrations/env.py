"""Alembic's entry point: runs the migrations on the connection that `shared.catalog.migrate` passes."""

from alembic import context

from shared.catalog.tables import METADATA

# no begin_transaction() of its own: the caller's transaction covers the whole migration
context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=METADATA,
    render_as_batch=True,
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
