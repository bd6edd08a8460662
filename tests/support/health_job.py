"""A tiny daemon for the service tests: the real lock, ending and address record; no models.

Called as the job is: ``-m omlxd serve --supervised --config FILE [--home DIR]``. The keys of the
configuration say how it behaves.
"""

import argparse
import http.server
import json
import os
import signal
import sys
import time
import tomllib
from pathlib import Path

from omlxd.config.places import places
from omlxd.daemon.listen import listen
from omlxd.errors import ConfigError, OmlxdError
from omlxd.service import last_exit, restarts
from omlxd.service.exit_codes import Ending
from omlxd.service.single_instance import InstanceLock, take

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
    found = places(Path(home) if home else None, Path(arguments.config))
    who = last_exit.Leaving(os.getpid(), None, arguments.supervised)
    lock = None
    try:
        options = read(found.config_file)
        lock = take(
            found.state,
            version=options.get("version", "0.1.0"),
            interpreter=sys.executable,
            now=time.time(),
        )
        who = last_exit.Leaving(os.getpid(), lock.record.instance_id, arguments.supervised)
        if arguments.supervised and restarts.note_start(found.state, time.time()):
            looping = OmlxdError("started too often")
            return last_exit.record(found.state, Ending.LOOPING, looping, who, now=time.time())
        serve(options, lock)
    except (OmlxdError, SystemExit) as error:
        ending = None if isinstance(error, SystemExit) else error
        sys.stderr.write(f"{error}\n")
        return last_exit.conclude(found.state, ending, who, now=time.time())
    finally:
        if lock is not None:
            lock.release()
    return 0


def read(path: Path) -> dict[str, object]:
    try:
        options = tomllib.loads(path.read_text())
    except tomllib.TOMLDecodeError as error:
        raise ConfigError([f"{path}: {error}"]) from None
    if unknown := set(options) - KEYS:
        raise ConfigError([f"{path}: {key}: unknown key" for key in sorted(unknown)])
    return options


def serve(options: dict[str, object], lock: InstanceLock) -> None:
    mode = options.get("mode", "ok")
    if mode == "abort":
        os.abort()
    if mode == "broken":
        raise OmlxdError("the engine died")
    if mode == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    listener = listen(str(options.get("host", "127.0.0.1")), int(str(options.get("port", 0))))
    listener.setblocking(True)
    body = json.dumps(
        {
            "status": "ok",
            "version": lock.record.version,
            "instance_id": options.get("claim", lock.record.instance_id),
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
    server.serve_forever(poll_interval=0.05)


if __name__ == "__main__":
    sys.exit(main())
