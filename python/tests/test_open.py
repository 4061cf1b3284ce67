"""penstock.open: the binary as a child, and penstock.shard: a data set of a run."""

from __future__ import annotations

import os
import signal
import stat
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import fake
import penstock
from conftest import Served
from penstock import _control, _folder, _open, _process

Spec = Callable[[str], Path]

RANGE = "version: 1\nsource: {range: {n: 1000}}\nshards: {global_batch: 64, seed: 1, tail: pad, columns: {id: int64}}\n"


@pytest.fixture(params=["feedserver", "penstock"])
def binary(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both serve, and the client cannot tell."""
    path: str = request.getfixturevalue(f"{request.param}_bin")
    if request.param == "penstock" and "penstock data" not in subprocess.run([path, "data", "--help"], capture_output=True, text=True).stdout:
        pytest.skip("this binary has no command data")
    monkeypatch.setenv("PENSTOCK_BINARY", path)
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    return path


def server_of(s: penstock.Shard) -> _process.Server:
    (server,) = [x for x in _process._servers if x.socket == s._feed.path]
    return server


def test_open(binary: str, spec: Spec) -> None:
    path = spec(RANGE)
    with penstock.open(path) as s:
        server = server_of(s)
        folder = Path(server.socket).parent
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700 and len(s) == 16
        ids = [i for b in s.iter_batches() for i in b["id"][: b.real].tolist()]
        assert sorted(ids) == list(range(1000)) and s.epoch == 1
    assert not folder.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(server.pid, 0)
    with pytest.raises(penstock.Invalid, match="closed"):
        next(s.iter_batches())


def test_named_like_a_flag(binary: str, spec: Spec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A spec whose name is that of a flag is a spec."""
    (tmp_path / "--trust").write_bytes(Path(spec(RANGE)).read_bytes())
    monkeypatch.chdir(tmp_path)
    with penstock.open("--trust") as s:
        assert next(iter(s.iter_batches())) is not None


def test_looks(binary: str, spec: Spec) -> None:
    """A shard names what the user named, a batch its columns; a shard itself is no iterable, and says what is."""
    path = spec(RANGE)
    with penstock.open(path) as s:
        assert repr(s) == f"<penstock.Shard {str(path)!r}, rank 0, epoch 0, step 0>"
        for loop in (iter, list, lambda s: [b for b in s]):
            with pytest.raises(TypeError, match=r"shard\.iter_batches\(\)"):
                loop(s)
        b = next(s.iter_batches())
        assert repr(b) == str(b) == "<penstock.Batch epoch 0, step 0, 64 rows: {'id': int64 [64], 'mask': bool [64]}>"
        assert s.step == 1 and repr(s.last) == "<penstock.Batch epoch 0, step 0, 64 rows: {}>"
        assert repr(penstock.Batch(a=[1])) == "<penstock.Batch {'a': list}>"


def test_ranks_and_overrides(binary: str, spec: Spec, monkeypatch: pytest.MonkeyPatch) -> None:
    path = spec(RANGE)
    rows = []
    for rank in range(3):
        with penstock.open(path, rank, 3, shards={"global_batch": 99, "shuffle": "none"}, prefetch=1) as s:
            assert s.rank == rank
            rows.append([b["id"].tolist() for b in s.iter_batches()])
    assert rows[0][0] + rows[1][0] + rows[2][0] == list(range(99))
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "3")
    with penstock.open(path, shards={"global_batch": 99, "shuffle": "none"}) as s:
        assert next(s.iter_batches())["id"].tolist() == list(range(33, 66))
    monkeypatch.setenv("RANK", "3")
    with pytest.raises(penstock.Invalid, match="rank 3 of 3"):
        penstock.open(path)
    monkeypatch.setenv("RANK", "one")
    with pytest.raises(penstock.Invalid, match="RANK is 'one'"):
        penstock.open(path)


