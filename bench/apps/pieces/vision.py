"""Models for pictures: a small one that learns here in seconds, and three that the paper trains, at full size."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

__all__ = ["MODELS", "SMALL", "build", "pictures", "side_of"]

SMALL = "small-cnn"
_CLASSES = 1000


def build(name: str) -> nn.Module:
    """The same model with the same parameters in every process."""
    torch.manual_seed(0)
    return MODELS[name]()


def side_of(name: str) -> int:
    return 16 if name == SMALL else 224


def pictures(name: str, batch: int, seed: int) -> tuple[Tensor, Tensor]:
    """A batch of pictures and what they show. Those of the small model show one of ten stripes under noise."""
    chance = torch.Generator().manual_seed(seed)
    side = side_of(name)
    if name != SMALL:
        shown = torch.randint(0, _CLASSES, (batch,), generator=chance)
        return torch.randn(batch, 3, side, side, generator=chance), shown
    shown = torch.randint(0, 10, (batch,), generator=chance)
    angle = shown.float()[:, None, None] * (torch.pi / 10)
    across = torch.arange(side).float()
    waves = torch.sin(1.2 * (across[None, :, None] * torch.cos(angle) + across[None, None, :] * torch.sin(angle)))
    return waves[:, None] + 0.8 * torch.randn(batch, 1, side, side, generator=chance), shown


def _small() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 5, padding=2), nn.ReLU(), nn.AdaptiveAvgPool2d(4),
        nn.Flatten(), nn.Linear(256, 10),
    )  # fmt: skip


def _alexnet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 64, 11, 4, 2), nn.ReLU(), nn.MaxPool2d(3, 2),
        nn.Conv2d(64, 192, 5, padding=2), nn.ReLU(), nn.MaxPool2d(3, 2),
        nn.Conv2d(192, 384, 3, padding=1), nn.ReLU(),
        nn.Conv2d(384, 256, 3, padding=1), nn.ReLU(),
        nn.Conv2d(256, 256, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3, 2),
        nn.Flatten(), nn.Linear(9216, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, _CLASSES),
    )  # fmt: skip


def _vgg16() -> nn.Module:
    def layers() -> Iterator[nn.Module]:
        channels = 3
        for wide, times in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
            for _ in range(times):
                yield nn.Conv2d(channels, wide, 3, padding=1)
                yield nn.ReLU()
                channels = wide
            yield nn.MaxPool2d(2)
        yield nn.Flatten()
        yield from (nn.Linear(25088, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, _CLASSES))

    return nn.Sequential(*layers())


class _Bottleneck(nn.Module):
    """A block of ResNet-50: narrow, look around, widen; what came in is added."""

    def __init__(self, channels: int, narrow: int, stride: int) -> None:
        super().__init__()
        wide = 4 * narrow
        self.path = nn.Sequential(
            nn.Conv2d(channels, narrow, 1, bias=False), nn.BatchNorm2d(narrow), nn.ReLU(),
            nn.Conv2d(narrow, narrow, 3, stride, 1, bias=False), nn.BatchNorm2d(narrow), nn.ReLU(),
            nn.Conv2d(narrow, wide, 1, bias=False), nn.BatchNorm2d(wide),
        )  # fmt: skip
        same = stride == 1 and channels == wide
        self.around = (
            nn.Identity()
            if same
            else nn.Sequential(nn.Conv2d(channels, wide, 1, stride, bias=False), nn.BatchNorm2d(wide))
        )

    def forward(self, given: Tensor) -> Tensor:
        return torch.relu(self.path(given) + self.around(given))


def _resnet50() -> nn.Module:
    blocks: list[nn.Module] = []
    channels = 64
    for narrow, times, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for number in range(times):
            blocks.append(_Bottleneck(channels, narrow, stride if number == 0 else 1))
            channels = 4 * narrow
    return nn.Sequential(
        nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1),
        *blocks,
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, _CLASSES),
    )  # fmt: skip


MODELS: dict[str, Callable[[], nn.Module]] = {
    SMALL: _small,
    "alexnet": _alexnet,
    "vgg16": _vgg16,
    "resnet50": _resnet50,
}
