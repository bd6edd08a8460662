"""The requests that each key allows, and the refusal of all others."""

import hmac
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from fastapi.routing import APIRoute

from omlxd.api import key_file
from omlxd.api.app import create_app
from omlxd.api.key_file import Scope, StoredKey, add_key, revoke_key
from omlxd.api.keys import KeyRing, needed_scopes, presented_key
from omlxd.errors import ConfigError, Unauthorized
from tests.support.asgi import Call, get, post
from tests.support.fake_pool import World

CHAT = "/v1/chat/completions"
HELLO = {"messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return key_file.path_in(tmp_path)


def ring(path: Path, *, open_when_empty: bool = True, extra: Iterable[StoredKey] = ()) -> KeyRing:
    return KeyRing(path, extra=tuple(extra), open_when_empty=open_when_empty)


def world(path: Path, **options: Any) -> World:
    return World(keys=ring(path, **options))


def bearer(key: str) -> list[tuple[str, str]]:
    return [("authorization", f"Bearer {key}")]


def damage(path: Path) -> None:
    path.write_text("{")
    path.chmod(0o600)


@pytest.mark.parametrize(
    "headers",
    [
        [],
        bearer("sk-dummy"),
        [("x-api-key", "dummy"), ("authorization", "Bearer other")],
        [("authorization", "Basic eDp5")],
    ],
)
async def test_without_keys_every_caller_on_this_machine_is_served(
    path: Path, headers: list[tuple[str, str]]
) -> None:
    """Clients send a dummy key when their configuration requires one."""
    app = world(path).app
    assert (await post(app, CHAT, HELLO, headers=headers).end()).status == 200
    assert (await get(app, "/status", headers=headers).end()).status == 200


async def test_without_keys_nobody_is_served_beyond_this_machine(path: Path) -> None:
    """As after the last key was revoked while the server was running."""
    app = world(path, open_when_empty=False).app
    assert (await post(app, CHAT, HELLO, headers=bearer("x")).end()).status == 401
    assert (await get(app, "/health").end()).status == 200


async def test_a_key_opens_what_its_scope_says_and_no_more(path: Path) -> None:
    made = {scope: add_key(path, scope.value, scope, 0.0) for scope in Scope}
    app = world(path).app
    expected = {
        Scope.INFERENCE: (200, 403, 200, 403),
        Scope.CONTROL: (403, 200, 200, 200),
        Scope.ALL: (200, 200, 200, 200),
    }
    for scope, statuses in expected.items():
        headers = bearer(made[scope])
        calls = (
            post(app, CHAT, HELLO, headers=headers),
            get(app, "/status", headers=headers),
            get(app, "/v1/models/org/tiny", headers=headers),
            post(app, "/v1/models/org/tiny/unload", {}, headers=headers),
        )
        assert tuple([(await call.end()).status for call in calls]) == statuses, scope


async def test_with_a_key_for_inference_alone_control_is_closed_to_those_without(
    path: Path,
) -> None:
    """A caller without a key must not be able to do more than a caller with one."""
    add_key(path, "a", Scope.INFERENCE, 0.0)
    app = world(path).app
    assert (await get(app, "/status").end()).status == 401
    assert (await post(app, "/v1/models/org/tiny/unload", {}).end()).status == 401
    assert (await get(app, "/health").end()).status == 200


@pytest.mark.parametrize("wrap", ["{}", " {} ", "{}=", "{}==\t", "{}\u00a0"])
async def test_t75_white_space_and_padding_around_a_key_are_the_same_key(
    path: Path, wrap: str
) -> None:
    key = add_key(path, "a", Scope.ALL, 0.0)
    app = world(path).app
    for name, value in (("authorization", "bEARER  " + wrap), ("x-api-key", wrap)):
        call = await get(app, "/status", headers=[(name, value.format(key))]).end()
        assert call.status == 200, (name, value)


async def test_t75_a_wrong_key_is_refused_in_openai_s_shape_and_not_repeated(path: Path) -> None:
    add_key(path, "a", Scope.ALL, 0.0)
    wrong = "omlxd_" + "w" * 43
    call = await post(world(path).app, CHAT, HELLO, headers=bearer(wrong)).end()
    assert call.status == 401
    assert call.error["code"] == "invalid_api_key"
    assert call.error["type"] == "authentication_error"
    assert call.error["param"] is None
    assert call.headers["www-authenticate"] == "Bearer"
    assert wrong not in call.text
    assert "w" * 20 not in call.text


async def test_t75_more_than_one_key_is_refused_even_if_one_is_right(path: Path) -> None:
    key = add_key(path, "a", Scope.ALL, 0.0)
    right, plain = ("authorization", f"Bearer {key}"), ("x-api-key", key)
    app = world(path).app
    for headers in (
        [right, ("x-api-key", "other")],
        [plain, ("authorization", "Bearer other")],
        [plain, plain],
        [right, right],
        [plain, ("x-api-key", "other")],
        [("x-api-key", ""), plain],
    ):
        call = await get(app, "/status", headers=headers).end()
        assert call.status == 401, headers
        assert key not in call.text
    assert (await get(app, "/status", headers=[right, plain]).end()).status == 200


@pytest.mark.parametrize(
    "headers",
    [[], [("authorization", "")], [("authorization", "Bearer ")], [("x-api-key", " ")]],
)
async def test_no_key_is_told_how_to_send_one(path: Path, headers: list[tuple[str, str]]) -> None:
    add_key(path, "a", Scope.ALL, 0.0)
    call = await get(world(path).app, "/status", headers=headers).end()
    assert call.status == 401
    assert "x-api-key" in call.error["message"]


async def test_a_key_in_the_url_is_no_key(path: Path) -> None:
    key = add_key(path, "a", Scope.ALL, 0.0)
    app = world(path).app
    for query in ("api_key", "key", "token", "access_token", "x-api-key", "authorization"):
        call = await get(app, f"/status?{query}={key}").end()
        assert call.status == 401
        assert key not in call.text


async def test_a_key_in_a_scheme_other_than_bearer_is_no_key(path: Path) -> None:
    key = add_key(path, "a", Scope.ALL, 0.0)
    app = world(path).app
    for value in (key, f"Basic {key}", f"Token {key}", f"Bearer: {key}", f"Bearer,{key}"):
        assert (await get(app, "/status", headers=[("authorization", value)]).end()).status == 401


def test_t75_every_stored_key_is_compared_in_constant_time(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = add_key(path, "first", Scope.ALL, 0.0)
    add_key(path, "second", Scope.ALL, 0.0)
    held, compared, compare = ring(path), [], hmac.compare_digest

    def counted(stored: str, presented: str) -> bool:
        compared.append(stored)
        return compare(stored, presented)

    monkeypatch.setattr(hmac, "compare_digest", counted)
    found = held.find(first)
    assert found is not None
    assert found.name == "first"
    assert len(compared) == 2, "it stopped at the right one"
    assert held.find("omlxd_other") is None
    assert len(compared) == 4


async def test_keys_added_and_revoked_while_it_runs_are_noticed(path: Path) -> None:
    app = world(path).app
    assert (await get(app, "/status").end()).status == 200
    key = add_key(path, "a", Scope.ALL, 0.0)
    assert (await get(app, "/status").end()).status == 401
    assert (await get(app, "/status", headers=bearer(key)).end()).status == 200
    other = add_key(path, "b", Scope.ALL, 0.0)
    revoke_key(path, "a")
    assert (await get(app, "/status", headers=bearer(key)).end()).status == 401
    assert (await get(app, "/status", headers=bearer(other)).end()).status == 200
    revoke_key(path, "b")
    assert (await get(app, "/status").end()).status == 200


async def test_a_file_damaged_while_it_runs_leaves_the_keys_in_force(path: Path) -> None:
    key = add_key(path, "a", Scope.ALL, 0.0)
    app = world(path).app
    damage(path)
    assert (await get(app, "/status").end()).status == 401
    assert (await get(app, "/status", headers=bearer(key)).end()).status == 200


def test_a_file_damaged_before_it_starts_stops_the_start(path: Path) -> None:
    damage(path)
    with pytest.raises(ConfigError, match="damaged"):
        ring(path)


def test_the_file_is_read_only_when_it_has_changed(path: Path) -> None:
    add_key(path, "a", Scope.ALL, 0.0)
    stamps = iter([(1,), (1,), (1,), (2,), (2,)])
    held = KeyRing(path, open_when_empty=True, stamp=lambda _: next(stamps))
    path.unlink()
    assert not held.is_open
    assert not held.is_open
    assert held.is_open
    assert held.is_open


async def test_a_key_beside_the_file_works_and_does_not_close_an_open_server(path: Path) -> None:
    local = StoredKey("this machine", Scope.ALL, key_file.digest("omlxd_local"), 0.0)
    app = World(keys=ring(path, extra=[local])).app
    assert (await get(app, "/status").end()).status == 200
    add_key(path, "a", Scope.INFERENCE, 0.0)
    assert (await get(app, "/status").end()).status == 401
    assert (await get(app, "/status", headers=bearer("omlxd_local")).end()).status == 200


async def test_the_unix_socket_asks_for_no_key(path: Path) -> None:
    add_key(path, "a", Scope.ALL, 0.0)
    call = get(world(path).app, "/status", host="localhost", server=("/x/omlxd.sock", None))
    assert (await call.end()).status == 200


async def test_a_preflight_needs_no_key_and_a_refusal_has_cors(path: Path) -> None:
    add_key(path, "a", Scope.ALL, 0.0)
    here = World(keys=ring(path))
    here.options = here.options.__class__(allowed_origins=("http://localhost:3000",))
    headers = [("origin", "http://localhost:3000")]
    assert (await Call(here.app, "OPTIONS", CHAT, headers=headers).end()).status == 204
    call = await post(here.app, CHAT, HELLO, headers=headers).end()
    assert call.status == 401
    assert call.headers["access-control-allow-origin"] == "http://localhost:3000"


async def test_no_body_is_read_of_those_who_have_no_key(path: Path) -> None:
    add_key(path, "a", Scope.ALL, 0.0)
    here = world(path)
    call = Call(here.app, "POST", CHAT, body=())  # it announces a body and sends none
    assert (await call.end()).status == 401


def test_every_route_asks_for_the_scope_of_its_kind() -> None:
    """A new route needs a key for control until a table in ``keys`` has it."""
    for route in create_app(World().services()).routes:
        if not isinstance(route, APIRoute):
            continue
        for method in route.methods or ():
            needed = needed_scopes(method, re.sub(r"{.*?}", "org/tiny", route.path))
            if route.path == "/health":
                assert needed == ()
            elif {"openai", "anthropic"} & set(route.tags):
                assert Scope.INFERENCE in needed, route.path
            elif method not in ("GET", "HEAD"):
                assert needed == (Scope.CONTROL,), route.path


@pytest.mark.parametrize(
    "path",
    [
        "//health",
        "/health/",
        "/Health",
        "/health/../status",
        "/v1/models/../../status",
        "/v1/chat/completions/",
        "/statu%73",
        "",
    ],
)
def test_an_odd_path_never_needs_less_than_the_one_it_resembles(path: str) -> None:
    """The check compares paths literally, like the router. Unknown paths need control."""
    needed = needed_scopes("POST", path)
    assert needed == (Scope.CONTROL,)


def test_the_one_key_of_a_request() -> None:
    assert presented_key([(b"x-api-key", b" k ")]) == "k"
    assert presented_key([(b"authorization", b"Bearer k")]) == "k"
    with pytest.raises(Unauthorized):
        presented_key([])
