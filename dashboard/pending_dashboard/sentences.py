# SPDX-License-Identifier: Apache-2.0

"""Sentences in which Nova and nova-reaper say why a server waits.

Both send them in English. Here they are in the catalogues of the panels. A
sentence with numbers of hosts, which only administrators read, stays English,
and so does a sentence that is not here.
"""

import re

from django.utils.translation import gettext
from django.utils.translation import gettext_noop as _

_SENTENCES = (
    # Nova: the message, the advice.
    _('No valid host was found.'),
    _('There are not enough hosts available.'),
    _('There is a host that could take it now: rebuild the server.'),
    _('Rebuild the server with an availability zone that names no host, or '
      'ask the administrator for the host.'),
    _('Wait until there is room and rebuild the server, or rebuild it with a '
      'smaller flavor.'),
    _('Rebuild the server with a flavor, an image or an availability zone '
      'that the hosts with room accept, or ask the administrator what the '
      'filter requires.'),
    _('Delete the server and create it again without asking for this host, '
      'or ask the administrator for the host.'),
    _('Rebuild the server with a flavor, an image or an availability zone '
      'for which there are hosts: no host could take it, even if it were '
      'empty.'),
    _('Rebuild the server, with another image or flavor if the message says '
      'that one of them is the cause.'),
    _('Delete servers that are not needed or ask for more quota, and rebuild '
      'the server.'),
    _('Correct what the message says and rebuild the server, or ask the '
      'administrator.'),
    # nova-reaper: why it waits.
    _('A host has room.'),
    _('Room can be made for it.'),
    _('It waits for its owner to ask: rebuild it at microversion 2.106 or '
      'later, or create such servers with the metadata reaper:wait=true.'),
    _('No host that could take it has room.'),
    _('The scheduler refuses it the hosts that have room.'),
    _('The host that it was created for is not there.'),
    _('No host could take it, even if the host were empty.'),
    _('Its build failed on a host.'),
    _('The quota of its project does not allow it.'),
    _('Nova does not say why it waits.'),
    _('Servers that could make room for it are protected for now.'),
    _('Its last try came to nothing.'),
    _('Room is kept for a server that waits before it.'),
    _('No server is ended to make room for it.'),
    _('It has waited for too long.'),
    _('Volumes or secrets are made when it is built, so that only its owner '
      'can rebuild it.'),
    # nova-reaper: the advice to the owner.
    _('Nothing has to be done.'),
    _('With a smaller flavor it may run sooner.'),
    _('Another flavor, image or availability zone may be accepted. The '
      'administrator knows what the filters require.'),
    _('Delete it and create it again without asking for this host, or ask '
      'the administrator for the host.'),
    _('Rebuild it with a flavor, an image or an availability zone for which '
      'there are hosts.'),
    _('If the message names its image or its flavor as the cause, rebuild it '
      'with another.'),
    _('Delete servers that are not needed, or ask for more quota.'),
    _('Rebuild it, or delete it.'),
    _('Rebuild it at microversion 2.106 or later to have it wait, or delete '
      'it.'),
    # nova-reaper: what the service will do for the server.
    _('Nothing: it was set to ERROR.'),
    _('Nothing: the reaper only observes.'),
    _('If it still waits at %(time)s it is set to ERROR.'),
    _('It is being built.'),
    _('Room is being made for it; then it is built.'),
    _('Nothing, until its owner asks.'),
    _('Nothing: its owner has to rebuild it.'),
    _('It is tried again at %(time)s.'),
    _('It is built as soon as there is a host that can take it.'),
    _('It is built as soon as there is room.'),
)

# The longest first: none is found within another.
_PATTERNS = [
    (re.compile(re.escape(sentence).replace(
        re.escape('%(time)s'), r'(?P<time>\S+?)')), sentence)
    for sentence in sorted(_SENTENCES, key=len, reverse=True)]


def translate(text):
    """Return a text in which each sentence that is known is translated."""
    for pattern, sentence in _PATTERNS:
        text = pattern.sub(
            lambda match: gettext(sentence) % match.groupdict(), text)
    return text
