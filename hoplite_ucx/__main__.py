"""The `hoplite` command, also as `python -m hoplite_ucx`: in control before anything large loads.

Loading takes half a second. Whoever presses ctrl-C in that time ends the process as the kernel does, without a word;
afterwards the command takes down what it started.
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
