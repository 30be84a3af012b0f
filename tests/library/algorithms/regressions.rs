//! Walks that once broke a law.

use crate::algorithms::explore::check;
use crate::algorithms::laws;
use crate::algorithms::limit::Limit;
use crate::algorithms::walk::Step;

const WALKS: &str = include_str!("regressions.txt");

#[test]
fn walks_that_once_broke_a_law_keep_all_laws() {
    for line in WALKS.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let (limit, steps) = line.split_once(" | ").expect("a limit and steps");
        let limit: Limit = limit.parse().expect("a limit");
        let rule = limit.build().expect("a limit that is not refused");
        let steps: Vec<Step> = steps.split_whitespace().map(|step| step.parse().expect("a step")).collect();
        for (what, watch) in laws::ALL {
            if let Err(why) = check(&limit, &rule, watch, &steps) {
                panic!("{line}\nbreaks the law that {what}\n{why}");
            }
        }
    }
}
