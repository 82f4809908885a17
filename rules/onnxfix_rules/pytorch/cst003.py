"""Stay in half precision between two layers that compute in it.

The legacy exporter keeps both Casts. The dynamo exporter removes them.
"""

import torch

EXPORTERS = ("legacy",)


class Before(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(4, 8).half(), torch.nn.Linear(8, 4).half()

    def forward(self, x):
        hidden = self.up(x).relu().float()
        return self.down(hidden.half())


class After(Before):
    def forward(self, x):
        return self.down(self.up(x).relu())


def inputs():
    return (torch.rand(2, 4).half(),)
