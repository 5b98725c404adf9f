"""The accelerators of this host: which there are, which may be seen, and where they sit.

Nothing here imports torch: the kernel is read, and torch is asked in a short-lived child process
only where the kernel cannot tell. Every public name loads on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from plaunch.lazy import attach

if TYPE_CHECKING:
    from plaunch.devices.choice import check_devices as check_devices
    from plaunch.devices.choice import own_visibility as own_visibility
    from plaunch.devices.choice import parse_devices as parse_devices
    from plaunch.devices.choice import visibility_of as visibility_of
    from plaunch.devices.kernel import AMD as AMD
    from plaunch.devices.kernel import HABANA as HABANA
    from plaunch.devices.kernel import INTEL as INTEL
    from plaunch.devices.kernel import NVIDIA as NVIDIA
    from plaunch.devices.kernel import Device as Device
    from plaunch.devices.kernel import has_intel_gpu as has_intel_gpu
    from plaunch.devices.kernel import has_slices as has_slices
    from plaunch.devices.kernel import list_amd as list_amd
    from plaunch.devices.kernel import list_nvidia as list_nvidia
    from plaunch.devices.kernel import list_nvidia_files as list_nvidia_files
    from plaunch.devices.kernel import needs_driver as needs_driver
    from plaunch.devices.kernel import needs_torch as needs_torch
    from plaunch.devices.kernel import read_text as read_text
    from plaunch.devices.located import find_visible_devices as find_visible_devices
    from plaunch.devices.torch_child import AskTorch as AskTorch
    from plaunch.devices.torch_child import TorchMissingError as TorchMissingError
    from plaunch.devices.torch_child import ask_torch as ask_torch
    from plaunch.devices.torch_child import count_private_use as count_private_use
    from plaunch.devices.torch_child import locate_with_torch as locate_with_torch
    from plaunch.devices.visible import count_visible as count_visible
    from plaunch.devices.visible import select_visible as select_visible

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        ".choice": "check_devices own_visibility parse_devices visibility_of",
        ".kernel": "AMD Device HABANA INTEL NVIDIA has_intel_gpu has_slices list_amd list_nvidia "
        "list_nvidia_files needs_driver needs_torch read_text",
        ".located": "find_visible_devices",
        ".torch_child": "AskTorch TorchMissingError ask_torch count_private_use locate_with_torch",
        ".visible": "count_visible select_visible",
    },
)
