"""What a hostile web page can make a browser on this machine do, as raw requests: all refused."""

import json
from collections.abc import Iterator

import httpx
import pytest

from tests.support.daemon import DaemonProcess
from tests.support.raw_http import Answer, exchange, request

JSON = ("Content-Type", "application/json")
BODY = json.dumps({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}).encode()
READS = ("/health", "/status", "/v1/models", "/v1/version", "/openapi.json")
WRITES = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/models/llama/load",
    "/v1/models/llama/unload",
)


@pytest.fixture(autouse=True)
def untouched(daemon: DaemonProcess) -> Iterator[None]:
    """No attack loads or unloads a model, starts a request, or hurts the daemon."""
    before = daemon.status()
    yield
    after = daemon.status()
    assert [m["state"] for m in after["models"]] == [m["state"] for m in before["models"]]
    assert after["requests"] == []
    assert after["server"]["instance_id"] == before["server"]["instance_id"]


def ours(daemon: DaemonProcess) -> tuple[str, str]:
    return ("Host", f"127.0.0.1:{daemon.port}")


def send(
    daemon: DaemonProcess,
    method: str,
    target: str,
    headers: list[tuple[str, str]],
    body: bytes = b"",
) -> Answer:
    answer = exchange(("127.0.0.1", daemon.port), request(method, target, headers, body))
    assert answer.status is not None
    assert answer.status < 500
    return answer


def assert_refused(answer: Answer, *statuses: int) -> None:
    assert answer.status in statuses, answer
    assert "access-control-allow-origin" not in answer.headers
    assert answer.error["message"]


def test_our_own_request_is_served(daemon: DaemonProcess) -> None:
    """Else the refusals below would prove nothing."""
    assert send(daemon, "GET", "/status", [ours(daemon)]).status == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:{port}",
        "127.0.0.1.evil.example:{port}",
        "localhost.evil.example:{port}",
        "localhost.:{port}",
        "localhost:80",
        "localhost",
        "127.0.0.1",
        "127.0.0.1:{port}.evil.example",
        "evil.example@127.0.0.1:{port}",
        "127.1:{port}",
        "0.0.0.0:{port}",
        "0x7f000001:{port}",
        "2130706433:{port}",
        "[::ffff:127.0.0.1]:{port}",
        "box.local:{port}",
        "127.0.0.1:{port},evil.example",
        "127.0.0.1 :{port}",
    ],
)
def test_a_rebound_name_is_refused_though_origin_and_host_agree(
    daemon: DaemonProcess, host: str
) -> None:
    host = host.format(port=daemon.port)
    headers = [("Host", host), ("Origin", f"http://{host}"), ("Sec-Fetch-Site", "same-origin")]
    for target in READS:
        assert_refused(send(daemon, "GET", target, headers), 400, 403)
    for target in WRITES:
        assert_refused(send(daemon, "POST", target, [*headers, JSON], BODY), 400, 403)


def test_a_missing_an_empty_and_a_second_host_are_refused(daemon: DaemonProcess) -> None:
    for headers in (
        [],
        [("Host", "")],
        [("Host", " ")],
        [ours(daemon), ("Host", "evil.example")],
        [("Host", "evil.example"), ours(daemon)],
        [ours(daemon), ours(daemon)],
    ):
        assert_refused(send(daemon, "GET", "/status", headers), 400, 403)


def test_http_1_0_without_a_host_is_refused(daemon: DaemonProcess) -> None:
    answer = exchange(("127.0.0.1", daemon.port), b"GET /status HTTP/1.0\r\n\r\n")
    assert_refused(answer, 400, 403)


@pytest.mark.parametrize(
    "target",
    [
        "http://evil.example/status",
        "http://127.0.0.1:{port}/status",
        "https://127.0.0.1:{port}/status",
        "//evil.example/status",
        "*",
        "evil.example:80",
        "status",
        "/../status",
        "/./status",
        "/%2e%2e/status",
        "/v1/models/../../status",
        "//status",
        "/status/",
        "/STATUS",
        "/status;x",
    ],
)
def test_targets_that_are_no_path_of_ours_reach_nothing(daemon: DaemonProcess, target: str) -> None:
    answer = send(daemon, "GET", target.format(port=daemon.port), [ours(daemon)])
    assert_refused(answer, 400, 404)


def test_an_absolute_target_does_not_stand_in_for_the_host(daemon: DaemonProcess) -> None:
    target = f"http://127.0.0.1:{daemon.port}/status"
    assert_refused(send(daemon, "GET", target, [("Host", "evil.example")]), 400, 403)


@pytest.mark.parametrize(
    "kind",
    [
        None,
        "text/plain",
        "text/plain;charset=UTF-8",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "text/plain; application/json",
        "application/json-patch",
        "application/ json",
        "",
    ],
)
def test_a_simple_request_changes_nothing(daemon: DaemonProcess, kind: str | None) -> None:
    """Sent by a page without a preflight, and even without a tell-tale Origin."""
    headers = [ours(daemon)]
    if kind is not None:
        headers.append(("Content-Type", kind))
    for target in WRITES:
        for body in (BODY, b""):
            extra = [] if body else [("Content-Length", "0")]
            answer = send(daemon, "POST", target, [*headers, *extra], body)
            assert_refused(answer, 415)


