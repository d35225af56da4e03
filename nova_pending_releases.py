# SPDX-License-Identifier: Apache-2.0

"""What differs between the releases of Nova that the tree is laid over.

The tree is written for nova_pending.RELEASE. On another release adjust()
changes what a file of the tree has defined before anybody reads it.
"""

import re

import nova_pending

#: The last microversion of each release: the number behind "2.".
LAST_MICROVERSION = {33: 103, 34: 104}

#: What the microversions of the tree are for, in their order.
FEATURES = ('pending', 'rebuild', 'reason')

#: The modules whose API_VERSION is the microversion of a feature.
API_VERSIONS = {
    'nova.compute.pending': 'pending',
    'nova.compute.rebuild_in_cell0': 'rebuild',
    'nova.compute.pending_reason': 'reason',
    'nova.compute.rebuild_correction': 'reason',
}


def microversions(release):
    """Return the microversion of each of FEATURES.

    They follow on the last microversion of the release.

    :param release: the series of the release, as 34
    """
    last = LAST_MICROVERSION[release]
    return {feature: '2.%d' % number
            for number, feature in enumerate(FEATURES, last + 1)}


def renumbered(release, text):
    """Return a text with the microversions as a release has them.

    :param release: the series of the release
    :param text: a text that names microversions, as "2.105", or has them in
        names, as rebuild_v2105, test_from_2_105 and v2.105/; those from the
        last one of nova_pending.RELEASE on are changed
    """
    newest = LAST_MICROVERSION[nova_pending.RELEASE]

    def number(match):
        found = int(match[2])
        # Without a dot others than ours are years, codes and the like.
        if found < newest or (match[1] != '2.' and
                              found > newest + len(FEATURES)):
            return match[0]
        return '%s%d' % (match[1], found + LAST_MICROVERSION[release] - newest)

    return re.sub(r'(?<![^\W_vV])(?<!\.)(2[._]?)(\d+)(?!\d)', number, text)


def adjust(release, module):
    """Change what a file of the tree has defined for a release.

    :param release: the series of the release
    :param module: the module, whose files have been run
    """
    name = module.__name__
    if name in API_VERSIONS:
        module.API_VERSION = microversions(release)[API_VERSIONS[name]]
    elif name == 'nova.api.openstack.api_version_request':
        module._MAX_API_VERSION = renumbered(release, module._MAX_API_VERSION)
        theirs = module.released.REST_API_VERSION_HISTORY
        ours = module.REST_API_VERSION_HISTORY.removeprefix(theirs)
        module.REST_API_VERSION_HISTORY = theirs + renumbered(release, ours)
    elif name == 'nova.api.validation':
        ending = module.ending
        module.ending = lambda kind, version, method: ending(
            kind, renumbered(release, version), method)
    for path, value in REPLACED.get(release, {}).get(name, {}).items():
        cls, member = path.split('.')
        setattr(getattr(module, cls), member, value)


def _enforce_unified_limits(self):
    """Check the unified limits as a create does.

    Neither what ports nor what accelerators ask for is counted.

    :raises: OverQuota
    """
    from nova.limit import placement
    placement.enforce_num_instances_and_flavor(
        self.owner, self.record.project_id, self.flavor,
        self.request_spec.is_bfv, 1, 1, delta_updates={'servers': 0})


#: The methods that have another body on a release: the module, Class.method.
REPLACED = {
    33: {
        'nova.compute.rebuild_request': {
            'Request._enforce_unified_limits': _enforce_unified_limits,
        },
    },
}
