"""What a worker daemon says of its machine."""

from __future__ import annotations

import asyncio
import shutil
import subprocess

import pytest

from disco_server.worker import machine
from disco_server.worker.machine import MachineMeter, MachineSampler

NVML = r"""
typedef struct { unsigned gpu, memory; } utilization;
typedef struct { unsigned long long total, free, used; } memory;
int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 3; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
    *handle = (void *)(0x700000000000 + index);
    return index == 2;  /* one that the user may not see */
}
int nvmlDeviceGetUtilizationRates(void *handle, utilization *found) {
    found->gpu = 40 + 20 * ((unsigned long long)handle & 1);
    return 0;
}
int nvmlDeviceGetMemoryInfo(void *handle, memory *found) {
    found->total = 80ull << 30; found->used = 20ull << 30; found->free = 60ull << 30;
    return 0;
}
"""


def write(proc, busy, idle, received):
    """The files of a system that has done so much since it started."""
    (proc / "net").mkdir(exist_ok=True)
    (proc / "stat").write_text(f"cpu  {busy} 0 0 {idle} 0 0 0 0 9 9\ncpu0 1 2 3\n")
    (proc / "meminfo").write_text(
        "MemTotal:   1000 kB\nMemFree:    100 kB\nMemAvailable:  250 kB\n"
    )
    (proc / "net" / "dev").write_text(
        "Inter-| Receive | Transmit\n face |bytes ...\n"
        "    lo: 5000000 0 0 0 0 0 0 0 5000000 0\n"
        f"  eth0: {received} 1 0 0 0 0 0 0 {2 * received} 1\n"
    )


@pytest.fixture
def clock(monkeypatch):
    """The meter's time."""
    now = [0.0]
    monkeypatch.setattr(machine, "monotonic", lambda: now[0])
    return now


def test_rates_are_those_between_two_looks(tmp_path, clock):
    """The loopback does not count, and neither does memory that is free on demand."""
    write(tmp_path, 100, 100, 1_000)
    meter = MachineMeter(tmp_path, "none.so")
    write(tmp_path, 175, 125, 21_000)
    clock[0] = 10.0
    sample = meter.sample()
    assert sample.cpu == pytest.approx(0.75)
    assert sample.memory == pytest.approx(0.75)
    assert sample.memory_bytes == 1000 * 1024
    assert (sample.received_per_s, sample.sent_per_s) == (2_000, 4_000)
    assert not sample.gpus


def test_a_system_that_tells_nothing_is_no_error(tmp_path):
    """Every value is 0 then."""
    sample = MachineMeter(tmp_path, "none.so").sample()
    assert (sample.cpu, sample.memory, sample.received_per_s) == (0, 0, 0)


@pytest.mark.skipif(not shutil.which("cc"), reason="needs a C compiler for a library")
def test_gpus_are_asked_by_the_management_library(tmp_path):
    """One that does not answer is left out."""
    source, library = tmp_path / "nvml.c", tmp_path / "libnvml.so"
    source.write_text(NVML)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    sample = MachineMeter(tmp_path, str(library)).sample()
    assert [gpu.busy for gpu in sample.gpus] == [pytest.approx(0.4), pytest.approx(0.6)]
    assert {(gpu.memory, gpu.memory_bytes) for gpu in sample.gpus} == {(0.25, 80 << 30)}


def test_a_sample_is_taken_once_in_a_while_and_told_once():
    """In another thread; heartbeats do not wait for it."""

    async def beats():
        sampler, found = MachineSampler(), []
        for beat in range(13):
            found.append(sampler.next(2.0 * beat) is not None)
            await asyncio.sleep(0.6 if beat == 0 else 0.05)
        return found

    found = asyncio.run(beats())
    assert found[0] is False
    assert found.count(True) == 3
    assert found.index(True) == 1
