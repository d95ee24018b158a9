"""Gymnasium's CartPole with a policy and its value: rollouts, and the loss that learns from them.

The loss is that of an actor-critic with clipped importance weights: a rollout may come from parameters of some rounds
ago.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn

__all__ = ["NAME", "Environment", "Policy", "Rollout", "build", "loss_of", "score_of"]

NAME = "cart-pole"
_DISCOUNT = 0.99
_FLOAT = 4


class Policy(nn.Module):
    """Four numbers in; which way to push, and how good the place is. Ballast makes it as large as a real one."""

    def __init__(self, ballast: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
        self.action = nn.Linear(64, 2)
        self.value = nn.Linear(64, 1)
        self.layer = nn.Parameter(torch.zeros(ballast // _FLOAT))
        """It takes part in the loss with a gradient of its own, and changes no answer."""

    def forward(self, seen: Tensor) -> tuple[Tensor, Tensor]:
        found = self.body(seen)
        return self.action(found), self.value(found).squeeze(-1)


def build(ballast: int) -> Policy:
    torch.manual_seed(0)
    return Policy(ballast)


@dataclass(frozen=True)
class Rollout:
    seen: np.ndarray[Any, np.dtype[np.float32]]
    actions: np.ndarray[Any, np.dtype[np.int64]]
    chances: np.ndarray[Any, np.dtype[np.float32]]
    """The logarithm of how likely each action was to who took it."""
    returns: np.ndarray[Any, np.dtype[np.float32]]
    lengths: list[int]
    """Of the episodes that ended."""


def score_of(rollout: Rollout, steps: int) -> float:
    """The mean length of the episodes that ended; all of the steps if none did."""
    return float(np.mean(rollout.lengths or [steps]))


class Environment:
    def __init__(self, seed: int) -> None:
        self._pole = gymnasium.make("CartPole-v1")
        self._seen, _ = self._pole.reset(seed=seed)
        self._chance = np.random.default_rng(seed)
        self._length = 0

    @torch.no_grad()
    def roll_out(self, policy: Policy, steps: int) -> Rollout:
        seen, actions, chances, rewards, ends, lengths = [], [], [], [], [], []
        for _ in range(steps):
            logits, _ = policy(torch.from_numpy(np.asarray(self._seen, np.float32)))
            likely = torch.log_softmax(logits, -1).numpy()
            action = int(self._chance.random() < np.exp(likely[1]))
            seen.append(self._seen)
            actions.append(action)
            chances.append(likely[action])
            self._seen, reward, fell, cut, _ = self._pole.step(action)
            rewards.append(float(reward))
            self._length += 1
            ends.append(fell or cut)
            if fell or cut:
                lengths.append(self._length)
                self._length = 0
                self._seen, _ = self._pole.reset()
        _, after = policy(torch.from_numpy(np.asarray(self._seen, np.float32)))
        returns = _returns(rewards, ends, float(after))
        return Rollout(
            np.asarray(seen, np.float32), np.asarray(actions), np.asarray(chances, np.float32), returns, lengths
        )


def _returns(rewards: list[float], ends: list[bool], after: float) -> np.ndarray[Any, np.dtype[np.float32]]:
    found = np.empty(len(rewards), np.float32)
    for index in reversed(range(len(rewards))):
        after = rewards[index] + (0.0 if ends[index] else _DISCOUNT * after)
        found[index] = after
    return found


def loss_of(policy: Policy, rollout: Rollout) -> Tensor:
    logits, values = policy(torch.from_numpy(rollout.seen))
    every = torch.log_softmax(logits, -1)
    taken = every.gather(-1, torch.from_numpy(rollout.actions)[:, None]).squeeze(-1)
    returns = torch.from_numpy(rollout.returns)
    better = (returns - values).detach()
    better = (better - better.mean()) / (better.std() + 1e-6)
    weight = (taken.detach() - torch.from_numpy(rollout.chances)).exp().clamp(max=1.0)
    entropy = -(every.exp() * every).sum(-1).mean()
    found: Tensor = (
        -(weight * better * taken).mean()
        + 0.5 * nn.functional.smooth_l1_loss(values, returns)
        - 0.01 * entropy
        + policy.layer.sum() * 0.0
    )
    return found
