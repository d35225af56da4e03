# SPDX-License-Identifier: Apache-2.0

"""Gives the distribution the version of the tree that it is made from."""

import email
import pathlib
import sys

import setuptools


def find_version():
    """Return the version of an sdist, or of the tree that has osc/."""
    info = pathlib.Path('PKG-INFO')
    if info.exists():
        return email.message_from_string(info.read_text('utf-8'))['Version']
    sys.path.insert(0, '../tools')
    import nova_pending_version
    return nova_pending_version.find()


setuptools.setup(version=find_version())
