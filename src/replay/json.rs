//! Lines of JSON: only what is looked for is taken, the rest is passed over.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::common::request_line;
use super::fields::{Place, SLOTS, Slot};
use super::record::{Record, Unreadable};
use super::stamp;
use crate::units::Nanos;

/// What some servers write in place of a value that is a secret.
const REDACTED: &str = "REDACTED";

/// What a line tells whose fields are at the places below `root`.
pub(super) fn read<'l>(line: &'l [u8], root: &Place) -> Result<Record<'l>, Unreadable> {
    let mut found = Found { record: Record::default(), ranks: [u8::MAX; SLOTS], time: None, request_line: None };
    let mut deserializer = serde_json::Deserializer::from_slice(line);
    let visited = At { place: root, found: &mut found }.deserialize(&mut deserializer);
    visited.and_then(|()| deserializer.end()).map_err(|error| Unreadable::Json(error.to_string()))?;
    let Found { mut record, time, request_line: line, .. } = found;
    record.logged = time.ok_or(Unreadable::Missing("time"))?.ok_or(Unreadable::Time)?;
    match line {
        Some(Cow::Borrowed(line)) if record.target.is_none() => set_request(&mut record, line),
        Some(Cow::Owned(line)) if record.target.is_none() => {
            let mut told = Record::default();
            set_request(&mut told, &line);
            record.method = told.method.map(|method| Cow::Owned(method.into_owned()));
            record.target = told.target.map(|target| Cow::Owned(target.into_owned()));
        }
        _ => {}
    }
    Ok(record)
}

fn set_request<'l>(record: &mut Record<'l>, line: &'l str) {
    if let Some((method, target)) = request_line(line.as_bytes()) {
        record.method = Some(String::from_utf8_lossy(method));
        record.target = Some(Cow::Borrowed(target));
    }
}

/// What was found of a line so far.
struct Found<'l> {
    record: Record<'l>,
    /// The ranks of the places where each slot's value was found.
    ranks: [u8; SLOTS],
    /// Whether there is a time, and whether it can be read.
    time: Option<Option<Nanos>>,
    request_line: Option<Cow<'l, str>>,
}

enum Value<'l> {
    Text(Cow<'l, str>),
    Whole(u64),
    Float(f64),
}

/// One place of a line.
struct At<'p, 'f, 'l> {
    place: &'p Place,
    found: &'f mut Found<'l>,
}

/// The name of a member; borrowed unless it holds escapes.
#[derive(Deserialize)]
struct Name<'l>(#[serde(borrow)] Cow<'l, str>);

// === impl Found ===

impl<'l> Found<'l> {
    fn put(&mut self, place: &Place, value: &Value<'l>) {
        for (rank, slot) in &place.slots {
            let best = slot.number().and_then(|number| self.ranks.get_mut(number));
            if best.is_none_or(|best| *rank < *best) && self.take(*slot, value) {
                best_of(&mut self.ranks, *slot, *rank);
            }
        }
    }

    /// Whether `value` tells what `slot` wants.
    fn take(&mut self, slot: Slot, value: &Value<'l>) -> bool {
        let record = &mut self.record;
        match slot {
            Slot::Time => {
                self.time = Some(value.time());
                true
            }
            Slot::Took => put(&mut record.took, value.float().and_then(stamp::seconds)),
            Slot::Waited => {
                record.waited = value.float().and_then(stamp::seconds).unwrap_or_default();
                true
            }
            Slot::Client => put(&mut record.client, value.text().map(bytes)),
            Slot::Method => put(&mut record.method, value.text()),
            Slot::Target => put(&mut record.target, value.text().map(bytes)),
            Slot::RequestLine => put(&mut self.request_line, value.text()),
            Slot::Host => put(&mut record.host, value.text()),
            Slot::Status => put(&mut record.status, value.whole().and_then(|status| u16::try_from(status).ok())),
            Slot::RequestBytes => put(&mut record.request_bytes, value.whole()),
            Slot::ResponseBytes => put(&mut record.response_bytes, value.whole()),
            Slot::Customer => put(&mut record.customer, value.text()),
            Slot::Plan => put(&mut record.plan, value.text()),
            Slot::Node => put(&mut record.node, value.text()),
            Slot::Answered => put(&mut record.answered, value.text()),
            Slot::Decision => put(&mut record.decision, value.text()),
            Slot::Header(position) => {
                record.headers.extend(value.text().filter(|text| text != REDACTED).map(|text| (position, text)));
                true
            }
            Slot::ResponseHeader(position) => {
                record.response_headers.extend(value.text().map(|text| (position, text)));
                true
            }
        }
    }
}

