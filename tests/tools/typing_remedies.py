"""What an error tells its reader to type, as a command that can be run."""

import re
import shlex


def commands(text: object) -> list[list[str]]:
    """The commands in backquotes, split as a shell does."""
    return [shlex.split(found) for found in re.findall(r"`([^`]*)`", str(text))]


def hoplite_command(text: object) -> list[str]:
    """The arguments of the one `hoplite` command there."""
    (found,) = [command for command in commands(text) if command[0] == "hoplite"]
    return found[1:]
