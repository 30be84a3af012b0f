//! Configurations: whatever is in them, they are read or refused, in words that tell where and no secret.

use tollgate::config::{self, ConfigText, Problem};

const SECRET: &str = "s3cr3t-of-the-environment";

pub(crate) fn run(data: &[u8]) {
    let Ok(text) = str::from_utf8(data) else { return };
    let environment = |name: &str| (!name.ends_with('_')).then(|| SECRET.to_owned());
    let check = |problems: &[Problem]| {
        for problem in problems {
            let shown = problem.to_string();
            assert!(!shown.contains(SECRET), "{shown}");
            let mark = problem.place.mark.unwrap();
            let lines = text.split('\n').count().max(text.split('\r').count());
            assert!(mark.line >= 1 && mark.column >= 1 && mark.line <= lines + 1, "{shown}");
            assert!(mark.column <= text.chars().count() + 1, "{shown}");
            assert!(!problem.message.is_empty() && shown.len() < 20_000, "{shown}");
        }
    };
    match config::load(text, "f", &environment) {
        Ok(loaded) => {
            check(&loaded.warnings);
            assert!(!loaded.server.listeners.is_empty());
        }
        Err(problems) => {
            assert!(!problems.errors.is_empty());
            check(&problems.errors);
            check(&problems.warnings);
        }
    }
    let whole = ConfigText::new("f", text);
    let alone = whole.holds_limits_only();
    match config::load_limits(text, "f", &environment) {
        Ok(limits) => {
            check(&limits.warnings);
            for limit in &limits.limits {
                for plan in limits.plans.iter().map(|plan| Some(&**plan)).chain([None]) {
                    if let Ok(Some(rule)) = limit.rule(plan) {
                        assert!(!rule.describe().is_empty());
                        let built = limit.algorithm.build(&rule.arguments()).map(|built| built.canonical());
                        assert_eq!(built.as_ref(), Ok(&rule));
                    }
                }
            }
        }
        Err(problems) => {
            check(&problems.errors);
            assert!(!alone || !problems.errors.is_empty());
        }
    }
    drop(whole.load_customers(&environment));
}
