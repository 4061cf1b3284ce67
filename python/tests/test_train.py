"""A worker and a controller: what is said, and what happens when one of them ends."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from penstock import _control, _metrics, _state, train
from penstock._errors import Invalid, Unsupported

from conftest import Served
from controller import Controller


@pytest.fixture
def controller() -> Iterator[Controller]:
    with Controller() as c:
        yield c


def run(c: Controller, script: str, rank: int = 0, **env: str) -> tuple[str, str]:
    """Output and stderr of a worker that must end well."""
    p = c.start("import penstock\n" + script, rank, **env)
    out, err = p.communicate(timeout=60)
    assert p.returncode == 0, err
    return out, err


def test_context(controller: Controller) -> None:
    controller.welcome.update(config={"lr": 0.1, "deep": {"a": [1]}}, data={"val": {"socket": "/x", "eval": True}, "train": {"socket": "/y"}},
                              checkpoint=3, metrics={"loss": "NaN", "acc": 0.5}, reports=12, attempt=2)  # fmt: skip
    out, _ = run(controller, "import dataclasses, json; print(json.dumps(dataclasses.asdict(penstock.get_context()))); print(penstock.get_config()['lr'], penstock.preempted())")
    first, second = out.splitlines()
    c = json.loads(first)
    assert math.isnan(c["metrics"].pop("loss"))
    assert c == {
        "rank": 0, "world_size": 1, "local_rank": 0, "local_world_size": 1, "node_rank": 0, "nodes": 1, "run": "test", "storage": "file:///runs/test", "attempt": 2,
        "devices": [], "config": {"lr": 0.1, "deep": {"a": [1]}}, "data": ["train", "val"], "checkpoint": 3, "metrics": {"acc": 0.5},
    }  # fmt: skip
    assert second == "0.1 False"
    (hello,) = controller.said("hello")
    assert hello["version"] == 2 and hello["run"] == "test" and hello["attempt"] == 1 and hello["rank"] == 0 and hello["pid"] > 0
    assert hello["client"].startswith("python ")
    controller.wait(lambda: controller.heard[-1][1] == "eof")
    assert controller.said("done") == [{}]


def test_reports_count_on(controller: Controller, tmp_path: Path) -> None:
    controller.welcome["reports"] = 7
    (tmp_path / "model").write_text("x")
    controller.on_report = lambda rank, m: {"n": m["n"], "checkpoint": 4 if m.get("dir") else 0}
    run(controller, "penstock.report({'loss': float('nan'), 'a': float('inf'), 'b': -float('inf'), 'c': 1})\npenstock.report({}, checkpoint='.')\npenstock.report()\nimport os; os.chdir('/')",
        PWD=str(tmp_path))  # fmt: skip
    a, b, c = controller.said("report")
    assert 0 < a.pop("at") < b["at"] < c.pop("at")
    assert a == {"n": 8, "metrics": {"loss": "NaN", "a": "Infinity", "b": "-Infinity", "c": 1}}
    assert b["n"] == 9 and Path(b["dir"]).is_absolute() and c == {"n": 10, "metrics": {}}


@pytest.mark.parametrize("metrics", [{"a": math.nan, "b": math.inf, "c": -math.inf, "d": -0.0, "e": 1e-300, "f": 1e16, "g": 1e22, "\u00e4 100 %s \"\\\n": 0.1}, {}])
def test_metrics_come_back(metrics: dict[str, float]) -> None:
    back = _metrics.decode(json.loads("{" + _metrics.form(tuple(metrics)) % _metrics.values(metrics) + "}"))
    assert {k: repr(v) for k, v in back.items()} == {k: repr(v) for k, v in metrics.items()}


def test_what_metrics_may_be() -> None:
    torch = pytest.importorskip("torch")
    for v, want in [(1, 1), (True, 1), (np.float32(0.5), 0.5), (np.float64(0.1), 0.1), (np.int8(3), 3), (np.bool_(True), 1), (np.array(2), 2), (np.array([2.5]), 2.5),
                    (torch.tensor(1.5, requires_grad=True), 1.5), (torch.tensor([[2]]), 2), (torch.tensor(True), 1), (torch.tensor(0.5, dtype=torch.bfloat16), 0.5)]:  # fmt: skip
        got = _metrics._number("m", v)
        assert type(got) is float and got == want, v
    for v in ("0.5", None, 1j, [1], {"a": 1}, np.zeros(2), np.zeros(0), torch.zeros(2), torch.tensor(1j), np.array("x"), 10**400, object()):
        with pytest.raises(TypeError, match="metric 'm' is .*metrics are numbers"):
            _metrics._number("m", v)
    for k in (1, "", None):
        with pytest.raises(TypeError, match="names are text"):
            train.report({k: 1.0})  # type: ignore[dict-item]
    for m in ([1], 0.5, "loss"):
        with pytest.raises(TypeError, match="metrics are a dict of numbers by name"):
            train.report(m)  # type: ignore[arg-type]


def test_what_is_no_metric_is_named() -> None:
    """By its shape, or a short form of itself. Names are quoted, and one with %s is no place for a value."""
    for v, want in [(np.zeros((2, 3)), "a ndarray of shape (2, 3)"), ("0.5", "'0.5' (str)"), ([1], "[1] (list)"), (100 * "x", "'" + 56 * "x" + "... (str)")]:
        with pytest.raises(TypeError) as e:
            _metrics.values({"a": 1.0, "m": v})
        assert str(e.value) == f"metric 'm' is {want}: metrics are numbers, or tensors of one element"
    assert _metrics.form(("a\"", "%s")) == '"a\\"":%s,"%%s":%s' and _metrics.form(()) == ""
    assert _metrics.values({"a": 1.5, "b": 2, "c": np.float64(0.1), "d": math.nan}) == (1.5, 2.0, 0.1, '"NaN"')
    assert _metrics.decode({"a": "Infinity", "b": 1}) == {"a": math.inf, "b": 1.0}


def test_what_is_wrong_with_a_directory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path, want in [(tmp_path / "no", "does not exist"), (tmp_path / "file", "is a file")]:
        with pytest.raises(Invalid, match=want):
            train.report({}, checkpoint=path)


def test_report_that_is_not_kept(controller: Controller) -> None:
    controller.on_report = lambda rank, m: {"n": m["n"], **({"error": {"code": "exhausted", "text": "no space left"}} if m["n"] == 2 else {})}
    out, _ = run(controller, """
