//! A directory that asks a server for each presented credential, in a Redis hash or over HTTP, and caches the answers.
//!
//! Requests that present the same credential at the same time share one call, which continues after they stop waiting. If
//! the server is unavailable or slow, the last answer stays valid.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use quick_cache::sync::Cache;
use redis::FromRedisValue;
use tokio::sync::watch;
use tokio::time::timeout;

use super::Unavailable;
use super::credential::{Hashes, KeyedHash, field_of};
use super::groups::GroupTable;
use super::intern::Interner;
use crate::clock::Clock;
use crate::customers::Customer;
use crate::redis_client::Pool;
use crate::ruleset::overrides::OverridesReader;
use crate::units::Nanos;

mod http;
mod value;

pub use http::{Contract, HttpService};

/// The server that is asked.
pub enum Server {
    /// A Redis hash at this key. The field is `sha256:` and the credential's SHA-256 in hexadecimal digits, so Redis never
    /// sees a credential; the value is JSON.
    Redis {
        /// The connections to Redis.
        pool: Pool,
        /// The key of the hash.
        key: String,
    },
    /// A service over HTTP.
    Http(HttpService),
}

/// The settings of calls and of their cached answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LookupSettings {
    /// How long a request waits for an answer.
    pub patience: Nanos,
    /// How long an answer is valid.
    pub ttl: Nanos,
    /// How long an answer is valid that says that no customer has the credential.
    pub negative_ttl: Nanos,
    /// The maximum number of cached answers.
    pub max_cached: usize,
    /// The maximum number of concurrent calls.
    pub max_calls: usize,
}

/// The status of a call for one credential.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LookupStatus {
    /// A customer.
    Found,
    /// No customer has the credential.
    Missing,
    /// An answer that is no valid customer.
    Invalid,
    /// The server cannot be reached, or refuses the call.
    Failed,
    /// No answer before the timeout.
    TimedOut,
}

impl LookupStatus {
    /// The status's label in metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Found => "found",
            Self::Missing => "missing",
            Self::Invalid => "invalid",
            Self::Failed => "error",
            Self::TimedOut => "timeout",
        }
    }
}

/// Called after every call with its status and duration.
pub type LookupObserver = Box<dyn Fn(LookupStatus, Nanos) + Send + Sync>;

/// A directory that looks customers up when their credentials are presented.
pub struct LookupDirectory(Arc<Lookup>);

struct Lookup {
    server: Server,
    settings: LookupSettings,
    hashes: Hashes,
    /// The cached answers, which the directories of one server share from one configuration to the next, unless their number
    /// changes.
    cache: Arc<Cache<KeyedHash, Cached>>,
    /// The number of the reader among those that have read answers in the cache.
    reader: u64,
    pending: Mutex<HashMap<KeyedHash, PendingCall>>,
    interner: Mutex<Interner>,
    groups: Arc<GroupTable>,
    observer: OnceLock<LookupObserver>,
    /// The end of the pause in calls after a failed one.
    backoff_until: AtomicU64,
    is_unavailable: AtomicBool,
}

/// The customer of a credential, if it has one; an error if no valid answer is available.
type LookupResult = Result<Option<Arc<Customer>>, Unavailable>;

#[derive(Clone)]
struct Cached {
    answer: LookupResult,
    /// The number of the reader of this answer.
    reader: u64,
    /// The customer as the server gave it, to be read again by another reader.
    value: Option<Arc<[u8]>>,
    good_until: Nanos,
}

/// A call that is in progress.
#[derive(Clone)]
struct PendingCall {
    began: Nanos,
    result: watch::Receiver<Option<LookupResult>>,
}

/// How long a call may take after its requests stop waiting: a slow answer then serves the next request.
const CALL_TIME: Nanos = Nanos::new(900_000_000);
/// After a failed call: how long the last answer stays valid, and how long the server is not asked.
const STALE_TIME: Nanos = Nanos::SECOND;
const BACKOFF: Nanos = Nanos::new(100_000_000);

