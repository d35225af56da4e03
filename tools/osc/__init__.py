# SPDX-License-Identifier: Apache-2.0

"""Runs the openstack client and its plugin on the local cloud.

``tox -e osc-cloud`` brings a cloud up once and runs the tests of this
directory on it.
"""
