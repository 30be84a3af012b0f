//! `/v1/customers`: reads and changes customers, where tollgate may write the directory. Every request needs the token.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::{Method, StatusCode, header};
use percent_encoding::percent_decode_str;
use pingora::http::RequestHeader;
use ring::rand::{SecureRandom, SystemRandom};
use serde_json::{Map, Value, json};
use tokio::sync::Mutex;

use super::audit::{NoteOnDrop, moment};
use super::{Admin, JSON, PlainResponse, failure, json_of};
use crate::customers::directory::{Change, ChangeError, ChangedRows, GroupTable, NewKey, RowText, Terms, field_of};
use crate::gateway::Gateway;
use crate::gateway::active_config::ActiveConfig;
use crate::units::Nanos;

/// How many names a list has by default, and at most.
const LISTED: (usize, usize) = (100, 1_000);
/// The fields of a request that creates or changes a customer.
const OF_CUSTOMERS: [&str; 5] = ["plan", "overrides", "time_zone", "suspended", "groups"];
/// The fields of a request that adds a key.
const OF_KEYS: [&str; 2] = ["valid_until", "groups"];
/// The fields of a request that changes a key.
const OF_KEY_CHANGES: [&str; 1] = ["valid_until"];
const OF_ROTATIONS: [&str; 2] = ["keep_old_seconds", "valid_until"];
/// The paths below that of all customers.
const PATHS: &str = "here are NAME, NAME/keys, NAME/keys/ID and NAME/rotate, with the customer's NAME percent-encoded";

/// The lock for changes of customers: only one change runs at a time.
#[derive(Debug, Default)]
pub(super) struct ChangeLock(Arc<Mutex<()>>);

/// The resource that a path under `/v1/customers` names.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Target {
    All,
    Of(String, Part),
}

/// The part of a customer that a path names.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Part {
    Whole,
    Keys,
    Key(String),
    Rotation,
}

impl Target {
    /// The resource that `path` names, if it is such a path.
    pub(super) fn of(path: &str) -> Option<Self> {
        let rest = path.strip_prefix("/v1/customers")?;
        if rest.is_empty() {
            return Some(Self::All);
        }
        let mut parts = rest.strip_prefix('/')?.split('/').map(|part| {
            let part = percent_decode_str(part).decode_utf8().ok()?;
            (!part.is_empty() && part.trim() == part).then(|| part.into_owned())
        });
        let customer = parts.next()??;
        let of = match (parts.next(), parts.next(), parts.next()) {
            (None, None, None) => Part::Whole,
            (Some(Some(keys)), None, None) if keys == "keys" => Part::Keys,
            (Some(Some(keys)), Some(Some(id)), None) if keys == "keys" => Part::Key(id),
            (Some(Some(rotate)), None, None) if rotate == "rotate" => Part::Rotation,
            _ => return None,
        };
        Some(Self::Of(customer, of))
    }

    /// The response to a request for `path`, which names no resource, if it is under `/v1/customers/`.
    pub(super) fn refused_path(path: &str) -> Option<PlainResponse> {
        let rest = path.strip_prefix("/v1/customers/")?;
        let name = percent_decode_str(rest.split('/').next()?).decode_utf8().unwrap_or_default();
        Some(if name.trim() == name {
            failure(StatusCode::NOT_FOUND, PATHS)
        } else {
            failure(StatusCode::BAD_REQUEST, "the name of a customer cannot begin or end with a blank here")
        })
    }

    /// The methods that the resource accepts, as the `Allow` field lists them.
    pub(super) const fn methods(&self) -> &'static str {
        match self {
            Self::All => "GET, HEAD",
            Self::Of(_, Part::Whole) => "GET, HEAD, PUT, PATCH, DELETE",
            Self::Of(_, Part::Keys | Part::Rotation) => "POST",
            Self::Of(_, Part::Key(_)) => "PATCH, DELETE",
        }
    }
}

/// A requested change, and the new key, which only one response shows.
struct RequestedChange {
    customer: String,
    change: Change,
    key: Option<String>,
}