// === impl LookupDirectory ===

impl LookupDirectory {
    /// Connects at the first call. `reader` parses plans, time zones and overrides, and `groups` are the groups that
    /// customers may belong to. The cached answers of the directory `before`, of the same server, stay valid: `reader` reads
    /// them again.
    pub fn new(
        (server, settings): (Server, LookupSettings),
        before: Option<&Self>,
        reader: Arc<dyn OverridesReader>,
        groups: Arc<GroupTable>,
    ) -> Self {
        let before = before.map(|before| &before.0);
        let cache = match before {
            Some(before) if before.settings.max_cached == settings.max_cached => Arc::clone(&before.cache),
            _ => {
                let cache = Cache::new(settings.max_cached);
                let known = before.iter().flat_map(|before| before.cache.iter());
                known.for_each(|(hash, cached)| cache.insert(hash, cached));
                Arc::new(cache)
            }
        };
        Self(Arc::new(Lookup {
            server,
            settings,
            hashes: before.map_or_else(|| Hashes::new(&rand::random()), |before| before.hashes),
            cache,
            reader: before.map_or(0, |before| before.reader.wrapping_add(1)),
            pending: Mutex::default(),
            interner: Mutex::new(Interner::new(reader)),
            groups,
            observer: OnceLock::new(),
            backoff_until: AtomicU64::new(0),
            is_unavailable: AtomicBool::new(false),
        }))
    }

    /// The settings of calls and of their cached answers.
    pub fn settings(&self) -> LookupSettings {
        self.0.settings
    }

    /// Whether the server is an HTTP service.
    pub fn is_http(&self) -> bool {
        matches!(self.0.server, Server::Http(_))
    }

    /// Calls `observer` after every call from here on; the first observer stays.
    pub fn observe(&self, observer: LookupObserver) {
        drop(self.0.observer.set(observer));
    }

    /// The cached answer, if it is still valid.
    pub fn find_cached(&self, credential: &[u8], now: Nanos) -> Option<LookupResult> {
        let hash = self.0.hashes.of(credential);
        let cached = self.0.cached(hash)?;
        self.0.is_good(&cached, now).then_some(cached.answer)
    }

    /// The customer of this credential; `None` if no customer has it. Waits for the server as long as the settings say.
    pub async fn find(&self, credential: &[u8], clock: &Arc<dyn Clock>) -> LookupResult {
        let shared = &self.0;
        let now = clock.now();
        let hash = shared.hashes.of(credential);
        let cached = shared.cached(hash);
        if let Some(cached) = cached.as_ref().filter(|cached| shared.is_good(cached, now)) {
            return cached.answer.clone();
        }
        let answer = match Lookup::start_or_join_call(shared, hash, credential, clock, now) {
            Some(call) => call.wait(shared.settings.patience, now).await,
            None => Err(Unavailable),
        };
        answer.or_else(|unavailable| cached.map_or(Err(unavailable), |cached| cached.answer))
    }
}

impl PendingCall {
    async fn wait(mut self, patience: Nanos, now: Nanos) -> LookupResult {
        let left = patience.saturating_sub(now.saturating_sub(self.began));
        match timeout(left.to_duration(), self.result.wait_for(Option::is_some)).await {
            Ok(Ok(result)) => result.clone().unwrap_or(Err(Unavailable)),
            Ok(Err(_)) | Err(_) => Err(Unavailable),
        }
    }
}

// === impl Lookup ===

