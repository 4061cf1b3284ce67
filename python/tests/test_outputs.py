"""Outputs as others read them, by the folder's name: DuckDB, Polars and pyarrow, which know nothing of records."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

if os.environ.get("CI") != "true":
    for peer in ("duckdb", "polars", "pyarrow"):
        pytest.importorskip(peer, reason=f"{peer} is not installed: that it reads outputs was not tested")

import duckdb
import polars
import pyarrow.dataset
import pyarrow.fs
from conftest import ROOT

Spec = Callable[[str], Path]

ROWS = 400_000


def job(spec: Spec, out: Path | str, name: str, first: int, *, by: str = "") -> Path:
    """A job of several parts whose ids begin at first."""
    return spec(
        f"version: 1\nsource: {{range: {{n: {ROWS}}}}}\nsteps: [{{with_columns: {{id: id + {first}, k: id % 4}}}}]\n"
        f"sink: {{parquet: {{path: '{out}', mode: append, target_size: 256KiB{by}}}}}\nrun: {{id: {name}, cpus: 1}}\n"
    )


def readers(out: Path) -> dict[str, tuple[int, int]]:
    """Rows, and the sum of their ids, as each reader sees the folder."""
    q = duckdb.sql(f"select count(*), sum(id)::bigint from '{out}/**/*.parquet'").limit(1).fetchall()[0]
    p = polars.scan_parquet(f"{out}/").select(n=polars.len(), s=polars.col("id").sum()).collect().row(0)
    a = pyarrow.dataset.dataset(f"{out}/", format="parquet").to_table(columns=["id"])
    return {"duckdb": q, "polars": p, "pyarrow": (a.num_rows, sum(a["id"].to_pylist()))}


@pytest.fixture(scope="module", autouse=True)
def started(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The readers keep descriptors of their own, from the first file on."""
    out = tmp_path_factory.mktemp("first")
    polars.DataFrame({"id": [1]}).write_parquet(out / "a.parquet")
    readers(out)