def test_states(binary: str, spec: Spec) -> None:
    """A state may be loaded at any time; the child is started again for it."""
    with penstock.open(spec(RANGE)) as s:
        it = s.iter_batches()
        next(it)
        saved = s.state_dict()
        want = [b["id"].tolist() for b in it]
        first = server_of(s).pid
        s.load_state_dict(saved)
        assert s.step == 1 and [b["id"].tolist() for b in s.iter_batches()] == want
        assert server_of(s).pid != first
        with pytest.raises(penstock.Corrupt, match="sum"):
            s.load_state_dict({**saved, "step": 2})
    assert not [x for x in _process._servers if x.socket == s._feed.path and x._child.returncode is None]


def test_errors(binary: str, spec: Spec, tmp_path: Path) -> None:
    with pytest.raises(penstock.NotFound, match="no such spec"):
        penstock.open(tmp_path / "none.yaml")
    with pytest.raises(penstock.Invalid, match="global_batch"):
        penstock.open(spec(RANGE.replace("global_batch: 64", "global_batch: -1")))
    with pytest.raises(penstock.Invalid, match="shards.nothing"):
        penstock.open(spec(RANGE), shards={"nothing": 1})
    with pytest.raises(penstock.NotFound, match="none.parquet"):
        penstock.open(spec(RANGE.replace("range: {n: 1000}", "parquet: {paths: [none.parquet]}")))


def test_killed_child(binary: str, spec: Spec) -> None:
    with penstock.open(spec(RANGE)) as s:
        it = s.iter_batches()
        next(it)
        os.kill(server_of(s).pid, signal.SIGKILL)
        with pytest.raises(penstock.Unavailable, match=r"was ended by SIGKILL"):
            list(it)
        state = s.state_dict()
        s.load_state_dict(state)  # and on with another
        assert next(s.iter_batches()).step == state["step"]


def test_errors_are_not_printed_besides(binary: str, spec: Spec, capfd: pytest.CaptureFixture[str]) -> None:
    """Neither that of a spec that is wrong, nor that of a job which fails while its batches are made."""
    with pytest.raises(penstock.Invalid, match="global_batch"):
        penstock.open(spec(RANGE.replace("global_batch: 64", "global_batch: -1")))
    with penstock.open(spec(RANGE.replace("shards:", "steps: [{with_columns: {id: 'cast(id, \"uint8\")'}}]\nshards:").replace("columns: {id: int64}", "columns: {id: uint8}"))) as s:
        with pytest.raises(penstock.Error, match="cast|uint8"):
            list(s.iter_batches())
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("how", ["end", "raise"])
@pytest.mark.parametrize("which", ["open", "shard"])
def test_nothing_is_printed_at_exit(which: str, how: str, penstock_bin: str, spec: Spec) -> None:
    """A shard of a module that is never closed outlives the names of its own modules, as they are cleared when the interpreter ends."""
    program = """
import atexit, sys
def clear():
    for name, module in list(sys.modules.items()):
        if name.startswith("penstock."):
            for n in [n for n in vars(module) if not n.startswith("__")]:
                setattr(module, n, None)
atexit.register(clear)  # first, so that it runs last

from types import SimpleNamespace
import penstock
from penstock import _control, _process
if sys.argv[2] == "open":
    train = penstock.open(sys.argv[1])
else:
    server = _process.Server(sys.argv[1], [], 1, 0)
    _control.session = lambda: SimpleNamespace(rank=0, data={"train": {"socket": server.socket}}, alive=lambda step: None)
    train = penstock.shard()
batch = next(train.iter_batches())
if sys.argv[3] == "raise":
    raise ValueError("of the loop")
"""
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), "PENSTOCK_BINARY": penstock_bin}
    p = subprocess.run([sys.executable, "-c", program, str(spec(RANGE)), which, how], env=env, capture_output=True, text=True, timeout=60)
    assert p.stdout == "" and p.returncode == (how == "raise")
    if how == "end":
        assert p.stderr == ""
    else:
        assert p.stderr.startswith("Traceback") and p.stderr.endswith("\nValueError: of the loop\n")


