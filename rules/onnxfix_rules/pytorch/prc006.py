"""Scale the queries before the product, not the scores after.

In half precision the product of queries and keys may exceed 65504 although the scaled scores do not.
F.scaled_dot_product_attention scales before the product, too.
"""

import torch

SAFETY = "numeric"


class Before(torch.nn.Module):
    def forward(self, q, k, v):
        scores = q @ k.transpose(-2, -1) / 8**0.5
        return scores.softmax(-1) @ v


class After(torch.nn.Module):
    def forward(self, q, k, v):
        scores = (q / 8**0.5) @ k.transpose(-2, -1)
        return scores.softmax(-1) @ v


def inputs():
    return tuple(torch.randn(1, 2, 4, 8, dtype=torch.float16) for _ in range(3))
