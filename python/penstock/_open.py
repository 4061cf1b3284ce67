"""Ways to a shard: of the run that this process is a worker of, of a spec, of a socket."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from penstock import _control
from penstock._errors import Invalid, NotFound
from penstock._feed import Feed
from penstock._shard import Shard

_AGAIN = 300  # seconds that other ranks have to close an evaluation set


def opened() -> dict[str, Shard]:
    """The data sets of the run that :func:`shard` has opened in this process, by name, without those that were closed."""
    return {name: s for name, s in _control.opened.items() if not s.closed}


def shard(name: str = "train", *, prefetch: int | None = None) -> Shard:
    """This worker's shard of a data set of its run (``penstock train``, or a Go program that calls ``trainer.Command``).

    Called again with the same name it gives the same shard; an evaluation set that was closed is opened again, once all ranks have closed it. After a restart of the group it stands where the last checkpoint was committed.
    """
    known = _control.opened.get(name)
    if known is not None and not known.closed:
        known._feed.usable()
        return known
    session = _control.session()
    if session is None:
        raise Invalid("this process is no worker of a run: start it with penstock train, or take penstock.open(spec) or penstock.connect(socket)")
    data = session.data
    if name not in data:
        have = ", ".join(sorted(data)) or "none"
        raise NotFound(f"no data set {name!r} in this run; it has: {have}")
    of = data[name]
    # An evaluation set that was closed is free again once all ranks have closed it.
    feed = Feed(of["socket"], session.rank, wait=_AGAIN if of.get("eval") else 10.0, prefetch=prefetch)
    s = Shard(feed, name=name, eval=bool(of.get("eval")), alive=session.alive)
    _control.opened[name] = s
    return s


def connect(path: str | os.PathLike[str], rank: int = 0, *, wait: float = 10.0, prefetch: int | None = None) -> Shard:
    """The shard of a rank at the socket of a data process (``penstock data``, or ``feed.Serve`` in a Go program).

    It waits ``wait`` seconds for a socket that is not there yet.
    """
    return Shard(Feed(os.fspath(path), rank, wait=wait, prefetch=prefetch))


def open(
    spec: str | os.PathLike[str],
    rank: int | None = None,
    world_size: int | None = None,
    *,
    prefetch: int | None = None,
    trust: bool = False,
    endpoints: Iterable[str] = (),
    **overrides: Any,
) -> Shard:
    """The shard of a rank of a spec, anywhere: it starts the penstock binary as a child, which ends with this process or with the shard.

    ``rank`` and ``world_size`` default to RANK and WORLD_SIZE, as torchrun and ``penstock train`` set them, else to 0 and 1. ``overrides`` change keys of the spec as
    ``--set`` does: ``shards={"global_batch": 512}``, or ``**{"shards.global_batch": 512}``. Each process reads for itself; ``penstock train`` reads once for all ranks of a
    machine.

    ``trust`` and ``endpoints`` are ``--trust`` and ``--endpoint`` of the command line: whether a spec that others may have written does what it asks for, and servers that
    its URLs may name.
    """
    from penstock import _process

    rank = _number("RANK", 0) if rank is None else rank
    ranks = _number("WORLD_SIZE", 1) if world_size is None else world_size
    if not 0 <= rank < ranks:
        raise Invalid(f"rank {rank} of {ranks}: ranks are 0 to world_size - 1")
    sets = _process.settings(overrides)
    allowed = ["--trust"] if trust else []
    for server_url in endpoints:
        allowed += ["--endpoint", server_url]
    server: list[_process.Server] = []

    def start() -> Feed:
        while server:
            server.pop().close()
        server.append(_process.Server(spec, sets, ranks, rank, allowed))
        try:
            return Feed(server[0].socket, rank, prefetch=prefetch, explain=server[0].explain)
        except BaseException:
            end()
            raise

    def end() -> None:
        while server:
            server.pop().close()

    return Shard(start(), spec=os.fspath(spec), reopen=start, done=end)


def _number(name: str, default: int) -> int:
    text = os.environ.get(name, "")
    if not text:
        return default
    try:
        return int(text)
    except ValueError:
        raise Invalid(f"{name} is {text!r} in the environment, which is no number") from None
