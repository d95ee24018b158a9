"""The live view in the browser: a process of its own, which asks the directory and the agents while somebody looks.

`source` asks, `picture` makes one picture of the answers, without any IO, and `server` shows it to browsers, with the
page in `page/`. `access` says who may look. Nothing here can change anything in the cluster.
"""
