//! The catalogue of metrics: name, meaning and labels of each. Dashboards and alert rules may rely on it.

/// One metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Name {
    /// The name, with prefix and unit.
    pub name: &'static str,
    /// The help text.
    pub help: &'static str,
    /// The labels, in the order in which their values are given.
    pub labels: &'static [&'static str],
}

macro_rules! catalogue {
    ($($ident:ident: $name:literal [$($label:literal),*] $help:literal)*) => {
        $(#[doc = $help] pub const $ident: Name = Name { name: $name, help: $help, labels: &[$($label),*] };)*
        /// All metrics.
        pub const ALL: &[Name] = &[$($ident),*];
    };
}

catalogue! {
    HTTP_REQUESTS: "tollgate_http_requests_total" ["route", "code"]
        "Requests answered, by route (none: no route matched or the request could not be read) and status code (499: the client went away first)."
    HTTP_REQUEST_DURATION: "tollgate_http_request_duration_seconds" ["route", "code_class"]
        "Time from the end of a request's head to the end of its response."
    HTTP_UPSTREAM_DURATION: "tollgate_http_upstream_duration_seconds" ["upstream"]
        "Time from choosing an upstream node to the head of its response."
    HTTP_REQUESTS_IN_FLIGHT: "tollgate_http_requests_in_flight" ["route"]
        "Requests that are being handled."
    DECISIONS: "tollgate_decisions_total" ["serves", "result"]
        "Questions of other proxies about requests that they handle, by what the listener serves (forward_auth, ext_authz, rate_limit_service; charge at the admin port) and by the answer: admitted, denied (by a limit), refused (for another reason, or because the question could not be answered)."
    CONNECTIONS_SHED: "tollgate_connections_shed_total" ["reason"]
        "Connections that the gateway closed because a maximum number of connections was reached. reason: all, listener, client (the maximum that a new connection exceeded), idle (a connection without a request, closed for a new one), admin (the maximum of the admin port)."
    LIMIT_REQUESTS: "tollgate_limit_requests_total" ["route", "limit", "plan", "outcome"]
        "Requests by their outcome under a limit. A denied request counts only under the limit that the client is told about. bypassed: exempt. banned: the key is banned. error_admitted, error_denied: the limit could not be checked, because Redis was unavailable. shadow_denied: a shadow limit would have denied the request."
    LIMIT_CANDIDATE_REQUESTS: "tollgate_limit_candidate_requests_total" ["limit", "plan", "live", "candidate"]
        "Requests by what a limit said of them and what its candidate, which never acts, would have said; without those that another limit denied."
    LIMIT_TOKENS: "tollgate_limit_tokens_total" ["limit", "plan", "outcome"]
        "Tokens asked for, by what the limit made of the request: admitted, denied, or let pass although it was over: diverted, marked, shadow_denied; and what was settled afterwards: refunded (taken too much), debited (taken too little, or by denied requests that count)."
    LIMIT_COST_INVALID: "tollgate_limit_cost_invalid_total" ["limit"]
        "Responses that did not tell what they cost, or something that is not a number of tokens; what was taken before stays taken."
    LIMIT_NEAR: "tollgate_limit_near_total" ["limit", "plan"]
        "Requests admitted that left a key at 80 % of its quota or above."
    LIMIT_WARNINGS: "tollgate_limit_warnings_total" ["limit", "plan", "at"]
        "Requests let pass that left a key at a mark of `warn_at` (at, in percent of the quota) or above; of shadow limits too, which warn nobody."
    LIMIT_BANS: "tollgate_limit_bans_total" ["limit", "plan"]
        "Bans: keys that a limit denied so often that it denies them altogether for a while."
    WEBHOOK_MESSAGES: "tollgate_webhook_messages_total" ["result"]
        "Webhook messages that are no longer pending, by result: delivered, refused (the receiver says that they are wrong), expired (not accepted in time), no_room (the queue on disk was full), lost (they came faster than they could be written, or writing failed)."
    WEBHOOK_QUEUE_MESSAGES: "tollgate_webhook_queue_messages" []
        "Messages to the webhook that are not delivered yet."
    WEBHOOK_QUEUE_BYTES: "tollgate_webhook_queue_bytes" []
        "Size of the files in which messages to the webhook are kept."
    USAGE_EVENTS: "tollgate_usage_events_total" ["result"]
        "Usage events that are no longer pending, by result: delivered, refused (the receiver says that they are wrong), lost (sums for which there was no room in memory)."
    USAGE_QUEUE_EVENTS: "tollgate_usage_queue_events" []
        "Usage events that are not delivered yet."
    USAGE_QUEUE_BYTES: "tollgate_usage_queue_bytes" []
        "Size of the files in which usage events are kept."
    DELIVERY_ATTEMPTS: "tollgate_delivery_attempts_total" ["to", "result"]
        "Attempts to deliver something (to: webhook, usage_events, traces), by whether the receiver took it: success, failure; also a failure: the queue on disk cannot be opened."
    TRACE_SPANS: "tollgate_trace_spans_total" ["result"]
        "Spans of requests, by what became of them: sent, refused (the collector does not want them), failed (it did not take them in several attempts), dropped (more were waiting than may)."
    LIMIT_UTILIZATION: "tollgate_limit_utilization_ratio" ["limit", "plan"]
        "Share of a key's quota in use after a request."
    LIMIT_WAIT: "tollgate_limit_wait_seconds" ["limit"]
        "Waits of requests that a limit delayed."
    LIMIT_RETRY_AFTER: "tollgate_limit_retry_after_seconds" ["limit"]
        "Retry times that were sent to denied clients."
    LIMIT_DECISION_DURATION: "tollgate_limit_decision_duration_seconds" ["source"]
        "Time to charge all limits of a request, by where that was decided: local (with the reading of its head), lease (tokens taken ahead), store (Redis), owner (the gateway that owns the key), denial_cache (a denial that Redis or the owner told before), fallback (neither answered)."
    LIMIT_RATE: "tollgate_limit_rate_tokens_per_second" ["limit", "plan"]
        "Tokens per second that one key gets in the long run, as configured; no series where time brings none back (concurrency)."
    LIMIT_BURST: "tollgate_limit_burst_tokens" ["limit", "plan"]
        "Tokens that one key may spend at once, as configured."
    LIMIT_MODE: "tollgate_limit_mode" ["limit", "mode"]
        "1 for the mode of a limit: sticky (its states are at gateways), exact, leased or eventual (its states are in Redis)."
    LIMIT_KEYS: "tollgate_limit_keys" ["limit"]
        "Keys that a limit remembers."
    LIMIT_KEYS_MAX: "tollgate_limit_keys_max" ["limit"]
        "Keys that a limit may remember."
    LIMIT_KEYS_EVICTED: "tollgate_limit_keys_evicted_total" ["limit", "reason"]
        "Keys forgotten: expired (as good as new), full (to make room), overflow (a new key counted in the common bucket)."
    STORE_REQUESTS: "tollgate_store_requests_total" ["op", "result"]
        "Calls to Redis, by what was asked (customer, charge, reconcile, debit, sync, refund, complete, renew, heartbeat) and what came of it (ok, or of a customer found or missing; invalid, error, refused, timeout)."
    STORE_REQUEST_DURATION: "tollgate_store_request_duration_seconds" ["op"]
        "Time that calls to Redis took."
    STORE_BATCH_CHARGES: "tollgate_store_batch_charges" []
        "Requests that one call to Redis charged: those that ask the same at the same time are charged together."
    STORE_QUEUE_WAITERS: "tollgate_store_queue_waiters" []
        "Requests that wait until the call to Redis before theirs is answered."
    STORE_CLOCK_OFFSET: "tollgate_store_clock_offset_seconds" []
        "How far Redis's clock is ahead of this gateway's, behind if negative; right to half the time of a call."
    STORE_BREAKER_STATE: "tollgate_store_breaker_state" ["state"]
        "1 for the state of the breaker, in a cluster the worst of its servers: closed (Redis is asked), open (it is left alone), half_open (it answers probes again)."
    STORE_STATES_HEALED: "tollgate_store_states_healed_total" []
        "States in Redis that made no sense and were repaired or forgotten."
    LIMIT_TOP_DENIED_REQUESTS: "tollgate_limit_top_denied_requests" ["limit", "customer"]
        "Requests that a limit denied in the last whole minute, of the keys (customer: what the key is made of) that were denied most: at most 20, none unless the configuration says so. At most too high by tollgate_limit_top_denied_error_requests."
    LIMIT_TOP_DENIED_ERROR_REQUESTS: "tollgate_limit_top_denied_error_requests" ["limit", "customer"]
        "By how much tollgate_limit_top_denied_requests may be too high."
    LIMIT_OVERSHOOT: "tollgate_limit_overshoot_tokens_total" ["cause"]
        "Tokens admitted beyond a limit, found afterwards, by cause: outage (admitted without Redis, and not there when it came back)."
    LIMIT_UNSYNCED: "tollgate_limit_unsynced_tokens" []
        "Tokens that this gateway admitted without Redis and has yet to reconcile."
    LEASE_TOKENS: "tollgate_lease_tokens_total" ["event"]
        "Tokens that this gateway took ahead from limits that are shared, by what became of them: taken, spent (by requests), returned (spent, but not needed), lapsed (not spent in time)."
    LEASE_OUTSTANDING: "tollgate_lease_outstanding_tokens" []
        "Tokens that this gateway has taken ahead and may still spend."
    CLUSTER_MEMBERS: "tollgate_cluster_members" []
        "Gateways that share limits, as this one sees them: those of the cluster, or without one those that use the same Redis."
    CLUSTER_RING_INFO: "tollgate_cluster_ring_info" ["ring"]
        "Hash of the cluster's members as this gateway sees them. Gateways with different hashes see different members."
    PEER_UP: "tollgate_peer_up" ["peer"]
        "Whether another gateway of the cluster can be asked."
    PEER_REQUESTS: "tollgate_peer_requests_total" ["peer", "result"]
        "Questions about charges to another gateway of the cluster, by what came of them: ok, timeout, cut (the connection ended), unreachable (there was none), unknown (it does not understand the limit), not_owner (it names the owner, which is asked next)."
    PEER_REQUEST_DURATION: "tollgate_peer_request_duration_seconds" ["peer"]
        "Time that questions about charges to another gateway of the cluster took."
    CLUSTER_DECISIONS: "tollgate_cluster_decisions_total" ["cause"]
        "Charges that were decided without the owner of their key or without its state, by cause: stand_in (this gateway decided for an owner that could not be asked), alone (this gateway decided because no gateway could be asked), unfetched (this gateway decided without the state of an earlier owner, which did not give it in time)."
    CLUSTER_OTHER_RING: "tollgate_cluster_questions_under_another_ring_total" []
        "Questions from gateways that saw other members of the cluster; they were answered."
    CLUSTER_STATES: "tollgate_cluster_states_total" ["event"]
        "States of keys that moved between gateways of the cluster: pushed (to their new owners), given (to who asked for them), received, merged (with one that was there), unknown (not understood), too_large (lost, since they were too large to move)."
    CLUSTER_DISCOVERY_FAILURES: "tollgate_cluster_discovery_failures_total" []
        "Look-ups of the cluster's gateways by name that found nobody, or what is not believed."
    CLUSTER_CORRECTIONS_LOST: "tollgate_cluster_corrections_lost_total" []
        "Corrections of charges that could not be told to the gateway that had made them."
    UPSTREAM_NODES_HEALTHY: "tollgate_upstream_nodes_healthy" ["upstream"]
        "Healthy nodes of an upstream, to which requests are sent unless the node is ejected; each address of a host name is one."
    UPSTREAM_EJECTIONS: "tollgate_upstream_ejections_total" ["upstream"]
        "Times that a node of an upstream was left alone because its requests failed."
    UPSTREAM_REFUSED: "tollgate_upstream_requests_refused_total" ["upstream"]
        "Requests answered 503 because there were as many at the upstream as there may be."
    UPSTREAM_PENDING: "tollgate_upstream_requests_pending" ["upstream"]
        "Requests that wait for room at an upstream that has as many as there may be."
    CUSTOMER_LOOKUPS: "tollgate_customer_lookups_total" ["result"]
        "Calls to the service that customers are looked up in over HTTP, by what came of them (found, missing, invalid, error, timeout)."
    CUSTOMER_LOOKUP_DURATION: "tollgate_customer_lookup_duration_seconds" []
        "Time that calls to that service took."
    SOURCE_REFRESHES: "tollgate_source_refreshes_total" ["source", "result"]
        "Times that a source of customers or keys was asked in the background (jwks: the keys of tokens, postgres: the customers of a database), by result (success, failure)."
    SOURCE_ENTRIES: "tollgate_source_entries" ["source"]
        "What is served from a source: keys, or credentials of customers."
    SOURCE_LAST_SUCCESS_TIMESTAMP: "tollgate_source_last_success_timestamp_seconds" ["source"]
        "When a source was last read, or the snapshot that is served in its place was written; 0 if it never was."
    CERTIFICATE_NOT_AFTER_TIMESTAMP: "tollgate_certificate_not_after_timestamp_seconds" ["certificate"]
        "When a certificate that listeners present expires, by its host names; the earliest of those with the same names."
    DIRECTORY_REFUSED_ROWS: "tollgate_directory_refused_rows" []
        "Rows of customers in PostgreSQL that are left out because they are wrong."
    CONFIG_RELOADS: "tollgate_config_reloads_total" ["result"]
        "Configurations read, by result."
    CONFIG_LAST_RELOAD_SUCCESSFUL: "tollgate_config_last_reload_successful" []
        "Whether the last configuration read came into force."
    CONFIG_LAST_RELOAD_SUCCESS_TIMESTAMP: "tollgate_config_last_reload_success_timestamp_seconds" []
        "When a configuration last came into force."
    CONFIG_INFO: "tollgate_config_info" ["hash"]
        "The configuration in force, by a hash of its text."
    DIRECTORY_INFO: "tollgate_directory_info" ["hash"]
        "The customers and groups in force, by a hash of their files; no series where customers are in no file."
    STATE_RESTORES: "tollgate_state_restores_total" ["result"]
        "Where the states came from at the start: restored (the state file), handed_over (the process before, in an upgrade), absent (there is no file yet), refused (the file cannot be used: every key started afresh), nothing (no file is configured)."
    STATE_SNAPSHOTS: "tollgate_state_snapshots_total" ["result"]
        "Snapshots of the state, by result."
    STATE_LAST_SNAPSHOT_SUCCESSFUL: "tollgate_state_last_snapshot_successful" []
        "Whether the last snapshot was written; 1 also before the first one, and without a state file."
    STATE_LAST_SNAPSHOT_TIMESTAMP: "tollgate_state_last_snapshot_timestamp_seconds" []
        "Start time of the last written snapshot; a crash restores this state. 0 before the first snapshot, and without a state file."
    STATE_SNAPSHOT_DURATION: "tollgate_state_snapshot_duration_seconds" []
        "Time that the last snapshot took."
    STATE_SNAPSHOT_SIZE: "tollgate_state_snapshot_size_bytes" []
        "Size of the last snapshot."
    UPGRADE_FAILURES: "tollgate_upgrade_failures_total" []
        "Attempts to hand over to a new process that failed; this process went on."
    LOG_LINES_DROPPED: "tollgate_log_lines_dropped_total" ["log"]
        "Lines of a log (access, on standard output; events, on standard error) that were not written: its reader was too slow, or writing failed."
    LOG_LINES_LEFT_OUT: "tollgate_log_lines_left_out_total" []
        "Lines that were not logged because ten like them were within a second."
    PANICS: "tollgate_panics_total" []
        "Panics: faults of tollgate's own. Each ended what it happened in: a request (answered 500), a connection, or a task, which began anew."
    BUILD_INFO: "tollgate_build_info" ["version", "revision"]
        "The program that runs."
}

/// Bounds for the time of whole requests.
pub const REQUEST_SECONDS: &[f64] = &[0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0];
/// Bounds for the time of decisions.
pub const DECISION_SECONDS: &[f64] =
    &[1e-6, 2.5e-6, 5e-6, 1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 5e-3, 1e-2, 1.5e-2, 2.5e-2, 1e-1, 1.0];
/// Bounds for the time of questions to other gateways.
pub const PEER_SECONDS: &[f64] = &[2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 1e-1, 1.0];
/// Bounds for the time of calls to a store.
pub const STORE_SECONDS: &[f64] = &[1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 1e-1, 2.5e-1, 1.0];
/// Bounds for waits and retry times.
pub const WAIT_SECONDS: &[f64] = &[0.001, 0.01, 0.1, 1.0, 5.0, 60.0, 300.0, 3600.0, 86400.0, 604_800.0, 2_592_000.0];
/// Bounds for shares.
pub const RATIO: &[f64] = &[0.25, 0.5, 0.75, 0.8, 0.9, 1.0];
/// Bounds for how many requests are charged together.
pub const BATCH: &[f64] = &[1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 1000.0];

/// The store operation that finds the customer of a credential.
pub const OP_CUSTOMER: &str = "customer";
/// The route of requests that matched none.
pub const NO_ROUTE: &str = "none";
/// The plan of requests without one.
pub const NO_PLAN: &str = "none";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_conventions_and_are_unique() {
        for (position, metric) in ALL.iter().enumerate() {
            assert!(metric.name.starts_with("tollgate_"), "{}", metric.name);
            assert!(metric.help.ends_with('.'), "{}", metric.name);
            assert!(!ALL.iter().skip(position + 1).any(|other| other.name == metric.name), "{}", metric.name);
        }
    }
}
