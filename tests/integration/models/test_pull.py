"""``omlxd models pull`` as a process against a stand-in for the hub."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from omlxd.units import MiB
from tests.support.fake_hub import COMMIT, FakeHub, Repo

WEIGHTS = bytes(range(256)) * 4 * 1024  # 1 MiB
FILES = {
    "config.json": b'{"model_type": "llama"}',
    "tokenizer.json": b"{}" * 800,
    "chat_template.jinja": b"{{ messages }}",
    "LICENSE": b"free",
    "model-00001-of-00002.safetensors": WEIGHTS,
    "model-00002-of-00002.safetensors": WEIGHTS[::-1],
    "consolidated.safetensors": b"the same again",
    "modeling_evil.py": b"import os",
    "pytorch_model.bin": b"pickle",
    "original/model.safetensors": b"another",
    ".gitattributes": b"",
}
LONG = WEIGHTS * 24
"""Longer than the pieces of 10 MB in which huggingface_hub writes what arrives."""
SHARD = "model-00001-of-00002.safetensors"
KEPT = {
    "config.json",
    "tokenizer.json",
    "chat_template.jinja",
    "LICENSE",
    "model-00001-of-00002.safetensors",
    "model-00002-of-00002.safetensors",
    ".omlxd-source.json",
}


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with FakeHub() as fake:
        fake.repos["org/name"] = Repo(dict(FILES))
        yield fake


@pytest.fixture
def long_hub(hub: FakeHub) -> FakeHub:
    hub.repos["org/name"] = Repo({**FILES, SHARD: LONG})
    return hub


def command(home: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "omlxd", "models", "--home", str(home), *arguments]


def environ(hub: FakeHub, home: Path, **more: str) -> dict[str, str]:
    own = {"HF_HOME": str(home / "hf"), "PYTHONWARNINGS": "error::ResourceWarning"}
    plain = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "OMLXD_"))}
    return {**plain, **hub.environ, **own, **more}


def pull(
    hub: FakeHub, home: Path, *arguments: str, repo: str = "org/name", **more: str
) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command(home, "pull", repo, *arguments),
        env=environ(hub, home, **more),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def models(home: Path) -> Path:
    return home / "models"


def test_a_pull_brings_weights_config_and_tokenizer_and_nothing_that_runs(
    hub: FakeHub, tmp_path: Path
) -> None:
    done = pull(hub, tmp_path)
    assert done.returncode == 0, done.stderr
    folder = models(tmp_path) / "org" / "name"
    assert {p.name for p in folder.iterdir()} == KEPT
    for name in KEPT - {".omlxd-source.json"}:
        assert (folder / name).read_bytes() == FILES[name]
    record = json.loads((folder / ".omlxd-source.json").read_text())
    assert (record["repository"], record["commit"]) == ("org/name", COMMIT)
    assert record["endpoint"] == hub.url
    assert str(folder) in done.stdout
    assert "100%" in done.stderr
    # Every file is asked for by the commit, whatever the branch says meanwhile.
    assert all(COMMIT in s.path for s in hub.seen if "/resolve/" in s.path)
    assert not list((models(tmp_path) / ".pull").iterdir())


def test_a_second_pull_of_the_same_commit_downloads_nothing(hub: FakeHub, tmp_path: Path) -> None:
    pull(hub, tmp_path)
    hub.seen.clear()
    done = pull(hub, tmp_path)
    assert done.returncode == 0
    assert "already" in done.stdout
    assert [s.path for s in hub.seen] == ["/api/models/org/name"]


def test_a_new_commit_replaces_the_old_one_whole(hub: FakeHub, tmp_path: Path) -> None:
    pull(hub, tmp_path)
    files = {k: v for k, v in FILES.items() if k != "LICENSE"} | {"config.json": b'{"a": 1}'}
    hub.repos["org/name"] = Repo(files, commit="d" * 40)
    assert pull(hub, tmp_path).returncode == 0
    folder = models(tmp_path) / "org" / "name"
    assert {p.name for p in folder.iterdir()} == KEPT - {"LICENSE"}
    assert (folder / "config.json").read_bytes() == b'{"a": 1}'


def test_a_revision_is_pinned_to_its_commit(hub: FakeHub, tmp_path: Path) -> None:
    hub.repos["org/name"] = Repo(dict(FILES), branches=("main", "v1.0"))
    assert pull(hub, tmp_path, "--revision", "v1.0").returncode == 0
    record = models(tmp_path) / "org" / "name" / ".omlxd-source.json"
    assert json.loads(record.read_text())["commit"] == COMMIT
    missing = pull(hub, tmp_path, "--revision", "v2")
    assert missing.returncode == 1
    assert "no revision 'v2'" in missing.stderr


def test_a_connection_that_breaks_is_gone_on_with(long_hub: FakeHub, tmp_path: Path) -> None:
    long_hub.cut_after, long_hub.cuts = 12 * MiB, 1
    done = pull(long_hub, tmp_path)
    assert done.returncode == 0, done.stderr
    first, *later = [s.range for s in long_hub.fetched(SHARD)]
    assert first is None
    assert later
    assert all(r is not None and r != "bytes=0-" for r in later)
    assert (models(tmp_path) / "org" / "name" / SHARD).read_bytes() == LONG


def test_an_interrupted_pull_leaves_no_model_and_is_gone_on_with(
    long_hub: FakeHub, tmp_path: Path
) -> None:
    long_hub.hold_after = 14 * MiB
    running = subprocess.Popen(
        command(tmp_path, "pull", "org/name"),
        env=environ(long_hub, tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert long_hub.holding.wait(30)
    partial = models(tmp_path) / ".pull" / f"org--name--{COMMIT}" / f"{SHARD}.partial"
    end = time.monotonic() + 20
    while not (partial.exists() and partial.stat().st_size) and time.monotonic() < end:
        time.sleep(0.02)
    second = pull(long_hub, tmp_path)
    assert second.returncode == 1
    assert "being pulled already" in second.stderr
    running.send_signal(signal.SIGINT)
    _, error = running.communicate(timeout=20)
    assert running.returncode == 130
    assert "goes on from here" in error
    assert not (models(tmp_path) / "org").exists()
    long_hub.hold_after = None
    long_hub.go_on.set()
    long_hub.seen.clear()
    done = pull(long_hub, tmp_path)
    assert done.returncode == 0, done.stderr
    begin = long_hub.fetched(SHARD)[0].range
    assert begin is not None
    assert begin != "bytes=0-"
    assert long_hub.fetched("config.json") == []
    assert (models(tmp_path) / "org" / "name" / SHARD).read_bytes() == LONG


def test_a_server_without_ranges_starts_the_file_again(long_hub: FakeHub, tmp_path: Path) -> None:
    long_hub.cut_after, long_hub.cuts, long_hub.ignore_ranges = 12 * MiB, 1, True
    done = pull(long_hub, tmp_path)
    assert done.returncode == 0, done.stderr
    assert (models(tmp_path) / "org" / "name" / SHARD).read_bytes() == LONG


@pytest.mark.parametrize("name", ["model-00002-of-00002.safetensors", "config.json"])
def test_bytes_that_are_not_those_of_the_hub_never_become_a_model(
    hub: FakeHub, tmp_path: Path, name: str
) -> None:
    repo = hub.repos["org/name"]
    repo.lies[name] = bytes(len(repo.files[name]))
    done = pull(hub, tmp_path)
    assert done.returncode == 1
    assert f"{name} arrived damaged" in done.stderr
    assert not (models(tmp_path) / "org").exists()
    repo.lies.clear()
    assert pull(hub, tmp_path).returncode == 0


def test_a_gated_model_names_the_page_and_the_token(hub: FakeHub, tmp_path: Path) -> None:
    hub.repos["org/name"] = Repo(dict(FILES), gated="hf_right")
    done = pull(hub, tmp_path)
    assert done.returncode == 77
    assert f"{hub.url}/org/name" in done.stderr
    assert "HF_TOKEN" in done.stderr
    assert pull(hub, tmp_path, HF_TOKEN="hf_wrong").returncode == 77
    assert pull(hub, tmp_path, HF_TOKEN="hf_right").returncode == 0


def test_the_token_file_of_the_hub_is_used_and_the_token_stays_with_the_hub(
    hub: FakeHub, tmp_path: Path
) -> None:
    hub.repos["org/name"] = Repo(dict(FILES), private="hf_mine")
    assert pull(hub, tmp_path).returncode == 77
    (tmp_path / "hf").mkdir(exist_ok=True)
    (tmp_path / "hf" / "token").write_text("hf_mine")
    done = pull(hub, tmp_path)
    assert done.returncode == 0, done.stderr
    elsewhere = [s for s in hub.seen if s.path.startswith("/cdn/")]
    assert elsewhere
    assert all(s.authorization is None for s in elsewhere)
    assert "hf_mine" not in done.stdout + done.stderr


def test_a_missing_model_is_said_to_be_missing(hub: FakeHub, tmp_path: Path) -> None:
    done = pull(hub, tmp_path, repo="org/none")
    assert done.returncode == 77
    assert "There is no" in done.stderr
    assert "Traceback" not in done.stderr


def test_without_a_network_it_says_so(hub: FakeHub, tmp_path: Path) -> None:
    done = pull(hub, tmp_path, HF_ENDPOINT="http://127.0.0.1:9")
    assert done.returncode == 69
    assert "cannot be reached" in done.stderr
    assert "Traceback" not in done.stderr
    offline = pull(hub, tmp_path, HF_HUB_OFFLINE="1")
    assert offline.returncode == 69
    assert "HF_HUB_OFFLINE" in offline.stderr


def test_a_repository_without_safetensors_names_what_it_has(hub: FakeHub, tmp_path: Path) -> None:
    hub.repos["org/name"] = Repo({"config.json": b"{}", "model.gguf": b"g"})
    done = pull(hub, tmp_path)
    assert done.returncode == 1
    assert ".gguf" in done.stderr


def test_a_folder_that_was_not_pulled_is_left_alone(hub: FakeHub, tmp_path: Path) -> None:
    own = models(tmp_path) / "org" / "name"
    own.mkdir(parents=True)
    (own / "config.json").write_text("mine")
    done = pull(hub, tmp_path)
    assert done.returncode == 1
    assert "Move it away" in done.stderr
    assert (own / "config.json").read_text() == "mine"