impl Admin {
    /// Serves a request for `target` whose token was checked. A change has a `note` for the audit log.
    pub(super) async fn customers(
        &self,
        target: Target,
        head: &RequestHeader,
        body: &[u8],
        note: Option<NoteOnDrop>,
    ) -> PlainResponse {
        match (target, note) {
            (Target::All, _) => self.list(head.uri.query().unwrap_or_default()).await,
            (Target::Of(customer, _), None) => {
                let active = self.gateway.active.load_full();
                match active.directory.rows(&customer, &active.groups).await {
                    Ok(rows) if rows.is_empty() => refused(&ChangeError::NoCustomer),
                    Ok(rows) => json_of(&shown(&customer, &rows, &active.groups)),
                    Err(error) => refused(&error),
                }
            }
            (Target::Of(customer, part), Some(mut note)) => {
                let is_new = head.headers.get(header::IF_NONE_MATCH).is_some_and(|tag| tag == "*");
                match self.wanted(customer, part, (&head.method, is_new), body) {
                    Ok(wanted) => self.change(wanted, note).await,
                    Err(wrong) => {
                        note.outcome = ("refused", json!({ "reason": wrong }));
                        failure(StatusCode::BAD_REQUEST, &wrong)
                    }
                }
            }
        }
    }

    async fn list(&self, query: &str) -> PlainResponse {
        let (mut after, mut limit) = (String::new(), LISTED.0);
        for (name, value) in query.split('&').filter_map(|part| part.split_once('=')) {
            let value = percent_decode_str(value).decode_utf8_lossy();
            match (name, value.parse()) {
                ("after", _) => after = value.into_owned(),
                ("limit", Ok(max)) if (1..=LISTED.1).contains(&max) => limit = max,
                _ => {
                    let message = format!("a list takes `after=NAME` and `limit=N`, 1 to {}", LISTED.1);
                    return failure(StatusCode::BAD_REQUEST, &message);
                }
            }
        }
        let active = self.gateway.active.load_full();
        if !active.directory.is_writable() {
            return refused(&ChangeError::NotWritable);
        }
        // on another thread, because listing millions of names takes time
        let listed = tokio::task::spawn_blocking(move || {
            active.directory.table().map(|table| table.names(&after, limit.saturating_add(1)))
        });
        match listed.await {
            Ok(Some(mut names)) => {
                let has_more = names.len() > limit;
                names.truncate(limit);
                let next = names.last().filter(|_| has_more).map(|name| name.to_string());
                let names: Vec<&str> = names.iter().map(|name| &**name).collect();
                json_of(&json!({ "customers": names, "next": next }))
            }
            Ok(None) | Err(_) => failure(StatusCode::SERVICE_UNAVAILABLE, "the customers have not been read yet"),
        }
    }

    /// The change that a request asks for. Errors: what is wrong with its body.
    fn wanted(
        &self,
        customer: String,
        part: Part,
        (method, is_new): (&Method, bool),
        body: &[u8],
    ) -> Result<RequestedChange, String> {
        let active = self.gateway.active.load();
        let read = |allowed: &[&str]| terms(body, allowed, &active.groups);
        let made = || new_key().ok_or("cannot get random numbers from the system");
        let (change, key) = match part {
            Part::Whole if *method == Method::PUT => {
                let (terms, (key, credential)) = (read(&OF_CUSTOMERS)?, made()?);
                let first = NewKey { credential, valid_until: None };
                (Change::Put { terms, key: first, is_new }, Some(key))
            }
            Part::Whole if *method == Method::PATCH => (Change::Patch(read(&OF_CUSTOMERS)?), None),
            Part::Whole => (Change::Remove, None),
            Part::Keys => {
                let (mut terms, (key, credential)) = (read(&OF_KEYS)?, made()?);
                let valid_until = terms.remove("valid_until").flatten();
                (Change::AddKey(NewKey { credential, valid_until }, terms), Some(key))
            }
            Part::Rotation => {
                let (mut terms, (key, credential)) = (read(&OF_ROTATIONS)?, made()?);
                let [valid_until, keep] = ["valid_until", "keep_old_seconds"].map(|name| terms.remove(name).flatten());
                let keep: Option<u64> = keep.and_then(|seconds| seconds.parse().ok()).filter(|seconds| *seconds > 0);
                let until = keep.map(|seconds| {
                    let now = self.gateway.clock.wall().get() / Nanos::SECOND.get();
                    moment(Nanos::from_secs(now.saturating_add(seconds)))
                });
                (Change::Rotate(NewKey { credential, valid_until }, until), Some(key))
            }
            Part::Key(id) if *method == Method::PATCH => (Change::PatchKey(id, read(&OF_KEY_CHANGES)?), None),
            Part::Key(id) => (Change::RemoveKey(id), None),
        };
        Ok(RequestedChange { customer, change, key })
    }

