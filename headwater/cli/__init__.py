"""`headwater`: one verb per operation, for people and (with --json) for programs."""

from headwater.cli.main import main

__all__ = ["main"]
