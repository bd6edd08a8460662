"""Faults that users of such servers reported, each as the right behaviour of the real daemon."""

import concurrent.futures
import os
import shutil
import socket
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.integration.conftest import MakeDaemon
from tests.integration.daemon.test_life import ENDLESS, EOS_OFF, Stream, chat
from tests.support.daemon import DaemonProcess, link_models, stream_chat, text_of

LEFT_WITHIN = 3.0
"""Seconds: one, and a step of a small model, and what a busy machine adds."""
LONG_PROMPT = "The quick brown fox jumps over the lazy dog. " * 100


@contextmanager
def hung_up(daemon: DaemonProcess, body: dict[str, object]) -> Iterator[None]:
    """Send a request; the client is gone when the block ends."""
    with httpx.Client(base_url=daemon.url, timeout=60) as client:
        stop = threading.Event()

        def send() -> None:
            try:
                with client.stream("POST", "/v1/chat/completions", json=body) as answer:
                    for _ in answer.iter_bytes():
                        if stop.is_set():
                            return
            except httpx.HTTPError:
                return

        thread = threading.Thread(target=send, daemon=True)
        thread.start()
        yield
        stop.set()
        for connection in list(client._transport._pool.connections):  # type: ignore[attr-defined]
            connection._connection._network_stream._sock.shutdown(socket.SHUT_RDWR)
        thread.join(10)


def phases(daemon: DaemonProcess) -> list[str]:
    return [request["phase"] for request in daemon.status()["requests"]]


def gone(daemon: DaemonProcess) -> bool:
    status = daemon.status()
    return not status["requests"] and all(m["leases"] == 0 for m in status["models"])


@pytest.mark.alone
@pytest.mark.parametrize("stream", [True, False])
def test_t42_a_client_that_leaves_while_decoding_frees_everything(
    daemon: DaemonProcess, tiny: Path, stream: bool
) -> None:
    before = daemon.status()["server"]["completion_tokens"]
    with hung_up(daemon, chat(tiny, **ENDLESS, stream=stream)):
        daemon.until(lambda: "decode" in phases(daemon), "it does not decode")
        left_at = time.monotonic()
    daemon.until(lambda: gone(daemon), "the request stays", limit=10)
    assert time.monotonic() - left_at < LEFT_WITHIN
    assert daemon.status()["server"]["completion_tokens"] > before
    answer = httpx.post(
        f"{daemon.url}/v1/chat/completions", json=chat(tiny, max_tokens=3), timeout=60
    )
    assert answer.json()["usage"]["completion_tokens"] == 3


@pytest.mark.alone
@pytest.mark.parametrize("stream", [True, False])
def test_t42_a_client_that_leaves_during_the_prefill_frees_everything(
    daemon: DaemonProcess, smollm2: Path, stream: bool
) -> None:
    before = daemon.status()["server"]["completion_tokens"]
    with hung_up(daemon, chat(smollm2, LONG_PROMPT, **ENDLESS, stream=stream)):
        daemon.until(lambda: "prefill" in phases(daemon), "it does not prefill")
    # Its answer would take far longer than this.
    daemon.until(lambda: gone(daemon), "the request stays", limit=20)
    assert daemon.status()["server"]["completion_tokens"] - before < 100


def test_t42_a_client_that_leaves_the_queue_frees_its_place(
    make_daemon: MakeDaemon, tiny: Path
) -> None:
    daemon = make_daemon(models=(tiny,), config="[engine]\nmax_concurrent = 1\n")
    running = Stream(daemon, chat(tiny, **ENDLESS))
    assert running.first.wait(30)
    with hung_up(daemon, chat(tiny, max_tokens=3)):
        daemon.until(lambda: "queued" in phases(daemon), "it is not queued")
    daemon.until(lambda: phases(daemon) == ["decode"], "the queued request stays", limit=10)


@contextmanager
def health_polled(daemon: DaemonProcess) -> Iterator[list[float]]:
    """Seconds that each answer of /health took, all of them 200, while the block ran."""
    taken: list[float] = []
    over = threading.Event()

    def poll() -> None:
        with daemon.client(timeout=60) as client:
            while not over.wait(0.02):
                began = time.perf_counter()
                assert client.get("/health").status_code == 200
                taken.append(time.perf_counter() - began)

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        polling = pool.submit(poll)
        try:
            yield taken
        finally:
            over.set()
        polling.result(20)