    /// Makes a change, waits until it is in force, and responds; with 202 if it is not in force yet.
    async fn change(
        &self,
        RequestedChange { customer, change, key }: RequestedChange,
        note: NoteOnDrop,
    ) -> PlainResponse {
        // a task of its own, which goes on when this request is given up, also while it waits for the lock
        let (gateway, lock) = (self.gateway.clone(), Arc::clone(&self.change_lock.0));
        let changing = tokio::spawn(logged_change((gateway, lock), (customer.clone(), change), note));
        let changed = changing.await.unwrap_or_else(|_| Err(ChangeError::Unknown("the gateway failed".to_owned())));
        let (changed, active) = match changed {
            Ok(changed) => changed,
            Err(error) => {
                let is_unknown = matches!(error, ChangeError::Unknown(_));
                return match key.filter(|_| is_unknown) {
                    // the change may be in force, and no later response shows the key
                    Some(key) => {
                        let answer = json!({ "error": error.to_string(), "key": key });
                        (StatusCode::SERVICE_UNAVAILABLE, JSON, format!("{answer:#}\n"))
                    }
                    None => refused(&error),
                };
            }
        };
        let key = key.filter(|key| {
            let credential = field_of(key.as_bytes());
            changed.after.iter().any(|row| row.get("credential") == credential)
        });
        let (in_force, errors) = self.in_force(&changed, &active).await;
        let status = match (in_force, &key) {
            (false, _) => StatusCode::ACCEPTED,
            (true, Some(_)) => StatusCode::CREATED,
            (true, None) => StatusCode::OK,
        };
        let customer = shown_if_any(&customer, &changed.after, &active.groups);
        let mut answer = json!({ "customer": customer, "in_force": in_force });
        let more = [("key", key.map(Value::from)), ("errors", errors)];
        if let Value::Object(answer) = &mut answer {
            answer.extend(more.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))));
        }
        (status, JSON, format!("{answer:#}\n"))
    }

    /// Waits until a change is in force at this gateway. Returns whether it is, and the errors of a reload that refused it.
    async fn in_force(&self, changed: &ChangedRows, active: &ActiveConfig) -> (bool, Option<Value>) {
        if let Some(is_in_force) = active.directory.wait_until_in_force(changed, &active.groups).await {
            return (is_in_force, None);
        }
        match self.records.reloads.request().await {
            Some(attempt) => (attempt.is_in_force(), attempt.report().get("errors").cloned()),
            None => (false, None),
        }
    }
}

/// Makes a change and writes its `note` to the audit log, both under the `lock` for changes. Returns also the configuration
/// under which it was made.
async fn logged_change(
    (gateway, lock): (Gateway, Arc<Mutex<()>>),
    (customer, change): (String, Change),
    note: NoteOnDrop,
) -> Result<(ChangedRows, Arc<ActiveConfig>), ChangeError> {
    let _change_lock = lock.lock().await;
    // dropped before the lock
    let mut note = note;
    let active = gateway.active.load_full();
    let changed = active.directory.change(&customer, change, &active.groups).await;
    note.outcome = match &changed {
        Ok(ChangedRows { before, after }) => {
            let [before, after] = [before, after].map(|rows| shown_if_any(&customer, rows, &active.groups));
            ("done", json!({ "customer": customer, "before": before, "after": after }))
        }
        Err(error) => {
            let result = if matches!(error, ChangeError::Unknown(_)) { "unknown" } else { "refused" };
            (result, json!({ "customer": customer, "reason": error.to_string() }))
        }
    };
    changed.map(|changed| (changed, active))
}

