"""The Helm chart of deploy/helm, and what Kubernetes makes of manifests; `make needs` fetches Helm and the schemas.

usage: deploy/chart.py lint                       prints what Helm finds amiss with the chart, a line each
       deploy/chart.py render [VALUES [RELEASE]]  prints what the chart renders, with VALUES (JSON) in place of the default
                                                  ones, for the release `tollgate` or RELEASE
       deploy/chart.py manifest                   prints deploy/kubernetes/tollgate.yaml: what it renders by default
       deploy/chart.py check VERSION              prints what Kubernetes VERSION would refuse of a manifest, which it reads
"""

import json
import sys

sys.path[:0] = ["target/python/helm", "target/python/schemas"]

import helm_python
import kubernetes_validate
import yaml

CHART = "deploy/helm"
HEADER = """\
# tollgate in front of a service of the cluster, with limits that its replicas share in Redis. Kubernetes 1.30 or newer.
#
#   kubectl apply --namespace NAMESPACE --filename deploy/kubernetes/tollgate.yaml
#
# To change: the image; the upstream, the limits and the trusted proxies in the config map; all files of the secret. At first
# no customer has a key, and no proxy is trusted.
# Config map and secrets are followed while tollgate runs, a minute or so after they change; a bad one changes nothing,
# and shows in the log and in tollgate_config_last_reload_successful. Addresses and the store take a restart.
# `tollgate check NEW --against OLD` tells before what a change does.
#
# deploy/chart.py makes this file of the chart in deploy/helm.
"""
INFO = 1  # a severity of Helm's


def lint() -> None:
    report = helm_python.lint(CHART, strict=True)
    for message in report["messages"]:
        if message["severity"] > INFO:
            print(message["path"], message["error"])
    for error in report["errors"]:
        print(error)


def render(values: str = "{}", release: str = "tollgate") -> str:
    with helm_python.Chart.load(CHART) as chart:
        rendered = chart.render(json.loads(values), name=release)
    return "".join(f"---\n{text.strip()}\n" for _, text in sorted(rendered.items()) if text.strip())


def check(version: str) -> None:
    for resource in yaml.safe_load_all(sys.stdin):
        where = f"{resource.get('kind')} {resource.get('metadata', {}).get('name')}:"
        try:
            kubernetes_validate.validate(resource, version, strict=True)
        except kubernetes_validate.SchemaNotFoundError as error:
            print(where, error.message)
        except kubernetes_validate.ValidationError as error:
            print(where, ".".join(map(str, error.path)), error.message)


match sys.argv[1:]:
    case ["lint"]:
        lint()
    case ["render", *rest] if len(rest) <= 2:
        print(render(*rest), end="")
    case ["manifest"]:
        print(HEADER + render(), end="")
    case ["check", version]:
        check(version)
    case _:
        sys.exit(__doc__)