@pytest.mark.alone
def test_t10_clients_that_leave_during_a_cold_load_leave_no_engine_behind(
    make_daemon: MakeDaemon, smollm2: Path, tiny: Path
) -> None:
    """The load of one model is cancelled each time; the other, in use, does not notice."""
    daemon = make_daemon(models=(smollm2, tiny), config="[backend]\nload_piece = '1MB'\n")

    def states() -> dict[str, str]:
        return {m["id"]: m["state"] for m in daemon.status()["models"]}

    beside = Stream(daemon, chat(tiny, **ENDLESS))
    assert beside.first.wait(30)
    with health_polled(daemon) as taken:
        for cancelled in range(1, 4):
            with hung_up(daemon, chat(smollm2)):
                daemon.until(lambda: states()[smollm2.name] == "loading", "it does not load")
            daemon.until(lambda: states()[smollm2.name] == "absent", "the load goes on", limit=20)
            ends = daemon.events("model_load_cancelled")
            assert [end["model"] for end in ends] == [smollm2.name] * cancelled
            assert phases(daemon) == ["decode"]
    assert daemon.events("model_ready")[0]["model"] == tiny.name
    assert len(daemon.events("model_ready")) == 1
    assert len(taken) >= 3
    assert max(taken) < 2.0
    assert statistics.median(taken) < 0.1


def test_t09_requests_for_a_cold_model_share_one_load(
    make_daemon: MakeDaemon, smollm2: Path
) -> None:
    daemon = make_daemon(models=(smollm2,))
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        answers = list(
            pool.map(
                lambda n: (
                    httpx.post(
                        f"{daemon.url}/v1/chat/completions",
                        json=chat(smollm2, f"question {n}", max_tokens=4),
                        timeout=120,
                    ).status_code
                ),
                range(4),
            )
        )
    assert answers == [200] * 4
    assert len(daemon.events("model_ready")) == 1


@pytest.mark.alone
def test_t19_health_and_status_answer_while_a_long_prompt_is_prefilled(
    daemon: DaemonProcess, smollm2: Path
) -> None:
    stream = Stream(daemon, chat(smollm2, LONG_PROMPT, max_tokens=1))
    daemon.until(lambda: "prefill" in phases(daemon), "it does not prefill")
    times: dict[str, list[float]] = {"/health": [], "/status": []}
    with daemon.client(timeout=60) as client:
        while "prefill" in phases(daemon) and len(times["/health"]) < 30:
            time.sleep(0.1)  # a probe, not a load: the machine's cores are needed elsewhere
            for path, taken in times.items():
                began = time.perf_counter()
                assert client.get(path).status_code == 200
                taken.append(time.perf_counter() - began)
    stream.ended(120)
    assert len(times["/health"]) >= 3
    for taken in times.values():
        # A step of this prefill takes ten times as long.
        assert statistics.median(taken) < 0.2


@pytest.mark.alone
def test_t40_a_long_prefill_sends_comments_so_that_clients_stay(
    make_daemon: MakeDaemon, smollm2: Path
) -> None:
    daemon = make_daemon(
        models=(smollm2,), config="[api]\nkeep_alive_interval = 0.5\nhold_start = 0.2\n"
    )
    body = chat(smollm2, LONG_PROMPT, max_tokens=1, stream=True)
    comments_before_data = 0
    with (
        daemon.client() as client,
        client.stream("POST", "/v1/chat/completions", json=body) as answer,
    ):
        for line in answer.iter_lines():
            if line.startswith("data:"):
                break
            comments_before_data += line.startswith(":")
    assert comments_before_data >= 3


@pytest.mark.parametrize(
    "text", ["Příliš žluťoučký kůň úpěl ďábelské ódy", "日本語のテキスト", "👩‍👩‍👧‍👦🎉 emoji"]
)
def test_t32_streamed_deltas_join_to_the_whole_text_in_any_script(
    daemon: DaemonProcess, smollm2: Path, text: str
) -> None:
    prompt = f"Repeat exactly, without comment: {text}"
    body = chat(smollm2, prompt, temperature=0, max_tokens=20)
    with daemon.client() as client:
        whole = client.post("/v1/chat/completions", json=body).json()
        chunks = list(stream_chat(client, body))
    assert text_of(chunks) == whole["choices"][0]["message"]["content"]
    assert "\ufffd" not in text_of(chunks)


def test_t32_noise_of_a_random_model_never_breaks_the_stream(
    daemon: DaemonProcess, tiny: Path
) -> None:
    with daemon.client() as client:
        for seed in range(5):
            body = chat(tiny, temperature=2.0, seed=seed, max_tokens=80)
            whole = client.post("/v1/chat/completions", json=body).json()
            assert (
                text_of(list(stream_chat(client, body)))
                == (whole["choices"][0]["message"]["content"])
            )


