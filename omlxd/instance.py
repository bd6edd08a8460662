"""Finds the daemon of a data folder (its lock and record) and asks its ``/health``."""

import errno
import fcntl
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from omlxd.store import peek_json

LOCK = "omlxd.lock"
"""Held (``flock``) by the daemon of the folder; the file is never removed."""
RECORD = "instance.json"
"""Says which process holds the folder, and where its API answers."""
SAME_START = 2.0
"""Seconds. A process's start time is computed from the boot time, which clock changes can move."""
HEALTH_LIMIT = 2.0
"""Seconds for one request; ``/health`` answers from memory."""
HEALTH_BYTES = 65536

TAKEN = frozenset({errno.EAGAIN, errno.EACCES, errno.EWOULDBLOCK})
"""Errors of ``flock`` when another process has the lock."""

ProcessStart = Callable[[int], float | None]


@dataclass(frozen=True, slots=True)
class InstanceRecord:
    """Attributes:
    process_started: the start of the process according to the system, seconds since 1970. It
        identifies one process together with ``pid``; the system reuses pids.
    started_at: the time when the process took the folder, seconds since 1970.
    host, port: the address of the API; None until the port is bound.
    interpreter: the Python that runs it, symbolic links unresolved.
    """

    instance_id: str
    pid: int
    started_at: float
    version: str
    host: str | None = None
    port: int | None = None
    process_started: float | None = None
    interpreter: str | None = None

    @property
    def url(self) -> str | None:
        """An address that a client on this machine can use."""
        if self.host is None or self.port is None:
            return None
        return reachable_url(self.host, self.port)


@dataclass(frozen=True, slots=True)
class Healthy:
    instance_id: str
    version: str


@dataclass(frozen=True, slots=True)
class Unhealthy:
    """``why``: in words, such as nothing listens, no answer in time, another program answers."""

    why: str


Health = Healthy | Unhealthy


def read_record(state: Path) -> InstanceRecord | None:
    """The last record in the folder; its process may have ended.

    None when there is no record, it is damaged, or this user may not read it (``is_closed``).
    """
    value = peek_json(state / RECORD)
    if value is None:
        return None
    known = {k: value[k] for k in InstanceRecord.__dataclass_fields__ if k in value}
    try:
        record = InstanceRecord(**known)
        sound = record.pid > 0 and record.started_at >= 0 and record.instance_id != ""
    except TypeError:
        return None
    return record if sound else None


def is_closed(state: Path) -> bool:
    """Whether this user may not read the record, because it belongs to another account."""
    try:
        os.close(os.open(state / RECORD, os.O_RDONLY | os.O_CLOEXEC))
    except PermissionError:
        return True
    except OSError:
        return False
    return False


def process_start(pid: int) -> float | None:
    """The start time of the process ``pid``, seconds since 1970.

    None when there is no such process, 0.0 when this user has no access.
    """
    import psutil

    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else process.create_time()
    except psutil.NoSuchProcess:
        return None
    except psutil.AccessDenied:
        return 0.0


def pid_exists(pid: int) -> bool:
    """Whether there is a process ``pid``, perhaps another one than before; without psutil."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # it is another user's
    return True


def is_alive(record: InstanceRecord, started: ProcessStart = process_start) -> bool:
    """Whether the recorded process still runs, and no other process has got its pid."""
    now = started(record.pid)
    if now is None:
        return False
    unknown = record.process_started is None or now == 0.0
    return unknown or abs(now - (record.process_started or 0.0)) <= SAME_START


def running(state: Path, started: ProcessStart = process_start) -> InstanceRecord | None:
    """The instance that runs on this data folder now."""
    record = read_record(state)
    return record if record is not None and is_alive(record, started) else None


def is_held(state: Path) -> bool:
    """Whether a process holds the folder, even without a record (as on a full disk)."""
    return _is_locked(state / LOCK) or _is_locked(state)


def _is_locked(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        # Released at once. A daemon that starts at this moment asks for the lock again.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno in TAKEN
    finally:
        os.close(descriptor)
    return False


def reachable_url(host: str, port: int) -> str:
    """An address that a client on this machine can use for a listener bound to ``host``."""
    near = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{near}]:{port}" if ":" in near else f"http://{near}:{port}"


def ask_health(url: str, limit: float = HEALTH_LIMIT) -> Health:
    """GET ``url``/health, without any proxy of the environment. Never raises."""
    # Imported here: a start uses the rest of this module, and must not wait for this import.
    import http.client
    import json

    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        return Unhealthy(f"{url}: {error}")
    connection = http.client.HTTPConnection(host, port, timeout=limit)
    try:
        connection.request("GET", "/health", headers={"Accept": "application/json"})
        answer = json.loads(connection.getresponse().read(HEALTH_BYTES))
    except TimeoutError:
        return Unhealthy(f"{url} takes connections and does not answer")
    except OSError as error:
        return Unhealthy(f"nothing answers at {url}: {error.strerror or error}")
    except (http.client.HTTPException, ValueError, RecursionError):
        return Unhealthy(f"something else than omlxd answers at {url}")
    finally:
        connection.close()
    match answer:
        case {"instance_id": str(instance), "version": str(version)}:
            return Healthy(instance, version)
        case _:
            return Unhealthy(f"something else than omlxd answers at {url}")
