"""How busy an NVIDIA GPU was while something ran, as the driver counts it."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Any, Self

import torch

PERIOD_S = 0.2
"""Between two readings; the driver itself averages over about as long."""


class Utilisation:
    """Reads NVML's utilisation, the share of time with a kernel running, in a thread of its own.

    Used as a context manager; afterwards `mean` is the mean of the readings, from 0 to 1, or None
    with the reason in `why`: no NVIDIA GPU, no nvidia-ml-py, a driver that does not tell (MIG).
    """

    def __init__(self, device: torch.device, period_s: float = PERIOD_S) -> None:
        self._device, self._period = device, period_s
        self._readings: list[int] = []
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self.why = ""

    @property
    def mean(self) -> float | None:
        """Mean of the readings; None without any."""
        return sum(self._readings) / len(self._readings) / 100 if self._readings else None

    def __enter__(self) -> Self:
        if self._device.type != "cuda" or torch.version.cuda is None:
            self.why = f"{self._device} is no NVIDIA GPU"
            return self
        try:
            import pynvml

            self._nvml: Any = pynvml
            pynvml.nvmlInit()
            # by UUID: NVML knows nothing of CUDA_VISIBLE_DEVICES
            uuid = f"GPU-{torch.cuda.get_device_properties(self._device).uuid}"
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
            self._read()
        except ImportError:
            self.why = "nvidia-ml-py is not installed"
        except pynvml.NVMLError as error:
            self.why = f"NVML: {error}"
        else:
            self._readings.clear()  # the first reading is of the time before
            self._thread = threading.Thread(target=self._sample, name="nvml", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()
            if not self._readings and not self.why:
                self.why = "over before the first reading"
            self._nvml.nvmlShutdown()

    def _read(self) -> None:
        self._readings.append(int(self._nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu))

    def _sample(self) -> None:
        while not self._over.wait(self._period):
            try:
                self._read()
            except self._nvml.NVMLError as error:
                self.why = f"NVML: {error}"
                return
