"""`gpumem-hist`: lists jobs with what they asked for, got, and really needed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import datetime
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeVar

import typer

if TYPE_CHECKING:
    from history.store import Store
    from history.wire import JobDetail, JobRecord, JobsQuery
    from settings import Settings

T = TypeVar("T")

NAME = "gpumem-hist"
WRONG_USAGE: type[BaseException] = typer.BadParameter.__base__ or typer.BadParameter  # all kinds of it
_TIMEOUT_S = 10.0

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


_HELP = {"help_option_names": ["-h", "--help"]}
_CONFIG = typer.Option(help="Default: $GPUMEM_CONFIG or /etc/gpumem/gpumem.toml.")


def _tell_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"gpumem {version('gpumem')}")
        raise typer.Exit


_VERSION = typer.Option(
    "--version", callback=_tell_version, is_eager=True, help="Print the version and exit."
)


@app.callback(invoke_without_command=True, context_settings=_HELP)
def hist(
    context: typer.Context,
    user: Annotated[str | None, typer.Option(help="Only jobs of this user.")] = None,
    since: Annotated[
        str | None, typer.Option(help="Only jobs since 2026-01-31, or for 7d, 12h, 30m.")
    ] = None,
    script: Annotated[str | None, typer.Option(help="Only scripts with this in their name.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="At most so many jobs.")] = 50,
    json: Annotated[bool, typer.Option("--json", help="Print everything that is known, as JSON.")] = False,
    config: Annotated[Path | None, _CONFIG] = None,
    version: Annotated[bool, _VERSION] = False,
) -> None:
    """Lists jobs, newest first: what they asked for, got, and how much GPU memory they really needed.

    You see your own jobs; an admin of gpumem sees all.
    """
    if context.invoked_subcommand is not None:
        return
    from pydantic import ValidationError

    from history.wire import JobsQuery
    from settings import SettingsError, load
    from settings.command_line import tell_failure

    try:
        query = JobsQuery(user=user, since=_moment(since), script=script, limit=limit)
        jobs = _jobs(load(config), query)
    except ValidationError as error:
        first = error.errors()[0]
        raise typer.BadParameter(first["msg"], param_hint=f"--{first['loc'][0]}") from None
    except (SettingsError, HistoryUnavailable) as error:
        tell_failure(NAME, str(error), json)
        raise typer.Exit(1) from None
    if json:
        _print_json(jobs)
    elif not jobs:
        print("gpumem-hist: no such jobs", file=sys.stderr)
    else:
        from history.table import print_table

        print_table(jobs)


@app.command(context_settings=_HELP)
def show(
    job_id: Annotated[int, typer.Argument(min=1, metavar="JOBID", help="The job; of an array, the array.")],
    json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
    config: Annotated[Path | None, _CONFIG] = None,
) -> None:
    """Shows what is known of one job: the decision and why, the parts of the estimate, what was measured."""
    from settings import SettingsError, load
    from settings.command_line import tell_failure

    try:
        found = _job(load(config), job_id)
    except (SettingsError, HistoryUnavailable) as error:
        tell_failure(NAME, str(error), json)
        raise typer.Exit(1) from None
    if found is None:
        tell_failure(NAME, f"no job {job_id} that you may see", json)
        raise typer.Exit(1)
    if json:
        print(found.model_dump_json(indent=2))
    else:
        from history.table import print_job

        print_job(found)


@app.command(context_settings=_HELP)
def calibration(
    json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
    config: Annotated[Path | None, _CONFIG] = None,
) -> None:
    """Shows what gpumemd has learned about the margin of its estimates, for admins.

    One line for each GPU model, status of the estimate and what has run before (nothing, a script of that
    name and user, the same work): how many measured jobs count, the margin that follows, and how many jobs
    needed more than they were promised.
    """
    from history.wire import Calibrated
    from settings import SettingsError, load
    from settings.command_line import tell_failure

    try:
        answer = Calibrated.model_validate(_ask(load(config), "/v1/calibration", {}))
    except (SettingsError, HistoryUnavailable) as error:
        tell_failure(NAME, str(error), json)
        raise typer.Exit(1) from None
    except ValueError as error:
        tell_failure(NAME, f"not an answer of gpumemd: {error}", json)
        raise typer.Exit(1) from None
    if json:
        print(answer.model_dump_json(indent=2))
    else:
        from history.table import print_calibration

        print_calibration(answer)


class HistoryUnavailable(Exception):
    """Neither the service nor the database can be asked; the text says what to do."""


def main() -> NoReturn:
    """Entry point of `gpumem-hist`."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a locale without UTF-8 costs a dash, not the table
    try:
        status = app(prog_name=NAME, standalone_mode=False)
    except WRONG_USAGE as error:
        from settings.command_line import tell_wrong_usage

        status = tell_wrong_usage(error)
    sys.exit(status or 0)


