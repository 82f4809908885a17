"""Put the zeros between the elements of a dilated ConvTranspose2d with a stride into its kernel.

TensorRT builds a ConvTranspose with a stride or with a dilation, not with both. Call `widen` once the weights are
loaded: in forward, the dynamo exporter would not fold the zeros into a kernel of many elements.
"""

import torch

SAFETY = "numeric"


class Before(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up = torch.nn.ConvTranspose2d(2, 3, 3, stride=2, dilation=2)

    def forward(self, x):
        return self.up(x)


def widen(up):
    wide = torch.nn.ConvTranspose2d(up.in_channels, up.out_channels, 5, stride=up.stride)
    wide.weight.data.zero_()
    wide.weight.data[:, :, ::2, ::2] = up.weight.data
    wide.bias = up.bias
    return wide


class After(Before):
    def __init__(self):
        super().__init__()
        self.up = widen(self.up)


def inputs():
    return (torch.rand(1, 2, 5, 5),)
