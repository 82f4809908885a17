"""Pool and unpool windows with amax, argmax and where, in place of MaxPool's indices.

TensorRT's MaxPool has no indices. Windows that do not overlap are axes of the reshaped image. The legacy exporter does
not export max_unpool2d.
"""

import torch
import torch.nn.functional as F

EXPORTERS = ("dynamo",)


class Before(torch.nn.Module):
    def forward(self, x):
        pooled, indices = F.max_pool2d(x, 2, return_indices=True)
        return F.max_unpool2d(pooled.tanh(), indices, 2)


class After(torch.nn.Module):
    def forward(self, x):
        windows = x.unflatten(3, (-1, 2)).unflatten(2, (-1, 2)).transpose(3, 4).flatten(4)
        place = windows.argmax(-1, keepdim=True)
        pooled = windows.amax(-1, keepdim=True)
        y = torch.where(torch.arange(4, device=x.device) == place, pooled.tanh(), 0.0)
        return y.unflatten(4, (2, 2)).transpose(3, 4).flatten(4, 5).flatten(2, 3)


def inputs():
    return (torch.rand(1, 2, 4, 6),)