impl Lookup {
    /// The call for a credential, started if there is none that runs or has just ended; `None` if no call may start now.
    fn start_or_join_call(
        self: &Arc<Self>,
        hash: KeyedHash,
        credential: &[u8],
        clock: &Arc<dyn Clock>,
        now: Nanos,
    ) -> Option<PendingCall> {
        let mut pending = self.pending.lock();
        if let Some(call) = pending.get(&hash) {
            return Some(call.clone());
        }
        // a call that ended since the caller looked has cached its answer before it left `pending`
        if let Some(cached) = self.cached(hash).filter(|cached| self.is_good(cached, now)) {
            return Some(PendingCall { began: now, result: watch::channel(Some(cached.answer)).1 });
        }
        if pending.len() >= self.settings.max_calls || now.get() < self.backoff_until.load(Ordering::Relaxed) {
            return None;
        }
        let (publish, result) = watch::channel(None);
        let call = PendingCall { began: now, result };
        pending.insert(hash, call.clone());
        drop(pending);
        let permit = CallPermit { shared: Arc::clone(self), hash };
        let (credential, clock) = (credential.to_vec(), Arc::clone(clock));
        tokio::spawn(async move {
            let answer = permit.shared.ask(hash, &credential, &*clock).await;
            drop(permit);
            publish.send_replace(Some(answer));
        });
        Some(call)
    }

    /// Asks the server and caches the answer.
    async fn ask(&self, hash: KeyedHash, credential: &[u8], clock: &dyn Clock) -> LookupResult {
        let (began, field) = (clock.now(), field_of(credential));
        let longest = self.settings.patience.saturating_add(CALL_TIME);
        let asked = timeout(longest.to_duration(), self.get(credential, &field)).await;
        let now = clock.now();
        let mut kept = None;
        let (status, answer) = match asked {
            Ok(Ok(None)) => (LookupStatus::Missing, Ok(None)),
            Ok(Ok(Some(value))) => match self.read(&value) {
                Ok(customer) => {
                    kept = Some(value.into());
                    (LookupStatus::Found, Ok(Some(Arc::new(customer))))
                }
                Err(reason) => {
                    let (field, server) = (shortened(&field), self.name());
                    tracing::warn!(
                        field,
                        reason,
                        server,
                        "cannot read a customer's entry in the directory; the last valid entry stays in use, if there is one"
                    );
                    (LookupStatus::Invalid, Err(Unavailable))
                }
            },
            Ok(Err(error)) => {
                self.mark_unavailable(&error, now);
                (LookupStatus::Failed, Err(Unavailable))
            }
            Err(_) => {
                if let Server::Redis { pool, key } = &self.server {
                    pool.close_holder(key);
                }
                self.mark_unavailable("no answer in time", now);
                (LookupStatus::TimedOut, Err(Unavailable))
            }
        };
        if let Some(observer) = self.observer.get() {
            observer(status, now.saturating_sub(began));
        }
        if !matches!(status, LookupStatus::Failed | LookupStatus::TimedOut)
            && self.is_unavailable.swap(false, Ordering::Relaxed)
        {
            tracing::info!("{} answers customer lookups again", self.name());
        }
        self.remember(hash, status, (answer.clone(), kept), now);
        answer
    }

    /// The cached answer for a credential, as this directory's reader reads it; `None` also if it cannot.
    fn cached(&self, hash: KeyedHash) -> Option<Cached> {
        let cached = self.cache.get(&hash)?;
        let Some(value) = cached.value.as_ref().filter(|_| cached.reader != self.reader) else { return Some(cached) };
        let answer = Ok(Some(Arc::new(self.read(value).ok()?)));
        let cached = Cached { answer, reader: self.reader, ..cached };
        self.cache.insert(hash, cached.clone());
        Some(cached)
    }

    /// Whether a cached answer is valid. An answer from before the settings made answers end earlier is not valid for
    /// longer than an answer that comes now.
    fn is_good(&self, cached: &Cached, now: Nanos) -> bool {
        let longest = self.settings.ttl.max(self.settings.negative_ttl).max(STALE_TIME);
        now < cached.good_until && cached.good_until <= now.saturating_add(longest)
    }

    fn read(&self, value: &[u8]) -> Result<Customer, String> {
        let mut interner = self.interner.lock();
        value::read(value, &mut interner, &self.groups)
    }

