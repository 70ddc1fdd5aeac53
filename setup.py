"""The build entry point: everything it needs to know is in setup.cfg."""

from setuptools import setup

setup()
