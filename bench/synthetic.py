"""Seeded samples for the built models: smooth images, and token ids of varying length."""

from __future__ import annotations

import numpy as np
from bert_base import SEQUENCE, VOCABULARY

Feed = dict[str, np.ndarray]

SIDE = 224
OCTAVES = (4, 7, 14, 28, 56, 112)
"""Sizes of the noise that an image is a sum of; the coarser, the stronger, as in natural images."""

FIRST, LAST = 101, 102
"""The ids that begin and end a text."""

SHORTEST = 12


def images(count: int, seed: int) -> Feed:
    """Images of varying brightness, contrast and sharpness, in the range of normalized images."""
    rng = np.random.default_rng(seed)
    ramps = [ramp(size) for size in OCTAVES]
    found = np.empty((count, 3, SIDE, SIDE), np.float32)
    for image in found:
        image[...] = rng.normal(0, 0.6, (3, 1, 1))
        falling = rng.uniform(0.6, 1.2)
        contrast = rng.uniform(0.3, 1.2)
        for wide in ramps:
            noise = rng.standard_normal((3, wide.shape[1], wide.shape[1]), dtype=np.float32)
            size = contrast * (OCTAVES[0] / wide.shape[1]) ** falling
            image += np.float32(size) * (wide @ noise @ wide.T)
    return {"image": np.clip(found, -2.2, 2.7)}


def ramp(size: int) -> np.ndarray:
    """The matrix that interpolates `size` values linearly to the length of a side."""
    distances = np.abs(np.linspace(0, size - 1, SIDE)[:, None] - np.arange(size))
    ramps: np.ndarray = np.clip(1 - distances, 0, 1).astype(np.float32)
    return ramps


def tokens(count: int, seed: int) -> Feed:
    """Texts of 12 to 128 tokens, padded with zeros; frequent ids are small."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(SHORTEST, SEQUENCE + 1, count)
    mask = np.arange(SEQUENCE) < lengths[:, None]
    ids = 1000 + ((VOCABULARY - 1000) ** rng.random((count, SEQUENCE))).astype(np.int64)
    ids[:, 0] = FIRST
    ids[np.arange(count), lengths - 1] = LAST
    return {"input_ids": np.where(mask, ids, 0), "attention_mask": mask.astype(np.int64)}