penstock.report({'a': 1})
try:
    penstock.report({'a': 2})
except penstock.Exhausted as e:
    print(e.code, e)
penstock.report({'a': 3})
""")
    assert out == "exhausted report 2: no space left\n"
    assert [m["n"] for m in controller.said("report")] == [1, 2, 3]


def test_checkpoint(controller: Controller) -> None:
    out, _ = run(controller, "print(penstock.get_checkpoint())")
    assert out == "None\n" and controller.said("restore") == []
    controller.welcome["checkpoint"] = 5
    controller.on_restore = lambda rank: {"dir": "/cache/5"}
    out, _ = run(controller, "print(penstock.get_checkpoint() / 'm', penstock.get_checkpoint())")
    assert out == "/cache/5/m /cache/5\n" and controller.said("restore") == [{}]
    controller.on_restore = lambda rank: {"error": {"code": "corrupt", "text": "model.pt: its checksum differs"}}
    out, _ = run(controller, """
for _ in range(2):
    try:
        penstock.get_checkpoint()
    except penstock.Corrupt as e:
        print(e)
""")
    assert out == 2 * "checkpoint 5: model.pt: its checksum differs\n"


def test_the_controller_ends() -> None:
    """A loop must not go on training into nowhere: not in a report that waits, nor at the next call of any kind."""
    for call in ("penstock.report({})", "penstock.report({}, '.')", "penstock.alive()", "penstock.preempted()", "penstock.get_checkpoint()"):
        with Controller(checkpoint=1) as c:
            p = c.start(f"""
import penstock
penstock.report({{}})
print("ready", flush=True)
import math, select
from penstock import _control
s = _control.session()
select.select([s._sock], [], [])
s._alive_at = -math.inf  # it looks once a second
try:
    {call}
except penstock.Unavailable as e:
    print(e)
