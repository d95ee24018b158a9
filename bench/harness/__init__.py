"""What every measurement needs: a live cluster to drive, rounds that are timed, and figures that are kept and drawn."""
