//! The settings of limits, beside the parameters that each algorithm declares.

use super::Kind::{self, *};

const COST: Kind = Whole(0, u64::MAX);
const MOST: Kind = Whole(1, u64::MAX);
const ONE_BYTE_OR_MORE: Kind = Size(1, u64::MAX);

/// A part of a key.
pub(in crate::config) const KEY_PART: Kind = OneOf(&[
    Choice(&["customer", "plan", "client_address", "host", "route", "route_pattern", "method", "upstream_node"]),
    Section(&NAMED_PART),
]);

const FIELD_PATH: Kind = Text("the names on the way to a field in JSON, like `params.name`");
const REQUEST_OVERRIDES: Kind = Named("parameter", &Section(&REQUEST_OVERRIDE));
const A_NUMBER: Kind = OneOf(&[MOST, Text("a rate, like `100/s`")]);
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
        request_field: FIELD_PATH, "What a field in the JSON of the request's body says: a text, or a whole number.";
        descriptor: Text("the key of an entry, like `remote_address`"),
            "The value of an entry of a descriptor, under `domains`.";
        repeated: Choice(&["deny", "first", "last"]), default "deny",
            "What becomes of a request that carries it more than once: refused with 400, or one of the values counts.";
    }

    BAN "ban" {
        after: Text("a number of denials in a length of time, like `20 denials in 1m`"), required,
            "How often the limit denies a key before it is banned; counted from the first denial on, and anew after \
            the time.";
        for: Kind::POSITIVE, required, "How long all requests of the key are denied then.";
    }

    REQUEST_OVERRIDE "request_override" {
        jwt_claim: Text("the name of a claim, like `rate`"), "A claim of the caller's token says it.";
        header: Text("the name of a header field"),
            "A header field says it that one of `client_address.trusted_proxies` wrote.";
        min: A_NUMBER, "The least that is believed; left out, 1, or any rate.";
        max: A_NUMBER, required, "The most that is believed.";
    }

    /// The settings of every limit, whatever its algorithm.
    LIMIT "limit" {
        algorithm: Text("the name of an algorithm"), required, "How it decides; docs/algorithms.md compares them.";
        key: OneOf(&[Choice(&["all"]), KEY_PART, Set(&KEY_PART)]), required,
            "What it counts by. `all` is one count for everybody.";
        windows: List(&Parameters(&WINDOW)),
            "Several windows, like `{limit: 10, window: 1s}`, of which a request has to fit into all; see \
            docs/guide.md.";
        mode: Choice(&["sticky", "shared"]), default "sticky",
            "Where its counts are: in one gateway (with `cluster`, each key's owner), or in the `store`.";
        consistency: Choice(&["exact", "leased", "eventual"]), default "exact",
            "Who decides under `mode: shared`; docs/shared.md has the bounds.";
        strict: Flag, default "false", "Whether `leased` stays within the limit, for a smaller burst.";
        on_store_down: Choice(&["divide", "local", "allow", "deny"]), default "divide",
            "What holds while Redis is unavailable: each gateway enforces its part, each enforces all of it, or \
            neither.";
        plans: PLANS,
            "Parameters of a plan, in place of the limit's own; `unlimited` puts no limit on it.";
        request_overrides: REQUEST_OVERRIDES,
            "Parameters that requests bring along, in place of their plan's: a rate, or a whole number like `burst`.";
        cost: OneOf(&[MOST, Section(&COST_RULE)]), default "1", "What a request takes: a number, or where it is told.";
        charge: Section(&CHARGE), "When it is taken, and from whom.";
        missing_key: Choice(&["deny", "shared_bucket", "skip"]), default "shared_bucket",
            "What becomes of a request that lacks a part of the key: refused, one count for all such, or not limited.";
        over_limit: OneOf(&[Choice(&["deny"]), Section(&OVER_LIMIT)]), default "deny",
            "What becomes of a request over the limit.";
        warn_at: List(&Whole(1, 99)),
            "From which shares of the quota on, in percent, clients are warned: up to four, rising.";
        quota_unit: Text("a word, like `tokens`"),
            "What the quota counts, for clients: `qu` of `RateLimit-Policy`. Left out, it follows from `algorithm` and \
            `cost` where the draft has a word for it.";
        ban: Section(&BAN), "Denies a key altogether that is denied again and again.";
        priority: Named("plan", &Whole(1, 100)),
            "The percent of the room that requests of a plan may use, so that they are denied before those of other \
            plans.";
        max_keys: MOST, default "1000000", "How many keys have counts of their own; new ones beyond share one.";
        on_change: Choice(&["carry", "reset"]), default "carry",
            "Whether keys keep what they have used when a reload changes the parameters. `reset` is for sticky limits.";
        shadow: Flag, default "false", "Whether it counts and never acts.";
        headers: Choice(&["shown", "hidden"]), default "shown",
            "Whether answers name it: in the fields that say where clients stand, in the problem of a denial, and in \
            `usage`.";
        enabled_percent: Text("a share of the keys in percent, like `12.5`"), default "100",
            "The share of its keys that it applies to, the same ones on every gateway.";
        candidate: Parameters(&CANDIDATE), "Parameters that are tried out beside its own.";
    }

    /// The settings of a cost: one way to count, and the settings that belong to it.
    COST_RULE "cost" {
        by_method: Named("method", &COST), "The cost of each method.";
        others: COST, default "1", "With `by_method`: what methods cost that it does not name.";
        header: Text("the name of a header field"), "A header field of the request tells it.";
        request_field: FIELD_PATH,
            "A number in the JSON of the request's body tells it; one that cannot be read costs `max`.";
        missing: MOST,
            "The cost where the field is missing; left out, 1 with `header`, and `max` with `request_field`.";
        graphql: Section(&GRAPHQL),
            "By the GraphQL document in `query` of the body: its fields, times the lengths of lists; see \
            docs/costs.md.";
        request_bytes: ONE_BYTE_OR_MORE, "A token for each so many bytes of the request's body.";
        response_header: Text("the name of a header field"), "A header field of the response tells it.";
        response_bytes: ONE_BYTE_OR_MORE, "A token for each so many bytes of the response's body.";
        response_field: Text("the names on the way to a number in JSON, like `usage.total_tokens`"),
            "A number in the response's JSON, or in the events of a stream, tells it.";
        sum: List(&Section(&COST_PART)),
            "Numbers in the response, weighed and added up. One that is missing counts 0, unless all are.";
        model: Section(&MODEL), "With `sum`: which model of `prices` a request is for.";
        max: MOST,
            "The most that is believed of a number, or that a `sum` costs. Required with `header` and `request_field`; \
            otherwise 1000000000, in a `sum` multiplied by its largest `times` or price.";
    }

    GRAPHQL "graphql" {
        max: MOST, required, "The most that a request costs, and the cost of one that cannot be read.";
        max_depth: Whole(1, 64), default "10", "The deepest that fields may be nested; deeper costs `max`.";
        items: MOST, default "100", "How many items of a list count where a variable says it.";
        list_arguments: List(&Text("the name of an argument")), default "[first, last]",
            "The arguments that say how many items a list may have.";
    }

    /// The settings of one number in the response.
    COST_PART "cost_part" {
        response_header: Text("the name of a header field"), "The number in a header field of the response.";
        response_field: Text("the names on the way to a number in JSON, like `usage.prompt_tokens`"),
            "A number in the response's JSON, or in the events of a stream.";
        times: Whole(1, 1_000_000), default "1", "What one of it costs.";
        price: Text(A_PRICE), "In place of `times`: which price of the model one of it costs.";
    }

    CHARGE "charge" {
        when: Choice(&["request", "identified", "response"]), default "request",
            "When the cost is taken: before the caller is looked up if it can be, after that, or when the response \
            ends.";
        if_status: List(&Text("a status, like `401`, `4xx` or `500-599`")),
            "With `when: response`: the statuses that cost something; left out, all.";
        reserve: OneOf(&[COST, Section(&RESERVE)]),
            "With `when: response`: what is taken on the request and settled at its end.";
        denied: Flag, default "false", "Whether a denied request is counted, too.";
    }

    MODEL "model" {
        request_field: FIELD_PATH, required, "The name of the model in the JSON of the request's body.";
    }

    /// The settings of `reserve`: the field in which a request announces its largest cost.
    RESERVE "reserve" {
        request_field: FIELD_PATH, required, "A number in the JSON of the request's body.";
        max: MOST, required, "The most that is believed of it, and what one that cannot be read reserves.";
        missing: MOST, "What is reserved where the field is missing; left out, `max`.";
        price: Text(A_PRICE), "Which price of the model each token reserves, where `cost` goes by prices.";
    }

    OVER_LIMIT "over_limit" {
        deny: Section(&DENIED), "The request is answered 429, or as this says.";
        delay: Section(&DELAY), "The request waits if its turn comes soon enough.";
        divert: Text("the name of an upstream"), "The request goes to another upstream.";
        mark: Text("the name of a header field"),
            "The request passes, and the upstream reads the limit's name in that field.";
    }

    DELAY "delay" {
        max_wait: Kind::DURATION, "The longest wait; without it nothing waits.";
        max_waiting: MOST, "How many requests may wait under the limit.";
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
        algorithm: Text("the name of an algorithm"), "Its algorithm, if it is another one.";
        plans: PLANS, "Parameters of a plan.";
        max_wait: Kind::DURATION, "The longest wait, if it is another one.";
    }

    /// The settings of a plan beside its parameters.
    PLAN "plan" {}
}
