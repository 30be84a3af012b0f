//! The settings of limits, beside the parameters that each algorithm declares.

use super::Kind::{self, *};

const COST: Kind = Whole(0, u64::MAX);
const ONE_OR_MORE: Kind = Whole(1, u64::MAX);
const ONE_BYTE_OR_MORE: Kind = Size(1, u64::MAX);

/// A part of a key.
pub(in crate::config) const KEY_PART: Kind = OneOf(&[
    Choice(&["customer", "plan", "client_address", "host", "route", "route_pattern", "method", "upstream_node"]),
    Section(&NAMED_PART),
]);

const FIELD_PATH: Kind = Text("the names on the way to a field in JSON, like `params.name`");
const REQUEST_OVERRIDES: Kind = Named("parameter", &Section(&REQUEST_OVERRIDE));
const A_NUMBER: Kind = OneOf(&[ONE_OR_MORE, Text("a rate, like `100/s`")]);
const PLANS: Kind = Named("plan", &OneOf(&[Choice(&["unlimited"]), Parameters(&PLAN)]));
const A_PRICE: &str = "the name of a price in `prices`, like `output`";
const TEMPLATE: Kind = Text("text in which `{{ NAME }}` stands for a value");

tables! {
    NAMED_PART "key_part" {
        header: Text("the name of a header field"), "The value of a header field.";
        query: Text("the name of a query parameter"), "The value of a query parameter.";
        cookie: Text("the name of a cookie"), "The value of a cookie.";
        path_segment: Text("the name of a segment, like `tenant`"),
            "The segment of the path that the route's `match.path` names: `/v1/{tenant}/**`.";
        jwt_claim: Text("the name of a claim, like `sub`"), "A claim of the caller's token.";
        group: Text("a level of `customers.groups`, like `organisation`"), "The caller's group of a level.";
        request_field: FIELD_PATH, "The value of a field in the JSON of the request's body: a text or a whole number.";
        descriptor: Text("the key of an entry, like `remote_address`"),
            "The value of an entry of a descriptor, under `domains`.";
        repeated: Choice(&["deny", "first", "last"]), default "deny",
            "How a request that carries the part more than once is treated: refused with 400, or counted by its first \
            or last value.";
    }

    BAN "ban" {
        after: Text("a number of denials in a length of time, like `20 denials in 1m`"), required,
            "The number of denials after which a key is banned. The time begins with the first denial; after it, the \
            count begins anew.";
        for: Kind::POSITIVE, required, "How long all requests of the key are denied then.";
    }

    REQUEST_OVERRIDE "request_override" {
        jwt_claim: Text("the name of a claim, like `rate`"), "The claim of the caller's token that holds the value.";
        header: Text("the name of a header field"),
            "The header field that holds the value; it counts only if one of `client_address.trusted_proxies` wrote \
            it.";
        min: A_NUMBER, "The smallest value; a smaller one counts as this. Default: 1, or any rate.";
        max: A_NUMBER, required, "The largest value; a larger one counts as this.";
    }

    /// The settings of every limit, whatever its algorithm.
    LIMIT "limit" {
        algorithm: Text("the name of an algorithm"), required,
            "How the limit decides; docs/algorithms.md compares the algorithms.";
        key: OneOf(&[Choice(&["all"]), KEY_PART, Set(&KEY_PART)]), required,
            "The parts of the request that the limit counts by. With `all`, all requests share one bucket.";
        windows: List(&Parameters(&WINDOW)),
            "Several windows, like `{limit: 10, window: 1s}`, each of which has to admit a request; see docs/guide.md.";
        mode: Choice(&["sticky", "shared"]), default "sticky",
            "Where the states of keys are: in one gateway (with `cluster`, each key's owner), or in the `store`.";
        consistency: Choice(&["exact", "leased", "eventual"]), default "exact",
            "How exactly gateways agree under `mode: shared`; docs/shared.md has the bounds.";
        strict: Flag, default "false", "Whether `leased` never exceeds the limit, at the price of a smaller burst.";
        on_store_down: Choice(&["divide", "local", "allow", "deny"]), default "divide",
            "How requests are decided while Redis is unavailable: each gateway enforces its part of the limit \
            (`divide`) or all of it (`local`), or every request is admitted (`allow`) or denied (`deny`).";
        plans: PLANS, "Parameters for a plan, in place of the limit's own; `unlimited` exempts the plan.";
        request_overrides: REQUEST_OVERRIDES,
            "Parameters that requests bring along, in place of their plan's: a rate, or a whole number like `burst`.";
        cost: OneOf(&[ONE_OR_MORE, Section(&COST_RULE)]), default "1",
            "The tokens that a request takes: a number, or the source of the number.";
        charge: Section(&CHARGE), "When the cost is charged, and for which requests.";
        missing_key: Choice(&["deny", "shared_bucket", "skip"]), default "shared_bucket",
            "How a request without a part of the key is treated: refused, counted in one shared bucket, or not \
            limited.";
        over_limit: OneOf(&[Choice(&["deny"]), Section(&OVER_LIMIT)]), default "deny",
            "How a request over the limit is treated.";
        warn_at: List(&Whole(1, 99)),
            "The shares of the quota, in percent, from which on clients are warned: up to four, rising.";
        quota_unit: Text("a word, like `tokens`"),
            "The unit of the quota, for clients: `qu` of `RateLimit-Policy`. Default: the draft's word, if it has \
            one, by `algorithm` and `cost`.";
        ban: Section(&BAN), "Denies all requests of a key for a time after too many denials.";
        priority: Named("plan", &Whole(1, 100)),
            "The percent of the burst or the quota that requests of a plan may use; plans with a lower percent are \
            denied first.";
        max_keys: ONE_OR_MORE, default "1000000",
            "The maximum number of keys with a bucket of their own; further keys share one bucket.";
        on_change: Choice(&["carry", "reset"]), default "carry",
            "Whether keys keep what they have used when a reload changes the parameters. `reset` is for sticky limits.";
        shadow: Flag, default "false", "Whether the limit only counts requests and never acts on them.";
        headers: Choice(&["shown", "hidden"]), default "shown",
            "Whether answers name the limit: in the rate limit fields, in the problem document of a denial, and in \
            `usage`.";
        enabled_percent: Text("a share of the keys in percent, like `12.5`"), default "100",
            "The share of keys that the limit applies to; the same keys on every gateway.";
        candidate: Parameters(&CANDIDATE), "Other parameters that are tried out beside the limit's own.";
    }

    /// The settings of a cost: one way to count, and the settings that belong to it.
    COST_RULE "cost" {
        by_method: Named("method", &COST), "The cost of each method.";
        others: COST, default "1", "With `by_method`: the cost of every other method.";
        header: Text("the name of a header field"), "The header field of the request that holds the cost.";
        request_field: FIELD_PATH,
            "The field with the cost in the JSON of the request's body; one that cannot be read costs `max`.";
        missing: ONE_OR_MORE,
            "The cost of a request without the field. Default: 1 with `header`, `max` with `request_field`.";
        graphql: Section(&GRAPHQL),
            "The cost of the GraphQL document in `query` of the body: its fields, times the lengths of lists; see \
            docs/costs.md.";
        request_bytes: ONE_BYTE_OR_MORE, "The number of bytes of the request's body that cost one token.";
        response_header: Text("the name of a header field"), "The header field of the response that holds the cost.";
        response_bytes: ONE_BYTE_OR_MORE, "The number of bytes of the response's body that cost one token.";
        response_field: Text("the names on the way to a number in JSON, like `usage.total_tokens`"),
            "The field with the cost in the response's JSON, or in the events of a stream.";
        sum: List(&Section(&COST_PART)),
            "Numbers in the response that are weighted and added up. A missing number counts 0, unless all are \
            missing.";
        model: Section(&MODEL), "With `sum`: the model in `prices` that a request is for.";
        max: ONE_OR_MORE,
            "The largest number that is believed, or the largest cost of a `sum`. Required with `header` and \
            `request_field`; otherwise the default is 1000000000, in a `sum` multiplied by its largest `times` or \
            price.";
    }

    GRAPHQL "graphql" {
        max: ONE_OR_MORE, required, "The largest cost of a request, and the cost of one that cannot be read.";
        max_depth: Whole(1, 64), default "10", "How deep fields may be nested; a deeper document costs `max`.";
        items: ONE_OR_MORE, default "100", "The assumed length of a list whose argument is a variable.";
        list_arguments: List(&Text("the name of an argument")), default "[first, last]",
            "The arguments that hold the length of a list.";
    }

    /// The settings of one number in the response.
    COST_PART "cost_part" {
        response_header: Text("the name of a header field"), "The number in a header field of the response.";
        response_field: Text("the names on the way to a number in JSON, like `usage.prompt_tokens`"),
            "A number in the response's JSON, or in the events of a stream.";
        times: Whole(1, 1_000_000), default "1", "The tokens that one unit of the number costs.";
        price: Text(A_PRICE), "In place of `times`: the price of the model that one unit of the number costs.";
    }

    CHARGE "charge" {
        when: Choice(&["request", "identified", "response"]), default "request",
            "When the cost is charged: before the caller is looked up if possible, after that, or when the response \
            ends.";
        if_status: List(&Text("a status, like `401`, `4xx` or `500-599`")),
            "With `when: response`: the statuses of responses that are charged. Default: all.";
        reserve: OneOf(&[COST, Section(&RESERVE)]),
            "With `when: response`: the tokens that the request takes when it arrives, settled at its end.";
        denied: Flag, default "false", "Whether denied requests take tokens, too.";
    }

    MODEL "model" {
        request_field: FIELD_PATH, required, "The name of the model in the JSON of the request's body.";
    }

    /// The settings of `reserve`: the field in which a request announces its largest cost.
    RESERVE "reserve" {
        request_field: FIELD_PATH, required, "A number in the JSON of the request's body.";
        max: ONE_OR_MORE, required, "The largest number that is believed; one that cannot be read reserves as much.";
        missing: ONE_OR_MORE, "The tokens that a request without the field reserves. Default: `max`.";
        price: Text(A_PRICE), "The price of the model that each token reserves, if `cost` uses prices.";
    }

    OVER_LIMIT "over_limit" {
        deny: Section(&DENIED), "The request is denied with 429, or with the answer that is described here.";
        delay: Section(&DELAY), "The request waits if its turn comes soon enough.";
        divert: Text("the name of an upstream"), "The request goes to another upstream.";
        mark: Text("the name of a header field"),
            "The request passes with the limit's name in this field, for the upstream.";
    }

    DELAY "delay" {
        max_wait: Kind::DURATION, "The longest wait; without it no request waits.";
        max_waiting: ONE_OR_MORE,
            "The maximum number of requests that wait under the limit, of all its keys together; one more is denied.";
    }

    DENIED "denied" {
        status: Whole(400, 599), "The status, in place of 429.";
        grpc_status: Whole(1, 16), "The status for gRPC clients, in place of 8 (RESOURCE_EXHAUSTED).";
        body: OneOf(&[TEMPLATE, Section(&BODIES)]),
            "The body, in place of the problem document; `{{ limit }}`, `{{ retry_after }}` and others stand for \
            values.";
        headers: Named("header field", &TEMPLATE), default "{}",
            "Header fields to set, in place of tollgate's own of the same names (`vary` is added).";
    }

    BODIES "bodies" {
        text: TEMPLATE, "For clients that take plain text.";
        json: TEMPLATE, "For clients that take JSON.";
        html: TEMPLATE, "For clients that take HTML.";
    }
    /// The settings of a window beside its parameters.
    WINDOW "window" {
        plans: PLANS, "Parameters of a plan in this window.";
        warn_at: List(&Whole(1, 99)), "The `warn_at` of this window.";
        request_overrides: REQUEST_OVERRIDES,
            "The `request_overrides` of this window, which cannot stand beside `windows`.";
    }

    /// The settings of a candidate beside its parameters.
    CANDIDATE "candidate" {
        algorithm: Text("the name of an algorithm"), "The candidate's algorithm, if it is not the limit's.";
        plans: PLANS, "Parameters of a plan.";
        max_wait: Kind::DURATION, "The longest wait, if it is not the limit's.";
    }

    /// The settings of a plan beside its parameters.
    PLAN "plan" {}
}
