# SPDX-License-Identifier: Apache-2.0

"""Sentences in which Nova and nova-reaper say why a server waits.

Both send the sentences in English, and the catalogues of the panels translate
them. Only administrators read the sentences with numbers. A sentence that this
module does not have stays English.
"""

import re

from django.utils import formats
from django.utils import timezone
from django.utils.translation import gettext
from django.utils.translation import gettext_noop as _

from horizon.utils import filters

_SENTENCES = (
    # Nova: the message, the advice.
    _('No valid host was found.'),
    _('There are not enough hosts available.'),
    _('Quota exceeded for %(names)s: Requested %(wanted)s, but already used '
      '%(used)s of %(allowed)s %(same)s'),
    _('The last hosts were refused by %(names)s.'),
    _('There is a host that could take it now: rebuild the server.'),
    _('Rebuild the server with an availability zone that names no host, or '
      'ask the administrator for the host.'),
    _('Wait until there is room and rebuild the server, or rebuild it with a '
      'smaller flavor.'),
    _('Rebuild the server with a flavor, an image or an availability zone '
      'that the hosts with room accept, or ask the administrator what the '
      'filter requires.'),
    _('Delete the server and create it again.'),
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
    _('No such host'),
    _('No scheduler tells which hosts refuse the server.'),
    _('A service that the request of the server needs does not answer.'),
    # nova-reaper: why it waits.
    _('A host has room.'),
    _('Room can be made for it.'),
    _('It waits for its owner to ask: rebuild it at microversion 2.106 or '
      'later, or create such servers with the metadata reaper:wait=true.'),
    _('No host that could take it has room.'),
    _('The scheduler refuses the hosts that have room, or all that could '
      'take it.'),
    _('The host that it was created for is not there.'),
    _('No host could take it, even if the host were empty.'),
    _('Its build failed on a host.'),
    _('The quota of its project does not allow it.'),
    _('Nova does not say why it waits.'),
    _('Servers that could make room for it are protected for now.'),
    _('Its last try came to nothing.'),
    _('Room is kept for a server that waits before it.'),
    _('No server is ended to make room for it.'),
    _('No server is ended for it for an hour, because servers like it did not '
      'run after others had been ended for them.'),
    _('It has waited for too long.'),
    _('Volumes or secrets are made when it is built, so that only its owner '
      'can rebuild it.'),
    # nova-reaper: why it waits, with numbers, for administrators. A sentence
    # about hosts has two halves.
    _('%(could)s of %(hosts)s hosts could take it;'),
    _('none has room.'),
    _('none has room, except a host that is kept for a server ahead in the '
      'queue.'),
    _('none that is enabled and up has room.'),
    _('none that is enabled and up has room, except a host that is kept for a '
      'server ahead in the queue.'),
    _('none has room, and all are disabled or down.'),
    _('all of them are disabled or down.'),
    _('those with room are refused by %(names)s.'),
    _('those that are enabled and up are refused by %(names)s.'),
    _('those with room are refused by %(names)s, except a host that is kept '
      'for a server ahead in the queue.'),
    _('1 preemptible server on one host would have to go.'),
    _('%(number)s preemptible servers on one host would have to go.'),
    _('Others might do: there were too many sets to try all.'),
    _('There were too many sets of preemptible servers to try them all.'),
    _('The mode is %(mode)s: nobody is ended.'),
    _('Preemptible servers on %(number)s of the hosts would free enough and '
      'are protected for now.'),
    _('Preemptible servers would free enough on a host that is kept for a '
      'server ahead in the queue.'),
    _('The hosts where preemptible servers would free enough are looked at '
      'again.'),
    _('No preemptible servers on one host would free enough.'),
    _('No preemptible servers on one host would free enough that %(names)s '
      'would accept.'),
    _('Preemptible servers can make room for it.'),
    _('Room is made for other servers first, for as many as allowed.'),
    _('More servers would have to end than may end within an hour.'),
    _('Nobody is ended for a server that was shelved for another.'),
    _('Nobody is ended for a server that is in ERROR since its build failed.'),
    _('Nobody is ended for a server that asks for what only Placement can '
      'judge.'),
    _('The hosts that seem to have room are looked at again.'),
    _('A host has room, as far as it is its own; %(names)s would come from '
      'other providers, of which Placement knows.'),
    _('There is no host at all.'),
    _('No host has %(name)s.'),
    _('The server asks for %(amount)s %(name)s, and the largest host has '
      '%(most)s.'),
    _('The host that it was created for could not take it, even if the host '
      'were empty.'),
    _('No host has at once all that the server asks for: resources, traits '
      'and aggregates.'),
    # nova-reaper: how the last attempt ended, for administrators.
    _('Nobody is ended for the server until %(time)s: %(number)s of its '
      'kind did not run within the hour after others had been ended for '
      'them. The last one:'),
    _('Its project is over its quota.'),
    _('%(name)s would refuse the host all the same.'),
    _('%(name)s refuses the host.'),
    _('The host has not all that it needs of its own: nobody is ended for '
      'it.'),
    _('The host would not have room enough any more.'),
    _('A server that was to make room for it cannot be given notice.'),
    _('A server that was to make room for it is about to change.'),
    _('A server that was to make room for it is moving.'),
    _('A server that was to make room for it is gone.'),
    _('A server that was to make room for it is not preemptible.'),
    _('A server that was to make room for it is not on the host any more.'),
    _('A server that was to make room for it is %(status)s with the task '
      '%(task)s.'),
    _('A server that was to make room for it is locked by an administrator.'),
    _('A server that was to make room for it was launched a moment ago.'),
    _('The room would not be enough.'),
    _('The room was taken meanwhile.'),
    _('The operator lets a server live on that was to make room for it.'),
    _('It did not end in time.'),
    _('The hold is gone.'),
    _('The server waits no more.'),
    _('The server that waited was deleted.'),
    _('The host has no room for it any more.'),
    _('It cannot be looked at.'),
    _('Its flavor asks for what no host can have.'),
    _('No room can be held for it.'),
    _('Room is held for it on another host.'),
    _('Its build failed.'),
    _('Nova does not accept its rebuild.'),
    _('It waits again.'),
    _('It needs a rebuild by its owner, for volumes or secrets that are '
      'made when it is built:'),
    _('it is locked'),
    _('Keystone gives no token of project %(name)s:'),
    # nova-reaper: why a server is under notice, or was ended.
    _('Another server needs the room.'),
    _('A server of another project needs the room.'),
    _('Its run time ends.'),
    _('Its owner rehearses its end.'),
    # nova-reaper: why it is not well.
    _('turned off: the reaper polls'),
    _('none for %(seconds)s s: the reaper polls'),
    _('an administrator has paused the reaper at %(time)s'),
    _('the first is being read'),
    _('last full list %(seconds)s s ago'),
    _('%(number)s records are lost'),
    _('The full list of hosts is empty.'),
    _('The full list of hosts shrank from %(before)s to %(hosts)s.'),
    _('Placement knows nothing of %(number)s of %(hosts)s hosts that Nova '
      'has.'),
    _('Placement knows of no inventory of %(number)s of %(hosts)s hosts.'),
    _("The clock of this machine is %(seconds)s s ahead of Nova's."),
    _("The clock of this machine is %(seconds)s s behind Nova's."),
    _('its database cannot be used (%(name)s);'),
    _('%(number)s records wait, %(lost)s are lost'),
    _('it cannot be read'),
    _('ends and builds of before the start are not known'),
    _('nobody is ended before it tells whether the reaper is paused'),
    _('not asked yet'),
    _('the lock has expired'),
    # nova-reaper: why it does not say whether there is room.
    _('There is no such flavor: name the ID or the name of a flavor that the '
      'project may use.'),
    _('To decide for so many servers takes too long at the moment: ask for '
      'fewer.'),
    _('A project may ask %(number)s times a minute.'),
    _('Others ask as well.'),
    _('Ask again in %(seconds)s s.'),
    _('No server can be created from this request: %(reason)s'),
    _('Nova or Placement does not answer.'),
    _('The room on the hosts is not known yet.'),
    _('This needs the role reader in a project.'),
    _('This reaper stands by: ask the active one.'),
    _('The log of nova-reaper says more.'),
    # nova-reaper: why it does not rehearse the end of a server.
    _('There is no server %(server)s in your project, or you lack the role '
      'member there.'),
    _('The server is not preemptible.'),
    _('The server does not run, or has a task.'),
    _('The server has notice, or is about to have notice.'),
    _('The server has had a rehearsal within the last hour.'),
    _('The reaper ends no servers at the moment.'),
    _('Too many rehearsals are under way. Ask again.'),
    _('The reaper does not know all servers yet. Ask again.'),
    _('Nova does not answer. Ask again.'),
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
    _('It is built as soon as a host that the scheduler accepts has room.'),
    _('It is built as soon as there is room.'),
)

