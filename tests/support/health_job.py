"""A tiny daemon for the service tests: the real lock, ending and address record; no models.

Called like the job: ``-m omlxd serve --supervised --config FILE [--home DIR]``. The keys of the
configuration set its behaviour.
"""

import argparse
import contextlib
import http.server
import json
import os
import re
import signal
import sys
import tomllib
from pathlib import Path
from typing import TextIO, cast

import structlog

from omlxd import __version__
from omlxd.config.paths import standard_paths
from omlxd.daemon.listen import listen
from omlxd.errors import ConfigError, EngineDied
from omlxd.service.daemon_run import DaemonRun, InstanceLock
from omlxd.service.log_files import open_log

KEYS = {"port", "host", "mode", "version", "claim"}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("-m", dest="module")
    parser.add_argument("verb")
    parser.add_argument("--supervised", action="store_true")
    parser.add_argument("--config")
    parser.add_argument("--home")
    arguments = parser.parse_args()
    home = arguments.home or os.environ.get("OMLXD_HOME")
    found = standard_paths(Path(home) if home else None, Path(arguments.config))
    daemon_run = DaemonRun(
        state=found.state,
        logs=found.logs,
        version=version_of(found.config_file),
        interpreter=sys.executable,
        supervised=arguments.supervised,
    )
    records = open_log(found.logs, sys.stderr)
    structlog.configure(logger_factory=structlog.WriteLoggerFactory(file=cast(TextIO, records)))

    def body(lock: InstanceLock) -> int:
        records.write(f"instance {lock.record.instance_id}\n")
        return serve(read(found.config_file), lock)

    return daemon_run.run(body)


def version_of(path: Path) -> str:
    match = re.search('version = "(.*)"', path.read_text())
    return match[1] if match else __version__


def read(path: Path) -> dict[str, object]:
    try:
        options = tomllib.loads(path.read_text())
    except tomllib.TOMLDecodeError as error:
        raise ConfigError([f"{path}: {error}"]) from None
    if unknown := set(options) - KEYS:
        raise ConfigError([f"{path}: {key}: unknown key" for key in sorted(unknown)])
    return options


def serve(options: dict[str, object], lock: InstanceLock) -> int:
    mode = options.get("mode", "ok")
    if mode == "abort":
        os.abort()
    if mode == "broken":
        raise EngineDied("the engine died")
    if mode == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGTERM, stop)
    listener = listen(str(options.get("host", "127.0.0.1")), int(str(options.get("port", 0))))
    listener.setblocking(True)
    body = json.dumps(
        {
            "status": "ok",
            "version": lock.record.version,
            "instance_id": options.get("claim", lock.record.instance_id),
            "umask": os.umask(0o077),
        }
    ).encode()

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Answer, bind_and_activate=False)
    server.socket.close()
    server.socket = listener
    host, port = listener.getsockname()[:2]
    if mode != "mute":
        lock.announce(host, port)
    with contextlib.suppress(Stopped):
        server.serve_forever(poll_interval=0.05)
    return 0


class Stopped(BaseException):
    """Not an Exception, because http.server ignores every Exception of a request."""


def stop(*_: object) -> None:
    raise Stopped


if __name__ == "__main__":
    sys.exit(main())
