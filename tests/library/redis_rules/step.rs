//! One call of a walk, and the check of its result.

use tollgate::algorithm::{Headroom, Rule};
use tollgate::charge::{AllCharged, Enforcement};
use tollgate::store::redis::{Bucket, Call, CallArgument, Clock, Encoded, SharedRule, encode};
use tollgate::units::{LimitKey, Nanos};

use crate::redis_rules::compare;
use crate::redis_rules::script::read;

/// A call for one bucket. It owns its parts, so that calls can be collected before they are sent.
pub(crate) struct Asked {
    pub(crate) name: String,
    pub(crate) shared: SharedRule,
    pub(crate) cost: u64,
    pub(crate) enforcement: Enforcement,
    pub(crate) full_at: Option<Nanos>,
    pub(crate) slot: String,
}

/// One call and its expected result.
pub(crate) struct Step {
    pub(crate) call: Call,
    pub(crate) now: u64,
    pub(crate) asked: Vec<Asked>,
    pub(crate) expected: Expected,
    /// Whether rounding decides, for a rule with approximate functions.
    pub(crate) edge: bool,
}

pub(crate) enum Expected {
    Charged(bool, AllCharged),
    Each(u64, Vec<AllCharged>),
    Stands(Vec<Headroom>),
}

impl Step {
    fn buckets(&self) -> Vec<Bucket<'_>> {
        self.asked
            .iter()
            .map(|asked| Bucket {
                limit: &asked.name,
                rule: &asked.shared,
                key: LimitKey(7),
                tag: LimitKey(1),
                cost: asked.cost,
                enforcement: asked.enforcement,
                call_argument: match asked.full_at {
                    Some(full_at) => CallArgument::FullAt(full_at, None),
                    None if asked.shared.rule().holds_slots() => CallArgument::Slot(&asked.slot),
                    None => CallArgument::Nothing,
                },
            })
            .collect()
    }

    pub(crate) fn encode(&self) -> Encoded {
        let clock = Clock::Given(Nanos::new(self.now));
        encode(self.call, clock, "t", &self.buckets()).unwrap()
    }

    /// Checks a reply; the error describes the difference.
    pub(crate) fn check(&self, reply: &redis::Value) -> Result<(), String> {
        let buckets = self.buckets();
        let answer = read(reply, &buckets).map_err(|bad| format!("{bad}: {reply:?}"))?;
        if answer.now.get() != self.now || answer.healed != 0 {
            return Err(format!("at {} with {} healed", answer.now.get(), answer.healed));
        }
        let rules: Vec<&Rule> = self.asked.iter().map(|asked| asked.shared.rule()).collect();
        match &self.expected {
            Expected::Charged(passes, expected) => {
                compare::charged(&rules, expected, &answer.charged(&buckets).0)?;
                if *passes == (answer.granted == 1) { Ok(()) } else { Err(format!("granted {}", answer.granted)) }
            }
            Expected::Each(granted, each) => {
                if answer.granted != *granted {
                    return Err(format!("granted {} and not {granted}", answer.granted));
                }
                for (position, (expected, found)) in each.iter().zip(answer.each(&buckets)).enumerate() {
                    // for logs the reply has the headroom of the last charge only
                    if self.asked.iter().any(|asked| asked.shared.parameters().starts_with('l')) {
                        let admitted = |all: &AllCharged| -> Vec<bool> {
                            all.iter().map(|charged| charged.decision.is_admitted()).collect()
                        };
                        let bound = self.asked.iter().all(|asked| asked.enforcement.enforces);
                        if bound && (position as u64) < *granted && admitted(expected) != admitted(&found) {
                            return Err(format!("{found:?} and not {expected:?}"));
                        }
                        continue;
                    }
                    compare::charged(&rules, expected, &found)?;
                }
                Ok(())
            }
            Expected::Stands(expected) => {
                let found = rules.iter().zip(answer.seen()).map(|(rule, seen)| seen.headroom(rule, answer.now));
                let found: Vec<Headroom> = found.collect();
                let mut all = rules.iter().zip(expected.iter().zip(&found));
                all.try_for_each(|(rule, (expected, found))| compare::headroom(rule, expected, found))
            }
        }
    }

    pub(crate) fn describe(&self) -> String {
        let mut text = format!("{:?} at {}:", self.call, self.now);
        for asked in &self.asked {
            let one = format!(
                " {} {} [{}] cost {} {:?} {:?};",
                asked.name,
                asked.shared.rule().describe(),
                asked.shared.parameters(),
                asked.cost,
                asked.enforcement,
                asked.full_at
            );
            text.push_str(&one);
        }
        text
    }
}
