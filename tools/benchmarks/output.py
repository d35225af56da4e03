# SPDX-License-Identifier: Apache-2.0

"""How benchmarks print what they have measured."""


def print_row(what, *values):
    """Print a line: what was measured, and columns of values."""
    print('%-46s %s' % (what, ' '.join('%14s' % value for value in values)),
          flush=True)


def percentile(values, share):
    """Return the value that this share of the values does not exceed."""
    values = sorted(values)
    return values[min(len(values) - 1, int(len(values) * share))]
