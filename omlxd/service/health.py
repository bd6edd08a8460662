"""Asks a running daemon over HTTP who it is."""

import http.client
import json
from dataclasses import dataclass
from urllib.parse import urlsplit

LIMIT = 2.0
"""Seconds for one question; /health answers from memory."""
MOST_BYTES = 65536


@dataclass(frozen=True, slots=True)
class Healthy:
    instance_id: str
    version: str


@dataclass(frozen=True, slots=True)
class Unhealthy:
    """``why`` in words: nothing listens, no answer in time, something else answers."""

    why: str


Health = Healthy | Unhealthy


def ask(url: str, limit: float = LIMIT) -> Health:
    """GET ``url``/health, without any proxy of the environment. Never raises."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        return Unhealthy(f"{url}: {error}")
    connection = http.client.HTTPConnection(host, port, timeout=limit)
    try:
        connection.request("GET", "/health", headers={"Accept": "application/json"})
        answer = json.loads(connection.getresponse().read(MOST_BYTES))
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
