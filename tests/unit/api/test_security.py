"""The allowed callers: attacks of a hostile page as raw requests, and clients that must pass."""

from typing import Any

import pytest

from omlxd.api.options import ApiOptions
from omlxd.api.security import callers
from tests.support.asgi import Call, get, post
from tests.support.fake_pool import World

CHAT = "/v1/chat/completions"
HELLO = {"messages": [{"role": "user", "content": "hi"}]}


def world_with(**options: Any) -> World:
    return World(options=ApiOptions(**options))


@pytest.mark.parametrize(
    "host", ["127.0.0.1:8484", "localhost:8484", "LOCALHOST:8484", "[::1]:8484"]
)
async def test_our_own_names_are_served(still: World, host: str) -> None:
    assert (await get(still.app, "/health", host=host).end()).status == 200


@pytest.mark.parametrize(
    "host",
    [
        None,
        "",
        "evil.example",
        "evil.example:8484",
        "localhost",
        "localhost:80",
        "localhost.:8484",
        "localhost:8484.evil.example",
        "127.0.0.1.evil.example:8484",
        "127.0.0.1:08484x",
        "192.168.1.5:8484",
        "0.0.0.0:8484",
        "::1:8484",
        "user@localhost:8484",
    ],
)
async def test_other_hosts_are_refused(still: World, host: str | None) -> None:
    """DNS rebinding: the page's own name resolves to us, Origin and Host agree."""
    headers = [("origin", f"http://{host}")] if host else []
    call = await get(still.app, "/health", host=host, headers=headers).end()
    assert (call.status, call.error["code"]) == (403, "forbidden")
    assert call.headers["x-request-id"]


async def test_two_hosts_are_refused(still: World) -> None:
    call = get(still.app, "/health", headers=[("host", "evil.example")])
    assert (await call.end()).status == 403


async def test_configured_names_are_served_with_any_port_or_theirs() -> None:
    world = world_with(allowed_hosts=("Host.Docker.internal", "box:9000"))
    for host in ("host.docker.internal:8484", "host.docker.internal", "box:9000"):
        assert (await get(world.app, "/health", host=host).end()).status == 200
    for host in ("box", "box:8484", "a.host.docker.internal"):
        assert (await get(world.app, "/health", host=host).end()).status == 403


def test_bound_to_all_addresses_every_address_is_ours_but_no_name() -> None:
    ours = callers(bound_host="0.0.0.0", port=8484, extra_hosts=(), origins=())
    assert ours.host_allowed("192.168.1.5:8484")
    assert ours.host_allowed("[fe80::1]:8484")
    assert not ours.host_allowed("192.168.1.5:9999")
    assert not ours.host_allowed("evil.example:8484")


def test_bound_to_one_address_only_that_one_is_ours() -> None:
    ours = callers(bound_host="192.168.1.5", port=80, extra_hosts=(), origins=())
    assert ours.host_allowed("192.168.1.5:80")
    assert ours.host_allowed("localhost")
    assert not ours.host_allowed("192.168.1.6:80")


@pytest.mark.parametrize(
    "origin", ["null", "http://evil.example", "https://localhost:8484", "http://localhost:3000", ""]
)
async def test_pages_of_other_origins_are_refused(still: World, origin: str) -> None:
    for call in (
        get(still.app, "/v1/models", headers=[("origin", origin)]),
        post(still.app, CHAT, HELLO, headers=[("origin", origin)]),
        Call(still.app, "OPTIONS", CHAT, headers=[("origin", origin)]),
    ):
        assert (await call.end()).status == 403
    assert still.pool.generations == []


async def test_our_own_pages_may_call() -> None:
    headers = [("origin", "http://localhost:8484"), ("sec-fetch-site", "same-origin")]
    call = await post(World().app, CHAT, HELLO, headers=headers).end()
    assert call.status == 200
    assert "access-control-allow-origin" not in call.headers


async def test_requests_of_other_sites_are_refused_without_an_origin_too(still: World) -> None:
    """An image or a link of a foreign page sends no Origin."""
    headers = [("sec-fetch-site", "cross-site")]
    assert (await get(still.app, "/status", headers=headers).end()).status == 403


async def test_a_configured_origin_gets_cors_on_answers_errors_and_preflights() -> None:
    world = world_with(allowed_origins=("http://localhost:3000/",))
    headers = [("origin", "http://localhost:3000"), ("sec-fetch-site", "cross-site")]
    good = await post(world.app, CHAT, HELLO, headers=headers).end()
    bad = await post(world.app, CHAT, {}, headers=headers).end()
    ask = [*headers, ("access-control-request-method", "POST")]
    preflight = await Call(world.app, "OPTIONS", CHAT, headers=ask, content_type=None).end()
    for call, status in ((good, 200), (bad, 400), (preflight, 204)):
        assert call.status == status
        assert call.headers["access-control-allow-origin"] == "http://localhost:3000"
        assert call.headers["vary"] == "Origin"
    nowhere = await Call(world.app, "OPTIONS", "/chat", headers=ask, content_type=None).end()
    assert nowhere.status == 204
    assert "POST" in preflight.headers["access-control-allow-methods"]
    assert "authorization" in preflight.headers["access-control-allow-headers"]


