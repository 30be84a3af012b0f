//! Keys: two requests share one exactly where all that a limit counts by is the same, whatever bytes it is made of.

use std::net::IpAddr;

use http::{HeaderName, HeaderValue};
use tollgate::charge::{Consistency, Enforcement, Mode, OnStoreDown, Sharing};
use tollgate::fields::Fields;
use tollgate::ruleset::key::{
    Facts, Key, KeyHasher, KeyPart, Repeated, Resolved, SharedKey, Value, named_value, value,
};
use tollgate::store::redis::{Bucket, CallArgument, SharedRule, key_name};
use tollgate::units::LimitKey;

use super::input::Input;
use super::redis_answer::rules;

const HEADER: HeaderName = HeaderName::from_static("x-user");
const SHARED: Mode = Mode::Shared(Sharing { consistency: Consistency::Exact, on_store_down: OnStoreDown::Allow });
const ADDRESSES: [&str; 4] = ["192.0.2.1", "::c000:201", "2001:db8::", "192.0.2.2"];

pub(crate) fn run(data: &[u8]) {
    let mut input = Input(data);
    let chosen = input.byte();
    let repeated = [Repeated::First, Repeated::Deny, Repeated::Last][usize::from(input.byte() % 3)];
    let all = [
        KeyPart::Customer,
        KeyPart::ClientAddress,
        KeyPart::Host,
        KeyPart::Query("q".to_owned(), repeated),
        KeyPart::Header(HEADER, repeated),
        KeyPart::Cookie("c".to_owned(), repeated),
        KeyPart::Method,
        KeyPart::RoutePattern,
    ];
    let parts: Vec<KeyPart> =
        all.into_iter().enumerate().filter(|(at, _)| chosen & 1 << at > 0).map(|(_, part)| part).collect();
    let key = Key { parts };
    let [one, two] = [Request::new(&mut input), Request::new(&mut input)];
    let [values, other_values] = [&one, &two].map(|request| request.values(&key));
    let hasher = KeyHasher::new(&[7; 16]).with_secret(b"secret");
    for hasher in [hasher.clone(), hasher.divided()] {
        let [own, other] = [&one, &two].map(|request| request.key(&hasher, Mode::Sticky, &key));
        let [shared, other_shared] = [&one, &two].map(|request| request.key(&hasher, SHARED, &key));
        assert_eq!(own.is_some(), values.is_some());
        assert_eq!(shared.is_some(), values.is_some());
        if let (Some(values), Some(own), Some(shared)) = (&values, own, shared) {
            let same = Some(values) == other_values.as_ref();
            assert_eq!((Some(own) == other, Some(shared.key) == other_shared.map(|shared| shared.key)), (same, same));
            let named: Vec<(KeyPart, Value<'_>)> = key.parts.iter().cloned().zip(values.iter().cloned()).collect();
            let of_values = |limit, mode| hasher.key(limit, mode, &key, |part| named_value(part, &named));
            assert_eq!(of_values("l", Mode::Sticky), Ok(own));
            assert_eq!(of_values("l", SHARED), Ok(shared));
            assert_ne!(of_values("m", Mode::Sticky), Ok(own), "another limit");
            name(shared.key, shared.tag);
        }
    }
}

/// What Redis is told is made of the configuration and of hashes.
fn name(key: LimitKey, tag: LimitKey) {
    rules(|rules| {
        let rule: &SharedRule = &rules[0];
        let bucket = Bucket {
            limit: "l",
            rule,
            key,
            tag,
            cost: 1,
            enforcement: Enforcement::DEFAULT,
            call_argument: CallArgument::Nothing,
        };
        let name = key_name("tollgate", &bucket);
        let rest = name.strip_prefix("tollgate:{").and_then(|rest| rest.split_once("}:l:")).unwrap();
        let key = rest.1.rsplit_once(':').unwrap().1;
        for hashed in [rest.0, key] {
            assert!(hashed.len() == 32 && hashed.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f')));
        }
    });
}

struct Request {
    method: String,
    host: String,
    query: Option<String>,
    headers: Fields,
    client: Option<IpAddr>,
    customer: Option<String>,
}

impl Request {
    fn new(input: &mut Input<'_>) -> Self {
        let chosen = input.byte();
        let text = |text: &str, bit: u8| (chosen & bit > 0).then(|| text.to_owned());
        let mut headers = Fields::default();
        let (customer, host, method, query) = (input.text(), input.text(), input.text(), input.text());
        for name in [HEADER, HEADER, http::header::COOKIE, http::header::COOKIE] {
            let line = input.line();
            if let Ok(value) = HeaderValue::from_bytes(line)
                && !line.is_empty()
            {
                headers.push(name, value);
            }
        }
        let address = ADDRESSES[usize::from(chosen & 3)].parse().ok();
        Self {
            method: method.to_owned(),
            host: host.to_owned(),
            query: text(query, 4),
            headers,
            client: address.filter(|_| chosen & 8 == 0),
            customer: text(customer, 16),
        }
    }

    fn facts(&self) -> Facts<'_> {
        Facts {
            method: &self.method,
            host: &self.host,
            query: self.query.as_deref(),
            client: self.client,
            address: self.client,
            ..Facts::of(&self.headers)
        }
    }

    fn resolved(&self) -> Resolved<'_> {
        let customer = self.customer.as_deref();
        Resolved { route: "r", path_pattern: "/**", customer, ..Resolved::default() }
    }

    fn key(&self, hasher: &KeyHasher, mode: Mode, key: &Key) -> Option<SharedKey> {
        let (facts, resolved) = (self.facts(), self.resolved());
        hasher.key("l", mode, key, |part| value(part, &facts, &resolved)).ok()
    }

    fn values(&self, key: &Key) -> Option<Vec<Value<'_>>> {
        let (facts, resolved) = (self.facts(), self.resolved());
        // what is written in a query is what it means
        if let Some(query) = &self.query {
            let read = value(&KeyPart::Query("q".to_owned(), Repeated::First), &facts, &resolved).ok();
            assert_eq!(read, plain(query).map(|value| Value::Bytes(value.into())), "{query}");
        }
        key.parts.iter().map(|part| value(part, &facts, &resolved).ok()).collect()
    }
}

/// The first `q` of a query, a byte at a time.
fn plain(query: &str) -> Option<Vec<u8>> {
    query.split('&').filter(|pair| !pair.is_empty()).find_map(|pair| {
        let mut halves = pair.splitn(2, '=').map(|half| {
            let (mut bytes, mut rest) = (Vec::new(), half.as_bytes());
            while let [first, behind @ ..] = rest {
                let digit = |byte: &u8| char::from(*byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
                (bytes, rest) = match (first, behind) {
                    (b'%', [high, low, behind @ ..]) if digit(high).is_some() && digit(low).is_some() => {
                        bytes.extend(digit(high).zip(digit(low)).map(|(high, low)| high * 16 + low));
                        (bytes, behind)
                    }
                    (byte, behind) => {
                        bytes.push(if *byte == b'+' { b' ' } else { *byte });
                        (bytes, behind)
                    }
                };
            }
            bytes
        });
        let (name, value) = (halves.next()?, halves.next().unwrap_or_default());
        (name == b"q").then_some(value)
    })
}
