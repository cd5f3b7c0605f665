"""The four measures of a reused image, on images whose measures are known."""

from __future__ import annotations

import numpy as np
import pytest

from shared.models.quality import BOUNDS, Measured, Measures, compare, likeness, look, spread

RNG = np.random.default_rng(7)
IMAGE = RNG.integers(0, 256, (16, 24, 3)).astype(np.uint8)
OTHER = RNG.integers(0, 256, (16, 24, 3)).astype(np.uint8)


def halved(image: np.ndarray) -> np.ndarray:
    """The image with half of the contrast around grey."""
    return (128 + (image.astype(float) - 128) / 2).astype(np.uint8)


def test_a_paler_image_has_less_of_the_look() -> None:
    plain, pale = look(IMAGE), look(halved(IMAGE))
    assert pale.contrast == pytest.approx(plain.contrast / 2, rel=0.02)  # type: ignore[operator]
    assert pale.sharpness == pytest.approx(plain.sharpness / 2, rel=0.02)  # type: ignore[operator]
    assert 0 < pale.saturation < plain.saturation  # type: ignore[operator]
    flat = look(np.full((8, 8, 3), 90, np.uint8))
    assert (flat.contrast, flat.saturation, flat.sharpness) == (0.0, 0.0, 0.0)


def test_equal_images_have_no_spread() -> None:
    assert spread([np.array([0.6, 0.8])] * 3) == pytest.approx(0.0)
    assert spread([np.array([1.0, 0.0]), np.array([0.0, 2.0])]) == pytest.approx(1.0)
    # of three pairs two are at right angles
    assert spread([np.array([1.0, 0.0]), np.array([1.0, 0.0]), np.array([0.0, 1.0])]) == pytest.approx(2 / 3)
    with pytest.raises(ValueError, match=r"at least two embeddings \(got 1\)"):
        spread([np.array([1.0])])


def test_likeness_is_one_for_the_source_itself_whatever_its_brightness() -> None:
    assert likeness(IMAGE, IMAGE) == pytest.approx(1.0)
    assert likeness(halved(IMAGE), IMAGE) == pytest.approx(1.0, abs=0.001)
    assert likeness(255 - IMAGE, IMAGE) == pytest.approx(-1.0)
    assert abs(likeness(OTHER, IMAGE)) < 0.1
    assert likeness(np.full_like(IMAGE, 5), IMAGE) == 0.0


def test_copies_of_a_source_are_one_less_vanillas_likeness() -> None:
    source, vanilla = IMAGE, OTHER
    copies = [Measures(likeness=likeness(source, source), spread=0.0)] * 4
    quality = compare(copies, [Measures(likeness=likeness(vanilla, source), spread=0.5)] * 4)
    assert quality.copying is not None
    assert quality.copying.value == pytest.approx(1 - likeness(vanilla, source))
    assert quality.variety == Measured(0.0, 0.0, 4)
    assert not BOUNDS["copying"].holds(quality.copying)
    assert not BOUNDS["variety"].holds(quality.variety)


def test_images_as_good_as_those_from_noise_hold_every_bound() -> None:
    images = [
        Measures(score=0.3 + i / 1000, shown=True, contrast=40.0 + i, saturation=90.0 + i, sharpness=9.0 + i,
                 spread=0.1 + i / 1000, likeness=i / 100)
        for i in range(80)
    ]  # fmt: skip
    quality = compare(images, images)
    for name, bound in BOUNDS.items():
        measured = getattr(quality, name)
        assert (measured.value, measured.count) == (pytest.approx(0.0 if bound.at_most else 1.0), 80)
        assert bound.holds(measured), name


def test_a_measure_counts_the_pairs_that_have_it_on_both_sides() -> None:
    some = [Measures(score=0.3, contrast=50.0), Measures(score=0.3), Measures(score=0.3, contrast=30.0)]
    noise = [Measures(score=0.3, contrast=50.0), Measures(score=0.3, contrast=50.0), Measures(score=0.3, contrast=50.0)]
    quality = compare(some, noise)
    assert quality.contrast is not None
    assert quality.contrast.value == pytest.approx(0.8)
    assert (quality.contrast.bound, quality.contrast.count) == (None, 2)  # two pairs prove nothing
    assert quality.fidelity is not None
    assert quality.fidelity.count == 3
    assert (quality.attributes, quality.variety, quality.copying) == (None, None, None)
    assert not BOUNDS["contrast"].holds(quality.contrast)
    assert not BOUNDS["variety"].holds(None)


def test_the_bound_of_a_mean_difference_is_on_its_far_side() -> None:
    reused = [Measures(likeness=value) for value in (0.0, 0.1, 0.2, 0.1)]
    quality = compare(reused, [Measures(likeness=0.05)] * 4)
    assert quality.copying is not None
    assert quality.copying.value == pytest.approx(0.05)
    # Student's t(.95, 3) = 2.353, sample deviation .0816
    assert quality.copying.bound == pytest.approx(0.05 + 2.353 * 0.0816 / 2, abs=0.003)