""")
            assert p.stdout is not None and p.stdout.readline() == "ready\n"
            c.close()
            out, err = p.communicate(timeout=60)
            assert "the controller of this run is gone" in out and p.returncode == 0, (call, out, err)


def test_the_controller_ends_while_a_report_waits() -> None:
    with Controller() as c:
        c.on_report = lambda rank, m: None
        p = c.start("import penstock\npenstock.report({})")
        c.wait(lambda: bool(c.said("report")))
        c.close()
        _, err = p.communicate(timeout=60)
        assert p.returncode == 1 and "penstock.Unavailable: the controller of this run is gone" in err


def test_nobody_listens(tmp_path: Path) -> None:
    c = Controller()
    c.close()
    p = c.start("import penstock\npenstock.get_context()")
    _, err = p.communicate(timeout=60)
    assert p.returncode == 1 and "does not answer" in err and "unset it to run without" in err


def test_refused(controller: Controller) -> None:
    controller.refuse = lambda rank, hello: {"code": "invalid", "text": "version 2 is spoken here"}
    p = controller.start("import penstock\npenstock.report({})")
    _, err = p.communicate(timeout=60)
    assert p.returncode == 1 and "penstock.Invalid: the controller of this run refuses this worker: version 2 is spoken here" in err


def test_given_up(controller: Controller) -> None:
    def give_up(rank: int, m: dict[str, Any]) -> None:
        controller.send(rank, {"refused": {"code": "stalled", "text": "no sign for 30m"}})

    controller.on_report = give_up
    p = controller.start("import penstock\npenstock.report({})")
    _, err = p.communicate(timeout=60)
    assert p.returncode == 1 and "Error: the controller gave this worker up: no sign for 30m" in err


@pytest.mark.parametrize("line, want", [
    (b"no json\n", "is damaged"), (b"[]\n", "is damaged"), (b'{"reported": {"n": 9}}\n', "answers report 9 where report 1 is due"),
    (b'{"restored": {}}\n', "says restored, which this release does not know"), (b'{"news": {}}\n', "says news, which this release does not know"), (b"{}\n", "says nothing"),
])  # fmt: skip
def test_a_controller_of_another_kind(controller: Controller, line: bytes, want: str) -> None:
    def answer(rank: int, m: dict[str, Any]) -> None:
        controller.connections[rank].sendall(line)

    controller.on_report = answer
    p = controller.start("import penstock\npenstock.report({})")
    _, err = p.communicate(timeout=60)
    assert p.returncode == 1 and "penstock.Corrupt" in err and want in err


def test_how_a_worker_ends(controller: Controller) -> None:
    """Its error reaches the controller with the stack; who catches it, or ends with a code, has none."""
    p = controller.start("import penstock\npenstock.get_context()\ndef f():\n    raise ValueError('loss is not finite')\nf()")
    _, err = p.communicate(timeout=60)
    assert p.returncode == 1 and "ValueError: loss is not finite" in err
    controller.wait(lambda: controller.heard[-1][1] == "eof")
    (done,) = controller.said("done")
    assert done["error"]["code"] == "user_code" and done["error"]["text"] == "ValueError: loss is not finite"
    assert "in f" in done["error"]["trace"]

    controller.on_report = lambda rank, m: {"n": 1, "error": {"code": "denied", "text": "the bucket"}}
    controller.heard.clear()
    controller.start("import penstock\npenstock.report({})").communicate(timeout=60)
    controller.wait(lambda: bool(controller.heard) and controller.heard[-1][1] == "eof")
    assert controller.said("done")[0]["error"]["code"] == "denied"

    controller.heard.clear()
    p = controller.start("import penstock, sys\npenstock.get_context()\nsys.exit(3)")
    p.communicate(timeout=60)
    controller.wait(lambda: bool(controller.heard) and controller.heard[-1][1] == "eof")
    assert p.returncode == 3 and controller.said("done") == [{}]


def test_processes_that_a_worker_starts(controller: Controller) -> None:
    script = """
import os, subprocess, sys, penstock
def child():
    for call in (penstock.get_context, penstock.report, penstock.shard, penstock.get_checkpoint, penstock.preempted):
        try:
            call()
        except penstock.Unsupported as e:
            print(str(e)[:13], "was started by worker" in str(e), flush=True)
if len(sys.argv) > 1:
    child()
    sys.exit()
penstock.report({})
pid = os.fork()
if pid == 0:
    child()
    sys.exit()
