"""Write out the determinant of a small matrix.

Both exporters write torch.linalg.det as Det, which TensorRT does not import. For three rows a, b, c the determinant is
`(a * torch.linalg.cross(b, c)).sum(-1)`.
"""

import torch

SAFETY = "numeric"


class Before(torch.nn.Module):
    def forward(self, jacobian):
        return torch.linalg.det(jacobian).abs()


class After(torch.nn.Module):
    def forward(self, jacobian):
        a, b, c, d = jacobian.flatten(-2).unbind(-1)
        return (a * d - b * c).abs()


def inputs():
    return (torch.rand(3, 2, 2),)
