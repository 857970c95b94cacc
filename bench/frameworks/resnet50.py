"""ResNet-50 in plain PyTorch, by its layers, with random weights."""

from __future__ import annotations

from typing import Any

STAGES = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))
"""Width, blocks, and the stride of the first block."""

_WIDER = 4


def resnet50(torch: Any) -> Any:
    """(batch, 3, 224, 224) to (batch, 1000)."""
    nn: Any = torch.nn

    class Bottleneck(nn.Module):
        def __init__(self, inputs: int, width: int, stride: int) -> None:
            super().__init__()
            outputs = _WIDER * width
            self.body = nn.Sequential(
                nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
                nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
                nn.Conv2d(width, outputs, 1, bias=False), nn.BatchNorm2d(outputs),
            )  # fmt: skip
            same = stride == 1 and inputs == outputs
            self.beside = nn.Identity() if same else nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )  # fmt: skip
            self.end = nn.ReLU(inplace=True)

        def forward(self, given: Any) -> Any:
            return self.end(self.body(given) + self.beside(given))

    layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    inputs = 64
    for width, blocks, stride in STAGES:
        for block in range(blocks):
            layers.append(Bottleneck(inputs, width, 1 if block else stride))
            inputs = _WIDER * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 1000))
