"""What dashboards, rules and the console page ask of Prometheus, and how to ask it."""

import glob
import json
import os
import re
import urllib.error
import urllib.parse
import urllib.request

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
PROMETHEUS = os.path.join(ROOT, "deploy", "prometheus")
DASHBOARDS = os.path.join(ROOT, "deploy", "grafana", "dashboards")
CONSOLE = os.path.join(PROMETHEUS, "consoles", "attend.html")

# What Grafana and the console put in for their variables.
VARIABLES = {"$__rate_interval": "30s", "$w": "30s", "$job": "attend", "$instance": ".*",
             "${job}": "attend", "${instance}": ".*"}


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def dashboard_queries():
    """(panel, expression) of every panel of every dashboard."""
    for path in sorted(glob.glob(os.path.join(DASHBOARDS, "*.json"))):
        for panel in json.loads(read(path))["panels"]:
            for target in panel.get("targets", []):
                yield f"{os.path.basename(path)}: {panel['title']}", target["expr"]


def console_queries():
    """(plot, expression) of every tile and plot of the console page."""
    block = re.search(r'<script type="application/json" id="queries">(.*?)</script>', read(CONSOLE),
                      re.DOTALL)
    queries = json.loads(block.group(1))
    for tile in queries["tiles"]:
        yield f"console: {tile['title']}", tile["query"]
    for plot in queries["plots"]:
        for query in plot["queries"].values():
            yield f"console: {plot['title']}", query


def queries():
    for where, expression in [*dashboard_queries(), *console_queries()]:
        for name, value in VARIABLES.items():
            expression = expression.replace(name, value)
        yield where, expression


def names_in(text):
    """Metric names in PromQL or the like; recording rules (names with colons) are not metrics."""
    text = re.sub(r"\w+:\w+:\w+", " ", text)
    return set(re.findall(r"\b(?:attend|process)_[a-z0-9_]+\b", text))


def used_names():
    """{metric name: where it is used} over dashboards, rules and console."""
    found = {}
    for path in sorted(glob.glob(os.path.join(DASHBOARDS, "*.json"))):
        dashboard = json.loads(read(path))
        texts = [expression for _, expression in dashboard_queries()]
        texts += [item["query"]["query"] for item in dashboard["templating"]["list"]
                  if isinstance(item["query"], dict)]
        for name in names_in("\n".join(texts)):
            found.setdefault(name, os.path.basename(path))
    for path in sorted(glob.glob(os.path.join(PROMETHEUS, "rules", "*.yml"))) + [CONSOLE]:
        for name in names_in(read(path)):
            found.setdefault(name, os.path.basename(path))
    return found


def exported_names(exposition):
    """Names that the samples of a scrape carry."""
    lines = (line for line in exposition.splitlines() if line and not line.startswith("#"))
    return {re.match(r"[a-zA-Z0-9_:]+", line).group(0) for line in lines}


def ask(prometheus, kind, **parameters):
    """The data of one call of Prometheus' HTTP API; raises RuntimeError with its words."""
    url = f"{prometheus}/api/v1/{kind}?{urllib.parse.urlencode(parameters)}"
    try:
        with urllib.request.urlopen(url, timeout=20) as reply:
            return json.load(reply)["data"]
    except urllib.error.HTTPError as error:
        raise RuntimeError(json.load(error).get("error", str(error))) from error


def check_queries(prometheus):
    """Complaints about queries that fail or return nothing (NaN counts as nothing)."""
    complaints, count = [], 0
    for where, expression in queries():
        count += 1
        try:
            result = ask(prometheus, "query", query=expression)["result"]
        except RuntimeError as error:
            complaints.append(f"{where}: {error}: {expression}")
            continue
        if not any(sample["value"][1] != "NaN" for sample in result):
            complaints.append(f"{where}: no data: {expression}")
    if count < 40:
        complaints.append(f"only {count} queries found: the files were not understood")
    return complaints


def check_names(exposition):
    """Complaints about metrics that are used and not exported."""
    exported = exported_names(exposition)
    used = used_names()
    if len(used) < 20:
        return [f"only {len(used)} metric names found: the files were not understood"]
    return [f"{where} uses {name}, which the server does not export"
            for name, where in sorted(used.items())
            if name not in exported and f"{name}_count" not in exported]
