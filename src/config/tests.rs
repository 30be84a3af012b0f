use super::*;
use crate::algorithm::{AlgorithmName, Parameter, ParameterKind};

/// A valid text for a parameter.
fn example(parameter: &Parameter) -> String {
    match parameter.kind {
        ParameterKind::Rate => "10/s".to_owned(),
        ParameterKind::Duration | ParameterKind::DurationOr(_) => "1d".to_owned(),
        ParameterKind::Whole => "5".to_owned(),
        ParameterKind::Decimal => "2.5".to_owned(),
        ParameterKind::Flag => "true".to_owned(),
        ParameterKind::Choice(words) => words[0].to_owned(),
        ParameterKind::TimeZone => "Europe/Berlin".to_owned(),
    }
}

fn limit(algorithm: AlgorithmName, parameters: impl Iterator<Item = Parameter>) -> String {
    let parameters: String = parameters.map(|one| format!(", {}: {}", one.name, example(&one))).collect();
    format!("limits: {{ l: {{ algorithm: {}{parameters} }} }}", algorithm.as_str())
}

fn check(text: &str) -> Result<Limits, Problems> {
    load_limits(text, "f", &|_| None)
}

#[test]
fn every_algorithm_can_be_configured_with_what_it_requires() {
    for algorithm in AlgorithmName::ALL {
        let parameters = algorithm.parameters().iter().copied();
        let limits = check(&limit(*algorithm, parameters.clone().filter(|one| one.required))).unwrap();
        let spec = &limits.limits[0];
        assert_eq!((spec.algorithm, spec.name.as_str()), (*algorithm, "l"));
        assert!(parameters.filter(|one| one.required).all(|one| spec.base.has(one.name)));
    }
}

#[test]
fn every_parameter_is_read_by_its_kind() {
    for algorithm in AlgorithmName::ALL {
        for parameter in algorithm.parameters() {
            let others = algorithm.parameters().iter().copied().filter(|one| one.required || one == parameter);
            if let Err(problems) = check(&limit(*algorithm, others)) {
                // the algorithm itself may refuse such a value
                for problem in &problems.errors {
                    assert_eq!(problem.expected, None, "{problem}");
                }
            }
            let text = format!("limits: {{ l: {{ algorithm: {}, {}: [] }} }}", algorithm.as_str(), parameter.name);
            let problems = check(&text).unwrap_err();
            let path = format!("limits.l.{}", parameter.name);
            assert!(problems.errors.iter().any(|one| one.place.path == path && one.found.as_deref() == Some("a list")));
        }
    }
}

#[test]
fn every_parameter_that_is_missing_is_named() {
    for algorithm in AlgorithmName::ALL {
        let problems = check(&limit(*algorithm, std::iter::empty())).unwrap_err();
        let [problem] = problems.errors.as_slice() else { panic!("{problems}") };
        for parameter in algorithm.parameters().iter().filter(|one| one.required) {
            assert!(problem.message.contains(&format!("`{}`", parameter.name)), "{problem}");
        }
    }
}

#[test]
fn findings_are_told_in_the_order_of_the_text_and_counted_beyond_a_thousand() {
    let text: String = (0..1_500).map(|number| format!("k{number}: 1\n")).collect();
    let problems = check(&text).unwrap_err();
    assert_eq!((problems.errors.len(), problems.more), (1_000, 501));
    assert!(problems.errors.is_sorted_by_key(|problem| problem.place.mark));
    assert!(problems.to_string().ends_with("and 501 more"));
}

#[test]
fn an_error_after_a_thousand_warnings_is_told() {
    let queue = |number| format!("  l{number}: {{ algorithm: leaky_queue, rate: 1/s, capacity: 5 }}\n");
    let queues: String = (0..1_100).map(queue).collect();
    assert_eq!(check(&format!("limits:\n{queues}")).unwrap().warnings.len(), 1_000);
    let problems = check(&format!("limits:\n{queues}  late: {{ algorithm: gcra }}\n")).unwrap_err();
    let errors: Vec<&str> = problems.errors.iter().map(|problem| problem.place.path.as_str()).collect();
    assert_eq!((errors, problems.more), (vec!["limits.late"], 0));
}