def test_child_ends_with_its_parent(binary: str, spec: Spec) -> None:
    """Also where the parent is killed, and a fork of it lives on."""
    program = """
import os, sys, time, penstock
from penstock import _process
s = penstock.open(sys.argv[1])
next(s.iter_batches())
(server,) = _process._servers
if os.fork() == 0:
    if server._child.stdin.closed and s._feed._sock.fileno() == -1:
        print(server.pid, flush=True)
    else:
        print("the fork keeps the data process", flush=True)
time.sleep(60)
"""
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    p = subprocess.Popen([sys.executable, "-c", program, str(spec(RANGE))], env=env, stdout=subprocess.PIPE, start_new_session=True)
    assert p.stdout is not None
    pid = int(p.stdout.readline())
    fd = os.pidfd_open(pid)
    p.kill()
    p.wait()
    import select

    assert select.select([fd], [], [], 30)[0], "the data process outlives its parent"
    os.close(fd)
    p.stdout.close()
    os.killpg(p.pid, signal.SIGKILL)  # the fork


@pytest.mark.parametrize("by", ["penstock.open", "penstock train"])
def test_folder_of_a_killed_process(by: str, penstock_bin: str, spec: Spec, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is removed by whoever makes the next one in the same place; that of a process that lives is not. A fork of the killed one holds nothing."""
    program = "import os, sys, time, penstock; s = penstock.open(sys.argv[1]); os.fork() and print(s._feed.path, flush=True); time.sleep(600)"
    path = spec(RANGE)
    with tempfile.TemporaryDirectory(prefix="ps-") as base:  # a short one: it is for sockets
        monkeypatch.setenv("XDG_RUNTIME_DIR", base)
        monkeypatch.setenv("PENSTOCK_BINARY", penstock_bin)

        def another() -> None:
            if by == "penstock.open":
                penstock.open(path).close()
            else:
                subprocess.run([penstock_bin, "train", path, "--storage", f"{base}/runs", "--", "true"], check=True, capture_output=True)

        env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
        p = subprocess.Popen([sys.executable, "-c", program, str(path)], env=env, stdout=subprocess.PIPE, start_new_session=True)
        assert p.stdout is not None
        try:
            folder = Path(p.stdout.readline().decode().strip()).parent
            another()
            assert folder.is_relative_to(base) and folder.is_dir()
            p.kill()
            p.wait()
            assert folder.is_dir()
            another()
            assert not folder.exists()
        finally:
            os.killpg(p.pid, signal.SIGKILL)
            p.wait()
            p.stdout.close()


def test_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what has the name of a folder of ours, those go that nobody holds: not files, not links, not one that is just being made."""
    names = [tmp_path / f"{_folder.NAME}{n}" for n in ("left", "new", "old", "file", "link")]
    left, new, old, file, link = names
    for folder in (left, new, old):
        folder.mkdir()
        (folder / "kept").write_text("")
    (left / "lock").touch()
    os.utime(old, (0, 0))
    file.touch()
    os.utime(file, (0, 0))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "lock").touch()
    link.symlink_to(tmp_path / "elsewhere")
    with _folder.Folder(str(tmp_path)) as one, _folder.Folder(str(tmp_path)) as two:
        assert [p.exists() for p in names] == [False, True, False, True, True]
        assert Path(one.path).is_dir() and one.path != two.path and (tmp_path / "elsewhere" / "lock").exists()
        assert stat.S_IMODE(os.stat(one.path).st_mode) == 0o700
    assert not os.path.exists(one.path) and not os.path.exists(two.path)

    # One that is swept before it is locked is given up for another.
    lock = _folder._lock
    swept: list[str] = []

    def late(path: str) -> int | None:
        if not swept:
            swept.append(path)
            os.utime(path, (0, 0))
            _folder._sweep(str(tmp_path))
        return lock(path)

    monkeypatch.setattr(_folder, "_lock", late)
    with _folder.Folder(str(tmp_path)) as three:
        assert Path(three.path).is_dir() and three.path not in swept