def test_t43_a_request_with_penalties_beside_a_plain_one(daemon: DaemonProcess, tiny: Path) -> None:
    def ask(fields: dict[str, Any]) -> int:
        return httpx.post(
            f"{daemon.url}/v1/chat/completions",
            json=chat(tiny, max_tokens=40, **fields),
            timeout=60,
        ).status_code

    odd: list[dict[str, Any]] = [
        {},
        {"frequency_penalty": 1.0, "presence_penalty": 0.5},
        {"repetition_penalty": 1.3},
        {"logit_bias": {"5": 3}, "top_k": 5},
        {"logprobs": True, "top_logprobs": 5},
        {"top_k": 100000, "min_p": 0.1, "top_p": 0.5},
        {"seed": 3, "temperature": 0.7},
        {},
    ]
    with concurrent.futures.ThreadPoolExecutor(len(odd)) as pool:
        assert list(pool.map(ask, odd)) == [200] * len(odd)


def test_t52_a_model_without_a_chat_template_says_so_and_completes_texts(
    daemon: DaemonProcess, templateless: Path
) -> None:
    with daemon.client() as client:
        refused = client.post("/v1/chat/completions", json=chat(templateless))
        assert refused.status_code == 400
        assert refused.json()["error"]["code"] == "no_chat_template"
        body = {"model": templateless.name, "prompt": "hello", "max_tokens": 3}
        assert client.post("/v1/completions", json=body).status_code == 200


def test_t27_an_empty_prompt_is_refused(daemon: DaemonProcess, tiny: Path) -> None:
    with daemon.client() as client:
        prompts: tuple[object, ...] = ("", [])
        for prompt in prompts:
            body = {"model": tiny.name, "prompt": prompt, "max_tokens": 3}
            refused = client.post("/v1/completions", json=body)
            assert refused.status_code == 400
            assert refused.json()["error"]["param"] == "prompt"
        refused = client.post("/v1/chat/completions", json={"model": tiny.name, "messages": []})
        assert refused.json()["error"]["param"] == "messages"


