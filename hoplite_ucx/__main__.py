"""The `hoplite` command, also as `python -m hoplite_ucx`: handles signals before anything large loads.

Loading takes half a second. Ctrl-C in that time ends the process silently, as the kernel does; afterwards the command
ends everything it started.
"""

import signal


def main() -> None:
    interrupt = signal.getsignal(signal.SIGINT)
    if interrupt is signal.default_int_handler:  # else it is ignored, and stays so
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from hoplite_ucx.cli import main as run

    signal.signal(signal.SIGINT, interrupt)
    run()


if __name__ == "__main__":
    main()
