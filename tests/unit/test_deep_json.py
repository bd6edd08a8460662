"""Every reader of JSON handles too deep nesting like any other bad JSON."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from omlxd.cli.client import Daemon, Unreachable
from omlxd.daemon import listen
from omlxd.instance import RECORD, Unhealthy, ask_health, read_record
from omlxd.store import peek_json

DEEP = b"[" * 20_000


class Deep(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-length", str(len(DEEP)))
        self.end_headers()
        self.wfile.write(DEEP)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def port() -> Iterator[int]:
    """The health of a server that is not omlxd and answers with such JSON."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Deep) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


def test_in_a_file_of_the_service(tmp_path: Path) -> None:
    (tmp_path / "service.json").write_bytes(DEEP)
    assert peek_json(tmp_path / "service.json") is None


def test_in_the_record_of_a_daemon(tmp_path: Path) -> None:
    (tmp_path / RECORD).write_bytes(DEEP)
    assert read_record(tmp_path) is None


def test_in_the_answer_to_a_look_at_its_health(port: int) -> None:
    found = ask_health(f"http://127.0.0.1:{port}")
    assert isinstance(found, Unhealthy)
    assert "something else than omlxd answers" in found.why


def test_in_the_answer_of_who_holds_the_port(port: int) -> None:
    assert "another omlxd" not in listen.holder("127.0.0.1", port)


def test_in_the_answer_to_a_command(port: int) -> None:
    client = Daemon(f"http://127.0.0.1:{port}")
    with pytest.raises(Unreachable, match="something else than omlxd answers"):
        client.get("/status")
    client.close()