def rows(*firsts: int) -> tuple[int, int]:
    return len(firsts) * ROWS, sum(ROWS * f + ROWS * (ROWS - 1) // 2 for f in firsts)


def run(binary: str, path: Path) -> None:
    r = subprocess.run([binary, "run", str(path)], capture_output=True, text=True)
    assert r.returncode == 0, r.stderr


def killed(binary: str, path: Path, when: Callable[[], bool]) -> None:
    """Runs the job until when is true, and kills it there."""
    p = subprocess.Popen([binary, "run", str(path)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + 60
        while not when():
            assert p.poll() is None and time.monotonic() < end, "it was not killed in time"
            time.sleep(0.002)
    finally:
        p.send_signal(signal.SIGKILL)
        p.wait()


@pytest.mark.parametrize("by", ["", ", partition_by: [k]"])
def test_readers(penstock_bin: str, spec: Spec, tmp_path: Path, by: str) -> None:
    out, records = tmp_path / "out", tmp_path / "_penstock-out"
    first, second = job(spec, out, "first", 0, by=by), job(spec, out, "second", ROWS, by=by)
    finished = lambda name: lambda: any(records.glob(f"jobs/{name}/part-*.json"))  # noqa: E731

    killed(penstock_bin, first, finished("first"))
    assert not out.exists() and any(records.rglob("*.staged"))
    run(penstock_bin, first)
    assert set(readers(out).values()) == {rows(0)}, readers(out)

    killed(penstock_bin, second, finished("second"))
    assert set(readers(out).values()) == {rows(0)}, readers(out)
    run(penstock_bin, second)
    assert set(readers(out).values()) == {rows(0, ROWS)}, readers(out)
    assert {p.suffix for p in out.rglob("*") if p.is_file()} == {".parquet"}
    for folder in [p for p in out.iterdir() if by]:  # small files of a job are joined
        for tag in {p.name[:13] for p in folder.iterdir()}:
            sizes = [p.stat().st_size for p in sorted(folder.glob(f"{tag}*"))]
            assert all(max(pair) >= 128 << 10 for pair in itertools.pairwise(sizes)), sizes

    before = sorted((p, p.stat().st_mtime_ns) for p in out.rglob("*"))
    for again in first, second:  # nothing to do
        run(penstock_bin, again)
    assert sorted((p, p.stat().st_mtime_ns) for p in out.rglob("*")) == before


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The address of an S3 server, and the folder that is its bucket. The readers have been there: they keep connections."""
    binary = ROOT / "bin" / "tools" / "versitygw"
    if not binary.exists() and os.environ.get("CI") != "true":
        pytest.skip("bin/tools has no versitygw (make tools): outputs in buckets were not tested")
    top = tmp_path_factory.mktemp("s3")
    (top / "bucket" / "first").mkdir(parents=True)
    polars.DataFrame({"id": [1]}).write_parquet(top / "bucket" / "first" / "a.parquet")
    with socket.create_server(("127.0.0.1", 0)) as s:
        address = f"127.0.0.1:{s.getsockname()[1]}"
    environment = pytest.MonkeyPatch()
    for k, v in {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true",
                 "PENSTOCK_ENDPOINTS": f"http://{address}"}.items():  # fmt: skip
        environment.setenv(k, v)
    server = subprocess.Popen([binary, "--access", "key", "--secret", "secret", "--port", address, "posix", str(top)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(tuple(address.split(":")), timeout=1).close()  # type: ignore[arg-type]
                break
            except OSError:
                assert server.poll() is None and time.monotonic() < end, "versitygw does not start"
                time.sleep(0.01)
        of_bucket(address, "first")
        yield address, top / "bucket"
    finally:
        environment.undo()
        server.kill()
        server.wait()


def of_bucket(address: str, out: str) -> dict[str, tuple[int, int]]:
    """Rows of a folder in the bucket, and the sum of their ids. (DuckDB reads buckets by an extension, which is not in its package.)"""
    p = polars.scan_parquet(f"s3://bucket/{out}/", storage_options={"endpoint_url": f"http://{address}", "aws_allow_http": "true", "aws_access_key_id": "key", "aws_secret_access_key": "secret", "aws_region": "us-east-1"})
    s3 = pyarrow.fs.S3FileSystem(access_key="key", secret_key="secret", endpoint_override=address, scheme="http", region="us-east-1")
    a = pyarrow.dataset.dataset(f"bucket/{out}/", format="parquet", filesystem=s3).to_table(columns=["id"])
    return {"polars": p.select(n=polars.len(), s=polars.col("id").sum()).collect().row(0), "pyarrow": (a.num_rows, sum(a["id"].to_pylist()))}


@pytest.mark.parametrize("by", ["", ", partition_by: [k]"])
def test_bucket(penstock_bin: str, spec: Spec, bucket: tuple[str, Path], by: str) -> None:
    """Outputs in a bucket hold data files only, whatever happened to their jobs, and parts are joined there as in folders."""
    address, folder = bucket
    name = "partitions" if by else "plain"
    out, records = folder / name, folder / f"_penstock-{name}"
    place = f"s3://bucket/{name}?endpoint=http://{address}&use_path_style=true&region=us-east-1"
    first, second = job(spec, place, "first", 0, by=by), job(spec, place, "second", ROWS, by=by)
    finished = lambda name: lambda: any(records.glob(f"jobs/{name}/part-*.json"))  # noqa: E731

    killed(penstock_bin, first, finished("first"))
    assert not out.exists() and any(records.rglob("*.staged"))
    run(penstock_bin, first)
    assert set(of_bucket(address, name).values()) == {rows(0)}, of_bucket(address, name)

    killed(penstock_bin, second, finished("second"))
    assert set(of_bucket(address, name).values()) == {rows(0)}, of_bucket(address, name)
    run(penstock_bin, second)
    assert set(of_bucket(address, name).values()) == {rows(0, ROWS)}, of_bucket(address, name)
    files = [p for p in out.rglob("*") if p.is_file()]
    assert {p.suffix for p in files} == {".parquet"} and not any(records.rglob("*.staged"))
    for place_of in {p.parent for p in files if by}:
        for tag in {p.name[:13] for p in place_of.iterdir()}:
            sizes = [p.stat().st_size for p in sorted(place_of.glob(f"{tag}*"))]
            assert all(max(pair) >= 128 << 10 for pair in itertools.pairwise(sizes)), sizes

    before = sorted((p, p.stat().st_mtime_ns) for p in files)
    for again in first, second:  # nothing to do
        run(penstock_bin, again)
    assert sorted((p, p.stat().st_mtime_ns) for p in out.rglob("*") if p.is_file()) == before
