"""Permute an image before it is cast to uint8.

TensorRT takes uint8 only for a network's inputs and outputs, beside a Cast. The result is the same: permute only moves
elements.
"""

import torch


class Before(torch.nn.Module):
    def forward(self, x):
        image = (x.sigmoid() * 255).round().to(torch.uint8)
        return image.permute(0, 2, 3, 1)


class After(torch.nn.Module):
    def forward(self, x):
        image = (x.sigmoid() * 255).round()
        return image.permute(0, 2, 3, 1).to(torch.uint8)


def inputs():
    return (torch.randn(1, 3, 4, 5),)
