"""Every verb of the command line."""

from headwater.cli.grammar.run import PIPELINE, RUN, SERVING
from headwater.cli.grammar.verbs import CHANGE, HERE, LOOK, PROTOCOL, TIME
from headwater.cli.grammar.words import COMMON, GROUPS, Arg, Command

SHOWN = (*LOOK, *CHANGE, *TIME, *PIPELINE, *RUN, *SERVING, *PROTOCOL)
COMMANDS = {command.name: command for command in SHOWN}

__all__ = ["COMMANDS", "COMMON", "GROUPS", "HERE", "SHOWN", "Arg", "Command"]
