"""Compute a Gram matrix over many pixels in float32, and cast its means back.

In half precision a sum of 16384 products of two values of magnitude 2 exceeds 65504. Their mean does not.
"""

import torch

SAFETY = "numeric"


class Before(torch.nn.Module):
    def forward(self, x):
        rows = x.flatten(2)
        return rows @ rows.transpose(1, 2) / rows.shape[-1]


class After(torch.nn.Module):
    def forward(self, x):
        rows = x.flatten(2).float()
        return (rows @ rows.transpose(1, 2) / rows.shape[-1]).to(x.dtype)


def inputs():
    return (torch.randn(1, 3, 128, 128, dtype=torch.float16),)