os.waitpid(pid, 0)
subprocess.run([sys.executable, "-c", SCRIPT, "child"], check=True)
penstock.report({})
"""
    out, _ = run(controller, f"SCRIPT = {script!r}\n" + script)
    assert out == 10 * "this process  True\n"
    controller.wait(lambda: controller.heard[-1][1] == "eof")
    assert len(controller.said("report")) == 2 and controller.said("done") == [{}] and len(controller.said("hello")) == 1


AHEAD = """
import penstock
from penstock import _control
from penstock._state import Place
class Shard:
    eval = noticed = False
    given = None
    def place(self):
        return Place({"epoch": 0, "step": 1}, None)
_control.opened["train"] = Shard()
"""


def test_reports_are_not_waited_for(controller: Controller) -> None:
    """With data, reports without files return when they are sent, up to 64 of them; an error is that of a later call, and the process does not end before all are answered."""
    controller.on_report = lambda rank, m: None
    p = controller.start(AHEAD + "for i in range(70): penstock.report({}); print(i, flush=True)")
    controller.wait(lambda: len(controller.said("report")) == 65)
    assert [r["n"] for r in controller.said("report")] == list(range(1, 66))

    for n in range(1, 71):
        controller.wait(lambda: len(controller.said("report")) >= n)
        controller.send(0, {"reported": {"n": n}})
    out, err = p.communicate(timeout=60)
    assert p.returncode == 0, err
    assert len(out.split()) == 70 and len(controller.said("report")) == 70


def test_what_reports_say_of_the_data(controller: Controller) -> None:
    """Where it stands; with files the state as well. States are not made of what nobody asked for."""
    run(controller, AHEAD + """
class Counted(Place):
    made = 0
    def state(self):
        Counted.made += 1
        return {"version": 1, "epoch": 3, "step": 4}
_control.session().positions["train"] = lambda: Counted({"epoch": 3, "step": 4}, None)
penstock.report({})
assert Counted.made == 0
penstock.report({}, "/")
assert Counted.made == 1
""")
    light, files = controller.said("report")
    assert light["data"] == {"train": {"epoch": 3, "step": 4}}
    assert files["data"] == {"train": {"epoch": 3, "step": 4, "state": _state.summed({"version": 1, "epoch": 3, "step": 4})}}


def test_reports_like_those_before(controller: Controller, serve: Callable[..., Served], spec: Callable[[str], Path]) -> None:
    """Nearly all reports are made in a short way: they say what the long one says, in every place of an epoch, whatever the metrics are, and whichever data sets are opened meanwhile."""
    text = "version: 1\nsource: {range: {n: 50}}\nshards: {global_batch: 8, seed: 5, columns: {id: int64}}\n"
    train, val = (serve(spec(text)).socket for _ in range(2))
    controller.welcome["data"] = {"train": {"socket": train}, "val": {"socket": val, "eval": True}}
    begin = time.time_ns()
    out, _ = run(controller, """
import json
from penstock import _control
places, short, again = [], 0, _control.Session.again
def counted(self, metrics):
    global short
    made = again(self, metrics)
    short += made
    return made
_control.Session.again = counted
def report(m):
    places.append(shard.place().at())
    penstock.report(m)
shard = penstock.shard("train")
for epoch in range(3):
    for i, b in enumerate(shard.iter_batches()):
        report({"a": 0.5, "%": float(i)})
        if i == 2:
            report({"a": 1e300, "%": -0.25})
            report({"a": float("nan"), "%": 1.0})
            report({"%": 1.0, "a": 2.0})
            report({"%": 1, "a": 2.0})
            report({"%": 3.0, "a": 2.5})
            report({})
        if epoch == 1 and i == 3:
            penstock.shard("val")
    report({"a": 0.5, "%": 7.0})
    report({"a": 0.5, "%": 8.0})