# The patterns of values that are neither a number nor a single word.
_VALUES = {'names': r'\w+(?:, \w+)*', 'time': '[0-9T:-]+Z'}


def _pattern_of(sentence):
    """Return what finds a sentence, with its values as groups."""
    # Each second part of an odd number of parts is the name of a value.
    parts = re.split(r'%\((\w+)\)s', sentence)
    return re.compile(''.join(
        '(?P<%s>%s)' % (part, _VALUES.get(part, r'[\w%-]+')) if number % 2
        else re.escape(part) for number, part in enumerate(parts)))


# The longest sentence comes first: no sentence is found within another.
_PATTERNS = [(_pattern_of(sentence), sentence)
             for sentence in sorted(_SENTENCES, key=len, reverse=True)]


def local_time(text):
    """Return a time of the API as the user reads it."""
    return formats.localize(timezone.template_localtime(
        filters.parse_isotime(text)))


def _translate(sentence, values):
    if 'time' in values:
        values['time'] = local_time(values['time'])
    # A time may end with "a.m.".
    return (gettext(sentence) % values).replace('..', '.')


def translate(text):
    """Return a text in which each sentence that is known is translated.

    Times in these sentences become those of the user's time zone.
    """
    for pattern, sentence in _PATTERNS:
        text = pattern.sub(lambda match: _translate(
            sentence, match.groupdict()), text)
    return text
