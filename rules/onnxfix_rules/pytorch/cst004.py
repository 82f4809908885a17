"""Keep indices in the type in which they are computed.

PyTorch computes argmax in int64, and indexes by int64. Both exporters keep the two Casts, because they would change
indices beyond int32.
"""

import torch


class Before(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("codes", torch.rand(8, 4))

    def forward(self, x):
        best = x.argmax(-1).int()
        return self.codes[best.long()]


class After(Before):
    def forward(self, x):
        return self.codes[x.argmax(-1)]


def inputs():
    return (torch.rand(2, 3, 8),)