state = shard.state_dict()
_control.session().positions["train"] = lambda: shard.place()
report({"a": 0.5, "%": 8.0})
report({"a": 0.5, "%": 9.0})
print(json.dumps([places, short]))
""")
    places, short = json.loads(out)
    got = controller.said("report")
    assert [(r["data"]["train"]["epoch"], r["data"]["train"]["step"]) for r in got] == [tuple(p) for p in places]
    assert [r["n"] for r in got] == list(range(1, len(places) + 1))
    want = []
    for _ in range(3):
        for i in range(6):
            want.append({"a": 0.5, "%": float(i)})
            if i == 2:
                want += [{"a": 1e300, "%": -0.25}, {"a": "NaN", "%": 1.0}, {"%": 1.0, "a": 2.0}, {"%": 1.0, "a": 2.0}, {"%": 3.0, "a": 2.5}, {}]
        want += [{"a": 0.5, "%": 7.0}, {"a": 0.5, "%": 8.0}]
    want += [{"a": 0.5, "%": 8.0}, {"a": 0.5, "%": 9.0}]
    assert [r["metrics"] for r in got] == want
    assert [list(r["metrics"]) for r in got] == [sorted(w) if "quiet" in r else list(w) for r, w in zip(got, want)]  # in the pipe they have no names
    assert sum("quiet" in r for r in got) == short
    times = [r["at"] for r in got]
    assert times == sorted(times) and begin <= times[0] and times[-1] <= time.time_ns()
    assert 15 <= short < len(want) - 15, (short, len(want))


SHORT = AHEAD.replace("given = None", "given = type('Item', (), {'epoch': 0, 'step': 0})()")


def test_reports_of_other_mappings(controller: Controller) -> None:
    """What is no plain dict may have other values than those of its items, or make them."""
    out, _ = run(controller, SHORT + """
from collections import Counter, defaultdict
d = defaultdict(float, b=7.0)
for m in ({"a": 1.0}, {"a": 2.0}, d, Counter(b=5), {"b": 1.0}): penstock.report(m)
print(dict(d))
""")
    assert [r["metrics"] for r in controller.said("report")] == [{"a": 1.0}, {"a": 2.0}, {"b": 7.0}, {"b": 5.0}, {"b": 1.0}]
    assert out == "{'b': 7.0}\n"


def test_threads_report_what_they_mean(controller: Controller) -> None:
    """Each report has the metrics that it was given, whatever other threads report beside it."""
    run(controller, SHORT + """
import sys, threading
sys.setswitchinterval(1e-5)
ts = [threading.Thread(target=lambda m=m: [penstock.report(m) for _ in range(300)]) for m in ({"a": 1.0}, {"b": 2.0}, {"c": 3.0, "d": 4.0})]
[t.start() for t in ts]; [t.join() for t in ts]
""")
    got = [json.dumps(r["metrics"], sort_keys=True) for r in controller.said("report")]
    assert [r["n"] for r in controller.said("report")] == list(range(1, 901))
    assert sorted(set(got)) == ['{"a": 1.0}', '{"b": 2.0}', '{"c": 3.0, "d": 4.0}'] and all(got.count(g) == 300 for g in set(got))


def test_descriptors_that_the_script_closes(controller: Controller, tmp_path: Path) -> None:
    """A script that closes what it did not open gets an error. Nothing is written into the files that it opens after."""
    p = controller.start(SHORT + f"""
import os
for _ in range(3): penstock.report({{"a": 1.0}})
os.closerange(3, 64)
files = [open(f"{tmp_path}/{{i}}", "wb") for i in range(8)]
try:
    for _ in range(3): penstock.report({{"a": 1.0}})
except penstock.Unavailable as e:
    print(e)
print([os.path.getsize(f.name) for f in files], flush=True)
os._exit(0)
""")
    out, err = p.communicate(timeout=60)
    assert "the controller of this run is gone" in out and str([0] * 8) in out, (out, err)


def test_a_session_that_fails_leaves_nothing(controller: Controller) -> None:
    p = controller.start("""
import os, penstock
n = len(os.listdir("/proc/self/fd"))
for _ in range(5):
    try: penstock.get_context()
    except penstock.Invalid: pass
