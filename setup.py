"""Makes the extra `native` build tfdist-native from native/ in a checkout; pyproject.toml has everything else.

A requirement can name a folder by its absolute path only, which pyproject.toml cannot know. The sdist does not contain
the folder, so that neither the sdist nor the wheel that is made of it names a folder.
"""

from pathlib import Path

from setuptools import setup
from setuptools.command.egg_info import egg_info

NATIVE = Path(__file__).resolve().parent / "native"


class EggInfo(egg_info):
    """Writes the requirements."""

    def run(self) -> None:
        """Writes them; those of the extra `native` name the folder, if there is one."""
        if (NATIVE / "pyproject.toml").exists():
            self.distribution.extras_require["native"] = [f"tfdist-native @ {NATIVE.as_uri()}"]
        super().run()


setup(cmdclass={"egg_info": EggInfo})
