"""Give a scale or an offset the rank of the tensor that it is applied to.

Both exporters store a vector as it is, and PyTorch and ONNX broadcast it. TensorRT needs equal ranks, and inserts a
layer that reshapes the vector. Axes of 1 in front change no value.
"""

import torch


class Before(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.rand(8))

    def forward(self, x):
        return torch.relu(x) * self.scale


class After(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.rand(1, 1, 8))

    def forward(self, x):
        return torch.relu(x) * self.scale


def inputs():
    return (torch.rand(2, 4, 8),)
