"""IMPALA's pattern: actors send rollouts, a learner answers half of them a round with new parameters."""
