# SPDX-License-Identifier: Apache-2.0

"""Draws the panels of nova-reaper's board for Grafana, without Grafana.

    pip install matplotlib
    python tools/browser/board.py http://127.0.0.1:9090 board.png

A Prometheus that has read nova-reaper for a while evaluates the expressions of
the board. Places, titles, units and legends are those of the board; colours
and shapes are not those of Grafana.
"""

import argparse
import json
import math
import pathlib
import re
import time
import urllib.parse
import urllib.request

from matplotlib import dates
from matplotlib import pyplot
from matplotlib import ticker

_BOARD = pathlib.Path(__file__).parents[2].joinpath(
    'reaper/etc/grafana/nova-reaper.json')
# The board has 24 columns. Inches of a column and of a row.
_WIDTH, _HEIGHT = 0.58, 0.25
_POINTS = 240
_UNITS = {
    's': lambda value, _: '%g s' % float('%.3g' % value),
    'bytes': lambda value, _: '%.0f MiB' % (value / 2 ** 20),
    'short': lambda value, _: '%g' % float('%.3g' % value)}


def _ask(prometheus, path, **query):
    with urllib.request.urlopen('%s/api/v1/%s?%s' % (
            prometheus, path, urllib.parse.urlencode(query))) as answer:
        return json.load(answer)['data']['result']


def _expression(target):
    return target['expr'].replace('$job', '.*')


def _legend(target, labels):
    return re.sub(r'\{\{ *(\w+) *\}\}', lambda match: labels.get(
        match.group(1), ''), target.get('legendFormat') or '')


def _draw_number(axes, panel, prometheus, end):
    [target] = panel['targets']
    found = _ask(prometheus, 'query', query=_expression(target), time=end)
    text = ', '.join(
        _legend(target, each['metric']) if target.get('legendFormat')
        else _unit(panel)(float(each['value'][1]), None) for each in found)
    axes.text(0.5, 0.45, text or 'No data', ha='center', va='center',
              fontsize=18, transform=axes.transAxes)
    axes.set(xticks=[], yticks=[])


def _draw_lines(axes, panel, prometheus, start, end):
    step = (end - start) / _POINTS
    for target in panel['targets']:
        for each in _ask(prometheus, 'query_range',
                         query=_expression(target), start=start, end=end,
                         step=step):
            found = {round((when - start) / step): float(value)
                     for when, value in each['values']}
            # There is no line where there is no value.
            values = [found.get(number, math.nan)
                      for number in range(_POINTS + 1)]
            if not all(map(math.isnan, values)):
                axes.plot([(start + number * step) / 86400
                           for number in range(_POINTS + 1)], values,
                          label=_legend(target, each['metric']),
                          linewidth=1.2)
    axes.yaxis.set_major_formatter(ticker.FuncFormatter(_unit(panel)))
    axes.yaxis.set_major_locator(ticker.MaxNLocator(4))
    axes.set_ylim(bottom=0)
    axes.set_xlim(start / 86400, end / 86400)
    axes.xaxis.set_major_locator(dates.AutoDateLocator(maxticks=5))
    axes.xaxis.set_major_formatter(dates.DateFormatter('%H:%M'))
    axes.grid(alpha=0.3)
    if axes.lines:
        axes.legend(loc='upper left', fontsize=6, ncols=2, framealpha=0.7)


def _unit(panel):
    return _UNITS[panel['fieldConfig']['defaults'].get('unit', 'short')]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('prometheus', metavar='URL')
    parser.add_argument('picture', metavar='FILE')
    parser.add_argument('--minutes', type=int, default=30,
                        help='how far back (%(default)s)')
    parser.add_argument('--rows', type=int, default=99,
                        help='how many of the rows of the board (all)')
    args = parser.parse_args()
    panels = json.loads(_BOARD.read_text())['panels']
    titles = [panel for panel in panels if panel['type'] == 'row']
    if args.rows < len(titles):
        below = titles[args.rows]['gridPos']['y']
        panels = [panel for panel in panels if panel['gridPos']['y'] < below]
    end = time.time()
    height = max(panel['gridPos']['y'] + panel['gridPos']['h']
                 for panel in panels)
    pyplot.rcParams.update({'font.size': 7, 'axes.titlesize': 8})
    figure = pyplot.figure(figsize=(24 * _WIDTH, height * _HEIGHT))
    for panel in panels:
        place = panel['gridPos']
        top = 1 - place['y'] / height
        if panel['type'] == 'row':
            figure.text(0.01, top - 0.7 / height, panel['title'],
                        fontsize=10, fontweight='bold')
            continue
        # Room for the title above, and for the numbers at the axes.
        stat = panel['type'] == 'stat'
        axes = figure.add_axes((
            place['x'] / 24 + (0.005 if stat else 0.035),
            top - (place['h'] - (0.3 if stat else 1)) / height,
            place['w'] / 24 - (0.01 if stat else 0.045),
            (place['h'] - (1.3 if stat else 2.2)) / height))
        axes.set_title(panel['title'], loc='left')
        if stat:
            _draw_number(axes, panel, args.prometheus, end)
        else:
            _draw_lines(axes, panel, args.prometheus,
                        end - 60 * args.minutes, end)
    figure.savefig(args.picture, dpi=100)


if __name__ == '__main__':
    main()
