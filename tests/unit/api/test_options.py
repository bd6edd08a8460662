"""The hosts and origins that the configuration accepts."""

import re
from pathlib import Path

import pytest

from omlxd.config.load import load
from omlxd.errors import ConfigError


def loaded(tmp_path: Path, key: str, value: str) -> tuple[str, ...]:
    (tmp_path / "config.toml").write_text(f"[api]\n{key} = ['{value}']\n")
    found: tuple[str, ...] = getattr(load({}, {}, home=str(tmp_path)).api, key)
    return found


@pytest.mark.parametrize(
    "origin",
    [
        "http://localhost:3000",
        "http://localhost:3000/",
        "https://App.example.com",
        "http://[::1]:3000",
        "http://localhost:443",
        "chrome-extension://aapbdbdomjkkjkaonfhkkikfgjllcleb",
        "tauri://localhost",
    ],
)
def test_an_origin_is_taken_as_browsers_write_it(tmp_path: Path, origin: str) -> None:
    assert loaded(tmp_path, "allowed_origins", origin) == (origin,)


@pytest.mark.parametrize(
    "origin",
    [
        "null",
        "*",
        "",
        "app.example.com",
        "https://*.example.com",
        "https://x/path",
        "https://x?q",
        "https://me@x",
        "https://",
        "file://",
        "http://x:",
        "http://x:0",
        "http://x:65536",
        "http://::1",
        "http://[::1",
        "http://[x]",
        "http://bücher.example",
        "http://boo\N{KELVIN SIGN}.example",
        " http://x",
        "http://x\\n",
    ],
)
def test_what_no_listed_page_can_have_as_its_origin_is_refused(tmp_path: Path, origin: str) -> None:
    """Every sandboxed page has the origin ``null``, so it would let everybody in. The others would
    match nothing."""
    with pytest.raises(ConfigError, match=r"api\.allowed_origins: .*http://localhost:3000"):
        loaded(tmp_path, "allowed_origins", origin)


@pytest.mark.parametrize("origin", ["https://x:443", "http://x:80"])
def test_a_port_that_browsers_leave_out_is_refused(tmp_path: Path, origin: str) -> None:
    with pytest.raises(ConfigError, match="leave out the port"):
        loaded(tmp_path, "allowed_origins", origin)


@pytest.mark.parametrize(
    ("address", "usual"),
    [
        ("[0:0::1]", "::1"),
        ("[FE80::01]", "fe80::1"),
        ("[fe80::1%eth0]", "fe80::1"),
        ("[::ffff:10.0.0.1]", "::ffff:a00:1"),
    ],
)
def test_an_address_that_browsers_write_otherwise_is_refused(
    tmp_path: Path, address: str, usual: str
) -> None:
    for key, value in (("allowed_origins", f"http://{address}:3000"), ("allowed_hosts", address)):
        with pytest.raises(ConfigError, match=re.escape(f"as browsers do: [{usual}]")):
            loaded(tmp_path, key, value)
    assert loaded(tmp_path, "allowed_hosts", f"[{usual.upper()}]")


@pytest.mark.parametrize(
    "host",
    ["Host.docker.internal", "box:9000", "my_box", "192.168.1.5", "[fd00::1]", "[fd00::1]:8484"],
)
def test_a_host_is_a_name_with_or_without_a_port(tmp_path: Path, host: str) -> None:
    assert loaded(tmp_path, "allowed_hosts", host) == (host,)


@pytest.mark.parametrize(
    "host", ["*", "", "*.local", "http://x", "x/", "x:", "x:0", "x:99999", "fd00::1", "[x]", "a b"]
)
def test_what_no_host_header_can_be_is_refused(tmp_path: Path, host: str) -> None:
    with pytest.raises(ConfigError, match=r"api\.allowed_hosts: .*box\.local"):
        loaded(tmp_path, "allowed_hosts", host)


def test_the_environment_is_held_to_the_same(tmp_path: Path) -> None:
    environ = {"OMLXD_API_ALLOWED_ORIGINS": "http://a:1, null"}
    with pytest.raises(ConfigError, match=r"OMLXD_API_ALLOWED_ORIGINS: .*'null'"):
        load({}, environ, home=str(tmp_path))
