"""Differences that are known: which entry of docs/hazards.md and which rule of onnxfix speak of them."""
# Long because: it is the list itself, a few lines for each cause.

from __future__ import annotations

import re
from dataclasses import dataclass

from misimports.child import Said
from misimports.measure import Row

_RECURRENCES = ("GRU", "LSTM", "RNN")
_POOLS = ("AveragePool", "MaxPool", "LpPool")


@dataclass(frozen=True)
class Cause:
    """One way in which TensorRT reads a model differently.

    A row is of it where ``rule`` (the code of one of onnxfix's rules) speaks of the model, and ``operators``,
    ``changes`` (a regular expression for the change that the difference goes back to), ``model`` (one for its text)
    and ``what`` differs fit; empty ones fit all. ``hazard`` is an entry of docs/hazards.md, 0 for none. ``shows`` is a
    regular expression for the layers that give it away. ``alone``: ONNX Runtime or the evaluator shares the mistake, so
    that who is alone is right, by ONNX's text. ``mild``: a finding of severity info will do, where
    the rule cannot know.
    """

    title: str
    onnx: str
    tensorrt: str
    hazard: int = 0
    rule: str = ""
    operators: tuple[str, ...] = ()
    changes: str = ""
    model: str = ""
    what: tuple[str, ...] = ()
    shows: str = ""
    alone: bool = False
    mild: bool = False

    def fits(self, row: Row) -> bool:
        """Whether it is the cause of a row's difference."""
        found = row.found.judgment.difference
        return (
            (not self.operators or row.operator in self.operators)
            and (self.alone or row.differs)
            and re.search(self.changes, row.origin) is not None
            and re.search(self.model, row.found.text) is not None
            and (not self.what or (found is not None and found.what in self.what))
            and (not self.rule or any(self._is_said(one) for one in row.found.said))
        )

    def _is_said(self, one: Said) -> bool:
        return one.code == self.rule and (self.mild or one.severity != "info")


def cause_of(row: Row) -> Cause | None:
    """The first cause that fits."""
    return next((one for one in ALL if one.fits(row)), None)