fn best_of(ranks: &mut [u8; SLOTS], slot: Slot, rank: u8) {
    if let Some(best) = slot.number().and_then(|number| ranks.get_mut(number)) {
        *best = rank;
    }
}

fn put<T>(place: &mut Option<T>, value: Option<T>) -> bool {
    let is_there = value.is_some();
    if is_there {
        *place = value;
    }
    is_there
}

fn bytes(text: Cow<'_, str>) -> Cow<'_, [u8]> {
    match text {
        Cow::Borrowed(text) => Cow::Borrowed(text.as_bytes()),
        Cow::Owned(text) => Cow::Owned(text.into_bytes()),
    }
}

// === impl Value ===

impl<'l> Value<'l> {
    /// A dash, like nothing, stands for nothing.
    fn text(&self) -> Option<Cow<'l, str>> {
        match self {
            Self::Text(text) => (!matches!(&**text, "" | "-")).then(|| text.clone()),
            Self::Whole(number) => Some(number.to_string().into()),
            Self::Float(number) => Some(number.to_string().into()),
        }
    }

    fn whole(&self) -> Option<u64> {
        match self {
            Self::Text(text) => text.parse().ok(),
            Self::Whole(number) => Some(*number),
            Self::Float(_) => None,
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "a number of seconds")]
    fn float(&self) -> Option<f64> {
        match self {
            Self::Text(text) => text.parse().ok(),
            Self::Whole(number) => Some(*number as f64),
            Self::Float(number) => Some(*number),
        }
    }

    fn time(&self) -> Option<Nanos> {
        match self {
            Self::Text(text) => {
                let text = text.trim_matches(['[', ']']).as_bytes();
                stamp::rfc3339(text).or_else(|| stamp::number(text)).or_else(|| stamp::common(text))
            }
            Self::Whole(number) => stamp::number(number.to_string().as_bytes()),
            Self::Float(number) => stamp::float(*number),
        }
    }
}

// === impl At ===

