"""Where the processes of a measurement run: emulated hosts on this machine (`namespaces`), or machines behind `ssh`."""