/// A customer as JSON; `None` without rows.
fn shown_if_any(customer: &str, rows: &[RowText], groups: &GroupTable) -> Option<Value> {
    (!rows.is_empty()).then(|| shown(customer, rows, groups))
}

/// A customer as JSON, without its credentials.
fn shown(customer: &str, rows: &[RowText], groups: &GroupTable) -> Value {
    let first = rows.first().cloned().unwrap_or_default();
    let text = |row: &RowText, column: &str| Some(row.get(column).to_owned()).filter(|text| !text.is_empty());
    let keys = rows.iter().map(|row| {
        let mut key = json!({ "id": row.key_id(), "valid_until": text(row, "valid_until") });
        if !groups.levels().is_empty() {
            let of = groups.levels().iter().filter_map(|level| Some((level.to_string(), text(row, level)?.into())));
            key["groups"] = Value::Object(of.collect());
        }
        key
    });
    json!({
        "name": customer,
        "plan": text(&first, "plan"),
        "overrides": first.overrides(),
        "time_zone": text(&first, "time_zone"),
        "suspended": first.get("suspended") == "true",
        "keys": keys.collect::<Vec<_>>(),
    })
}

/// The new values of columns, from the fields of `body`; `allowed` are the known ones. Errors: what is wrong with `body`.
fn terms(body: &[u8], allowed: &[&str], groups: &GroupTable) -> Result<Terms, String> {
    let body = if body.is_empty() { b"{}" } else { body };
    // the message of serde_json is not used, since it could quote the body
    let Ok(Value::Object(fields)) = serde_json::from_slice(body) else {
        return Err("the body is not a JSON object".to_owned());
    };
    let mut terms = Terms::new();
    for (name, value) in fields {
        if !allowed.contains(&name.as_str()) {
            return Err(format!("`{name}` is not known here; there are: {}", allowed.join(", ")));
        }
        let text = match (name.as_str(), value) {
            ("groups", Value::Object(named)) => {
                terms.extend(of_groups(named, groups)?);
                continue;
            }
            ("groups", Value::Null) => {
                terms.extend(of_groups(Map::new(), groups)?);
                continue;
            }
            (_, Value::Null) => None,
            ("suspended", Value::Bool(is_suspended)) => is_suspended.then(|| "true".to_owned()),
            ("overrides", Value::Object(overrides)) => Some(Value::Object(overrides).to_string()),
            ("keep_old_seconds", Value::Number(seconds)) if seconds.as_u64().is_some_and(|n| n <= u32::MAX.into()) => {
                Some(seconds.to_string())
            }
            ("plan" | "time_zone" | "valid_until", Value::String(text)) => Some(text),
            ("suspended", _) => return Err("`suspended` is neither true nor false".to_owned()),
            ("overrides" | "groups", _) => return Err(format!("`{name}` is no object")),
            ("keep_old_seconds", _) => return Err("`keep_old_seconds` is not a number of seconds".to_owned()),
            (_, _) => return Err(format!("`{name}` is no text")),
        };
        terms.insert(name, text);
    }
    // a CSV file keeps no blanks around a field
    terms.values_mut().flatten().for_each(|text| *text = text.trim().to_owned());
    Ok(terms)
}

/// The values for the columns of all levels, from the groups that a request names.
fn of_groups(mut named: Map<String, Value>, groups: &GroupTable) -> Result<Terms, String> {
    let of_level = |level: &Arc<str>| match named.remove(&**level) {
        Some(Value::String(group)) => Ok((level.to_string(), Some(group))),
        Some(Value::Null) | None => Ok((level.to_string(), None)),
        Some(_) => Err(format!("`groups.{level}` is no text")),
    };
    let terms = groups.levels().iter().map(of_level).collect::<Result<_, _>>()?;
    match named.keys().next() {
        Some(unknown) => Err(format!("`groups.{unknown}` is none of `customers.groups.levels`")),
        None => Ok(terms),
    }
}

