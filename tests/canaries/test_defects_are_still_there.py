"""Each guarded patch has a canary: a test that fails once upstream has fixed the defect. Then the patch is removed.

Each canary runs stock TensorFlow and Keras in processes of its own. If some tested releases of Keras do not have the
defect, the canary says which ones have it, and what the others do. In addition, the check `defect_present` of each mend
must find the defect in the releases for which the mend is made. tests/matrix runs the canaries with every release.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow as tf

from tests.canaries import keras_2, keras_3
from tests.canaries.stock import Canary
from tests.processes import ROOT
from tfdist.keras_compat import keras_in_use
from tfdist.keras_compat.registry import MENDS

KERAS_3 = not tf.keras.Model.__module__.startswith(("tf_keras", "keras.src.engine"))
CANARIES = (keras_3 if KERAS_3 else keras_2).CANARIES
RELEASES = keras_in_use().release, tuple(map(int, tf.__version__.split(".")[:2]))


@pytest.mark.parametrize("canary", CANARIES, ids=[canary.shows for canary in CANARIES])
def test_stock_keras_has_the_defect_in_the_releases_that_the_canary_names(canary: Canary, tmp_path: Path) -> None:
    assert canary.expected(*RELEASES) in canary.lines(tmp_path)


@pytest.mark.parametrize("canary", [*keras_3.CANARIES, *keras_2.CANARIES], ids=lambda canary: canary.shows)
def test_a_mend_is_made_for_the_releases_that_have_its_defect(canary: Canary) -> None:
    assert bool(canary.releases or canary.not_with_tensorflow) == bool(canary.otherwise)
    for mend in MENDS:
        if mend.name in canary.mends and canary.releases is not None:
            assert mend.versions[0] <= canary.releases[0] <= canary.releases[1] <= mend.versions[1]


@pytest.mark.parametrize(
    ("canaries", "kerases"), [(keras_3.CANARIES, {"keras3"}), (keras_2.CANARIES, {"tf_keras", "keras2"})]
)
def test_every_mend_has_a_canary(canaries: tuple[Canary, ...], kerases: set[str]) -> None:
    watched = {name for canary in canaries for name in canary.mends}
    assert watched == {mend.name for mend in MENDS if kerases & set(mend.keras)}


def test_every_mend_finds_its_defect_in_this_keras() -> None:
    program = (
        "from tfdist.keras_compat import keras_in_use\n"
        "from tfdist.keras_compat.registry import MENDS\n"
        "keras = keras_in_use()\n"
        "suiting = [mend for mend in MENDS if keras.name in mend.keras\n"
        "           and mend.versions[0] <= keras.release <= mend.versions[1]]\n"
        "assert suiting\n"
        "print('WITHOUT DEFECT', [mend.name for mend in suiting if not mend.defect_present()])\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert "WITHOUT DEFECT []" in ended.stdout, ended.stderr
