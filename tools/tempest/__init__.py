# SPDX-License-Identifier: Apache-2.0

"""Tempest's tests of the compute API, and ours, on a local cloud.

``python -m tools.tempest --help`` says what can be chosen. What of Tempest is
left out, and why, is listed in ``unsupported.yaml`` beside this file.
"""
