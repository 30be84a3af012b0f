"""Writes the dashboards: `python3 dashboards/make.py [FOLDER]`. A test holds the files against this.

A dashboard is a list of rows, a row a list of panels, a panel a title, what it tells, a unit and its queries. All else
(places, identifiers, looks) follows. NODE, ROUTE, LIMIT and PAIR stand for the choices made at the top of a dashboard.

A panel that has nothing to show on a healthy or small installation says so in a sentence that begins with "Empty".
"""

import json
import pathlib
import sys

SOURCE = {"type": "prometheus", "uid": "${datasource}"}
CHOICES = {
    "NODE": 'job=~"$job",instance=~"$instance"',
    "ROUTE": 'job=~"$job",instance=~"$instance",route=~"$route"',
    "LIMIT": 'job=~"$job",instance=~"$instance",limit=~"$limit",plan=~"$plan"',
    "PAIR": 'job=~"$job",instance=~"$instance",route=~"$route",limit=~"$limit",plan=~"$plan"',
}
RED, YELLOW, GREEN = "red", "yellow", "green"
TOKENS = "suffix: tokens/s"


# === parts ===


def query(expression, legend, **more):
    for word, choice in CHOICES.items():
        expression = expression.replace("{" + word, "{" + choice)
    expression = expression.replace("[I]", "[$__rate_interval]")
    return {"datasource": SOURCE, "editorMode": "code", "expr": expression, "legendFormat": legend, "range": True, **more}


def panel(kind, title, tells, unit, queries, options, width=8, height=8, custom=None, overrides=(), defaults=None, **more):
    for number, one in enumerate(queries):
        one["refId"] = chr(ord("A") + number)
    fields = {"unit": unit, **(defaults or {})}
    if custom is not None:
        fields["custom"] = custom
    return {
        "type": kind,
        "title": title,
        "description": tells,
        "datasource": SOURCE,
        "gridPos": {"w": width, "h": height},
        "fieldConfig": {"defaults": fields, "overrides": list(overrides)},
        "options": options,
        "targets": queries,
        **more,
    }


