import pytest

from omlxd.errors import ConfigError
from omlxd.host.darwin import DarwinHost
from omlxd.host.linux import LinuxHost
from omlxd.host.protocol import Host, open_host


@pytest.mark.parametrize(("platform", "kind"), [("darwin", DarwinHost), ("linux", LinuxHost)])
def test_the_platform_picks_its_layer_and_nothing_is_opened_yet(
    platform: str, kind: type[Host]
) -> None:
    host = open_host(platform=platform)
    assert isinstance(host, kind)
    assert host.name == platform


def test_another_platform_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="not on 'win32'"):
        open_host(platform="win32")
