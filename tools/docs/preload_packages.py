"""Writes the table in docs/preload.md that shows which packages can be preloaded.

Install the packages beside torch and plaunch, then run `python tools/docs/preload_packages.py`.
Packages that are not installed have no row.
"""

from __future__ import annotations

import importlib.metadata
import os
from pathlib import Path
from typing import TYPE_CHECKING

from plaunch.doctor import Status
from plaunch_preload.doctor import try_modules

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = Path(__file__).parents[2] / "docs/preload.md"
COMMAND = "python tools/docs/preload_packages.py"
MARK = f"<!-- {COMMAND} -->"
HEAD = "| module | version | result |\n|---|---|---|"
WORKS = "works"
BOUND = 300.0  # seconds for the imports of one module
# The modules that scripts import, by distribution.
MODULES = {
    "torch": ("torch", "torch.utils.tensorboard"),
    "torchvision": ("torchvision",),
    "numpy": ("numpy",),
    "accelerate": ("accelerate",),
    "aiohttp": ("aiohttp",),
    "datasets": ("datasets",),
    "dill": ("dill",),
    "einops": ("einops",),
    "huggingface_hub": ("huggingface_hub", "huggingface_hub.file_download"),
    "hydra-core": ("hydra",),
    "lightning": ("lightning",),
    "matplotlib": ("matplotlib.pyplot",),
    "omegaconf": ("omegaconf",),
    "opencv-python-headless": ("cv2",),
    "optuna": ("optuna",),
    "pandas": ("pandas",),
    "peft": ("peft",),
    "pillow": ("PIL.Image",),
    "pyarrow": ("pyarrow",),
    "pydantic": ("pydantic",),
    "pytorch-lightning": ("pytorch_lightning",),
    "requests": ("requests",),
    "safetensors": ("safetensors.torch",),
    "scikit-learn": ("sklearn",),
    "scipy": ("scipy", "scipy.stats"),
    "sentencepiece": ("sentencepiece",),
    "tensorboard": ("tensorboard",),
    "timm": ("timm",),
    "tokenizers": ("tokenizers",),
    "torchmetrics": ("torchmetrics",),
    "tqdm": ("tqdm", "tqdm.auto"),
    "transformers": ("transformers", "transformers.modeling_utils", "transformers.trainer"),
    "wandb": ("wandb",),
}


def version_of(distribution: str) -> str:
    """Return the installed version; empty if not installed."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""


def describe(module: str) -> str:
    """Preload the module; return `works`, or why it fails."""
    (finding,) = try_modules([module], "", dict(os.environ), BOUND)
    if finding.status is Status.OK:
        return WORKS
    return finding.found.removeprefix(f"{module}: ")


def draw_rows() -> Iterator[str]:
    """Return the rows for the installed packages."""
    for distribution, modules in MODULES.items():
        version = version_of(distribution)
        for module in modules if version else ():
            yield f"| `{module}` | {distribution} {version} | {describe(module)} |"


def read_rows() -> dict[str, str]:
    """Return the results in the page, by module."""
    _, rows, _ = PAGE.read_text().split(MARK)
    words = [row.split(" | ", 2) for row in rows.strip().splitlines()[2:]]
    return {module.strip("|` "): result.removesuffix(" |") for module, _, result in words}


def write_rows() -> None:
    """Replace the table in the page."""
    before, _, after = PAGE.read_text().split(MARK)
    table = "\n".join([HEAD, *draw_rows()])
    PAGE.write_text(f"{before}{MARK}\n{table}\n{MARK}{after}")


if __name__ == "__main__":
    write_rows()
