"""Name the axes that squeeze removes.

Without axes, squeeze also removes the batch if that is 1, so that the rank of its result depends on the batch.
"""

import torch

EXPORT = {
    "dynamic_axes": {"x": {0: "batch"}},
    "dynamic_shapes": {"x": {0: torch.export.Dim("batch")}},
}


class Before(torch.nn.Module):
    def forward(self, x):
        return x.mean(1, keepdim=True).squeeze()


class After(torch.nn.Module):
    def forward(self, x):
        return x.mean(1, keepdim=True).squeeze(1)


def inputs():
    return (torch.rand(2, 4, 8),)