print(len(os.listdir("/proc/self/fd")) - n)
""", RANK="x")
    assert p.communicate(timeout=60)[0] == "0\n"


@pytest.mark.parametrize("piece", [1, 7, 1 << 20])
def test_lines_in_pieces(controller: Controller, piece: int) -> None:
    """What the controller says arrives as it likes: in pieces, several lines at once."""

    def answer(rank: int, m: dict[str, Any]) -> None:
        if m["n"] == 9:
            text = b"".join(json.dumps(x).encode() + b"\n" for x in [*({"reported": {"n": n}} for n in range(1, 9)), {"preempt": {"reason": "\u00e4", "grace": 1, "report": 2}}, {"reported": {"n": 9, "checkpoint": 5}}])
            for i in range(0, len(text), piece):
                controller.connections[rank].sendall(text[i : i + piece])

    controller.on_report = answer
    out, _ = run(controller, AHEAD + "s = _control.session()\nfor i in range(8): penstock.report({})\nprint(s.report((), (), '/'), s._answered, s.preempt.reason, len(s._buf))")
    assert out == "5 9 \u00e4 0\n"


def test_an_error_is_that_of_a_later_report(controller: Controller) -> None:
    def answer(rank: int, m: dict[str, Any]) -> None:
        error = {"error": {"code": "invalid", "text": "not kept"}} if m["n"] == 1 else {}
        controller.send(rank, {"reported": {"n": m["n"], **error}})

    controller.on_report = answer
    p = controller.start(AHEAD + "for i in range(1000): penstock.report({})")
    _, err = p.communicate(timeout=60)
    assert p.returncode == 1 and "Invalid: report 1: not kept" in err and len(controller.said("report")) <= 65  # the 66th waits for the first's answer


def test_threads_report_one_after_another(controller: Controller) -> None:
    run(controller, """
import threading
import time
ts = [threading.Thread(target=lambda: [penstock.report({'x': 1}) for _ in range(50)]) for _ in range(4)]
[t.start() for t in ts]; [t.join() for t in ts]
""")
    assert [m["n"] for m in controller.said("report")] == list(range(1, 201))


def test_preemption_without_data(controller: Controller) -> None:
    """It counts from the report that the notice names, on every rank."""

    def answer(rank: int, m: dict[str, Any]) -> dict[str, Any]:
        if m["n"] == 2:
            controller.send(rank, {"preempt": {"reason": "SIGTERM", "grace": 30, "report": 4}})
        return {"n": m["n"]}

    controller.on_report = answer
    out, _ = run(controller, "for i in range(6):\n    penstock.report({})\n    print(int(penstock.preempted()), end='')")
    assert out == "000111"


def test_preemption_with_data(controller: Controller) -> None:
    """Where training data sets are open it counts from the batch that carries it. Evaluation ones do not matter."""
    out, _ = run(controller, """
from types import SimpleNamespace as S
from penstock import _control, _state
s = _control.session()
a, b, val = S(eval=False, noticed=False), S(eval=False, noticed=False), S(eval=True, noticed=True)
_control.opened.update(a=a, b=b, val=val)
a.place = b.place = lambda: _state.Place({"epoch": 2, "step": 5}, None)
penstock.report({})
penstock.report({})
print(penstock.preempted())
b.noticed = True
print(penstock.preempted())
""")
    assert out == "False\nTrue\n"
    for m in controller.said("report"):
        assert m["data"] == {"a": {"epoch": 2, "step": 5}, "b": {"epoch": 2, "step": 5}}


def test_alive(controller: Controller) -> None:
    """Once a second at most, whoever says it."""
    out, _ = run(controller, """
import time
from penstock import _control
now = [100.0]
_control.time = type("clock", (), {"monotonic": staticmethod(lambda: now[0])})
s = _control.session()
for i in range(50):
    s.alive(i + 1)
    now[0] += 0.125
""")
    controller.wait(lambda: controller.heard[-1][1] == "eof")
    assert [m.get("step") for m in controller.said("alive")] == [1, 9, 17, 25, 33, 41, 49]


def test_stacks(controller: Controller) -> None:
    """Asked for by a signal, which does not end the worker."""
    script = """
import penstock, sys, threading
def where_it_hangs():
    print("ready", flush=True)
    sys.stdin.readline()
penstock.get_context()
where_it_hangs()
"""
    p = subprocess.Popen([sys.executable, "-c", script], env={**controller.env()}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert p.stdout is not None and p.stdout.readline() == "ready\n"
    p.send_signal(signal.SIGQUIT)
    assert p.stderr is not None
    got = ""
    while "where_it_hangs" not in got:
        got += p.stderr.readline()
    p.communicate("\n", timeout=60)
    assert p.returncode == 0


def test_by_hand(tmp_path: Path) -> None:
    """Without a run everything works as a group of its own."""
    script = """