def lines(title, tells, unit, *queries, stacked=False, **more):
    custom = {
        "drawStyle": "line",
        "lineWidth": 1,
        "fillOpacity": 25 if stacked else 5,
        "showPoints": "never",
        "stacking": {"group": "A", "mode": "normal" if stacked else "none"},
    }
    options = {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
    defaults = {"min": 0, **more.pop("defaults", {})}
    if more.pop("below_zero", False):
        del defaults["min"]
    return panel("timeseries", title, tells, unit, queries, options, custom=custom, defaults=defaults, **more)


def percentiles(title, tells, selection, *by, shares=(0.5, 0.99), **more):
    """Lines for shares of a histogram."""
    legend = " ".join("{{%s}}" % label for label in by)
    groups = ", ".join((*by, "le"))
    queries = [
        query(
            f"histogram_quantile({share}, sum by ({groups}) (rate({selection}[I])))",
            f"{legend} p{share * 100:g}".strip(),
        )
        for share in shares
    ]
    return lines(title, tells, "s", *queries, **more)


def number(title, tells, unit, expression, steps=(), mappings=(), **more):
    """One number now. `steps` are values from which on it has another colour."""
    thresholds = [{"color": GREEN, "value": None}, *({"color": color, "value": value} for value, color in steps)]
    options = {
        "colorMode": "value",
        "graphMode": "area",
        "justifyMode": "auto",
        "orientation": "auto",
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "textMode": "auto",
    }
    defaults = {"thresholds": {"mode": "absolute", "steps": thresholds}, "mappings": list(mappings)}
    return panel(
        "stat", title, tells, unit, [query(expression, "")], options, width=more.pop("width", 4), height=4, defaults=defaults, **more
    )


def table(title, tells, unit, *queries, columns=None, sort=None, overrides=(), **more):
    """What holds now, a row for each series. `columns` are names in place of those that queries have."""
    for one in queries:
        one.update({"instant": True, "range": False, "format": "table"})
    hidden = {"Time": True, "job": True, "instance": True, "__name__": True}
    transformations = [
        {"id": "merge", "options": {}},
        {"id": "organize", "options": {"excludeByName": hidden, "indexByName": {}, "renameByName": columns or {}}},
    ]
    options = {"showHeader": True, "cellHeight": "sm", "sortBy": [{"displayName": sort, "desc": True}] if sort else []}
    return panel(
        "table", title, tells, unit, queries, options, custom={"filterable": True}, transformations=transformations, overrides=overrides, **more
    )


def heat(title, tells, unit, expression, **more):
    options = {
        "calculate": False,
        "cellGap": 1,
        "color": {"mode": "scheme", "scheme": "Oranges", "steps": 64},
        "legend": {"show": True},
        "tooltip": {"mode": "single", "yHistogram": False},
        "yAxis": {"axisPlacement": "left", "unit": unit},
    }
    return panel("heatmap", title, tells, unit, [query(expression, "{{le}}", format="heatmap")], options, **more)


def states(title, tells, expression, legend, words, **more):
    """What something is over time; `words` are (name, colour) for the values 0, 1, 2, ..."""
    options = {
        "alignValue": "left",
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
        "mergeValues": True,
        "rowHeight": 0.8,
        "showValue": "auto",
        "tooltip": {"mode": "single", "sort": "none"},
    }
    custom = {"fillOpacity": 70, "lineWidth": 0}
    defaults = {"mappings": [named(words)]}
    return panel("state-timeline", title, tells, "none", [query(expression, legend)], options, custom=custom, defaults=defaults, **more)


def named(words):
    options = {str(value): {"text": text, "color": color, "index": value} for value, (text, color) in enumerate(words)}
    return {"type": "value", "options": options}


def look(ref, **properties):
    """How the series of one query look."""
    shown = [{"id": name, "value": value} for name, value in properties.items()]
    return {"matcher": {"id": "byFrameRefID", "options": ref}, "properties": shown}


def column(name, **properties):
    """How a column of a table looks."""
    shown = [{"id": name, "value": value} for name, value in properties.items()]
    return {"matcher": {"id": "byName", "options": name}, "properties": shown}


CONFIGURED = {"color": {"mode": "fixed", "fixedColor": "text"}, "custom.lineStyle": {"fill": "dash", "dash": [8, 8]}, "custom.fillOpacity": 0}


# === the three dashboards ===

OVERVIEW = {
    "Now": [
        number("Requests", "Requests answered per second, all routes.", "reqps", "sum(rate(tollgate_http_requests_total{NODE}[I]))"),
        number(
            "Denied",
            "Share of all requests that a limit denied. Customers over their limit are the product working; a jump is worth a look.",
            "percentunit",
            'sum(rate(tollgate_limit_requests_total{NODE,outcome=~"denied|banned"}[I])) / sum(rate(tollgate_http_requests_total{NODE}[I]) > 0)',
            steps=[(0.2, YELLOW)],
        ),
        number(
            "Slowest hundredth",
            "99 % of requests are answered in this time or less, the upstream's time and waits for a turn included.",
            "s",
            "histogram_quantile(0.99, sum by (le) (rate(tollgate_http_request_duration_seconds_bucket{NODE}[I])))",
            width=3,
        ),
        number(
            "Server errors",
            "Share of requests answered with 5xx, by upstreams or by the gateway.",
            "percentunit",
            '(sum(rate(tollgate_http_requests_total{NODE,code=~"5.."}[I])) or vector(0)) / sum(rate(tollgate_http_requests_total{NODE}[I]) > 0)',
            steps=[(0.01, YELLOW), (0.05, RED)],
            width=3,
        ),
        number(
            "Redis",
            "Whether any gateway leaves Redis alone because calls fail. Empty without `store:`.",
            "none",
            'max(tollgate_store_breaker_state{NODE,state!="closed"})',
            steps=[(1, RED)],
            mappings=[named([("answers", GREEN), ("away", RED)])],
            width=3,
        ),
        number("Gateways up", "Gateways that Prometheus reaches.", "none", "sum(up{NODE})", width=3),
        number(
            "Configurations",
            "Different configurations in force. More than one for longer than a rollout: some gateway did not take the file up.",
            "none",
            "count(count by (hash) (tollgate_config_info{NODE}))",
            steps=[(2, RED)],
        ),
    ],
    "Traffic": [
        lines(
            "Requests by route",
            "Requests answered per second. `none`: no route matched, or the request could not be read.",
            "reqps",
            query("sum by (route) (rate(tollgate_http_requests_total{NODE}[I]))", "{{route}}"),
            stacked=True,
        ),
        lines(
            "Requests by status",
            "Requests answered per second. 429: over a limit. 499: the client went away before an answer.",
            "reqps",
            query("sum by (code) (rate(tollgate_http_requests_total{NODE}[I]))", "{{code}}"),
            stacked=True,
        ),
        lines(
            "Requests in flight",
            "Requests that are being handled, those that wait for their turn included.",
            "short",
            query("sum by (route) (tollgate_http_requests_in_flight{NODE})", "{{route}}"),
        ),
        percentiles("Time of requests", "From the end of a request's head to the end of its response.", "tollgate_http_request_duration_seconds_bucket{NODE}"),
        percentiles("Time of upstreams", "From choosing a node to the head of its response.", "tollgate_http_upstream_duration_seconds_bucket{NODE}", "upstream"),
        percentiles(
            "Time of decisions",
            "What limiting adds to a request, by where it was decided.",
            "tollgate_limit_decision_duration_seconds_bucket{NODE}",
            "source",
            shares=(0.99,),
        ),
    ],
    "Limiting": [
        lines(
            "What limits made of requests",
            "A request under several limits counts under each; a denial counts once, under the limit that is reported.",
            "reqps",
            query("sum by (outcome) (rate(tollgate_limit_requests_total{NODE}[I])) > 0", "{{outcome}}"),
            stacked=True,
        ),
        lines(
            "Share denied by route",
            "Share of a route's requests that a limit denied.",
            "percentunit",
            query(
                'sum by (route) (rate(tollgate_limit_requests_total{NODE,outcome=~"denied|banned"}[I])) / sum by (route) (rate(tollgate_http_requests_total{NODE}[I]) > 0)',
                "{{route}}",
            ),
            defaults={"max": 1},
        ),
        table(
            "Most denied",
            "The ten pairs of route and limit that deny most, in requests per second over five minutes.",
            "reqps",
            query('topk(10, sum by (route, limit) (rate(tollgate_limit_requests_total{NODE,outcome=~"denied|banned"}[5m])))', ""),
            columns={"Value": "denied"},
            sort="denied",
        ),
    ],
    "Nodes": [
        lines("Requests by gateway", "Whether the load is spread evenly.", "reqps", query("sum by (instance) (rate(tollgate_http_requests_total{NODE}[I]))", "{{instance}}"), width=6),
        lines(
            "Keys against their cap",
            "Share of the keys that a limit may remember. At 1 new keys share one bucket.",
            "percentunit",
            query("max by (limit) (tollgate_limit_keys{NODE} / tollgate_limit_keys_max{NODE})", "{{limit}}"),
            width=6,
        ),
        lines("Processor", "Cores in use.", "short", query("rate(process_cpu_seconds_total{NODE}[I])", "{{instance}}"), width=6),
        lines("Memory", "Resident memory.", "bytes", query("process_resident_memory_bytes{NODE}", "{{instance}}"), width=6),
        lines(
            "Healthy upstream nodes",
            "Nodes that requests are sent to, as the gateway that sees fewest does.",
            "short",
            query("min by (upstream) (tollgate_upstream_nodes_healthy{NODE})", "{{upstream}}"),
        ),
        lines(
            "Upstreams protected",
            "Nodes that are left alone because their requests fail, and requests that were refused, or wait, because as many are at the upstream as there may be. Empty where no upstream has `eject` or `max_requests`.",
            "short",
            query("sum by (upstream) (increase(tollgate_upstream_ejections_total{NODE}[I]))", "{{upstream}} nodes ejected"),
            query("sum by (upstream) (increase(tollgate_upstream_requests_refused_total{NODE}[I]))", "{{upstream}} requests refused"),
            query("sum by (upstream) (tollgate_upstream_requests_pending{NODE})", "{{upstream}} requests pending"),
        ),
        lines(
            "Faults, and log lines left out or dropped",
            "Panics are faults of the gateway's own: each ended one request, connection or task. Lines are left out of the log where more than ten like them came within a second. Lines are dropped where the log's reader is too slow, or they cannot be written.",
            "short",
            query("sum by (instance) (increase(tollgate_panics_total{NODE}[I]))", "{{instance}} panics"),
            query("sum by (instance) (increase(tollgate_log_lines_left_out_total{NODE}[I]))", "{{instance}} lines left out"),
            query("sum by (instance, log) (increase(tollgate_log_lines_dropped_total{NODE}[I]))", "{{instance}} {{log}} lines dropped"),
        ),
        table(
            "Builds",
            "The programs that run.",
            "none",
            query("count by (version, revision) (tollgate_build_info{NODE})", ""),
            columns={"Value": "gateways"},
        ),
    ],
}

THROTTLING = {
    "Load against the limit": [
        lines(
            "$limit: tokens, and the configured rate",
            "Tokens per second of all keys together; dashed what one key may use in the long run. Where a limit has many keys (a customer each), all of them together may be above that line.",
            TOKENS,
            query('sum by (plan) (rate(tollgate_limit_tokens_total{LIMIT,outcome="admitted"}[I]))', "{{plan}} admitted"),
            query('sum by (plan) (rate(tollgate_limit_tokens_total{LIMIT,outcome="denied"}[I]))', "{{plan}} denied"),
            query("max by (plan) (tollgate_limit_rate_tokens_per_second{LIMIT})", "{{plan}} configured"),
            overrides=[look("C", **CONFIGURED)],
            width=24,
            repeat="limit",
            repeatDirection="h",
            maxPerRow=3,
        ),
        heat(
            "Use of quotas",
            "How full keys were after their requests: many requests near 1 are customers about to be denied.",
            "percentunit",
            "sum by (le) (increase(tollgate_limit_utilization_ratio_bucket{LIMIT}[I]))",
            width=12,
        ),
        lines(
            "Near the limit",
            "Share of admitted requests that left their key at 80 % of its quota or above, and at the marks at which limits warn clients (`warn_at`).",
            "percentunit",
            query(
                'sum by (limit, plan) (rate(tollgate_limit_near_total{LIMIT}[I])) / sum by (limit, plan) (rate(tollgate_limit_utilization_ratio_count{LIMIT}[I]) > 0)',
                "{{limit}} {{plan}}",
            ),
            query(
                'sum by (limit, plan, at) (rate(tollgate_limit_warnings_total{LIMIT}[I])) / on (limit, plan) group_left sum by (limit, plan) (rate(tollgate_limit_utilization_ratio_count{LIMIT}[I]) > 0)',
                "{{limit}} {{plan}} warned at {{at}} %",
            ),
            defaults={"max": 1},
            width=12,
        ),
    ],
    "Denials": [
        lines(
            "Banned",
            "Keys that were banned, and requests denied because their key is. Empty where no limit has `ban`.",
            "short",
            query("sum by (limit, plan) (increase(tollgate_limit_bans_total{LIMIT}[I]))", "{{limit}} {{plan}} bans"),
            query('sum by (limit, plan) (increase(tollgate_limit_requests_total{PAIR,outcome="banned"}[I]))', "{{limit}} {{plan}} requests denied"),
            width=24,
        ),
        lines(
            "Denied by limit",
            "Requests denied per second.",
            "reqps",
            query('sum by (limit, plan) (rate(tollgate_limit_requests_total{PAIR,outcome=~"denied|banned"}[I])) > 0', "{{limit}} {{plan}}"),
            stacked=True,
        ),
        lines(
            "Share denied by limit",
            "Of the requests that a limit had to do with.",
            "percentunit",
            query(
                'sum by (limit, plan) (rate(tollgate_limit_requests_total{PAIR,outcome=~"denied|banned"}[I])) / sum by (limit, plan) (rate(tollgate_limit_requests_total{PAIR}[I]) > 0)',
                "{{limit}} {{plan}}",
            ),
            defaults={"max": 1},
        ),
        lines(
            "Denied by route",
            "Requests denied per second.",
            "reqps",
            query('sum by (route) (rate(tollgate_limit_requests_total{PAIR,outcome=~"denied|banned"}[I]))', "{{route}}"),
            stacked=True,
        ),
        percentiles(
            "Retry times",
            "What denied requests were told to wait. Long ones: clients are far over, or the window is long.",
            'tollgate_limit_retry_after_seconds_bucket{NODE,limit=~"$limit"}',
            "limit",
            shares=(0.5, 0.95),
        ),
        percentiles(
            "Waits",
            "How long requests waited for their turn. Empty unless a limit delays.",
            'tollgate_limit_wait_seconds_bucket{NODE,limit=~"$limit"}',
            "limit",
            shares=(0.5, 0.95),
        ),
        lines(
            "In place of denials",
            "Requests per second that were over a limit and passed all the same: shadow_denied would have been denied, diverted went elsewhere, marked were marked. Empty unless a limit watches, diverts or marks.",
            "reqps",
            query('sum by (limit, outcome) (rate(tollgate_limit_requests_total{PAIR,outcome=~"shadow_denied|diverted|marked"}[I]))', "{{limit}} {{outcome}}"),
        ),
        lines(
            "Candidates",
            "Requests per second of which a limit and its candidate say different things. Empty unless a limit has a candidate.",
            "reqps",
            query(
                'sum by (limit, live, candidate) (rate(tollgate_limit_candidate_requests_total{LIMIT,live!="denied",candidate="denied"}[I]))',
                "{{limit}}: {{live}}, would be denied",
            ),
            query(
                'sum by (limit, live, candidate) (rate(tollgate_limit_candidate_requests_total{LIMIT,live="denied",candidate!="denied"}[I]))',
                "{{limit}}: denied, would be {{candidate}}",
            ),
        ),
        lines(
            "Exempt",
            "Requests per second that were exempt from a limit. Empty until one was.",
            "reqps",
            query('sum by (route, limit) (rate(tollgate_limit_requests_total{PAIR,outcome="bypassed"}[I]))', "{{route}} {{limit}}"),
        ),
        lines(
            "Costs settled",
            "Tokens per second taken back or taken later, when the real cost of requests showed. Empty until that happens.",
            TOKENS,
            query('sum by (limit, outcome) (rate(tollgate_limit_tokens_total{LIMIT,outcome=~"refunded|debited"}[I]))', "{{limit}} {{outcome}}"),
        ),
        table(
            "Plans under limits",
            "The last five minutes, for each limit and plan.",
            "reqps",
            query('sum by (limit, plan) (rate(tollgate_limit_requests_total{PAIR,outcome=~"admitted|delayed"}[5m]))', ""),
            query('sum by (limit, plan) (rate(tollgate_limit_requests_total{PAIR,outcome=~"denied|banned"}[5m]))', ""),
            query(
                'sum by (limit, plan) (rate(tollgate_limit_requests_total{PAIR,outcome=~"denied|banned"}[5m])) / sum by (limit, plan) (rate(tollgate_limit_requests_total{PAIR}[5m]) > 0)',
                "",
            ),
            columns={"Value #A": "passed", "Value #B": "denied", "Value #C": "share denied"},
            overrides=[column("share denied", unit="percentunit")],
            sort="denied",
            width=12,
        ),
        table(
            "Limits as configured",
            "What one key gets: the burst at once, the rate in the long run. Limits on what runs have no rate. sticky: each gateway counts by itself; exact, leased, eventual: in Redis (one of them, while gateways have different configurations).",
            "none",
            query(
                'max by (limit, plan) (tollgate_limit_burst_tokens{LIMIT}) * on (limit) group_left (mode) topk by (limit) (1, max by (limit, mode) (tollgate_limit_mode{NODE,limit=~"$limit"}))',
                "",
            ),
            query("max by (limit, plan) (tollgate_limit_rate_tokens_per_second{LIMIT})", ""),
            columns={"Value #A": "burst", "Value #B": "rate"},
            overrides=[column("rate", unit=TOKENS)],
            width=12,
        ),
    ],
    "Customers": [
        table(
            "Denied most",
            "The keys that were denied most in the last whole minute, and by how much that may be too high. Empty unless the configuration lets metrics tell of them.",
            "short",
            query('sum by (limit, customer) (tollgate_limit_top_denied_requests{NODE,limit=~"$limit"})', ""),
            query('sum by (limit, customer) (tollgate_limit_top_denied_error_requests{NODE,limit=~"$limit"})', ""),
            columns={"Value #A": "denied in a minute", "Value #B": "at most too high by"},
            sort="denied in a minute",
            width=24,
        ),
    ],
    "Cost": [
        percentiles(
            "Time of decisions",
            "Time to charge all limits of a request, by where that was decided.",
            "tollgate_limit_decision_duration_seconds_bucket{NODE}",
            "source",
            width=12,
        ),
        lines(
            "Where decisions are made",
            "Decisions per second: local (memory), lease (tokens taken ahead), store (Redis), denial_cache (a denial Redis told before), fallback (without Redis).",
            "ops",
            query("sum by (source) (rate(tollgate_limit_decision_duration_seconds_count{NODE}[I])) > 0", "{{source}}"),
            stacked=True,
            width=12,
        ),
    ],
}

STORE = {
    "Store": [
        states(
            "Whether Redis is asked",
            "answers: it is asked. probed: it answered the last probes. away: it is left alone, and limits are enforced as their `on_store_down` says.",
            'max by (instance) (tollgate_store_breaker_state{NODE,state="half_open"}) + 2 * max by (instance) (tollgate_store_breaker_state{NODE,state="open"})',
            "{{instance}}",
            [("answers", GREEN), ("probed", YELLOW), ("away", RED)],
            width=24,
            height=5,
        ),
        lines("Calls", "Calls to Redis per second, by what was asked.", "ops", query("sum by (op) (rate(tollgate_store_requests_total{NODE}[I]))", "{{op}}"), stacked=True),
        lines(
            "Calls that failed",
            "Calls per second that brought no answer to use. Empty until one fails.",
            "ops",
            query('sum by (op, result) (rate(tollgate_store_requests_total{NODE,result=~"error|refused|invalid|timeout"}[I]))', "{{op}} {{result}}"),
        ),
        percentiles("Time of calls", "From sending a call to its answer.", "tollgate_store_request_duration_seconds_bucket{NODE}", "op"),
        lines(
            "Requests charged by a call",
            "In the mean. Those that ask the same at the same time are charged in one call.",
            "short",
            query("sum by (instance) (rate(tollgate_store_batch_charges_sum{NODE}[I])) / sum by (instance) (rate(tollgate_store_batch_charges_count{NODE}[I]) > 0)", "{{instance}}"),
        ),
        lines("Requests that wait in line", "Requests that wait until the call before them is answered.", "short", query("sum by (instance) (tollgate_store_queue_waiters{NODE})", "{{instance}}")),
        lines(
            "Clocks",
            "How far Redis's clock is ahead of the gateway's. What is shared goes by Redis's clock, whatever the difference.",
            "s",
            query("tollgate_store_clock_offset_seconds{NODE}", "{{instance}}"),
            below_zero=True,
        ),
    ],
    "Leases": [
        lines(
            "Tokens held",
            "Tokens that gateways have taken ahead and may still spend: what limits with `consistency: leased` may be off by.",
            "short",
            query("sum by (instance) (tollgate_lease_outstanding_tokens{NODE})", "{{instance}}"),
            width=12,
        ),
        lines(
            "Tokens taken ahead",
            "Per second, by what became of them. Much that lapses: rates change fast, or keys are used once.",
            TOKENS,
            query("sum by (event) (rate(tollgate_lease_tokens_total{NODE}[I]))", "{{event}}"),
            width=12,
        ),
    ],
    "Outages of the store": [
        lines(
            "Decided without Redis",
            "Share of decisions that were made without Redis because it did not answer.",
            "percentunit",
            query(
                '(sum by (instance) (rate(tollgate_limit_decision_duration_seconds_count{NODE,source="fallback"}[I]))) / sum by (instance) (rate(tollgate_limit_decision_duration_seconds_count{NODE}[I]) > 0)',
                "{{instance}}",
            ),
            defaults={"max": 1},
        ),
        lines(
            "Tokens to reconcile",
            "What was admitted without Redis and has yet to be told to it.",
            "short",
            query("sum by (instance) (tollgate_limit_unsynced_tokens{NODE})", "{{instance}}"),
        ),
        lines(
            "Tokens beyond limits",
            "Per second, found afterwards: more than limits allow was let through.",
            TOKENS,
            query("sum by (cause) (rate(tollgate_limit_overshoot_tokens_total{NODE}[I]))", "{{cause}}"),
        ),
        lines(
            "Passed or refused unseen",
            "Requests per second of which a limit could not know what to say: error_admitted passed (`on_store_down: allow`), error_denied did not (`deny`). Empty until the store is unavailable under such a limit.",
            "reqps",
            query('sum by (limit, outcome) (rate(tollgate_limit_requests_total{NODE,outcome=~"error_admitted|error_denied"}[I]))', "{{limit}} {{outcome}}"),
            width=12,
        ),
        lines(
            "States repaired",
            "States per second in Redis that made no sense: somebody else writes there, or memory was lost.",
            "ops",
            query("sum by (instance) (rate(tollgate_store_states_healed_total{NODE}[I]))", "{{instance}}"),
            width=12,
        ),
    ],
    "Cluster": [
        lines("Members", "Gateways that share limits, as each one sees them. They should agree.", "short", query("tollgate_cluster_members{NODE}", "{{instance}}")),
        lines(
            "Views of the membership",
            "Different views of which gateways there are. More than one for longer than moments: some keys have two owners. Empty without `cluster:`.",
            "short",
            query("count(count by (ring) (tollgate_cluster_ring_info{NODE}))", "views"),
        ),
        states(
            "Peers",
            "Whether a gateway reaches another. Empty without `cluster:`.",
            "min by (instance, peer) (tollgate_peer_up{NODE})",
            "{{instance}} to {{peer}}",
            [("away", RED), ("up", GREEN)],
        ),
        lines(
            "Asked of peers",
            "Requests and decisions per second that went to the gateway that owns their key. Empty without `cluster:`.",
            "ops",
            query("sum by (peer, result) (rate(tollgate_peer_requests_total{NODE}[I]))", "{{peer}} {{result}}"),
            stacked=True,
            width=12,
        ),
        percentiles(
            "Time of peers",
            "What the way over a peer takes. Empty without `cluster:`.",
            "tollgate_peer_request_duration_seconds_bucket{NODE}",
            "peer",
            width=12,
        ),
        lines(
            "Decided by others than the owner",
            "Charges per second. stand_in: the owner could not be asked, and the next in order decided. alone: nobody could be asked. Empty without `cluster:`.",
            "ops",
            query("sum by (cause) (rate(tollgate_cluster_decisions_total{NODE}[I]))", "{{cause}}"),
            width=12,
        ),
        lines(
            "States that moved",
            "States of keys per second, when members come and go. Empty without `cluster:`.",
            "ops",
            query("sum by (event) (rate(tollgate_cluster_states_total{NODE}[I]))", "{{event}}"),
            width=12,
        ),
    ],
    "State on disk": [
        lines(
            "Age of the last snapshot",
            "What a crash takes back to. Empty without `state:`.",
            "s",
            query("time() - (tollgate_state_last_snapshot_timestamp_seconds{NODE} > 0)", "{{instance}}"),
        ),
        lines("Size of the last snapshot", "Bytes in the state file. Empty without `state:`.", "bytes", query("tollgate_state_snapshot_size_bytes{NODE} > 0", "{{instance}}")),
        lines(
            "Snapshots",
            "Snapshots per second, by result.",
            "ops",
            query("sum by (result) (rate(tollgate_state_snapshots_total{NODE}[I]))", "{{result}}"),
        ),
        lines(
            "Webhook: messages not delivered",
            "Messages that wait for the webhook, and those that were given up: refused, expired, without room on disk, or lost. A line that only rises is a receiver that is away.",
            "short",
            query("sum by (instance) (tollgate_webhook_queue_messages{NODE})", "{{instance}} waiting"),
            query('sum by (result) (increase(tollgate_webhook_messages_total{NODE,result!="delivered"}[I]))', "{{result}}"),
        ),
        lines(
            "Usage events not delivered",
            "Events that wait for billing, those that it will not be told (refused, lost), and requests that it did not take. A line that only rises is a receiver that is away.",
            "short",
            query("sum by (instance) (tollgate_usage_queue_events{NODE})", "{{instance}} waiting"),
            query('sum by (result) (increase(tollgate_usage_events_total{NODE,result!="delivered"}[I]))', "{{result}}"),
            query('sum by (to) (increase(tollgate_delivery_attempts_total{NODE,result="failure"}[I]))', "attempts for {{to}}"),
        ),
        lines(
            "Spans not sent",
            "Spans that the collector will not have: refused by it, failed in several attempts, or dropped because too many waited. Empty without `traces:`.",
            "short",
            query('sum by (result) (increase(tollgate_trace_spans_total{NODE,result!="sent"}[I]) > 0)', "{{result}}"),
        ),
    ],
}


# === putting them together ===


def chosen(name, label, metric, among=""):
    """A choice among the values of a label."""
    values = f"label_values({metric}{{{among}}}, {name})" if among else f"label_values({metric}, {name})"
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": SOURCE,
        "definition": values,
        "query": {"query": values, "refId": "StandardVariableQuery"},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        # Grafana lists the values of these two: other programs have a job and an instance too
        **({} if name in ("job", "instance") else {"allValue": ".*"}),
        "current": {"text": ["All"], "value": ["$__all"]},
    }


