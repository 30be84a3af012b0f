//! Parameters that are serialized and built again.

use tollgate::algorithm::{Decision, Rule};

use crate::algorithms::limit::Limit;
use crate::algorithms::walk::{Law, Step, Walk};

pub(super) const WHAT: &str = "a limit can be built again from its arguments";

pub(super) fn watch(_limit: &Limit, _rule: &Rule) -> Option<Box<dyn Law>> {
    Some(Box::new(Rebuilt))
}

struct Rebuilt;

impl Law for Rebuilt {
    fn after(&mut self, walk: &Walk<'_>, _step: Step, _decision: Option<Decision>) -> Result<(), String> {
        let arguments = walk.rule.arguments();
        let again = walk.rule.name().build(&arguments).map_err(|error| error.to_string())?;
        if again == *walk.rule { Ok(()) } else { Err(format!("{:?} became {again:?}", walk.rule)) }
    }
}