def test_t61_broken_models_are_listed_with_the_file_and_never_stop_the_others(
    make_daemon: MakeDaemon, tmp_path: Path, tiny: Path
) -> None:
    root = tmp_path / "home/models"
    for name in ("truncated", "pointer"):
        shutil.copytree(tiny, root / name)
        weights = root / name / "model.safetensors"
        if name == "pointer":
            weights.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
        else:
            os.truncate(weights, weights.stat().st_size // 2)
    (root / "junk").mkdir()
    (root / "junk/readme.txt").write_text("nothing")
    daemon = make_daemon(models=(tiny,))
    status = daemon.status()
    broken = {m["id"]: m for m in status["models"] if m["problem"] or m["state"] == "broken"}
    assert set(broken) >= {"truncated", "pointer"}
    for name in ("truncated", "pointer"):
        assert "model.safetensors" in str(broken[name])
        assert str(tmp_path) not in str(broken[name])
        refused = httpx.post(f"{daemon.url}/v1/chat/completions", json=chat(name))
        assert refused.status_code in (404, 500, 503)
        assert "model.safetensors" in refused.json()["error"]["message"]
    answer = httpx.post(
        f"{daemon.url}/v1/chat/completions", json=chat(tiny, max_tokens=2), timeout=60
    )
    assert answer.status_code == 200


def test_t63_a_model_root_that_is_not_there_is_told_and_not_waited_for(
    make_daemon: MakeDaemon, tmp_path: Path, tiny: Path
) -> None:
    absent = tmp_path / "volume/models"
    daemon = make_daemon(
        *("--model-dir", str(tmp_path / "home/models"), "--model-dir", str(absent)),
        models=(tiny,),
        config="[models]\nscan_every = 0.5\n",
    )
    roots = {r["path"]: r for r in daemon.status()["server"]["model_roots"]}
    assert roots[str(absent)]["state"] == "absent"
    assert "mount the volume" in roots[str(absent)]["detail"]
    # The volume comes back.
    link_models(tmp_path / "volume", tiny)
    (absent / tiny.name).rename(absent / "late")
    daemon.until(
        lambda: any(m["id"] == "late" for m in daemon.get("/v1/models")["data"]),
        "the model is not found",
    )


def test_t71_a_model_in_the_hub_cache_loads_without_the_network(
    make_daemon: MakeDaemon, tmp_path: Path, tiny: Path
) -> None:
    snapshot = tmp_path / "hub/models--org--tiny/snapshots/0123abc"
    blobs = tmp_path / "hub/models--org--tiny/blobs"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for file in tiny.iterdir():
        shutil.copy(file, blobs / file.name)
        (snapshot / file.name).symlink_to(f"../../blobs/{file.name}")
    refs = tmp_path / "hub/models--org--tiny/refs"
    refs.mkdir()
    (refs / "main").write_text("0123abc")
    with socket.create_server(("127.0.0.1", 0)) as black_hole:
        black_hole.settimeout(0.2)
        port = black_hole.getsockname()[1]
        daemon = make_daemon(
            environ={
                "HF_HUB_CACHE": str(tmp_path / "hub"),
                "HF_HUB_OFFLINE": "0",
                "HF_ENDPOINT": f"http://127.0.0.1:{port}",
            }
        )
        answer = httpx.post(
            f"{daemon.url}/v1/chat/completions", json=chat("org/tiny", max_tokens=2), timeout=60
        )
        assert answer.status_code == 200
        with pytest.raises(TimeoutError):
            black_hole.accept()


def test_t73_a_read_that_hangs_does_not_hold_the_exit(
    make_daemon: MakeDaemon, tmp_path: Path, tiny: Path
) -> None:
    """As from a network volume that is gone; its client gave up long ago."""
    copy = tmp_path / "home/models/hanging"
    shutil.copytree(tiny, copy)
    daemon = make_daemon(config="[server]\nstop_limit = 1.0\n")
    (copy / "tokenizer.json").unlink()
    os.mkfifo(copy / "tokenizer.json")
    with hung_up(daemon, chat("hanging")):
        daemon.until(lambda: phases(daemon) == ["preparing"], "it does not read")
    daemon.until(lambda: gone(daemon), "the request stays", limit=10)
    assert daemon.stop(limit=20) == 0


@pytest.mark.parametrize("hold_start", [0.0, 30.0])
def test_a_request_still_preparing_at_the_drain_limit_is_told_that_the_server_leaves(
    make_daemon: MakeDaemon, tmp_path: Path, tiny: Path, hold_start: float
) -> None:
    copy = tmp_path / "home/models/hanging"
    shutil.copytree(tiny, copy)
    limits = "[server]\ndrain_limit = 0.2\nstop_limit = 2.0\n"
    daemon = make_daemon(config=f"{limits}[api]\nhold_start = {hold_start}\n")
    (copy / "tokenizer.json").unlink()
    os.mkfifo(copy / "tokenizer.json")
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        asked = pool.submit(
            httpx.post,
            f"{daemon.url}/v1/chat/completions",
            json=chat("hanging", stream=True),
            timeout=30,
        )
        daemon.until(lambda: phases(daemon) == ["preparing"], "it does not read")
        assert daemon.stop(limit=20) == 0
        answer = asked.result(10)
    assert '"shutting_down"' in answer.text
    opened = answer.status_code == 200
    assert opened == answer.text.rstrip().endswith("data: [DONE]")
    assert opened or answer.status_code == 503


class FaultyDaemon(DaemonProcess):
    def __init__(self, home: Path, fault: Path) -> None:
        root = str(Path(__file__).parents[3])
        path = f"{root}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
        super().__init__(home, environ={"OMLXD_TEST_FAULT": str(fault), "PYTHONPATH": path})
        self.command = [
            *(sys.executable, "-m", "tests.support.faulty_daemon", "serve"),
            *("--home", str(home), "--port", "0"),
        ]


def test_t15_t34_a_failing_step_ends_only_its_requests_with_an_error_then_done(
    tmp_path: Path, tiny: Path, second_tiny: Path
) -> None:
    fault, home = tmp_path / "fault", tmp_path / "home"
    shutil.copytree(second_tiny, home / "models/other")
    link_models(home, tiny)
    with FaultyDaemon(home, fault) as daemon:
        streams = [Stream(daemon, chat(tiny, f"{n}", **ENDLESS)) for n in range(2)]
        assert all(stream.first.wait(30) for stream in streams)
        fault.touch()
        for stream in streams:
            stream.ended()
            assert stream.error is None
            assert stream.chunks[-1]["error"]["code"] == "generation_failed"  # type: ignore[index]
        whole = httpx.post(
            f"{daemon.url}/v1/chat/completions", json=chat(tiny, max_tokens=2), timeout=60
        )
        assert whole.status_code == 500
        assert whole.json()["error"]["code"] == "generation_failed"
        fault.unlink()
        for model in (tiny.name, "other"):
            answer = httpx.post(
                f"{daemon.url}/v1/chat/completions",
                json=chat(model, max_tokens=2, **EOS_OFF),
                timeout=60,
            )
            assert answer.status_code == 200
        assert daemon.stop() == 0
