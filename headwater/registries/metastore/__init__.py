"""The metastore as a registry: names, properties and Lance versions as objects of the storage model."""

from headwater.registries.metastore.registry import MetastoreRegistry

__all__ = ["MetastoreRegistry"]