def variables(rows):
    offered = [
        {"name": "datasource", "label": "Source", "type": "datasource", "query": "prometheus", "current": {}, "refresh": 1},
        chosen("job", "Job", "tollgate_build_info"),
        chosen("instance", "Gateway", "tollgate_build_info", 'job=~"$job"'),
        chosen("route", "Route", "tollgate_http_requests_total", 'job=~"$job"'),
        chosen("limit", "Limit", "tollgate_limit_burst_tokens", 'job=~"$job"'),
        chosen("plan", "Plan", "tollgate_limit_burst_tokens", 'job=~"$job",limit=~"$limit"'),
    ]
    text = json.dumps(rows)
    return [one for one in offered if "$" + one["name"] in text or "${" + one["name"] in text]


def placed(rows):
    """The panels of all rows, one after the other on a grid of 24 columns."""
    panels, top = [], 0
    for title, row in rows.items():
        place = {"x": 0, "y": top, "w": 24, "h": 1}
        panels.append({"id": len(panels) + 1, "type": "row", "title": title, "collapsed": False, "gridPos": place, "panels": []})
        left, top, height = 0, top + 1, 0
        for one in row:
            size = one["gridPos"]
            if left + size["w"] > 24:
                left, top, height = 0, top + height, 0
            panels.append({"id": len(panels) + 1, **one, "gridPos": {"x": left, "y": top, **size}})
            left, height = left + size["w"], max(height, size["h"])
        top += height
    return panels