def test_two_content_types_are_refused(daemon: DaemonProcess) -> None:
    headers = [ours(daemon), JSON, ("Content-Type", "text/plain")]
    for target in WRITES:
        assert_refused(send(daemon, "POST", target, headers, BODY), 415)


@pytest.mark.parametrize(
    "origin",
    [
        "null",
        "http://evil.example",
        "https://evil.example",
        "http://localhost",
        "http://localhost:1",
        "https://127.0.0.1:{port}",
        "http://127.0.0.1:{port}.evil.example",
        "http://127.0.0.1:{port}@evil.example",
        "chrome-extension://abcdef",
        "file://",
        "",
    ],
)
def test_a_foreign_origin_is_refused_for_every_method(daemon: DaemonProcess, origin: str) -> None:
    headers = [ours(daemon), ("Origin", origin.format(port=daemon.port))]
    for target in READS:
        for method in ("GET", "HEAD"):
            answer = exchange(
                ("127.0.0.1", daemon.port),
                request(method, target, [*headers, ("Connection", "close")]),
            )
            assert answer.status == 403
    for target in WRITES:
        assert_refused(send(daemon, "POST", target, [*headers, JSON], BODY), 403)


def test_two_origins_are_refused(daemon: DaemonProcess) -> None:
    own = ("Origin", f"http://127.0.0.1:{daemon.port}")
    for headers in ([own, ("Origin", "null")], [("Origin", "null"), own]):
        assert_refused(send(daemon, "GET", "/status", [ours(daemon), *headers]), 403)


def test_a_preflight_of_a_foreign_page_allows_nothing(daemon: DaemonProcess) -> None:
    headers = [
        ours(daemon),
        ("Origin", "http://evil.example"),
        ("Access-Control-Request-Method", "POST"),
        ("Access-Control-Request-Headers", "content-type"),
        ("Access-Control-Request-Private-Network", "true"),
        ("Access-Control-Request-Local-Network", "true"),
    ]
    for target in (*READS, *WRITES):
        answer = send(daemon, "OPTIONS", target, headers)
        assert_refused(answer, 403)
        assert not [name for name in answer.headers if name.startswith("access-control")]


def test_cross_site_requests_without_an_origin_are_refused(daemon: DaemonProcess) -> None:
    """Images, scripts, links and forms of another site."""
    for mode, destination in (("no-cors", "image"), ("no-cors", "script"), ("navigate", "iframe")):
        headers = [
            ours(daemon),
            ("Sec-Fetch-Site", "cross-site"),
            ("Sec-Fetch-Mode", mode),
            ("Sec-Fetch-Dest", destination),
        ]
        for target in READS:
            assert_refused(send(daemon, "GET", target, headers), 403)
        for target in WRITES:
            assert_refused(send(daemon, "POST", target, [*headers, JSON], BODY), 403)


def test_a_get_changes_nothing_and_methods_are_not_overridden(daemon: DaemonProcess) -> None:
    override = [("X-HTTP-Method-Override", "POST"), ("X-HTTP-Method", "POST")]
    for target in WRITES:
        answer = send(daemon, "GET", f"{target}?_method=POST", [ours(daemon), *override])
        assert_refused(answer, 404, 405)


def test_a_websocket_is_not_a_way_around(daemon: DaemonProcess) -> None:
    headers = [
        ("Connection", "Upgrade"),
        ("Upgrade", "websocket"),
        ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
        ("Sec-WebSocket-Version", "13"),
    ]
    foreign = [ours(daemon), ("Origin", "http://evil.example"), *headers]
    assert_refused(send(daemon, "GET", "/status", foreign), 403)
    assert send(daemon, "GET", "/status", [ours(daemon), *headers]).status != 101


def test_smuggled_requests_are_refused(daemon: DaemonProcess) -> None:
    """Two readings of where a body ends would let one request hide in another."""
    hidden = b"GET /status HTTP/1.1\r\nHost: x\r\n\r\n"
    base = [ours(daemon), JSON]
    for headers in (
        [*base, ("Content-Length", "5"), ("Content-Length", "6")],
        [*base, ("Content-Length", "+5")],
        [*base, ("Content-Length", "-1")],
        [*base, ("Transfer-Encoding", "xchunked")],
        [*base, ("Transfer-Encoding", "chunked"), ("Transfer-Encoding", "identity")],
        [*base, ("X-A", "b\rc: d")],
        [*base, ("X A", "b")],
    ):
        answer = send(daemon, "POST", "/v1/completions", headers, hidden)
        assert answer.status in (400, 501), headers


def test_garbage_gets_an_error_in_our_shape(daemon: DaemonProcess) -> None:
    for data in (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", b"EHLO x\r\n\r\n"):
        answer = exchange(("127.0.0.1", daemon.port), data)
        assert_refused(answer, 400)
        assert answer.error["code"] == "invalid_http"


def test_the_answer_names_no_software_and_no_file(daemon: DaemonProcess) -> None:
    answer = httpx.get(f"{daemon.url}/nowhere")
    assert "server" not in answer.headers
    assert "omlxd/" not in answer.text
