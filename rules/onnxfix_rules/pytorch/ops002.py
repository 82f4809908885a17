"""Cast an image of uint8 to float before its maximum is taken.

TensorRT takes uint8 only for a network's inputs and outputs, beside a Cast; nearly all operators refuse it. The result
is the same: float32 holds all values of uint8.
"""

import torch

OPERATORS = ("ReduceMax", "ReduceMin")


class Before(torch.nn.Module):
    def forward(self, image):
        brightest = image.amax((1, 2, 3), keepdim=True)
        return image.float() / brightest


class After(torch.nn.Module):
    def forward(self, image):
        image = image.float()
        return image / image.amax((1, 2, 3), keepdim=True)


def inputs():
    return (torch.randint(1, 256, (2, 3, 4, 5), dtype=torch.uint8),)
