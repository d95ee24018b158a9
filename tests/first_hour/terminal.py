"""The command line and the installed package."""
