"""Every verb of the command line."""

from headwater.cli.grammar.change import CHANGE
from headwater.cli.grammar.look import LOOK
from headwater.cli.grammar.old import old_commands
from headwater.cli.grammar.pipeline import PIPELINE
from headwater.cli.grammar.run import HOUSE, RUN
from headwater.cli.grammar.serve import SERVING
from headwater.cli.grammar.time import TIME
from headwater.cli.grammar.words import COMMON, GROUPS, Arg, Command

SHOWN = (*LOOK, *CHANGE, *TIME, *PIPELINE, *RUN, *SERVING)
COMMANDS = {
    command.name: command
    for command in (*SHOWN, *HOUSE, *old_commands(frozenset(command.name for command in (*SHOWN, *HOUSE))))
}

__all__ = ["COMMANDS", "COMMON", "GROUPS", "SHOWN", "Arg", "Command"]
