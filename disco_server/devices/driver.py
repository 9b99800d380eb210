"""The driver of a kind of GPU, called by ctypes; no context is made on any device.

To be used in a child process: a driver that is loaded stays, and a broken one may
crash or hang.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

__all__ = ["KINDS", "Driver", "DriverError", "Gpu", "GpuKind"]


@dataclass(frozen=True, slots=True)
class GpuKind:
    """What is known of one kind of GPU.

    Attributes:
        name: The prefix of device names: ``cuda`` or ``rocm``.
        vendor: Its manufacturer.
        platform: The name of its software.
        ccl: Its collective library.
        libraries: The driver's library, the preferred name first.
        tool: The command that lists the GPUs.
        visible: The variable that hides some.
        device_files: Patterns of the files through which a process reaches the GPUs.
        container: How a container gets access to them.
        prefix: Of the functions of the driver's library.
        count: The function that counts the GPUs.
        memory: The function that returns how much memory one has.
    """

    name: str
    vendor: str
    platform: str
    ccl: str
    libraries: tuple[str, ...]
    tool: str
    visible: str
    device_files: tuple[str, ...]
    container: str
    prefix: str
    count: str
    memory: str


KINDS: Final = {
    kind.name: kind
    for kind in (
        GpuKind(
            name="cuda",
            vendor="NVIDIA",
            platform="CUDA",
            ccl="nccl",
            libraries=("libcuda.so.1",),
            tool="nvidia-smi",
            visible="CUDA_VISIBLE_DEVICES",
            device_files=("dev/nvidia[0-9]*", "dev/nvidiactl", "dev/nvidia-uvm"),
            container="docker run --gpus all, or a limit nvidia.com/gpu in Kubernetes",
            prefix="cu",
            count="cuDeviceGetCount",
            memory="cuDeviceTotalMem_v2",
        ),
        GpuKind(
            name="rocm",
            vendor="AMD",
            platform="ROCm",
            ccl="rccl",
            libraries=("libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so"),
            tool="rocm-smi",
            visible="HIP_VISIBLE_DEVICES",
            device_files=("dev/kfd", "dev/dri/render*"),
            container="docker run --device /dev/kfd --device /dev/dri, or a limit amd.com/gpu in"
            " Kubernetes",
            prefix="hip",
            count="hipGetDeviceCount",
            memory="hipDeviceTotalMem",
        ),
    )
}
"""The kinds by their names."""

_NAME_BYTES = 256
_CAPABILITY = (75, 76)  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR


class DriverError(Exception):
    """A call of the driver failed.

    Attributes:
        code: The number that it returned.
    """

    def __init__(self, call: str, code: int, name: str) -> None:
        super().__init__(f"{call} says {name}")
        self.code = code


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU that this process sees.

    Attributes:
        index: Its number among them.
        name: Its product name.
        memory_bytes: How much memory it has.
        capability: CUDA's number of its generation, as in ``9.0``; otherwise empty.
    """

    index: int
    name: str
    memory_bytes: int
    capability: str = ""


class Driver:
    """The driver's library.

    Args:
        kind: Of the GPUs.
        load: Loads a library by its name.

    Raises:
        OSError: There is none.
    """

    def __init__(self, kind: GpuKind, load: Callable[[str], Any] = ctypes.CDLL) -> None:
        self._kind = kind
        self._library = _load(kind.libraries, load)

    def version(self) -> tuple[int, int]:
        """The newest CUDA, or the HIP, that it supports.

        Raises:
            DriverError: The call failed.
        """
        number = ctypes.c_int()
        self._call(f"{self._kind.prefix}DriverGetVersion", ctypes.byref(number))
        if self._kind.name == "cuda":  # 13020 is 13.2
            return number.value // 1000, number.value % 1000 // 10
        return number.value // 10_000_000, number.value // 100_000 % 100

    def start(self) -> None:
        """Initialises the driver; no device is touched.

        Raises:
            DriverError: It does not start, or there is no GPU.
        """
        self._call(f"{self._kind.prefix}Init", 0)

    def gpus(self) -> list[Gpu]:
        """The GPUs that this process sees.

        Raises:
            DriverError: It was not started, or a call failed.
        """
        count = ctypes.c_int()
        self._call(self._kind.count, ctypes.byref(count))
        return [self._gpu(index) for index in range(count.value)]

    def _gpu(self, index: int) -> Gpu:
        prefix = self._kind.prefix
        device = ctypes.c_int()
        self._call(f"{prefix}DeviceGet", ctypes.byref(device), index)
        name = ctypes.create_string_buffer(_NAME_BYTES)
        self._call(f"{prefix}DeviceGetName", name, _NAME_BYTES, device)
        size = ctypes.c_size_t()
        self._call(self._kind.memory, ctypes.byref(size), device)
        capability = self._capability(device) if self._kind.name == "cuda" else ""
        return Gpu(index, name.value.decode(errors="replace"), size.value, capability)

    def _capability(self, device: ctypes.c_int) -> str:
        numbers: list[str] = []
        for attribute in _CAPABILITY:
            number = ctypes.c_int()
            self._call("cuDeviceGetAttribute", ctypes.byref(number), attribute, device)
            numbers.append(str(number.value))
        return ".".join(numbers)

    def _call(self, name: str, *arguments: Any) -> None:
        code = int(getattr(self._library, name)(*arguments))
        if code:
            raise DriverError(name, code, self._error_name(code))

    def _error_name(self, code: int) -> str:
        if self._kind.name == "rocm":
            function = self._library.hipGetErrorName
            function.restype = ctypes.c_char_p
            text = function(code)
        else:
            pointer = ctypes.c_char_p()
            failed = self._library.cuGetErrorName(code, ctypes.byref(pointer))
            text = None if failed else pointer.value
        return f"{text.decode()} ({code})" if text else f"error {code}"


def _load(names: Iterable[str], load: Callable[[str], Any]) -> Any:
    failed: OSError | None = None
    for name in names:
        try:
            return load(name)
        except OSError as error:
            failed = failed or error
    raise failed or OSError("no library is named")
