"""The accelerators of this host: which there are, which may be seen, and where they sit.

Nothing here imports torch: the kernel is read, and torch is asked in a short-lived child process
only where the kernel cannot tell. Every public name loads on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from plaunch._lazy import attach

if TYPE_CHECKING:
    from plaunch_devices.choice import check_devices as check_devices
    from plaunch_devices.choice import own_visibility as own_visibility
    from plaunch_devices.choice import parse_devices as parse_devices
    from plaunch_devices.choice import visibility_of as visibility_of
    from plaunch_devices.kernel import AMD as AMD
    from plaunch_devices.kernel import HABANA as HABANA
    from plaunch_devices.kernel import INTEL as INTEL
    from plaunch_devices.kernel import NVIDIA as NVIDIA
    from plaunch_devices.kernel import Device as Device
    from plaunch_devices.kernel import has_intel_gpu as has_intel_gpu
    from plaunch_devices.kernel import has_slices as has_slices
    from plaunch_devices.kernel import list_amd as list_amd
    from plaunch_devices.kernel import list_nvidia as list_nvidia
    from plaunch_devices.kernel import list_nvidia_files as list_nvidia_files
    from plaunch_devices.kernel import needs_driver as needs_driver
    from plaunch_devices.kernel import needs_torch as needs_torch
    from plaunch_devices.kernel import read_text as read_text
    from plaunch_devices.located import find_visible_devices as find_visible_devices
    from plaunch_devices.torch_child import AskTorch as AskTorch
    from plaunch_devices.torch_child import TorchMissingError as TorchMissingError
    from plaunch_devices.torch_child import ask_torch as ask_torch
    from plaunch_devices.torch_child import count_private_use as count_private_use
    from plaunch_devices.torch_child import locate_with_torch as locate_with_torch
    from plaunch_devices.visible import count_visible as count_visible
    from plaunch_devices.visible import select_visible as select_visible

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "plaunch_devices.choice": "check_devices own_visibility parse_devices visibility_of",
        "plaunch_devices.kernel": "AMD Device HABANA INTEL NVIDIA has_intel_gpu has_slices list_amd list_nvidia "
        "list_nvidia_files needs_driver needs_torch read_text",
        "plaunch_devices.located": "find_visible_devices",
        "plaunch_devices.torch_child": "AskTorch TorchMissingError ask_torch count_private_use locate_with_torch",
        "plaunch_devices.visible": "count_visible select_visible",
    },
)
