"""Reads dashboards into Grafana's own types and writes them again: what is lost on the way, Grafana does not know.

Prints a line for everything lost. Takes the package of the types and the dashboards: `schema.py WHEEL FILE ...`.
"""

import json
import sys
import warnings


def lost(before, after, place=""):
    if isinstance(before, dict) and isinstance(after, dict):
        for key, value in before.items():
            if key in after:
                yield from lost(value, after[key], f"{place}.{key}")
            else:
                yield f"{place}.{key}"
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for number, (one, other) in enumerate(zip(before, after)):
            yield from lost(one, other, f"{place}[{number}]")
    elif before != after:
        yield f"{place}: {before!r} became {after!r}"


def main(wheel, files):
    sys.path.insert(0, wheel)
    # it advises a newer form of dashboards, which files cannot be provisioned from
    warnings.simplefilter("ignore")
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.cog.plugins import register_default_plugins
    from grafana_foundation_sdk.models.dashboard import Dashboard

    register_default_plugins()
    for file in files:
        with open(file) as text:
            before = json.load(text)
        after = json.loads(JSONEncoder().encode(Dashboard.from_json(before)))
        for place in lost(before, after):
            print(f"{file}: {place}")


main(sys.argv[1], sys.argv[2:])