def dashboard(uid, title, rows):
    reloads = {
        "name": "Reload",
        "datasource": SOURCE,
        "enable": True,
        "hide": False,
        "iconColor": "blue",
        "expr": 'time() - tollgate_config_last_reload_success_timestamp_seconds{job=~"$job",instance=~"$instance"} < 60',
        "step": "60s",
        "titleFormat": "configuration taken up",
        "textFormat": "{{instance}}",
    }
    others = {
        "title": "tollgate",
        "type": "dashboards",
        "tags": ["tollgate"],
        "asDropdown": False,
        "includeVars": True,
        "keepTime": True,
        "targetBlank": False,
        "icon": "external link",
        "tooltip": "",
        "url": "",
    }
    return {
        "uid": uid,
        "title": title,
        "tags": ["tollgate"],
        "schemaVersion": 39,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "timezone": "",
        "annotations": {"list": [reloads]},
        "links": [others],
        "templating": {"list": variables(rows)},
        "panels": placed(rows),
    }


def main(folder):
    for file, title, rows in [
        ("overview", "tollgate: overview", OVERVIEW),
        ("throttling", "tollgate: throttling", THROTTLING),
        ("store", "tollgate: store and cluster", STORE),
    ]:
        text = json.dumps(dashboard(f"tollgate-{file}", title, rows), indent=1)
        (folder / f"{file}.json").write_text(text + "\n")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).parent)
