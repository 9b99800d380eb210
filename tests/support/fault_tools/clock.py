"""A wall clock of processes that a test moves and stops."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import time
from pathlib import Path

__all__ = ["Clock", "NoClock", "set_clock"]

_SOURCE = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

struct told { long ahead, frozen, whose; };

static volatile struct told *told(void) {
    static volatile struct told *shared;
    if (!shared) {
        int fd = open(getenv("CLOCK_OFFSET"), O_RDONLY | O_CLOEXEC);
        shared = mmap(0, sizeof(struct told), PROT_READ, MAP_SHARED, fd, 0);
    }
    return shared;
}

int clock_gettime(clockid_t which, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int done = real(which, now);
    if (which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE) {
        long frozen = told()->frozen;
        if (frozen && told()->whose == getpid()) {
            now->tv_sec = frozen;
            now->tv_nsec = 0;
        }
        now->tv_sec += told()->ahead;
    }
    return done;
}

int gettimeofday(struct timeval *now, void *zone) {
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *out) {
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    if (out) *out = exact.tv_sec;
    return exact.tv_sec;
}
"""


class NoClock(Exception):
    """This machine has no compiler to make a clock with."""


def set_clock(told: Path, ahead: int, *, frozen: bool = False) -> None:
    """Sets the clock of all processes that look at a file.

    Args:
        told: The file.
        ahead: How many seconds it goes ahead.
        frozen: Whether it stands still from now on, for this process alone: MPI's libraries
            wait in a loop until it goes on, whatever it says, so ranks could not begin.
    """
    frozen_at = int(time.time()) if frozen else 0
    # Not truncated, as the file is mapped.
    with told.open("r+b" if told.exists() else "wb") as file:
        file.write(struct.pack("lll", ahead, frozen_at, os.getpid()))


class Clock:
    """The wall clock of processes that were started with it.

    Args:
        folder: For its files.

    Attributes:
        env: What makes a process have it.

    Raises:
        NoClock: It cannot be made.
    """

    def __init__(self, folder: Path) -> None:
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None:
            raise NoClock("this machine has no C compiler to make a clock with")
        source, library = folder / "clock.c", folder / "clock.so"
        source.write_text(_SOURCE)
        command = [compiler, "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"]
        subprocess.run(command, check=True)
        self._told = folder / "offset"
        self.jump(0)
        self.env = {"LD_PRELOAD": str(library), "CLOCK_OFFSET": str(self._told)}

    def jump(self, seconds: int) -> None:
        """Sets it so far off."""
        set_clock(self._told, seconds)
