"""The registry of directory V2: names are rows of the Lance table `__manifest`."""

from headwater.registries.manifest.registry import ManifestRegistry

__all__ = ["ManifestRegistry"]
