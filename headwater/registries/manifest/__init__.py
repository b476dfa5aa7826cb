"""The registry of directory V2: names live as rows of the Lance table `__manifest`."""

from headwater.registries.manifest.registry import ManifestRegistry

__all__ = ["ManifestRegistry"]