def _moment(since: str | None) -> datetime | None:
    from history.since import parse_since

    try:
        return None if since is None else parse_since(since, datetime.now().astimezone())
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--since") from None


def _jobs(settings: Settings, query: JobsQuery) -> list[JobRecord]:
    from history.wire import Jobs

    def read(store: Store) -> list[JobRecord]:
        return store.jobs(None, query.user, query.since, query.script, query.limit)

    asked = query.model_dump(mode="json")
    return _found(settings, "/v1/jobs", asked, lambda answer: Jobs.model_validate(answer).jobs, read)


def _job(settings: Settings, job_id: int) -> JobDetail | None:
    from history.client import Refused
    from history.wire import JobDetail

    def read(store: Store) -> JobDetail | None:
        return store.job(job_id, None)

    try:
        return _found(settings, f"/v1/jobs/{job_id}", {}, JobDetail.model_validate, read)
    except HistoryUnavailable as error:
        if isinstance(error.__cause__, Refused) and error.__cause__.status == 404:
            return None
        raise


def _found(
    settings: Settings,
    path: str,
    query: dict[str, Any],
    understand: Callable[[Any], T],
    read: Callable[[Store], T],
) -> T:
    """Asks the service; else reads the database, if this user may."""
    from pydantic import ValidationError

    from history.client import Unreachable

    try:
        return understand(_ask(settings, path, query))
    except HistoryUnavailable as error:
        if not isinstance(error.__cause__, Unreachable):
            raise
        return _read_database(settings, read, str(error))
    except ValidationError as error:
        reason = error.errors()[0]["msg"]
        raise HistoryUnavailable(f"{_service(settings)}: not an answer of gpumemd: {reason}") from None


def _ask(settings: Settings, path: str, query: dict[str, Any]) -> Any:
    """What the service answers; a HistoryUnavailable has `Unreachable` or `Refused` as its cause."""
    from history.client import Refused, Unreachable, get

    try:
        return get(
            _service(settings),
            path,
            query,
            timeout_s=_TIMEOUT_S,
            munge_socket=settings.slurm.munge_socket,
        )
    except Unreachable as error:
        raise HistoryUnavailable(str(error)) from error
    except Refused as error:
        raise HistoryUnavailable(f"gpumemd refuses: {error}") from error
    except ValueError as error:
        raise HistoryUnavailable(f"measurement.service: {error}") from None


def _service(settings: Settings) -> str:
    """The socket on this machine; on a login node without one, where the compute nodes find the service."""
    socket = settings.service.user_socket
    remote = settings.measurement.service
    return remote if remote.startswith("http:") and not socket.exists() else f"unix:{socket}"


def _read_database(settings: Settings, read: Callable[[Store], T], why: str) -> T:
    import os

    from history.store import Store, StoreError, sqlite_file

    try:
        file = sqlite_file(settings.history.url)
        if not (os.access(file, os.R_OK) if file else os.geteuid() == 0):
            raise HistoryUnavailable(f"{why}\nIs gpumemd running on the controller? Ask your administrator.")
        with Store(settings.history.url, read_only=True) as store:
            found = read(store)
    except StoreError as error:
        raise HistoryUnavailable(f"{why}\nThe database cannot be read either: {error}") from None
    print(f"gpumem-hist: {why}; read from the database instead", file=sys.stderr)
    return found


def _print_json(jobs: list[JobRecord]) -> None:
    import json

    print(json.dumps([job.model_dump(mode="json") for job in jobs], indent=2))
