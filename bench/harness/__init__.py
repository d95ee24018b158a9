"""What every measurement needs: a live cluster, timed rounds, and figures that are recorded and plotted."""
