//! `candidate` of a limit: parameters that the gateway tries out beside the limit's own.

use crate::algorithm::AlgorithmName;
use crate::charge::Mode;
use crate::config::names::Names;
use crate::config::parameters::Parameters;
use crate::config::read::Field;
use crate::config::sharing;
use crate::config::terms::{AllTerms, FileScope, TermsCompiler};
use crate::ruleset::LimitId;
use crate::ruleset::limit::{Limit, OverLimit};

/// The rules of a limit's candidate.
pub(super) struct Candidate {
    algorithm: AlgorithmName,
    pub(super) terms: AllTerms,
}

/// Reads the candidate of a limit with the algorithm `live` and perhaps a `max_wait`. The candidate takes over these two
/// unless it has its own. It takes over nothing else: a candidate is a whole set of parameters.
pub(super) fn read<'a>(
    field: &Field<'a>,
    (live, mode): (AlgorithmName, Mode),
    max_wait: Option<&Field<'a>>,
    (plans, scope): (&Names, FileScope),
) -> Option<Candidate> {
    let section = field.mapping("the parameters to try out")?;
    let algorithm = section.get_or("algorithm", live, Field::algorithm)?;
    let parameters = algorithm.parameters().iter().map(|parameter| parameter.name);
    let known: Vec<&str> = ["algorithm", "plans", "max_wait"].into_iter().chain(parameters).collect();
    section.reject_unknown(&known);
    let mut base = Parameters::read(&section, algorithm);
    if let Some(max_wait) = section.get("max_wait").or_else(|| max_wait.cloned()) {
        base.take_max_wait(max_wait);
    }
    let compiler = TermsCompiler { limit: field, algorithm, base: &base, plans, scope };
    let terms = compiler.compile(&compiler.named(&section)?)?;
    sharing::check(field, mode, &terms.rules)?;
    Some(Candidate { algorithm, terms })
}

/// A candidate as a limit beside `live`. Its name cannot collide with a configured limit: names hold no spaces.
pub(super) fn as_limit(live: &Limit, id: LimitId, Candidate { algorithm, terms }: Candidate) -> Limit {
    Limit {
        name: format!("{} candidate", live.name),
        algorithm,
        rules: terms.rules,
        plans: terms.plans,
        without_plan: terms.without_plan,
        over_limit: OverLimit::default(),
        shadow: false,
        candidate_of: Some(id),
        ..live.clone()
    }
}
