"""Routes of the memory guard: its state, changes of its policy, and the stream of decisions."""

import json
from contextlib import aclosing
from typing import Final

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Send

from omlxd.api.connection import EventStream, Exchange, data_event, while_connected
from omlxd.api.guard_view import entry_body, guard_body
from omlxd.api.json_object import Schema, field_schemas, json_body, read_object
from omlxd.api.options import ApiOptions
from omlxd.enforcer.enforcer import Enforcer
from omlxd.enforcer.settings import FIELDS
from omlxd.policy.tiers import GuardPolicy

PATH: Final = "/v1/memory-guard"


def guard_routes(guard: Enforcer, options: ApiOptions) -> APIRouter:
    routes = APIRouter(tags=["memory guard"])

    @routes.get(PATH)
    @routes.head(PATH, include_in_schema=False)
    async def show() -> Response:
        """Answers from memory, even on a busy machine."""
        return JSONResponse(guard_body(guard))

    @routes.put(PATH, openapi_extra=_change_body())
    async def change(request: Request) -> Response:
        """Changes the policy and waits for the next tick, which uses it."""
        await guard.change(read_object(await request.body()))
        return JSONResponse(guard_body(guard))

    @routes.get(f"{PATH}/events")
    async def events() -> Response:
        """The last decisions first, then each new one."""
        return Exchange(lambda receive, send: _tell(guard, options, receive, send))

    return routes


def _change_body() -> Schema:
    known = field_schemas(GuardPolicy)
    # In GB, so it may have a fraction.
    known["custom_ceiling_bytes"] = {"type": ["number", "null"], "exclusiveMinimum": 0}
    return json_body({key: known[field] for key, field in FIELDS.items()})


async def _tell(guard: Enforcer, options: ApiOptions, receive: Receive, send: Send) -> None:
    stream = EventStream(send, options)
    await while_connected(receive, _write(guard, stream), stream.keep_alive())


async def _write(guard: Enforcer, stream: EventStream) -> None:
    await stream.open()
    async with aclosing(guard.record.follow(replay=True)) as decisions:
        async for entry in decisions:
            data = json.dumps(entry_body(entry), separators=(",", ":")).encode()
            await stream.write(data_event(data))
    await stream.close()
