"""Figures of the paper, and of its authors' code on our files; typed by hand from their sources."""

from typing import NamedTuple


class Published(NamedTuple):
    """A row of the paper's Table 1 or 2; accuracies in percent, on the test set."""

    model: str
    accuracy: float
    parameters: str = ""
    hours: str = ""


PAPER = {
    "snli-100d-affine": Published("100D, without leaf LSTM", 81.8, "202k", "0.7"),
    "snli-100d": Published("100D", 82.6, "262k", "0.6"),
    "snli-300d-affine": Published("300D, without leaf LSTM", 84.4, "2.3M", "3.1"),
    "snli-300d": Published("300D", 85.6, "2.9M", "1.6"),
    "snli-600d": Published("600D", 86.0, "10.3M", "3.4"),
    "sst2": Published("SST-2, 300D", 90.7),
    "sst5": Published("SST-5, 300D", 53.7),
}
"""The Gumbel Tree-LSTM in Tables 1 and 2 of Choi, Yoo and Lee (AAAI 2018), by our recipe."""

OTHERS_SNLI = (
    Published("100D Latent Syntax Tree-LSTM (Yogatama et al. 2017)", 80.5, "500k", "72–96 *"),
    Published("100D CYK Tree-LSTM (Maillard et al. 2017)", 81.6, "231k", "240 *"),
    Published("300D LSTM (Bowman et al. 2016)", 80.6, "3.0M", "4 †"),
    Published("300D SPINN (Bowman et al. 2016)", 83.2, "3.7M", "67 †"),
    Published("300D NSE (Munkhdalai and Yu 2017a)", 84.6, "3.0M", "26 †"),
    Published("600D Gated-Attention BiLSTM (Chen et al. 2017)", 85.5, "11.6M", "8.5 †"),
    Published("Shortcut-Stacked BiLSTM (Nie and Bansal 2017)", 86.1, "140.2M", "3.8 †"),
)
"""Other models in Table 1 of the paper."""

OTHERS_SST = (
    ("DMN (Kumar et al. 2016)", "88.6", "52.1"),
    ("NSE (Munkhdalai and Yu 2017a)", "89.7", "52.8"),
    ("byte-mLSTM (Radford et al. 2017)", "91.8", "52.9"),
    ("BCN+Char+CoVe (McCann et al. 2017)", "90.3", "53.7"),
    ("RNTN (Socher et al. 2013)", "85.4", "45.7"),
    ("Constituency Tree-LSTM (Tai et al. 2015)", "88.0", "51.0"),
    ("NTI-SLSTM-LSTM (Munkhdalai and Yu 2017b)", "89.3", "53.1"),
    ("Latent Syntax Tree-LSTM (Yogatama et al. 2017)", "86.5", ""),
    ("Constituency Tree-LSTM + Recurrent Dropout (Looks et al. 2017)", "89.4", "52.3"),
)
"""Other models in Table 2 of the paper."""


class Reference(NamedTuple):
    """What other code reached on the same files; accuracies in percent, one for each run."""

    model: str
    recipes: tuple[str, ...]
    """Ours beside it."""
    split: str
    accuracies: tuple[float, ...]
    note: str = ""


# measured with the authors' model classes (their last version) on the same files
REFERENCE = (
    Reference("SST-2, 300D", ("sst2",), "test", (88.80,)),
    Reference("SST-5, 300D", ("sst5",), "test", (50.27,)),
    Reference(
        "SNLI part, 100D",
        ("snli-100d", "snli-100d-reference"),
        "dev",
        (76.76, 76.60, 76.47, 76.96),
        "on a file of `gumbeltree data prepare snli-100d`",
    ),
    Reference(
        "SNLI part, 100D",
        ("snli-100d", "snli-100d-reference"),
        "dev",
        (77.18,),
        "cut after 4.3 epochs; vocabulary with the words of development and test pairs",
    ),
    Reference(
        "SNLI part, 300D",
        ("snli-300d",),
        "dev",
        (78.61,),
        "cut after 4.4 epochs, still rising",
    ),
    Reference(
        "SNLI part, 300D",
        ("snli-300d",),
        "dev",
        (79.09,),
        "the same model in other code, trained to convergence",
    ),
)
