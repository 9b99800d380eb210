"""The library's errors of NCCL."""

from __future__ import annotations

__all__ = ["NcclError", "nccl_error"]

SYSTEM_ERROR = 2
INTERNAL_ERROR = 3
INVALID_ARGUMENT = 4
INVALID_USAGE = 5
REMOTE_ERROR = 6
_TEXTS = (
    "NCCL_ERROR_SUCCESS: no error",
    "NCCL_ERROR_UNHANDLED_CUDA_ERROR: unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
    "NCCL_ERROR_SYSTEM_ERROR: unhandled system error (run with NCCL_DEBUG=INFO for details)",
    "NCCL_ERROR_INTERNAL_ERROR: internal error - please report this issue to the NCCL developers",
    "NCCL_ERROR_INVALID_ARGUMENT: invalid argument (run with NCCL_DEBUG=WARN for details)",
    "NCCL_ERROR_INVALID_USAGE: invalid usage (run with NCCL_DEBUG=WARN for details)",
    "NCCL_ERROR_REMOTE_ERROR: remote process exited or there was a network error",
)


class NcclError(RuntimeError):
    """A call of NCCL failed.

    Attributes:
        status: The number of the error.
    """

    def __init__(self, status: int) -> None:
        self.status = status
        super().__init__(dict(enumerate(_TEXTS))[status])

    def __reduce__(self):
        """Made again from its number, as the library does."""
        return (type(self), (self.status,))


def nccl_error(status: int, detail: str) -> NcclError:
    """An error that also tells what the stand-in saw."""
    error = NcclError(status)
    error.args = (f"{error.args[0]} [stand-in: {detail}]",)
    return error