impl<'l> DeserializeSeed<'l> for At<'_, '_, 'l> {
    type Value = ();

    fn deserialize<D: Deserializer<'l>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'l> Visitor<'l> for At<'_, '_, 'l> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_map<A: MapAccess<'l>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(Name(name)) = map.next_key()? {
            match self.place.below(&name) {
                Some(place) => map.next_value_seed(At { place, found: &mut *self.found })?,
                None => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(())
    }

    /// Several values of one field, such as the lines of a header.
    fn visit_seq<A: SeqAccess<'l>>(self, mut list: A) -> Result<(), A::Error> {
        while list.next_element_seed(At { place: self.place, found: &mut *self.found })?.is_some() {}
        Ok(())
    }

    fn visit_borrowed_str<E>(self, text: &'l str) -> Result<(), E> {
        self.found.put(self.place, &Value::Text(Cow::Borrowed(text)));
        Ok(())
    }

    fn visit_str<E>(self, text: &str) -> Result<(), E> {
        self.found.put(self.place, &Value::Text(Cow::Owned(text.to_owned())));
        Ok(())
    }

    fn visit_u64<E>(self, number: u64) -> Result<(), E> {
        self.found.put(self.place, &Value::Whole(number));
        Ok(())
    }

    fn visit_i64<E>(self, number: i64) -> Result<(), E> {
        self.found.put(self.place, &Value::Text(Cow::Owned(number.to_string())));
        Ok(())
    }

    fn visit_f64<E>(self, number: f64) -> Result<(), E> {
        self.found.put(self.place, &Value::Float(number));
        Ok(())
    }

    fn visit_bool<E>(self, _value: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderName;

    use super::*;
    use crate::replay::fields::{Mapping, Wanted};

    fn read_with<'l>(line: &'l str, mappings: &[&str]) -> Result<Record<'l>, Unreadable> {
        let wanted = Wanted { headers: vec![HeaderName::from_static("x-api-key")], ..Wanted::default() };
        let mappings: Vec<Mapping> = mappings.iter().map(|mapping| mapping.parse().unwrap()).collect();
        read(line.as_bytes(), &Place::root(&mappings, &wanted))
    }

    #[test]
    fn lines_of_tollgate_tell_all_that_is_needed() {
        let line = r#"{"timestamp":"2000-10-10T20:55:36.250000Z","method":"GET","host":"api.test","path":"/a","status":429,
            "duration_seconds":0.25,"route":"all","client":"192.0.2.7","customer":"acme","plan":"free","decision":"denied",
            "limit":"guard","wait_seconds":0.0,"answered":"limited"}"#;
        let record = read_with(line, &[]).unwrap();
        assert_eq!((record.logged.get(), record.took), (971_211_336_250_000_000, Some(Nanos::new(250_000_000))));
        let texts = [&record.method, &record.host, &record.customer, &record.plan];
        assert_eq!(texts.map(|text| text.as_deref().unwrap()), ["GET", "api.test", "acme", "free"]);
        assert_eq!(record.client.as_deref(), Some(&b"192.0.2.7"[..]));
        assert_eq!((record.target.as_deref(), record.status), (Some(&b"/a"[..]), Some(429)));
        let words = [&record.answered, &record.decision].map(|text| text.as_deref().unwrap());
        assert_eq!(words, ["limited", "denied"]);
    }

    #[test]
    fn lines_of_other_servers_are_understood() {
        let caddy = r#"{"level":"info","ts":971211336.5,"msg":"handled request","request":{"remote_ip":"192.0.2.7","client_ip":
            "192.0.2.8","method":"PUT","host":"a.test","uri":"/x?y","headers":{"X-Api-Key":["k1"],"Authorization":["REDACTED"]}},
            "bytes_read":7,"user_id":"","duration":0.5,"size":9,"status":200,"resp_headers":{"Server":["Caddy"]}}"#;
        let record = read_with(caddy, &[]).unwrap();
        assert_eq!((record.logged.get(), record.client.as_deref()), (971_211_336_500_000_000, Some(&b"192.0.2.8"[..])));
        assert_eq!((record.target.as_deref(), record.method.as_deref()), (Some(&b"/x?y"[..]), Some("PUT")));
        assert_eq!((record.request_bytes, record.response_bytes, record.customer), (Some(7), Some(9), None));
        assert_eq!(record.headers, [(0, "k1".into())]);

        let nginx = r#"{"time_iso8601":"2000-10-10T20:55:36+00:00","remote_addr":"192.0.2.7","request":"GET /\u0061 HTTP/1.1",
            "status":"204","body_bytes_sent":"0","request_time":"0.010","http_host":"a.test","http_x_api_key":"k","remote_user":"-"}"#;
        let record = read_with(nginx, &[]).unwrap();
        assert_eq!((record.target.as_deref(), record.status), (Some(&b"/a"[..]), Some(204)));
        assert_eq!((record.took, record.customer), (Some(Nanos::new(10_000_000)), None));
        assert_eq!(record.headers, [(0, "k".into())]);
    }

    #[test]
    fn a_mapping_outranks_the_usual_places() {
        let line = r#"{"time":1,"start":971211336,"user":"a","who":{"id":42},"uri":"/u","path":"/p","client":"bad"}"#;
        let record = read_with(line, &["time=start", "customer=who.id", "path=uri"]).unwrap();
        assert_eq!((record.logged, record.customer.as_deref()), (Nanos::from_secs(971_211_336), Some("42")));
        assert_eq!(record.target.as_deref(), Some(&b"/u"[..]));
    }

    #[test]
    fn what_is_no_such_line_is_told() {
        assert!(matches!(read_with("{\"time\":1", &[]), Err(Unreadable::Json(_))));
        assert!(matches!(read_with("{\"time\":1} x", &[]), Err(Unreadable::Json(_))));
        assert_eq!(read_with("{\"a\":1}", &[]), Err(Unreadable::Missing("time")));
        assert_eq!(read_with("{\"time\":\"noon\"}", &[]), Err(Unreadable::Time));
        assert_eq!(read_with("{\"time\":null}", &[]), Err(Unreadable::Missing("time")));
    }
}
