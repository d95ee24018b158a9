"""Starting, finding and ending the processes of a cluster: embedded in a program, or as a service of a host."""
