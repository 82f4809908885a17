"""Cast an image of uint8 to float before it is permuted.

TensorRT takes uint8 only for a network's inputs and outputs, beside a Cast. The result is the same: permute only moves
elements.
"""

import torch


class Before(torch.nn.Module):
    def forward(self, image):
        return image.permute(0, 3, 1, 2).float() / 255


class After(torch.nn.Module):
    def forward(self, image):
        return image.float().permute(0, 3, 1, 2) / 255


def inputs():
    return (torch.randint(0, 256, (1, 4, 5, 3), dtype=torch.uint8),)