ASKED = "authorization,content-type, X-Stainless-OS,anthropic-version,anthropic-beta"


async def allowed(asked: str, origin: str = "http://localhost:3000") -> str | None:
    """The headers that a page of ``origin`` may send if it asks for these."""
    world = world_with(allowed_origins=("http://localhost:3000",))
    ask = [("origin", origin), ("access-control-request-headers", asked)]
    call = await Call(world.app, "OPTIONS", CHAT, headers=ask, content_type=None).end()
    return call.headers.get("access-control-allow-headers")


async def test_a_configured_origin_may_send_the_headers_of_every_sdk() -> None:
    names = (await allowed(ASKED) or "").split(", ")
    assert names == [name.strip().lower() for name in ASKED.split(",")]
    assert await allowed(ASKED, "http://127.0.0.1:8484") is None, "ours needs no permission"


async def test_only_names_of_headers_are_repeated_to_a_page() -> None:
    bad = ("", "a b", "x:y", "ü", "*/*", "z" * 65)
    assert await allowed(",".join(("good", *bad, "GOOD"))) == "good"
    assert "x-api-key" in (await allowed(",".join(bad)) or "")
    assert len((await allowed(",".join(f"h{n}" for n in range(1000))) or "").split(",")) == 200


async def test_options_is_answered_without_cors(still: World) -> None:
    call = await Call(still.app, "OPTIONS", CHAT, content_type=None).end()
    assert call.status == 204
    assert call.headers["allow"] == "POST, OPTIONS"
    assert not [name for name in call.headers if name.startswith("access-control")]


@pytest.mark.parametrize(
    "content_type",
    [
        None,
        "text/plain",
        "text/plain; application/json",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "application/jsonp",
        "application/json; charset=utf-16",
    ],
)
@pytest.mark.parametrize("path", [CHAT, "/v1/models/org/tiny/unload", "/v1/models/org/tiny/load"])
async def test_what_a_page_can_post_unasked_is_refused(
    still: World, content_type: str, path: str
) -> None:
    """Request forgery: forms and text/plain need no preflight; bodyless routes count as well."""
    call = await post(still.app, path, HELLO, content_type=content_type).end()
    assert (call.status, call.error["code"]) == (415, "unsupported_media_type")
    assert still.pool.unloads == []


async def test_a_charset_of_utf_8_is_fine() -> None:
    kind = "application/json; charset=UTF-8"
    assert (await post(World().app, CHAT, HELLO, content_type=kind).end()).status == 200


@pytest.mark.parametrize("path", ["http://evil.example/status", "*", "status", ""])
async def test_a_target_that_is_no_path_of_ours_is_refused(still: World, path: str) -> None:
    assert (await get(still.app, path).end()).status == 400


@pytest.mark.parametrize("character", ["\0", "\n", "\x7f"])
async def test_a_control_character_in_a_path_is_named(still: World, character: str) -> None:
    call = await get(still.app, f"/v1/models/a{character}b").end()
    assert call.status == 400
    assert f"control character (%{ord(character):02X})" in call.error["message"]


async def test_options_of_what_is_nowhere_is_no_answer_either(still: World) -> None:
    call = await Call(still.app, "OPTIONS", "/", content_type=None).end()
    assert (call.status, call.error["code"]) == (404, "not_found")
    assert "allow" not in call.headers


async def test_too_much_in_the_headers_is_refused(still: World) -> None:
    for headers in ([("x-a", "a" * 40_000)], [(f"x-{n}", "a") for n in range(300)]):
        call = await get(still.app, "/health", headers=headers).end()
        assert (call.status, call.error["code"]) == (400, "invalid_value")


@pytest.mark.parametrize("host", ["localhost", "localhost:1", "127.0.0.1", "[::1]"])
async def test_over_the_unix_socket_localhost_is_ours_with_whatever_port(
    still: World, host: str
) -> None:
    server = ("/home/me/omlxd.sock", None)
    assert (await get(still.app, "/health", host=host, server=server).end()).status == 200


@pytest.mark.parametrize("host", [None, "", "evil.example", "localhost.evil.example"])
async def test_over_the_unix_socket_other_names_are_refused_as_well(
    still: World, host: str | None
) -> None:
    """A proxy in front of the socket would forward the requests of a hostile page."""
    server = ("/home/me/omlxd.sock", None)
    assert (await get(still.app, "/health", host=host, server=server).end()).status == 403


async def test_a_get_never_changes_anything() -> None:
    world = World()
    for path in ("/v1/models/org/tiny/unload", "/v1/models/org/tiny/load"):
        assert (await get(world.app, path).end()).status == 404
    assert world.pool.unloads == []
