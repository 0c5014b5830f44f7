"""postbus migrate: makes the tables or brings them up to date, or prints the SQL that does."""

import asyncio

import click

from postbus.clock import SystemClock
from postbus.ops.cli.target import (
    URL_HELP,
    checks_schema,
    is_on_server,
    needs_driver,
    schema_option,
    schema_or_default,
)
from postbus.stores.sqlite import SQLiteStore
from postbus.targets import store_for


@click.command(short_help="Create or upgrade the tables.")
@click.option(
    "--url",
    envvar="POSTBUS_URL",
    show_envvar=True,
    metavar="URL",
    help=f"{URL_HELP} Not needed with --sql.",
)
@schema_option
@click.option("--sql", "as_sql", is_flag=True, help="PostgreSQL: print the SQL instead of running it.")
@click.option("--notify-trigger", is_flag=True, help='PostgreSQL: with the trigger for notify="trigger".')
def migrate(url: str | None, schema: str | None, as_sql: bool, notify_trigger: bool) -> None:
    """Create the tables of a bus, or bring them up to date.

    Every bus does so when it starts: this is for applications that may not create tables, and for
    deployments that migrate first. Running it again, or twice at once, does no harm.
    """
    if url is None and not as_sql:
        raise click.UsageError("Missing option '--url' (env var: 'POSTBUS_URL').")
    if url is None or is_on_server(url):
        click.echo(_on_postgres(None if as_sql else url, schema_or_default(schema), notify_trigger))
    elif as_sql or schema is not None or notify_trigger:
        raise click.UsageError(f"--sql, --schema and --notify-trigger are for PostgreSQL; --url is {url!r}.")
    else:
        click.echo(asyncio.run(_migrate_file(url)))


def _on_postgres(url: str | None, schema: str, notify_trigger: bool) -> str:
    """Migrate and tell what was done; without a URL only tell what would be."""
    with needs_driver():
        from postbus.ops.cli.postgres_schema import migrate_schema, render_sql
    with checks_schema():
        if url is None:
            return render_sql(schema, notify_trigger=notify_trigger).rstrip("\n")
        return asyncio.run(migrate_schema(url, schema, notify_trigger=notify_trigger))


async def _migrate_file(url: str) -> str:
    store = store_for(url, SystemClock())
    if not isinstance(store, SQLiteStore):
        raise click.BadParameter("expected a file or a postgresql:// URL", param_hint="--url")
    async with store:
        return f"{store.path} is up to date."
