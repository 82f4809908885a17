"""Convert NumPy constants to float32 before they meet the data.

NumPy computes in float64. One such constant makes all that follows float64, which TensorRT computes in float32.
"""

import numpy as np
import torch

SAFETY = "numeric"


class Before(torch.nn.Module):
    def __init__(self):
        super().__init__()
        mean = np.array([0.485, 0.456, 0.406]).reshape(3, 1, 1)
        self.register_buffer("mean", torch.from_numpy(mean))

    def forward(self, x):
        return (x - self.mean).float()


class After(torch.nn.Module):
    def __init__(self):
        super().__init__()
        mean = np.array([0.485, 0.456, 0.406]).reshape(3, 1, 1)
        self.register_buffer("mean", torch.from_numpy(mean).float())

    def forward(self, x):
        return x - self.mean


def inputs():
    return (torch.rand(1, 3, 4, 4),)
