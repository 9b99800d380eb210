"""Opens a session whose workers compute on the requested device."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import disco_client

if TYPE_CHECKING:
    from collections.abc import Sequence

    from disco_client.transport.base import RankPlace

__all__ = ["DEVICES", "DeviceRefused", "open_session", "refuse_slots"]

_LIBRARIES = {"cuda": "nccl", "rocm": "rccl"}

DEVICES = ("cpu", *_LIBRARIES)
"""What workers can compute on."""


class DeviceRefused(Exception):
    """The available workers do not compute on the requested device."""


def open_session(
    name: str, device: str, workers: int, *, address: str | None, timeout: float
) -> disco_client.Session:
    """Opens a session; the caller closes it.

    With an address, or with DISCO_ADDRESS, it is one of that cluster, whose slots must
    be of the device. Without, GPUs are those of this machine, each with a process of
    this program's own, and CPUs are those of the cluster at the default address.

    Args:
        name: What the session is called.
        device: One of `DEVICES`.
        workers: How many.
        address: The controller; None for the one in DISCO_ADDRESS.
        timeout: Seconds to wait for the controller and for workers.

    Raises:
        DeviceRefused: The cluster's slots are of another device.
        disco_client.DiscoError: No session can be opened, or there is no GPU for a worker.
    """
    if device in _LIBRARIES and not (address or os.environ.get("DISCO_ADDRESS")):
        session = disco_client.ProcessSession(workers, timeout=timeout)
        try:
            session.init_ccl(_LIBRARIES[device], *range(workers))
        except BaseException:
            session.shutdown()
            raise
        return session
    session = disco_client.connect(address, num_workers=workers, name=name, timeout=timeout)
    try:
        refuse_slots(device, session.workers)
    except DeviceRefused:
        session.shutdown()
        raise
    return session


def refuse_slots(device: str, places: Sequence[RankPlace]) -> None:
    """Lets pass only workers whose slots are of a device.

    Raises:
        DeviceRefused: Some are not; the message names one and says what to do.
    """
    other = next((place for place in places if place.device.partition(":")[0] != device), None)
    if other is None:
        return
    if device == "cpu":
        advice = f"Add --device {other.device.partition(':')[0]}."
    else:
        advice = (
            f"Start its worker daemons with 'disco-worker --devices {device}', or leave out "
            "--address and DISCO_ADDRESS to use the GPUs of this machine."
        )
    raise DeviceRefused(
        f"The workers of this cluster do not compute on {device}: worker {other.worker} on "
        f"{other.node} has {other.device}. {advice}"
    )
