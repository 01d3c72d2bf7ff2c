"""The kinds of arrays that the analysis is made of; what their axes are, docstrings say (`float[rank, step]`)."""

import numpy as np

Floats = np.ndarray[tuple[int], np.dtype[np.float64]]
Integers = np.ndarray[tuple[int], np.dtype[np.int64]]
Mask = np.ndarray[tuple[int], np.dtype[np.bool_]]
Matrix = np.ndarray[tuple[int, int], np.dtype[np.float64]]
IntMatrix = np.ndarray[tuple[int, int], np.dtype[np.int64]]
MaskMatrix = np.ndarray[tuple[int, int], np.dtype[np.bool_]]