    /// The server's answer for a credential, of which `field` is the hash. Has no timeout of its own.
    async fn get(&self, credential: &[u8], field: &str) -> Result<Option<Vec<u8>>, String> {
        match &self.server {
            Server::Redis { pool, key } => {
                let value = pool.run(key, redis::cmd("HGET").arg(key).arg(field)).await;
                let value = value.map_err(|error| error.to_string())?;
                Option::from_redis_value(value).map_err(|error| error.to_string())
            }
            Server::Http(service) => service.ask(credential, field).await,
        }
    }

    const fn name(&self) -> &'static str {
        match self.server {
            Server::Redis { .. } => "Redis",
            Server::Http(_) => "the look-up service",
        }
    }

    fn remember(&self, hash: KeyedHash, status: LookupStatus, fresh: (LookupResult, Option<Arc<[u8]>>), now: Nanos) {
        let ((answer, value), time) = match status {
            LookupStatus::Found => (fresh, self.settings.ttl),
            LookupStatus::Missing => (fresh, self.settings.negative_ttl),
            LookupStatus::Invalid | LookupStatus::Failed | LookupStatus::TimedOut => {
                let before = self.cached(hash).map(|cached| (cached.answer, cached.value));
                match (before, status) {
                    (Some(before), _) => (before, STALE_TIME),
                    (None, LookupStatus::Invalid) => (fresh, STALE_TIME),
                    (None, _) => return,
                }
            }
        };
        let good_until = now.saturating_add(time);
        self.cache.insert(hash, Cached { answer, reader: self.reader, value, good_until });
    }

    fn mark_unavailable(&self, error: &str, now: Nanos) {
        self.backoff_until.store(now.saturating_add(BACKOFF).get(), Ordering::Relaxed);
        if !self.is_unavailable.swap(true, Ordering::Relaxed) {
            let server = self.name();
            tracing::warn!(error, "{server} does not answer customer lookups; cached customers stay known");
        }
    }
}

/// A call's entry among those in progress; dropping it removes the entry.
struct CallPermit {
    shared: Arc<Lookup>,
    hash: KeyedHash,
}

impl Drop for CallPermit {
    fn drop(&mut self) {
        self.shared.pending.lock().remove(&self.hash);
    }
}

/// The start of a field: it identifies the credential in logs, but is too short to guess a weak credential from.
fn shortened(field: &str) -> String {
    const SHOWN: usize = "sha256:01234567".len();
    format!("{}…", field.get(..SHOWN).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::ManualClock;
    use crate::customers::directory::testing::Words;

    #[tokio::test]
    async fn a_server_that_cannot_be_reached_is_asked_again_after_a_backoff() {
        let settings = LookupSettings {
            patience: Nanos::from_secs(60),
            ttl: Nanos::SECOND,
            negative_ttl: Nanos::SECOND,
            max_cached: 10,
            max_calls: 10,
        };
        let url = "http://127.0.0.1:1/".parse().unwrap();
        let server = Server::Http(HttpService { url, tls: None, token: None, contract: Contract::Plain });
        let directory = LookupDirectory::new((server, settings), None, Arc::new(Words), Arc::default());
        let calls = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&calls);
        directory.observe(Box::new(move |_, _| {
            counted.fetch_add(1, Ordering::Relaxed);
        }));
        let clock = Arc::new(ManualClock::new(Nanos::SECOND));
        let asked: Arc<dyn Clock> = clock.clone();
        let again = Nanos::SECOND.saturating_add(BACKOFF);
        for (now, called) in [(Nanos::SECOND, 1), (again.saturating_sub(Nanos::new(1)), 1), (again, 2)] {
            clock.set(now);
            for credential in [b"one", b"two"] {
                assert!(directory.find(credential, &asked).await.is_err());
            }
            assert_eq!(calls.load(Ordering::Relaxed), called);
        }
    }
}
