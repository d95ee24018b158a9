"""Starting processes: what they load, who may join, and how they are found."""