def test_binary(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, spec: Spec) -> None:
    monkeypatch.setenv("PENSTOCK_BINARY", str(tmp_path))
    with pytest.raises(penstock.NotFound, match="which is no program"):
        _process.binary()
    monkeypatch.delenv("PENSTOCK_BINARY")
    monkeypatch.setenv("PATH", str(tmp_path))
    own = Path(_process.__file__).parent / "_bin" / "penstock"
    if not own.exists():
        with pytest.raises(penstock.NotFound, match="install the wheel"):
            _process.binary()
        fake = tmp_path / "penstock"
        fake.write_text("#!/bin/sh\n")
        fake.chmod(0o755)
        assert _process.binary() == str(fake)
        with pytest.raises(penstock.NotFound):
            _process.binary(path=False)
    for script, text in (
        ("#!/bin/sh\nexit 3\n", "ended with exit code 3"),
        ("#!/bin/sh\nkill -9 $$\n", "SIGKILL: out of memory, perhaps"),
        ("#!/bin/sh\necho hello\n", "it says 'hello'"),
        ("#!/bin/sh\necho '[1]'\n", "it says"),
        ("not a program\x00", "cannot be started"),
    ):
        program = tmp_path / "program"
        program.write_text(script)
        program.chmod(0o755)
        monkeypatch.setenv("PENSTOCK_BINARY", str(program))
        with pytest.raises(penstock.Unavailable, match=text):
            penstock.open(spec(RANGE))


def test_long_folder(binary: str, spec: Spec, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An address has room for 103 bytes: a folder that is too long is passed over."""
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(long))
    with penstock.open(spec(RANGE)) as s:
        assert not s._feed.path.startswith(str(long))
        next(s.iter_batches())


def test_shard_of_a_run(serve: Callable[..., Served], spec: Spec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_control, "opened", {})
    monkeypatch.setattr(_control, "session", lambda: None)
    with pytest.raises(penstock.Invalid, match="no worker of a run"):
        penstock.shard()
    steps: list[Any] = []
    data = {"train": {"socket": serve(spec(RANGE), 2).socket}, "val": {"socket": serve(spec(RANGE), 2).socket, "eval": True}}
    session = SimpleNamespace(rank=1, data=data, alive=steps.append)
    monkeypatch.setattr(_control, "session", lambda: session)
    with pytest.raises(penstock.NotFound, match="no data set 'test' in this run; it has: train, val"):
        penstock.shard("test")

    def other() -> None:  # rank 0
        with penstock.connect(data["train"]["socket"], 0) as s:
            list(s.iter_batches())

    t = threading.Thread(target=other)
    t.start()
    s, v = penstock.shard(), penstock.shard("val")
    assert repr(s) == "<penstock.Shard 'train', rank 1, epoch 0, step 0>"
    assert penstock.shard("train") is s and s.rank == 1 and v.eval and not s.eval and _open.opened() == {"train": s, "val": v}
    list(s.iter_batches())
    assert steps == list(range(1, 17))
    s.close()
    v.close()
    t.join()
    assert _open.opened() == {}


def test_evaluation_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that opens an evaluation set again waits for those that have not closed it yet."""
    ring, calls = fake.Ring(), [0]

    def script(p: fake.Peer) -> None:
        calls[0] += 1
        if calls[0] in (2, 3):
            p.send(struct.pack("<8sH", b"penstock", 3), fake.frame(13, b"\x04rank 0 was given up by its consumer"))
            return
        p.welcome(ring)
        while p.frame()[0] not in (0, 4):
            pass

    monkeypatch.setattr(_control, "opened", {})
    with fake.Fake(tmp_path, script) as f:
        data = {"val": {"socket": f.path, "eval": True}, "train": {"socket": f.path}}
        monkeypatch.setattr(_control, "session", lambda: SimpleNamespace(rank=0, data=data, alive=lambda step: None))
        penstock.shard("val").close()
        penstock.shard("val").close()
        assert calls[0] == 4
        monkeypatch.setattr(_open, "_AGAIN", 0)
        calls[0] = 1
        with pytest.raises(penstock.Error, match="given up"):
            penstock.shard("val")
