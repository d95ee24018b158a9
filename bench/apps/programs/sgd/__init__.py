"""Asynchronous SGD and A3C: a server adds the gradients of the workers that are ready first, half of them a round."""
