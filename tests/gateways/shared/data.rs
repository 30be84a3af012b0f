//! The keys of a Redis in virtual time, and the commands that tollgate's scripts use.

use std::collections::BTreeMap;

use tollgate::units::Nanos;

/// All keys.
#[derive(Default)]
pub(crate) struct Data {
    /// The time at Redis.
    pub(crate) now: Nanos,
    keys: BTreeMap<Vec<u8>, StoredValue>,
}

struct StoredValue {
    value: Value,
    /// The time of expiry in milliseconds.
    expires: Option<u64>,
}

enum Value {
    Text(Vec<u8>),
    /// A sorted set, in its order.
    Sorted(Vec<(f64, Vec<u8>)>),
}

/// The answer of a command.
pub(crate) enum Answer {
    Nothing,
    Number(i64),
    Text(Vec<u8>),
    Status(&'static str),
    List(Vec<Vec<u8>>),
}

const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";

impl Data {
    pub(crate) fn clear(&mut self) {
        self.keys.clear();
    }

    fn milliseconds(&self) -> u64 {
        self.now.get() / 1_000_000
    }

    /// Runs a command; the first word is its name.
    pub(crate) fn run(&mut self, words: &[Vec<u8>]) -> Result<Answer, String> {
        let now = self.milliseconds();
        self.keys.retain(|_, kept| kept.expires.is_none_or(|expires| now <= expires));
        let name = str::from_utf8(&words[0]).unwrap();
        let key = words.get(1).cloned().unwrap_or_default();
        let after = words.get(2..).unwrap_or_default();
        match (name, after) {
            ("TIME", _) => {
                let (seconds, rest) = (self.now.get() / 1_000_000_000, self.now.get() % 1_000_000_000 / 1000);
                Ok(Answer::List(vec![seconds.to_string().into_bytes(), rest.to_string().into_bytes()]))
            }
            ("GET", _) => match self.keys.get(&key) {
                None => Ok(Answer::Nothing),
                Some(StoredValue { value: Value::Text(text), .. }) => Ok(Answer::Text(text.clone())),
                Some(_) => Err(WRONG_TYPE.to_owned()),
            },
            ("SET", [text, _, life]) => {
                let expires = Some(now + number::<u64>(life));
                self.keys.insert(key, StoredValue { value: Value::Text(text.clone()), expires });
                Ok(Answer::Status("OK"))
            }
            ("DEL", _) => Ok(Answer::Number(self.keys.remove(&key).is_some().into())),
            ("TYPE", _) => Ok(Answer::Status(match self.keys.get(&key).map(|kept| &kept.value) {
                None => "none",
                Some(Value::Text(_)) => "string",
                Some(Value::Sorted(_)) => "zset",
            })),
            ("PTTL", _) => Ok(Answer::Number(match self.keys.get(&key).map(|kept| kept.expires) {
                None => -2,
                Some(None) => -1,
                Some(Some(expires)) => (expires - now).try_into().unwrap(),
            })),
            ("PEXPIRE", [life]) => {
                let kept = self.keys.get_mut(&key);
                let is_there = kept.is_some();
                kept.into_iter().for_each(|kept| kept.expires = Some(now + number::<u64>(life)));
                Ok(Answer::Number(is_there.into()))
            }
            _ => self.sorted(name, key, after),
        }
    }

    fn sorted(&mut self, name: &str, key: Vec<u8>, after: &[Vec<u8>]) -> Result<Answer, String> {
        let mut nothing = Vec::new();
        let members = match self.keys.get_mut(&key).map(|kept| &mut kept.value) {
            Some(Value::Sorted(members)) => members,
            Some(Value::Text(_)) => return Err(WRONG_TYPE.to_owned()),
            None => &mut nothing,
        };
        let count = members.len();
        let listed = |some: &[(f64, Vec<u8>)]| some.iter().map(|(_, member)| member.clone()).collect();
        let answer = match (name, after) {
            ("ZADD", [score, member]) => {
                let score = double(score);
                members.retain(|(_, other)| other != member);
                let added = members.len() == count;
                let place = members
                    .partition_point(|(other, name)| other.total_cmp(&score).then_with(|| name.cmp(member)).is_lt());
                members.insert(place, (score, member.clone()));
                Answer::Number(added.into())
            }
            ("ZCARD", []) => Answer::Number(count.try_into().unwrap()),
            ("ZREM", [member]) => {
                members.retain(|(_, other)| other != member);
                Answer::Number((count - members.len()).try_into().unwrap())
            }
            ("ZRANGE", [first, last, with @ ..]) => {
                let some = &members[ranks(first, last, count)];
                match with {
                    [] => Answer::List(listed(some)),
                    _ => Answer::List(
                        some.iter()
                            .flat_map(|(score, member)| [member.clone(), score.to_string().into_bytes()])
                            .collect(),
                    ),
                }
            }
            ("ZRANGEBYSCORE", [least, most]) => {
                let some: Vec<_> =
                    members.iter().filter(|(score, _)| is_within(*score, least, most)).cloned().collect();
                Answer::List(listed(&some))
            }
            ("ZRANGEBYLEX", [first, last]) => {
                let is_within = |name: &Vec<u8>| match (first.split_first(), last.split_first()) {
                    (Some((b'-', _)), Some((b'(', last))) => name.as_slice() < last,
                    (Some((b'[', first)), Some((b'(', last))) => name.as_slice() >= first && name.as_slice() < last,
                    other => panic!("a range {other:?}"),
                };
                let some: Vec<_> = members.iter().filter(|(_, name)| is_within(name)).cloned().collect();
                Answer::List(listed(&some))
            }
            ("ZREMRANGEBYSCORE", [least, most]) => {
                members.retain(|(score, _)| !is_within(*score, least, most));
                Answer::Number((count - members.len()).try_into().unwrap())
            }
            ("ZREMRANGEBYRANK", [first, last]) => {
                members.drain(ranks(first, last, count));
                Answer::Number((count - members.len()).try_into().unwrap())
            }
            other => panic!("a script says {other:?}"),
        };
        if members.is_empty() {
            self.keys.remove(&key);
        } else if !nothing.is_empty() {
            self.keys.insert(key, StoredValue { value: Value::Sorted(nothing), expires: None });
        }
        Ok(answer)
    }
}

fn number<T: std::str::FromStr<Err: std::fmt::Debug>>(word: &[u8]) -> T {
    str::from_utf8(word).unwrap().parse().unwrap()
}

/// Reads a double; Rust reads `inf`, `+inf` and `-inf` as Redis does.
fn double(word: &[u8]) -> f64 {
    number(word)
}

fn is_within(score: f64, least: &[u8], most: &[u8]) -> bool {
    let from = least.strip_prefix(b"(").map_or_else(|| score >= double(least), |least| score > double(least));
    from && most.strip_prefix(b"(").map_or_else(|| score <= double(most), |most| score < double(most))
}

/// The range of ranks from `first` to `last`; negative ranks count from the end.
fn ranks(first: &[u8], last: &[u8], count: usize) -> std::ops::Range<usize> {
    let count = i64::try_from(count).unwrap();
    let place = |word| match number::<i64>(word) {
        negative @ ..0 => count + negative,
        place => place,
    };
    let (first, end) = (place(first).clamp(0, count), (place(last) + 1).clamp(0, count));
    usize::try_from(first).unwrap()..usize::try_from(end.max(first)).unwrap()
}
