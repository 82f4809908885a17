"""Export with example inputs of int32 if the model takes them.

The graph's inputs have the types of the example inputs. An embedding takes int32 as well as int64.
"""

import torch


class Before(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.words = torch.nn.Embedding(16, 8)

    def forward(self, ids):
        return self.words(ids)


class After(Before):
    pass


def inputs():
    return (torch.tensor([[1, 2, 3]]),)


def inputs_after():
    return (torch.tensor([[1, 2, 3]], dtype=torch.int32),)