/// A new key, and its form in the `credential` column of a directory.
fn new_key() -> Option<(String, String)> {
    let mut bytes = [0; 32];
    SystemRandom::new().fill(&mut bytes).ok()?;
    let key = format!("tg_{}", URL_SAFE_NO_PAD.encode(bytes));
    let credential = field_of(key.as_bytes());
    Some((key, credential))
}

fn refused(error: &ChangeError) -> PlainResponse {
    let status = match error {
        ChangeError::NoCustomer | ChangeError::NoKey => StatusCode::NOT_FOUND,
        ChangeError::NotWritable | ChangeError::LastKey | ChangeError::Conflict(_) => StatusCode::CONFLICT,
        ChangeError::Exists => StatusCode::PRECONDITION_FAILED,
        ChangeError::Invalid(_) => StatusCode::UNPROCESSABLE_ENTITY,
        ChangeError::Unavailable(_) | ChangeError::Unknown(_) => StatusCode::SERVICE_UNAVAILABLE,
    };
    failure(status, &error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_lead_to_customers_and_their_keys() {
        let acme = |part| Some(Target::Of("acme".to_owned(), part));
        for (path, target) in [
            ("", Some(Target::All)),
            ("/acme", acme(Part::Whole)),
            ("/a%2Fb%20c", Some(Target::Of("a/b c".to_owned(), Part::Whole))),
            ("/acme/keys", acme(Part::Keys)),
            ("/acme/keys/0123", acme(Part::Key("0123".to_owned()))),
            ("/acme/rotate", acme(Part::Rotation)),
            ("/", None),
            ("/%20acme", None),
            ("/%ff", None),
            ("/acme/", None),
            ("/acme/keys/", None),
            ("/acme/keys/a/b", None),
            ("/acme/other", None),
            ("s", None),
        ] {
            assert_eq!(Target::of(&format!("/v1/customers{path}")), target, "{path}");
        }
    }

    #[test]
    fn a_body_says_what_stands_in_columns_or_what_is_wrong_with_it() {
        let groups = GroupTable::unlisted(&["organisation".to_owned(), "team".to_owned()]);
        let read = |body: &str| {
            let terms = terms(body.as_bytes(), &OF_CUSTOMERS, &groups)?;
            let shown = |(name, text): (String, Option<String>)| format!("{name}={} ", text.unwrap_or_default());
            Ok::<_, String>(terms.into_iter().map(shown).collect::<String>())
        };
        for (body, columns) in [
            ("", ""),
            (r#"{"plan": "pro", "suspended": true, "time_zone": null}"#, "plan=pro suspended=true time_zone= "),
            (
                r#"{"suspended": false, "overrides": {"guard": {"burst": 7}}}"#,
                r#"overrides={"guard":{"burst":7}} suspended= "#,
            ),
            (r#"{"groups": {"team": " x\u00a0"}, "plan": " "}"#, "organisation= plan= team=x "),
            (r#"{"groups": null}"#, "organisation= team= "),
        ] {
            assert_eq!(read(body).as_deref(), Ok(columns), "{body}");
        }
        for (body, says) in [
            ("[]", "not a JSON object"),
            (r#"{"plann": "pro"}"#, "`plann` is not known here; there are: plan, overrides"),
            (r#"{"plan": 1}"#, "`plan` is no text"),
            (r#"{"suspended": "true"}"#, "neither true nor false"),
            (r#"{"overrides": "unlimited"}"#, "`overrides` is no object"),
            (r#"{"groups": {"tem": "x"}}"#, "`groups.tem` is none of"),
            (r#"{"groups": {"team": 1}}"#, "`groups.team` is no text"),
        ] {
            assert!(read(body).unwrap_err().contains(says), "{body}");
        }
    }

    #[test]
    fn keys_are_long_and_never_the_same() {
        let [(one, hashed), (other, _)] = [new_key().unwrap(), new_key().unwrap()];
        assert!(one.len() == 46 && one.starts_with("tg_") && one != other);
        assert_eq!(hashed, field_of(one.as_bytes()));
    }
}