#: What a rule speaks of.
KNOWN: tuple[Cause, ...] = (
    Cause(
        "`Trilu` without `upper`",
        "`upper` is 1 where it is left out",
        "0: it selects where the row is not less than the column",
        1,
        "OPS010",
        ("Trilu",),
        shows="ELEMENTWISE|SELECT",
    ),
    Cause(
        "Recurrence with `layout=1`",
        "the batch is the first axis of the inputs and of the outputs",
        "the attribute is ignored: the loop goes along axis 0, and Y_h has the directions first",
        2,
        "OPS011",
        _RECURRENCES,
        shows="ITERATOR|LOOP_OUTPUT",
    ),
    Cause(
        "`SpaceToDepth` with `mode=CRD`",
        "a channel's blocks lie together",
        "as in DCR: all channels of a block lie together",
        3,
        "OPS012",
        ("SpaceToDepth",),
        shows="SHUFFLE",
    ),
    Cause(
        "`ConvTranspose` with `output_shape` and an odd number to cut",
        "the larger half is cut at the start",
        "the larger half is cut at the end",
        4,
        "OPS013",
        ("ConvTranspose",),
        shows="DECONVOLUTION",
    ),
    Cause(
        "`ConvTranspose` with `auto_pad` beside `output_shape` or `output_padding`",
        "they decide the size",
        "they are ignored, or the padding is another one",
        5,
        "OPS014",
        ("ConvTranspose",),
        shows="DECONVOLUTION",
    ),
    Cause(
        "`Attention` with `nonpad_kv_seqlen`",
        "keys beyond the length are masked",
        "the input is not read",
        6,
        "OPS015",
        ("Attention",),
        model="nonpad_kv_seqlen",
        shows="ATTENTION",
    ),
    Cause(
        "`Attention` with a window",
        "keys outside of the window are masked",
        "the attributes are ignored",
        7,
        "OPS015",
        ("Attention",),
        model="window_size",
        shows="ATTENTION",
    ),
    Cause(
        "`Loop` that its condition ends early, with scan outputs",
        "as many rows as there were iterations",
        "as many rows as the trip count says, the rest of them undefined",
        8,
        "CTL001",
        ("Loop",),
        changes="^(?!.*trip_count=0)",  # of no iteration nothing can be read back: see EXCUSED
        what=("shape", "values"),
        shows="TRIP_LIMIT|LOOP_OUTPUT",
    ),
    Cause(
        "`auto_pad=VALID` together with `pads`",
        "forbids the mix; ONNX Runtime ignores the pads",
        "the pads are used",
        9,
        "OPS016",
        ("Conv", "ConvTranspose", *_POOLS),
        shows="CONVOLUTION|POOLING",
    ),
    Cause(
        "Graph input that a `Loop` reads as its condition",
        "an input is bound by its name",
        "the input gets the name that the loop's body has for the condition",
        10,
        "OPS017",
        ("Loop",),
        what=("interface",),
        shows="RECURRENCE|TRIP_LIMIT",
    ),
    Cause(
        "`GroupNormalization` of one group",
        "mean and variance are those of all channels together",
        "those of each channel: the layer is the one of an InstanceNormalization",
        11,
        "OPS072",
        ("GroupNormalization",),
        what=("values",),
        shows="NORMALIZATION",
    ),
    Cause(
        "Norms and squares over no axes",
        "the amount, the logarithm or the square of each element",
        "a copy of the data, and so does ONNX Runtime",
        12,
        "OPS073",
        ("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceSumSquare"),
        shows="REDUCE|IDENTITY|UNARY",
        alone=True,
    ),
    Cause(
        "`Clip` of int8 with constant bounds",
        "the elements are clipped to them",
        "the bounds count as 0, one that is left out as 3.4e38",
        13,
        "OPS074",
        ("Clip",),
        shows="ACTIVATION",
    ),
    Cause(
        "Pool with `ceil_mode=1` whose last window starts in the padding",
        "windows that would start in the right padding are left out",
        "they are computed: the output is larger, and of MaxPool -inf there",
        14,
        "OPS075",
        ("AveragePool", "MaxPool"),
        what=("shape",),
        shows="POOLING",
    ),
    Cause(
        "`LpPool` with a window over the edge",
        "the sum over what the window holds",
        "the mean over it times the size of a full window, and so does the evaluator",
        15,
        "OPS076",
        ("LpPool",),
        shows="POOLING|ELEMENTWISE",
        alone=True,
    ),
    Cause(
        "`NonMaxSuppression` of several classes",
        "rows are sorted by batch item, then class (as its two runtimes have it; ONNX does not say)",
        "rows are sorted by batch item, then score across the classes",
        16,
        "OPS077",
        ("NonMaxSuppression",),
        mild=True,
        what=("values",),
        shows="NMS",
    ),
    Cause(
        "`Resize` by scales that nodes compute",
        "coordinates are computed with the scales",
        "the layer is given the output's size, and computes with the quotient of the sizes",
        18,
        "OPS081",
        ("Resize",),
        shows="RESIZE",
    ),
    Cause(
        "`Resize` with scales of run time",
        "coordinates are computed with the scales",
        "the layer is given the output's size, and computes with the quotient of the sizes",
        61,
        "OPS071",
        ("Resize",),
        shows="RESIZE",
    ),
    Cause(
        "Quantization to uint8 without a zero point",
        "the output is uint8, from 0 to 255",
        "the output is int8, from -128 to 127",
        37,
        "QDQ004",
        ("QuantizeLinear",),
        shows="QUANTIZE",
    ),
    Cause(
        "Quantization to float8 with `saturate=0`",
        "numbers beyond the range become NaN",
        "they become the largest number",
        0,
        "QDQ015",
        ("QuantizeLinear",),
        "saturate",
        shows="QUANTIZE",
    ),
    Cause(
        "Vector times a stack of matrices of dynamic number",
        "the last axis but one goes",
        "axis 0 goes, which fails for any number of matrices but 1",
        0,
        "OPS064",
        ("MatMul",),
        what=("fails", "shape"),
        shows="SQUEEZE",
    ),
    Cause(
        "`Clip` with a least value above the greatest",
        "every element becomes the greatest value",
        "the layer has the two as they are, and takes the least value last",
        73,
        "OPS034",
        ("Clip",),
        shows="ACTIVATION|ELEMENTWISE",
    ),
    Cause(
        "float64 beyond float32's range",
        "float64 holds it, and infinity",
        "constants are float32, and clamped to its largest number",
        46,
        "IFC003",
        ("Cast", "CastLike"),
        what=("values",),
        shows="CONSTANT",
    ),
    Cause(
        "`Squeeze` without axes on dynamic dimensions",
        "whatever is 1 at run time goes",
        "what may be anything stays",
        47,
        "RSH009",
        ("Squeeze",),
        what=("shape", "fails"),
        shows="SQUEEZE|SHUFFLE",
    ),
    Cause(
        "Recurrence with the activation `Softplus`",
        "log(1 + exp(x)), or with `activation_alpha` and `activation_beta`",
        "the layer's alpha and beta are 0, whatever the attributes say: the gate is 0",
        hazard=24,
        rule="OPS082",
        operators=_RECURRENCES,
        changes="activations",
        model="Softplus",
        what=("values",),
        shows="ACTIVATION.*SOFTPLUS",
    ),
    Cause(
        "`ConvTranspose` with `output_padding` and an `output_shape` beyond it",
        "the output has that shape",
        "the excess over `output_padding` is ignored",
        hazard=25,
        rule="OPS083",
        operators=("ConvTranspose",),
        model=r"output_padding[^>]*output_shape|output_shape[^>]*output_padding",
        what=("shape",),
        shows="DECONVOLUTION|SLICE|CONSTANT",
    ),
    Cause(
        "`Mod` of floats with `fmod=1`",
        "the exact remainder, and x where y is infinite",
        "x - y * trunc(x / y) in floats: NaN for an infinite y, wrong for large quotients",
        hazard=26,
        rule="OPS084",
        mild=True,
        operators=("Mod",),
        changes="fmod",
        what=("values",),
        shows="DIV|PROD|SUB",
    ),
    Cause(
        "Graph input that is a graph output too",
        "an input is bound by its name",
        "the input is called otherwise: two underscores come before its name",
        hazard=27,
        rule="OPS085",
        changes="at run time",
        what=("interface",),
    ),
    Cause(
        "`Attention` with a mask shorter than the keys, of dynamic size",
        "the mask is continued with -inf",
        "the mask is used as it is, which does not fit",
        hazard=28,
        rule="OPS086",
        mild=True,
        operators=("Attention",),
        what=("fails",),
        shows="ATTENTION",
    ),
    Cause(
        "`Mean` of half precision",
        "the sum, divided by the number of inputs",
        "the sum times the lower half of the bits of 1/n in float32",
        rule="OPS105",
        operators=("Mean",),
        shows="PROD",
    ),
    Cause(
        "`Clip` of bfloat16 without a bound",
        "nothing is clipped on that side",
        "clipped at 0 on that side",
        rule="OPS106",
        operators=("Clip",),
        shows="ELEMENTWISE",
    ),
    Cause("float64", "float64", "float32", 16, "IFC002", what=("type",)),
)
#: What no rule speaks of yet.
OPEN: tuple[Cause, ...] = (
    Cause(
        "`Attention` with a row that is masked altogether",
        "0 in that row",
        "the softmax of nothing but -inf, by the definition of the layer NaN; what a kernel does is not documented",
        operators=("Attention",),
        what=("values",),
        shows="ATTENTION",
    ),
)
#: What was looked at by hand and is no fault of TensorRT's reading.
EXCUSED: tuple[Cause, ...] = (
    Cause(
        "`LSTM` with `clip`",
        "the input of every activation is clipped (as the text says; ONNX Runtime leaves out that of the cell)",
        "as the text says",
        operators=("LSTM",),
        changes="clip",
        what=("values",),
    ),
    Cause(
        "`LSTM`, `GRU`, `RNN` with `ScaledTanh` or `ThresholdedRelu` and no alpha",
        "says nothing of the defaults of ScaledTanh; of ThresholdedRelu it is 1, ONNX Runtime takes another",
        "1 for both",
        operators=_RECURRENCES,
        changes="activations",
        model="ScaledTanh|ThresholdedRelu",
        what=("values",),
    ),
    Cause(
        "Window of `MaxPool` within the padding",
        "ONNX Runtime refuses it, the evaluator makes it 0",
        "-inf, the largest of nothing, or a row more",
        operators=("MaxPool",),
        what=("values", "shape"),
        model=r"pads: ints = ",
    ),
    Cause(
        "`MaxPool` with `auto_pad=SAME_*` and strides beyond the kernel",
        "padding is negative by its formula; ONNX Runtime fails, the evaluator cuts the input",
        "no padding",
        operators=("MaxPool",),
        changes="auto_pad=SAME",
        what=("values",),
    ),
    Cause(
        "`exclude_outside` of another mode than cubic",
        "ONNX Runtime refuses it; the evaluator makes 0 of what lies outside",
        "nothing of it",
        operators=("Resize",),
        changes="exclude_outside",
        what=("values",),
    ),
    Cause(
        "`Loop` of no iteration",
        "the rows' size is declared in the body",
        "the same; the model that is read back has no iteration to tell it from",
        operators=("Loop",),
        changes="trip_count=0",
        what=("shape",),
    ),
)
ALL = (*KNOWN, *OPEN, *EXCUSED)
