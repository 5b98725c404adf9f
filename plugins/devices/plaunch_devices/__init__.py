"""The devices of a node: counting them, choosing some, and binding workers near them.

Nothing here imports torch. Facts come from the kernel's files; where these do not suffice, a
short-lived child process asks torch. Every public name loads on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from plaunch.lazy import attach

if TYPE_CHECKING:
    from plaunch_devices.binder import DeviceBinder as DeviceBinder
    from plaunch_devices.counting import count_auto as count_auto
    from plaunch_devices.counting import count_gpu as count_gpu
    from plaunch_devices.counting import count_xpu as count_xpu
    from plaunch_devices.kernel import Accelerator as Accelerator
    from plaunch_devices.kernel import list_amd as list_amd
    from plaunch_devices.kernel import list_nvidia as list_nvidia
    from plaunch_devices.sharing import AffinityMode as AffinityMode
    from plaunch_devices.sharing import NumaOptions as NumaOptions
    from plaunch_devices.topology import count_cpu as count_cpu
    from plaunch_devices.torch_child import AskTorch as AskTorch
    from plaunch_devices.torch_child import TorchMissingError as TorchMissingError
    from plaunch_devices.torch_child import ask_torch as ask_torch
    from plaunch_devices.visible import count_visible as count_visible
    from plaunch_devices.visible import find_visible_devices as find_visible_devices

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        ".binder": "DeviceBinder",
        ".counting": "count_auto count_gpu count_xpu",
        ".kernel": "Accelerator list_amd list_nvidia",
        ".sharing": "AffinityMode NumaOptions",
        ".topology": "count_cpu",
        ".torch_child": "AskTorch TorchMissingError ask_torch",
        ".visible": "count_visible find_visible_devices",
    },
)
