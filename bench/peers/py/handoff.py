"""Batches of BYTES from one process to another: handoff.py CASE BYTES BATCHES WORKDIR [PEERS]. PEERS is the program whose data process Penstock's client takes them from.
The consumer looks at one byte of every page. The first batch is not in the rate."""
import os
import sys
import time

import peer
import numpy as np

case, size, count, work = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
f = {"bytes": 0, "batches": 0, "sum": 0, "steady_bytes": 0, "steady": 0}
began = None


def give(a):
    global began
    peer.first()
    a = np.asarray(a).view(np.uint8).reshape(-1)
    f["sum"] += int(a[::4000].sum(dtype=np.int64))
    f["bytes"] += len(a)
    f["batches"] += 1
    if began is None:
        began = time.perf_counter()
    else:
        f["steady_bytes"] += len(a)
        f["steady"] = time.perf_counter() - began


source = np.arange(size // 4, dtype=np.float32)


def loader(sharing):
    import torch
    import torch.multiprocessing
    from torch.utils.data import DataLoader, IterableDataset
    if sharing:
        torch.multiprocessing.set_sharing_strategy(sharing)

    class Batches(IterableDataset):
        def __iter__(self):
            for _ in range(count):
                yield torch.from_numpy(source.copy())

    peer.start()
    for t in DataLoader(Batches(), batch_size=None, num_workers=1):
        give(t.numpy())


def penstock():
    import subprocess
    import tempfile
    sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "python"))
    import penstock
    with tempfile.TemporaryDirectory() as folder:  # of mode 0700, and short: sockets have short names
        socket = os.path.join(folder, "s")
        server = subprocess.Popen([sys.argv[5], "case", "handoff", "serve", socket, str(size), str(count)], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        with penstock.connect(socket, wait=30) as shard:
            peer.start()
            for b in shard.iter_batches():
                give(b["x"])
        server.wait()


def ray_store():
    import logging
    import ray
    ray.init(num_cpus=os.cpu_count(), include_dashboard=False, logging_level=logging.ERROR, log_to_driver=False, object_store_memory=1 << 30)

    @ray.remote
    def produce(n):
        for _ in range(n):
            yield source.copy()

    peer.start()
    for ref in produce.options(num_returns="streaming", _generator_backpressure_num_objects=8).remote(count):
        give(ray.get(ref))


def flight_serve():
    import pyarrow as pa
    import pyarrow.flight as fl
    schema = pa.schema([("x", pa.float32())])

    class Server(fl.FlightServerBase):
        def do_get(self, context, ticket):
            batch = pa.record_batch([pa.array(source)], schema=schema)
            return fl.GeneratorStream(schema, (batch for _ in range(count)))

    Server("grpc+unix://" + work).serve()


def flight():
    import subprocess
    import pyarrow.flight as fl
    socket = os.path.join(work, f"flight{os.getpid()}.sock")
    server = subprocess.Popen([sys.executable, __file__, "flight_serve", str(size), str(count), socket], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    while not os.path.exists(socket):
        time.sleep(0.01)
    peer.start()
    for chunk in fl.connect("grpc+unix://" + socket).do_get(fl.Ticket(b"")):
        give(chunk.data.column(0).to_numpy())
    server.kill()


def shm():
    """A ring of 8 batches in shared memory and two semaphores, written by hand."""
    import multiprocessing
    from multiprocessing import shared_memory
    slots = 8
    context = multiprocessing.get_context("fork")
    ring = shared_memory.SharedMemory(create=True, size=slots * size)
    free, full = context.Semaphore(slots), context.Semaphore(0)

    def produce():
        a = np.ndarray((slots, size // 4), np.float32, ring.buf)
        for i in range(count):
            free.acquire()
            a[i % slots] = source
            full.release()

    p = context.Process(target=produce, daemon=True)
    peer.start()
    p.start()
    a = np.ndarray((slots, size // 4), np.float32, ring.buf)
    for i in range(count):
        full.acquire()
        give(a[i % slots])
        free.release()
    ring.unlink()


{"penstock": penstock, "torch": lambda: loader(None), "torch_fs": lambda: loader("file_system"), "ray": ray_store, "flight": flight, "flight_serve": flight_serve, "shm": shm}[case]()
peer.end(**f)
