"""What a worker and the agent of its host share: their messages, and under which name the one finds the other."""