import penstock, sys
c = penstock.get_context()
print(c.rank, c.world_size, c.local_rank, c.run, penstock.get_checkpoint(), penstock.get_config(), penstock.preempted())
penstock.alive()
penstock.report({'a': 1})
penstock.report({'a': 1}, checkpoint='/')
"""
    for env, want, said in [({}, "0 1 0  None {} False", 1), ({"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}, "3 4 1  None {} False", 0)]:
        p = subprocess.run([sys.executable, "-c", script], env={"PYTHONPATH": str(Path(train.__file__).parents[1]), **env}, capture_output=True, text=True)
        assert p.returncode == 0 and p.stdout == want + "\n", p.stderr
        assert len(p.stderr.splitlines()) == said and (not said or "reports are not kept" in p.stderr)
    p = subprocess.run([sys.executable, "-c", script], env={"PYTHONPATH": str(Path(train.__file__).parents[1]), "RANK": "x"}, capture_output=True, text=True)
    assert p.returncode == 1 and "RANK is 'x' in the environment: a whole number is needed" in p.stderr


def test_device_and_model(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    m = torch.nn.Linear(1, 1)
    if not torch.cuda.is_available():
        assert train.get_device() == torch.device("cpu") and train.prepare_model(m) is m
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("MASTER_PORT", raising=False)
    with pytest.raises(Invalid, match="^MASTER_PORT must be set for a group of several workers"):
        train.prepare_model(m)
    monkeypatch.setattr(_control, "session", lambda: SimpleNamespace(welcome=SimpleNamespace(devices=())))
    assert train.get_device() == torch.device("cpu")
    monkeypatch.setattr(_control, "session", lambda: SimpleNamespace(welcome=SimpleNamespace(devices=("3",))))
    if torch.cuda.is_available():
        assert train.get_device() == torch.device("cuda:0")
    else:
        with pytest.raises(Unsupported, match="GPU 3 is leased to this worker, but this PyTorch .* finds no CUDA"):
            train.get_device()


def test_devices_of_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    """The processes of a step have the GPUs in turn."""
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    made: list[Any] = []
    monkeypatch.setattr(torch.cuda, "set_device", made.append)
    for number in range(4):
        monkeypatch.setenv("PENSTOCK_WORKER", str(number))
        assert train.get_device() == torch.device("cuda", number % 2)
    assert [d.index for d in made] == [0, 1, 0, 1]


def test_distributed() -> None:
    """Two workers with DDP: their gradients are averaged, and the group ends without a word."""
    pytest.importorskip("torch")
    script = """
import penstock, torch
torch.manual_seed(1)
model = penstock.prepare_model(torch.nn.Linear(2, 1), {"gradient_as_bucket_view": True})
rank = penstock.get_context().rank
x = torch.full((1, 2), float(rank))
model(x).sum().backward()
penstock.report({"g": model.module.weight.grad.sum()})
"""
    import socket

    with Controller(world=2) as c, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
        free.close()
        ps = [c.start(script, rank, MASTER_PORT=port) for rank in range(2)]
        for p in ps:
            _, err = p.communicate(timeout=120)
            assert p.returncode == 0 and err == "", err
        assert [m["metrics"] for m in c.said("report")] == 2 * [{"g": 1.0}]
        c.wait(lambda: len(c.said("eof")) == 2)
        assert c.said("done") == [{}, {}]


def test_messages_have_a_limit(controller: Controller) -> None:
    p = controller.start("import penstock\npenstock.report({str(i) + 100 * 'x': 0.5 for i in range(200000)})")
    _, err = p.communicate(timeout=60)
    assert p.returncode == 1 and "penstock.Invalid: a message of" in err


def test_a_user_handles_the_signal(controller: Controller) -> None:
    out, _ = run(controller, "import signal\nf = lambda *_: None\nsignal.signal(signal.SIGQUIT, f)\npenstock.get_context()\nprint(signal.getsignal(signal.SIGQUIT) is f)")
    assert out == "True\n"


def test_threads_of_a_worker_end_with_it(controller: Controller) -> None:
    """The reader is no reason to stay."""
    before = threading.active_count()
    run(controller, "penstock.get_context()")
    assert threading.active_count() <= before + 2
