"""The HTTP side of gpumemd: who may ask what, limits on what is sent, and errors that say what is wrong."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import pwd
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from history.store import Store, StoreError
from history.wire import (
    Accepted,
    Calibrated,
    CalibratedGroup,
    EndedQuery,
    Jobs,
    JobsQuery,
    Measurement,
    Measurements,
)
from slurm_plugin.advisor import Advisor
from slurm_plugin.identity import UnknownCaller, caller_uid, peer_uid
from slurm_plugin.margins import Margins
from slurm_plugin.writer import Writer

T = TypeVar("T")

log = logging.getLogger("gpumemd")

MAX_BODY = 1024**2
_BODY_S = 5.0
_STORE_S = 10.0
_ENDED_S = 10.0
_LOOK_AGAIN_S = 0.1


class Refusal(Exception):
    """A request that is not served; becomes its HTTP status and `{"detail": text}`."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status


@dataclass(frozen=True)
class Access:
    """Who may do what.

    `submit_socket`: submissions are only taken from it. `trusted`: user ids that may send submissions and
    measurements: root and SlurmUser. `admins`: names of users who see everybody's jobs.
    """

    submit_socket: Path
    trusted: Collection[int]
    admins: Collection[str]
    munge_socket: Path | None = None

    def sees_all(self, uid: int) -> bool:
        """Whether a user may see other users' jobs."""
        return uid == 0 or _user_name(uid) in self.admins


def create_app(
    advisor: Advisor,
    writer: Writer,
    store: Store,
    margins: Margins,
    measured: Callable[[Sequence[Measurement]], None],
    is_examined: Callable[[int], bool],
    access: Access,
) -> Starlette:
    """The application. Plain Starlette: the answer to a submission has a few milliseconds.

    `measured` is told of measurements once they are stored, and returns at once. `is_examined`: whether a job
    that has ended was looked at, or will not be; may block, and raise StoreError.
    """

    async def submissions(request: Request) -> Response:
        body = await _body(request)  # first of all: an answer amid the body breaks the connection
        uid = peer_uid(request.scope)
        if uid not in access.trusted or not _came_by(request, access.submit_socket):
            raise Refusal(403, "only slurmctld may send submissions")
        try:
            return _answer(await advisor.advise(body))
        except ValueError as error:
            raise Refusal(422, f"not a submission: {_reason(error)}") from None

    async def measurements(request: Request) -> Response:
        body = await _body(request)
        if await _caller(request, body, access) not in access.trusted:
            raise Refusal(403, "only root on the compute nodes may send measurements")
        try:
            given = Measurements.model_validate_json(body).root
        except ValidationError as error:
            raise Refusal(422, f"not a list of measurements: {_reason(error)}") from None
        stored = asyncio.wrap_future(writer.put(lambda store: store.add_measurements(given)))
        try:
            accepted = Accepted(accepted=await asyncio.wait_for(stored, _STORE_S))
        except (StoreError, TimeoutError):
            raise Refusal(503, "the history database cannot be written now; send it again later") from None
        measured(given)
        return _answer(accepted)

    async def ended(request: Request) -> Response:
        if await _caller(request, b"", access) not in access.trusted:
            raise Refusal(403, "only slurmctld may wait for the end of a job")
        try:
            job_id = EndedQuery.model_validate(dict(request.query_params)).job_id
        except ValidationError as error:
            raise Refusal(422, f"query not understood: {_reason(error)}") from None
        examined = False
        with contextlib.suppress(TimeoutError, StoreError):
            async with asyncio.timeout(_ENDED_S):
                while not (examined := await asyncio.to_thread(is_examined, job_id)):
                    await asyncio.sleep(_LOOK_AGAIN_S)
        return JSONResponse({"examined": examined})

    async def jobs(request: Request) -> Response:
        uid = await _caller(request, b"", access)
        try:
            query = JobsQuery.model_validate(dict(request.query_params))
        except ValidationError as error:
            raise Refusal(422, f"query not understood: {_reason(error)}") from None
        if access.sees_all(uid):
            only = None
        elif query.user in (None, _user_name(uid)):
            only = uid
        else:
            raise Refusal(403, "you can see your own jobs only")
        name = query.user if only is None else None
        found = await _read(store.jobs, only, name, query.since, query.script, query.limit)
        return _answer(Jobs(jobs=found))

    async def job(request: Request) -> Response:
        uid = await _caller(request, b"", access)
        job_id = request.path_params["job_id"]
        found = await _read(store.job, job_id, None if access.sees_all(uid) else uid)
        if found is None:
            raise Refusal(404, f"no job {job_id} that you may see")
        return _answer(found)

    async def calibration(request: Request) -> Response:
        if not access.sees_all(await _caller(request, b"", access)):
            raise Refusal(403, "only admins of gpumem (service.admins) can see the calibration")
        groups = [CalibratedGroup.model_validate(asdict(group)) for group in margins.current().summaries()]
        return _answer(Calibrated(risk=margins.current().risk, groups=groups))

    async def health(_: Request) -> Response:
        facts = {"knows_slurm": advisor.knows_slurm(), "waiting_traces": advisor.waiting_traces()}
        return JSONResponse({"status": "ok", **facts})

    return Starlette(
        routes=[
            Route("/v1/submissions", _served(submissions), methods=["POST"]),
            Route("/v1/measurements", _served(measurements), methods=["POST"]),
            Route("/v1/ended", _served(ended), methods=["GET"]),
            Route("/v1/jobs", _served(jobs), methods=["GET"]),
            Route("/v1/jobs/{job_id:int}", _served(job), methods=["GET"]),
            Route("/v1/calibration", _served(calibration), methods=["GET"]),
            Route("/v1/health", _served(health), methods=["GET"]),
        ]
    )


Handler = Callable[[Request], Awaitable[Response]]


def _served(handler: Handler) -> Handler:
    async def serve(request: Request) -> Response:
        try:
            return await handler(request)
        except Refusal as refusal:
            return JSONResponse({"detail": str(refusal)}, refusal.status)

    return serve


def _answer(model: BaseModel) -> Response:
    return Response(model.model_dump_json(exclude_none=True), media_type="application/json")


async def _read(read: Callable[..., T], *arguments: object) -> T:
    """What the history has; may take as long as its database."""
    try:
        return await asyncio.to_thread(read, *arguments)
    except StoreError as error:
        log.error("%s", error)
        raise Refusal(503, "the history database cannot be read now") from None


async def _caller(request: Request, body: bytes, access: Access) -> int:
    try:
        return await caller_uid(request, body, access.munge_socket)
    except UnknownCaller as error:
        raise Refusal(401, str(error)) from None


async def _body(request: Request) -> bytes:
    """The body, if it is not too long and does not take too long."""
    body = bytearray()
    try:
        async with asyncio.timeout(_BODY_S):
            async for chunk in request.stream():
                body += chunk
                if len(body) > MAX_BODY:
                    raise Refusal(413, f"the body is longer than {MAX_BODY} bytes")
    except TimeoutError:
        raise Refusal(408, "the body did not come in time") from None
    except ClientDisconnect:
        raise Refusal(400, "the connection was closed") from None
    return bytes(body)


def _came_by(request: Request, path: Path) -> bool:
    server: Any = request.scope.get("server")
    return bool(server) and server[0] == os.fspath(path)


def _reason(error: ValueError) -> str:
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False)[0]
        return f"{'.'.join(str(part) for part in first['loc']) or 'body'}: {first['msg']}"
    return str(error)[:200]


def _user_name(uid: int) -> str | None:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return None
